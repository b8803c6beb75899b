"""What a launch needs of a program: its arguments in order, its sizes, from the shapes that came,
and what it reads and writes."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tilewright.ir.analysis import bounds
from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.core import *
from tilewright.support.show import brief


def in_order(
    name: str, params: Sequence[str], given: Sequence[Any], named: Mapping[str, Any]
) -> list[Any]:
    """The arguments of `name(*given, **named)` in the order of `params`, one for each.

    >>> in_order("axpy", ["a", "x", "y"], [1, 2], {"y": 3})
    [1, 2, 3]
    """
    listed = f"({', '.join(params)})"
    left = params[len(given) :]
    for word in named:
        if word not in left:
            close = difflib.get_close_matches(word.lower(), [p.lower() for p in params], 1)
            fix = [f"did you mean {p!r}?" for p in params if close and p.lower() == close[0]]
            raise LaunchError(
                f"{name} has no free parameter named {word!r}",
                expected=listed,
                fix=fix[0] if fix else "",
            )
    missing = [p for p in left if p not in named]
    if named and missing:
        raise LaunchError(
            f"{name} needs an argument for {missing[0]!r}",
            expected=listed,
            fix=f"pass {missing[0]}=…",
        )
    if missing or len(given) > len(params):
        raise LaunchError(
            f"{name} takes {len(params)} arguments, got {len(given)}",
            expected=listed,
            fix="pass one argument per parameter, in this order; the kernel makes those that "
            "out_idx names: leave them out",
        )
    return [*given, *(named[p] for p in left)]


def bind_sizes(
    program: Program,
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[Var, int]:
    """The value of every `Dim`, from the tensors whose shape (or strides, counted in elements)
    names it; contracts are checked.

    A size that appears only inside larger expressions is solved for where one of them is linear
    in it and gives all else: `n * 4 + m` gives n once m is known.
    """
    dims = {dim.var: dim for dim in program.dims}
    given: list[tuple[Expr, int, str, bool]] = []
    for tensor in program.tensors:
        got = shapes[tensor.name]
        check_rank(tensor, got)
        for axis, (size, value) in enumerate(zip(tensor.shape, got, strict=True)):
            given.append((size, value, f"dimension {axis} of {tensor.name}", False))
    for tensor in program.tensors:
        for axis, size in enumerate(tensor.strides or ()):
            if strides is not None:
                value, loose = strides[tensor.name][axis], shapes[tensor.name][axis] < 2
                given.append((size, value, f"stride {axis} of {tensor.name}", loose))
    found: dict[Var, tuple[int, str]] = {}
    # the stride of a dimension of one element is arbitrary: it binds what nothing else does
    for size, value, where, loose in sorted(given, key=lambda each: each[3]):
        if not isinstance(size, Var) or size not in dims:
            continue
        known, other = found.setdefault(size, (value, where))
        if known != value and not loose:
            raise LaunchError(
                f"{where} and {other} are both {size.name} but differ",
                expected=f"{size.name} = {known}",
                got=f"{size.name} = {value}",
                fix=f"pass arrays that agree, or declare two sizes in place of {size.name}",
            )
    larger = [each[:3] for each in given if not isinstance(each[0], (Var, Const)) and not each[3]]
    solving = True
    while solving:
        solving = False
        for size, value, where in larger:
            line = solve(size, {var: known for var, (known, _) in found.items()})
            if line is None:
                continue
            var, step, offset = line
            if (value - offset) % step:
                raise LaunchError(
                    f"no {var.name} gives {where} its size",
                    expected=f"{size} for an integer {var.name}",
                    got=value,
                    fix=f"pass an array of {size} elements there, or declare it otherwise",
                )
            found[var] = (value - offset) // step, where
            solving = True
    for var, dim in dims.items():
        if var not in found:
            raise LaunchError(
                f"no tensor's shape gives {var.name}",
                fix=f"declare a tensor parameter that has {var.name} as one of its sizes",
            )
        value, where = found[var]
        contract = [f"at least {dim.min}"] * (value < dim.min)
        contract += [f"at most {dim.most}"] * (value > dim.most)
        contract += [f"a multiple of {dim.multiple_of}"] * (value % dim.multiple_of != 0)
        if contract:
            raise LaunchError(
                f"{where} breaks the contract of {var.name}",
                expected=f"{var.name} {' and '.join(contract)}",
                got=value,
                fix="give the arrays one more dimension: x.reshape(-1, 1024)"
                if value > LONGEST
                else f"pad the arrays, or loosen the contract in T.dynamic({var.name!r}, …)",
            )
    return {var: value for var, (value, _) in found.items()}


def shape_of(tensor: Buffer, sizes: Mapping[Var, int]) -> tuple[int, ...]:
    return tuple(static_value(size, sizes) for size in tensor.shape)


def check_rank(tensor: Buffer, shape: tuple[int, ...]) -> None:
    if len(shape) != tensor.rank:
        raise LaunchError(
            f"{tensor.name} must have {tensor.rank} dimensions",
            expected=describe(tensor.shape),
            got=tuple(shape),
            fix=f"reshape it to {describe(tensor.shape)}",
        )


def check_shape(
    tensor: Buffer,
    shape: tuple[int, ...],
    strides: tuple[int, ...],
    contiguous: bool,
    sizes: Mapping[Var, int],
) -> None:
    """Refuse an array whose shape, or strides in elements, are not what `tensor` declares."""
    check_rank(tensor, shape)
    want = shape_of(tensor, sizes)
    for axis, (a, b) in enumerate(zip(shape, want, strict=True)):
        if a != b:
            known = all(isinstance(s, Const) for s in tensor.shape)
            raise LaunchError(
                f"{tensor.name} has the wrong size in dimension {axis}",
                expected=str(want) if known else f"{want}, declared as {describe(tensor.shape)}",
                got=shape,
                fix="pass an array of that shape, or compile the kernel for this one",
            )
    if tensor.strides is None and not contiguous:
        raise LaunchError(
            f"{tensor.name} must be contiguous (row-major)",
            expected=f"the elements of {describe(tensor.shape)} one after another",
            got=f"strides of {strides} elements",
            fix="pass np.ascontiguousarray(x) / x.contiguous(), or declare T.StridedTensor",
        )
    steps = tuple(static_value(size, sizes) for size in tensor.strides or ())
    for axis, (step, stride) in enumerate(zip(steps, strides, strict=False)):
        if step != stride and want[axis] > 1:
            raise LaunchError(
                f"{tensor.name} has the wrong stride in dimension {axis}",
                expected=f"{steps} elements",
                got=f"{strides} elements",
                fix="pass an array with these strides, or declare others",
            )


class Memory(NamedTuple):
    """What an array covers: its strides, of which `itemsize` are an element, the first byte,
    and the byte after the last."""

    shape: tuple[int, ...]
    strides: tuple[int, ...]
    itemsize: int
    span: tuple[int, int]


def check_apart(
    written: Collection[str], given: Mapping[str, Memory], share: Callable[[str, str], bool]
) -> None:
    """Refuse written arrays that overlap themselves, or others; `share` says whether two do whose
    spans meet."""
    for name in given.keys() & set(written):
        shape, strides, itemsize, (low, high) = given[name]
        if meets_itself(shape, strides):
            raise LaunchError(
                f"{name} is written, and several of its indices are one place in memory",
                expected="a place of its own for each element",
                got=f"strides of {tuple(s // itemsize for s in strides)} elements for a shape of "
                f"{shape}",
                fix=f"pass a copy of {name}, which has all its elements",
            )
        for other, memory in given.items():
            start, stop = memory.span
            if other != name and start < high and low < stop and share(name, other):
                raise LaunchError(
                    f"{name} is written and overlaps {other}",
                    expected="a written parameter that shares no memory with another",
                    got=f"{name} at {low:#x} … {high:#x}, {other} at {start:#x} … {stop:#x}",
                    fix=f"pass a copy of {other}, or write to a new array",
                )


def solve(size: Expr, known: Mapping[Var, int]) -> tuple[Var, int, int] | None:
    """(n, a, b) where `size` is n · a + b, if n is the only size in it that is not known.

    >>> n, m = Var("n"), Var("m")
    >>> solve(n * 4 - m, {m: 8}) == (n, 4, -8), solve(n // 4, {}), solve(n * m, {})
    (True, None, None)
    """
    given = transform(
        size, lambda e: const(known[e], e.dtype) if isinstance(e, Var) and e in known else None
    )
    form = bounds.linear(given)
    if form is None or len(form.terms) != 1:
        return None
    [(var, step)] = form.terms.items()
    return (var, step, form.const) if isinstance(var, Var) else None


def given_sizes(sizes: Iterable[Expr]) -> set[Var]:
    """The variables that follow from the values of `sizes`."""
    larger = list(sizes)
    found = {size for size in larger if isinstance(size, Var)}
    while True:
        known = dict.fromkeys(found, 10007)  # any number that cancels nothing
        more = {line[0] for size in larger if (line := solve(size, known))}
        if more <= found:
            return found
        found |= more


def array_sizes(program: Program, arrays: Mapping[str, Any]) -> dict[Var, int]:
    """`bind_sizes` for NumPy arrays by parameter name."""
    return bind_sizes(
        program,
        {name: a.shape for name, a in arrays.items()},
        {name: tuple(s // a.itemsize for s in a.strides) for name, a in arrays.items()},
    )


def unused_params(program: Program) -> frozenset[str]:
    """Names of the tensor parameters that no kernel touches: None may stand for them."""
    used = {
        buffer.name
        for kernel in program.kernels
        for op in walk_ops(kernel)
        for buffer in named_buffers(op)
    }
    return frozenset(t.name for t in program.tensors if t.name not in used)


def given_part(program: Program, names: Collection[str]) -> Program:
    """The program's declarations as far as tensors in `names` go: the others take sizes from
    them, they do not give any."""
    params = tuple(p for p in program.params if isinstance(p, Var) or p.name in names)
    return Program(program.name, params, (), program.dims)


def written_params(program: Program) -> frozenset[str]:
    """Names of the tensor parameters some kernel writes, views of them included."""
    written = {
        aliases(kernel)[buffer.name]
        for kernel in program.kernels
        for op in walk_ops(kernel)
        for buffer in written_buffers(op)
    }
    return frozenset(t.name for t in program.tensors if t.name in written)


def meets_itself(shape: Sequence[int], strides: Sequence[int]) -> bool:
    """Whether two indices of an array are one place in memory.

    >>> meets_itself((4, 8), (8, 1)), meets_itself((4, 8), (0, 1)), meets_itself((2, 2), (3, 2))
    (False, True, False)
    """
    axes = sorted((abs(s), n) for n, s in zip(shape, strides, strict=True) if n > 1)
    if 0 in shape or not axes:
        return False
    reach = 0
    for step, extent in axes:
        if step <= reach:  # it does not step over all of the smaller ones: look at them all
            return axes[0][0] == 0 or _meet(axes)
        reach += step * (extent - 1)
    return False


def _meet(axes: Sequence[tuple[int, int]]) -> bool:
    places = {0}
    for step, extent in axes:
        count = len(places) * extent
        places = {p + i * step for p in places for i in range(extent)}
        if len(places) < count:
            return True
    return False


def static_value(expr: Expr, values: Mapping[Var, int]) -> int:
    """`expr` as an integer once `values` are put in."""
    if isinstance(expr, Const):
        return int(expr.value)

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Var) and node in values:
            return const(values[node], node.dtype)
        return folded(node.op, node.a, node.b) if isinstance(node, (Bin, Cmp)) else None

    result = transform(expr, rule)
    if not isinstance(result, Const):
        raise LaunchError(f"{expr} does not follow from the arguments")
    return int(result.value)


def describe(shape: tuple[Expr, ...]) -> str:
    return "(" + ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"


def does_not_fit(name: str, value: Any, dtype: DType) -> LaunchError:
    """A number that its type cannot hold."""
    span = f"{dtype.min_value} … {dtype.max_value}"
    return LaunchError(
        f"{name} = {brief(value)} does not fit {dtype}",
        expected=span if dtype.is_int else f"at most {dtype.max_value:g}",
        got=brief(value),
        fix=f"declare {name} as T.int64"
        if dtype.is_int
        else "pass a smaller number, or float('inf') where that is meant",
    )


def checked_scalar(name: str, dtype: DType, value: Any) -> Any:
    """A number that a caller passes, as NumPy's scalar of its type.

    >>> checked_scalar("n", INT32, 3.0).dtype
    dtype('int32')
    """
    try:
        number = value.item() if hasattr(value, "item") and not getattr(value, "ndim", 0) else value
        if not isinstance(number, (int, float)) or (dtype.is_int and number != int(number)):
            raise TypeError
        if dtype.is_int and not dtype.min_value <= number <= dtype.max_value:
            raise does_not_fit(name, number, dtype)
        with np.errstate(over="ignore"):
            return dtype.numpy.type(number)
    except OverflowError:
        raise does_not_fit(name, value, dtype) from None
    except (TypeError, ValueError):
        raise LaunchError(
            f"{name} must be a number of type {dtype}",
            expected=str(dtype),
            got=f"{type(value).__name__}: {brief(value)}",
            fix=f"pass a plain {'int' if dtype.is_int else 'number'}, or declare it otherwise",
        ) from None
