"""From nodes to a formula: each is said by its lowering, and has the type that PyTorch gives it."""

from __future__ import annotations

import operator
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import reduce
from operator import getitem
from typing import Any

from tilewright.formula.front.trace import trace
from tilewright.formula.front.values import (
    Number,
    Trace,
    Value,
    astype,
    current,
    extent_of,
    same,
    tracing,
)
from tilewright.frameworks.torch.graph import has_tensors, lowering_of, tensors, wanted
from tilewright.frameworks.torch.lowerings import POINTWISE
from tilewright.frameworks.torch.lowerings.rows import IN_TF32
from tilewright.frameworks.torch.lowerings.words import tm
from tilewright.ir.core import *
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Extent, Formula
from tilewright.ir.simplify import simplify
from tilewright.support.errors import CompileError

TF32 = find_dtype("tfloat32")


class Unsaid(Exception):
    """A node that its lowering does not say, and why."""

    def __init__(self, node: Any, reason: str) -> None:
        super().__init__(f"{node}: {reason}")
        self.node, self.reason = node, reason


# ── sizes ────────────────────────────────────────────────────────────────────────────────────


# what sizes are made of others by, and numbers that are computed of them
_ARITHMETIC: dict[str, Callable[[Any, Any], Any]] = {
    "Add": operator.add,
    "Mul": operator.mul,
    **dict.fromkeys(("FloorDiv", "CleanDiv"), operator.floordiv),
    **dict.fromkeys(("Mod", "PythonMod"), operator.mod),
    **dict.fromkeys(("IntTrueDiv", "FloatTrueDiv"), operator.truediv),
    "Max": tm.maximum,
    "Min": tm.minimum,
}


@dataclass
class Sizes:
    """Sizes that calls give, by PyTorch's symbols. `values` has numbers where a formula is made
    for some of them."""

    values: dict[str, int] = field(default_factory=dict)
    dims: dict[str, Dim] = field(default_factory=dict)

    def extent(self, n: Any, parts: int = 1) -> Extent:
        """A size as axes have it, or one of its equal parts."""
        if isinstance(n, int):
            return n // parts
        if parts != 1:
            (symbol,) = n.node.expr.free_symbols
            return extent_of(self._said(symbol, n.node.shape_env))
        return extent_of(self._said(n.node.expr, n.node.shape_env))

    def number(self, n: Any) -> Any:
        found = n if isinstance(n, int) else self._said(n.node.expr, n.node.shape_env)
        return Number(found) if isinstance(found, Expr) else found

    def _said(self, expr: Any, env: Any) -> Any:
        name = type(expr).__name__
        if expr.is_Integer or expr.is_Float:
            return int(expr) if expr.is_Integer else float(expr)
        if expr.is_Symbol:
            return self._symbol(expr, env)
        parts = [self._said(x, env) for x in expr.args]
        numbers = [Number(x) if isinstance(x, Expr) else x for x in parts]
        if name == "Pow" and isinstance(numbers[1], int) and numbers[1] > 0:
            name, numbers = "Mul", numbers[:1] * numbers[1]
        if name == "ToFloat":
            return parts[0]
        if name not in _ARITHMETIC:
            raise CompileError(f"a size {expr}", fix="leave it to PyTorch")
        found = reduce(_ARITHMETIC[name], numbers)
        return simplify(found.expr) if isinstance(found, Number) else found

    def _symbol(self, symbol: Any, env: Any) -> Any:
        name = str(symbol)
        if name in self.values:
            return self.values[name]
        if name not in self.dims:
            known = env.var_to_range.get(symbol)
            low, high = (known.lower, known.upper) if known is not None else (1, None)
            if low < 0:
                raise CompileError(f"{name} is a number that calls give", fix="pass a tensor")
            most = int(high) if high is not None and high.is_Integer and high < 1 << 31 else None
            self.dims[name] = Dim(Var(name), max(int(low), 1), most)
        return self.dims[name].var


def symbols(values: Iterable[Any]) -> list[str]:
    """The symbols of the sizes of what nodes give."""
    found: dict[str, None] = {}
    for value in values:
        for t in tensors(value):
            for n in t.shape:
                if not isinstance(n, int):
                    found |= dict.fromkeys(sorted(map(str, n.node.expr.free_symbols)))
    return list(found)


def times_symbol(n: Any) -> int | None:
    """The number by which a size is a multiple of one that calls give, if it is more than one."""
    if isinstance(n, int) or len(n.node.expr.free_symbols) != 1:
        return None
    (symbol,) = n.node.expr.free_symbols
    found = n.node.expr / symbol
    return int(found) if found.is_Integer and found > 1 else None


def hint(n: Any) -> int:
    """A size, or what it was in the call that the graph was made for."""
    return n if isinstance(n, int) else int(n.node.hint)


# ── memory ───────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Order:
    """How elements lie: axes along which nothing changes, then the others, the longest stride
    first. Kernels take and give arrays whose elements lie in the order of their axes. A size that
    is a number times one that calls give is two axes of the kernel: `parts` has the numbers."""

    repeated: tuple[int, ...]
    axes: tuple[int, ...]
    parts: tuple[tuple[int, int], ...] = ()

    @staticmethod
    def of(tensor: Any, result: bool = False) -> Order:
        """
        >>> import torch
        >>> Order.of(torch.empty(2, 3, 4, 5).to(memory_format=torch.channels_last)).axes
        (0, 2, 3, 1)
        """
        shape, strides = [hint(n) for n in tensor.shape], [hint(n) for n in tensor.stride()]
        repeated = [] if result else [d for d, n in enumerate(shape) if n > 1 and not strides[d]]
        rest = [d for d in range(len(shape)) if d not in repeated]
        parts = [] if result else [
            (d, factor) for d in rest if (factor := times_symbol(tensor.shape[d])) is not None
        ]  # fmt: skip
        plain = Order(tuple(repeated), tuple(rest), tuple(parts))
        long = sorted((d for d in rest if shape[d] > 1), key=lambda d: (-strides[d], d))
        expected = 1
        for d in reversed(long):
            if strides[d] != expected:
                return plain
            expected *= shape[d]
        if long == sorted(long):
            return plain
        return replace(plain, axes=(*(d for d in rest if shape[d] == 1), *long))

    @property
    def is_plain(self) -> bool:
        return not (self.repeated or self.parts) and list(self.axes) == sorted(self.axes)

    def packed(self, tensor: Any) -> Any:
        """The tensor as kernels take it; no element moves."""
        for d in reversed(self.repeated):
            tensor = tensor.select(d, 0)
        kept = sorted(self.axes)
        tensor = tensor.permute([kept.index(d) for d in self.axes])
        for d, factor in sorted(self.parts, key=lambda part: -self.axes.index(part[0])):
            tensor = tensor.unflatten(self.axes.index(d), (factor, -1))
        return tensor

    def extents(self, shape: Sequence[Any], sizes: Sizes) -> tuple[Extent, ...]:
        """The shape that kernels take."""
        found: list[Extent] = []
        factors = dict(self.parts)
        for d in self.axes:
            if d in factors:
                found += [factors[d], sizes.extent(shape[d], factors[d])]
            else:
                found.append(sizes.extent(shape[d]))
        return tuple(found)

    def read(self, x: Any, shape: tuple[Any, ...]) -> Any:
        """The array of a formula that was given packed."""
        kept = sorted(self.axes)
        if self.parts:
            x = tm.reshape(x, tuple(shape[d] for d in self.axes))
        x = tm.permute_dims(x, tuple(self.axes.index(d) for d in kept))
        for d in self.repeated:
            x = tm.expand_dims(x, axis=d)
        return tm.broadcast_to(x, shape) if self.repeated else x

    def unpacked(self, tensor: Any) -> Any:
        """The result in the order of its axes."""
        return tensor.permute([self.axes.index(d) for d in range(len(self.axes))])


# ── said ─────────────────────────────────────────────────────────────────────────────────────


class Out:
    """The type and shape that PyTorch says of a result; of several, each by its index."""

    def __init__(self, node: Any, value: Any, sizes: Sizes) -> None:
        self.node, self.value, self.sizes = node, value, sizes
        self.name = str(node.target)

    def __getitem__(self, i: int) -> Out:
        return Out(self.node, self.value[i], self.sizes)

    def __len__(self) -> int:
        return len(self.value)

    def wants(self, i: int) -> bool:
        """Whether somebody reads this one of several."""
        return wanted(self.node)[i] is not None

    @property
    def shape(self) -> tuple[Any, ...]:
        return tuple(self.sizes.number(n) for n in self.value.shape)

    @property
    def dtype(self) -> DType:
        return find_dtype(self.value.dtype)

    @property
    def epsilon(self) -> float:
        import torch

        return float(torch.finfo(torch.float32).eps)


def formula_of(
    name: str, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any], sizes: Sizes
) -> Formula:
    """The formula of nodes, from what inputs hold to what outputs do."""
    orders = [Order.of(x.meta["val"]) for x in inputs]
    with tracing(Trace()):  # sizes are computed of others
        kinds = [_kind(x, order, sizes, nodes) for x, order in zip(inputs, orders, strict=True)]

    def said(*values: Any) -> list[Any]:
        env: dict[Any, Any] = {}
        for x, order, value in zip(inputs, orders, values, strict=True):
            env[x] = order.read(value, tuple(map(sizes.number, x.meta["val"].shape)))
        for node in nodes:
            env[node] = _said(node, env, sizes)
        return [_output(env[x], x) for x in outputs]

    said.__name__ = name
    return trace(said, kinds, sizes=tuple(sizes.dims.values()), results=list)


def _kind(
    x: Any, order: Order, sizes: Sizes, nodes: Sequence[Any]
) -> tuple[str, tuple[Extent, ...], DType]:
    value = x.meta["val"]
    kind = find_dtype("tfloat32" if _is_multiplied(x, nodes) else value.dtype)
    return x.name, order.extents(value.shape, sizes), kind


def _is_multiplied(x: Any, nodes: Sequence[Any]) -> bool:
    """Whether all that reads a tensor are products of tensor cores' float32."""
    readers = [user for user in x.users if user in nodes]
    return bool(readers) and all(
        str(user.target) in IN_TF32 and user.args[-1] and x in user.args[:2] for user in readers
    )


def _output(found: Value, node: Any) -> Value:
    order = Order.of(node.meta["val"], result=True)
    found = found if order.is_plain else tm.permute_dims(found, order.axes)
    found.name = node.name
    return found


def _said(node: Any, env: dict[Any, Any], sizes: Sizes) -> Any:
    """What a node gives, in the type and shape that PyTorch says."""
    if node.target is getitem:
        return env[node.args[0]][node.args[1]]
    lowering = lowering_of(node)
    assert lowering is not None, node
    try:
        args = _given(node.args, env, sizes)
        kwargs = _given(node.kwargs, env, sizes)
        if lowering.kind == POINTWISE:
            args = _promoted(node, args)
        if {"dim", "dims"} & {a.name for a in node.target._schema.arguments}:
            args = [_of_axes(x) for x in args]
        if lowering.wants_out:
            kwargs = {**kwargs, "out": Out(node, node.meta["val"], sizes)}
        return _checked(node, lowering.say(*args, **kwargs), wanted(node), sizes)
    except CompileError as error:
        raise Unsaid(node, error.message) from error
    except Exception as error:  # whatever a lowering does not expect, PyTorch does
        raise Unsaid(node, f"{type(error).__name__} in its lowering: {error}") from error


def _given(x: Any, env: dict[Any, Any], sizes: Sizes) -> Any:
    """An argument as a lowering takes it."""
    if isinstance(x, (tuple, list)):
        return [_given(each, env, sizes) for each in x]
    if isinstance(x, dict):
        return {
            name: _given(each, env, sizes)
            for name, each in x.items()
            if name not in ("device", "layout", "pin_memory", "memory_format", "non_blocking")
        }
    if hasattr(x, "all_input_nodes"):
        value = x.meta.get("val")
        if has_tensors(x):
            return env.get(x)  # constants have its shape, no element
        if isinstance(value, (int, float, bool)):
            return value
        if type(value).__name__ in ("SymInt", "SymFloat"):
            return sizes.number(value)
        raise CompileError(f"{x} is a number that only calls know", fix="pass a tensor")
    if type(x).__name__ == "dtype":
        return find_dtype(x)
    if isinstance(x, complex):
        raise CompileError("a complex number", fix="use floats")
    return x


_OWN_TYPES = "where clone masked_fill".split()  # pointwise, but types of arguments may differ


def _promoted(node: Any, args: Any) -> Any:
    """Numbers in tensors of no axes do not decide types beside others: PyTorch says in which type
    the operator computes. What is not element by element may read indices."""
    import torch
    from torch._prims_common import ELEMENTWISE_TYPE_PROMOTION_KIND, elementwise_dtypes

    op = node.target
    if torch.Tag.pointwise not in op.tags or op._opname in _OWN_TYPES:
        return args
    values = [t for x in node.args for t in tensors(getattr(x, "meta", {}).get("val"))]
    wide = torch.float64 in {t.dtype for t in tensors(node.meta["val"])}
    if not wide and len({v.dtype for v in values}) < 2:
        return args
    _, common = elementwise_dtypes(
        *values, type_promotion_kind=ELEMENTWISE_TYPE_PROMOTION_KIND.DEFAULT
    )
    kind = find_dtype(torch.float64 if wide else common)

    def cast(x: Any) -> Any:
        is_array = isinstance(x, Value) and not isinstance(x, Number)
        return astype(x, kind) if is_array and x.dtype != kind else x

    return [cast(x) for x in args]


def _of_axes(x: Any) -> Any:
    """A number in a tensor of no axes is an array of one to what goes along axes."""
    is_number = isinstance(x, Value) and not isinstance(x, Number) and not x.ndim
    return tm.reshape(x, (1,)) if is_number else x


def _checked(node: Any, found: Any, expected: Any, sizes: Sizes) -> Any:
    if isinstance(expected, (tuple, list)):
        pairs = list(zip(found, expected, strict=True))
        return tuple(
            None if x is None or not any(True for _ in tensors(e)) else _checked(node, x, e, sizes)
            for x, e in pairs
        )
    shape = tuple(sizes.number(n) for n in expected.shape)
    if len(shape) != found.ndim or not all(map(same, shape, found.shape)):
        if not isinstance(found, Value) or _count(found.shape) != _count(shape):
            raise CompileError(
                f"its lowering says the shape {found.shape}, PyTorch {shape}", fix="mend it"
            )
        found = tm.reshape(found, shape)
    kind = find_dtype(expected.dtype)
    if found.dtype not in (kind, TF32):  # PyTorch has it as float32
        found = astype(found, kind)
    _name(found, node)
    return found


def _count(shape: Sequence[Any]) -> Any:
    total: Any = 1
    for n in shape:
        total = total * n
    return extent_of(total)


def _name(value: Value, node: Any) -> None:
    """The array has the node's name in the tile program."""
    words = current().words
    if value.is_whole and value.buffer is not None and value.buffer.name in words:
        words[value.buffer.name] = node.name
