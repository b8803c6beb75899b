"""Random numbers by counting: element i of a tensor is Philox2x32-10 of i under a seed.

An operator that needs random numbers becomes `tilewright::seed`, which takes the next seed from
PyTorch's generator, and `tilewright::uniform`, which is pure: a formula says it, so that masks are
computed where they are used. `random_numbers()` gives the same numbers to eager code.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from math import prod, tau
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

MULTIPLIER, WEYL, ROUNDS = 0xD256D193, 0x9E3779B9, 10
WORD = (1 << 32) - 1
_calls = itertools.count()  # PyTorch takes equal calls for one

_library = torch.library.Library("tilewright", "FRAGMENT")
_library.define("seed(Device device, int call) -> Tensor",
                tags=(torch.Tag.nondeterministic_seeded,))  # fmt: skip
_library.define("uniform(Tensor seed, int stream, SymInt[] size) -> Tensor")


# ── seeds ────────────────────────────────────────────────────────────────────────────────────


def _drawn(device: Any, call: int) -> Any:
    """64 bits of PyTorch's generator. No kernel of PyTorch runs on a GPU for them, unless a CUDA
    graph is captured, which draws anew each time that it is replayed."""
    if device.type != "cuda" or torch.cuda.is_current_stream_capturing():
        return torch.randint(-(1 << 63), (1 << 63) - 1, (1,), device=device)
    index = torch.cuda.current_device() if device.index is None else device.index
    generator = torch.cuda.default_generators[index]
    offset = generator.get_offset()
    generator.set_offset(offset + 4)
    seed = _signed(_mixed(_mixed(generator.initial_seed()) ^ offset))
    return torch.tensor([seed]).pin_memory().to(device, non_blocking=True)


def _mixed(x: int) -> int:
    """Every bit of the result depends on every bit of `x` (the finalizer of SplitMix64)."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = (x ^ x >> shift) * factor & ((1 << 64) - 1)
    return x ^ x >> 31


def _signed(x: int) -> int:
    return x - (1 << 64) if x >> 63 else x


def _uniform(seed: Any, stream: int, size: Sequence[int]) -> Any:
    """What the formula in `lowerings.random` says, by PyTorch's operators."""
    found = philox(
        torch.arange(prod(size), device=seed.device) & WORD,
        seed & WORD,
        seed >> 32 & WORD ^ stream,
        lambda a: (a * MULTIPLIER >> 32 & WORD, a * MULTIPLIER & WORD),
    )
    return ((found >> 8).float() * 2.0**-24).reshape(size)


def philox(a: Any, key: Any, b: Any, product: Callable[[Any], tuple[Any, Any]]) -> Any:
    """32 random bits for the counter (a, b); `product` gives the words of a · MULTIPLIER."""
    for turn in range(ROUNDS):
        high, low = product(a)
        a, b = high ^ (key + (turn * WEYL & WORD) & WORD) ^ b, low
    return a


_library.impl("seed", _drawn, "CompositeExplicitAutograd")
_library.impl("seed", lambda device, call: torch.empty(1, dtype=torch.int64, device=device), "Meta")
_library.impl("uniform", _uniform, "CompositeExplicitAutograd")
_library.impl(
    "uniform", lambda seed, stream, size: seed.new_empty(size, dtype=torch.float32), "Meta"
)


# ── operators that need them ─────────────────────────────────────────────────────────────────


def _uniforms(size: Sequence[Any], device: Any, count: int = 1) -> list[Any]:
    device = torch.device("cpu" if device is None else device)
    ops = torch.ops.tilewright
    seed = ops.seed(device, next(_calls))
    return [ops.uniform(seed, stream, size) for stream in range(count)]


def native_dropout(x: Any, p: float, train: bool | None = None) -> tuple[Any, Any]:
    if train is False or p == 0:
        return x.clone(), torch.ones_like(x, dtype=torch.bool)
    (u,) = _uniforms(x.shape, x.device)
    mask = u < 1 - p
    return x * mask * (1 / (1 - p) if p < 1 else 0.0), mask


def bernoulli(x: Any, p: Any = None, *, generator: Any = None) -> Any:
    (u,) = _uniforms(x.shape, x.device)
    return (u < (x if p is None else p)).to(x.dtype)


def _kind(dtype: Any) -> Any:
    return torch.get_default_dtype() if dtype is None else dtype


def rand(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """Numbers below 1 in narrow types too: those have fewer bits."""
    (u,) = _uniforms(size, device)
    bits = {torch.float16: 11, torch.bfloat16: 8}.get(kind := _kind(dtype), 24)
    return (u if bits == 24 else torch.floor(u * 2.0**bits) * 2.0**-bits).to(kind)


def randn(size: Sequence[Any], *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
    """By Box and Muller."""
    u, v = _uniforms(size, device, 2)
    return (torch.sqrt(-2 * torch.log1p(-u)) * torch.cos(v * tau)).to(_kind(dtype))


def _like(make: Callable[..., Any]) -> Callable[..., Any]:
    def like(x: Any, *, dtype: Any = None, device: Any = None, **_: Any) -> Any:
        return make(x.shape, dtype=dtype or x.dtype, device=device or x.device)

    return like


def uniform(x: Any, low: float = 0.0, high: float = 1.0, *, generator: Any = None) -> Any:
    return low + (high - low) * rand(x.shape, dtype=x.dtype, device=x.device)


def normal(x: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    return mean + std * randn(x.shape, dtype=x.dtype, device=x.device)


_aten = torch.ops.aten
DECOMPOSITIONS: dict[Any, Callable[..., Any]] = {
    _aten.native_dropout.default: native_dropout,
    _aten.bernoulli.default: bernoulli,
    _aten.bernoulli.p: bernoulli,
    _aten.rand.default: rand,
    _aten.rand_like.default: _like(rand),
    _aten.randn.default: randn,
    _aten.randn_like.default: _like(randn),
    _aten.uniform.default: uniform,
    _aten.normal_functional.default: normal,
}
_IN_PLACE: dict[Any, Callable[..., Any]] = {
    _aten.bernoulli_.float: lambda x, p=0.5, **more: bernoulli(x, p, **more),
    _aten.uniform_.default: uniform,
    _aten.normal_.default: normal,
}


class random_numbers(TorchDispatchMode):  # type: ignore[misc]  # mypy skips torch
    """Give eager code the random numbers that compiled code has after the same
    `torch.manual_seed`, to compare the two.

    >>> import torch, tilewright.torch
    >>> drop = torch.compile(lambda x: torch.dropout(x, 0.5, True), backend="tilewright")
    >>> x, generator = torch.ones(64), torch.manual_seed(3)
    >>> found, generator = drop(x), torch.manual_seed(3)
    >>> with tilewright.torch.random_numbers():
    ...     bool((found == torch.dropout(x, 0.5, True)).all())
    True
    """

    def __torch_dispatch__(
        self, op: Any, types: Any, args: Any = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        given = kwargs or {}
        if given.get("generator") is None and op in _IN_PLACE:
            return args[0].copy_(_IN_PLACE[op](*args, **given))
        own = DECOMPOSITIONS.get(op) if given.get("generator") is None else None
        return (own or op)(*args, **given)
