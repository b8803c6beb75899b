"""What code does: which buffers it touches and writes, whether it leaves a loop early, and whether
it may give other bits from run to run."""

from __future__ import annotations

from collections.abc import Container, Iterable

from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.core import *
from tilewright.ir.intrinsics import INTRINSICS


@kept
def touched(op: Op) -> dict[str, bool]:
    """The buffers that `op`, and what stands in it, touch: by name, whether they are written."""
    found: dict[str, bool] = {}
    for buffer, writes in touched_within(op):
        found[buffer.name] = writes or found.get(buffer.name, False)
    return found


def mentioned(op: Op) -> set[str]:
    return {*touched(op)}


def written_in(body: Iterable[Op]) -> set[str]:
    return {name for op in body for name, writes in touched(op).items() if writes}


def written_by(kernel: Kernel) -> set[str]:
    """Buffers that the kernel writes, tensors also under the names of their views."""
    found, roots = written_in(kernel.body), aliases(kernel)
    views = list(walk_ops(kernel, View))
    tensors = {op.buffer.name for op in views if op.source.is_global}
    changed = found | {roots[name] for name in found & tensors}
    return changed | {view for view in tensors if roots[view] in changed}


@kept
def exchanging(kernel: Kernel) -> set[str]:
    """Tensors that the kernel writes, if it reads one of them, too: threads may exchange elements
    through that one. Were any of them `__restrict__`, NVRTC would move loads over barriers."""
    roots, read, written = aliases(kernel), set[str](), set[str]()
    for op in walk_ops(kernel):
        told = INTRINSICS[op.name].tensors if isinstance(op, Intrinsic) else "reads"
        named = {roots[buffer.name] for buffer in read_buffers(op) if buffer.is_global}
        read |= named if told != "writes" else set()
        written |= named if told != "reads" else set()
        written |= {roots[buffer.name] for buffer in written_buffers(op) if buffer.is_global}
    return written if read & written else set()


def used_outside(body: Body, loops: Container[Var]) -> set[str]:
    """Buffers that are used elsewhere than in the loops over these variables."""
    found: set[str] = set()
    for op in body:
        if not isinstance(op, Alloc):
            found |= {b.name for b in (*read_buffers(op), *written_buffers(op))}
        if not (isinstance(op, For) and op.var in loops):
            found = found.union(*(used_outside(inner, loops) for inner in bodies(op)))
    return found


def does_more(op: Op) -> bool:
    """Whether an op does more than work on the memory of its block."""
    return isinstance(op, (Atomic, Intrinsic)) or any(b.is_global for b in written_buffers(op))


def leaves_early(body: Body, *ways: type[Op]) -> bool:
    """Control may leave an iteration of the loop around `body` early, by `break` or `continue`, or
    by one of these `ways`."""
    return any(
        isinstance(op, ways or (Break, Continue))
        or (not isinstance(op, (For, While)) and any(leaves_early(b, *ways) for b in bodies(op)))
        for op in body
    )


def is_unordered(op: Op) -> bool:
    """Whether `op` adds floats in the order in which blocks and threads happen to come."""
    if isinstance(op, Atomic):
        return op.op == "add" and op.dst.dtype.is_float
    return isinstance(op, Copy) and op.reduce == "add" and op.dst.dtype.is_float


def check_deterministic(program: Program) -> None:
    """Refuse what `deterministic=True` rules out."""
    for kernel in program.kernels:
        for op in walk_ops(kernel):
            if is_unordered(op):
                assert isinstance(op, (Atomic, Copy))
                raise CompileError(
                    f"atomic sums of {op.dst.dtype} may give other bits from run to run",
                    loc=op.loc,
                    expected="sums in a fixed order, as deterministic=True asks for",
                    got=f"additions to {op.dst.buffer.name} in the order in which blocks come",
                    fix="let each block store its part, and sum the parts in a second T.Kernel; "
                    "integers may be added atomically",
                )
