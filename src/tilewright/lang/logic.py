"""Open loops and branches, and Python's operators and functions in a kernel's text: its own for
known values, expressions that mean the same for run-time values."""

from __future__ import annotations

import builtins
import functools
import inspect
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Set
from dataclasses import dataclass, field
from typing import Any

from tilewright.lang import math
from tilewright.lang.builder import word_of
from tilewright.lang.core import *
from tilewright.lang.loops import Loop
from tilewright.lang.operators import combine
from tilewright.lang.scalar import Number, as_number, concrete, is_number, is_runtime
from tilewright.lang.state import Watch, refuse_change
from tilewright.lang.values import is_tile, is_value, lift
from tilewright.lang.where import BEHALF, users_frame
from tilewright.support import limits


@dataclass(eq=False)
class Frame:
    """An open loop or branch of this function; all but unrolled loops become ops."""

    kind: str
    open: bool = True
    loc: Loc | None = None
    watch: Watch | None = None  # of run-time ones


@dataclass
class Binding:
    value: Any
    frame: Frame | None
    loc: Loc | None
    loop: bool = False  # by the loop itself
    kernel: Kernel | None = None


@dataclass
class Scopes:
    """The loops and branches that are open, and what names are bound to."""

    builder: Builder
    frames: list[Frame] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)

    def push(self, kind: str) -> Frame:
        frame = Frame(kind, loc=locate())
        if kind != "unrolled":
            frame.watch = Watch(users_frame())
        self.frames.append(frame)
        return frame

    def pop(self, frame: Frame) -> None:
        while self.frames:
            top = self.frames.pop()
            top.open = False
            if top is frame:
                self.unchanged(frame.watch, KINDS.get(frame.kind, "loop"), frame.loc)
                return

    def unchanged(self, watch: Watch | None, kind: str, loc: Loc | None) -> None:
        """Compile-time state is as it was before the run-time scope."""
        found = watch.changed(self._bound) if watch is not None else None
        if found is not None:
            refuse_change(*found, kind, loc)

    def _bound(self, name: str) -> Any:
        binding = self.bindings.get(name)
        return binding.value if binding is not None else None

    def top(self) -> Frame | None:
        """The innermost run-time scope."""
        return next((f for f in reversed(self.frames) if f.kind != "unrolled"), None)


KINDS = {"if": "branch", "map": "T.Parallel loop"}


class Branch:
    """One `if`: chosen now when its condition is known, an op otherwise."""

    def __init__(self, env: Scopes, cond: Any) -> None:
        self.env, self.cond = env, condition(cond)
        self.frame: Frame | None = None
        self.bodies: list[Body] = []
        if isinstance(self.cond, Expr):
            self.cond = env.builder.settle(self.cond)  # before the branch writes anything
            self.loc = locate()

    def then(self) -> bool:
        return self._open(self.cond)

    def orelse(self) -> bool:
        return self._open(negated(self.cond))

    def _open(self, guard: Any) -> bool:
        if isinstance(guard, Expr):
            self.frame = self.env.push("if")
            self.env.builder.open().guard = guard
        return isinstance(guard, Expr) or bool(guard)

    def close(self) -> None:
        if self.frame is not None:
            self.env.pop(self.frame)
            self.frame = None
            self.bodies.append(self.env.builder.close())

    def end(self) -> None:
        self.close()
        if self.bodies:
            self.env.builder.emit(If(self.cond, *self.bodies, loc=self.loc))


def condition(cond: Any) -> Any:
    """A bool expression, or the plain value when it is known."""
    cond = concrete(cond)
    if isinstance(cond, Tile) or is_value(cond):
        return bool(cond)
    if is_runtime(cond):
        expr = truth(wrap(cond))
        return expr.value if isinstance(expr, Const) else expr
    return cond


def negated(test: Any) -> Any:
    return logical_not(test) if isinstance(test, Expr) else not test


# ── operators ────────────────────────────────────────────────────────────────────────────────────


# What Python's containers compare and hash inside these, they compare and hash for the user.
COMPARISONS: dict[str, Callable[[Any, Any], Any]] = {
    op: eval(compile(f"lambda a, b: a {op} b", BEHALF, "eval"))
    for op in ("==", "!=", "<", "<=", ">", ">=", "in", "not in")
}


class Logic(Scopes):
    """Rewritten operators."""

    def lazily(self, thunk: Callable[[], Any], what: str) -> Any:
        before = len(self.builder.trail)
        watch = Watch(users_frame())
        self.builder.lazy += 1
        try:
            value = thunk()
        finally:
            self.builder.lazy -= 1
        if len(self.builder.trail) != before:
            raise CompileError(
                f"{what} must not do anything but compute a value",
                fix="compute it on a line of its own first",
            )
        self.unchanged(watch, "expression", locate())
        return value

    def if_expression(self, cond: Any, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
        value = condition(cond)
        if not isinstance(value, Expr):
            return a() if value else b()
        what = "a side of a run-time `a if c else b`"
        sides = self.lazily(a, what), self.lazily(b, what)
        if any(map(is_tile, sides)):
            return lift(select, value, *sides, what="`a if c else b`")
        return as_number(select(value, *sides))

    def boolean(self, op: str, *thunks: Callable[[], Any]) -> Any:
        """`and` / `or` as a condition: only the truth of a side counts."""

        def tested(thunk: Callable[[], Any]) -> Callable[[], Any]:
            return lambda: test if isinstance(test := condition(thunk()), Expr) else bool(test)

        return self.choice(op, *map(tested, thunks))

    def choice(self, op: str, *thunks: Callable[[], Any]) -> Any:
        """`a and b`, `a or b` as a value: the side that decides, short-circuiting where one is
        known."""
        known: Any = None
        for at, thunk in enumerate(thunks):
            known = thunk()
            test = condition(known)
            if isinstance(test, Expr):
                what = f"a later side of a run-time `{op}`"
                sides = [known, *(self.lazily(t, what) for t in thunks[at + 1 :])]
                return as_number(_decided(op, sides))
            if bool(test) == (op == "or"):
                break
        return known

    def now(self, value: Any) -> Any:
        """The value of a variable before the other side of an operator is evaluated."""
        return as_number(value.as_expr()) if isinstance(value, Variable) else value

    def negate(self, value: Any) -> Any:
        return negated(condition(value))

    def compare(self, ops: tuple[str, ...], *thunks: Callable[[], Any]) -> Any:
        """A chain of comparisons, each operand evaluated once and only where it is needed."""
        left = self.now(thunks[0]())
        result: Any = True
        for op, thunk in zip(ops, thunks[1:], strict=True):
            if isinstance(result, Expr):
                right = self.lazily(thunk, "a later side of a run-time comparison")
            else:
                right = thunk()
            link = self._compare(op, left, right)
            if len(ops) == 1 and not isinstance(link, Expr):
                return link
            result = _joined("and", result, condition(link))
            if not isinstance(result, Expr) and not result:
                break
            left = right
        return result

    def _compare(self, op: str, a: Any, b: Any) -> Any:
        if op in ("is", "is not"):
            if any(is_runtime(x) and is_number(y) for x, y in ((a, b), (b, a))):
                means = "==" if op == "is" else "!="
                raise CompileError(
                    f"`{op}` asks for the same object, which a run-time value never is",
                    fix=f"compare values with {means}",
                    code="python",
                    repair=swap(op, means),
                )
            return (a is b) == (op == "is")
        if op in ("in", "not in"):
            return self._contains(op, a, b)
        if is_tile(a) or is_tile(b):
            return combine(op, a, b)
        runtime = is_runtime(a) or is_runtime(b)
        for tile, other in ((a, b), (b, a)):
            if isinstance(tile, Tile) and (isinstance(other, Tile) or is_number(other)):
                raise CompileError(
                    f"{tile.name} is a whole tile: comparisons work on its elements",
                    fix=f"compare {tile.name}[i] in a T.Parallel loop; whether two names stand for "
                    "one tile is `is`",
                    code="whole-tile",
                )
        if runtime and op in ("==", "!=") and not (is_number(a) and is_number(b)):
            # a run-time value beside None, a string, a tile
            return op == "!="
        if runtime or isinstance(a, Expr) or isinstance(b, Expr):
            return compare(op, _number(a), _number(b))
        if type(a) is type(b) and type(a) in (tuple, list) and (_has_runtime(a) or _has_runtime(b)):
            return self._compare_items(op, a, b)
        return COMPARISONS[op](a, b)

    def _compare_items(self, op: str, a: Any, b: Any) -> Any:
        """Sequences: by the first items that differ, then by length."""
        if op in ("==", "!="):
            found: Any = len(a) == len(b)
            for x, y in zip(a, b, strict=False):
                found = _joined("and", found, condition(self._compare("==", x, y)))
            return found if op == "==" else negated(found)
        result: Any = COMPARISONS[op](len(a), len(b))
        for x, y in reversed(list(zip(a, b, strict=False))):
            same = condition(self._compare("==", x, y))
            if not isinstance(same, Expr) and same:
                continue
            less = condition(self._compare(op[0], x, y))
            result = _joined("or", less, _joined("and", same, result))
        return result

    def _contains(self, op: str, a: Any, b: Any) -> Any:
        runtime = is_runtime(a) or _has_runtime(a)
        if isinstance(b, range) and is_runtime(a):
            return self._in_range(op, a, b)
        items = _items(b)
        if items is None or not (runtime or _has_runtime(items)):
            return COMPARISONS[op](a, b)
        found: Any = False
        for item in items:
            same = condition(a is item or self._compare("==", a, item))
            found = _joined("or", found, same) if isinstance(same, Expr) or not same else True
            if found is True:
                break
        return found if op == "in" else negated(found)

    def _in_range(self, op: str, a: Any, span: range) -> Any:
        if not span:
            return op == "not in"
        x = wrap(a)
        low, high = min(span[0], span[-1]), max(span[0], span[-1])
        found = binary("and", compare(">=", x, low), compare("<=", x, high))
        if abs(span.step) != 1 or not x.dtype.is_int:
            found = binary("and", found, compare("==", (x - low) % abs(span.step), 0))
        return found if op == "in" else negated(found)


def _decided(op: str, sides: list[Any]) -> Any:
    """`and` or `or` of values, the first of which is not known."""
    if all(isinstance(x, bool) or (is_runtime(x) and wrap(x).dtype.is_bool) for x in sides):
        return functools.reduce(functools.partial(_joined, op), map(condition, sides))
    first, *rest = sides
    test = condition(first)
    if not rest or (not isinstance(test, Expr) and bool(test) == (op == "or")):
        return first
    other = _decided(op, rest)
    if not isinstance(test, Expr):
        return other
    return select(test, first, other) if op == "or" else select(test, other, first)


def _joined(op: str, a: Any, b: Any) -> Any:
    """`a and b` or `a or b` of tests, each known or not."""
    for known, other in ((a, b), (b, a)):
        if not isinstance(known, Expr) and bool(known) == (op == "and"):
            return other
    return binary(op, a, b) if isinstance(a, Expr) else a


def _has_runtime(value: Any, depth: int = 8) -> bool:
    """Whether a Python sequence holds a run-time value, at any depth."""
    if is_runtime(value):
        return True
    if depth and type(value) in (tuple, list):
        return any(_has_runtime(each, depth - 1) for each in value)
    return False


def _items(container: Any) -> list[Any] | None:
    """The items that `in` compares with, where they are plain."""
    if isinstance(container, (tuple, list, Set, Mapping)):
        return list(container)
    if hasattr(container, "tolist") and hasattr(container, "ravel"):
        flat = container.ravel().tolist()
        return flat if isinstance(flat, list) else None
    if type(container).__name__ in ("deque", "dict_values", "array"):
        return list(container)
    return None


def _number(value: Any) -> Any:
    return wrap(value) if is_runtime(value) else value


# ── Python's functions ───────────────────────────────────────────────────────────────────────────


class PythonWords(Scopes):
    """Rewritten calls of Python's own functions."""

    def items(self, iterable: Any) -> Any:
        """The iterable of a comprehension."""
        if isinstance(iterable, (Loop, list, tuple, dict, str)):
            return iterable  # as it is, or there already
        return _counted(iterable)

    def power(self, op: str, a: Any, b: Any) -> Any:
        """`a ** b`, `a << b`, and a list `* b`."""
        if op == "*":
            if isinstance(a, (list, tuple)) and isinstance(b, int):
                _check_items(len(a) * b)
        elif type(a) is int and type(b) is int and b > 64:
            bits = a.bit_length() * b if op == "**" else a.bit_length() + b
            limits.INTEGER_BITS.check(
                bits, "this number is too large", got=f"{bits} bits", fix="use a smaller one"
            )
        return math.OPERATORS[op](a, b)

    def mark(self) -> int:
        """Before the sides of a choice are evaluated."""
        return len(self.builder.trail)

    def chosen(self, function: Any, cond: Any, mark: int, *args: Any, **kwargs: Any) -> Any:
        """`T.if_then_else(cond, …)`, and calls that may turn out to be one."""
        if inspect.unwrap(function) is math.if_then_else and is_runtime(cond):
            op = self.builder.effect_since(mark)
            if op is not None:
                raise CompileError(
                    "a side of T.if_then_else does more than compute a value: both would run, "
                    "whichever is chosen",
                    got=word_of(op),
                    fix="write an `if`, or bind the result to a name on a line of its own first",
                    code="python",
                )
        return function(cond, *args, **kwargs)

    def builtin(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`max(a, b)` and its kin, of Python or, for run-time values, of the language."""
        if function in (builtins.tuple, builtins.list) and args and isinstance(args[0], range):
            _check_items(len(args[0]))
        runtime = any(is_runtime(a) for a in args)
        if function is builtins.isinstance and isinstance(args[0], Number):
            args = args[0].expr, *args[1:]
        if function is builtins.range and runtime:
            raise CompileError(
                "a run-time range cannot be unrolled",
                expected="a compile-time integer",
                got="a run-time value",
                fix="loop over it: `for i in range(n):`",
                code="not-constant",
            )
        has_tile = any(isinstance(a, Tile) or is_value(a) for a in args)
        if function in _OF_TILES and has_tile:
            raise CompileError(
                f"Python's {function.__name__} takes numbers, and this is a tile",
                fix=_OF_TILES[function],
                code="whole-tile",
            )
        if function is builtins.print and (runtime or has_tile):
            raise CompileError(
                "Python's print runs once, at compile time, and a run-time value has none then",
                fix="use T.print",
                code="python",
                repair=swap("print", "T.print"),
            )
        if function is builtins.isinstance and runtime and _asks_for_number(args[1]):
            raise CompileError(
                "isinstance of a run-time value sees what stands for it at compile time",
                expected="T.PrimExpr, or a look at its dtype",
                fix="ask isinstance(x, T.PrimExpr) whether it is a run-time value, and x.dtype for "
                "its type",
                code="python",
            )
        if function in _FOLDED and len(args) == 1 and isinstance(args[0], Iterable):
            items = tuple(self.items(args[0]))
            if any(is_runtime(a) for a in items):
                args = items if function in (max, min) else (items,)
                runtime = True
            else:
                args = (items,)
        if runtime and not kwargs:
            ours = _BUILTINS.get(function)
            if ours is not None:
                return ours(*args)
        return function(*args, **kwargs)


def _check_items(count: int) -> None:
    limits.ITEMS.check(
        count,
        "too many items for Python to make",
        got=f"{count:,}".replace(",", " "),
        fix="loop at run time: `for i in range(n)`",
    )


def _counted(iterable: Any) -> Iterator[Any]:
    for at, item in enumerate(iterable):
        if at >= limits.ITEMS.usual:
            _check_items(at + 1)
        yield item


def _asks_for_number(kinds: Any) -> bool:
    each = kinds if isinstance(kinds, tuple) else (kinds,)
    return any(kind in (bool, int, float, complex) or kind in _NUMBERS for kind in each)


_NUMBERS = (numbers.Number, numbers.Real, numbers.Integral, numbers.Rational)


def _int(x: Any) -> Expr:
    """Toward zero; integers keep their type."""
    value = wrap(x)
    return value if value.dtype.is_int else math.cast(value, "int32")


def _float(x: Any) -> Expr:
    value = wrap(x)
    return value if value.dtype.is_float and value.dtype.bits >= 32 else math.cast(value, "float32")


def _fold(op: str) -> Callable[[Any], Any]:
    """`all` and `any`."""

    def fold(items: Any) -> Any:
        tests = [condition(item) for item in items]
        known = [bool(test) for test in tests if not isinstance(test, Expr)]
        if (op == "or") in known:
            return op == "or"
        return functools.reduce(
            functools.partial(binary, op), [test for test in tests if isinstance(test, Expr)]
        )

    return fold


_FOLDED = (max, min, any, all)
_OF_TILES = {  # what says the same of tile values
    max: "T.maximum(a, b) of two tiles; T.max(x, dim=1) along a dimension",
    min: "T.minimum(a, b) of two tiles; T.min(x, dim=1) along a dimension",
    any: "T.any(x, dim=1) along a dimension",
    all: "T.all(x, dim=1) along a dimension",
    int: 'T.cast(x, "int32")',
    float: 'T.cast(x, "float32")',
    bool: "x != 0",
    round: "T.round(x)",
}
_BUILTINS: dict[Any, Callable[..., Any]] = {
    max: entry(math.max),
    min: entry(math.min),
    any: _fold("or"),
    all: _fold("and"),
    int: _int,
    float: _float,
    bool: lambda x: truth(wrap(x)),
    divmod: lambda a, b: (a // b, a % b),
    round: entry(math.round),
}
