"""What was decided for a kernel, and why: as data, and as text made of the same data.

Every op of the program has an entry (`explain_ops`), with the line of the kernel's text. Then what
a block takes: registers of the binary and those that fragments need where most of them live at
once; shared memory, and who lies over whom; and who works when in the main loop (`timeline`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from tilewright.inspect.explain_ops import Entry, Told, entry_of
from tilewright.inspect.timeline import drawing, timeline
from tilewright.inspect.transactions import transactions
from tilewright.ir import scope
from tilewright.ir.analysis.aliases import places
from tilewright.ir.analysis.lifetimes import Lifetimes, fragment_words, lifetimes
from tilewright.ir.core import *
from tilewright.ir.target import Target

Figures = Sequence[Mapping[str, Any]]
Trace = Sequence[tuple[str, Program]]


def explanation(
    name: str,
    target: Target,
    trace: Trace,
    figures: Figures,
    timelines: Mapping[str, Any] | None = None,
    chosen: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Plain data, fit for JSON. `trace` are the programs after every pass, the input first;
    `figures` what a block of each kernel takes, where that is known; `timelines` those of a call
    that was measured; `chosen` what the tiles of each kernel were chosen from."""
    laid, last = laid_out(trace), trace[-1][1]
    reasons = getattr(trace, "reasons", {})
    threads = transactions(last) if target.kind == "cuda" else {}
    kernels = []
    for index, kernel in enumerate(laid.kernels):
        code, given = last.kernels[index], trace[0][1].kernels[index]
        told = Told(
            kernel,
            target,
            reasons,
            {id(op): r for op, r in scope.walk_ranges(kernel, laid.dims)},
            tuple(threads.get(code.name, ())),
            tuple(walk_ops(code, Intrinsic)),
            _places(code) if target.kind == "cuda" else {},
            _pipelined_loops(trace),
            {op.buffer.name: op.loc for op in walk_ops(given, Alloc)},
        )
        takes = dict(figures[index]) if figures else {}
        kernels.append(
            {
                "name": kernel.name,
                "grid": [str(g) for g in kernel.grid],
                "threads": list(kernel.threads),
                "choices": {
                    **({"tiles": chosen[kernel.name]} if chosen and kernel.name in chosen else {}),
                    **{about: why for about in GRID if (why := told.why(about))},
                },
                "costs": [
                    {"line": _line(cost.loc), "text": cost.text}
                    for cost in getattr(trace, "costs", ())
                    if cost.kernel == kernel.name
                ],
                "ops": [_as_dict(entry) for entry in _entries(kernel, told, given)],
                "conversions": sum(1 for _ in walk_ops(kernel, Relayout)),
                "barriers": sum(op.scope == "block" for op in walk_ops(kernel, Sync)),
                "registers": _registers(kernel, takes),
                "shared": _shared(kernel, told),
                "timeline": (timelines or {}).get(kernel.name)
                or timeline(laid, kernel, target, takes.get("blocks_per_sm") or 1),
                "takes": takes,
            }
        )
    return {
        "name": name,
        "target": str(target),
        "kernels": kernels,
        "passes": [step for step, _ in trace[1:]],
    }


def laid_out(trace: Trace) -> Program:
    """The last program that still has tiles."""
    best = trace[0][1]
    for _, program in trace:
        ops = (op for kernel in program.kernels for op in walk_ops(kernel))
        if any(isinstance(op, (Copy, Gemm, Map, Reduce)) for op in ops):
            best = program
    return best


def _places(kernel: Kernel) -> dict[str, tuple[int, int]]:
    """Where shared buffers begin and end, in bytes, as thread code has them."""
    return {b.name: (at, at + b.shared_bytes) for b, at in places(kernel).items()}


def _pipelined_loops(trace: Trace) -> dict[Loc, For]:
    """Loops as they were written, as deep as they are to run ahead."""
    program = next((p for name, p in trace if name == "choose_stages"), trace[0][1])
    return {
        op.loc: op
        for kernel in program.kernels
        for op in walk_ops(kernel, For)
        if op.loc is not None
    }


# ── ops ──────────────────────────────────────────────────────────────────────────────────────


def _entries(kernel: Kernel, told: Told, given: Kernel) -> Iterator[Entry]:
    """One for each op, those inside maps told with the map; then what passes have used up."""
    seen: set[Loc | None] = set()
    for op in outside_maps(kernel.body):
        found = entry_of(op, told)
        seen |= {found.loc, *(inner.loc for inner in walk_ops(op) if isinstance(op, Map))}
        yield found
    for op in outside_maps(given.body):
        if op.loc not in seen:
            found = entry_of(op, told)
            text = f"{found.text}: merged into another op"
            yield Entry(found.op, op.loc, text, minor=True)


def _line(loc: Loc | None) -> int | None:
    return loc.line if loc is not None else None


def _as_dict(entry: Entry) -> dict[str, Any]:
    loc = entry.loc
    return {
        "op": entry.op,
        "file": loc.file if loc else None,
        "line": _line(loc),
        "source": loc.source.strip() if loc else "",
        "text": entry.text,
        "choices": dict(entry.choices),
        "minor": entry.minor,
    }


# ── what a block takes ───────────────────────────────────────────────────────────────────────


def _registers(kernel: Kernel, figures: Mapping[str, Any]) -> dict[str, Any]:
    """Of a thread: what the binary has, and what fragments need at most at once, role by role."""
    sizes = fragment_words(kernel)
    parts: list[tuple[str, Any]] = [(r.name, r.body) for r in walk_ops(kernel, Role)]
    fragments = [
        _peak(role, lifetimes(body, (Space.FRAGMENT,)), sizes)
        for role, body in parts or [("", kernel)]
    ]
    return {
        "binary": figures.get("registers"),
        "spill_bytes": figures.get("spill_bytes"),
        "fragments": [f for f in fragments if f["registers"]],
    }


def _peak(role: str, lives: Lifetimes, sizes: Mapping[str, int]) -> dict[str, Any]:
    position, live = lives.peak(sizes)
    op = lives.ops[position] if position < len(lives.ops) else None
    return {
        "role": role,
        "registers": sum(sizes[n] for n in live),
        "line": _line(op.loc if op is not None else None),
        "live": {n: sizes[n] for n in sorted(live, key=lambda n: -sizes[n])},
    }


def _shared(kernel: Kernel, told: Told) -> dict[str, Any]:
    """Who lies where, and from which line to which it is needed."""
    lives = lifetimes(kernel)
    locs = {op.buffer.name: op.loc for op in walk_ops(kernel, Alloc)}
    locs.update(told.allocs)
    found = []
    for name, (start, end) in sorted(told.places.items(), key=lambda p: (p[1], p[0])):
        at = [min(k, len(lives.ops) - 1) for k in lives.spans.get(name, ())]
        first, last = [_line(lives.ops[k].loc) for k in at] or (None, None)
        found.append(
            {
                "buffer": name,
                "start": start,
                "bytes": end - start,
                "line": _line(locs.get(name)),
                "first_use": first,
                "last_use": last,
                "shares_with": told.over(name),
            }
        )
    total = max((end for _, end in told.places.values()), default=0)
    return {"bytes": total, "why": told.why("shared memory"), "buffers": found}


# what passes say of a kernel's blocks and warps
GRID = (
    "rows", "block order", "persistent blocks", "ping-pong", "given up", "placement",
    "registers of roles",
)  # fmt: skip

# ── text ─────────────────────────────────────────────────────────────────────────────────────


def in_words(told: Mapping[str, Any], more: str = "") -> str:
    """The same as text; `more` is said at the end."""
    lines = [f"{told['name']} for {told['target']}"]
    for kernel in told["kernels"]:
        grid = " × ".join(kernel["grid"]) or "1"
        threads = " × ".join(str(t) for t in kernel["threads"])
        lines.append(f"  kernel {kernel['name']}: grid {grid}, {threads} threads")
        lines += [f"    {about}: {why}" for about, why in kernel["choices"].items()]
        for cost in kernel["costs"]:
            at = "" if cost["line"] is None else f" at line {cost['line']}"
            lines.append(f"    slow{at}: {cost['text']}")
        lines += _op_lines(kernel["ops"])
        lines.append(
            f"    {kernel['conversions']} conversions, {kernel['barriers']} block barriers"
        )
        lines += _register_lines(kernel["registers"])
        lines += _shared_lines(kernel["shared"])
        if kernel["timeline"] is not None:
            lines += [f"    {line}" for line in drawing(kernel["timeline"])]
    lines += [f"  {line}" for line in more.splitlines()]
    lines.append("  passes: " + ", ".join(told["passes"]))
    return "\n".join(lines)


def _op_lines(ops: list[dict[str, Any]]) -> Iterator[str]:
    shown, before = set(), None
    for op in ops:
        what = (op["file"], op["line"], op["text"], tuple(op["choices"].items()))
        if op["minor"] or what in shown:
            continue  # said, or the same copy ahead of its loop
        shown.add(what)
        if op["line"] is not None and (op["file"], op["line"]) != before:
            yield f"  {op['line']:>5} | {op['source']}".rstrip()
        before = (op["file"], op["line"])
        yield f"          {op['text']}"
        for about, words in op["choices"].items():
            yield f"            {about:<12} {words}"


def _register_lines(found: dict[str, Any]) -> Iterator[str]:
    if found["binary"] is not None:
        spills = found["spill_bytes"] or 0
        yield f"    registers: {found['binary']} per thread, {spills} bytes spilled"
    for part in found["fragments"]:
        live = ", ".join(f"{name} {words}" for name, words in part["live"].items())
        role = f" in role {part['role']}" if part["role"] else ""
        line = f", at line {part['line']}" if part["line"] is not None else ""
        yield f"    fragments{role}: at most {part['registers']} registers at once{line} ({live})"


def _shared_lines(found: dict[str, Any]) -> Iterator[str]:
    if not found["buffers"]:
        return
    why = f" {found['why']}" if found["why"] else ""
    yield f"    shared memory: {found['bytes']} bytes{why}"
    for one in found["buffers"]:
        text = f"      {one['start']:>6} … {one['start'] + one['bytes'] - 1:<6} {one['buffer']}"
        if one["first_use"] is not None:
            text += f", used from line {one['first_use']} to {one['last_use']}"
        if one["shares_with"]:
            text += ", over " + ", ".join(one["shares_with"])
        yield text
