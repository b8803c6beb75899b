"""Who works when in a kernel's main loop, and what limits it: `explain`'s timeline, modelled by
`simulate`, as data and as a drawing of two iterations."""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from tilewright.inspect.explain_ops import first_line
from tilewright.inspect.measured import Agent, Loop, drawn, longest, steady_window
from tilewright.inspect.simulate import *
from tilewright.ir.target import Target
from tilewright.passes.lower.stamp_ops import planned, waits
from tilewright.passes.overlap import unit_times as rates
from tilewright.passes.overlap.unit_times import TENSOR, THREADS

WIDTH = 90  # of a line of text
COLUMNS = 60  # of a drawing, for two iterations
SHOWN = 4  # warpgroups that a drawing has at most
BUSY = 0.85  # of the time: a unit that is busier is what limits
LONG = 0.1  # of an iteration: what waits for less is not worth a word
UNITS = (TENSOR, THREADS, COPIES)  # that are drawn
_UNIT = {COPIES: "memory"}
CLOCK = "clock"  # what was measured
_SHORT = {TENSOR: "tensor", THREADS: "threads", COPIES: "copies", CLOCK: CLOCK}


def timeline(
    program: Program,
    kernel: Kernel,
    target: Target,
    blocks: int = 1,
    agents: Sequence[Agent] = (),
) -> dict[str, Any] | None:
    """Plain data; None where the kernel has no loop with products or rings. Up to `blocks` share a
    multiprocessor. `agents` are those of a launch that was traced: what they did is told under
    `measured`, of a whole block where no iterations are modelled and measured."""
    if target.kind != "cuda":
        return None
    if all(isinstance(size, Const) for size in kernel.grid):  # there may be fewer than fit
        tiles = prod(int(size) for size in kernel.grid)
        blocks = min(blocks, -(-tiles // target.chip.multiprocessors))
    run = simulate(program, kernel, target, max(1, blocks))
    told = None if run is None else _Told(run, max(1, blocks))
    data = None if told is None else told.data()
    if agents:
        plan = planned(kernel)[0]
        found = told and Loop(told.run, plan, agents).data(told.names.of)
        data = {**data, "measured": found} if data and found else _whole(plan.sites, agents)
    return data


def steady_state(run: Simulation, blocks: int) -> dict[str, Any]:
    """What `timeline` says of a simulation that has been run."""
    return _Told(run, blocks).data()


def _whole(sites: Sequence[Sequence[Op]], agents: Sequence[Agent]) -> dict[str, Any]:
    """The first block that was traced."""
    own = [agent for agent in agents if agent.block == agents[0].block]
    start, end = min(a.clocks[0] for a in own), max(a.clocks[-1] for a in own)
    ops = {site: longest(sites[site - 1]) for agent in own for site, *_ in agent.spans()}
    names = _Names(_on(_units(op)[0], op) for op in ops.values() if not waits(op))
    spans = drawn(own, sites, own[0].block, (start, end), names.of)
    measured = {"block": own[0].block, "length": max(1, end - start), "spans": spans}
    return {"loop": None, "measured": measured, "statements": names.legend()}


@dataclass(frozen=True)
class Window:
    """Cycles from the start of one iteration to that of another, `count` later."""

    start: float
    end: float
    count: int

    def part(self, span: Span) -> float:
        """How much of a span lies inside."""
        inside = min(span.end, self.end) - max(span.start, self.start)
        return max(0.0, inside) / (span.end - span.start) if span.end > span.start else 0.0


def steady(who: Who) -> Window:
    """The iterations of an agent that count: not the first ones, where there are enough."""
    return Window(*steady_window(who.starts))


def interval(run: Simulation) -> float:
    """Cycles of an iteration, on average."""
    windows = [steady(who) for who in run.agents]
    return sum((w.end - w.start) / w.count for w in windows) / len(windows)


class _Told:
    def __init__(self, run: Simulation, blocks: int) -> None:
        self.run, self.blocks = run, blocks
        self.first = run.agents[0]
        self.window = steady(self.first)
        self.interval = interval(run)
        self.short = len(self.first.starts) - 1 <= WARM  # no steady state
        self.drawn = self._two()
        self.names = _Names(
            span
            for span in run.spans
            if _is_drawn(span) and run.partitions[span.who].block == 0 and self.drawn.part(span)
        )

    def data(self) -> dict[str, Any]:
        run, loc = self.run, self.run.loop.loc
        # work of the window, in cycles of its unit
        work = {unit: sum(self._work(unit)) for unit in (*UNITS, SPECIAL, SHARED)}
        work = {unit: total for unit, total in work.items() if total or unit in UNITS}
        length = self.window.end - self.window.start
        used = {unit: min(1.0, total / length) for unit, total in work.items()}
        own = [who for who in run.partitions if who.block == 0]
        agents = [self._agent(who, steady(who)) for who in own if who in run.agents]
        feeders = [self._agent(who, self.window) for who in own if who not in run.agents]
        return {
            "loop": run.loop.var.name,
            "line": loc.line if loc else None,
            "iterations": run.trip,
            "steady": not self.short,
            "blocks": self.blocks,
            "interval": round(self.interval),
            "utilisation": {unit: round(part, 3) for unit, part in used.items()},
            "bytes": round(self._bytes()),
            "agents": agents,
            "feeders": feeders,
            "limit": self._limit(used, agents),
            "notes": list(self._notes()),
            "spans": list(self._spans()),
            "statements": self.names.legend(),
        }

    def _work(self, unit: str) -> Iterator[float]:
        for span in self.run.spans:
            if span.unit == unit:
                yield span.work * self.window.part(span)

    def _bytes(self) -> float:
        """Of an iteration of a block, through the copy engine or the threads."""
        found = sum(
            span.size * self.window.part(span) for span in self.run.spans if span.unit == COPIES
        )
        return found / self.window.count / self.blocks

    def _agent(self, who: Who, window: Window) -> dict[str, Any]:
        """How a warpgroup spends an iteration, in cycles."""
        computes, waits = 0.0, dict[str, float]()
        for span in self.run.spans:
            if span.who != who.number or span.unit not in (THREADS, WAITS):
                continue
            time = window.part(span) * (span.end - span.start) / window.count
            if span.unit == THREADS:
                computes += time
            elif time:
                waits[span.what] = waits.get(span.what, 0.0) + time
        ranked = sorted(waits.items(), key=lambda item: -item[1])
        return {
            "role": role_name(who, self.run.partitions),
            "computes": round(computes),
            "waits": {what: round(time) for what, time in ranked if round(time)},
        }

    # what limits

    def _limit(self, used: Mapping[str, float], agents: list[dict[str, Any]]) -> str:
        unit = max(used, key=lambda u: used[u])
        if used[unit] >= BUSY:
            text = f"{_UNIT.get(unit, unit)} {_percent(used[unit])} busy"
            return text + (f" ({self._rate()})" if unit == COPIES else "")
        total = round(self.interval)
        slowest = max(agents, key=lambda a: sum(a["waits"].values()))
        who, computes = slowest["role"], slowest["computes"]
        long = {what: time for what, time in slowest["waits"].items() if time >= LONG * total}
        what, time = next(iter(long.items()), ("", 0))
        if what == MEMORY and time > computes:
            return f"{who} waits {time} of {total} cycles for memory ({self._rate()})"
        if time > computes and what not in (PRODUCTS, EACH_OTHER, TURNS, MEMORY):
            text = f"{who} waits {time} of {total} cycles for {what}: memory ({self._rate()})"
            if self.short:
                return text + ": the first tiles are still loading"
            busy = f"which is only {_percent(used[COPIES])} busy"
            return f"{text}, {busy}: too few slots ({self._slots(what)}), or freed too late"
        told = [f"computes for {computes}"] + [f"waits {t} for {w}" for w, t in long.items()]
        alone = ""
        if len(self.run.agents) == 1 and computes > sum(long.values()):
            alone = f", and alone fills {_percent(rates.SOLO)} of the threads' issue slots"
        return f"no unit is saturated; of {total} cycles, {who} {', '.join(told)}{alone}"

    def _slots(self, barrier: str) -> int:
        for span in self.run.spans:
            if isinstance(span.op, Wait) and span.op.barrier.buffer.name == barrier:
                return prod(span.op.barrier.buffer.static_shape)
        return 1

    def _rate(self) -> str:
        time = sum(self._work(COPIES))
        size = self._bytes() * self.window.count * self.blocks
        kilobytes = f"{self._bytes() / 1024:.0f} KB an iteration"
        return f"{kilobytes} at {size / time:.0f} B/cycle" if time else kilobytes

    def _notes(self) -> Iterator[str]:
        """Products that shared memory slows down."""
        seen: set[Loc | None] = set()
        for span in self.run.spans:
            for op in walk_ops(span.op, Gemm) if span.unit == TENSOR else ():
                if op.atom != "wgmma":
                    continue
                alone = rates.cycles(op)
                found = self.run.cost(op)[0]
                if found < 1.1 * alone or op.loc in seen or not self.drawn.part(span):
                    continue
                seen.add(op.loc)
                where = f"the product of line {op.loc.line}" if op.loc else "a product"
                yield (
                    f"{where} takes {found:.0f} cycles, but {alone:.0f} to multiply: "
                    "its instructions are narrow, so shared memory limits it"
                )

    # two iterations

    def _two(self) -> Window:
        starts = self.first.starts
        first = min(WARM, max(0, len(starts) - 3))
        last = min(first + 2, len(starts) - 1)
        return Window(starts[first], starts[last], last - first)

    def _spans(self) -> Iterator[dict[str, Any]]:
        """Of block 0, of the two iterations that are drawn; times from their start."""
        window = self.drawn
        for span in sorted(self.run.spans, key=lambda s: (s.who, s.start)):
            who = self.run.partitions[span.who]
            if who.block == 0 and window.part(span) and (span.unit == WAITS or _is_drawn(span)):
                yield {
                    "role": role_name(who, self.run.partitions),
                    "unit": span.unit,
                    "statement": "." if span.unit == WAITS else self.names.letter(span),
                    "for": span.what,
                    "start": round(span.start - window.start),
                    "end": round(span.end - window.start),
                }


def _is_drawn(span: Span) -> bool:
    """Not what one thread does, which asks for copies."""
    return span.unit in UNITS and bool(span.work)


def _percent(part: float) -> str:
    return f"{100 * part:.0f} %"


def role_name(who: Who, partitions: Iterable[Who]) -> str:
    """Of a role's warpgroup, numbered where there are several."""
    same = [w for w in partitions if (w.role, w.block) == (who.role, who.block)]
    name = who.role or "warpgroup"
    return f"{name} {same.index(who)}" if len(same) > 1 else name


# ── names of statements ──────────────────────────────────────────────────────────────────────

_SMALL, _LARGE = "abcdefghijklmnopqrstuvwxyz", "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


class _Names:
    """Letters: a large one for products into a tile, or copies to it, after its name; a small one
    for each line that threads compute."""

    def __init__(self, spans: Iterable[Span]) -> None:
        self.found: dict[Any, tuple[str, dict[Any, Op]]] = {}
        for span in sorted(spans, key=self._rank):
            key = self._key(span)
            if key not in self.found:
                self.found[key] = (self._pick(span), {})
            self.found[key][1].setdefault(span.op.loc or id(span.op), span.op)

    @staticmethod
    def _rank(span: Span) -> tuple[bool, int]:
        """Products choose their letters first; then in the order of the text."""
        return span.unit != TENSOR, _line(span.op)

    @staticmethod
    def _key(span: Span) -> Any:
        if span.unit == THREADS:
            return span.op.loc or id(span.op)
        return (span.unit, _written(span.op))

    def _pick(self, span: Span) -> str:
        taken = {letter for letter, _ in self.found.values()}
        letters = _SMALL
        if span.unit != THREADS:
            written = "".join(c for c in _written(span.op).upper() if c in _LARGE)
            letters = written + _LARGE
        return next((c for c in letters if c not in taken), "#")

    def letter(self, span: Span) -> str:
        return self.found[self._key(span)][0]

    def of(self, op: Op) -> str:
        """The letter of an op whatever unit it is drawn for; none where it is not."""
        keys = (self._key(_on(unit, op)) for unit in _units(op))
        return next((self.found[key][0] for key in keys if key in self.found), " ")

    def legend(self) -> dict[str, str]:
        found = sorted(self.found.values(), key=lambda each: _line(next(iter(each[1].values()))))
        return {letter: _source(ops.values()) for letter, ops in found}


def _units(op: Op) -> tuple[str, ...]:
    """Those that an op may be drawn for."""
    return (TENSOR,) if isinstance(op, Gemm) else (THREADS, COPIES)


def _on(unit: str, op: Op) -> Span:
    return Span(0, unit, op, 0.0, 0.0)


def _line(op: Op) -> int:
    return op.loc.line if op.loc is not None else 0


def _written(op: Op) -> str:
    """The tile that a product or a copy is for."""
    for inner in walk_ops(op, Gemm):
        return inner.c.buffer.name
    if isinstance(op, Copy):
        side = op.src if op.dst.buffer.is_global else op.dst
        return side.buffer.name
    return next((i.buffer.name for i in walk_ops(op, Store)), "")


def _source(ops: Iterable[Op]) -> str:
    """The line of the first, its statement whole, and the numbers of the others."""
    op, *others = ops
    if op.loc is None:
        return first_line(op)
    text, line = "", op.loc.line
    while line < op.loc.line + 4:
        text = f"{text} {linecache.getline(op.loc.file, line).strip()}".strip()
        if not text.endswith("\\") and text.count("(") <= text.count(")"):
            break
        text, line = text.rstrip("\\"), line + 1
    numbers = sorted({op.loc.line, *(o.loc.line for o in others if o.loc is not None)})
    lines = ", ".join(str(n) for n in numbers[:3]) + (" …" if len(numbers) > 3 else "")
    return f"line{'s' if len(numbers) > 1 else ''} {lines}: {text}"


# ── text ─────────────────────────────────────────────────────────────────────────────────────


def drawing(told: Mapping[str, Any]) -> Iterator[str]:
    """Lines of text: what an iteration takes, what limits it, and two of them drawn."""
    measured = told.get("measured") or {}
    if told["loop"] is None:
        yield f"timeline of block {measured['block']}, {measured['length']} cycles (measured)"
        yield from _drawn(told)
        return
    few = "" if told["steady"] else f"; it has {told['iterations']} only"
    cycles = f"{told['interval']} cycles an iteration (modelled{few})"
    if measured:
        cycles += f", {measured['interval']} measured"
    yield f"timeline of loop {told['loop']}, {cycles}"
    if told["blocks"] > 1:
        yield f"  {told['blocks']} blocks share a multiprocessor, the drawing shows one"
    used = ", ".join(
        f"{_UNIT.get(unit, unit)} {_percent(part)}" for unit, part in told["utilisation"].items()
    )
    yield f"  busy: {used}"
    yield from _wrapped(f"  limit: {told['limit']}")
    for each in measured.get("differences", ()):
        figures = f"{each['measured']} cycles an iteration, modelled {each['modelled']}"
        yield f"  differs: {each['role']}, {each['what']}: {figures}"
    yield from _drawn(told)
    for note in told["notes"]:
        yield from _wrapped(f"  {note}")


def _drawn(told: Mapping[str, Any]) -> Iterator[str]:
    rows = _rows(told)
    shown: set[str] = set()
    before = ""
    wide = max((len(role) for role, _, _ in rows), default=0)
    for role, unit, text in rows:
        yield f"  {role if role != before else '':<{wide}}  {_SHORT[unit]:<7} |{text}|"
        before = role
        shown |= set(text)
    for letter, source in told["statements"].items():
        if letter in shown:
            yield _cut(f"    {letter}  {source}")
    if "." in shown:
        yield "    .  waits"


def _wrapped(text: str) -> list[str]:
    return textwrap.wrap(text, WIDTH, subsequent_indent="    ")


def _cut(text: str) -> str:
    return text if len(text) <= WIDTH else text[: WIDTH - 2] + " …"


def _rows(told: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    measured = told.get("measured") or {"spans": [], "length": 0}
    modelled = told.get("spans", [])
    spans = [*modelled, *measured["spans"]]
    ends = {CLOCK: measured["length"]}
    roles = list(dict.fromkeys(span["role"] for span in modelled or spans))
    agents = told.get("agents", [])
    producers = [r for r in roles if agents and not any(a["role"] == r for a in agents)]
    shown = producers + [r for r in roles if r not in producers][:SHOWN]
    found = []
    for role in shown:
        for unit in (*(UNITS[::-1] if role in producers else UNITS), CLOCK):
            own = [s for s in spans if s["role"] == role]
            if any(s["unit"] == unit for s in own):
                end = ends.get(unit) or 2 * told["interval"]
                found.append((role, unit, _row(own, unit, end, halves=bool(modelled))))
    return found


def _row(spans: list[dict[str, Any]], unit: str, end: float, halves: bool) -> str:
    """A letter for what took most of each column; a bar between the iterations."""
    step = end / COLUMNS
    text = ""
    for column in range(COLUMNS):
        best, most = " ", 0.0
        for span in spans:
            if span["unit"] != unit and not (span["unit"] == WAITS and unit == THREADS):
                continue
            inside = min(span["end"], (column + 1) * step) - max(span["start"], column * step)
            if inside > most:
                best, most = span["statement"], inside
        text += best
        if halves and column == COLUMNS // 2 - 1:
            text += "|"
    return text
