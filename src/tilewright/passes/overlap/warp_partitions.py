"""The warps of a block that run code of their own, and what of a common text each of them runs.

A text with roles among ordinary statements is cut into the codes of its crews (`Crews.view`), and
what became of these is put together again (`Crews.merge`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import prod
from typing import TypeAlias

from tilewright.ir.buffer import Space
from tilewright.ir.expr import const
from tilewright.ir.op import (
    Alloc,
    Body,
    For,
    Hint,
    If,
    Kernel,
    Let,
    Op,
    Role,
    Store,
    Sync,
    View,
    While,
    bound,
    marked,
    walk_ops,
)
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.support.errors import CompileError

WARP, GROUP = 32, 4  # threads of a warp, warps of a warpgroup
PART = "part"  # the hint that stands where a joint role or a common loop begins and ends
# ids of barriers in the code of a crew: of the whole block; of the crew, for others to rely on
BLOCK, JOINT = const(0), const(-1)


@dataclass(frozen=True, order=True)
class Warps:
    """A range of the block's warps."""

    first: int
    count: int

    @property
    def threads(self) -> int:
        return self.count * WARP

    @property
    def name(self) -> str:
        return f"warps{self.first}"

    def within(self, other: Warps) -> bool:
        return other.first <= self.first and self.first + self.count <= other.first + other.count

    def words(self) -> str:
        groups = range(self.first // GROUP, -(-(self.first + self.count) // GROUP))
        if self.first % GROUP or self.count % GROUP:
            return f"warps {self.first} to {self.first + self.count - 1}"
        several = len(groups) > 1
        return f"warpgroup{'s' * several} {', '.join(map(str, groups))}"


def warps_of(role: Role) -> Warps:
    return Warps(role.first, role.warps)


@dataclass
class Together:
    """Statements of the common text without a joint role: each crew has its part of them."""

    ops: list[Op] = field(default_factory=list)


@dataclass
class Joint:
    """A role over several crews."""

    number: int
    role: Role


@dataclass
class Frame:
    """A loop or branch around a joint role, which stays one; `parts` by the body's field. Names of
    values, too, where there are joint roles: without parts."""

    number: int
    op: Op
    parts: dict[str, list[Item]]


Item: TypeAlias = Together | Joint | Frame


class Crews:
    """The block's warps, cut wherever a role of `kernel` begins or ends."""

    def __init__(self, kernel: Kernel) -> None:
        self.total = Warps(0, -(-prod(kernel.threads) // WARP))
        self.roles = list(walk_ops(kernel, Role))
        edges = {0, self.total.count}
        for role in self.roles:
            edges |= {role.first, role.first + role.warps}
        self.each = [Warps(a, b - a) for a, b in pairwise(sorted(edges))]
        self.joint = sorted({warps_of(r) for r in self.roles} - set(self.each))
        self.numbers = 0

    def items(self, body: Body) -> list[Item]:
        found: list[Item] = []
        for op in body:
            if isinstance(op, Role) and warps_of(op) not in self.each:
                self.numbers += 1
                found.append(Joint(self.numbers, op))
                continue
            inner = list(walk_ops(op, Role))
            named = isinstance(op, Let) and self.joint  # roles that follow may ask for it
            if named or any(warps_of(o) not in self.each for o in inner):
                self.numbers += 1
                number = self.numbers
                parts = {f.name: self.items(getattr(op, f.name)) for f in marked(op, "body")}
                found.append(Frame(number, op, parts))
                continue
            if not found or not isinstance(found[-1], Together):
                found.append(Together())
            last = found[-1]
            assert isinstance(last, Together)
            last.ops.append(op)
        return found

    def view(self, items: Iterable[Item], warps: Warps) -> Body:
        """The code of `warps` alone; hints stand where it will be cut."""
        found: list[Op] = []
        for item in items:
            if isinstance(item, Together):
                if warps in self.each:
                    found += self.part(tuple(item.ops), warps)
                continue
            inside: list[Op] = []
            if isinstance(item, Frame):
                parts = {name: self.view(inner, warps) for name, inner in item.parts.items()}
                inside.append(rebuild(item.op, **parts))
            elif warps == (own := warps_of(item.role)):
                met = Sync("block", JOINT, loc=item.role.loc)
                inside += [met, *own_syncs(item.role.body), met]
            elif warps.within(own):
                inside.append(Sync("block", BLOCK, loc=item.role.loc))  # there, not here
            cut = Hint(PART, detail=(item.number,))
            found += [cut, *inside, cut]
        return tuple(found)

    def part(self, body: Body, warps: Warps) -> Iterator[Op]:
        """What a crew does of statements that each has its own part of."""
        for op in body:
            if isinstance(op, Role):
                if warps.within(warps_of(op)):
                    yield from own_syncs(op.body)
            elif isinstance(op, Hint):
                if op.buffer is None or op.buffer.space is Space.FRAGMENT:
                    yield op
            elif isinstance(op, (For, If, While)):
                inner = {f.name: tuple(self.part(getattr(op, f.name), warps))
                         for f in marked(op, "body")}  # fmt: skip
                if any(matters(o) for part in inner.values() for o in walk_ops(part)):
                    yield rebuild(op, **inner)
            else:
                yield from own_syncs((op,))

    def merge(
        self, items: list[Item], views: Mapping[Warps, Body], role: AsRole, *, top: bool = True
    ) -> list[Op]:
        """One body of what the crews do: roles, and what stays common between them."""
        found: list[Op] = []
        cut = {warps: _cut(body) for warps, body in views.items()}
        for item in (None, *items):
            number = getattr(item, "number", None)
            if isinstance(item, Frame):
                inner: dict[str, list[Op]] = {}
                frames = {w: _frame(parts[number][0], item.op) for w, parts in cut.items()}
                for w, (before, _, _) in frames.items():
                    found += role(w, before, False)
                for name, parts_of in item.parts.items():
                    mine = {w: getattr(op, name) for w, (_, op, _) in frames.items()}
                    inner[name] = self.merge(parts_of, mine, role, top=False)
                found.append(rebuild(item.op, **{n: tuple(b) for n, b in inner.items()}))
                for w, (_, _, after) in frames.items():
                    found += role(w, after, False)
            elif isinstance(item, Joint):
                for w, parts in cut.items():
                    own = w == warps_of(item.role)
                    ops = [op for op in parts[number][0] if own or not isinstance(op, Sync)]
                    found += role(w, ops, False)
            elif item is not None:
                continue
            for w, parts in cut.items():
                found += role(w, parts[number][1], top)
        return found


# what the warps do of a part of the text as a role; whether it stands at the top of the kernel
AsRole: TypeAlias = Callable[[Warps, list[Op], bool], Iterable[Op]]


def own_syncs(body: Body) -> Body:
    """`body` with its author's barriers of the block marked: the crew's own are another thing."""

    def rule(op: Op) -> Op | None:
        if isinstance(op, Sync) and op.scope == "block":
            return rebuild(op, id=BLOCK)
        return None

    return map_body(body, rule)


def matters(op: Op) -> bool:
    """Whether a crew must run `op`, if it does anything at all."""
    if isinstance(op, Alloc):
        return op.init is not None
    return not isinstance(op, (Let, View, Hint, For, If, While))


def acts(op: Op) -> bool:
    """Whether anybody but the thread itself can tell that it ran `op`."""
    local = isinstance(op, Store) and op.buffer.space is Space.LOCAL
    return matters(op) and not local and not isinstance(op, Alloc)


def _cut(body: Body) -> dict[int | None, tuple[list[Op], list[Op]]]:
    """By number of a part: what stands inside, and what stands behind it up to the next; None:
    before the first."""
    found: dict[int | None, tuple[list[Op], list[Op]]] = {None: ([], [])}
    number: int | None = None
    inside = False
    for op in body:
        if isinstance(op, Hint) and op.name == PART:
            inside = not inside
            if inside:
                number = int(op.detail[0])
                found[number] = ([], [])
            continue
        found[number][0 if inside else 1].append(op)
    return found


def _frame(ops: list[Op], like: Op) -> tuple[list[Op], Op, list[Op]]:
    """What passes have put before a common loop or branch, itself, and what behind."""
    for k, op in enumerate(ops):
        same = type(op) is type(like)
        if same and bound(op) == bound(like):
            return ops[:k], op, ops[k + 1 :]
    raise CompileError(
        "what a warpgroup computes here is still under way when all warps go on together",
        loc=like.loc,
        fix="place the statements of this loop that are on all warps on one warpgroup: T.ws(0)",
    )
