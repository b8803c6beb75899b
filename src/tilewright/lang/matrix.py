"""Matrix products."""

from __future__ import annotations

from typing import Any

from tilewright.ir.expr import Expr, truth, wrap
from tilewright.ir.op import Commit, Gemm, WaitGroup
from tilewright.lang.arguments import one_of, static_int
from tilewright.lang.builder import current, current_block
from tilewright.lang.check import check_gemm
from tilewright.lang.handles import region_of
from tilewright.lang.types import GemmWarpPolicy
from tilewright.support.errors import CompileError


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
    precision: str = "ieee",
    wg_wait: int = 0,
) -> None:
    """C += op(A) · op(B), accumulated in C's type (C = … with `clear_accum`).

    A is M×K and B is K×N, or K×M and N×K with `transpose_A` and `transpose_B`. B is in shared
    memory, A there or in a fragment, C a fragment. `policy` deals warps to rows and columns of
    C. float32 operands multiply exactly as IEEE says unless `precision="tf32"`. The target's
    matrix instruction is chosen by the compiler. `k_pack`, `mbar` and `wg_wait` are accepted for
    porting.

    Example:
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.copy(X, a)
        T.gemm(a, a, c, transpose_B=True, clear_accum=True)  # X · Xᵀ
        T.copy(c, Y)
        # Y[0]: 85344 83328
    """
    _gemm("gemm", A, B, C, transpose_A, transpose_B, policy, clear_accum, precision)


def _gemm(
    word: str,
    A: Any,
    B: Any,
    C: Any,
    transpose_A: Any,
    transpose_B: Any,
    policy: GemmWarpPolicy | str,
    clear_accum: Any,
    precision: str,
    atom: str | None = None,
    meta: Any = None,
) -> None:
    builder = current_block(word)
    a, b, c = (region_of(x, word) for x in (A, B, C))
    for flag, name in ((transpose_A, "transpose_A"), (transpose_B, "transpose_B")):
        if isinstance(flag, Expr):
            raise CompileError(
                f"T.{word}: {name} must be known at compile time",
                got="a run-time value",
                fix="branch with an `if` around two calls, or take it as a factory's argument",
                code="not-constant",
            )
    check_gemm(a, b, c, bool(transpose_A), bool(transpose_B), sparse=meta is not None)
    fix = 'write precision="tf32", or leave it out'
    one_of(precision, ("ieee", "tf32"), f"T.{word}: unknown precision", fix)
    builder.emit(
        Gemm(
            a, b, c,
            clear=truth(wrap(clear_accum)),
            transpose_a=bool(transpose_A),
            transpose_b=bool(transpose_B),
            policy=_policy(policy),
            precision=precision,
            atom=atom,
            meta=None if meta is None else region_of(meta, word),
        )
    )  # fmt: skip


def _policy(policy: GemmWarpPolicy | str) -> str:
    if isinstance(policy, GemmWarpPolicy):
        return policy.value
    try:
        return GemmWarpPolicy(policy).value
    except ValueError:
        raise CompileError(
            "unknown GemmWarpPolicy",
            expected="T.GemmWarpPolicy.Square, FullRow or FullCol",
            got=repr(policy),
            fix="write policy=T.GemmWarpPolicy.FullRow, or leave it out",
            code="arguments",
        ) from None


def wgmma_gemm(
    A: Any,
    B: Any,
    C: Any,
    transpose_A: bool = False,
    transpose_B: bool = False,
    policy: GemmWarpPolicy | str = GemmWarpPolicy.Square,
    clear_accum: Any = False,
    *,
    precision: str = "ieee",
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
    _gemm("wgmma_gemm", A, B, C, transpose_A, transpose_B, policy, clear_accum, precision, "wgmma")
    current("wgmma_gemm").emit(Commit("wgmma"))


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
    builder = current_block("wait_wgmma")
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
    _gemm("gemm_sp", A_sparse, B, C, transpose_A, transpose_B, policy, clear_accum, "ieee", meta=E)
