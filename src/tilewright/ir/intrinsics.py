"""Functions and instructions by name: the pure ones that `Call` applies, and those with an effect
or a meaning across threads that `Intrinsic` runs. What they compute is in the interpreter's
tables; how they are spelt is in each target's."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Function:
    """A pure scalar function. `domain`: float, int, bool or any. `result`: 'same' as the first
    argument, 'bool', or 'free' (the `Call`'s own dtype, e.g. reinterpret)."""

    name: str
    arity: int
    domain: str = "float"
    result: str = "same"


@dataclass(frozen=True)
class Effect:
    """An instruction with an effect. `convergent`: its value depends on other threads, so all
    threads of the warp must reach it. `opaque`: foreign code that only a GPU target can run.
    `tensors`: what it does with tensors that it is given, 'reads' or 'writes'; '': both."""

    name: str
    convergent: bool = False
    opaque: bool = False
    yields: bool = False
    tensors: str = ""


_UNARY = (
    "exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
    "tanh sigmoid erf floor ceil round trunc"
).split()
# the fast forms may be off by a few ulp; the interpreter computes the accurate ones
_FAST = "exp exp2 exp10 log log2 log10 sin cos tan tanh sigmoid".split()

FUNCTIONS: dict[str, Function] = {
    f.name: f
    for f in (
        *(Function(name, 1) for name in _UNARY),
        *(Function(f"__{name}", 1) for name in _FAST),
        Function("__divide", 2),
        Function("neg", 1, "any"),
        Function("abs", 1, "any"),
        Function("not", 1, "bool", "bool"),
        Function("invert", 1, "int"),
        Function("popcount", 1, "int"),
        Function("clz", 1, "int"),
        Function("isnan", 1, "float", "bool"),
        Function("isinf", 1, "float", "bool"),
        Function("isfinite", 1, "float", "bool"),
        Function("pow", 2, "any"),
        Function("fmod", 2, "any"),
        Function("atan2", 2),
        Function("copysign", 2),
        Function("fma", 3),
        # unlike `min` and `max`, NaN when either is: what reductions fold by
        Function("min_nan", 2),
        Function("max_nan", 2),
        Function("reinterpret", 1, "any", "free"),
        Function("dp4a", 3, "int", "free"),
        # two values rounded to 16 bits, the first in the low half of a uint32
        Function("pack_bfloat16", 2, "float", "free"),
        Function("pack_float16", 2, "float", "free"),
    )
}

INTRINSICS: dict[str, Effect] = {
    e.name: e
    for e in (
        *(Effect(f"shfl_{kind}", convergent=True, yields=True) for kind in
          ("sync", "xor", "up", "down")),
        *(Effect(f"warp_reduce_{op}", convergent=True, yields=True) for op in
          ("sum", "max", "min", "and", "or")),
        Effect("ballot", convergent=True, yields=True),
        Effect("any_sync", convergent=True, yields=True),
        Effect("all_sync", convergent=True, yields=True),
        Effect("print"),
        Effect("device_assert"),
        Effect("ptx", opaque=True, yields=True),
        Effect("call_extern", opaque=True, yields=True),
        Effect("pdl_wait"),
        Effect("pdl_launch"),
        # what tile ops become at stage THREAD; `text` holds their shape as `key=value` words
        Effect("warp_index", convergent=True, yields=True),
        Effect("elect", convergent=True, yields=True),
        Effect("prefetch_map"),
        Effect("bulk_load", tensors="reads"),
        Effect("bulk_row", tensors="reads"),
        Effect("bulk_store", tensors="writes"),
        Effect("store_remote"),
        Effect("store_cluster"),
        Effect("descriptor", yields=True),
        Effect("wgmma", convergent=True),
        Effect("mma", convergent=True),
        Effect("pin"),
        Effect("settle"),
        Effect("stmatrix", convergent=True),
        Effect("ldmatrix", convergent=True),
        Effect("store_packed", tensors="writes"),
        *(Effect(f"load_{space}", tensors="reads") for space in ("shared", "global")),
        *(Effect(f"store_{space}", tensors="writes") for space in ("shared", "global")),
        Effect("load_across"),
        Effect("fold_pair"),
        Effect("wait_cluster"),
        Effect("cp_async", tensors="reads"),
        Effect("atomic", yields=True),
        Effect("atomic_of_warp", convergent=True, yields=True),
    )
}  # fmt: skip
