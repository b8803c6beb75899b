"""Guards of elements that are asked once an iteration, where that tells about all of them.

A guard in an elementwise loop is evaluated for every element: of causal attention's blocks of keys
only the last few have any that are not seen, and all of them ask.

    for k in 0 .. n { map (i, j) { S[i, j] = S[i, j] if k * 128 + j <= q * 128 + i else -inf } … }

    let k_cut = q
    for k in 0 .. n {
      if k >= k_cut { hint rare; map (i, j) { S[i, j] = S[i, j] if k * 128 + j <= … else -inf } }
      …
    }

A condition is a sum that must not be negative. The loop variable's term is set aside, terms that
vary inside the loop take their minimum, and the rest is known before the loop: a division gives the
iterations in which the condition holds at every point; they are sure, not sharp: there may be
others. The iterations of all guards of a map are intersected; in them the map runs without these
guards, or not at all when nothing is left to do. A guard that always holds is removed; one that
provably never holds stays. Conditions that are the same for all elements are a branch already.

A text may also ask for what is *not* wanted (`-inf if key >= n else S[i, j]`); then iterations are
looked for in which it holds nowhere. What is written tells which answer is the common one: to leave
an element as it is, rather than to compute it, rather than to write a constant.

Loops stay whole. Two loops, with guards and without, ran at the same speed or up to 3 % slower on
an H200 (causal attention, heads 64 and 128), took the assembler half as long again, and products by
warpgroups had to be waited for in between.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property, reduce
from math import isfinite
from typing import TypeAlias

from tilewright.ir.analysis.bounds import NEGATED
from tilewright.ir.analysis.intervals import limits
from tilewright.ir.analysis.linear import Linear, TooLarge, build_sum, factors, product
from tilewright.passes.core import *
from tilewright.passes.reasons import key_of

KINDS = ("serial", "pipelined", "persistent")
WIDEST = 1 << 62  # sums beyond this are not divided
CONNECTIVES = {"and": "and", "or": "or", "&": "and", "|": "or"}  # of conditions


@kernel_pass
def unswitch_guards(at: Facts) -> Kernel:
    """Test guards of maps once an iteration where that decides for all elements: a mask costs only
    the iterations that need it."""
    loops = [op for op in at.ops if isinstance(op, For) and _guarded(op)]
    if not loops or at.target.internal.unswitch_guards is False:
        return at.kernel
    ranges = scope.entry(at.kernel, at.dims)
    return rebuild(at.kernel, body=_body(at, at.kernel.body, ranges, None, frozenset()))


def _guarded(op: Op) -> bool:
    """Whether maps in `op` have conditions; of those that only copy they cost nothing."""
    return any(
        isinstance(inner, If)
        or any(isinstance(node, Select) for e in expressions(inner) for node in walk(e))
        for map_ in walk_ops(op, Map)
        if map_.atom is None
        for inner in walk_ops(map_.body)
    )


# ── guards ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Guard:
    """A condition of an op in a map that is to be `want`, or a part of one, where all of its parts
    have to be."""

    op: Op
    cond: Expr
    want: bool
    resolved: Expr  # with names from inside the loop put in
    ranges: Ranges


def _guards(map_: Map, ranges: Ranges, loop: For) -> Iterator[Guard]:
    """The conditions of elements in `map_`; `ranges` hold in front of it."""
    points = {var for inner in walk_ops(map_, Map) for var in inner.vars}
    for op, here in scope.walk_body((map_,), ranges):
        for cond, common in _asked(op).items():
            parts = []
            for part, want in together(cond, common):
                resolved = _resolved(here, part, want, loop.var)
                if resolved is not None:
                    parts.append(Guard(op, part, want, resolved, here))
            if any(variables(e) & points for part in parts for e in (part.cond, part.resolved)):
                yield from parts


def _resolved(ranges: Ranges, cond: Expr, want: bool, var: Var) -> Expr | None:
    """`cond` with names from inside the loop put in, or of two that are each enough the one of
    which that is possible: what the loop loads has no name in front of it."""
    found = ranges.resolve(cond, var)
    match cond:
        case Bin(op, a, b) if found is None and op in CONNECTIVES:
            if (CONNECTIVES[op] == "or") is want:
                one = _resolved(ranges, a, want, var)
                return _resolved(ranges, b, want, var) if one is None else one
    return found


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


def together(cond: Expr, want: bool) -> list[tuple[Expr, bool]]:
    """Conditions that are all asked for where `cond` is to be `want`, and what they are to be."""
    match cond:
        case Bin(op, a, b) if op in CONNECTIVES and (CONNECTIVES[op] == "and") is want:
            return together(a, want) + together(b, want)
    return [(cond, want)]


def _unguarded(map_: Map, guards: Iterable[Guard]) -> Body:
    """`map_` where `guards` are as wanted: without them, and without what then does nothing."""
    claims: dict[int, dict[Expr, bool]] = {}  # by id of an op
    for guard in guards:
        claims.setdefault(id(guard.op), {})[guard.cond] = guard.want

    def go(body: Body) -> Body:
        result: list[Op] = []
        for old in body:
            op, held = map_bodies(old, go), claims.get(id(old), {})
            op = map_exprs(op, lambda e, held=held: _holding(e, held))  # type: ignore[misc]
            if isinstance(op, If) and isinstance(op.cond, Const):
                result += op.then if op.cond.value else op.orelse
            elif isinstance(op, Store) and op.value == Load(op.buffer, op.indices):
                continue
            elif not _idle(op):
                result.append(op)
        return tuple(result)

    return go((map_,)) if claims else (map_,)


def _idle(op: Op) -> bool:
    """A map, loop or branch that does nothing any more."""
    return isinstance(op, (Map, For, If)) and all(
        isinstance(inner, Let) for body in bodies(op) for inner in body
    )


def _holding(e: Expr, held: Mapping[Expr, bool]) -> Expr:
    """`e` where conditions are as `held` says."""

    def rule(node: Expr) -> Expr | None:
        if node.dtype.is_bool and node in held:
            return TRUE if held[node] else FALSE
        match node:
            case Bin(op, a, b) if op in CONNECTIVES and node.dtype.is_bool:
                for one, other in ((a, b), (b, a)):
                    if isinstance(one, Const):
                        return other if bool(one.value) is (CONNECTIVES[op] == "and") else one
            case Select(Const(value), a, b):
                return a if value else b
        return None

    return transform(e, rule) if held else e


# ── loops ────────────────────────────────────────────────────────────────────────────────────


def _body(
    at: Facts, body: Body, ranges: Ranges, loop: _Loop | None, written: frozenset[str]
) -> Body:
    """`loop`: the innermost one around; `written`: scalars that have values in front."""
    result: list[Op] = []
    for op in body:
        with errors.at(op.loc):
            if not _guarded(op) or (isinstance(op, Map) and loop is None):
                result.append(op)
            elif isinstance(op, Map) and loop is not None:
                result += _unswitch(at, op, ranges, loop)
            else:
                result += _inside(at, op, ranges, loop, written)
        ranges, written = scope.after(op, ranges), written | surely_written((op,))
    return tuple(result)


def surely_written(body: Body) -> set[str]:
    """Scalars that have values after `body`, whichever way control takes."""
    found: set[str] = set()
    for op in body:
        if isinstance(op, If):
            found |= surely_written(op.then) & surely_written(op.orelse)
        elif not bodies(op):
            scalars = [b for b in written_buffers(op) if b.is_local and not b.shape]
            found |= {b.name for b in scalars}
    return found


def _inside(
    at: Facts, op: Op, ranges: Ranges, loop: _Loop | None, written: frozenset[str]
) -> Iterator[Op]:
    """`op` with maps in its bodies rewritten."""
    mine = loop
    if isinstance(op, For) and op.kind in KINDS:
        mine = _Loop(op, ranges, at, written) if _counts(at, op) else None
    new = scope.map_inside(op, ranges, lambda body, here: _body(at, body, here, mine, written))
    if mine is not None and mine is not loop:
        yield from mine.lets
        if mine.said:
            because(at.kernel.name, op, "; ".join(mine.said))
    if isinstance(new, For) and new != op:  # a schedule of statements was of the old ones
        new = rebuild(new, order=None, stage=None)
    if not _idle(new):
        yield new


def _counts(at: Facts, loop: For) -> bool:
    """Whether iterations of `loop` are counted upwards, the same in all threads."""
    kind = loop.var.dtype
    return (
        isinstance(loop.step, Const)
        and loop.step.value > 0
        and kind.kind == "int"
        and kind.bits >= 32
        and {loop.start.dtype, loop.stop.dtype} == {kind}
        and at.uniform(loop.start, loop.stop)
    )


def _unswitch(at: Facts, map_: Map, ranges: Ranges, loop: _Loop) -> Body:
    """`map_`, with the guards that some iterations need in these alone."""
    ids = [id(op) for op in walk_ops(map_)]
    if len({*ids}) != len(ids):  # guards are found by their ops
        return (map_,)
    always: list[Guard] = []
    gone: list[Guard] = []
    free: Span = ()
    for guard in _guards(map_, ranges, loop.loop):
        span = loop.holds(guard.resolved, guard.want, guard.ranges)
        if span is None:
            continue
        span = tuple(cond for cond in span if not loop.proves(cond))
        both = tuple(dict.fromkeys(free + span))
        if not span:
            always.append(guard)
        elif not loop.empty(both):
            gone.append(guard)
            free = both
    some = _unguarded(map_, always)
    if not gone:
        return some
    others = loop.outside(loop.least(free))
    conds = " and ".join(dict.fromkeys(str(guard.cond) for guard in gone))
    loop.said.append(f"{key_of(map_)} tests {conds} only where {others}")
    # the one with guards keeps its names: other passes have spoken of it
    rare = Hint("rare")
    bare = tuple(_renamed(at, op) for op in _unguarded(map_, (*always, *gone)))
    return (If(others, (rare, *some), bare),)


def _renamed(at: Facts, map_: Op) -> Op:
    copy = rename_unique(map_)
    for old, new in zip(walk_ops(map_), walk_ops(copy), strict=True):
        if isinstance(old, Map):
            because(at.kernel.name, new, f"as {key_of(old)} of the same loop")
        elif isinstance(old, (Alloc, View)) and isinstance(new, (Alloc, View)):
            why = f"as {old.buffer.name} of the same loop"
            because(at.kernel.name, new.buffer.name, why)
    return copy


# ── for which iterations a condition holds ───────────────────────────────────────────────────

# Conditions that together are enough: `k >= low` or `k < high` of the loop's variable, and others
# that are the same in all iterations.
Span: TypeAlias = tuple[Expr, ...]


@dataclass
class _Loop:
    """A loop around maps, and what is found in front of it. `ranges` hold there, and the scalars
    `written` have values."""

    loop: For
    ranges: Ranges
    facts: Facts
    written: Collection[str] = ()
    lets: list[Let] = field(default_factory=list)
    said: list[str] = field(default_factory=list)

    @cached_property
    def inner(self) -> set[Var]:
        return {*bound_within(self.loop)}

    @cached_property
    def changed(self) -> set[str]:
        return written_in(self.loop.body)

    def fixed(self, e: Expr) -> bool:
        """`e` is the same in all iterations, elements and threads, and can be had in advance."""
        for node in walk(e):
            match node:
                case Var() if node in self.inner:
                    return False
                case Load() if not self.lasting(node):
                    return False
                case Bin("//" | "%", _, d) if d.dtype.is_int:
                    # one that would not have run must not divide by zero
                    span = self.ranges.value(d, False)
                    if span.lo <= 0 <= span.hi:
                        return False
        return self.facts.uniform(e)

    def lasting(self, load: Load) -> bool:
        """What is loaded is the same throughout the loop, and may be loaded in vain."""
        buffer = load.buffer
        if buffer.name in self.facts.viewed:
            return False
        if buffer.is_global:
            return buffer.name not in self.facts.written
        # one that is not written yet may stand in a branch, or a loop, that does not run
        return buffer.name in self.written and buffer.name not in self.changed

    def holds(self, cond: Expr, want: bool, ranges: Ranges) -> Span | None:
        """Enough for `cond` to be `want` at every point; None: nobody knows. `ranges` hold where it
        is evaluated."""
        found: Span | None = None
        match cond:
            case Call("not", (inner,)):
                return self.holds(inner, not want, ranges)
            case Bin("and" | "or" | "&" | "|", a, b):
                one, other = self.holds(a, want, ranges), self.holds(b, want, ranges)
                if (CONNECTIVES[cond.op] == "or") is want:
                    found = self.either(one, other)
                elif one is not None and other is not None:
                    found = one + other
            case Cmp("<" | "<=" | ">" | ">=", a, b) if a.dtype.is_int:
                op = cond.op if want else NEGATED[cond.op]
                sides = (a, b) if op in ("<", "<=") else (b, a)
                found = self.compared(op in ("<", ">"), *sides, ranges)
        if found is None and self.fixed(cond):
            return (cond if want else logical_not(cond),)
        return found

    def compared(self, strict: bool, a: Expr, b: Expr, ranges: Ranges) -> Span | None:
        """Enough for a ≤ b, or a < b."""
        gap = (ranges.form(b, False) - ranges.form(a, False)).plus(-strict)
        fits = [self.fitting(side, ranges) for side in (a, b)]
        if fits == [(), ()] and ranges.evaluate(gap, False).lo >= 0:
            return ()
        one, other = fits
        found = self.solved(gap, ranges)
        return None if found is None or one is None or other is None else found + one + other

    def either(self, a: Span | None, b: Span | None) -> Span | None:
        """Enough for one of two: of both where they are open to the same side, else of one."""
        match a, b:
            case (None, _) | (_, None):
                return a if b is None else b
            case ((Cmp(op, k, x),), (Cmp(same, j, y),)) if op == same and k is j is self.loop.var:
                return (compare(op, k, binary("max" if op == "<" else "min", x, y)),)
            case _:
                assert a is not None and b is not None
                return min(a, b, key=len)

    def fitting(self, side: Expr, ranges: Ranges) -> Span | None:
        """Enough for `side` not to overflow: a proof, or a question at run time."""
        if ranges.exact(side, False):
            return ()
        form, full, k = ranges.form(side, False), limits(side.dtype), self.loop.var
        known = {atom: c for atom, c in form.terms.items() if self.fixed(atom)}
        rest = {atom: c for atom, c in form.terms.items() if atom not in known}
        slope = rest.pop(k, 0)
        if max(side.dtype.bits, k.dtype.bits) > 32 or any(k in variables(atom) for atom in rest):
            return None
        value, span = self.wide(Linear(known)), ranges.evaluate(Linear(rest, form.const), False)
        least, most = full.lo - span.lo, full.hi - span.hi
        if value is None or abs(slope) > full.hi or not -WIDEST <= least <= most <= WIDEST:
            return None
        fits: Expr = TRUE
        ends = (cast(self.loop.start, INT64), cast(self.loop.stop, INT64) - 1) if slope else (0,)
        for end in ends:
            total = value + end * slope if slope else value
            above = total >= const(least, INT64)
            below = total <= const(most, INT64)
            fits = binary("and", fits, binary("and", above, below))
        return (fits,)

    def solved(self, form: Linear, ranges: Ranges) -> Span | None:
        """Enough for `form` ≥ 0 at every point."""
        undivided = self.undivided(form, ranges)
        if undivided is None:
            return None
        slope, least, rest = 0, undivided.const, dict[Expr, int]()
        for atom, c in undivided.terms.items():
            if atom is self.loop.var:
                slope = c
            elif self.fixed(atom):
                rest[atom] = c
            elif self.loop.var in variables(atom):
                return None
            else:
                least += ranges.evaluate(Linear({atom: c}), False).lo
        known = Linear(rest, least)
        if slope == 0:
            if not rest:
                return () if least >= 0 else None
            value = self.wide(known)
            return None if value is None else (value >= 0,)
        if slope > 0:  # k ≥ -known / slope
            op, edge = ">=", self.quotient(known.scaled(-1).plus(slope - 1), slope)
        else:  # k < known / -slope + 1
            op, edge = "<", self.quotient(known.plus(-slope), -slope)
        return None if edge is None else (compare(op, self.loop.var, edge),)

    def undivided(self, form: Linear, ranges: Ranges) -> Linear | None:
        """A sum that is ≥ 0 only where `form` is, without quotients that vary in the loop."""
        for _ in range(4):
            atom = next((a for a in form.terms if _is_quotient(a) and not self.fixed(a)), None)
            if atom is None:
                return form
            assert isinstance(atom, Bin) and isinstance(atom.b, Const)
            if not ranges.exact(atom.a, False):
                return None
            # x // c lies in (x - c + 1) / c … x / c, and c · form ≥ 1 - c says form ≥ 0
            c, times = int(atom.b.value), form.terms[atom]
            others = (form - Linear({atom: times})).scaled(c)
            form = others + ranges.form(atom.a, False).scaled(times)
            form = form.plus(c - 1 - max(times, 0) * (c - 1))
        return None

    def quotient(self, form: Linear, by: int) -> Expr | None:
        """⌊form / by⌋, `form` of what is fixed, as the loop counts; None where it may not fit."""
        kind = self.loop.var.dtype
        span = self.ranges.evaluate(form, False)
        parts = [factor for atom in form.terms for factor in factors(atom)]
        narrow = kind.min_value <= span.lo and span.hi <= kind.max_value
        if narrow and by <= kind.max_value and all(part.dtype == kind for part in parts):
            try:
                return self.simple(build_sum(form, kind) // by)
            except TooLarge:
                return None
        value = self.wide(form)
        if value is None or by > WIDEST:
            return None
        start, stop = (cast(e, INT64) for e in (self.loop.start, self.loop.stop))
        return cast(binary("min", stop, binary("max", start, value // by)), kind)

    def wide(self, form: Linear) -> Expr | None:
        """`form` of what is fixed in 64 bits; None where even these may not hold it."""
        span = self.ranges.evaluate(form, False)
        if max(-span.lo, span.hi) > WIDEST:
            return None
        wide = {product(cast(x, INT64) for x in factors(atom)): c for atom, c in form.terms.items()}
        try:
            return build_sum(Linear(wide, form.const), INT64)
        except TooLarge:
            return None

    # ── what is known of conditions in advance ───────────────────────────────────────────────

    def bound(self, cond: Expr) -> tuple[str, Expr]:
        """`>=` or `<`, and of what, where `cond` says that of the loop's variable."""
        if isinstance(cond, Cmp) and cond.a is self.loop.var:
            return cond.op, cond.b
        return "", cond

    def proves(self, cond: Expr) -> bool:
        """All iterations are so."""
        op, value = self.bound(cond)
        if op:
            lower = op == ">="
            cond = value <= self.loop.start if lower else value >= self.loop.stop
        return self.ranges.prove(cond, False) is True

    def empty(self, span: Span) -> bool:
        """Surely no iteration is in `span`."""
        ends = {">=": [self.loop.start], "<": [self.loop.stop], "": list[Expr]()}
        for op, value in map(self.bound, span):
            ends[op].append(value)
        return any(self.ranges.prove(cond, False) is False for cond in ends[""]) or any(
            self.reaches(low, high) for low in ends[">="] for high in ends["<"]
        )

    def least(self, span: Span) -> Span:
        """`span` without upper bounds that others are surely below."""
        for cond in span:
            op, value = self.bound(cond)
            others = tuple(other for other in span if other is not cond)
            ends = [end for same, end in map(self.bound, others) if op == same == "<"]
            if any(self.reaches(value, end) for end in ends):
                span = others
        return span

    def reaches(self, a: Expr, b: Expr) -> bool:
        """a ≥ b follows from intervals: a proof from all facts takes too long to be asked often."""
        if not (self.ranges.exact(a, False) and self.ranges.exact(b, False)):
            return False
        gap = self.ranges.form(a, False) - self.ranges.form(b, False)
        return self.ranges.evaluate(gap, False).lo >= 0

    def outside(self, span: Span) -> Expr:
        """Whether an iteration may be outside of `span`."""
        conds: list[Expr] = []
        for op, value in sorted(map(self.bound, span), key=lambda each: each[0], reverse=True):
            value = self.let(value)
            conds.append(compare(NEGATED[op], self.loop.var, value) if op else logical_not(value))
        return reduce(lambda a, b: binary("or", a, b), conds)

    def let(self, value: Expr) -> Expr:
        """`value`, named in front of the loop."""
        value = self.simple(value)
        if isinstance(value, (Const, Var)):
            return value
        for op in self.lets:
            if op.value is value:
                return op.var
        var = fresh_var(f"{self.loop.var.name}_cut", dtype=value.dtype)
        self.lets.append(Let(var, value))
        return var

    def simple(self, e: Expr) -> Expr:
        return simplify(e, self.ranges, index=False)


def _is_quotient(atom: Expr) -> bool:
    return (
        isinstance(atom, Bin)
        and atom.op == "//"
        and isinstance(atom.b, Const)
        and atom.dtype.is_int
        and atom.b.value > 0
    )
