"""Matrix products."""

from __future__ import annotations

from typing import Any

from tilewright.ir.expr import Expr, truth, wrap
from tilewright.ir.op import Commit, Gemm, WaitGroup
from tilewright.lang.builder import current, static_int
from tilewright.lang.check import check_gemm
from tilewright.lang.handles import region_of
from tilewright.lang.types import GemmWarpPolicy
from tilewright.support.errors import CompileError

_PRECISIONS = ("ieee", "tf32")


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
    """C += op(A) · op(B), accumulated in C's type (C = … with `clear_accum`)."""
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
    builder = current(word)
    builder.require_block(word)
    a, b, c = (region_of(x, word) for x in (A, B, C))
    for flag, name in ((transpose_A, "transpose_A"), (transpose_B, "transpose_B")):
        if isinstance(flag, Expr):
            raise CompileError(
                f"T.{word}: {name} must be known at compile time",
                got="a run-time value",
                fix="branch with an `if` around two calls, or take it as a factory's argument",
            )
    check_gemm(a, b, c, bool(transpose_A), bool(transpose_B), sparse=meta is not None)
    if precision not in _PRECISIONS:
        raise CompileError(
            f"T.{word}: unknown precision", expected=" or ".join(_PRECISIONS), got=repr(precision)
        )
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
    """`gemm` as one asynchronous group: C is complete after `T.wait_wgmma`."""
    _gemm("wgmma_gemm", A, B, C, transpose_A, transpose_B, policy, clear_accum, precision, "wgmma")
    current("wgmma_gemm").emit(Commit("wgmma"))


def wait_wgmma(pending: int = 0) -> None:
    """Until at most `pending` groups of `wgmma_gemm` are open."""
    builder = current("wait_wgmma")
    builder.require_block("wait_wgmma")
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
    """`gemm` with a 2:4 sparse A: half its K values, and their places in `E`."""
    if transpose_E:
        raise CompileError("T.gemm_sp: transpose_E is not supported", fix="transpose E first")
    _gemm("gemm_sp", A_sparse, B, C, transpose_A, transpose_B, policy, clear_accum, "ieee", meta=E)
