"""Running a rewritten function once, to build its program."""

from __future__ import annotations

import functools
import inspect
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from types import FrameType, FunctionType
from typing import Any, TypeAlias

import numpy as np

from tilewright.lang.builder import NAME_PARTS, Probed, Sizes, TracedAgain, building
from tilewright.lang.carry import named
from tilewright.lang.check import check_program
from tilewright.lang.core import *
from tilewright.lang.env import Env
from tilewright.lang.joined import find_joined
from tilewright.lang.meanings import explained
from tilewright.lang.params import Undeclared, add_parameter
from tilewright.lang.rewrite import find_definition, location, rewrite
from tilewright.lang.scalar import as_number, is_runtime, not_lost
from tilewright.lang.shares import add_rest, rest_sizes
from tilewright.lang.sizes import Traced, beside_products, check_chosen, choose_sizes
from tilewright.lang.types import Ref, ScalarType, TensorType
from tilewright.lang.values import Value, again
from tilewright.lang.where import frames_of_theirs, locate_traceback, set_root
from tilewright.support import limits
from tilewright.support.content_key import IMPORT, loaded
from tilewright.support.definitions import arguments_of
from tilewright.support.errors import TilewrightError, locating, suggest
from tilewright.support.key_rules import Same


@dataclass(frozen=True, repr=False)
class PrimFunc:
    """A traced kernel function."""

    name: str
    program: Program
    fn: Callable[..., Any] = field(compare=False)
    outputs: tuple[str, ...] = ()

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CompileError(
            f"{self.name} is a prim_func: it is compiled, then called",
            fix="return it from a function under @tw.jit, or tw.compile(it)",
            code="arguments",
        )

    @property
    def out_idx(self) -> list[int]:
        """The places of `outputs` among the parameters."""
        return [[p.name for p in self.program.params].index(o) for o in self.outputs]

    def __content_parts__(self) -> tuple[Any, ...]:
        return (Same(self.program), self.outputs)

    def __repr__(self) -> str:
        from tilewright.ir.text import print_signature

        return f"<prim_func {print_signature(self.program)}>"

    def __str__(self) -> str:
        from tilewright.ir.text import print_program

        return print_program(self.program)

    def script(self) -> str:
        """The program as text."""
        return str(self)


@dataclass(frozen=True)
class DirectTrace:
    """A direct-style function traced for given arguments.

    `arguments` names the parameters that the call's own arguments fill, in the program's order;
    `outputs` the `T.empty` tensors it returns, in order; `named` the `T.const` sizes, `empty` those
    that are 0.
    `why` says by kernel what its tiles were chosen from, `sizes` those that were chosen,
    `has_other` that another choice can be tried, `is_measured` that this one was, `is_ranged` that
    it is for a range of the sizes that launches give.
    """

    program: Program
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    single: bool = True
    why: Mapping[str, str] = field(default_factory=dict)
    has_other: bool = False
    is_measured: bool = False
    is_ranged: bool = False
    sizes: Sizes = field(default_factory=Sizes)
    named: tuple[str, ...] = ()
    empty: frozenset[str] = frozenset()


@entry
def prim_func(function: Any = None, **_: Any) -> Any:
    """Trace a kernel function whose parameters are annotated with tensors and scalars.

    The body runs once, now, to build the program; `.program` is what it built, `tw.compile`
    compiles it, and a factory under `@tw.jit` returns it.

    >>> @T.prim_func
    ... def add_one(A: T.Tensor((4,), "int32"), n: T.int32):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             A[i] = A[i] + n
    >>> a = np.zeros(4, np.int32)
    >>> tw.compile(add_one, target="interp")(a, 1)
    >>> a.tolist()
    [1, 1, 1, 1]
    """
    if function is None:
        return prim_func
    frame = sys._getframe(2)  # past `entry`
    return _prim_func(function, _visible(frame))


def _visible(frame: FrameType) -> dict[str, Any]:
    """Names that an annotation kept as a string may mean, besides globals and the closure."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _prim_func(function: FunctionType, names: dict[str, Any]) -> PrimFunc:
    if not isinstance(function, FunctionType):
        raise CompileError(
            "T.prim_func takes a function", got=repr(function)[:60], fix="write it above a `def`"
        )
    annotations = _annotations(function, names)

    def fresh() -> Builder:
        builder = Builder(function.__name__)
        builder.loc = _loc_of(function)
        return builder

    def call(into: Builder, run: FunctionType) -> Any:
        given = {}
        for name in _parameter_names(function):
            with at(_loc_of(function, name)):
                if name not in annotations:
                    raise CompileError(
                        f"parameter {name!r} of {function.__name__} has no annotation",
                        expected="T.Tensor(shape, dtype) or a scalar type such as T.int32",
                        fix="define the kernel outside the class, or inside a method"
                        if name == "self"
                        else f'write {name}: T.Tensor((M, N), "float32")',
                        code="annotation",
                    )
                given[name] = add_parameter(into, name, annotations[name])
        return run(**given)

    builder, returned = _with_sizes(function, fresh, call)
    outputs = _outputs(builder, returned)
    program = builder.finish()
    check_program(program)
    return PrimFunc(builder.name, program, function, outputs)


def _parameter_names(function: FunctionType) -> tuple[str, ...]:
    code = function.__code__
    if code.co_flags & 0x0C:
        raise CompileError(
            f"{function.__name__} takes *args or **kwargs",
            loc=_loc_of(function),
            fix="name every parameter",
            code="annotation",
        )
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _annotations(function: FunctionType, names: dict[str, Any]) -> dict[str, Any]:
    """The signature's annotations, evaluated when the file keeps them as strings."""
    scope = names | _closure(function)
    found = {}
    for name, value in function.__annotations__.items():
        if isinstance(value, str) and not isinstance(value, ScalarType) and name != "return":
            try:
                value = eval(value, function.__globals__, scope)
            except Exception as error:
                try:
                    value = ScalarType(value)
                except CompileError:
                    raise _bad_annotation(function, name, error, scope) from error
        found[name] = value
    return found


def _closure(function: FunctionType) -> dict[str, Any]:
    """The names of enclosing functions that `function` uses, as far as they are bound."""
    found = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    return found


def _bad_annotation(
    function: FunctionType, name: str, error: Exception, scope: dict[str, Any]
) -> CompileError:
    loc = _loc_of(function, name)
    if isinstance(error, TilewrightError):
        message = f"the annotation of {name!r}: {error.message}"
        return CompileError(**{**vars(error.diagnostic), "message": message, "loc": loc})
    fix, repair = 'write it as T.Tensor((M, N), "float32")', None
    if isinstance(error, NameError):
        missing = getattr(error, "name", None) or ""
        fix, repair = suggest(
            missing,
            [*scope, *function.__globals__],
            f"bind {missing} before the kernel: a factory's argument, a number, or "
            f"T.dynamic({missing!r})",
        )
    return CompileError(
        f"the annotation of {name!r} does not evaluate: {error}",
        loc=loc,
        fix=fix,
        code="annotation",
        repair=repair,
    )


def _loc_of(function: FunctionType, parameter: str = "") -> Loc:
    """Where a function, or a parameter of its signature, is defined."""
    file = function.__code__.co_filename
    try:
        node = find_definition(function)
    except TilewrightError:
        return Loc(file, function.__code__.co_firstlineno)
    for each in arguments_of(node):
        if each.arg == parameter:
            return location(each, file)
    column = node.col_offset + 1
    return Loc(file, node.lineno, column, column + len(f"def {node.name}"))


# ── running ──────────────────────────────────────────────────────────────────────────────────


def _run(function: FunctionType, builder: Builder, call: Callable[[FunctionType], Any]) -> Any:
    make = rewrite(function)
    builder.symbols.closure, builder.symbols.scope = _closure(function), function.__globals__

    def enter(parameters: dict[str, Any]) -> Env:
        env = Env(builder)
        env.parameters(parameters)
        return env

    with building(builder), locating(locate):
        return _guarded(call, make(enter))


# sizes for what a first trace left open; a kernel that adds up sums is no part of what `Traced`
# gives
Pick: TypeAlias = Callable[[Builder, Traced], Sizes]


def _default(builder: Builder, _: Traced) -> Sizes:
    return choose_sizes(builder)


def _with_sizes(
    function: FunctionType,
    fresh: Callable[[], Builder],
    call: Callable[[Builder, FunctionType], Any],
    pick: Pick = _default,
) -> tuple[Builder, Any]:
    """Run the function; where it leaves sizes of tiles open, once to see what they are for, and
    again with the sizes chosen."""

    def run(
        sizes: Sizes | None, last: Any, is_sized: bool = True, only: int | None = None
    ) -> tuple[Builder, Any]:
        while True:
            builder = fresh()
            if only is not None:
                builder.only = only, first.kernels
            if last is not None:
                builder.carried, builder.kept = last.carried, last.kept
                builder.carried_scalars = last.carried_scalars
            if sizes is not None:
                builder.sizes, builder.is_sized = sizes, is_sized
            try:
                return builder, _run(function, builder, functools.partial(call, builder))
            except TracedAgain:
                last = builder

    first, _ = found = run(None, None)
    if joined := find_joined(first):
        first, _ = found = run(Sizes(joined=joined), first, False)
    if first.open_tiles or first.extents or first.products:
        sizes = pick(first, lambda sizes, only: run(sizes, first, only=only)[0].finish())
        if sizes.numbers:
            open_ones = Sizes(numbers=sizes.numbers, joined=sizes.joined)
            sizes = beside_products(sizes, run(open_ones, first, False)[0])
        if sizes != Sizes() or first.scanned:
            found = run(sizes, first)
        if sizes.parts:
            add_rest(found[0], run(rest_sizes(sizes, found[0]), first)[0])
    check_chosen(found[0])
    return found


def _guarded(call: Callable[[FunctionType], Any], function: FunctionType) -> Any:
    try:
        return call(function)
    except (TilewrightError, TracedAgain):
        raise
    except RecursionError as error:
        loc, _ = locate_traceback(error.__traceback__)
        if frames_of_theirs(error.__traceback__) < 64:  # their code is not what is deep
            limits.DEPTH.check(10**9, "this expression is too deep", loc=loc, fix=NAME_PARTS)
        raise CompileError(
            "the kernel's functions recurse without end",
            loc=loc,
            fix="end the recursion by an `if` over compile-time values, or loop",
            code="too-large",
        ) from error
    except Exception as error:
        raise explained(error) from error


set_root(_guarded.__code__)


def _outputs(builder: Builder, returned: Any) -> tuple[str, ...]:
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    names = []
    for part in parts:
        if part is None:
            continue
        if not (type(part) is Tile and part.name in builder.outputs):
            raise CompileError(
                f"{builder.name} returns something that is no output",
                loc=builder.loc,
                expected="tensors made by T.empty",
                got=describe(part),
                fix="an argument that the kernel writes is changed in place: leave it out of the "
                "`return`",
            )
        names.append(part.name)
    for name in builder.outputs:
        if name not in names:
            raise CompileError(
                f"{name} comes from T.empty but is not returned",
                loc=builder.loc,
                fix=f"return {name}, or use T.alloc_global for scratch",
            )
    return tuple(names)


# ── macros ───────────────────────────────────────────────────────────────────────────────────


class Macro:
    """A function whose body is rewritten and inlined where it is called."""

    def __init__(self, function: FunctionType, names: dict[str, Any]) -> None:
        functools.update_wrapper(self, function)
        self.function = function
        self.names = names

    def __content_parts__(self) -> tuple[Any, ...]:
        """What a macro is, as part of the key of kernels that use it."""
        texts = [a for a in self.function.__annotations__.values() if isinstance(a, str)]
        said = {name for text in texts for name in re.findall(r"\w+", text)}
        return (self.function, *((n, v) for n, v in self.names.items() if n in said))

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        builder = current(f"the macro {self.function.__name__}")
        builder.enter_macro(self.function.__name__)
        loc = locate()
        make = rewrite(self.function)
        hint, builder.hint = builder.hint, None
        annotations = _annotations(self.function, self.names)
        env = Env(builder)

        def enter(parameters: dict[str, Any]) -> Env:
            for name, value in parameters.items():
                annotation = annotations.get(name)
                _check_argument(self.function.__name__, name, value, annotation, loc)
                if isinstance(value, Access):
                    if annotation is Ref:
                        env.refs.add(name)
                        value.live = True
                    else:
                        value.keep(name, builder.writes(value.buffer))
            env.parameters(parameters)
            return env

        names = inspect.signature(self.function).parameters
        result = make(enter)(
            *(_argument(builder, a, name) for a, name in zip_longest(args, [*names][: len(args)])),
            **{name: _argument(builder, a, name) for name, a in kwargs.items()},
        )
        builder.hint = hint
        builder.macros -= 1
        own = [b.value for b in env.bindings.values() if b.loc is not None]
        for part in result if isinstance(result, (tuple, list)) else (result,):
            if isinstance(part, Variable) and any(part is v for v in own):
                part.named = False  # it may take a new name
        return result


def _argument(builder: Builder, value: Any, name: str | None) -> Any:
    """Arguments are read once, where the macro is called; values get its names."""
    if isinstance(value, Value):
        return named(again(value), name)
    is_place = isinstance(not_lost(value), (Access, Variable))
    return as_number(builder.snapshot(value)) if is_runtime(value) and not is_place else value


def _check_argument(
    macro_name: str, name: str, value: Any, annotation: Any, loc: Loc | None
) -> None:
    if annotation is Ref and not isinstance(value, (Variable, Access)):
        raise CompileError(
            f"{name!r} of {macro_name} is assigned to by the macro",
            loc=loc,
            expected="an alloc_var or an element of a buffer",
            got=describe(value),
            fix=f"pass a T.alloc_var, or drop the T.Ref of {name!r}",
        )
    space = getattr(annotation, "space", None)  # of a type, or of a bare T.SharedBuffer
    if space is None:
        return
    if not isinstance(value, Tile) or value.buffer.space is not space:
        raise CompileError(
            f"{name!r} of {macro_name} must be a {space.value} buffer",
            loc=loc,
            got=describe(value),
            fix=f"pass a buffer in {space.value} memory, or change the annotation of {name!r}",
        )


def macro(function: Any = None, **_: Any) -> Any:
    """A helper whose body is part of the kernel: it is inlined where it is called.

    >>> @T.macro
    ... def scale(tile: T.FragmentBuffer, by):
    ...     for i in T.Parallel(4):
    ...         tile[i] = tile[i] * by
    >>> @T.prim_func
    ... def twelvefold(A: T.Tensor((4,), "int32")):
    ...     with T.Kernel(1, threads=32):
    ...         a = T.alloc_fragment((4,), "int32")
    ...         T.copy(A, a)
    ...         scale(a, 3)
    ...         scale(a, 4)
    ...         T.copy(a, A)
    >>> a = np.arange(4, dtype=np.int32)
    >>> tw.compile(twelvefold, target="interp")(a)
    >>> a.tolist()
    [0, 12, 24, 36]
    """
    if function is None:
        return macro
    return Macro(function, _visible(sys._getframe(1)))


# ── direct style ─────────────────────────────────────────────────────────────────────────────

_DIRECT_WORDS = {"Kernel", "const", "empty", "tile"}


def is_direct(function: Any) -> bool:
    """Whether a function is itself a kernel's text, rather than a factory of `prim_func`s."""
    function = getattr(function, "__wrapped__", function)
    if not isinstance(function, FunctionType):
        return False
    try:
        find_definition(function)  # its text stays known, whatever happens to the file
    except TilewrightError:
        return False
    for path, *_ in loaded(function.__code__):
        owner = function.__globals__.get(path[0]) if len(path) == 2 else None
        # `T.Kernel` of our `T`, however it was imported
        ours = owner is None or getattr(owner, "__name__", "").endswith("language")
        # a factory may call something of its own `tile`
        is_word = path[-1] in _DIRECT_WORDS and (len(path) == 2 or path[-1] != "tile")
        if is_word and path[0] != IMPORT and ours:
            return True
    return False


def trace_direct(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    consts: Mapping[str, int] | None = None,
    stand_in: int | None = None,
    pick: Pick = _default,
) -> DirectTrace:
    """Trace a direct-style function for the arguments of a call.

    Arguments that are left out are the arrays of later calls; `consts` gives `T.const` sizes by
    name then, and `stand_in` those that have none. `pick` chooses sizes of tiles.
    """
    signature = inspect.signature(function)
    bound = signature.bind_partial(*args, **(kwargs or {}))
    bound.apply_defaults()
    arguments = {n: bound.arguments.get(n, MISSING) for n in signature.parameters}
    annotations = _annotations(function, {})
    arrays = {n: v for n, v in arguments.items() if v is MISSING or is_array(v)}
    loc = _loc_of(function)

    def fresh(probe: Builder | None = None) -> Builder:
        builder = Builder(function.__name__)
        builder.loc = loc
        builder.arguments = {n: None if v is MISSING else v for n, v in arrays.items()}
        builder.plain = {n: v for n, v in arguments.items() if n not in arrays}
        builder.consts, builder.stand_in = dict(consts or {}), stand_in
        if probe is not None:  # all candidates of a choice have the sizes that one probe found
            builder.consts, builder.probe_error = dict(probe.consts), probe.probe_error
        return builder

    def call(into: Builder, run: FunctionType) -> Any:
        given = {}
        for name, value in arguments.items():
            annotation = annotations.get(name)
            if isinstance(annotation, (TensorType, ScalarType)):
                given[name] = add_parameter(into, name, annotation)
                into.declared.append(name)
            else:
                given[name] = Undeclared(name, value is MISSING) if name in arrays else value
        return run(**given)

    probe = fresh()
    _find_sizes(function, probe, call)
    builder, returned = _with_sizes(function, functools.partial(fresh, probe), call, pick)
    outputs = _outputs(builder, returned)
    for name in consts or ():
        if name not in builder.asked:
            raise CompileError(
                f"{function.__name__} has no parameter and no T.const size {name!r}",
                loc=builder.loc,
                expected=" or ".join(builder.asked),
                got=name,
                fix=suggest(name, [n for n in (*arguments, *builder.asked) if n != name])[0],
                code="arguments",
            )
    order = [n for n in arguments if n in builder.declared]
    builder.params.sort(key=lambda p: order.index(p.name) if p.name in order else len(order))
    program = builder.finish()
    check_program(program)
    single = not isinstance(returned, (tuple, list))
    sizes = tuple(dict.fromkeys(builder.asked))
    empty = frozenset(name for name in sizes if builder.consts.get(name) == 0)
    return DirectTrace(program, tuple(order), outputs, single, named=sizes, empty=empty)


def _find_sizes(
    function: FunctionType, probe: Builder, call: Callable[[Builder, FunctionType], Any]
) -> None:
    """The sizes that `T.const` names: run the function up to its first kernel with the sizes
    unknown, and see which shapes its declarations give them."""
    if "const" not in function.__code__.co_names:
        return
    probe.probing, probe.stand_in = True, None
    try:
        _run(function, probe, functools.partial(call, probe))
    except CompileError as error:
        # what goes wrong with unknown sizes goes wrong again, and better said, with known ones;
        # it is of interest only where it kept a size from being known
        if not isinstance(error.__cause__, Probed):
            probe.probe_error = error


MISSING = object()


def is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype") and not isinstance(value, np.generic)
