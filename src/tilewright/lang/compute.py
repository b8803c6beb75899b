"""Matrix products, reductions and scans over tiles."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from math import prod
from typing import Any

from tilewright.lang.builder import precision_of
from tilewright.lang.check import check_dim, check_gemm, check_reduce, shape_text
from tilewright.lang.core import *
from tilewright.lang.handles import Handle
from tilewright.lang.types import GemmWarpPolicy, named


def gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy | str = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    k_pack: int = 1,
    mbar: Any = None,
    *,
    precision: str | None = None,
    wg_wait: int = 0,
) -> None:
    """C += op(A) · op(B), accumulated in C's type (C = … with `clear_accum`).

    A is M×K and B is K×N, or K×M and N×K with `transpose_A` and `transpose_B`. B is in shared
    memory, A there or in a fragment, C a fragment. `policy` deals warps to rows and columns of
    C. float32 operands multiply exactly as IEEE says unless `precision="tf32"`, here or of the
    target (`cuda -precision=tf32`). The target's matrix instruction is chosen by the compiler.
    `k_pack`, `mbar` and `wg_wait` are accepted for porting.

    Example:
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(X, a)
        T.gemm(a, a, c, transpose_B=True, clear_accum=True)  # X · Xᵀ
        T.copy(c, Y)
        # Y[0]: 85344 83328
    """
    _gemm(A, B, C, transpose_A, transpose_B, policy, clear_accum, precision)


def _gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: Any,
    transpose_B: Any,
    policy: GemmWarpPolicy | str,
    clear_accum: Any,
    precision: str | None,
    atom: str | None = None,
    meta: Any = None,
) -> None:
    builder = current_block()
    a, b, c = region_of(A, "sum"), region_of(B, "sum"), written_region(C)
    for flag, name in ((transpose_A, "transpose_A"), (transpose_B, "transpose_B")):
        if isinstance(flag, Expr):
            raise CompileError(
                f"T.{word()}: {name} must be known at compile time",
                got="a run-time value",
                fix="branch with an `if` around two calls, or take it as a factory's argument",
                code="not-constant",
            )
    check_gemm(a, b, c, bool(transpose_A), bool(transpose_B), sparse=meta is not None)
    fix = 'write precision="tf32", or leave it out'
    precision = precision_of(a.dtype) if precision is None else precision
    one_of(precision, ("ieee", "tf32"), f"T.{word()}: unknown precision", fix)
    try:
        kind = GemmWarpPolicy(policy)
    except ValueError:
        raise CompileError(
            "unknown GemmWarpPolicy",
            expected="T.GemmWarpPolicy.Square, FullRow or FullCol",
            got=repr(policy),
            fix="write policy=T.GemmWarpPolicy.FullRow, or leave it out",
            code="arguments",
        ) from None
    builder.emit(
        Gemm(
            a, b, c,
            clear=truth(wrap(clear_accum)),
            transpose_a=bool(transpose_A),
            transpose_b=bool(transpose_B),
            policy=kind.value,
            precision=precision,
            atom=atom,
            meta=None if meta is None else region_of(meta),
        )
    )  # fmt: skip


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy | str = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    *,
    precision: str | None = None,
) -> None:
    """`gemm` as one asynchronous group: C is complete after `T.wait_wgmma`.

    Example:
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(X, a)
        T.clear(c)
        T.wgmma_gemm(a, a, c, transpose_B=True)
        T.wait_wgmma(0)
        T.copy(c, Y)
        # Y[0]: 85344 83328
    """
    _gemm(A, B, C, transpose_A, transpose_B, policy, clear_accum, precision, "wgmma")
    current().emit(Commit("wgmma"))


def wait_wgmma(pending: int = 0) -> None:
    """Until at most `pending` groups of `wgmma_gemm` are open.

    Example:
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(X, a)
        T.clear(c)
        T.wgmma_gemm(a, a, c, transpose_B=True)
        T.wait_wgmma(0)
        T.copy(c, Y)
        # Y[0]: 85344 83328
    """
    builder = current_block()
    builder.emit(WaitGroup("wgmma", static_int(pending, "the count of T.wait_wgmma", 0)))


warpgroup_wait = wait_wgmma


def gemm_sp(
    A_sparse: Any,
    E: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_E: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy | str = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    k_pack: int = 1,
    wg_wait: int = 0,
) -> None:
    """`gemm` with a 2:4 sparse A: half its K values, and their places in `E`.

    A word for programs that are ported: it is traced and checked, but no target multiplies with
    it yet.

    Example, traced only:
        a = T.alloc_shared((64, 32), "float16")
        e = T.alloc_shared((64, 32), "uint8")
        b = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.gemm_sp(a, e, b, c, clear_accum=True)
    """
    if transpose_E:
        raise CompileError("T.gemm_sp: transpose_E is not supported", fix="transpose E first")
    _gemm(A_sparse, B, C, transpose_A, transpose_B, policy, clear_accum, "ieee", meta=E)


# ── reductions and scans ─────────────────────────────────────────────────────────────────────────

# how the words and `T.reduce(…, kind)` name the IR's reductions
KINDS = {
    "sum": "sum", "max": "max", "min": "min", "abssum": "abssum", "absmax": "absmax",
    "bitand": "and", "bitor": "or", "bitxor": "xor", "and": "and", "or": "or", "xor": "xor",
    "any": "any", "all": "all",
}  # fmt: skip


def reduce(
    src: Any,
    dst: Any,
    kind: str,
    dim: int = -1,
    clear: bool = True,
    batch: int = 1,
    nan_propagate: bool = True,
) -> None:
    """`T.reduce` of tiles: dst = `kind` over dimension `dim` of src, and what was there if not
    `clear`. `nan_propagate=False` skips NaN."""
    builder = current_block()
    fix = "a mean is a sum that is divided afterwards" if kind in ("mean", "avg") else ""
    op = one_of(kind, KINDS, f"T.{word()}: unknown kind", fix)
    frm, to = region_of(src, op), written_region(dst)
    at = _axis(src, frm, dim)
    check_reduce(frm, to, at)
    if op in ("and", "or", "xor") and not (frm.dtype.is_int or frm.dtype.is_bool):
        raise CompileError(
            f"T.{word()} works on integers",
            got=f"{frm.buffer.name} of type {frm.dtype}",
            fix="copy it into an integer tile first",
        )
    if not nan_propagate and frm.dtype.is_float:
        if op not in ("max", "min", "absmax"):
            name = frm.buffer.name
            raise CompileError(
                f"T.{word()} cannot skip NaN",
                expected="nan_propagate=False of reduce_max, reduce_min or reduce_absmax",
                fix=f"replace NaN before: T.if_then_else(T.isnan({name}[i, j]), 0, {name}[i, j])",
                code="arguments",
            )
        op = f"{op}_num"
    # the IR counts dimensions of the tile it sees, without those of one element
    axis = at if is_const(frm.extents[at]) else long_dims(frm.extents).index(at)
    builder.emit(Reduce(op, frm, to, axis, bool(clear)))


def _axis(src: Any, region: Region, dim: int) -> int:
    """The dimension of the buffer that dimension `dim` of `src` is."""
    at = static_int(dim, f"dim of T.{word()}")
    at = check_dim(at, len(src.axes), region.buffer.name)
    if isinstance(src, Handle):
        return int(src.axes[at])
    if src.axes[at].key is None:
        raise CompileError(
            f"T.{word()} along a dimension of 1",
            got=f"dim={dim} of {src!r}",
            fix="there is nothing to fold: take its element, dst[:] = x[:, 0]",
            code="arguments",
        )
    return sum(axis.key is not None for axis in src.axes[:at])  # memory has no dimensions of 1


def _kind(kind: str, shown: str) -> Callable[..., None]:
    name = f"reduce_{kind}"

    @named(name, _DOC.format(kind=kind, shown=shown, **_TILES[kind.startswith("bit")]))
    def word(
        src: Any,
        dst: Any,
        dim: int = -1,
        clear: bool = True,
        batch: int = 1,
        nan_propagate: bool = True,
    ) -> None:
        reduce(src, dst, kind, dim, clear, batch, nan_propagate)

    return word


_DOC = """dst = {kind} over dimension `dim` of src; folds into dst when not `clear`.

Example:
    x = T.alloc_fragment((64, 64), "{dtype}")
    row = T.alloc_fragment((64,), "{dtype}")
    T.copy({source}, x)
    T.reduce_{kind}(x, row, dim=1)
    T.copy(row, {result})
    # {name}: {shown}
"""
_TILES = {
    False: {"dtype": "float32", "source": "X", "result": "Y[0, 0:64]", "name": "Y[0]"},
    True: {"dtype": "int32", "source": "X", "result": "M", "name": "M"},
}


reduce_sum = _kind("sum", "2016 1952 1888")
reduce_max = _kind("max", "63 62 61")
reduce_min = _kind("min", "0 -1 -2")
reduce_abssum = _kind("abssum", "2016 1954 1894")
reduce_absmax = _kind("absmax", "63 62 61")
reduce_bitand = _kind("bitand", "0 0 0")
reduce_bitor = _kind("bitor", "63 -1 -1")
reduce_bitxor = _kind("bitxor", "0 -64 0")


def scan(kind: str, src: Any, dst: Any, dim: int, reverse: bool) -> None:
    builder = current_block()
    frm = written_region(src) if dst is None else region_of(src, kind)
    to = frm if dst is None else written_region(dst)
    at = _axis(src, frm, dim)
    if not fits(frm.tile, to.tile):
        raise CompileError(
            f"T.{word()}: {to.buffer.name} has another shape than {frm.buffer.name}",
            expected=shape_text(frm.tile),
            got=shape_text(to.tile),
            fix=f"allocate {to.buffer.name} with that shape, or leave it out to scan in place",
        )
    check_regions(frm, to)
    if not is_const(frm.extents[at]):
        axis = long_dims(frm.extents).index(at)
        builder.emit(Scan(kind, frm, to, axis, bool(reverse)))
    elif dst is not None:
        builder.emit(Copy(frm, to))


def _whole_tile(kind: str, src: Any) -> Expr:
    """Whether any (all) elements are true, as one bool for the block."""
    name = f"{kind}_of"
    builder = current_kernel()
    frm = region_of(src, kind)
    check_regions(frm)
    extents = [int(e) for e in frm.extents]
    if frm.buffer.is_local or builder.in_map:
        return _elementwise(kind, frm, extents)
    builder.require_block()
    # one flag per element first, so that every type and rank reduces the same way
    flags = builder.tile(None, f"{name}_flags", (const(prod(extents)),), BOOL, Space.SHARED)
    found = builder.tile(None, name, (const(1),), BOOL, Space.SHARED)
    vars = tuple(builder.var(None, default="i") for e in extents if e != 1)
    sizes = tuple(const(e) for e in extents if e != 1)
    linear: Expr = const(0)
    for var, size in zip(vars, sizes, strict=True):
        linear = linear * size + var
    if vars:
        store = Store(flags, (linear,), truth(Load(frm.buffer, frm.at(vars))))
        builder.emit(Map(vars, sizes, (store,)))
    else:
        builder.emit(Store(flags, (const(0),), truth(Load(frm.buffer, frm.starts))))
    builder.emit(Reduce(kind, whole(flags), whole(found), 0))
    return builder.let(Load(found, (const(0),)), name)


def _elementwise(kind: str, region: Region, extents: list[int]) -> Expr:
    result: Expr = FALSE if kind == "any" else TRUE
    for point in product(*(range(e) for e in extents)):
        place = tuple(s + p for s, p in zip(region.starts, point, strict=True))
        test = truth(Load(region.buffer, place))
        result = binary("or" if kind == "any" else "and", result, test)
    return result


def any_of(src: Any) -> Expr:
    """Whether any element of a tile is true (not zero).

    Example:
        flags = T.alloc_fragment((64,), "int32")
        for i in T.Parallel(64):
            flags[i] = N[i] > 62
        if T.any_of(flags):
            T.fill(M, 1)
        # M: 1 1
    """
    return _whole_tile("any", src)


def all_of(src: Any) -> Expr:
    """Whether all elements of a tile are true (not zero).

    Example:
        flags = T.alloc_fragment((64,), "int32")
        for i in T.Parallel(64):
            flags[i] = N[i] < 64
        if T.all_of(flags):
            T.fill(M, 1)
        # M: 1 1
    """
    return _whole_tile("all", src)


def _warp(kind: str, does: str, sample: str, shown: int) -> Callable[[Any], Var]:
    name = f"warp_reduce_{kind}"
    op = f"warp_reduce_{KINDS[kind]}"

    @named(
        name,
        f"The {does} of `value` over the warp, in every lane.\n\nExample:\n"
        f"    t = T.get_thread_binding()\n    s = T.{name}({sample})\n"
        f"    if t < 64:\n        M[t] = s\n    # M: {shown} {shown}\n",
    )
    def word(value: Any) -> Var:
        builder = current_kernel()
        expr = builder.snapshot(wrap(value))
        result = builder.var(None, expr.dtype, f"warp_{KINDS[kind]}")
        builder.emit(Intrinsic(op, (expr,), result))
        return result

    return word


warp_reduce_sum = _warp("sum", "sum", "N[t % 64]", 496)
warp_reduce_max = _warp("max", "maximum", "N[t % 64]", 31)
warp_reduce_min = _warp("min", "minimum", "N[t % 64]", 0)
warp_reduce_bitand = _warp("bitand", "bitwise and", "N[t % 64] | 2", 2)
warp_reduce_bitor = _warp("bitor", "bitwise or", "N[t % 64]", 31)
