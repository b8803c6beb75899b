"""Small models of the kinds that people compile."""

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        b, n, width = x.shape
        parts = self.qkv(self.first(x)).split(width, dim=2)
        q, k, v = (p.view(b, n, self.heads, -1).transpose(1, 2) for p in parts)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(y.transpose(1, 2).reshape(b, n, width))
        return x + self.down(F.gelu(self.up(self.second(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self, words=64, width=32, heads=4, layers=2, longest=32):
        super().__init__()
        self.words, self.places = nn.Embedding(words, width), nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(layers))
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, words, bias=False)
        self.head.weight = self.words.weight

    def forward(self, tokens):
        x = self.words(tokens) + self.places(torch.arange(tokens.shape[1], device=tokens.device))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


class RMSNorm(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x):
        return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * self.weight


def rotated(x, cos, sin):
    a, b = x.chunk(2, dim=-1)
    return x * cos + torch.cat([-b, a], dim=-1) * sin


class Llama(nn.Module):
    """A block with rotary positions, grouped heads, and a cache of keys and values."""

    def __init__(self, width=32, heads=4, groups=2, longest=16):
        super().__init__()
        self.heads, self.groups, self.head = heads, groups, width // heads
        inner = groups * self.head
        self.q, self.k, self.v = (nn.Linear(width, n, bias=False) for n in (width, inner, inner))
        self.out = nn.Linear(width, width, bias=False)
        self.gate, self.up = (nn.Linear(width, 64, bias=False) for _ in range(2))
        self.down = nn.Linear(64, width, bias=False)
        self.first, self.second = RMSNorm(width), RMSNorm(width)
        rates = 10000.0 ** (-torch.arange(0, self.head, 2) / self.head)
        angles = torch.outer(torch.arange(longest).float(), rates).repeat(1, 2)
        self.register_buffer("cos", angles.cos())
        self.register_buffer("sin", angles.sin())

    def forward(self, x, cache=None, start=0):
        b, n, _ = x.shape
        y = self.first(x)
        q = self.q(y).view(b, n, self.heads, self.head).transpose(1, 2)
        k, v = (w(y).view(b, n, self.groups, self.head).transpose(1, 2) for w in (self.k, self.v))
        cos, sin = self.cos[start : start + n], self.sin[start : start + n]
        q, k = rotated(q, cos, sin), rotated(k, cos, sin)
        if cache is not None:
            cache[0][:, :, start : start + n] = k
            cache[1][:, :, start : start + n] = v
            k, v = cache[0][:, :, : start + n], cache[1][:, :, : start + n]
        k, v = (t.repeat_interleave(self.heads // self.groups, dim=1) for t in (k, v))
        s = q @ k.transpose(-2, -1) * self.head**-0.5
        i = torch.arange(n, device=x.device)[:, None] + start
        s = s.masked_fill(torch.arange(start + n, device=x.device) > i, float("-inf"))
        y = (s.softmax(dim=-1) @ v).transpose(1, 2).reshape(b, n, -1)
        x = x + self.out(y)
        y = self.second(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


class ResNet(nn.Module):
    def __init__(self, channels=8, outer=16, stride=2):
        super().__init__()
        self.stem = nn.Conv2d(3, channels, 3, padding=1, bias=False)
        self.first = nn.Conv2d(channels, outer, 3, stride=stride, padding=1, bias=False)
        self.second = nn.Conv2d(outer, outer, 3, padding=1, bias=False)
        self.short = nn.Conv2d(channels, outer, 1, stride=stride, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(n) for n in (channels, outer, outer, outer))
        self.head = nn.Linear(outer, 10)

    def forward(self, x):
        x = F.max_pool2d(F.relu(self.norms[0](self.stem(x))), 3, 2, 1)
        y = F.relu(self.norms[1](self.first(x)))
        y = self.norms[2](self.second(y)) + self.norms[3](self.short(x))
        return self.head(F.adaptive_avg_pool2d(F.relu(y), 1).flatten(1))


class UNet(nn.Module):
    """A level: down by stride, a grouped and a depthwise convolution, up by a transposed one."""

    def __init__(self, channels=8):
        super().__init__()
        self.first = nn.Conv2d(3, channels, 3, padding=1)
        self.norm, self.inner = nn.GroupNorm(4, channels), nn.GroupNorm(4, 2 * channels)
        self.down = nn.Conv2d(channels, 2 * channels, 3, stride=2, padding=1)
        self.deep = nn.Conv2d(
            2 * channels, 2 * channels, 3, padding=2, dilation=2, groups=2 * channels
        )
        self.mix = nn.Conv2d(2 * channels, 2 * channels, 1, groups=2)
        self.time = nn.Linear(4, 2 * channels)
        self.up = nn.ConvTranspose2d(2 * channels, channels, 2, stride=2)
        self.last = nn.Conv2d(2 * channels, 3, 3, padding=1)

    def forward(self, x, t):
        x = F.silu(self.norm(self.first(x)))
        y = self.down(x) + F.silu(self.time(t))[:, :, None, None]
        y = self.mix(self.deep(F.silu(self.inner(y))))
        return self.last(torch.cat([self.up(y), x], dim=1))


MODELS = {
    "gpt": lambda: (GPT(), (torch.randint(0, 64, (2, 12)),)),
    "llama": lambda: (Llama(), (torch.randn(2, 8, 32),)),
    "resnet": lambda: (ResNet(), (torch.randn(2, 3, 16, 16),)),
    "unet": lambda: (UNet(), (torch.randn(2, 3, 8, 8), torch.randn(2, 4))),
}
