"""Running a rewritten function once, to build its program."""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

from tilewright.ir.op import Program
from tilewright.lang.builder import Builder, Probed, building, current
from tilewright.lang.check import check_program
from tilewright.lang.env import Binding, Env
from tilewright.lang.handles import Access, Tile, Tiles, Variable
from tilewright.lang.params import add_parameter
from tilewright.lang.rewrite import find_definition, rewrite
from tilewright.lang.scalar import Lost, is_runtime
from tilewright.lang.types import Ref, ScalarType, TensorType
from tilewright.lang.where import locate, locate_traceback, set_root
from tilewright.support.errors import CompileError, Loc, TilewrightError, locating


@dataclass(frozen=True)
class PrimFunc:
    """A traced kernel function."""

    name: str
    program: Program
    fn: Callable[..., Any] = field(compare=False)
    outputs: tuple[str, ...] = ()

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        raise CompileError(
            f"{self.name} is a prim_func: it is compiled, then called",
            fix="return it from a function under @tw.jit, or tw.compile(it)",
        )

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
    `outputs` the `T.empty` tensors it returns, in order.
    """

    program: Program
    arguments: tuple[str, ...]
    outputs: tuple[str, ...]
    single: bool = True


def prim_func(function: Any = None, **_: Any) -> Any:
    """Trace a kernel function whose parameters are annotated with tensors and scalars."""
    if function is None:
        return prim_func
    frame = sys._getframe(1)
    return _prim_func(function, _visible(frame))


def _visible(frame: FrameType) -> dict[str, Any]:
    """Names that an annotation kept as a string may mean, besides globals and the closure."""
    return {} if frame.f_locals is frame.f_globals else dict(frame.f_locals)


def _prim_func(function: FunctionType, names: dict[str, Any]) -> PrimFunc:
    builder = Builder(function.__name__)
    builder.loc = _definition_loc(function)
    annotations = _annotations(function, names)

    def call(run: FunctionType) -> Any:
        given = {}
        for name in _parameter_names(function):
            with locating(lambda: builder.loc):
                if name not in annotations:
                    raise CompileError(
                        f"parameter {name!r} of {function.__name__} has no annotation",
                        expected="T.Tensor(shape, dtype) or a scalar type such as T.int32",
                    )
                given[name] = add_parameter(builder, name, annotations[name])
        return run(**given)

    returned = _run(function, builder, call, "prim_func")
    outputs = _outputs(builder, returned)
    program = builder.finish()
    check_program(program)
    return PrimFunc(builder.name, program, function, outputs)


def _parameter_names(function: FunctionType) -> tuple[str, ...]:
    code = function.__code__
    if code.co_flags & 0x0C:
        raise CompileError(
            f"{function.__name__} takes *args or **kwargs",
            loc=_definition_loc(function),
            fix="name every parameter",
        )
    return code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]


def _annotations(function: FunctionType, names: dict[str, Any]) -> dict[str, Any]:
    """The signature's annotations, evaluated when the file keeps them as strings."""
    scope = dict(names)
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            scope[name] = cell.cell_contents
        except ValueError:  # not bound yet
            continue
    found = {}
    for name, value in function.__annotations__.items():
        if isinstance(value, str) and not isinstance(value, ScalarType) and name != "return":
            try:
                value = eval(value, function.__globals__, scope)
            except Exception as error:
                try:
                    value = ScalarType(value)
                except CompileError:
                    raise CompileError(
                        f"the annotation of {name!r} does not evaluate: {error}",
                        loc=_definition_loc(function),
                        got=value,
                    ) from error
        found[name] = value
    return found


def _definition_loc(function: FunctionType) -> Loc:
    code = function.__code__
    try:
        node = find_definition(function)
    except TilewrightError:
        return Loc(code.co_filename, code.co_firstlineno)
    return Loc(code.co_filename, node.lineno, node.col_offset + 1)


# ── running ──────────────────────────────────────────────────────────────────────────────────


def _run(
    function: FunctionType, builder: Builder, call: Callable[[FunctionType], Any], word: str
) -> Any:
    make = rewrite(function)
    with building(builder), locating(locate):
        return _guarded(call, make(_enter(builder, word)))


def _guarded(call: Callable[[FunctionType], Any], function: FunctionType) -> Any:
    try:
        return call(function)
    except TilewrightError:
        raise
    except RecursionError as error:
        loc, _ = locate_traceback(error.__traceback__)
        raise CompileError("the kernel recurses without end", loc=loc) from error
    except Exception as error:
        raise _explained(error) from error


set_root(_guarded.__code__)


def _enter(builder: Builder, word: str) -> Callable[[dict[str, Any]], Env]:
    def enter(parameters: dict[str, Any]) -> Env:
        env = Env(builder, word)
        env.parameters(parameters)
        return env

    return enter


def _explained(error: Exception) -> CompileError:
    """A Python error in the user's compile-time code, at its place."""
    loc, frame = locate_traceback(error.__traceback__)
    name = getattr(error, "name", None)
    fix = ""
    if isinstance(error, NameError) and name and frame is not None:
        known = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
        fix = _suggest(name, [k for k in known if not k.startswith("_tw_")])
    elif isinstance(error, AttributeError) and name:
        fix = _suggest(name, dir(getattr(error, "obj", None)))
    return CompileError(f"{type(error).__name__}: {error}", loc=loc, fix=fix)


def _suggest(name: str, known: list[str]) -> str:
    close = difflib.get_close_matches(name, known, 1)
    return f"did you mean {close[0]!r}?" if close else ""


def _outputs(builder: Builder, returned: Any) -> tuple[str, ...]:
    parts = returned if isinstance(returned, (tuple, list)) else (returned,)
    names = []
    for part in parts:
        if part is None:
            continue
        if not (isinstance(part, Tile) and part.name in builder.outputs):
            raise CompileError(
                f"{builder.name} returns something that is no output",
                loc=builder.loc,
                expected="tensors made by T.empty",
                got=repr(part)[:60],
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
        self._make: Callable[[Any], FunctionType] | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        builder = current(self.function.__name__)
        if self._make is None:
            self._make = rewrite(self.function)
        hint, builder.hint = builder.hint, None
        annotations = _annotations(self.function, self.names)
        made: list[Env] = []

        def enter(parameters: dict[str, Any]) -> Env:
            env = Env(builder, "macro")
            made.append(env)
            for name, value in parameters.items():
                annotation = annotations.get(name)
                _check_argument(self.function.__name__, name, value, annotation)
                if isinstance(value, Access):
                    if annotation is Ref:
                        env.refs.add(name)
                    else:
                        value.keep(name, builder.writes(value.buffer))
            env.parameters(parameters)
            return env

        result = self._make(enter)(
            *(_argument(builder, a) for a in args),
            **{name: _argument(builder, a) for name, a in kwargs.items()},
        )
        builder.hint = hint
        for env in made:
            _release(result, env)
        return result


def _argument(builder: Builder, value: Any) -> Any:
    """Arguments are read once, where the macro is called."""
    if isinstance(value, Lost):
        value.fail()
    return builder.snapshot(value) if is_runtime(value) and not _is_place(value) else value


def _is_place(value: Any) -> bool:
    return isinstance(value, (Access, Variable))


def _release(result: Any, env: Env) -> None:
    """A variable that a macro made and returns may take a new name."""
    own = [b.value for b in env.bindings.values() if isinstance(b, Binding) and b.loc is not None]
    for part in result if isinstance(result, (tuple, list)) else (result,):
        if isinstance(part, Variable) and any(part is v for v in own):
            part.named = False


def _check_argument(macro_name: str, name: str, value: Any, annotation: Any) -> None:
    if annotation is None:
        return
    wanted = annotation.space if isinstance(annotation, TensorType) else None
    bare = getattr(annotation, "space", None) if not isinstance(annotation, TensorType) else None
    if annotation is Ref and not isinstance(value, (Variable, Access)):
        raise CompileError(
            f"{name!r} of {macro_name} is assigned to by the macro",
            expected="an alloc_var or an element of a buffer",
            got=repr(value)[:60],
        )
    space = wanted or bare
    if space is None or not isinstance(value, (Tile, Tiles)):
        if space is not None:
            raise CompileError(
                f"{name!r} of {macro_name} must be a {space.value} buffer", got=repr(value)[:60]
            )
        return
    if value.buffer.space is not space:
        raise CompileError(
            f"{name!r} of {macro_name} must be a {space.value} buffer", got=repr(value)
        )


def macro(function: Any = None, **_: Any) -> Any:
    """A helper whose body is part of the kernel: it is inlined where it is called."""
    if function is None:
        return macro
    return Macro(function, _visible(sys._getframe(1)))


# ── direct style ─────────────────────────────────────────────────────────────────────────────

_DIRECT_WORDS = {"Kernel", "const", "empty"}


def is_direct(function: Any) -> bool:
    """Whether a function is itself a kernel's text, rather than a factory of `prim_func`s."""
    function = getattr(function, "__wrapped__", function)
    if isinstance(function, (PrimFunc, Macro)) or not isinstance(function, FunctionType):
        return False
    try:
        node = find_definition(function)
    except TilewrightError:
        return False
    stack: list[ast.AST] = list(node.body)
    while stack:
        each = stack.pop()
        if isinstance(each, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)):
            continue
        if isinstance(each, ast.Call):
            called = each.func
            name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
            if name in _DIRECT_WORDS and _is_word(function, called):
                return True
        stack.extend(ast.iter_child_nodes(each))
    return False


def _is_word(function: FunctionType, called: ast.expr) -> bool:
    """`T.Kernel` of our `T`, however it was imported."""
    if not isinstance(called, ast.Attribute) or not isinstance(called.value, ast.Name):
        return True
    owner = function.__globals__.get(called.value.id)
    return owner is None or getattr(owner, "__name__", "").endswith("language")


def trace_direct(
    function: Any,
    args: tuple[Any, ...],
    kwargs: dict[str, Any] | None = None,
    consts: Mapping[str, int] | None = None,
) -> DirectTrace:
    """Trace a direct-style function for the arguments of a call.

    Arguments that are left out are the arrays of later calls; `consts` gives `T.const` sizes by
    name then.
    """
    import inspect

    signature = inspect.signature(function)
    bound = signature.bind_partial(*args, **(kwargs or {}))
    bound.apply_defaults()
    arguments = {n: bound.arguments.get(n, MISSING) for n in signature.parameters}
    annotations = _annotations(function, {})
    builder = Builder(function.__name__)
    builder.loc = _definition_loc(function)
    arrays = {n: v for n, v in arguments.items() if v is MISSING or _is_array(v)}
    builder.arguments = {n: None if v is MISSING else v for n, v in arrays.items()}
    builder.consts = dict(consts or {})

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

    _find_sizes(function, builder, call)
    returned = _run(function, builder, functools.partial(call, builder), "jit")
    outputs = _outputs(builder, returned)
    for name in consts or ():
        if name not in builder.asked:
            raise CompileError(
                f"{function.__name__} has no parameter and no T.const size {name!r}",
                loc=builder.loc,
                fix=_suggest(name, [*arguments, *builder.asked]),
            )
    order = [n for n in arguments if n in builder.declared]
    by_name = {p.name: p for p in builder.params}
    builder.params = [by_name[n] for n in order] + [
        p for p in builder.params if p.name not in order
    ]
    program = builder.finish()
    check_program(program)
    return DirectTrace(program, tuple(order), outputs, not isinstance(returned, (tuple, list)))


def _find_sizes(
    function: FunctionType, into: Builder, call: Callable[[Builder, FunctionType], Any]
) -> None:
    """The sizes that `T.const` names: run the function up to its first kernel with the sizes
    unknown, and see which shapes its declarations give them."""
    if "const" not in function.__code__.co_names:
        return
    probe = Builder(function.__name__)
    probe.arguments, probe.probing, probe.consts = into.arguments, True, into.consts
    try:
        _run(function, probe, functools.partial(call, probe), "jit")
    except CompileError as error:
        # what goes wrong with unknown sizes goes wrong again, and better said, with known ones;
        # it is of interest only where it kept a size from being known
        if not isinstance(error.__cause__, Probed):
            into.probe_error = error


MISSING = object()


class Undeclared:
    """An array argument before its declaration, or an argument that was left out."""

    def __init__(self, name: str, missing: bool = False) -> None:
        self.__dict__["_name"] = name
        self.__dict__["_missing"] = missing

    def _fail(self, *_: Any) -> Any:
        if self._missing:
            raise CompileError(
                f"argument {self._name!r} is missing",
                fix=f"pass {self._name}=…, or declare it if it is an array: "
                f'{self._name}: T.Tensor((M, N), "float32")',
            )
        raise CompileError(
            f"array argument {self._name!r} is used before it is declared",
            fix=f'declare it first: {self._name}: T.Tensor((M, N), "float32")',
        )

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            return object.__getattribute__(self, name)
        return self._fail()

    __getitem__ = __setitem__ = __add__ = __mul__ = __sub__ = __bool__ = _fail
    __radd__ = __rmul__ = __rsub__ = __floordiv__ = __rfloordiv__ = __mod__ = __rmod__ = _fail
    __index__ = __iter__ = __lt__ = __le__ = __gt__ = __ge__ = __neg__ = _fail


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")
