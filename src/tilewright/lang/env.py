"""One run of a rewritten function: its control flow and its names.

Rewriting (`rewrite.py`) turns every branch, loop and assignment of a kernel's text into a call of
these methods. Compile-time values take Python's own way; run-time values become ops.
"""

from __future__ import annotations

import builtins
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from tilewright.ir.buffer import Space
from tilewright.ir.expr import Const, Expr, binary, compare, logical_not, select, truth, wrap
from tilewright.ir.op import Break, Continue, If, While
from tilewright.lang import math
from tilewright.lang.alloc import alloc_var
from tilewright.lang.builder import Builder
from tilewright.lang.handles import Access, Tile, Tiles, Variable, store
from tilewright.lang.looking import device_assert
from tilewright.lang.loops import ForLoop, Loop, ThreadLoop, serial
from tilewright.lang.params import declare_argument
from tilewright.lang.scalar import Lost, Scalar, concrete, is_runtime
from tilewright.lang.types import ScalarType, TensorType
from tilewright.lang.where import locate
from tilewright.support.errors import CompileError, Loc


@dataclass(eq=False)
class Frame:
    """An open loop or branch of this function. `runtime` ones become ops."""

    kind: str
    runtime: bool
    open: bool = True
    loc: Loc | None = None


@dataclass
class Binding:
    value: Any
    frame: Frame | None
    loc: Loc | None


class Branch:
    """One `if`: chosen now when its condition is known, an op otherwise."""

    def __init__(self, env: Env, cond: Any) -> None:
        self.env = env
        self.cond = condition(cond)
        self.runtime = isinstance(self.cond, Expr)
        self.then_body: Any = ()
        self.frame: Frame | None = None
        self.loc = locate() if self.runtime else None

    def then(self) -> bool:
        if not isinstance(self.cond, Expr):
            return bool(self.cond)
        self._open(self.cond)
        return True

    def end_then(self) -> None:
        if self.runtime:
            self.then_body = self._close()

    def orelse(self) -> bool:
        if not isinstance(self.cond, Expr):
            return not self.cond
        self._open(logical_not(self.cond))
        return True

    def end(self) -> None:
        if not isinstance(self.cond, Expr):
            return
        orelse = self._close() if self.frame is not None else ()
        self.env.builder.emit(If(self.cond, self.then_body, orelse, loc=self.loc))

    def _open(self, guard: Expr) -> None:
        self.frame = self.env.push("if", True)
        if self.env.builder.kernel is not None:
            self.env.builder.kernel.guards.append(guard)
        self.env.builder.open()

    def _close(self) -> Any:
        if self.env.builder.kernel is not None:
            self.env.builder.kernel.guards.pop()
        if self.frame is not None:
            self.env.pop(self.frame)
            self.frame = None
        return self.env.builder.close()


def condition(cond: Any) -> Any:
    """A bool expression, or the plain value when it is known."""
    cond = concrete(cond)
    if isinstance(cond, (Tile, Tiles)):
        return bool(Tile.__bool__(cond))  # type: ignore[arg-type]
    if is_runtime(cond):
        expr = truth(wrap(cond))
        return expr.value if isinstance(expr, Const) else expr
    return cond


@dataclass
class Env:
    """The state of one activation of a rewritten function."""

    builder: Builder
    word: str
    frames: list[Frame] = field(default_factory=list)
    bindings: dict[str, Binding] = field(default_factory=dict)
    refs: set[str] = field(default_factory=set)
    last_runtime_loop: bool = False

    # ── frames ──

    def push(self, kind: str, runtime: bool) -> Frame:
        frame = Frame(kind, runtime, loc=locate())
        self.frames.append(frame)
        return frame

    def pop(self, frame: Frame) -> None:
        while self.frames:
            top = self.frames.pop()
            top.open = False
            if top is frame:
                return

    def top(self) -> Frame | None:
        """The innermost run-time scope."""
        return next((f for f in reversed(self.frames) if f.runtime), None)

    # ── control flow ──

    def branch(self, cond: Any) -> Branch:
        return Branch(self, cond)

    def call_range(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`range(...)` as the iterable of a `for`: a run-time loop if it is Python's own."""
        if function is not builtins.range:
            return function(*args, **kwargs)
        if not 1 <= len(args) <= 3 or kwargs:
            raise CompileError("range takes one to three bounds", got=f"{len(args)}")
        return serial(*args)

    def loop(self, iterable: Any, names: tuple[str, ...]) -> Iterator[Any]:
        if isinstance(iterable, Loop):
            frame = self.push("map" if iterable.is_map else "for", True)
            if len(iterable.names_needed) > 1 and not isinstance(iterable, ForLoop):
                frame.kind = "map" if iterable.is_map else "nest"
            yield from iterable.run(self.builder, names)
            self.pop(frame)
            self.last_runtime_loop = True
            return
        frame = self.push("unrolled", False)
        try:
            if is_runtime(iterable) or isinstance(iterable, (Tile, Tiles)):
                raise CompileError(
                    "a run-time value cannot be iterated",
                    fix="loop over indices: `for i in T.serial(n):`",
                )
            yield from iterable
        finally:
            if frame in self.frames:
                self.pop(frame)
            self.last_runtime_loop = False

    def while_loop(self, cond: Callable[[], Any]) -> Iterator[None]:
        before = self.builder.emitted
        value = condition(cond())
        if not isinstance(value, Expr):
            frame = self.push("unrolled", False)
            try:
                while value:
                    yield
                    value = condition(cond())
                    if isinstance(value, Expr):
                        raise CompileError(
                            "the condition of this while was compile-time and became run-time",
                            fix="make it depend on an alloc_var from the start",
                        )
            finally:
                if frame in self.frames:
                    self.pop(frame)
                self.last_runtime_loop = False
            return
        if self.builder.emitted != before:
            raise CompileError(
                "the condition of a run-time while must be a plain expression",
                fix="compute it into an alloc_var before the loop and at its end",
            )
        loc = locate()
        frame = self.push("while", True)
        self.builder.open()
        yield
        body = self.builder.close()
        self.pop(frame)
        self.builder.emit(While(value, body, loc=loc))
        self.last_runtime_loop = True

    def check_else(self) -> None:
        if self.last_runtime_loop:
            raise CompileError(
                "`else` of a run-time loop", fix="keep a flag in an alloc_var and test it"
            )

    def leave(self, word: str) -> bool:
        """`break` or `continue`: True when Python's own is meant."""
        crossed = False
        for frame in reversed(self.frames):
            if frame.kind == "if":
                crossed = True
                continue
            if frame.kind == "unrolled":
                if crossed:
                    raise CompileError(
                        f"`{word}` of an unrolled loop under a run-time `if`",
                        fix="make the loop a run-time one: range(n) or T.serial(n)",
                    )
                return True
            if frame.kind == "map":
                raise CompileError(
                    f"`{word}` inside T.Parallel: its iterations are independent",
                    fix="guard the rest of the body with an `if`",
                )
            if frame.kind == "nest" and word == "break":
                raise CompileError(
                    "`break` inside a loop over several indices", fix="nest single loops"
                )
            self.builder.emit(Break() if word == "break" else Continue())
            return False
        raise CompileError(f"`{word}` outside a loop")

    def returned(self, value: Any = None) -> Any:
        if self.top() is not None:
            raise CompileError(
                "`return` inside a run-time loop or branch",
                fix="assign to an alloc_var inside and return after it",
            )
        if isinstance(value, Lost):
            value.fail()
        return value

    def raising(self) -> None:
        if self.top() is not None:
            raise CompileError(
                "`raise` inside a run-time loop or branch", fix="use T.device_assert(cond, msg)"
            )

    def assertion(self, cond: Any, message: Callable[[], Any]) -> None:
        value = condition(cond)
        if isinstance(value, Expr):
            device_assert(value, str(message() or ""))
        elif not value:
            text = message()
            raise CompileError("assertion failed" + (f": {text}" if text else ""))

    # ── expressions ──

    def lazily(self, thunk: Callable[[], Any], what: str) -> Any:
        before = self.builder.emitted
        value = thunk()
        if self.builder.emitted != before:
            raise CompileError(
                f"{what} must not do anything but compute a value",
                fix="compute it on a line of its own first",
            )
        return value

    def if_expression(self, cond: Any, a: Callable[[], Any], b: Callable[[], Any]) -> Any:
        value = condition(cond)
        if not isinstance(value, Expr):
            return a() if value else b()
        what = "a side of a run-time `a if c else b`"
        return select(value, self.lazily(a, what), self.lazily(b, what))

    def builtin(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`max(a, b)` and its kin, of Python or, for run-time values, of the language."""
        if not kwargs and any(is_runtime(a) for a in args):
            ours = _BUILTINS.get(function)
            if ours is not None:
                return ours(*args)
        return function(*args, **kwargs)

    def boolean(self, op: str, *thunks: Callable[[], Any]) -> Any:
        """`and` / `or`, short-circuiting where a side is known."""
        result: Any = None
        for at, thunk in enumerate(thunks):
            value = (
                self.lazily(thunk, f"a later side of a run-time `{op}`")
                if isinstance(result, Expr)
                else thunk()
            )
            test = condition(value)
            if isinstance(result, Expr):
                result = binary(op, result, test if isinstance(test, Expr) else bool(test))
            elif isinstance(test, Expr):
                result = test
            elif at == len(thunks) - 1 or bool(test) == (op == "or"):
                return value
        return result

    def negate(self, value: Any) -> Any:
        test = condition(value)
        return logical_not(test) if isinstance(test, Expr) else not test

    def compare(self, ops: tuple[str, ...], *thunks: Callable[[], Any]) -> Any:
        """A chain of comparisons, each operand evaluated once."""
        left = thunks[0]()
        result: Any = True
        for op, thunk in zip(ops, thunks[1:], strict=True):
            right = thunk()
            link = condition(self._compare(op, left, right))
            if not isinstance(link, Expr):
                if not isinstance(result, Expr) and not link:
                    return link
                if isinstance(result, Expr):
                    result = result if link else binary("and", result, False)
                else:
                    result = link
            else:
                result = link if not isinstance(result, Expr) else binary("and", result, link)
            left = right
        return result

    def _compare(self, op: str, a: Any, b: Any) -> Any:
        if op in ("is", "is not"):
            return (a is b) == (op == "is")
        if op in ("in", "not in"):
            return self._contains(op, a, b)
        runtime = is_runtime(a) or is_runtime(b)
        if runtime and op in ("==", "!=") and not (_is_number(a) and _is_number(b)):
            # a run-time value beside None, a string, a tile
            return op == "!="
        if runtime or isinstance(a, Expr) or isinstance(b, Expr):
            return compare(op, _number(a), _number(b))
        return _PYTHON[op](a, b)

    def _contains(self, op: str, a: Any, b: Any) -> Any:
        if not isinstance(b, (tuple, list, set, frozenset)) or not (
            is_runtime(a) or any(is_runtime(x) for x in b)
        ):
            return (a in b) == (op == "in")
        found: Any = False
        for item in b:
            same = condition(self._compare("==", a, item))
            found = binary("or", wrap(found), wrap(same))
        return found if op == "in" else logical_not(found)

    # ── names ──

    def name(self, name: str) -> str:
        """Said before the right side of `name = …` is evaluated: allocations take it."""
        self.builder.hint = name
        return name

    def named(self, name: str, value: Any) -> Any:
        """A part of a tuple, made under the name it is assigned to."""
        self.builder.hint = None
        return value

    def parameters(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            self.bindings[name] = Binding(value, None, None)

    def bind(self, name: str, value: Any, annotation: Any = None) -> Any:
        """`name = value`: what the name stands for from now on."""
        self.builder.hint = None
        old = self.bindings.get(name)
        if old is not None and old.frame is not None and not old.frame.open:
            old = None
        fresh = isinstance(value, Variable) and not value.named
        if old is not None and isinstance(old.value, Variable) and not fresh and _is_number(value):
            old.value.assign(value)
            return old.value
        if old is not None and name in self.refs and _is_number(value):
            store(old.value, value)
            return old.value
        tensor = old.value.buffer if old is not None and isinstance(old.value, Tile) else None
        if tensor in self.builder.params and not fresh and _is_number(value):
            raise CompileError(
                f"{name!r} is a tensor: this would give its name to a number and store nothing",
                fix=f"store elements, {name}[i] = …, fill it with T.fill({name}, …), or use "
                "another name",
            )
        top = self.top()
        if old is not None and old.frame is not top and value is not old.value and name != "_":
            self._refuse_rebinding(name, old, top)
        if annotation is not None:
            value = self._annotated(name, value, annotation)
        value = self.held(value, name)
        self.bindings[name] = Binding(value, top, locate())
        return value

    def _refuse_rebinding(self, name: str, old: Binding, top: Frame | None) -> None:
        kind = _KINDS.get(top.kind if top else "", "loop")
        where = f"bound outside it, on line {old.loc.line}" if old.loc else "a parameter"
        dtype = f'"{old.value.dtype}"' if is_runtime(old.value) else "dtype"
        raise CompileError(
            f"{name!r} is rebound inside a run-time {kind} ({where})",
            expected="a variable, which keeps its value from one iteration to the next",
            fix=f"declare it outside: {name} = T.alloc_var({dtype}, init=…); then assign to it",
        )

    def held(self, value: Any, name: str | None = None) -> Any:
        """The value a name keeps: elements and expressions over memory are read now."""
        if isinstance(value, Lost):
            value.fail()
        if isinstance(value, ThreadLoop):
            return value.index(self.builder)
        if isinstance(value, Variable):
            if value.named:
                return self.builder.let(value.as_expr(), name)
            value.named = True
            return value
        if isinstance(value, Access):
            if value.buffer.space is Space.BARRIER:
                return value
            return self.builder.let(value.as_expr(), name)
        if isinstance(value, Expr):
            return self.builder.snapshot(value, name)
        if type(value) in (tuple, list):
            for part in value:
                if isinstance(part, Access):
                    part.keep(name or "it", self.builder.writes(part.buffer))
            return type(value)(
                self.builder.snapshot(v) if isinstance(v, Expr) else v for v in value
            )
        return value

    def _annotated(self, name: str, value: Any, annotation: Any) -> Any:
        """`x: T.int32 = v` is `v` as that type."""
        if isinstance(annotation, ScalarType) and _is_number(value):
            return annotation(value)
        return value

    def declare(self, name: str, annotation: Any) -> Any:
        """`A: T.Tensor(...)` in a direct-style body; `x: T.int32` names a variable."""
        if isinstance(annotation, TensorType):
            value: Any = declare_argument(self.builder, name, annotation)
        elif isinstance(annotation, ScalarType):
            self.builder.hint = name
            value = alloc_var(annotation)
            value.named = True
        else:
            raise CompileError(
                f"the annotation of {name!r} declares nothing",
                expected="T.Tensor(shape, dtype) or a scalar type",
                got=repr(annotation)[:60],
            )
        self.builder.hint = None
        self.bindings[name] = Binding(value, self.top(), locate())
        return value

    def target(self, name: str, value: Any) -> Any:
        """A name bound by `for` or `with`."""
        self.bindings[name] = Binding(value, self.top(), locate())
        return value

    def augment(self, name: str, value: Any, op: str, other: Any) -> Any:
        """`name op= other`."""
        if isinstance(value, Lost):
            value.fail()
        if isinstance(value, Variable):
            value.assign(_OPERATORS[op](value.as_expr(), other))
            return value
        return self.bind(name, _OPERATORS[op](value, other))

    def unpack(self, value: Any, count: int, star: bool) -> Any:
        """The parts of a tuple assignment, all read before any is assigned."""
        if isinstance(value, (Tile, Tiles)) or is_runtime(value):
            raise CompileError(
                "a run-time value cannot be unpacked", got="one value", expected=f"{count} values"
            )
        parts = list(value)
        if len(parts) < count - 1 if star else len(parts) != count:
            raise CompileError(
                "this assignment does not fit", expected=f"{count} values", got=str(len(parts))
            )
        return [self.builder.let(p.as_expr()) if _is_element(p) else p for p in parts]

    def lost(self, name: str) -> bool:
        """Whether the scope that bound the name has closed."""
        found = self.bindings.get(name)
        return found is not None and found.frame is not None and not found.frame.open

    def lost_value(self, name: str) -> Lost:
        found = self.bindings[name]
        assert found.frame is not None
        kind = _KINDS.get(found.frame.kind, "loop")
        return Lost(name, kind, found.loc.line if found.loc else 0, isinstance(found.value, Tile))

    def storing(self, name: str, container: Any) -> None:
        """Before `name[...] = …`: a Python container changes once, at compile time."""
        if isinstance(container, Expr):
            raise CompileError(
                f"{name!r} is a number, of type {container.dtype}: it has no elements to store to",
                fix="store to a tensor or a tile",
            )
        old = self.bindings.get(name)
        outside = old is None or old.frame is not self.top()
        if isinstance(container, (list, dict)) and self.top() is not None and outside:
            raise CompileError(
                f"{name!r} is a Python {type(container).__name__}: a store inside a run-time loop "
                "or branch would happen once, at compile time",
                fix="use T.alloc_local(shape, dtype) or an alloc_var",
            )

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        old = getattr(owner, name, None)
        if isinstance(old, Variable) and _is_number(value):
            old.assign(value)
            return
        if self.top() is not None and not isinstance(value, Variable) and old is not None:
            raise CompileError(
                f"attribute {name!r} is rebound inside a run-time loop or branch",
                fix="make it an alloc_var",
            )
        value = self.held(value, name)
        setattr(owner, name, value)

    def entering(self, manager: Any, names: tuple[str, ...]) -> Any:
        """The context manager of a `with`, told the names after `as`."""
        if hasattr(manager, "tilewright_names"):
            manager.tilewright_names = names
        return manager

    def unsupported(self, what: str, fix: str) -> None:
        raise CompileError(f"{what} is not part of the kernel language", fix=fix)

    def expression(self, value: Any) -> Any:
        """A statement that is only an expression."""
        if isinstance(value, Lost):
            value.fail()
        return value


def _is_element(value: Any) -> bool:
    return isinstance(value, Access) or (isinstance(value, Variable) and value.named)


def _is_number(value: Any) -> bool:
    return isinstance(value, (bool, int, float, Expr, Scalar)) or hasattr(value, "item")


def _number(value: Any) -> Any:
    return wrap(value) if is_runtime(value) else value


_KINDS = {"if": "branch", "map": "T.Parallel loop"}
_BUILTINS: dict[Any, Callable[..., Any]] = {
    max: math.max,
    min: math.min,
    int: lambda x: math.cast(x, "int32"),
    float: lambda x: math.cast(x, "float32"),
    bool: lambda x: truth(wrap(x)),
    round: math.round,
}
_PYTHON: dict[str, Callable[[Any, Any], Any]] = {
    "==": lambda a, b: a == b,
    "!=": lambda a, b: a != b,
    "<": lambda a, b: a < b,
    "<=": lambda a, b: a <= b,
    ">": lambda a, b: a > b,
    ">=": lambda a, b: a >= b,
}
_OPERATORS: dict[str, Callable[[Any, Any], Any]] = {
    "+": lambda a, b: a + b,
    "-": lambda a, b: a - b,
    "*": lambda a, b: a * b,
    "/": lambda a, b: a / b,
    "//": lambda a, b: a // b,
    "%": lambda a, b: a % b,
    "**": lambda a, b: a**b,
    "&": lambda a, b: a & b,
    "|": lambda a, b: a | b,
    "^": lambda a, b: a ^ b,
    "<<": lambda a, b: a << b,
    ">>": lambda a, b: a >> b,
    "@": lambda a, b: a @ b,
}
