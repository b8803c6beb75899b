"""Lay shared buffers that are not needed at the same time over one another.

Only where it is worth a barrier: when the buffers do not all fit into a block's shared memory one
behind the other, or when fewer bytes let more blocks share a multiprocessor. Otherwise the kernel
is left as it is, and `place_shared` gives every buffer its own place.

Only what the whole block touches in the order of the text is laid over something else: kernels
with roles of their own, placements or clusters, and buffers that threads touch each for itself,
keep their own bytes. Beside a derived producer that is done only where they would not fit
otherwise: a result may lie over the tiles that it was made of, once the last of them has been read.
Barriers always keep their bytes. Between the last use of one buffer and the first of the next,
threads meet; where one of them is touched by the asynchronous proxy, behind a fence (`hazards`
knows who shares bytes, and `insert_syncs` adds what is missing).
"""

from __future__ import annotations

from math import prod

from tilewright.ir.buffer import Space
from tilewright.ir.chips import Chip
from tilewright.ir.layout.fragment import Fragment
from tilewright.ir.op import (
    Alloc,
    Copy,
    For,
    Hint,
    Kernel,
    Map,
    Op,
    Reduce,
    Relayout,
    Role,
    Scan,
    WaitGroup,
    While,
    walk_ops,
)
from tilewright.ir.rewrite import rebuild
from tilewright.ir.target import Target
from tilewright.passes.memory.lifetimes import Lifetimes, lifetimes
from tilewright.passes.memory.place_shared import (
    alignments,
    shared_allocs,
    shared_bytes,
    stacked,
    too_much,
    with_places,
)
from tilewright.passes.overlap.rings import mentioned
from tilewright.passes.reasons import because
from tilewright.passes.sync.insert_syncs import mended
from tilewright.support.errors import CompileError

SCRATCH = 4096  # bytes that exchanges between warps may take behind everything else
PLAIN_REGISTERS = 24  # of a thread, besides fragments: addresses, counters
UNIT = 128  # bytes in which blocks are given shared memory


def reuse_shared(kernel: Kernel, target: Target) -> Kernel:
    """`kernel` with places for its shared buffers where some of them should share theirs."""
    tiles, _ = shared_allocs(kernel)
    if len(tiles) < 2 or prod(kernel.cluster or (1,)) > 1 or not _in_order(kernel):
        return kernel
    _, apart = stacked(kernel)
    drained = _drained(kernel)
    lives = _lives(drained)
    places, together = packed(drained, lives)
    if together >= apart:
        return kernel
    chip = target.chip
    room = apart + (SCRATCH if _exchanges(kernel) else 0)
    before, after = (_blocks(kernel, chip, n) for n in (apart, together))
    if room <= chip.shared and (after <= before or _producers(kernel)):
        return kernel
    if together > chip.shared:
        raise _too_much(kernel, target, lives, tiles, together)
    why = f"instead of {apart}: " + (
        f"more than the {chip.shared} of a block"
        if room > chip.shared
        else f"{after} blocks instead of {before} fit a multiprocessor"
    )
    because(kernel.name, "shared memory", why)
    return mended(with_places(drained, places))


def _in_order(kernel: Kernel) -> bool:
    """Whether all warps but a derived producer's run the same text, and nothing has a place yet."""
    return not any(
        (isinstance(op, Role) and not op.derived)
        or (isinstance(op, Hint) and op.name == "ws")
        or (isinstance(op, Alloc) and op.place is not None)
        for op in walk_ops(kernel)
    )


def _producers(kernel: Kernel) -> list[Role]:
    return [op for op in kernel.body if isinstance(op, Role) and op.derived]


def _lives(kernel: Kernel) -> Lifetimes:
    """Lives in the consumers' text. What a producer fills lives from the beginning: it runs ahead.
    It ends with the consumers' last use, as they wait for every fill."""
    fills = _producers(kernel)
    rest = tuple(op for op in kernel.body if not (isinstance(op, Role) and op.derived))
    lives = lifetimes(rebuild(kernel, body=rest) if fills else kernel)
    for name in {name for role in fills for name in mentioned(role)} & lives.spans.keys():
        lives.spans[name] = (0, lives.spans[name][1])
    return lives


def _drained(kernel: Kernel) -> Kernel:
    """`kernel` with a wait behind each of its loops that fills by `cp.async`: the last turns may
    leave groups open, empty ones too, and then lives would not end."""
    body: list[Op] = []
    for op in kernel.body:
        body.append(op)
        if isinstance(op, (For, While)) and any(
            isinstance(inner, (Copy, Map)) and inner.atom == "cp_async" for inner in walk_ops(op)
        ):
            body.append(WaitGroup("cp_async", 0, loc=op.loc))
    return rebuild(kernel, body=tuple(body)) if len(body) != len(kernel.body) else kernel


def _exchanges(kernel: Kernel) -> bool:
    return any(isinstance(op, (Reduce, Relayout, Scan)) for op in walk_ops(kernel))


def packed(kernel: Kernel, lives: Lifetimes) -> tuple[dict[str, int], int]:
    """The lowest places that keep apart what lives at the same time, the largest buffers first,
    and how many bytes that takes."""
    tiles, barriers = shared_allocs(kernel)
    aligned = alignments(kernel)
    sizes = {op.buffer.name: shared_bytes(op.buffer) for op in (*tiles, *barriers)}
    order = sorted(tiles, key=lambda op: (-aligned[op.buffer.name], -sizes[op.buffer.name]))
    places: dict[str, int] = {}
    end = 0
    for op in (*order, *barriers):
        name, align = op.buffer.name, aligned[op.buffer.name]
        shares = name in lives.together
        at = 0
        # places only grow, so this ends behind the last one that is in the way
        blocked = True
        while blocked:
            blocked = False
            for other, place in places.items():
                free = shares and other in lives.together and lives.apart(name, other)
                if not free and at < place + sizes[other] and place < at + sizes[name]:
                    at = -(-(place + sizes[other]) // align) * align
                    blocked = True
        places[name] = at
        end = max(end, at + sizes[name])
    return places, end


def _blocks(kernel: Kernel, chip: Chip, shared: int) -> int:
    """Blocks that share a multiprocessor, as far as that is known before registers are: fragments
    that live at the same time need theirs."""
    threads = prod(kernel.threads)
    taken = -(-shared // UNIT) * UNIT + chip.reserved
    registers = register_words(kernel) + PLAIN_REGISTERS
    by_registers = chip.registers // (-(-registers // 8) * 8 * threads)
    return min(
        chip.shared_per_sm // taken,
        chip.threads_per_sm // threads,
        chip.blocks_per_sm,
        max(1, by_registers),
    )


def register_words(kernel: Kernel) -> int:
    """Registers of a thread that fragments take where most of them live at once."""
    sizes = fragment_words(kernel)
    _, live = lifetimes(kernel, (Space.FRAGMENT,)).peak(sizes)
    return sum(sizes[name] for name in live)


def fragment_words(kernel: Kernel) -> dict[str, int]:
    """Registers of a thread by fragment."""
    return {
        op.buffer.name: -(-op.buffer.layout.values * op.buffer.dtype.bits // 32)
        for op in walk_ops(kernel)
        if isinstance(op, Alloc) and isinstance(op.buffer.layout, Fragment)
    }


def _too_much(
    kernel: Kernel, target: Target, lives: Lifetimes, allocs: list[Alloc], total: int
) -> CompileError:
    sizes = {op.buffer.name: shared_bytes(op.buffer) for op in allocs}
    position, live = lives.peak(sizes)
    kept = [n for n in sizes if n in live or n not in lives.together]
    return too_much(
        f"kernel {kernel.name} needs more shared memory than a block has",
        {name: sizes[name] for name in kept},
        lives.ops[position].loc or kernel.loc,
        expected=f"at most {target.chip.shared} bytes on {target.arch}",
        got=f"{total} bytes, what is not needed at the same time laid over one another",
    )


__all__ = ["fragment_words", "packed", "register_words", "reuse_shared"]
