"""Conditions, comparisons and choices in a kernel's text: Python's own for what is known, and
expressions that mean the same for run-time values."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Set
from typing import Any

from tilewright.ir.expr import Expr, binary, compare, logical_not, select, wrap
from tilewright.lang.behalf import COMPARISONS
from tilewright.lang.frames import Scopes, condition
from tilewright.lang.guards import is_number
from tilewright.lang.handles import Tile, Tiles, Variable
from tilewright.lang.scalar import is_runtime
from tilewright.lang.state import Watch
from tilewright.lang.where import locate, users_frame
from tilewright.support.errors import CompileError, swap


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
        return select(value, self.lazily(a, what), self.lazily(b, what))

    def boolean(self, op: str, *thunks: Callable[[], Any]) -> Any:
        """`and` / `or` as a condition, short-circuiting where a side is known."""
        result: Any = None
        for at, thunk in enumerate(thunks):
            value = self._later(op, thunk) if isinstance(result, Expr) else thunk()
            test = condition(value)
            if isinstance(result, Expr):
                result = binary(op, result, test if isinstance(test, Expr) else bool(test))
            elif isinstance(test, Expr):
                result = test
            elif at == len(thunks) - 1 or bool(test) == (op == "or"):
                return value
        return result

    def choice(self, op: str, *thunks: Callable[[], Any]) -> Any:
        """`a and b`, `a or b` as a value: the side that decides."""
        known: Any = None
        for at, thunk in enumerate(thunks):
            known = thunk()
            test = condition(known)
            if isinstance(test, Expr):
                sides = [known, *(self._later(op, t) for t in thunks[at + 1 :])]
                return self._decided(op, sides)
            if bool(test) == (op == "or"):
                break
        return known

    def _later(self, op: str, thunk: Callable[[], Any]) -> Any:
        return self.lazily(thunk, f"a later side of a run-time `{op}`")

    def _decided(self, op: str, sides: list[Any]) -> Any:
        first, *rest = sides
        if not rest:
            return first
        test = condition(first)
        other = self._decided(op, rest)
        if not isinstance(test, Expr):
            return first if bool(test) == (op == "or") else other
        if all(isinstance(x, bool) or (is_runtime(x) and wrap(x).dtype.is_bool) for x in sides):
            return binary(op, test, wrap(other))
        return select(test, first, other) if op == "or" else select(test, other, first)

    def now(self, value: Any) -> Any:
        """The value of a variable before the other side of an operator is evaluated."""
        return value.as_expr() if isinstance(value, Variable) else value

    def negate(self, value: Any) -> Any:
        test = condition(value)
        return logical_not(test) if isinstance(test, Expr) else not test

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
            link = condition(link)
            if not isinstance(result, Expr):
                if not isinstance(link, Expr) and not link:
                    return link
                result = link
            elif isinstance(link, Expr) or not link:
                result = binary("and", result, link if isinstance(link, Expr) else False)
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
        runtime = is_runtime(a) or is_runtime(b)
        for tile, other in ((a, b), (b, a)):
            if isinstance(tile, (Tile, Tiles)) and (
                isinstance(other, (Tile, Tiles)) or is_number(other)
            ):
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
                found = _both(found, condition(self._compare("==", x, y)))
            return found if op == "==" else self.negate(found)
        result: Any = COMPARISONS[op](len(a), len(b))
        for x, y in reversed(list(zip(a, b, strict=False))):
            same = condition(self._compare("==", x, y))
            if not isinstance(same, Expr) and same:
                continue
            less = condition(self._compare(op[0], x, y))
            tie = _both(same, result)
            result = (
                binary("or", wrap(less), wrap(tie))
                if isinstance(less, Expr) or isinstance(tie, Expr)
                else less or tie
            )
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
            same = condition(True if a is item else self._compare("==", a, item))
            if not isinstance(same, Expr):
                if not same:
                    continue
                found = True
                break
            found = binary("or", wrap(found), same)
        return found if op == "in" else self.negate(found)

    def _in_range(self, op: str, a: Any, span: range) -> Any:
        if not span:
            return op == "not in"
        x = wrap(a)
        low, high = min(span[0], span[-1]), max(span[0], span[-1])
        found = binary("and", compare(">=", x, low), compare("<=", x, high))
        if abs(span.step) != 1 or not x.dtype.is_int:
            found = binary("and", found, compare("==", (x - low) % abs(span.step), 0))
        return found if op == "in" else self.negate(found)


def _both(a: Any, b: Any) -> Any:
    if isinstance(a, Expr) or isinstance(b, Expr):
        return binary("and", wrap(a), wrap(b))
    return a and b


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
