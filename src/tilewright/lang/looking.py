"""Looking into a running kernel."""

from __future__ import annotations

from typing import Any

from tilewright.ir.expr import Const, truth, wrap
from tilewright.ir.op import Intrinsic
from tilewright.lang.builder import current_kernel
from tilewright.lang.handles import Tile, Tiles, region_of
from tilewright.support.errors import CompileError


def print(value: Any = None, msg: str = "", warp_group_id: int = 0, warp_id: int = 0) -> None:
    """Print a value, or a whole tile once per block, while the kernel runs.

    Example:
        x = T.alloc_fragment((64, 64), "float32")
        T.copy(X, x)
        T.print(x[0:1, 0:4], msg="the corner of x")
    """
    builder = current_kernel("print")
    if isinstance(value, str) and not msg:
        value, msg = None, value
    if value is None:
        builder.emit(Intrinsic("print", (), text=msg))
    elif isinstance(value, (Tile, Tiles)):
        builder.emit(Intrinsic("print", (region_of(value, "print"),), text=msg))
    else:
        builder.emit(Intrinsic("print", (wrap(value),), text=msg))


def device_assert(cond: Any, msg: str = "") -> None:
    """Stop the kernel when `cond` does not hold.

    In the interpreter and on the CPU that is an error of the call, with `msg`; on a GPU it ends
    the kernel.

    Example:
        for i in T.Parallel(64):
            T.device_assert(N[i] < 64, "an index that is too large")
            M[i] = N[i]
        # M: 0 1 2
    """
    builder = current_kernel("device_assert")
    test = truth(wrap(cond))
    if isinstance(test, Const):
        if not test.value:
            raise CompileError(
                "this assertion never holds" + (f": {msg}" if msg else ""),
                fix="check the sizes that it is about",
            )
        return
    builder.emit(Intrinsic("device_assert", (test,), text=msg))
