"""Accesses of memory by ops, as boxes of elements; whether two of them meet; and the event graph of
a body: what runs each of its statements, and which must wait for which."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby, product
from typing import Any, NamedTuple, TypeAlias

from tilewright.ir.analysis.aliases import Aliases, aliases, sharing
from tilewright.ir.analysis.bounds import Ranges, stride_of
from tilewright.ir.analysis.uniform import PerThread
from tilewright.ir.atoms import ATOMS
from tilewright.ir.core import *
from tilewright.ir.simplify import simplify
from tilewright.ir.text import print_op

NOWHERE: frozenset[Var] = frozenset()
# of a dimension, a first index and a number of them; None: anywhere
Part: TypeAlias = tuple[Expr, int] | None
Box: TypeAlias = tuple[Part, ...]
ASYNC = ("matrix", "bulk_read", "bulk_write")
KINDS: Mapping[str, Mapping[bool, str]] = {  # by atom: of its reads (False) and its writes
    "bulk_load": {True: "bulk_write"},
    "bulk_store": {False: "bulk_read", True: "bulk_put"},
    "wgmma": {False: "matrix"},
    "cp_async": {True: "cp_async"},
    "remote_store": {True: "bulk_write"},
}


@dataclass(frozen=True)
class Access:
    """Some elements of a buffer touched by one op. `threads`: equal for accesses that take each
    of the same elements to the same thread; `block`: of the cluster, whose memory it is, where that
    is said; `loops`: the variables of the loops around; `fresh`: the names and scalars in its box
    still have the values that they had; `turned`: the loops around of which another iteration has
    begun since, for tensors; `age`: groups closed since that of a bulk store."""

    buffer: str
    root: str
    kind: str
    writes: bool
    box: Box | None = None
    threads: Any = None
    block: Expr | None = None
    loops: tuple[Var, ...] = ()
    shared: bool = True
    fresh: bool = False
    turned: frozenset[Var] = frozenset()
    age: int = -1


class Accesses:
    """What ops of a kernel access, with more or fewer barriers, fences and waits in it too."""

    def __init__(self, kernel: Kernel) -> None:
        self.roots = aliases(kernel)
        self.sharing = sharing(kernel)
        self.changed = {self.roots[b.name] for op in walk_ops(kernel) for b in written_buffers(op)}

    def find(self, op: Op, loops: tuple[Var, ...], differs: PerThread) -> tuple[Access, ...]:
        """Of `op` itself, or of all that stands in a map, inside `loops`."""
        general = "lanes" if differs.runs_apart(op) else "threads"
        found: dict[Access, None] = {}
        for buffer, *what in accesses_of(op, general):
            kind, writes, box, pattern, block = what
            root = self.roots[buffer.name]
            shared = buffer.is_shared
            tensor = buffer.is_global and kind not in ASYNC and root in self.changed
            if not shared and not tensor:
                continue
            root = self.sharing.get(root, root)
            new = Access(
                buffer.name, root, kind, writes, box, pattern, block, loops, shared, not shared
            )
            found[new] = None
        return tuple(found)


# a buffer; how; whether it is written; where; which thread touches which element; whose block's
_Found: TypeAlias = tuple[Buffer, str, bool, Box | None, Any, Expr | None]


def accesses_of(op: Op, general: str = "threads") -> Iterator[_Found]:
    """What an op touches in whatever space; of one with bodies, its head, but of a map all."""
    if isinstance(op, Map):
        yield from _map_accesses(op)
        return
    kinds = KINDS.get(getattr(op, "atom", None) or "", {})
    for writes in (False, True):
        for region in regions(op, reads=not writes, writes=writes):
            kind = kinds.get(writes, general)
            if isinstance(op, Atomic) and region is op.dst:
                kind = "atomic"
            pattern = _copy_pattern(op) if region.buffer.is_shared else None
            box = tuple(
                (s, int(e.value)) if isinstance(e, Const) else None
                for s, e in zip(region.starts, region.extents, strict=True)
            )
            yield region.buffer, kind, writes, box, pattern, region.cta
    for place, writes in elements_of(op):
        yield place.buffer, general, writes, tuple((i, 1) for i in place.indices), None, None
    if isinstance(op, Intrinsic):
        for arg in op.args:
            if isinstance(arg, Region):
                yield arg.buffer, general, True, None, None, None


def _map_accesses(op: Map) -> Iterator[_Found]:
    extents = {
        v: int(e.value) if isinstance(e, Const) else None
        for v, e in zip(op.vars, op.extents, strict=True)
    }
    inner = {v for each in op.body for v in bound_within(each)}
    stores = KINDS.get(op.atom or "", {}).get(True, "threads")
    for each in walk_ops(op.body):
        for region in regions(each, reads=True, writes=True):
            atomic = isinstance(each, Atomic) and region is each.dst
            yield region.buffer, "atomic" if atomic else "threads", True, None, None, None
        for place, writes in elements_of(each):
            buffer, indices, pattern = place.buffer, place.indices, None
            kind = stores if writes else "threads"
            box = tuple(_span(i, extents, inner) for i in indices)
            plain = kind == "threads" and all(i in extents for i in indices)
            if _is_one_to_one(op.layout) and plain:
                axes = tuple(op.vars.index(i) for i in indices if isinstance(i, Var))
                pattern = ("map", op.layout, axes, tuple(extents.values()))
            yield buffer, kind, writes, box, pattern, None


def _is_one_to_one(layout: Any) -> bool:
    return isinstance(layout, Fragment) and layout.is_bijective


def _copy_pattern(op: Op) -> Any:
    """Which thread touches which element of the shared side of a copy by threads."""
    if isinstance(op, Copy) and op.atom == "threads":
        for side in (op.src, op.dst):
            layout = side.buffer.layout
            if side.is_whole and _is_one_to_one(layout):
                return ("copy", layout)
    return None


def _span(
    index: Expr, extents: Mapping[Var, int | None], inner: set[Var]
) -> tuple[Expr, int] | None:
    """The indices that an expression takes over a map: the first, and how many."""
    if variables(index) & inner or loads(index):
        return None
    size = 1
    zeros: dict[Var, Expr] = {}
    for var in variables(index) & set(extents):
        stride, extent = stride_of(index, var), extents[var]
        if stride is None or stride < 0 or extent is None:
            return None
        size += stride * (extent - 1)
        zeros[var] = const(0, var.dtype)
    return substitute(index, zeros), size


# ── whether two meet ─────────────────────────────────────────────────────────────────────────


def meet(old: Access, new: Access, again: bool, defined: Mapping[Var, frozenset[Var]]) -> bool:
    """Whether they may touch the same element, not in the same thread, and one writes it. `again`:
    one op makes both; `defined`: the loops that variables are defined in."""
    if old.root != new.root or not (old.writes or new.writes):
        return False
    if old.kind == new.kind == "atomic" or old.kind == new.kind == "lanes":
        return False
    if isinstance(old.block, Const) and isinstance(new.block, Const) and old.block != new.block:
        return False
    if old.buffer != new.buffer or old.box is None or new.box is None:
        return True
    if apart(old.box, new.box, old.fresh and new.fresh):
        return False
    if again and old.writes and new.writes and _walk_apart(old, new, defined):
        return False
    same = old.threads is not None and old.threads == new.threads
    return not (same and old.box == new.box and _is_fixed(old.box))


def asks(box: Box | None, scalar: Buffer) -> bool:
    """Whether it needs the value of a scalar to say where a box lies."""
    parts = [part for part in box or () if part is not None]
    return any(load.buffer == scalar for start, _ in parts for load in loads(start))


def apart(a: Box, b: Box, fresh: bool = False) -> bool:
    """Some dimension's ranges do not meet: their distance is a constant, and `fresh` says that
    names in both stand for the same."""
    for x, y in zip(a, b, strict=True):
        if x is None or y is None:
            continue
        (start, size), (other, extent) = x, y
        if isinstance(start, Const) and isinstance(other, Const):
            distance = int(other.value) - int(start.value)
        elif fresh and isinstance(gap := simplify(other - start, Ranges()), Const):
            distance = int(gap.value)
        else:
            continue
        if not -extent < distance < size:
            return True
    return False


def _is_fixed(box: Box) -> bool:
    return all(x is not None and isinstance(x[0], Const) for x in box)


def _walk_apart(old: Access, new: Access, defined: Mapping[Var, frozenset[Var]]) -> bool:
    """Iterations of the loops around never come to elements that another one was at: every loop
    moves one dimension that no other loop moves, nor a variable `defined` in one, far enough. Of a
    tensor's accesses it is known which loops have `turned` between two of them; in the others it
    is still the same iteration."""
    assert old.box is not None and new.box is not None
    moving = new.loops if new.shared else tuple(v for v in new.loops if v in old.turned)
    loops, parts = frozenset(moving), tuple(zip(old.box, new.box, strict=True))
    return bool(moving) and all(
        any(_moves_apart(var, was, now, loops, defined) for was, now in parts) for var in moving
    )


def _moves_apart(
    var: Var, old: Part, new: Part, loops: frozenset[Var], defined: Mapping[Var, frozenset[Var]]
) -> bool:
    """One iteration's `new` indices and any other's `old` ones do not meet: both move alike, by no
    less than the two reach over each other."""
    if old is None or new is None:
        return False
    (before, size), (start, extent) = old, new
    for each in (before, start):
        if variables(each) & loops != {var} or loads(each):
            return False
        if any(loops & defined.get(other, NOWHERE) for other in variables(each) - {var}):
            return False
    stride = stride_of(start, var)
    distance = simplify(start - before, Ranges())  # in one iteration
    if stride is None or not isinstance(distance, Const):
        return False
    return abs(stride) >= max(size - int(distance.value), extent + int(distance.value))


# ── the event graph of a body: which statements must wait for which ──────────────────────────
#
# Of two statements that touch the same memory, one of them writing it, the later waits for the
# earlier (distance 0) and, in a loop, the earlier for the later of the iteration before
# (distance 1). Boxes that constants keep apart are apart. What stands in loops and branches, and
# memory that has several names, is taken as a whole.

EFFECTS = " effects"  # atomics and intrinsics keep their order
ORDER = {
    (True, False): "read after write",
    (False, True): "write after read",
    (True, True): "write after write",
}


class Touch(NamedTuple):
    """Some elements of a buffer; box None: any of them."""

    buffer: str
    writes: bool
    box: Box | None = None

    def meets(self, other: Touch) -> bool:
        """Of the same root: whether the two have to keep their order."""
        if not (self.writes or other.writes):
            return False
        if self.buffer != other.buffer or self.box is None or other.box is None:
            return True
        return not apart(self.box, other.box)


class Edge(NamedTuple):
    """Statement `after` waits for `before`, of the same iteration or the one `distance` before."""

    before: int
    after: int
    kind: str
    name: str
    distance: int


class Graph:
    """Of the statements of `body`; `roots`: the views around."""

    def __init__(self, body: Body, roots: Aliases, *, loops: bool) -> None:
        self.body = body
        touches = [_by_root(op, roots) for op in body]
        # what each statement touches: by root, whether it writes it
        self.touched = [
            {root: any(t.writes for t in found) for root, found in each.items()} for each in touches
        ]
        found: set[Edge] = set()
        for a, b in product(range(len(body)), repeat=2):
            for root in touches[a].keys() & touches[b].keys() if loops or a < b else ():
                for old, new in product(touches[a][root], touches[b][root]):
                    if old.meets(new):
                        kind = ORDER[old.writes, new.writes]
                        found.add(Edge(a, b, kind, root, int(a >= b)))
        self.edges = sorted(found, key=lambda e: (e.after, e.before, e.name, e.kind))
        self.names: dict[tuple[int, int], set[str]] = {}  # what keeps two statements in order
        for e in self.edges:
            for pair in ((e.before, e.after), (e.after, e.before)):
                self.names.setdefault(pair, set()).add(e.name)

    def text(self) -> str:
        lines = [
            f"{k:>3}  {unit_of(op):<8}{print_op(op).strip().splitlines()[0]}"
            for k, op in enumerate(self.body)
        ]
        for (a, b, name), edges in groupby(self.edges, lambda e: (e.before, e.after, e.name)):
            kinds = ", ".join(e.kind for e in edges)
            when = " (next iteration)" if a >= b else ""
            lines.append(f"     {a} -> {b}{when} {name.strip()}: {kinds}")
        return "\n".join(lines)


def _by_root(op: Op, roots: Aliases) -> dict[str, set[Touch]]:
    found: dict[str, set[Touch]] = {}
    if isinstance(op, Map) or not bodies(op):
        for buffer, _, writes, box, *_ in accesses_of(op):
            found.setdefault(roots[buffer.name], set()).add(Touch(buffer.name, writes, box))
    else:
        for buffer, writes in touched_within(op):
            found.setdefault(roots[buffer.name], set()).add(Touch(buffer.name, writes))
    if isinstance(op, Alloc) and op.init is not None:
        found[op.buffer.name] = {Touch(op.buffer.name, True)}
    if any(map(_keeps_order, walk_ops(op))):
        found[EFFECTS] = {Touch(EFFECTS, True)}
    return found


def _keeps_order(op: Op) -> bool:
    says = isinstance(op, Hint) and op.name != "assume"
    return says or isinstance(op, (Atomic, Intrinsic))


def unit_of(op: Op) -> str:
    """What runs a statement: the copy engine, the tensor core, or threads."""
    atom = ATOMS.get(getattr(op, "atom", None) or "")
    return atom.unit if atom is not None else "threads"


def print_graphs(program: Program) -> str:
    """The event graph of every kernel and of every loop in it."""
    found = []
    for kernel in program.kernels:
        roots = aliases(kernel)
        for op in walk_ops(kernel):
            if isinstance(op, (Kernel, For, While)):
                head = print_op(op).strip().splitlines()[0].rstrip(" {")
                graph = Graph(op.body, roots, loops=not isinstance(op, Kernel))
                found.append(f"{head}\n{graph.text()}\n")
    return "\n".join(found)
