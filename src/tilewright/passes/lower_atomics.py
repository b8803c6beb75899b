"""Atomics of one element, done once for a role instance."""

from __future__ import annotations

from collections.abc import Iterable

from tilewright.ir.buffer import Space
from tilewright.ir.expr import TRUE
from tilewright.ir.op import Atomic, Intrinsic, Op
from tilewright.passes.lowering import WARP, Lowering

# what the hardware has for words of 32 bits, by type
_INTEGER = ("add", "max", "min", "and", "or", "xor", "exch")
OPERATIONS = {"int32": _INTEGER, "uint32": _INTEGER, "float32": ("add", "exch")}


def lower_atomic(low: Lowering, op: Atomic) -> Iterable[Op]:
    """One thread does it; its old value reaches the others of the warp by a shuffle."""
    dst = op.dst
    if op.src is not None or dst.tile or op.value is None or dst.buffer.space is not Space.GLOBAL:
        raise low.unsupported(op, "only atomics of one element of a tensor are lowered to threads")
    if op.op not in OPERATIONS.get(dst.dtype.name, ()):
        raise low.unsupported(op, f"there is no atomic {op.op} of {dst.dtype}")
    where = low.plain(op).dst
    if low.within(where.buffer, where.starts) is not TRUE:
        raise low.unsupported(
            op,
            f"the element of {dst.buffer.name} may be outside of it",
            fix="bound its index, by `assume` or by the sizes' contract",
        )
    if op.result is not None and low.instance.threads != WARP:
        raise low.unsupported(
            op,
            f"the result of an atomic reaches the threads of one warp, not {low.instance.threads}",
            fix="let a role of one warp do it and pass the result on through shared memory",
        )
    yield from low.meet(op.loc)
    name = "atomic" if op.result is None else "atomic_of_warp"
    args = (where, low.value(op.value))
    atomic = Intrinsic(name, args, op.result, text=f"op={op.op}", loc=op.loc)
    yield from low.by_leader(atomic) if op.result is None else (atomic,)
