"""The sizes of a text's loops over tiles: those with which its kernels take the least time.

Every candidate is traced, which takes milliseconds, and `model` says how long it would run. Kernels
are chosen one after the other. The choice is kept with compiled code, so that another process does
not choose again.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import astuple, dataclass, field, replace
from functools import partial
from math import log, prod
from typing import TYPE_CHECKING, Any

from tilewright.choose.candidates import *
from tilewright.choose.ranges import at_sizes, launch_sizes
from tilewright.ir.analysis.effects import does_more
from tilewright.ir.core import *
from tilewright.ir.target import Target
from tilewright.lang.builder import Builder, Sizes, TileLoop
from tilewright.lang.sizes import Traced, choose_sizes

if TYPE_CHECKING:
    from tilewright.choose.model import Estimate

    # candidates are traced: what traces them is part of this folder's digest
    from tilewright.lang import tile_words, tiles, trace  # noqa: F401

SAME = 1.005  # estimates closer than this are equal
CLUSTERED = 12  # candidates that are considered with clusters, too
SHARED, PARTED = 12, 12  # and with blocks that share steps, by clusters and by memory
FILLED = 4  # blocks of a multiprocessor, where nothing but memory limits them
TRIED = 4  # candidates that are kept, and shown


@dataclass(frozen=True)
class Choice:
    """What was chosen for the kernels of a text, by number of the kernel why, whether there is
    another choice, for when this one cannot be compiled, whether this one was measured, and whether
    it is for a range of sizes that launches give."""

    sizes: Sizes = field(default_factory=Sizes)
    why: Mapping[int, str] = field(default_factory=dict)
    has_other: bool = False
    is_measured: bool = False
    is_ranged: bool = False


def choose(
    target: Target,
    builder: Builder,
    traced: Traced,
    rank: int = 0,
    given: Mapping[int, Candidate] | None = None,
    made: Mapping[int, Candidate] | None = None,
) -> Choice:
    """For what `builder`, a first trace, leaves open; `traced` gives the program at other sizes.
    What was measured comes first. `rank`: not the best choice but the one after it, and so on; the
    last is the default. `given`: choices that are taken as they are, by kernel, all others default;
    `made`: those of some kernels, the others are to be chosen."""
    sizes = choose_sizes(builder)
    for number, chosen in {**(made or {}), **(given or {})}.items():
        sizes = chosen_of(sizes, number, chosen)
    by_model = on_cpu(builder, sizes) if target.kind == "cpu" and given is None else {}
    asked = {n: [chosen for chosen, _ in found] for n, found in by_model.items()}
    if target.kind == "cuda" and given is None:
        asked = open_choices(target, builder, sizes)
    asked = {number: each for number, each in asked.items() if number not in (made or {})}
    if not asked:
        return Choice(sizes if given is not None else _filled(target, builder, traced, sizes))
    from tilewright.choose import measured  # which imports what digests need

    ends: dict[Var, int] = {}
    ranks: dict[int, Ranked] = {}
    if target.kind == "cuda" or measured.is_there():
        program, ends = traced(sizes, None), launch_sizes(builder)
        times = measured.known(Opened(program, target, asked))
        for number, found in times.items():
            if found and number in asked:
                told = [(c, f"{c}: {1e6 * seconds:.1f} µs measured") for c, seconds in found]
                ranks[number] = told[:TRIED]
    is_measured = bool(ranks)
    left = {number: found for number, found in asked.items() if number not in ranks}
    if left and target.kind == "cuda":

        def at_ends(sizes: Sizes, only: int | None) -> Program:
            return at_sizes(traced(sizes, only), ends)

        ranks |= _modelled(target, builder, at_ends, sizes, at_sizes(program, ends), left)
    else:
        ranks |= {number: by_model[number][:TRIED] for number in left}
    default, why, deepest = sizes, {}, max(map(len, ranks.values()), default=0)
    for number, best in ranks.items():
        if best:
            sizes = chosen_of(sizes, number, best[min(rank, len(best) - 1)][0])
            said = [text for _, text in best[rank:] or best[-1:]]
            said += [f"chosen for {var.name} up to {end}" for var, end in ends.items()]
            why[number] = "; ".join(said)
    if rank >= deepest:
        return Choice(default)
    return Choice(sizes, why, True, is_measured, bool(ends))


def _filled(target: Target, builder: Builder, traced: Traced, sizes: Sizes) -> Sizes:
    """Numbers of a text that does not multiply: each multiprocessor has some of the blocks of the
    kernels whose grids grow with them."""

    def grids(name: str, number: int) -> list[int]:
        program = traced(replace(sizes, numbers=sizes.numbers | {name: number}), None)
        known = ([n.value for n in k.grid if isinstance(n, Const)] for k in program.kernels)
        return [int(prod(each)) for each in known]

    for name, most in open_numbers(builder, target).items() if target.kind == "cuda" else ():
        if name in sizes.numbers:
            continue
        pairs = zip(grids(name, 1), grids(name, 2), strict=False)
        grown = [few for few, more in pairs if few < more]
        enough = min(FILLED * target.chip.multiprocessors // max(grown, default=1), most)
        sizes = replace(sizes, numbers=sizes.numbers | {name: max(1, enough)})
    return sizes


Ranked = list[tuple[Candidate, str]]  # the best first, with what the model says


def open_choices(target: Target, builder: Builder, sizes: Sizes) -> dict[int, list[Candidate]]:
    """The candidates of each kernel of which something is open; on the CPU the best first."""
    if target.kind == "cpu":
        return {n: [chosen for chosen, _ in found] for n, found in on_cpu(builder, sizes).items()}
    numbers = sorted(builder.tiled) if target.kind == "cuda" else []
    found = {number: candidates(builder, number, target) for number in numbers}
    return {number: each for number, each in found.items() if each}


def on_cpu(builder: Builder, sizes: Sizes) -> dict[int, Ranked]:
    """What the model of the CPU says of each kernel of which something is open."""
    from tilewright.choose.cpu_model import ranked  # which imports the target

    own: dict[int, dict[str, int]] = {}
    for number, name in builder.open_tiles:
        own.setdefault(number, {})[name] = sizes.tiles[number, name]
    return {number: ranked(builder, number, each) for number, each in sorted(own.items())}


def _modelled(
    target: Target,
    builder: Builder,
    traced: Traced,
    sizes: Sizes,
    program: Program,
    asked: Mapping[int, Sequence[Candidate]],
) -> dict[int, Ranked]:
    """The first candidates by the model, from disk if another process has asked for them."""
    from tilewright.passes.run import no_collection  # which import what digests need
    from tilewright.targets.entries import Kept

    open_ones: dict[str, Any] = {str(n): [*map(astuple, found)] for n, found in asked.items()}
    open_ones["numbers"] = open_numbers(builder, target)
    kept = Kept(program, target, open_ones, lines=False, folder="choose/")
    if known := kept.get():
        told = known[0]["ranks"].items()
        return {int(n): [(Candidate(*c), text) for *c, text in best] for n, best in told}
    ranks: dict[int, Ranked] = {}
    for number in asked:
        with no_collection():
            ranked = ranked_all(target, builder, traced, sizes, number)
        ranks[number] = [(c, f"{c}: {e.us:.1f} µs ({e.limit})") for c, e in ranked[:TRIED]]
        if ranks[number]:
            sizes = chosen_of(sizes, number, ranks[number][0][0])
    listed = {str(n): [[*astuple(c), told] for c, told in best] for n, best in ranks.items()}
    kept.put({"kind": "choice", "ranks": listed}, b"")
    return ranks


def ranked_all(
    target: Target,
    builder: Builder,
    traced: Traced,
    sizes: Sizes,
    number: int,
) -> list[tuple[Candidate, Estimate]]:
    """All candidates of a kernel that fit, the best first by the model."""
    rank_them = partial(ranking, builder, number, sizes=sizes, target=target, traced=traced)
    found = rank_them(candidates(builder, number, target))
    return found or rank_them(candidates(builder, number, target, small=True))


def ranking(
    builder: Builder,
    number: int,
    found: Sequence[Candidate],
    sizes: Sizes,
    target: Target,
    traced: Traced,
) -> list[tuple[Candidate, Estimate]]:
    """The candidates of a kernel that fit, best first. The first ones also with pairs of blocks,
    and those whose tiles leave multiprocessors idle with blocks that share their steps."""
    guess = partial(estimates, number, sizes=sizes, target=target, traced=traced, known={})
    ranked = sorted(guess(found), key=_order)
    first = [candidate for candidate, _ in ranked[:CLUSTERED]]
    there = target.chip.multiprocessors
    few = [candidate for candidate, e in ranked if PAIR * e.tiles <= there]
    idle = [each for each in ranked if each[1].tiles <= there and len(builder.kernels) == 1]
    idle.sort(key=lambda each: each[1].inside * each[1].tiles)  # by work: parts share it evenly
    tiles = {candidate: e.tiles for candidate, e in idle[:PARTED]}
    steps = partial(steps_of, builder, number, target)
    more = [*clustered(first, target), *shared(few[:SHARED], steps), *parted(tiles, steps, there)]
    numbers = open_numbers(builder, target)
    by_work = sorted(ranked if numbers else [], key=lambda each: each[1].inside * each[1].tiles)
    tiles = {candidate: e.tiles for candidate, e in by_work[:PARTED]}
    more += numbered(tiles, numbers, there)
    return sorted([*ranked, *guess(more)], key=_order)


def estimates(
    number: int,
    found: Sequence[Candidate],
    sizes: Sizes,
    target: Target,
    traced: Traced,
    known: dict[Candidate, Program],
) -> Iterator[tuple[Candidate, Estimate]]:
    """`known`: programs that were traced before; one with clusters differs by a hint alone."""
    from tilewright.choose.model import Infeasible, behind, estimate  # which imports the passes

    for each in found:
        try:
            alone = replace(each, cluster=1)
            at = chosen_of(sizes, number, alone)
            program = known[alone] = known.get(alone) or traced(at, number)
            kernel = program.kernels[number]
            if each.cluster > 1:
                hint = Hint("cluster", detail=(each.cluster,))
                kernel = replace(kernel, body=(hint, *kernel.body))
            if each.shares and not _writes_once(kernel, kernel.body):
                continue
            time = estimate(kernel, target)
            is_first = each.parts or len(program.kernels) > number + 1
            yield each, behind(time, program, target) if is_first else time
        except (Infeasible, CompileError):
            continue


def _writes_once(kernel: Kernel, body: Body) -> bool:
    """Whether one block of a cluster writes to tensors: the others have the same."""
    assert kernel.rank is not None
    first = compare("==", kernel.rank, const(0))
    for op in body:
        if isinstance(op, If) and op.cond is first and not op.orelse:
            continue
        if does_more(op) or not all(_writes_once(kernel, inner) for inner in bodies(op)):
            return False
    return True


def chosen_of(sizes: Sizes, number: int, chosen: Candidate) -> Sizes:
    """`sizes` with those of one kernel."""
    tiles = {(number, name): size for name, size in chosen.tiles}
    return replace(
        sizes,
        tiles=sizes.tiles | tiles,
        threads=sizes.threads | ({number: chosen.threads} if chosen.threads else {}),
        clusters=sizes.clusters | {number: chosen.cluster},
        shares=sizes.shares | {(number, name): blocks for name, blocks in chosen.shares},
        parts=sizes.parts | {(number, name): blocks for name, blocks in chosen.parts},
        numbers=sizes.numbers | dict(chosen.numbers),
    )


def candidate_of(sizes: Sizes, number: int) -> Candidate:
    """What was chosen for one kernel; numbers, which all kernels share, are the first one's."""

    def own(found: Mapping[TileLoop, int]) -> tuple[tuple[str, int], ...]:
        return tuple(sorted((name, size) for (at, name), size in found.items() if at == number))

    return Candidate(
        own(sizes.tiles),
        sizes.threads.get(number, 0),
        sizes.clusters.get(number, 1),
        own(sizes.shares),
        own(sizes.parts),
        tuple(sizes.numbers.items()) if number == 0 else (),
    )


def _order(each: tuple[Candidate, Estimate]) -> tuple[float, int, float, float]:
    """By time, in steps of which one is within the model's noise; then without others' steps, by
    the time that DRAM hides, and by work."""
    candidate, found = each
    time, hidden = (log(cycles, SAME) // 1 for cycles in (found.cycles, found.inside))
    shared = len(candidate.shares + candidate.parts) + (candidate.cluster > 1)
    return time, shared, hidden, sum(found.units.values())
