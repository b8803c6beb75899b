"""Guards of elements that are asked once an iteration, where that tells about all of them.

A guard in an elementwise nest is evaluated for every element: of causal attention's blocks of keys
only the last few have any that are not seen, and all of them ask.

    for k in 0 .. n { map (i, j) { S[i, j] = S[i, j] if k * 128 + j <= q * 128 + i else -inf } … }

    let k_cut = q
    for k in 0 .. n {
      if k >= k_cut { hint rare; map (i, j) { S[i, j] = S[i, j] if k * 128 + j <= … else -inf } }
      …
    }

A condition is a sum that must not be negative. The loop variable's term is set aside, terms that
vary inside the loop take their minimum, and the rest is known before the loop: a division gives the
iterations in which the condition holds at every point (`provable_iterations`). The iterations of
all guards of a map are intersected; in them the map runs without these guards, or not at all when
nothing is left to do. A guard that always holds is removed; one that provably never holds stays.
Conditions that are the same for all elements are a branch already.

A text may also ask for what is *not* wanted (`-inf if key >= n else S[i, j]`); then iterations are
looked for in which it holds nowhere. What is written tells which answer is the common one: to leave
an element as it is, rather than to compute it, rather than to write a constant.

Loops stay whole. Two loops, with guards and without, ran at the same speed or up to 3 % slower on
an H200 (causal attention, heads 64 and 128), took the assembler half as long again, and products by
warpgroups had to be waited for in between.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import reduce
from math import isfinite

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import Ranges
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
    compare,
    logical_not,
    transform,
    variables,
    walk,
)
from tilewright.ir.op import (
    Alloc,
    Body,
    For,
    Hint,
    If,
    Kernel,
    Let,
    Map,
    Op,
    Store,
    View,
    bodies,
    expressions,
    marked,
    walk_ops,
)
from tilewright.ir.rewrite import (
    fresh_var,
    map_exprs,
    rebuild,
    rename_unique,
)
from tilewright.passes.canonicalize.provable_iterations import (
    CONNECTIVES,
    EVERYWHERE,
    Span,
    SureSpans,
    surely_written,
)
from tilewright.passes.canonicalize.rules import Facts, kernel_pass
from tilewright.passes.reasons import because, key_of

KINDS = ("serial", "pipelined", "persistent")

Path = tuple[int | str, ...]  # where an op stands: its place in a body, the body's field, …


@kernel_pass
def unswitch_guards(at: Facts) -> Kernel:
    """Maps in loops ask for their guards only in iterations that need them."""
    loops = [op for op in at.ops if isinstance(op, For) and any(map(_guarded, op.body))]
    if not loops or at.target.internal.unswitch_guards is False:
        return at.kernel
    return _Hoister(at).run()


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
    """A condition of the op at `path` in a nest that is to be `want`, or a part of one, where all
    of its parts have to be."""

    path: Path
    cond: Expr
    want: bool
    resolved: Expr  # with names from inside the loop put in
    ranges: Ranges


def _guards(nest: Map, ranges: Ranges, loop: For) -> Iterator[Guard]:
    """The conditions of elements in `nest`; `ranges` hold in front of it."""

    def visit(body: Body, ranges: Ranges, path: Path, points: frozenset[Var]) -> Iterator[Guard]:
        for n, op in enumerate(body):
            here = (*path, n)
            yield from asked(op, ranges, here, points)
            more = frozenset(op.vars) if isinstance(op, Map) else points
            for f in marked(op, "body"):
                inside = scope.inside(op, f.name, ranges)
                yield from visit(getattr(op, f.name), inside, (*here, f.name), more)
            ranges = scope.after(op, ranges)

    def asked(op: Op, ranges: Ranges, path: Path, points: frozenset[Var]) -> Iterator[Guard]:
        for cond, common in _asked(op).items():
            parts = []
            for part, want in _together(cond, common):
                resolved = ranges.resolve(part, loop.var)
                if resolved is not None:
                    parts.append(Guard(path, part, want, resolved, ranges))
            if any(variables(part.resolved) & points for part in parts):
                yield from parts

    return visit((nest,), ranges, (), frozenset())


def _asked(op: Op) -> dict[Expr, bool]:
    """The conditions that `op` asks for, and which answer is the common one."""
    found: dict[Expr, bool] = {}
    if isinstance(op, If):
        found[op.cond] = _fills(op.orelse) or not _fills(op.then)
    for e in expressions(op):
        for node in walk(e):
            if isinstance(node, Select):
                found.setdefault(node.cond, _rank(node.a, op) >= _rank(node.b, op))
    return found


def _fills(body: Body) -> bool:
    """Whether a branch does nothing but write constants."""
    return bool(body) and all(isinstance(op, Store) and isinstance(op.value, Const) for op in body)


def _rank(value: Expr, op: Op) -> int:
    """How common an answer is that makes `op` write `value`."""
    if isinstance(op, Store) and value == Load(op.buffer, op.indices):
        return 4
    if not isinstance(value, Const):
        return 3
    return 2 if value.value == 0 else 1 if isfinite(value.value) else 0


def _together(cond: Expr, want: bool) -> list[tuple[Expr, bool]]:
    """Conditions that are all asked for where `cond` is to be `want`, and what they are to be."""
    match cond:
        case Bin(op, a, b) if op in CONNECTIVES and (CONNECTIVES[op] == "and") is want:
            return _together(a, want) + _together(b, want)
    return [(cond, want)]


Claims = dict[Path, dict[Expr, bool]]  # what conditions are, by where they are asked


def _claims(guards: Iterable[Guard]) -> Claims:
    found: Claims = {}
    for guard in guards:
        found.setdefault(guard.path, {})[guard.cond] = guard.want
    return found


def _unguarded(body: Body, claims: Mapping[Path, Mapping[Expr, bool]], path: Path = ()) -> Body:
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
    return _kept(body, result)


def _kept(body: Body, result: list[Op]) -> Body:
    """`result`, as `body` itself where nothing changed."""
    same = len(result) == len(body) and all(a is b for a, b in zip(result, body, strict=True))
    return body if same else tuple(result)


def _idle(op: Op) -> bool:
    """A nest, loop or branch that does nothing any more."""
    return isinstance(op, (Map, For, If)) and all(
        isinstance(inner, Let) for body in bodies(op) for inner in body
    )


def _holding(e: Expr, held: Mapping[Expr, bool]) -> Expr:
    """`e` where conditions are as `held` says."""

    def rule(node: Expr) -> Expr | None:
        if node.dtype.is_bool and node in held:
            return TRUE if held[node] else FALSE
        match node:
            case Bin(op, a, Const() as b) if op in CONNECTIVES and node.dtype.is_bool:
                return a if bool(b.value) is (CONNECTIVES[op] == "and") else b
            case Bin(op, Const() as a, b) if op in CONNECTIVES and node.dtype.is_bool:
                return b if bool(a.value) is (CONNECTIVES[op] == "and") else a
            case Call("not", (Const(value),)):
                return FALSE if value else TRUE
            case Select(Const(value), a, b):
                return a if value else b
        return None

    return transform(e, rule)


# ── loops ────────────────────────────────────────────────────────────────────────────────────


@dataclass
class _Loop:
    """The loop around a nest, and what is found in front of it."""

    sure: SureSpans
    lets: list[Op] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


class _Hoister:
    def __init__(self, facts: Facts) -> None:
        self.kernel, self.facts, self.names = facts.kernel, facts, facts.names

    def run(self) -> Kernel:
        ranges = scope.entry(self.kernel, self.facts.dims)
        return rebuild(self.kernel, body=self.body(self.kernel.body, ranges, None, frozenset()))

    def body(self, body: Body, ranges: Ranges, loop: _Loop | None, written: frozenset[str]) -> Body:
        """`loop`: the innermost one around; `written`: scalars that have values in front."""
        result: list[Op] = []
        for op in body:
            if not _guarded(op):
                result.append(op)
            elif isinstance(op, Map):
                result += self.nest(op, ranges, loop) if loop is not None else (op,)
            else:
                result += self.inside(op, ranges, loop, written)
            ranges, written = scope.after(op, ranges), written | surely_written((op,))
        return _kept(body, result)

    def inside(
        self, op: Op, ranges: Ranges, loop: _Loop | None, written: frozenset[str]
    ) -> Iterator[Op]:
        """`op` with nests in its bodies rewritten."""
        mine = loop
        if isinstance(op, For) and op.kind in KINDS:
            mine = _Loop(SureSpans(op, ranges, self.facts, written)) if self.counts(op) else None
        new = rebuild(
            op,
            **{
                f.name: self.body(
                    getattr(op, f.name), scope.inside(op, f.name, ranges), mine, written
                )
                for f in marked(op, "body")
            },
        )
        if mine is not None and mine is not loop:
            yield from mine.lets
            if mine.said:
                because(self.kernel.name, op, "; ".join(mine.said))
        if isinstance(new, For) and new is not op:  # a schedule of statements was of the old ones
            new = rebuild(new, order=None, stage=None)
        if new is op or not _idle(new):
            yield new

    def counts(self, loop: For) -> bool:
        """Whether iterations of `loop` are counted upwards, the same in all threads."""
        kind = loop.var.dtype
        return (
            isinstance(loop.step, Const)
            and loop.step.value > 0
            and kind.kind == "int"
            and kind.bits >= 32
            and {loop.start.dtype, loop.stop.dtype} == {kind}
            and self.facts.uniform(loop.start, loop.stop)
        )

    def nest(self, nest: Map, ranges: Ranges, loop: _Loop) -> Body:
        """`nest`, with the guards that some iterations need in these alone."""
        always: list[Guard] = []
        gone: list[Guard] = []
        free, sure = EVERYWHERE, loop.sure
        for guard in _guards(nest, ranges, sure.loop):
            span = sure.holds(guard.resolved, guard.want, guard.ranges)
            if span is None:
                continue
            span = sure.trimmed(span)
            if span == EVERYWHERE:
                always.append(guard)
            elif not sure.empty(free & span):
                gone.append(guard)
                free = free & span
        some = _unguarded((nest,), _claims(always))
        if not gone:
            return some
        bare = _unguarded((nest,), _claims((*always, *gone)))
        others = self.outside(free, loop)
        conds = " and ".join(dict.fromkeys(str(guard.cond) for guard in gone))
        loop.said.append(f"{key_of(nest)} asks for {conds} only where {others}")
        # the one with guards keeps its names: other passes have spoken of it
        rare = Hint("rare", loc=nest.loc)
        return (If(others, (rare, *some), tuple(map(self.renamed, bare)), loc=nest.loc),)

    def outside(self, span: Span, loop: _Loop) -> Expr:
        """Whether an iteration may be outside of `span`."""
        k = loop.sure.loop.var
        conds = [compare("<", k, self.let(low, loop)) for low in span.lows]
        conds += [compare(">=", k, self.let(high, loop)) for high in span.highs]
        conds += [logical_not(self.let(given, loop)) for given in span.given]
        return reduce(lambda a, b: binary("or", a, b), conds)

    def let(self, value: Expr, loop: _Loop) -> Expr:
        """`value`, named in front of `loop`."""
        value = loop.sure.simple(value)
        if isinstance(value, (Const, Var)):
            return value
        for op in loop.lets:
            if isinstance(op, Let) and op.value is value:
                return op.var
        var = fresh_var(f"{loop.sure.loop.var.name}_cut", self.names, value.dtype)
        loop.lets.append(Let(var, value, loc=loop.sure.loop.loc))
        return var

    def renamed(self, nest: Op) -> Op:
        copy = rename_unique(nest, self.names)
        for old, new in zip(walk_ops(nest), walk_ops(copy), strict=True):
            if isinstance(old, Map):
                because(self.kernel.name, new, f"as {key_of(old)} of the same loop")
            elif isinstance(old, (Alloc, View)) and isinstance(new, (Alloc, View)):
                why = f"as {old.buffer.name} of the same loop"
                because(self.kernel.name, new.buffer.name, why)
        return copy
