"""The event graph of a body: its statements, what runs each of them, and which must wait for which.

Of two statements that touch the same memory, one of them writing it, the later waits for the
earlier (distance 0) and, in a loop, the earlier for the later of the iteration before (distance 1).
Boxes that constants keep apart are apart. What stands in loops and branches, and memory that has
several names, is taken as a whole.
"""

from __future__ import annotations

from itertools import groupby, product
from typing import NamedTuple

from tilewright.ir.analysis.accesses import Box, accesses_of, apart
from tilewright.ir.analysis.aliases import Aliases, aliases
from tilewright.ir.atoms import ATOMS
from tilewright.ir.op import (
    Alloc,
    Atomic,
    Body,
    For,
    Hint,
    Intrinsic,
    Kernel,
    Map,
    Op,
    Program,
    While,
    bodies,
    touched_within,
    walk_ops,
)
from tilewright.ir.text import print_op

EFFECTS = " effects"  # atomics and intrinsics keep their order
KINDS = {
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
                        kind = KINDS[old.writes, new.writes]
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
