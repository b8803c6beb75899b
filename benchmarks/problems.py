"""24 float32 problems as somebody new writes them, with nothing chosen, against PyTorch on a GPU.

    python benchmarks/problems.py --out problems.json
    python benchmarks/problems.py --only "triangular product" --triton --out problems.json
    python benchmarks/problems.py summary problems.json

The texts are of somebody who had read the documentation alone. Contenders: PyTorch, the same
compiled (mostly to Triton kernels), and with `--triton` products that its compiler tunes among
Triton kernels. Products are as IEEE says on all sides.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from race import Race, command_line, main, tell_ratios, timed

import tilewright as tw
import tilewright.language as T

f32 = "float32"


# ── products ──


@tw.jit
def matmul(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), f32)
    B: T.Tensor((K, N), f32)
    C = T.empty((M, N), f32)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def batched_matmul(A, B):
    S, M, N, K = T.const("S, M, N, K")
    A: T.Tensor((S, M, K), f32)
    B: T.Tensor((S, K, N), f32)
    C = T.empty((S, M, N), f32)
    for s, m, n in T.tile(T.each(S), M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[s, m, k] @ B[s, k, n]
        C[s, m, n] = acc
    return C


@tw.jit
def matvec(A, B):
    M, K = T.const("M, K")
    A: T.Tensor((M, K), f32)
    B: T.Tensor((K, 1), f32)
    C = T.empty((M, 1), f32)
    for m in T.tile(M):
        C[m, 0] = T.sum(A[m, :] * B[:, 0], dim=1)
    return C


@tw.jit
def transposed_matmul(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((K, M), f32)
    B: T.Tensor((K, N), f32)
    C = T.empty((M, N), f32)
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[k, m].T @ B[k, n]
        C[m, n] = acc
    return C


@tw.jit
def triu_matmul(A, B):
    N = T.const("N")
    A: T.Tensor((N, N), f32)
    B: T.Tensor((N, N), f32)
    C = T.empty((N, N), f32)
    for m, n in T.tile(N, N):
        acc = T.zeros((m, n))
        for k in T.tile((m.start, n.stop)):
            acc += A[m, k] @ B[k, n]
        C[m, n] = T.where(m.index[:, None] <= n.index, acc, 0)
    return C


@tw.jit
def diag_matmul(a, B):
    M, N = T.const("M, N")
    a: T.Tensor((M,), f32)
    B: T.Tensor((M, N), f32)
    C = T.empty((M, N), f32)
    for m, n in T.tile(M, N):
        C[m, n] = a[m, None] * B[m, n]
    return C


@tw.jit
def tensor_matmul(A, B):
    S, M, N, K = T.const("S, M, N, K")
    A: T.Tensor((S, M, K), f32)
    B: T.Tensor((K, N), f32)
    C = T.empty((S, M, N), f32)
    for s, m, n in T.tile(T.each(S), M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[s, m, k] @ B[k, n]
        C[s, m, n] = acc
    return C


# ── rows ──


@tw.jit
def gelu(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), f32)
    Y = T.empty((M, N), f32)
    for m, n in T.tile(M, N):
        Y[m, n] = T.gelu(X[m, n])
    return Y


@tw.jit
def softmax(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), f32)
    Y = T.empty((M, N), f32)
    for r in T.tile(M):
        x = T.load(X[r, :])
        e = T.exp(x - T.max(x, dim=1, keepdim=True))
        Y[r, :] = e / T.sum(e, dim=1, keepdim=True)
    return Y


@tw.jit
def batch_norm(X, weight, bias, eps=1e-5):
    N, C, H, W = T.const("N, C, H, W")
    X: T.Tensor((N, C, H, W), f32)
    weight: T.Tensor((C,), f32)
    bias: T.Tensor((C,), f32)
    Y = T.empty((N, C, H, W), f32)
    means = T.alloc_global((N, C), f32)
    variances = T.alloc_global((N, C), f32)
    for n, c in T.tile(T.each(N), T.each(C)):
        x = T.load(X[n, c, :, :])
        means[n, c] = T.mean(x, dim=(0, 1))
        variances[n, c] = T.var(x, dim=(0, 1))
    for n, c in T.tile(T.each(N), T.each(C)):
        mean = T.mean(means[:, c], dim=0)
        var = T.mean(variances[:, c] + (means[:, c] - mean) ** 2, dim=0)
        scale = T.rsqrt(var + eps) * weight[c]
        Y[n, c, :, :] = (X[n, c, :, :] - mean) * scale + bias[c]
    return Y


@tw.jit
def group_norm(X, weight, bias, L: int, eps=1e-5):
    N, G, R, C = T.const("N, G, R, C")
    X: T.Tensor((N, G, R), f32)
    weight: T.Tensor((C,), f32)
    bias: T.Tensor((C,), f32)
    Y = T.empty((N, G, R), f32)
    for n, g in T.tile(T.each(N), G):
        x = T.load(X[n, g, :])
        mean, var = T.mean(x, dim=1, keepdim=True), T.var(x, dim=1, keepdim=True)
        channel = g.index[:, None] * (R // L) + T.arange(R) // L
        Y[n, g, :] = (x - mean) * T.rsqrt(var + eps) * weight[channel] + bias[channel]
    return Y


@tw.jit
def rms_norm(X, eps=1e-5):
    N, C, H, W = T.const("N, C, H, W")
    X: T.Tensor((N, C, H, W), f32)
    Y = T.empty((N, C, H, W), f32)
    for n, h, w in T.tile(T.each(N), H, W):
        x = T.load(X[n, :, h, w])
        Y[n, :, h, w] = x * T.rsqrt(T.mean(x * x, dim=0) + eps)
    return Y


@tw.jit
def layer_norm(X, weight, bias, eps=1e-5):
    B, C, H, W = T.const("B, C, H, W")
    X: T.Tensor((B, C, H, W), f32)
    weight: T.Tensor((C, H, W), f32)
    bias: T.Tensor((C, H, W), f32)
    Y = T.empty((B, C, H, W), f32)
    for b in T.tile(T.each(B)):
        x = T.load(X[b, :, :, :])
        mean, var = T.mean(x, dim=(0, 1, 2)), T.var(x, dim=(0, 1, 2))
        Y[b, :, :, :] = (x - mean) * T.rsqrt(var + eps) * weight[:, :, :] + bias[:, :, :]
    return Y


@tw.jit
def l2_normalize(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), f32)
    Y = T.empty((M, N), f32)
    for r in T.tile(M):
        x = T.load(X[r, :])
        Y[r, :] = x / T.sqrt(T.sum(x * x, dim=1, keepdim=True))
    return Y


# ── windows ──


@tw.jit
def max_pool(X):
    N, C, H, W = T.const("N, C, H, W")
    X: T.Tensor((N, C, H, W), f32)
    Y = T.empty((N, C, H - 1, W - 1), f32)
    for n, c, y, x in T.tile(T.each(N), T.each(C), H - 1, W - 1):
        best = T.full((y, x), -T.inf)
        for dy in range(4):
            for dx in range(4):
                best = T.maximum(best, T.load(X[n, c, y + dy - 1, x + dx - 1], fill=-T.inf))
        Y[n, c, y, x] = best
    return Y


@tw.jit
def avg_pool(X):
    N, C, L = T.const("N, C, L")
    X: T.Tensor((N, C, L), f32)
    Y = T.empty((N, C, L + 1), f32)
    for n, c, l in T.tile(T.each(N), C, L + 1):
        total = T.zeros((c, l))
        for d in range(8):
            total += X[n, c, l + d - 4]
        Y[n, c, l] = total / 8
    return Y


@tw.jit
def depthwise(X, F):
    N, C, H, W = T.const("N, C, H, W")
    X: T.Tensor((N, C, H, W), f32)
    F: T.Tensor((C, 1, 3, 3), f32)
    Y = T.empty((N, C, H - 2, W - 2), f32)
    for n, c, y, x in T.tile(T.each(N), T.each(C), H - 2, W - 2):
        acc = T.zeros((y, x))
        for dy in range(3):
            for dx in range(3):
                acc += X[n, c, y + dy, x + dx] * F[c, 0, dy, dx]
        Y[n, c, y, x] = acc
    return Y


# ── reductions, scans, losses ──


@tw.jit
def max_dim1(X):
    S, M, N = T.const("S, M, N")
    X: T.Tensor((S, M, N), f32)
    Y = T.empty((S, N), f32)
    for s, n in T.tile(T.each(S), N):
        Y[s, n] = T.max(X[s, :, n], dim=0)
    return Y


@tw.jit
def argmax_dim1(X):
    S, M, N = T.const("S, M, N")
    X: T.Tensor((S, M, N), f32)
    Y = T.empty((S, N), "int64")
    for s, n in T.tile(T.each(S), N):
        Y[s, n] = T.argmax(X[s, :, n], dim=0)
    return Y


@tw.jit
def masked_cumsum(X, mask):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), f32)
    mask: T.Tensor((M, N), "bool")
    Y = T.empty((M, N), f32)
    for r in T.tile(M):
        Y[r, :] = T.cumsum(T.where(mask[r, :], X[r, :], 0), dim=1)
    return Y


@tw.jit
def cross_entropy(X, labels):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), f32)
    labels: T.Tensor((M,), "int64")
    losses = T.alloc_global((M,), f32)
    Y = T.empty((), f32)
    for r in T.tile(M):
        x = T.load(X[r, :])
        top = T.max(x, dim=1)
        total = T.sum(T.exp(x - top[:, None]), dim=1)
        losses[r] = top + T.log(total) - X[r.index, labels[r]]
    for _ in T.tile():
        Y[()] = T.mean(losses[:], dim=0)
    return Y


@tw.jit
def cosine_loss(P, Q, eps=1e-8):
    M, N = T.const("M, N")
    P: T.Tensor((M, N), f32)
    Q: T.Tensor((M, N), f32)
    losses = T.alloc_global((M,), f32)
    Y = T.empty((), f32)
    for r in T.tile(M):
        p, q = T.load(P[r, :]), T.load(Q[r, :])
        pp, qq, pq = T.sum(p * p, dim=1), T.sum(q * q, dim=1), T.sum(p * q, dim=1)
        losses[r] = 1 - pq / (T.maximum(T.sqrt(pp), eps) * T.maximum(T.sqrt(qq), eps))
    for _ in T.tile():
        Y[()] = T.mean(losses[:], dim=0)
    return Y


# ── the races ──

Shapes = Sequence[tuple[int, ...]]
IMAGE = (64, 64, 256, 256)


def _table() -> dict[str, tuple[Shapes, Callable[..., Any], Callable[..., Any], bool]]:
    """By name the shapes of the inputs, our text, PyTorch's, and whether it multiplies matrices."""
    import torch
    import torch.nn.functional as F

    def groups(x: Any, w: Any, b: Any) -> Any:
        found = group_norm(x.view(x.shape[0], 8, -1), w, b, L=x.shape[2] * x.shape[3])
        return found.view_as(x)

    square, rows = [(4096, 4096)] * 2, (4096, 131072)
    per_channel = [IMAGE, (64,), (64,)]
    matmul_of = torch.matmul
    return {
        "product": (square, matmul, matmul_of, True),
        "batched product": (
            [(128, 512, 1024), (128, 1024, 2048)], batched_matmul, torch.bmm, True,
        ),
        "matrix-vector product": ([(2048, 1 << 20), (1 << 20, 1)], matvec, matmul_of, False),
        "odd product": ([(8205, 2949), (2949, 5921)], matmul, matmul_of, True),
        "shallow product": ([(32768, 32), (32, 32768)], matmul, matmul_of, True),
        "transposed product": (
            [(8192, 2048), (8192, 4096)], transposed_matmul, lambda a, b: a.T @ b, True,
        ),
        "triangular product": (
            square, triu_matmul, lambda a, b: torch.triu(a @ b), True,
        ),
        "diagonal product": (
            [(4096,), (4096, 4096)], diag_matmul, lambda a, b: a[:, None] * b, False,
        ),
        "3-D product": ([(16, 1024, 2048), (2048, 768)], tensor_matmul, matmul_of, True),
        "gelu": ([rows], gelu, F.gelu, False),
        "softmax": ([rows], softmax, lambda x: x.softmax(-1), False),
        "batch norm": (
            per_channel, batch_norm,
            lambda x, w, b: F.batch_norm(x, None, None, w, b, training=True), False,
        ),
        "group norm": (per_channel, groups, lambda x, w, b: F.group_norm(x, 8, w, b), False),
        "rms norm": (
            [IMAGE], rms_norm,
            lambda x: x / torch.sqrt(torch.mean(x * x, dim=1, keepdim=True) + 1e-5), False,
        ),
        "layer norm": (
            [(16, 64, 256, 256), *[(64, 256, 256)] * 2], layer_norm,
            lambda x, w, b: F.layer_norm(x, w.shape, w, b), False,
        ),
        "l2 normalize": (
            [(16384, 65535)], l2_normalize,
            lambda x: x / torch.linalg.vector_norm(x, dim=1, keepdim=True), False,
        ),
        "max pool": ([(32, 64, 256, 256)], max_pool, lambda x: F.max_pool2d(x, 4, 1, 1), False),
        "average pool": ([(64, 128, 32768)], avg_pool, lambda x: F.avg_pool1d(x, 8, 1, 4), False),
        "max": ([(128, 4096, 4095)], max_dim1, lambda x: x.amax(1), False),
        "argmax": ([(128, 4096, 4095)], argmax_dim1, lambda x: x.argmax(1), False),
        "masked cumsum": (
            [(32768, 32768)] * 2, masked_cumsum, lambda x, m: torch.cumsum(x * m, -1), False,
        ),
        "cross-entropy": ([(32768, 4096), (32768,)], cross_entropy, F.cross_entropy, False),
        "cosine loss": (
            [(32768, 4096)] * 2, cosine_loss,
            lambda p, t: (1 - F.cosine_similarity(p, t, dim=1)).mean(), False,
        ),
        "depthwise convolution": (
            [(16, 64, 512, 512), (64, 1, 3, 3)], depthwise,
            lambda x, w: F.conv2d(x, w, groups=x.shape[1]), False,
        ),
    }  # fmt: skip


def inputs(name: str, shapes: Shapes) -> list[Any]:
    import torch

    torch.manual_seed(0)
    found = [torch.randn(shape, device="cuda") for shape in shapes]
    if name == "triangular product":
        found = [x.triu() for x in found]
    if name == "masked cumsum":
        found[1] = found[1] > 0
    if name == "cross-entropy":
        found[1] = torch.randint(0, shapes[0][1], shapes[1], device="cuda")
    return found


def races(triton: bool = False) -> Iterator[Race]:
    for name, (shapes, ours, theirs, multiplies) in _table().items():
        yield race(name, shapes, ours, theirs, triton and multiplies)


def race(name: str, shapes: Shapes, ours: Any, theirs: Any, triton: bool) -> Race:
    import torch

    made: list[Any] = []

    def given() -> list[Any]:
        if not made:
            torch.set_float32_matmul_precision("highest")
            torch.backends.cudnn.allow_tf32 = False
            made.extend(inputs(name, shapes))
        return made

    def checks() -> Iterator[dict[str, Any]]:
        got, want = ours(*given()), theirs(*given())
        error = (got.double() - want.double()).abs().max() / want.double().abs().max()
        yield {"contender": "ours", "ok": error.item() < 1e-4, "error": error.item()}

    def contenders() -> dict[str, Callable[[], Any]]:
        compiled = torch.compile(theirs)
        found = {
            "ours": lambda: ours(*given()),
            "eager": lambda: theirs(*given()),
            "compiled": lambda: compiled(*given()),
        }
        if triton:
            options = {"max_autotune": True, "max_autotune_gemm_backends": "TRITON"}
            tuned = torch.compile(theirs, options=options)
            found["triton"] = lambda: tuned(*given())
        return found

    return Race(name, contenders, checks, work=0.0, unit="FLOP", ours=["ours"])


def summary(*paths: str) -> None:
    """The speed of ours over that of each other contender."""
    ratios: dict[str, list[tuple[float, str]]] = {}
    for race, times in timed(paths):
        ours = times.pop("ours")
        for name, ms in times.items():
            ratios.setdefault(name, []).append((ms / ours, race))
        told = ", ".join(f"{name} {ms / ours:.2f}" for name, ms in times.items())
        print(f"{race}: {told}, {1e3 * ours:.0f} µs")
    for name, found in ratios.items():
        tell_ratios(f"ours over {name}", found, 1.0)


if __name__ == "__main__":
    if sys.argv[1:2] == ["summary"]:
        summary(*sys.argv[2:])
        raise SystemExit
    parser = command_line(__doc__)
    parser.set_defaults(backend="event", rounds=4, burst_ms=8.0, warmup_ms=4.0)
    parser.add_argument("--triton", action="store_true", help="products tuned among Triton kernels")
    raise SystemExit(main(__file__, parser))
