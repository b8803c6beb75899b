"""What was decided for one op, and why: a rule per class of ops, read off the laid-out program, the
reasons that passes gave, and the thread code that came of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

from tilewright.inspect.transactions import Access
from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.analysis.effects import is_unordered
from tilewright.ir.atoms import Feature
from tilewright.ir.core import *
from tilewright.ir.layout.fragment import reach
from tilewright.ir.target import Target
from tilewright.ir.text import print_op
from tilewright.passes.layout.matrix_tiles import RULES, instruction, shape_of, split_of
from tilewright.passes.layout.shared_tiles import why_not_bulk, why_not_cp_async
from tilewright.passes.lower.relayout import relayout_cost
from tilewright.passes.reasons import Reasons, key_of


@dataclass(frozen=True)
class Entry:
    """What is told of an op: a line, and choices by what they are about. `minor`: it counts, names
    or waits, and is left out of the text."""

    op: str
    loc: Loc | None
    text: str
    choices: dict[str, str] = field(default_factory=dict)
    minor: bool = False


@dataclass(frozen=True)
class Told:
    """What rules may look at: of the kernel as laid out, `ranges` that hold at each op; of its
    thread code, `accesses`, `code` (instructions by place) and `places` in shared memory;
    `loops` and `allocs` as they were written."""

    kernel: Kernel
    target: Target
    reasons: Reasons
    ranges: Mapping[int, Ranges] = field(default_factory=dict)
    accesses: tuple[Access, ...] = ()
    code: tuple[Intrinsic, ...] = ()
    places: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    loops: Mapping[Loc, For] = field(default_factory=dict)
    allocs: Mapping[str, Loc | None] = field(default_factory=dict)

    def why(self, about: str | Op) -> str:
        key = about if isinstance(about, str) else key_of(about)
        return self.reasons.get((self.kernel.name, key), "")

    def over(self, name: str) -> list[str]:
        """Buffers that share bytes of shared memory with one."""
        start, end = self.places[name]
        return [n for n, (s, e) in self.places.items() if n != name and s < end and start < e]

    def emitted(self, op: Op, *names: str) -> int:
        """Instructions of these names that thread code has for an op."""
        found = sum(i.name in names and i.loc == op.loc for i in self.code)
        # fills ahead of a loop are made of the same copy
        twins = sum(type(o) is type(op) and key_of(o) == key_of(op) for o in walk_ops(self.kernel))
        return found // max(1, twins)

    def moved(self, op: Op) -> Iterator[tuple[str, str]]:
        """The accesses of memory that an op became, in words."""
        locs = {inner.loc for inner in walk_ops(op)}
        read = {b.name for i in walk_ops(op) for b in read_buffers(i)}
        written = {b.name for i in walk_ops(op) for b in written_buffers(i)}
        own = {o.buffer.name for o in walk_ops(self.kernel, Alloc, View)}
        found: dict[str, list[str]] = {}
        for access in self.accesses:
            scratch = access.space is Space.SHARED and access.buffer not in own
            names = written if access.writes else read
            if access.loc not in locs or not (access.buffer in names or scratch):
                continue
            verb = "writes" if access.writes else "reads"
            lines = found.setdefault(f"{verb} {access.buffer}", [])
            if access.words() not in lines:
                lines.append(access.words())
        for about, lines in found.items():
            yield about, "; ".join(lines)


def entry_of(op: Op, told: Told) -> Entry:
    """What there is to tell of an op."""
    rule = RULES_OF.get(type(op))
    found = rule(op, told) if rule is not None else None
    if found is not None:
        return found
    return Entry(type(op).__name__.lower(), op.loc, first_line(op), minor=True)


def first_line(op: Op) -> str:
    return print_op(op).strip().partition("\n")[0].rstrip(" {")


def _entry(op: Op, text: str, *choices: tuple[str, str]) -> Entry:
    kept = {about: words for about, words in choices if words}
    return Entry(type(op).__name__.lower(), op.loc, text, kept)


def _count(n: int, what: str) -> str:
    return f"{n} {what}" + ("" if n == 1 else "s")


def _shape(sizes: Any) -> str:
    return "×".join(str(s) for s in sizes) or "1"


# ── memory ───────────────────────────────────────────────────────────────────────────────────


def _alloc(op: Alloc, told: Told) -> Entry | None:
    buffer = op.buffer
    if buffer.space not in (Space.SHARED, Space.FRAGMENT):
        return None
    text = f"{buffer.space.value} {buffer.name}: {buffer.dtype} {_shape(buffer.shape)}"
    text += f", {buffer.bytes} B"
    layout = buffer.layout
    if isinstance(layout, Fragment):
        words = -(-layout.values * buffer.dtype.bits // 32)
        text += f", {_count(layout.values, 'element')} in {_count(words, 'register')}"
        text += f" of {layout.threads} threads"
        if layout.replication > 1:
            text += f", each in {layout.replication} of them"
    why = told.why(buffer.name)
    if not why and layout is not None:
        why = _made_for(buffer) or "given with the program"
    place = ""
    if buffer.name in told.places:
        start, end = told.places[buffer.name]
        place, shared = f"bytes {start} … {end - 1}", told.over(buffer.name)
        place += ", as " + ", ".join(shared) if shared else ""
    found = _entry(
        op,
        text,
        ("layout", repr(layout) if layout is not None else ""),
        ("why", why),
        ("place", place),
    )
    return replace(found, loc=told.allocs.get(buffer.name, op.loc))


def _made_for(buffer: Buffer) -> str:
    for suffix, words in (
        ("_moved", "made by a conversion: laid out as its reader needs it"),
        ("_shared", "made by a conversion: shared memory can be indexed freely"),
    ):
        if suffix in buffer.name:
            return words
    return ""


def _view(op: View, told: Told) -> Entry:
    return _entry(
        op, f"view {op.buffer.name} of {op.source.name}: no code", ("why", told.why(op.buffer.name))
    )


_ENGINES = {
    "bulk_load": "the bulk engine (TMA), issued by one thread",
    "bulk_store": "the bulk engine (TMA), issued by one thread",
    "cp_async": "asynchronous copies by each thread, bypassing registers",
    "ldmatrix": "8×8 matrices by each warp",
    "stmatrix": "8×8 matrices by each warp",
    "threads": "loads and stores by each thread",
}


def _copy(op: Copy, told: Told) -> Entry:
    names = f"{op.src.buffer.name} → {op.dst.buffer.name}"
    text = f"copy {names} {_shape(op.src.tile)}: {op.atom or 'by threads'}"
    how = _ENGINES.get(op.atom or "", "")
    if op.src.buffer.is_fragment and op.dst.buffer.is_fragment:
        how = "registers of each thread"
    boxes = told.emitted(op, op.atom or "") if op.atom in ("bulk_load", "bulk_store") else 0
    if boxes:
        how += f", {_count(boxes, 'instruction')}"
    cast = ""
    if op.src.dtype != op.dst.dtype:
        cast = f"{op.src.dtype} to {op.dst.dtype}"
        cast += ", rounded once" if op.dst.dtype.bits <= op.src.dtype.bits else ""
    return _entry(
        op, text, ("instruction", how), ("why", _why_copy(op, told)), ("converts", cast),
        ("cache", _kept(op, told)), *told.moved(op),
    )  # fmt: skip


_KEPT = {
    "evict_first": "evict_first: the L2 cache evicts it before other lines",
    "evict_last": "evict_last: the L2 cache evicts it after other lines",
    "no_allocate": "no_allocate: it takes no lines of the L1 cache",
}


def _kept(op: Copy, told: Told) -> str:
    """What is said to caches with accesses of a tensor; other memory has none."""
    tensor = Space.GLOBAL in (op.src.buffer.space, op.dst.buffer.space)
    return _KEPT[op.cache] if op.cache and tensor and told.target.kind == "cuda" else ""


def _why_copy(op: Copy, told: Told) -> str:
    said = told.why(op)
    if said or op.atom is None or told.target.kind != "cuda":
        return said
    spaces = {op.src.buffer.space, op.dst.buffer.space}
    if spaces != {Space.GLOBAL, Space.SHARED}:
        return ""
    ranges = told.ranges.get(id(op), Ranges())
    if op.atom in ("bulk_load", "bulk_store"):
        return "rows are aligned, contiguous multiples of 16 bytes"
    if Feature.BULK_COPY not in told.target.features:
        reason = f"{told.target.arch} has no bulk engine, or it is switched off"
    else:
        reason = why_not_bulk(op, ranges) or "it fills no ring, where a bulk copy would pay"
    if op.atom == "threads" and op.src.buffer.is_global:
        other = why_not_cp_async(op, ranges)
        reason += f"; not cp.async: {other}" if other and other != reason else ""
    return f"not bulk: {reason}"


def _fill(op: Fill, told: Told) -> Entry:
    where = "registers" if op.dst.buffer.is_fragment else "memory"
    text = f"fill {op.dst.buffer.name} {_shape(op.dst.tile)}: {where}"
    return _entry(op, text, *told.moved(op))


def _atomic(op: Atomic, told: Told) -> Entry:
    text = f"atomic {op.op} {op.dst.buffer.name} {_shape(op.dst.tile)}"
    order = "of additions is not fixed: sums may differ in their last bits from run to run"
    return _entry(op, text, ("order", order if is_unordered(op) else ""), *told.moved(op))


# ── compute ──────────────────────────────────────────────────────────────────────────────────


def _gemm(op: Gemm, told: Told) -> Entry:
    m, n, k = shape_of(op)
    source = "registers" if op.a.buffer.is_fragment else "shared memory"
    text = (
        f"gemm {m}×{n}×{k} {op.a.dtype} by {op.b.dtype} into {op.c.dtype}: "
        f"{op.atom or 'no instruction chosen'}, A from {source}"
    )
    if told.target.kind != "cuda":
        return _entry(op, text)
    held = op.c.buffer.layout  # by a role's threads, or the block's
    threads = held.threads if isinstance(held, Fragment) else told.kernel.thread_count
    split = split_of(op, threads, told.target)
    how = shared = ""
    if split is not None:
        count = told.emitted(op, split.atom)
        how = instruction(split) + (f", {count} per thread" if count > 1 else "")
        group = "warpgroups" if split.atom == "wgmma" else "warps"
        if split.atom == "fma":
            group = "threads"
        if split.rows:
            shared = f"{split.rows}×{split.columns} {group} share the tile ({op.policy})"
    return _entry(
        op, text, ("instruction", how), ("why", _why_gemm(op, told)), ("split", shared),
        *told.moved(op),
    )  # fmt: skip


def _why_gemm(op: Gemm, told: Told) -> str:
    """The instructions that are faster, and what keeps each from this product."""
    said = told.why(op)
    if said or op.atom is None:
        return said
    for name in RULES:
        if name == op.atom:
            break
        return f"no {name}: the kernel asks for {op.atom}"
    return "the fastest instruction of this chip, and it fits"


def _map(op: Map, told: Told) -> Entry:
    text = f"parallel {_shape(op.extents)}"
    if isinstance(op.layout, Fragment):
        text += f": {op.layout.values} elements per thread"
    layout = repr(op.layout) if op.layout is not None else ""
    how = _ENGINES[op.atom] if op.atom else ""
    return _entry(
        op, text, ("instruction", how), ("layout", layout), ("why", told.why(op)), *told.moved(op)
    )


def _reduce(op: Reduce, told: Told) -> Entry:
    text = f"reduce {op.op} {op.src.buffer.name} → {op.dst.buffer.name}"
    layout = op.src.buffer.layout
    if isinstance(layout, Fragment):
        dim = op.axis
        count = prod(e for e, s in layout.along(dim)[0].modes() if s)
        how = "within threads"
        if count > 1:
            how = f"across {count} threads, "
            how += "by shuffles" if reach(layout, dim) <= WARP else "through shared memory"
        text += f": {how}"
    shuffles = told.emitted(op, "shfl_xor")
    return _entry(
        op, text, ("shuffles", f"{shuffles} per thread and result" if shuffles else ""),
        *told.moved(op),
    )  # fmt: skip


def _scan(op: Scan, told: Told) -> Entry:
    names = (", ".join(r.name for r in each) for each in (op.sources, op.results))
    text = f"scan {op.op} {' → '.join(names)}"
    shuffles = told.emitted(op, "shfl_up", "shfl_down", "shfl_sync")
    return _entry(
        op, text, ("shuffles", f"{shuffles} per thread and run" if shuffles else ""),
        *told.moved(op),
    )  # fmt: skip


_WAYS = {
    "registers": "within threads",
    "shuffle": "by shuffles",
    "shared": "through shared memory",
}


def _relayout(op: Relayout, told: Told) -> Entry:
    how, cost = op.via or "", ""
    source, target = op.src.buffer.layout, op.dst.buffer.layout
    if isinstance(source, Fragment) and isinstance(target, Fragment):
        kind, slots = relayout_cost(source, target, op.src.dtype)
        how = how or _WAYS[kind]
        cost = f"about {slots:g} instructions per thread"
        if kind == "shared":
            cost += ", two block barriers among them"
    text = f"conversion {op.src.buffer.name} → {op.dst.buffer.name}: {how}"
    why = "the op here reads or writes elements that other threads hold"
    return _entry(op, text, ("why", why), ("cost", cost), *told.moved(op))


# ── structure ────────────────────────────────────────────────────────────────────────────────


def _for(op: For, told: Told) -> Entry:
    written = told.loops.get(op.loc) if op.loc is not None else None
    kind = op.kind if written is None else written.kind
    text = f"loop {op.var.name}: {kind}"
    stages = max(op.stages, 0 if written is None else written.stages)
    if kind == "pipelined":
        text = f"loop {op.var.name}: {stages} stages"
        if op.kind == "unroll" and written is not None and written.var != op.var:
            text = f"loop {op.var.name}: the first fills of {written.var.name}, before it"
    return _entry(op, text, ("why", told.why(op)))


def _role(op: Role, told: Told) -> Entry:
    last = op.first + op.warps - 1
    text = f"role {op.name}: warps {op.first} … {last}"
    if op.instances > 1:
        text += f", {op.instances} instances"
    if op.registers is not None:
        text += f", {op.registers} registers per thread"
    return _entry(op, text, ("order", told.why(f"warpgroups of {op.name}")))


def _sync(op: Sync, told: Told) -> Entry | None:
    if op.scope != "block":
        return None
    return _entry(op, "block barrier")


RULES_OF: dict[type[Op], Callable[[Any, Told], Entry | None]] = {
    Alloc: _alloc,
    View: _view,
    Copy: _copy,
    Fill: _fill,
    Atomic: _atomic,
    Gemm: _gemm,
    Map: _map,
    Reduce: _reduce,
    Scan: _scan,
    Relayout: _relayout,
    For: _for,
    Role: _role,
    Sync: _sync,
}

__all__ = ["Entry", "Told", "entry_of"]
