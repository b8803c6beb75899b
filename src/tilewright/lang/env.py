"""One run of a rewritten function: its control flow and its names.

Rewriting (`rewrite.py`) turns every branch, loop and assignment of a kernel's text into a call of
these methods. Compile-time values take Python's own way; run-time values become ops.
"""

from __future__ import annotations

import builtins
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from tilewright.lang.alloc import alloc_var
from tilewright.lang.builder import Opened
from tilewright.lang.carry import carry, carry_scalar, keeps_type, scalar_memory
from tilewright.lang.carry import named as named_value
from tilewright.lang.core import *
from tilewright.lang.handles import store
from tilewright.lang.hints import device_assert
from tilewright.lang.logic import KINDS, Binding, Branch, Frame, Logic, PythonWords, condition
from tilewright.lang.loops import Loop, serial
from tilewright.lang.math import OPERATORS
from tilewright.lang.params import declare_argument
from tilewright.lang.scalar import (
    Lost,
    Number,
    as_number,
    is_number,
    is_runtime,
    not_lost,
    quoting,
    reads,
)
from tilewright.lang.types import ScalarType, TensorType
from tilewright.lang.values import TileIndex, Value, again, value_of

_NAMES_OF_THEIR_OWN = "bind tile values to names of their own, which loops and branches carry"


class Old(NamedTuple):
    variable: Variable
    read: Expr


@dataclass
class Env(Logic, PythonWords):
    """The state of one activation of a rewritten function."""

    refs: set[str] = field(default_factory=set)
    last_runtime_loop: bool = False

    # ── control flow ──

    def branch(self, cond: Any) -> Branch:
        return Branch(self, cond)

    def call_range(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        """`range(...)` as the iterable of a `for`: a run-time loop if it is Python's own."""
        if function is not builtins.range:
            return function(*args, **kwargs)
        if not 1 <= len(args) <= 3 or kwargs:
            raise CompileError(
                "range takes one to three bounds",
                got=f"{len(args)}",
                fix="write range(n) or range(start, stop, step)",
            )
        return serial(*args)

    def loop(self, iterable: Any, names: tuple[str, ...]) -> Iterator[Any]:
        if isinstance(iterable, Loop):
            kind = iterable.kind
            if kind == "tiles":
                kind = (
                    "grid" if self.builder.kernel is None else "nest" if len(names) > 1 else "for"
                )
            frame = self.push(kind)
            yield from iterable.run(self.builder, names, iterable.loc)
            self.pop(frame)
            self.last_runtime_loop = True
            return
        with self._unrolled():
            if is_runtime(iterable) or isinstance(iterable, (Tile, Value)):
                raise CompileError(
                    "a run-time value cannot be iterated",
                    fix="loop over indices: `for i in T.serial(n):`",
                )
            for item in iterable:
                self.builder.step()
                yield item

    @contextmanager
    def _unrolled(self) -> Iterator[None]:
        frame = self.push("unrolled")
        try:
            yield
        finally:
            if frame in self.frames:
                self.pop(frame)
            self.last_runtime_loop = False

    def while_loop(self, cond: Callable[[], Any]) -> Iterator[None]:
        before, now = len(self.builder.trail), self.builder.now
        value = condition(cond())
        if not isinstance(value, Expr):
            with self._unrolled():
                while value:
                    self.builder.step()
                    yield
                    value = condition(cond())
                    if isinstance(value, Expr):
                        raise CompileError(
                            "the condition of this while was compile-time and became run-time",
                            fix="make it depend on an alloc_var from the start",
                        )
            return
        if len(self.builder.trail) != before:
            raise CompileError(
                "the condition of a run-time while must be a plain expression",
                fix="compute it into an alloc_var before the loop and at its end",
            )
        loc = locate()
        frame = self.push("while")
        # what the condition itself reads is read anew by each iteration
        kept = [read for read in reads(value) if read.moment.order <= now]
        value = self.builder.settle(value)
        self.builder.open(loop=True, before=kept)
        yield
        body = self.builder.close()
        self.pop(frame)
        self.builder.emit(While(value, body, loc=loc))
        self.last_runtime_loop = True

    def check_else(self) -> None:
        if self.last_runtime_loop:
            raise CompileError(
                "`else` of a run-time loop",
                fix="keep a flag in an alloc_var and test it",
                code="python",
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
                        code="python",
                    )
                return True
            if frame.kind == "map":
                raise CompileError(
                    f"`{word}` inside T.Parallel: its iterations are independent",
                    fix="guard the rest of the body with an `if`",
                    code="inside-parallel",
                )
            if frame.kind == "grid":
                raise CompileError(
                    f"`{word}` in the grid: its tiles are independent",
                    fix="put the rest of the body under an `if`",
                    code="python",
                )
            if frame.kind == "nest" and word == "break":
                raise CompileError(
                    "`break` inside a loop over several indices", fix="nest single loops"
                )
            self.builder.emit(Break() if word == "break" else Continue())
            return False
        raise CompileError(f"`{word}` outside a loop", fix="use an `if`", code="python")

    def returned(self, value: Any = None) -> Any:
        if self.top() is not None:
            raise CompileError(
                "`return` inside a run-time loop or branch",
                fix="put what must not run then under the opposite `if`; a loop ends with `break`"
                if value is None
                else "return after it; assign to an alloc_var inside, or store to a tensor",
                code="python",
            )
        return not_lost(value)

    def raising(self) -> None:
        if self.top() is not None:
            raise CompileError(
                "`raise` inside a run-time loop or branch", fix="use T.device_assert(cond, msg)"
            )

    def assertion(self, cond: Any, message: Callable[[], Any]) -> None:
        value = condition(cond)
        if not isinstance(value, Expr) and value:
            return
        with quoting():
            text = str(message() or "")
        if isinstance(value, Expr):
            device_assert(value, text)
        else:
            raise CompileError(
                "assertion failed" + (f": {text}" if text else ""),
                fix="it is the kernel's own: choose sizes and arguments that fulfil it",
                code="assertion",
            )

    # ── names ──

    def name(self, name: str) -> str:
        """Said before the right side of `name = …` is evaluated: allocations take it."""
        self.builder.hint = name
        return name

    def named(self, _: str, value: Any) -> Any:
        """A part of a tuple, made under the name it is assigned to."""
        self.builder.hint = None
        return value

    def parameters(self, values: dict[str, Any]) -> None:
        for name, value in values.items():
            if name in self.builder.carried_scalars and isinstance(value, Expr):
                value = self.held(value, name)
            self._set(name, value)
            self.bindings[name] = Binding(value, None, None)

    def _set(self, name: str, value: Any, loop: bool = False) -> Any:
        """What the text calls `name` from now on, also for tools that show a running kernel."""
        place = locate()
        self.bindings[name] = Binding(value, self.top(), place, loop, self.builder.kernel)
        meant = value.buffer if type(value) in (Tile, Variable) else value
        self.builder.symbols.add(name, meant, place)
        return value

    def bind(self, name: str, value: Any, annotation: Any = None) -> Any:
        """`name = value`: what the name stands for from now on."""
        self.builder.hint = None
        old = self.bindings.get(name)
        if old is not None and self.over(old):
            old = None
        fresh = isinstance(value, Variable) and not value.named
        if fresh and old is not None and old.frame is not self.top():
            # a value of rank 0 that a loop or a branch changes, as one of any rank is carried
            same = isinstance(old.value, Variable) and old.value.dtype == value.dtype
            fresh = not same
        if old is not None and isinstance(old.value, Variable) and not fresh and is_number(value):
            self._assignable(name, old)
            if not old.value.is_value or keeps_type(name, old, value, self.top()):
                old.value.assign(value)
                return old.value
            old = None  # as a value of another type it is another one
        if old is not None and name in self.refs and is_number(value):
            store(old.value, value)
            return old.value
        tensor = old.value.buffer if old is not None and type(old.value) is Tile else None
        if tensor in self.builder.params and not fresh and is_number(value):
            raise CompileError(
                f"{name!r} is a tensor: this would give its name to a number and store nothing",
                fix=f"store elements, {name}[i] = …, fill it with T.fill({name}, …), or use "
                "another name",
                code="rebinding",
            )
        top = self.top()
        if old is not None and old.frame is not top and isinstance(old.value, Value):
            self.bindings[name] = replace(old, value=carry(name, old.value, value))
            return self.bindings[name].value
        if old is not None and old.frame is not top and value is not old.value and name != "_":
            carry_scalar(self.builder, name, old, value)
            self._refuse_rebinding(name, old, top)
        if isinstance(annotation, ScalarType) and is_number(value):
            value = annotation(value)  # `x: T.int32 = v` is `v` as that type
        return self._set(name, self.held(value, name))

    def _assignable(self, name: str, binding: Binding | None) -> None:
        """A loop over variables gives them names; Python's would be of their values."""
        if binding is None or not binding.loop or not isinstance(binding.value, Variable):
            return
        if binding.value.named:
            raise CompileError(
                f"{name!r} is the value of {binding.value.name} here: assigning to it would change "
                f"{binding.value.name}",
                fix=f"assign to {binding.value.name} itself, or to another name",
                code="rebinding",
            )

    def _refuse_rebinding(self, name: str, old: Binding, top: Frame | None) -> None:
        kind = KINDS.get(top.kind if top else "", "loop")
        where = f"bound outside it, on line {old.loc.line}" if old.loc else "a parameter"
        dtype, own = _type_name(old.value), self.builder

        def declare(text: str) -> str | None:
            found = re.fullmatch(rf"{name}\s*=\s*([^=].*)", text)
            made = f'T.alloc_var("{dtype}", init={found.group(1)})' if found else ""
            if found and own.number in own.tiled and type(old.value) in (int, float):
                kind = "" if dtype == "float32" else f', "{dtype}"'
                made = f"T.full((), {found.group(1)}{kind})"
            return f"{name} = {made}" if found else None

        if isinstance(old.value, Tile):
            raise CompileError(
                f"{name!r} is a tensor or a tile ({where}): this would give the name to something "
                "else",
                fix=f"store to its elements: {name}[{', '.join(':' * old.value.ndim)}] = …, with "
                "indices for the part",
                code="rebinding",
            )
        simple = old.loc is not None and dtype and declare(old.loc.text)
        said = f'"{dtype}"' if dtype else "dtype"
        fix = simple or f"{name} = T.alloc_var({said}, init=…)"
        raise CompileError(
            f"{name!r} is rebound inside a run-time {kind} ({where})",
            expected="a variable, which keeps its value from one iteration to the next"
            if kind != "branch"
            else "a variable, which keeps what the branch gives it",
            fix=f"declare it outside: {fix}; then assign to it",
            code="rebinding",
            repair=declare if simple else None,
            repair_loc=old.loc,
        )

    def held(self, value: Any, name: str | None = None) -> Any:
        """The value a name keeps: elements and expressions over memory are read now."""
        if isinstance(not_lost(value), Opened):
            raise CompileError(
                "T.Kernel and its kin are opened by `with`, not assigned",
                fix=f"write `with T.Kernel(...) as {name or 'bx'}:` and put the kernel inside",
                code="outside-kernel",
            )
        if isinstance(value, Loop) and value.index is not None:
            return value.index(self.builder)
        if isinstance(value, Variable) and not value.named:
            value.named = True
            return value
        if isinstance(value, Access) and value.buffer.space is Space.BARRIER:
            return value
        value = value.expr if isinstance(value, Number) else value
        if name in self.builder.carried_scalars and isinstance(value, (Variable, Access, Expr)):
            return scalar_memory(value)
        if isinstance(value, (Variable, Access)):
            return as_number(self.builder.let(value.as_expr(), name))
        if isinstance(value, Expr):
            return as_number(self.builder.snapshot(value, name))
        if type(value) is Tiles and self._is_read(value):
            value = value_of(value)
        elif type(value) is Tiles:
            value.writes = self.builder.writes(value.buffer)
        if isinstance(value, Value):
            return named_value(value, name)
        if type(value) in (tuple, list, dict):
            return self._kept(value, name or "it")
        return value

    def _is_read(self, region: Tiles) -> bool:
        """Whether `name = X[0:4, :]` is what is there now: so it is with tensors in kernels over
        tiles. Elsewhere it names the place."""
        bounds = [b for k in region.keys if isinstance(k, slice) for b in (k.start, k.stop, k.step)]
        known = all(b is None or isinstance(b, int) for b in bounds)
        over_tiles = any(frame.kind == "grid" for frame in self.frames)
        return known and over_tiles and region.buffer.is_global and not region.short

    def _kept(self, value: Any, name: str) -> Any:
        """A container that a name keeps: expressions are computed now, and variables stay what
        they are for as long as nobody assigns to them."""
        items = value.items() if type(value) is dict else enumerate(value)
        changed = {}
        for at, part in items:
            new = part
            if isinstance(part, Expr):
                new = self.builder.snapshot(part)
            elif isinstance(part, Variable) and part.named and part.kept is None:
                new = part.as_kept(repr(name), self.builder.writes(part.buffer))
            elif isinstance(part, Value):
                new = named_value(part, None)
            elif type(part) in (tuple, list, dict):
                new = self._kept(part, name)
            if new is not part:
                changed[at] = new
        if type(value) is tuple:
            return tuple(changed.get(at, part) for at, part in enumerate(value))
        for at, new in changed.items():
            value[at] = new  # the same object: other names may stand for it
        return value

    def declare(self, name: str, annotation: Any) -> Any:
        """`A: T.Tensor(...)` in a direct-style body; `x: T.int32` names a variable."""
        if isinstance(annotation, TensorType):
            value: Any = declare_argument(self.builder, name, annotation)
        elif isinstance(annotation, ScalarType):
            if name in self.builder.plain:
                raise CompileError(
                    f"the type of the number {name!r} stands in the signature",
                    fix=f"write def {self.builder.name}(…, {name}: T.{annotation}) and leave this "
                    "line out; without a type it is a constant of the kernel",
                    code="annotation",
                )
            self.builder.hint = name
            value = alloc_var(annotation)
            value.named = True
        else:
            raise CompileError(
                f"the annotation of {name!r} declares nothing",
                expected="T.Tensor(shape, dtype) or a scalar type",
                got=repr(annotation)[:60],
                fix='declare an array, A: T.Tensor((M, N), "float32"), or a variable, x: T.int32',
            )
        self.builder.hint = None
        return self._set(name, value)

    def target(self, name: str, value: Any) -> Any:
        """A name bound by `for` or `with`."""
        return self._set(name, value, loop=True)

    def augment(self, name: str, value: Any, op: str, other: Any) -> Any:
        """`name op= other`."""
        if isinstance(not_lost(value), Old):
            old = self.bindings.get(name)
            self._assignable(name, old)
            if value.variable.is_value:
                return self.bind(name, OPERATORS[op](value.read, other))
            value.variable.assign(OPERATORS[op](value.read, other))
            return value.variable
        return self.bind(name, OPERATORS[op](value, other))

    def argument(self, value: Any) -> Any:
        """A name as an argument of a call, which may keep it."""
        if isinstance(value, Variable) and value.named and value.kept is None:
            return value.as_kept("a function's argument", self.builder.writes(value.buffer))
        return value

    def old(self, value: Any) -> Any:
        """A variable and what it holds before the right side of `name op= …` is evaluated."""
        return Old(value, as_number(value.as_expr())) if isinstance(value, Variable) else value

    def unpack(self, value: Any, count: int, star: bool, *targets: Any) -> Any:
        """The parts of a tuple assignment, all read before any is assigned. `targets`: what those
        to elements and regions, in their order, are of; None for others."""
        if isinstance(value, (Tile, Value)) or is_runtime(value):
            raise CompileError(
                "a run-time value cannot be unpacked",
                got="one value",
                expected=f"{count} values",
                fix="give each name its own: best, at = T.max(x, dim=1), T.argmax(x, dim=1)"
                if isinstance(value, Value)
                else "index the tensor once for each name: a, b = A[0], A[1]",
            )
        parts = list(value)
        if len(parts) < count - 1 if star else len(parts) != count:
            raise CompileError(
                "this assignment does not fit",
                expected=f"{count} values",
                got=str(len(parts)),
                fix=f"write {len(parts)} names on the left",
            )
        return [
            as_number(self.builder.let(p.as_expr()))
            if isinstance(p, Access) or (isinstance(p, Variable) and p.named)
            else again(p)
            if isinstance(p, Value) and p.is_named
            else value_of(p if isinstance(p, Tiles) else p[...])
            if isinstance(p, Tile)
            and any(isinstance(t, Tile) and t.buffer is p.buffer for t in targets[:at])
            else p
            for at, p in enumerate(parts)
        ]

    def over(self, binding: Binding) -> bool:
        """Whether the run-time scope or the kernel of a binding has closed."""
        if binding.frame is not None and not binding.frame.open:
            return True
        return binding.kernel is not None and binding.kernel is not self.builder.kernel

    def lost(self, name: str) -> bool:
        """Whether the name was bound in a scope that has closed, or stands for a number of a kernel
        that has."""
        old = self.bindings.get(name)
        if old is None or not self.over(old):
            return False
        return old.frame is not None or is_runtime(old.value)

    def lost_value(self, name: str) -> Lost:
        found = self.bindings[name]
        kind = KINDS.get(found.frame.kind, "loop") if found.frame is not None else "kernel"
        line = found.loc.line if found.loc else 0
        is_tile = isinstance(found.value, Tile)
        told = ""
        if isinstance(found.value, TileIndex):
            told = f"use {name} inside its loop: afterwards no tile is meant"
        elif isinstance(found.value, Value):
            told = f"start before the {kind} with a value of its shape, {name} = T.zeros(…)"
            if found.frame is not None and found.frame.kind == "grid":
                told = "store it to a tensor, which the next kernel reads"
        return Lost(name, kind, line, is_tile, _type_name(found.value), found.loop, told)

    def changing(self, name: str, container: Any, method: str) -> None:
        """Before `name.append(…)` and the like."""
        fix = "use T.alloc_local(shape, dtype), or unroll the loop: a tuple instead of range"
        self._changes_once(name, container, method, fix)

    def _changes_once(self, name: str, container: Any, what: str, fix: str) -> None:
        old = self.bindings.get(name)
        outside = old is None or old.frame is not self.top()
        if isinstance(container, (list, dict, set)) and self.top() is not None and outside:
            held = container.values() if isinstance(container, dict) else container
            if any(hasattr(each, "tile_value") for each in held):
                fix = _NAMES_OF_THEIR_OWN
            raise CompileError(
                f"{name!r} is a Python {type(container).__name__}: {what} inside a run-time loop "
                "or branch would happen once, at compile time",
                fix=fix,
                code="python",
            )

    def storing(self, name: str, container: Any) -> None:
        """Before `name[...] = …`: a Python container changes once, at compile time."""
        if isinstance(container, Expr):
            raise CompileError(
                f"{name!r} is a number, of type {container.dtype}: it has no elements to store to",
                fix="store to a tensor or a tile",
                code="whole-tile",
            )
        fix = "use T.alloc_local(shape, dtype) or an alloc_var"
        self._changes_once(name, container, "a store", fix)

    def set_attribute(self, owner: Any, name: str, value: Any) -> None:
        old = getattr(owner, name, None)
        if isinstance(old, Variable) and is_number(value):
            old.assign(value)
            return
        if self.top() is not None and not isinstance(value, Variable) and old is not None:
            raise CompileError(
                f"attribute {name!r} is rebound inside a run-time loop or branch",
                fix=_NAMES_OF_THEIR_OWN if hasattr(old, "tile_value") else "make it an alloc_var",
            )
        value = self.held(value, name)
        setattr(owner, name, value)

    def entering(self, manager: Any, names: tuple[str, ...], unpacked: bool) -> Any:
        """The context manager of a `with`; `unpacked`: `as (bx,)`."""
        if isinstance(manager, Opened):
            manager.names, manager.unpacked = names, unpacked
        return manager

    def expression(self, value: Any) -> Any:
        """A statement that is only an expression."""
        return not_lost(value)


def _type_name(value: Any) -> str:
    """The type that a variable for `value` has, or ''."""
    if isinstance(value, (bool, int, float)):
        return {bool: "bool", int: "int32", float: "float32"}[type(value)]
    return str(value.dtype) if is_runtime(value) or isinstance(value, Const) else ""
