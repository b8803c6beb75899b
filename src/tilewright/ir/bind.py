"""Sizes known at launch, found from the shapes that came."""

from __future__ import annotations

from collections.abc import Mapping

from tilewright.ir.expr import Bin, Cmp, Const, Expr, Var, const, fold, transform
from tilewright.ir.op import Program
from tilewright.support.errors import LaunchError


def bind_sizes(
    program: Program,
    shapes: Mapping[str, tuple[int, ...]],
    strides: Mapping[str, tuple[int, ...]] | None = None,
) -> dict[Var, int]:
    """The value of every `Dim`, from the tensors whose shape (or strides, counted in elements)
    names it; contracts are checked.

    A size that appears only inside a larger expression must be bound by a plain one elsewhere.
    """
    dims = {dim.var: dim for dim in program.dims}
    found: dict[Var, tuple[int, str]] = {}

    def meet(size: Expr, value: int, where: str) -> None:
        if not isinstance(size, Var) or size not in dims:
            return
        if size in found and found[size][0] != value:
            raise LaunchError(
                f"{where} and {found[size][1]} are both {size.name} but differ",
                expected=f"{size.name} = {found[size][0]}",
                got=f"{size.name} = {value}",
            )
        found[size] = (value, where)

    for tensor in program.tensors:
        got = shapes[tensor.name]
        if len(got) != tensor.rank:
            raise LaunchError(
                f"{tensor.name} must have {tensor.rank} dimensions",
                expected=describe(tensor.shape),
                got=str(tuple(got)),
            )
        for axis, (size, value) in enumerate(zip(tensor.shape, got, strict=True)):
            meet(size, value, f"dimension {axis} of {tensor.name}")
        if tensor.strides is not None and strides is not None:
            for axis, (size, value) in enumerate(
                zip(tensor.strides, strides[tensor.name], strict=True)
            ):
                meet(size, value, f"stride {axis} of {tensor.name}")
    for var, dim in dims.items():
        if var not in found:
            raise LaunchError(
                f"no tensor's shape gives {var.name}",
                fix=f"declare a tensor parameter that has {var.name} as one of its sizes",
            )
        value, where = found[var]
        contract = [f"at least {dim.min}"] * (value < dim.min)
        contract += [f"at most {dim.max}"] * (dim.max is not None and value > dim.max)
        contract += [f"a multiple of {dim.multiple_of}"] * (value % dim.multiple_of != 0)
        if contract:
            raise LaunchError(
                f"{where} breaks the contract of {var.name}",
                expected=f"{var.name} {' and '.join(contract)}",
                got=str(value),
            )
    return {var: value for var, (value, _) in found.items()}


def static_value(expr: Expr, values: Mapping[Var, int]) -> int:
    """`expr` as an integer once `values` are put in."""

    def rule(node: Expr) -> Expr | None:
        if isinstance(node, Var) and node in values:
            return const(values[node], node.dtype)
        return fold(node.op, node.a, node.b) if isinstance(node, (Bin, Cmp)) else None

    result = transform(expr, rule)
    if not isinstance(result, Const):
        raise LaunchError(f"{expr} does not follow from the arguments")
    return int(result.value)


def describe(shape: tuple[Expr, ...]) -> str:
    return "(" + ", ".join(str(size) for size in shape) + ("," if len(shape) == 1 else "") + ")"
