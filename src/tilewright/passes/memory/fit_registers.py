"""Registers of a thread: what fragments take where most live at once, against what there is.

Of a block's registers every thread is born with as many; a producer hands most of its own over to
the consumers (`roles`). What does not fit goes to local memory, with a warning. Fragments
that need more than eight times what a thread has, however they are spread, are refused: they are a
mistake, and take minutes to compile. Accumulators of products by warpgroups cannot go there at all:
where they do not fit, single warps make the products.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from tilewright.ir.analysis.lifetimes import fragment_words, lifetimes
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Body, Gemm, Kernel, Role, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.overlap.roles import UNIT, WARP
from tilewright.passes.reasons import because, costs
from tilewright.support.errors import CompileError

SPILLED = 8  # a fragment in local memory is slow; a much larger one is a mistake


class TooManyRegisters(CompileError):
    """Accumulators that no thread has registers for."""


def fit_registers(kernel: Kernel, target: Target) -> Kernel:
    """`kernel`, if its fragments fit."""
    sizes = fragment_words(kernel)
    ops = list(walk_ops(kernel))
    sums = {op.c.buffer.name for op in ops if isinstance(op, Gemm) and op.atom == "wgmma"}
    allocs = {op.buffer.name: op for op in ops if isinstance(op, Alloc)}
    for role, body, threads, room in _parts(kernel, target):
        lives = lifetimes(body, (Space.FRAGMENT,))
        _, live = lives.peak(sizes)
        taken = sum(sizes[name] for name in live)
        if taken:
            because(kernel.name, "registers", f"fragments{role} take {taken} of {room}")
        _, held = lives.peak({name: words for name, words in sizes.items() if name in sums})
        if sum(sizes[name] for name in held) > room:
            names = _in_words(held, allocs, sizes)
            raise TooManyRegisters(f"accumulators take more than {room} registers: {names}")
        # as thinly as they can be spread: what was spread otherwise is slow, and no mistake
        least = {name: -(-allocs[name].buffer.bytes // (4 * threads)) for name in sizes}
        _, live = lives.peak(least)
        taken = sum(least[name] for name in live)
        if taken <= room:
            continue
        largest = max(live, key=lambda name: (least[name], name))
        costs(
            kernel.name,
            allocs[largest].loc or kernel.loc,
            f"fragments take {taken} registers of a thread{role}, which has {room}: what does not "
            f"fit lies in local memory ({_in_words(live, allocs, least)})",
        )
        if taken > SPILLED * room:
            raise CompileError(
                f"the fragments of {kernel.name} do not fit the registers of a thread",
                loc=allocs[largest].loc or kernel.loc,
                expected=f"at most {room} registers{role}",
                got=f"{taken} that live at once: {_in_words(live, allocs, least)}",
                fix="use smaller tiles, or more threads",
                code="registers",
            )
    return kernel


def _parts(kernel: Kernel, target: Target) -> Iterator[tuple[str, Body, int, int]]:
    """Code, who runs it, how many threads together, and the registers that each of them has."""
    born = min(255, target.chip.registers // prod(kernel.threads) // UNIT * UNIT)
    roles = list(walk_ops(kernel, Role))
    for op in roles:
        threads = op.warps // op.instances * WARP
        yield f" in role {op.name}", op.body, threads, op.registers or born
    if not roles:
        yield "", kernel.body, prod(kernel.threads), born


def _in_words(names: list[str], allocs: dict[str, Alloc], sizes: dict[str, int]) -> str:
    largest = sorted(names, key=lambda name: (-sizes[name], name))
    words = []
    for name in largest[:4]:
        buffer = allocs[name].buffer
        shape = "×".join(str(extent) for extent in buffer.static_shape)
        words.append(f"{name} {sizes[name]} ({shape} {buffer.dtype})")
    return ", ".join(words) + (f" and {len(largest) - 4} more" if len(largest) > 4 else "")
