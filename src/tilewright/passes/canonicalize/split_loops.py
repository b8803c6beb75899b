"""Loops over maps in two parts, of which the first asks for nothing.

Where only the last iterations need guards, they are a loop of their own:

    for k in 0 .. 11 {
      copy W[k * 2048:+2048] -> w
      if k >= 10 { hint rare; map j { if k * 2048 + j < 21600 { y[j] = w[j] } } }
      else { map j { y[j] = w[j] } }
    }

    for k in 0 .. 10 unroll=4 { copy W[k * 2048:+2048] -> w; map j { y[j] = w[j] } }
    for k in 10 .. 11 { copy W[k * 2048:+2048] -> w; map j { if … { y[j] = w[j] } } }

Copies lose their guards, too: the range of `k` shows that they need none. Iterations are written
out until a thread has 32 elements under way, and the assembler is told to take no more registers
than that needs. Loops with products stay whole (`unswitch_guards`).
"""

from __future__ import annotations

from functools import partial, reduce
from math import ceil, prod
from typing import TypeGuard

from tilewright.ir.analysis.lifetimes import fragment_words, lifetimes
from tilewright.passes.canonicalize.unswitch_guards import together
from tilewright.passes.core import *

MOST = 4  # iterations that are written out
LEAST = 56  # registers of a thread: more blocks than that leaves do not help
OTHERS = 20  # registers for addresses, counters and sums


@kernel_pass
def split_loops(at: Facts) -> Kernel:
    """Split loops over maps into iterations that need no guard, unrolled so that their loads
    overlap, and those that need one."""
    if at.has_roles or at.target.internal.unswitch_guards is False:
        return at.kernel

    def rule(op: Op) -> Body | None:
        edges = _edges(op) if _is_simple(op) else None
        if edges is None:
            return None
        assert isinstance(op, For)
        lows, highs = edges
        ranges = places.get(id(op), begin)
        low = simplify(reduce(partial(binary, "max"), lows, op.start), ranges)
        high = simplify(reduce(partial(binary, "min"), highs, op.stop), ranges)
        # one iteration that asks in vain costs less than a loop whose length is not known
        if lows and prove(low <= op.start + 1, ranges) and prove(op.start < op.stop, ranges):
            low = simplify(op.start + 1, ranges)
        if highs and prove(high >= op.stop - 1, ranges):
            high = simplify(op.stop - 1, ranges)
        high = simplify(binary("max", low, high), ranges) if highs else high

        def part(start: Expr, stop: Expr, asks: bool) -> For:
            return rebuild(op, start=start, stop=stop, body=_answered(op.body, asks))

        count = min(MOST, 1 + max(0, room) // _loaded(op, words, at.kernel.thread_count))
        bare = rebuild(part(low, high, False), unroll=count)
        if not lows and not highs:
            return (bare,)
        known = [
            _said(op.var, lets.get(e, e), lower)
            for lower in (True, False)
            for e in (lows if lower else highs)
        ]
        hints = (Hint("assume", value=cond) for cond in known if cond is not None)
        bare = rebuild(bare, body=(*hints, *bare.body))
        because(at.kernel.name, op, f"iterations from {low} to {high} need no guard")
        before = (part(op.start, low, True),) if lows else ()
        behind = (part(high, op.stop, True),) if highs else ()
        # one that has guards keeps its names: other passes have spoken of it
        first = before if not highs else rename_unique(before)
        return (*first, rename_unique(bare), *behind)

    lets: dict[Expr, Expr] = {op.var: op.value for op in at.ops if isinstance(op, Let)}
    words = fragment_words(at.kernel)
    _, live = lifetimes(at.kernel.body, (Space.FRAGMENT,)).peak(words)
    taken = OTHERS + sum(words[name] for name in live)
    blocks, room = _room(at, taken)
    begin = scope.entry(at.kernel, at.dims)
    walk = scope.walk_body(at.kernel.body, begin)
    places = {id(op): ranges for op, ranges in walk if isinstance(op, For)}
    kernel = map_ops(at.kernel, rule)
    asked = any(isinstance(op, Hint) and op.name == "min_blocks" for op in at.ops)
    if asked or not any(op.unroll > 1 for op in walk_ops(kernel, For)):
        return kernel
    return rebuild(kernel, body=(Hint("min_blocks", detail=(blocks,)), *kernel.body))


def _room(at: Facts, taken: int) -> tuple[int, int]:
    """The blocks of a multiprocessor that have room for `taken` registers a thread and their shared
    memory, and the registers that are left to a thread."""
    chip, threads = at.target.chip, at.kernel.thread_count
    shared = sum(op.buffer.bytes for op in at.ops if isinstance(op, Alloc) and op.buffer.is_shared)
    blocks = min(
        chip.shared_per_sm // (shared + chip.reserved),
        chip.registers // (max(LEAST, taken) * threads),
        chip.threads_per_sm // threads,
        chip.blocks_per_sm,
    )
    blocks = max(blocks, 1)
    return blocks, chip.registers // (blocks * threads) // 8 * 8 - taken


def _is_simple(op: Op) -> TypeGuard[For]:
    """A loop over maps, and copies by threads, that no schedule speaks of."""
    if not isinstance(op, For) or op.kind != "serial" or op.step != const(1):
        return False
    inside, plain = [*outside_maps(op.body)], (Alloc, Let, Map, If, Hint)
    return any(isinstance(inner, Map) for inner in inside) and all(
        isinstance(inner, plain) or (isinstance(inner, Copy) and inner.atom == "threads")
        for inner in inside
    )


def _loaded(loop: For, words: dict[str, int], threads: int) -> int:
    """Registers for what an iteration loads."""
    copied = [words.get(op.dst.buffer.name, 0) for op in walk_ops(loop, Copy)]
    read = [
        ceil(prod(map(int, map_.extents)) * load.dtype.bits / 32 / threads)
        for map_ in walk_ops(loop, Map)
        for load in {x for x in loads_within(map_) if not x.buffer.is_fragment}
    ]
    return max(1, sum(copied) + max(read, default=0))


def _edges(loop: For) -> tuple[list[Expr], list[Expr]] | None:
    """From which iterations on, and up to which, no guard is asked for; None: nobody knows."""
    found: dict[str, list[Expr]] = {"<": [], ">=": []}
    for op in loop.body:
        if isinstance(op, If) and is_rare(op.then):
            for cond, _ in together(op.cond, False):
                if not isinstance(cond, Cmp) or cond.op not in found or cond.a is not loop.var:
                    return None
                found[cond.op].append(cond.b)
    return found["<"], found[">="]


def _said(k: Var, edge: Expr, lower: bool) -> Expr | None:
    """What `k >= edge`, or `k < edge`, says without the quotient in it."""
    more: Expr = const(0)
    match edge:
        case Bin("+", quotient, Const() as more):
            edge = quotient
    match edge:
        case Bin("//", a, Const(c)) if c > 0:
            low = compare(">=", (k - more) * c, a - (c - 1))
            return low if lower else compare("<=", (k - more + 1) * c, a)
    return None


def _answered(body: Body, answer: bool) -> Body:
    """`body` with what is asked of iterations answered."""
    result: list[Op] = []
    for op in body:
        if isinstance(op, If) and is_rare(op.then):  # its first op says so
            result += op.then[1:] if answer else op.orelse
        else:
            result.append(op)
    return tuple(result)
