"""Loops cut where a guard begins or ceases to hold, so that only the iterations that need it pay.

A guard in an elementwise nest is evaluated for every element: of causal attention's blocks of keys
only the last few have any that are not seen, and all of them ask.

    for k in 0 .. n { map (i, j) { S[i, j] = S[i, j] if k * 128 + j <= q * 128 + i else -inf } … }

    let k_cut = q
    for k in 0 .. min(n, k_cut) { … }
    for k in max(0, k_cut) .. n { map (i, j) { S[i, j] = S[i, j] if … else -inf } … }

A condition is a sum that must not be negative. With the loop variable's share aside, what varies
inside the loop is taken at its least, and the rest is known in front of it: a division says for
which iterations the condition holds at every point. The ranges of all guards are intersected, and
there are up to three loops: guards, none, guards again. A guard that holds everywhere goes without
a cut; one that (provably) holds nowhere stays and cuts nothing. Conditions that are the same for
all elements cost a branch, and are no reason to cut.

Iterations run in the same order, once each, so counters, slots and phases run on, and what
is asynchronous keeps its place; only matrix products must not be in flight where control may come
around a loop (their registers would have two definitions, C7515). A loop that leaves some in flight
becomes `if start < stop { for …; wait_group wgmma pending 0 }`. The assembler does not see through
a second such loop: there, every iteration waits at its end, so it must be the one with the guards,
which has few of them; a loop that leaves products in flight is cut only once, behind the iterations
without guards.

The price is code: compiled, and fetched once, since the loops run one after another. A loop with
matrix products by warpgroups pays at any reasonable size, for its threads are what the tensor core
waits for; others only when they are small, for those mostly wait for memory. A loop around others
is not cut unless asked for: what it does beside them is the lesser part.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from tilewright.ir import scope
from tilewright.ir.bounds import Ranges
from tilewright.ir.buffer import Space
from tilewright.ir.expr import (
    FALSE,
    TRUE,
    Bin,
    Call,
    Const,
    Expr,
    Load,
    Select,
    Var,
    binary,
    ceildiv,
    compare,
    const,
    fold,
    is_pure,
    transform,
    variables,
    walk,
)
from tilewright.ir.op import (
    Alloc,
    Body,
    Dim,
    For,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Program,
    Role,
    Store,
    View,
    WaitGroup,
    While,
    bodies,
    expressions,
    marked,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_name,
    map_exprs,
    map_kernels,
    program_names,
    rebuild,
    rename_unique,
)
from tilewright.ir.target import Target
from tilewright.passes.matrix_groups import UNIT, is_matrix
from tilewright.passes.reasons import because, key_of
from tilewright.passes.rings import leaves_early
from tilewright.passes.sure_spans import EVERYWHERE, Facts, Span, SureSpans

# ops of a loop that is worth a copy: with products by warpgroups, or when asked; without
MOST, FEW = 400, 64
KINDS = ("serial", "pipelined", "persistent")

Path = tuple[int | str, ...]  # where an op stands: its place in a body, the body's field, …


def split_loops(program: Program, target: Target) -> Program:
    """`program` with loops cut where guards of elements begin or cease to hold for all of them."""
    choice = target.choice("split")
    if choice == "off":
        return program
    names = program_names(program)

    def one(kernel: Kernel) -> Kernel:
        if not any(isinstance(op, For) and any(map(_guarded, op.body)) for op in walk_ops(kernel)):
            return kernel
        return _Splitter(kernel, program.dims, names, choice == "on").run()

    return map_kernels(program, one)


def _guarded(op: Op) -> bool:
    """Whether nests in `op` have conditions; of those that only copy they cost nothing."""
    if not isinstance(op, Map):
        return any(_guarded(inner) for body in bodies(op) for inner in body)
    if op.atom is not None:
        return False
    return any(
        isinstance(inner, If)
        or any(isinstance(node, Select) for e in expressions(inner) for node in walk(e))
        for inner in walk_ops(op.body)
    )


# ── guards ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Guard:
    """A condition, or one of several that must hold together, of the op at `path` in a loop."""

    path: Path
    cond: Expr
    resolved: Expr  # with names from inside the loop put in
    ranges: Ranges


def _guards(loop: For, ranges: Ranges) -> Iterator[Guard]:
    """The conditions of elements in `loop`'s nests; those of other loops inside are theirs."""

    def visit(body: Body, ranges: Ranges, path: Path, points: frozenset[Var]) -> Iterator[Guard]:
        for n, op in enumerate(body):
            here = (*path, n)
            if points:
                yield from asked(op, ranges, here, points)
            if points or _looks_into(op):
                more = frozenset(op.vars) if isinstance(op, Map) else points
                for f in marked(op, "body"):
                    inside = scope.inside(op, f.name, ranges)
                    yield from visit(getattr(op, f.name), inside, (*here, f.name), more)
            ranges = scope.after(op, ranges)

    def asked(op: Op, ranges: Ranges, path: Path, points: frozenset[Var]) -> Iterator[Guard]:
        nodes = [node for e in expressions(op) for node in walk(e)]
        conds = [node.cond for node in nodes if isinstance(node, Select)]
        if isinstance(op, If):
            conds.append(op.cond)
        for cond in dict.fromkeys(conds):
            parts = []
            for part in _together(cond):
                resolved = ranges.resolve(part, loop.var)
                if resolved is not None:
                    parts.append(Guard(path, part, resolved, ranges))
            if any(variables(part.resolved) & points for part in parts):
                yield from parts

    inside = scope.inside(loop, "body", ranges)
    return visit(loop.body, inside, (), frozenset())


def _looks_into(op: Op) -> bool:
    if isinstance(op, For):
        return op.kind not in KINDS and any(map(_guarded, op.body))
    return isinstance(op, (Map, If, Role)) and _guarded(op)


def _together(cond: Expr) -> list[Expr]:
    """The conditions that `cond` asks for all of."""
    if isinstance(cond, Bin) and cond.op == "and":
        return _together(cond.a) + _together(cond.b)
    return [cond]


Claims = dict[Path, set[Expr]]  # conditions that hold, by where they are asked


def _claims(guards: Iterable[Guard]) -> Claims:
    found: Claims = {}
    for guard in guards:
        found.setdefault(guard.path, set()).add(guard.cond)
    return found


def _unguarded(body: Body, claims: Mapping[Path, Collection[Expr]], path: Path = ()) -> Body:
    """`body` where `claims` hold: without their guards, and without what then does nothing."""
    result: list[Op] = []
    for n, old in enumerate(body):
        here = (*path, n)
        op = rebuild(
            old,
            **{
                f.name: _unguarded(getattr(old, f.name), claims, (*here, f.name))
                for f in marked(old, "body")
            },
        )
        held = claims.get(here)
        if held:
            op = map_exprs(op, lambda e, held=held: _holding(e, held))  # type: ignore[misc]
            if isinstance(op, If) and isinstance(op.cond, Const):
                result += op.then if op.cond.value else op.orelse
                continue
            if isinstance(op, Store) and op.value == Load(op.buffer, op.indices):
                continue
        if op is old or not _idle(op):
            result.append(op)
    same = len(result) == len(body) and all(a is b for a, b in zip(result, body, strict=True))
    return body if same else tuple(result)


def _idle(op: Op) -> bool:
    """A nest, loop or branch that does nothing any more."""
    return isinstance(op, (Map, For, If)) and all(
        isinstance(inner, Let) for body in bodies(op) for inner in body
    )


def _holding(e: Expr, held: Collection[Expr]) -> Expr:
    """`e` where the conditions `held` hold."""

    def rule(node: Expr) -> Expr | None:
        if node.dtype.is_bool and node in held:
            return TRUE
        match node:
            case Bin("and" | "or", a, Const() as b):
                return a if bool(b.value) is (node.op == "and") else fold(node.op, b, a)
            case Bin("and" | "or", Const(), b):
                return fold(node.op, node.a, b)
            case Call("not", (Const(value),)):
                return FALSE if value else TRUE
            case Select(Const(value), a, b):
                return a if value else b
        return None

    return transform(e, rule)


# ── loops ────────────────────────────────────────────────────────────────────────────────────


def _in_flight(body: Body, before: bool) -> bool:
    """Whether matrix products may be in flight behind `body`, given whether they may be before."""
    for op in body:
        if is_matrix(op):
            before = True
        elif _waits_for_all(op):
            before = False
        elif isinstance(op, If):
            before = _in_flight(op.then, before) or _in_flight(op.orelse, before)
        elif isinstance(op, (For, While)):
            before = before or _in_flight(op.body, True if before else _in_flight(op.body, False))
        elif isinstance(op, Role):
            before = _in_flight(op.body, before)
    return before


def _waits_for_all(op: Op) -> bool:
    return isinstance(op, WaitGroup) and op.unit == UNIT and not op.pending


class _Splitter:
    """`asked`: for every cut there is, not only those that surely pay."""

    def __init__(self, kernel: Kernel, dims: Iterable[Dim], names: set[str], asked: bool) -> None:
        self.kernel = kernel
        self.facts = Facts(kernel, dims)
        self.names = names
        self.asked = asked

    def run(self) -> Kernel:
        ranges = scope.entry(self.kernel, self.facts.dims)
        return rebuild(self.kernel, body=self.body(self.kernel.body, ranges, False))

    def body(self, body: Body, ranges: Ranges, open_: bool) -> Body:
        """`open_`: matrix products may be in flight where `body` begins."""
        result: list[Op] = []
        waited = False  # for everything that the op before has issued
        for op in body:
            if waited and _waits_for_all(op):
                open_ = False
                continue
            again = isinstance(op, (For, While)) and _in_flight(op.body, open_)
            parts: list[Op] = [op]
            if not isinstance(op, Map) and _guarded(op):
                parts = [
                    rebuild(
                        op,
                        **{
                            f.name: self.body(
                                getattr(op, f.name),
                                scope.inside(op, f.name, ranges),
                                open_ or again,
                            )
                            for f in marked(op, "body")
                        },
                    )
                ]
                if isinstance(parts[0], For):
                    parts = list(self.loop(parts[0], ranges, open_))
            waited = len(parts) > 1 and _ends_waiting(parts[-1])
            open_ = _in_flight((op,), open_) and not waited
            result += parts
            ranges = scope.after(op, ranges)
        same = len(result) == len(body) and all(a is b for a, b in zip(result, body, strict=True))
        return body if same else tuple(result)

    def loop(self, loop: For, ranges: Ranges, open_: bool) -> Sequence[Op]:
        """`loop`, cut where that pays."""
        if not self.may_cut(loop):
            return [loop]
        lets: list[Op] = []
        bounds: dict[str, Expr] = {}
        for name in ("start", "stop"):
            bounds[name] = value = getattr(loop, name)
            if not is_pure(value):  # the iterations may write what it reads
                bounds[name] = Var(fresh_name(f"{loop.var.name}_{name}", self.names), value.dtype)
                lets.append(Let(bounds[name], value, loc=loop.loc))  # type: ignore[arg-type]
                ranges = ranges.let(bounds[name], value)  # type: ignore[arg-type]
        plain = rebuild(loop, **bounds)
        sure = SureSpans(plain, ranges, self.facts)
        always: list[Guard] = []
        gone: list[Guard] = []
        free = EVERYWHERE
        leaves = _in_flight(loop.body, False)
        for guard in _guards(plain, ranges):
            span = sure.holds(guard.resolved, True, guard.ranges)
            if span is None:
                continue
            span = sure.trimmed(span)
            if span == EVERYWHERE:
                always.append(guard)
            elif not sure.empty(free & span) and not (leaves and span.lows):
                gone.append(guard)
                free = free & span
        if not gone or sure.reaches(plain.start + plain.step, plain.stop):
            return _loop_of(loop, _unguarded(loop.body, _claims(always)))
        return [*lets, *self.cut(plain, sure, free, always, gone, open_)]

    def may_cut(self, loop: For) -> bool:
        kind = loop.var.dtype
        steps = isinstance(loop.step, Const) and loop.step.value > 0
        if loop.kind not in KINDS or not steps or leaves_early(loop.body):
            return False
        if kind.kind != "int" or kind.bits < 32 or {loop.start.dtype, loop.stop.dtype} != {kind}:
            return False
        if not self.facts.uniform(loop.start, loop.stop):
            return False
        ops = list(walk_ops(loop.body))
        if any(
            isinstance(op, Alloc) and op.buffer.space not in (Space.FRAGMENT, Space.LOCAL)
            for op in ops
        ):
            return False
        if self.asked:
            return len(ops) <= MOST
        around = any(
            isinstance(op, While) or (isinstance(op, For) and op.kind in KINDS) for op in ops
        )
        return not around and len(ops) <= (MOST if any(map(is_matrix, ops)) else FEW)

    def cut(
        self, loop: For, sure: SureSpans, free: Span, always: list[Guard], gone: list[Guard],
        open_: bool,
    ) -> list[Op]:  # fmt: skip
        start, stop, found = loop.start, loop.stop, list[Op]()
        edges = [self.edge(loop, sure, edge, found) for edge in free.edges(loop)]
        low, high = edges
        first = start if low is None else sure.larger(start, low)
        last = stop if high is None else sure.smaller(stop, high)
        some = _unguarded(loop.body, _claims(always))
        parts = [(first, last, _unguarded(loop.body, _claims((*always, *gone))))]
        if low is not None:
            parts.insert(0, (start, sure.smaller(stop, low), some))
        if high is not None:
            parts.append((sure.larger(first, high), stop, some))
        loops = [
            part
            for begin, end, body in parts
            if not sure.reaches(begin, end)
            for part in _loop_of(rebuild(loop, start=begin, stop=end), body)
        ]
        # the last keeps its names: it has all nests, of which other passes have spoken
        loops = [*map(self.renamed, loops[:-1]), *loops[-1:]]
        if open_:
            found.append(WaitGroup(UNIT, 0, loc=loop.loc))
        found += _settled(loops) if _in_flight(loop.body, False) else loops
        self.say(loop, edges, gone)
        return found

    def renamed(self, loop: For) -> For:
        copy = rename_unique(loop, self.names)
        assert isinstance(copy, For)
        for old, new in zip(walk_ops(loop), walk_ops(copy), strict=True):
            if isinstance(old, Map):
                because(self.kernel.name, new, f"as {key_of(old)} of the same loop")
            elif isinstance(old, (Alloc, View)) and isinstance(new, (Alloc, View)):
                why = f"as {old.buffer.name} of the same loop"
                because(self.kernel.name, new.buffer.name, why)
        return copy

    def edge(self, loop: For, sure: SureSpans, edge: Expr | None, found: list[Op]) -> Expr | None:
        """The first iteration from `edge` on, named in front of the loops."""
        if edge is None:
            return None
        step = int(loop.step)
        if step > 1:
            edge = binary("min", loop.stop, binary("max", loop.start, edge))
            edge = loop.start + ceildiv(edge - loop.start, const(step, edge.dtype)) * step
        edge = sure.simple(edge)
        if isinstance(edge, (Const, Var)):
            return edge
        var = Var(fresh_name(f"{loop.var.name}_cut", self.names), loop.var.dtype)
        found.append(Let(var, edge, loc=loop.loc))
        return var

    def say(self, loop: For, edges: list[Expr | None], gone: list[Guard]) -> None:
        k = loop.var.name
        words = [f"from {k} = {edges[0]} on"] if edges[0] is not None else []
        words += [f"before {k} = {edges[1]}"] if edges[1] is not None else []
        conds = " and ".join(dict.fromkeys(str(guard.cond) for guard in gone))
        because(self.kernel.name, loop, f"cut: {', '.join(words)} every element has {conds}")


def _loop_of(loop: For, body: Body) -> list[For]:
    """`loop` with another body, unless that does nothing; a schedule of statements goes with the
    old one."""
    if body is loop.body:
        return [loop]
    new = rebuild(loop, body=body, order=None, stage=None)
    return [] if _idle(new) else [new]


def _settled(loops: list[For]) -> Iterator[Op]:
    """`loops`, which leave products in flight, such that none is where control may come around."""
    for n, loop in enumerate(loops):
        wait = WaitGroup(UNIT, 0, loc=loop.loc)
        if n:
            yield rebuild(loop, body=(*loop.body, wait))
        elif isinstance(loop.start, Const) and isinstance(loop.stop, Const):
            yield from (loop, wait)  # it runs: there is no way around
        else:
            yield If(compare("<", loop.start, loop.stop), (loop, wait), loc=loop.loc)


def _ends_waiting(op: Op) -> bool:
    """Whatever `op` has issued, it has waited for at its end."""
    inner = op.body if isinstance(op, For) else op.then if isinstance(op, If) else ()
    return _waits_for_all(op) or (bool(inner) and _ends_waiting(inner[-1]))


__all__ = ["split_loops"]
