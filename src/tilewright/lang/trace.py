"""Running a rewritten function once, to build its program."""

from __future__ import annotations

import ast
import builtins
import difflib
import functools
import inspect
import linecache
import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from types import FrameType, FunctionType
from typing import Any

from tilewright.ir.op import Program
from tilewright.lang.builder import Builder, Probed, building, current
from tilewright.lang.check import check_program
from tilewright.lang.env import Binding, Env
from tilewright.lang.handles import Access, Tile, Tiles, Variable, describe
from tilewright.lang.params import add_parameter
from tilewright.lang.rewrite import find_definition, location, rewrite
from tilewright.lang.scalar import Lost, is_runtime
from tilewright.lang.types import Ref, ScalarType, TensorType
from tilewright.lang.where import locate, locate_traceback, set_root
from tilewright.support.errors import CompileError, Loc, TilewrightError, entry, locating


@dataclass(frozen=True)
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


@entry
def prim_func(function: Any = None, **_: Any) -> Any:
    """Trace a kernel function whose parameters are annotated with tensors and scalars."""
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
    builder = Builder(function.__name__)
    builder.loc = _definition_loc(function)
    annotations = _annotations(function, names)

    def call(run: FunctionType) -> Any:
        given = {}
        for name in _parameter_names(function):
            place = _parameter_loc(function, name)
            with locating(lambda place=place: place):  # type: ignore[misc]
                if name not in annotations:
                    raise CompileError(
                        f"parameter {name!r} of {function.__name__} has no annotation",
                        expected="T.Tensor(shape, dtype) or a scalar type such as T.int32",
                        fix=f'write {name}: T.Tensor((M, N), "float32")',
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
                    raise _bad_annotation(function, name, error, scope) from error
        found[name] = value
    return found


def _bad_annotation(
    function: FunctionType, name: str, error: Exception, scope: dict[str, Any]
) -> CompileError:
    loc = _parameter_loc(function, name)
    if isinstance(error, TilewrightError):
        said = error.diagnostic
        return CompileError(
            f"the annotation of {name!r}: {said.message}",
            loc=loc, expected=said.expected, got=said.got, fix=said.fix,
        )  # fmt: skip
    fix = ""
    if isinstance(error, NameError):
        missing = getattr(error, "name", None) or ""
        fix = _suggest(missing, [*scope, *function.__globals__]) or (
            f"bind {missing} before the kernel: a factory's argument, a number, or "
            f"T.dynamic({missing!r})"
        )
    return CompileError(f"the annotation of {name!r} does not evaluate: {error}", loc=loc, fix=fix)


def _parameter_loc(function: FunctionType, name: str) -> Loc:
    """Where the signature has a parameter."""
    try:
        arguments = find_definition(function).args
    except TilewrightError:
        return _definition_loc(function)
    for each in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
        if each.arg == name:
            return location(each, function.__code__.co_filename)
    return _definition_loc(function)


def _definition_loc(function: FunctionType) -> Loc:
    code = function.__code__
    try:
        node = find_definition(function)
    except TilewrightError:
        return Loc(code.co_filename, code.co_firstlineno)
    column = node.col_offset + 1
    return Loc(code.co_filename, node.lineno, column, column + len(f"def {node.name}"))


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
        raise CompileError(
            "the kernel recurses without end",
            loc=loc,
            fix="a macro is inlined where it is called: end the recursion by an `if` over "
            "compile-time values, or loop",
        ) from error
    except Exception as error:
        raise _explained(error) from error


set_root(_guarded.__code__)


def _enter(builder: Builder, word: str) -> Callable[[dict[str, Any]], Env]:
    def enter(parameters: dict[str, Any]) -> Env:
        env = Env(builder, word)
        env.parameters(parameters)
        return env

    return enter


# how Python's own messages call an expression
_CLASSES = re.compile(r"'(Var|Bin|Cmp|Select|Cast|Call|Load|Const|Access|Variable)' object")


def _explained(error: Exception) -> CompileError:
    """A Python error in the user's compile-time code, at its place."""
    loc, frame = locate_traceback(error.__traceback__)
    said = _CLASSES.sub("a run-time value", str(error))
    message = f"{type(error).__name__}: {said}"
    name = getattr(error, "name", None)
    if isinstance(error, UnboundLocalError):
        unbound = re.search(r"'(\w+)'", str(error))
        name = unbound.group(1) if unbound else "a name"
        return CompileError(
            f"{name!r} is used before it has a value", loc=loc, fix=f"assign to {name} above"
        )
    if isinstance(error, NameError) and name and frame is not None:
        known = [*frame.f_locals, *frame.f_globals, *dir(builtins)]
        close = _suggest(name, [k for k in known if not k.startswith("_tw_")])
        return CompileError(message, loc=loc, fix=close or f"define {name} before it is used")
    if isinstance(error, AttributeError) and name:
        owner = getattr(error, "obj", None)
        kind = owner if isinstance(owner, type) else type(owner)
        return CompileError(
            f"AttributeError: {kind.__name__} has no attribute {name!r}",
            loc=loc,
            fix=_suggest(name, dir(owner)),
        )
    if isinstance(error, TypeError) and loc is not None and frame is not None:
        called = _called(loc, frame)
        if called is not None and f"{called[1].__name__}()" in message:
            return _bad_call(message, loc, *called)
    fix = "a run-time value is a number: index a tensor or a tile" if "subscript" in said else ""
    return CompileError(message, loc=loc, notes=("this Python ran at compile time",), fix=fix)


def _called(loc: Loc, frame: FrameType) -> tuple[str, Any] | None:
    """What the call at `loc` names, and the function itself."""
    text = linecache.getline(loc.file, loc.line)[loc.column - 1 :]
    found = re.match(r"[A-Za-z_][\w.]*(?=\()", text)
    if found is None:
        return None
    first, *rest = found.group().split(".")
    value = frame.f_locals.get(first, frame.f_globals.get(first))
    for part in rest:
        value = getattr(value, part, None)
    return (found.group(), value) if hasattr(value, "__name__") else None


def _bad_call(message: str, loc: Loc, name: str, function: Any) -> CompileError:
    """Arguments that a word or a macro does not take."""
    try:
        parameters = inspect.signature(function).parameters
    except (TypeError, ValueError):
        return CompileError(message, loc=loc)
    shown = ", ".join(
        str(p.replace(annotation=inspect.Parameter.empty)) for p in parameters.values()
    )
    wrong = re.search(r"unexpected keyword argument '(\w+)'", message)
    fix = ""
    if wrong:
        fix = _suggest(wrong.group(1), list(parameters)) or f"leave {wrong.group(1)} out"
    said = message.split("() ", 1)[-1]
    return CompileError(f"{name}: {said}", loc=loc, expected=f"{name}({shown})", fix=fix)


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
        self._make: Callable[[Any], FunctionType] | None = None

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else functools.partial(self, instance)

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        builder = current(self.function.__name__)
        loc = locate()
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
                _check_argument(self.function.__name__, name, value, annotation, loc)
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


def _check_argument(
    macro_name: str, name: str, value: Any, annotation: Any, loc: Loc | None
) -> None:
    if annotation is None:
        return
    wanted = annotation.space if isinstance(annotation, TensorType) else None
    bare = getattr(annotation, "space", None) if not isinstance(annotation, TensorType) else None
    if annotation is Ref and not isinstance(value, (Variable, Access)):
        raise CompileError(
            f"{name!r} of {macro_name} is assigned to by the macro",
            loc=loc,
            expected="an alloc_var or an element of a buffer",
            got=describe(value),
            fix=f"pass a T.alloc_var, or drop the T.Ref of {name!r}",
        )
    space = wanted or bare
    if space is None:
        return
    if not isinstance(value, (Tile, Tiles)) or value.buffer.space is not space:
        raise CompileError(
            f"{name!r} of {macro_name} must be a {space.value} buffer",
            loc=loc,
            got=describe(value),
            fix=f"pass a buffer in {space.value} memory, or change the annotation of {name!r}",
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
