"""From a Python function to a formula: it is called once, with symbolic arrays.

Arrays carry the user's names: `s = q @ k` names the product `s`. To that end the function's text
is rewritten; where there is none, arrays are called after their operation.
"""

from __future__ import annotations

import ast
import re
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from itertools import count
from types import CellType, CodeType, FunctionType, MethodType
from typing import Any, TypeAlias

# for what operators mean
from tilewright.formula.front import elementwise, indexing, products, shapes  # noqa: F401
from tilewright.formula.front.values import Trace, Value, define, input_of, tracing
from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Array, Axis, Extent, Formula, extents, needed, tensor, verify
from tilewright.lang.where import register
from tilewright.support.definitions import FUTURE, Definition, changed, definition, with_code
from tilewright.support.errors import CompileError

Input: TypeAlias = "Buffer | tuple[str, tuple[Extent, ...], Any]"
_Call: TypeAlias = "Callable[[Mapping[str, Value]], tuple[tuple[Any, ...], dict[str, Any]]]"
_LETTERS = "ijklmnpqrstuvw"
_HOOK = "_tw_named"


def trace(
    function: Callable[..., Any],
    inputs: Sequence[Input],
    call: _Call | None = None,
    sizes: tuple[Dim, ...] = (),
    results: Callable[[Any], Sequence[Any]] | None = None,
) -> Formula:
    """The formula that `function` says of arrays like `inputs`. Shapes may name `sizes`. `call`
    makes arguments of the arrays, `results` outputs of what is returned.

    >>> def scores(q, k):
    ...     s = q @ k.mT
    ...     return s * 0.5
    >>> print(trace(scores, [("q", (4, 8), "float32"), ("k", (6, 8), "float32")]))
    formula scores(q: float32[4, 8], k: float32[6, 8]) -> out
        s[i < 4, j < 6]: float32 = sum{k1 < 8} q[i, k1] * k[j, k1]
        out[i1 < 4, j1 < 6]: float32 = s[i1, j1] * 0.5
    """
    buffers = tuple(_input(each) for each in inputs)
    made = Trace(sizes)
    with tracing(made):
        values = {b.name: input_of(b) for b in buffers}
        args, kwargs = call(values) if call is not None else (tuple(values.values()), {})
        try:
            found = with_names(function, made)(*args, **kwargs)
        except TypeError as error:
            _check_keyword(error)
            raise
        several = found if isinstance(found, (tuple, list)) else (found,)
        outputs = [_output(made, x, function) for x in (results(found) if results else several)]
        if not outputs:
            _output(made, found, function)  # which says what is wrong
    name = getattr(function, "__name__", "formula")
    name = name if name.isidentifier() else "formula"
    formula = _named(made, name, buffers, needed(made.arrays, outputs), outputs, sizes)
    verify(formula)
    return formula


_KEYWORDS = {
    "dim": "axis=",
    "keepdim": "keepdims=",
    "ddof": "correction=",
    "unbiased": "correction=1",
    "out": "nothing: assign the result to a name",
}


def _check_keyword(error: TypeError) -> None:
    """A keyword of another library has a name here; the line is that of the call."""
    found = re.search(r"(\w+)\(\) got an unexpected keyword argument '(\w+)'", str(error))
    if found is None or found[2] not in _KEYWORDS or error.__traceback__ is None:
        return
    last = traceback.extract_tb(error.__traceback__)[-1]
    raise CompileError(
        f"{found[1]} has no {found[2]}=",
        loc=Loc(last.filename, last.lineno or 0),
        fix=f"write {_KEYWORDS[found[2]]}",
    ) from None


def _input(given: Input) -> Buffer:
    if isinstance(given, Buffer):
        return given
    name, shape, dtype = given
    return tensor(name, tuple(shape), find_dtype(dtype))


def _output(trace: Trace, value: Any, function: Callable[..., Any]) -> Buffer:
    """The array that leaves the formula, rounded to its declared type."""
    if not isinstance(value, Value):
        raise CompileError(
            f"{getattr(function, '__name__', 'the function')} returns arrays",
            got=repr(value)[:80],
            fix="return an array, or a tuple of arrays",
        )
    defined = next((a for a in trace.arrays if a.buffer is value.buffer), None)
    taken = defined is None or defined.name in trace.outputs
    if defined is None or taken or not value.is_whole or value.dtype != defined.buffer.dtype:
        if defined is not None and not taken and trace.names.get(defined.name) == value.name:
            trace.names.pop(defined.name, None)  # what leaves has the name
        define("out", value.shape, value.at, value.dtype, stored=value.dtype)
        defined = trace.arrays[-1]
    trace.names.setdefault(defined.name, value.name or "out")
    trace.outputs.add(defined.name)
    return defined.buffer


# ── names ────────────────────────────────────────────────────────────────────────────────────


class Names:
    """Names that nobody has: `s`, `s1`, `s2`, …"""

    def __init__(self, taken: Iterable[str]) -> None:
        self._taken = set(taken)
        self._next: dict[str, count[int]] = {}

    def fresh(self, wish: str) -> str:
        name = wish
        while name in self._taken:
            name = f"{wish}{next(self._next.setdefault(wish, count(1)))}"
        self._taken.add(name)
        return name


def _named(
    trace: Trace,
    name: str,
    inputs: tuple[Buffer, ...],
    arrays: tuple[Array, ...],
    outputs: list[Buffer],
    sizes: tuple[Dim, ...],
) -> Formula:
    """The formula in the user's names: theirs first, then those of operations, then axes."""
    names = Names([*(b.name for b in inputs), *(size.var.name for size in sizes)])
    called: dict[str, str] = {}
    for a in sorted(arrays, key=lambda a: a.name not in trace.names):
        called[a.name] = names.fresh(trace.names.get(a.name) or trace.words[a.name])
    buffers = {a.name: tensor(called[a.name], extents(a.buffer), a.buffer.dtype) for a in arrays}
    variables: dict[Var, Var] = {}
    for a in arrays:
        for place, axis in enumerate(a.domain):
            letter = _LETTERS[place] if place < len(_LETTERS) else "x"
            wish = trace.words[axis.var.name] or letter
            if axis.var not in variables:
                variables[axis.var] = Var(names.fresh(wish))

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Var):
            return variables.get(node)
        if isinstance(node, Load) and node.buffer.name in buffers:
            return Load(buffers[node.buffer.name], node.indices, node.loc)
        return None

    def axes(given: tuple[Axis, ...]) -> tuple[Axis, ...]:
        return tuple(Axis(variables[axis.var], axis.extent) for axis in given)

    renamed = tuple(
        Array(
            buffers[a.name], axes(a.axes), transform(a.body, rule), a.monoid, axes(a.over), a.scan,
            a.by, a.name in trace.names, a.loc,
        )
        for a in arrays
    )  # fmt: skip
    return Formula(name, inputs, renamed, tuple(buffers[b.name] for b in outputs), sizes)


def _name(trace: Trace, target: Any, value: Any) -> Any:
    """`value`, which the user calls `target`: a name, or a tuple of targets."""
    if isinstance(target, tuple):
        if isinstance(value, (tuple, list)) and len(value) == len(target):
            for each, part in zip(target, value, strict=True):
                _name(trace, each, part)
    elif isinstance(value, Value) and target and not value.name:
        value.name = target
        if value.is_all and value.buffer is not None and value.buffer.name in trace.words:
            trace.names.setdefault(value.buffer.name, target)
    return value


def with_names(function: Callable[..., Any], trace: Trace) -> Callable[..., Any]:
    """`function`, which tells the trace what it calls its values."""
    if isinstance(function, MethodType):
        return MethodType(with_names(function.__func__, trace), function.__self__)
    if not isinstance(function, FunctionType) or function.__name__ == "<lambda>":
        return function
    try:
        found = definition(function)
    except CompileError:
        return function
    code = function.__code__
    new = _rewritten(found, code.co_name, code.co_freevars, code.co_flags & FUTURE)
    return with_code(function, new, CellType(lambda target, value: _name(trace, target, value)))


@lru_cache(maxsize=256)
def _rewritten(found: Definition, name: str, free: tuple[str, ...], flags: int) -> CodeType:
    new = changed(found, name, (*free, _HOOK), flags, _Namer().generic_visit)
    register(new, {})
    return new


class _Namer(ast.NodeTransformer):
    """`s = x` becomes `s = named("s", x)`."""

    def visit_Assign(self, node: ast.Assign) -> ast.AST:
        self.generic_visit(node)
        for target in node.targets:
            node.value = self._told(target, node.value)
        return node

    def visit_AnnAssign(self, node: ast.AnnAssign) -> ast.AST:
        self.generic_visit(node)
        if node.value is not None:
            node.value = self._told(node.target, node.value)
        return node

    def visit_NamedExpr(self, node: ast.NamedExpr) -> ast.AST:
        self.generic_visit(node)
        node.value = self._told(node.target, node.value)
        return node

    def visit_AugAssign(self, node: ast.AugAssign) -> Any:
        self.generic_visit(node)
        if not isinstance(node.target, ast.Name):
            return node
        made = ast.copy_location(ast.Name(node.target.id, ast.Load()), node)
        target = ast.copy_location(ast.Name(node.target.id, ast.Store()), node)
        again = ast.Assign([target], self._told(node.target, made))
        return [node, ast.copy_location(again, node)]

    def _told(self, target: ast.expr, value: ast.expr) -> ast.expr:
        name = _target(target)
        if not name:
            return value
        hook = ast.copy_location(ast.Name(_HOOK, ast.Load()), value)
        word = ast.copy_location(ast.Constant(name), value)
        return ast.copy_location(ast.Call(hook, [word, value], []), value)


def _target(node: ast.expr) -> Any:
    """The names of what is assigned: text, a tuple of such, or nothing."""
    if isinstance(node, ast.Name):
        return node.id if node.id.strip("_") else ""
    parts = node.elts if isinstance(node, (ast.Tuple, ast.List)) else []
    is_starred = any(isinstance(each, ast.Starred) for each in parts)
    return "" if is_starred else tuple(_target(each) for each in parts)
