"""Arguments made for a kernel: sizes within its contracts, arrays by element type."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from tilewright.ir.bind import static_value
from tilewright.ir.core import *
from tilewright.runtime.bench import supply

KINDS = ("integers", "floats")  # of data: sums of small integers are exact in any order


def sizes(program: Program, chosen: Mapping[str, Any]) -> list[dict[str, int]]:
    """Values for the sizes known at launch: one, tails and multiples of what the grid divides by,
    each within its contract; `chosen` fixes some. One empty case where all sizes are constants."""
    tiles = _tiles(program)
    columns = {dim.var.name: _values(dim, tiles, chosen) for dim in program.dims}
    longest = max((len(c) for c in columns.values()), default=1)
    found: list[dict[str, int]] = []
    for k in range(longest):
        # all small, all with a tail, …
        found.append({name: c[min(k, len(c) - 1)] for name, c in columns.items()})
    for one in columns if len(columns) > 1 else ():
        # one of them small where the others have tails, and the other way round
        for mine, theirs in ((0, 1), (1, 0)):
            found.append(
                {n: c[min(mine if n == one else theirs, len(c) - 1)] for n, c in columns.items()}
            )
    return [dict(pairs) for pairs in dict.fromkeys(tuple(case.items()) for case in found)]


def _tiles(program: Program) -> list[int]:
    """What grids divide sizes by: how much of a tensor a block takes."""
    found = {
        int(node.b.value)
        for kernel in program.kernels
        for extent in kernel.grid
        for node in walk(extent)
        if isinstance(node, Bin) and node.op == "//" and isinstance(node.b, Const)
    }
    return sorted(found) or [16]


def _values(dim: Dim, tiles: list[int], chosen: Mapping[str, Any]) -> list[int]:
    if dim.var.name in chosen:
        return [int(chosen[dim.var.name])]
    step, low = dim.multiple_of, max(dim.min, 1)
    tile = tiles[-1] if tiles[-1] <= 256 else 256
    wanted = [1, tile + 1, tile, 2 * tile, 3 * tile - 1, *(t - 1 for t in tiles)]
    found = []
    for value in wanted:
        value = max(-(-value // step) * step, -(-low // step) * step)
        if dim.max is not None:
            value = min(value, dim.max // step * step)
        if value >= low and value not in found:
            found.append(value)
    if dim.min == 0:
        found.append(0)
    return found or [dim.min]


def arguments(
    program: Program, case: Mapping[str, int], kind: str, seed: int, chosen: Mapping[str, Any]
) -> dict[str, Any]:
    """Arrays and numbers for one call, by parameter name."""
    rng = np.random.default_rng(seed)
    values: dict[Var, int] = {d.var: case[d.var.name] for d in program.dims}
    return {p.name: value for p, value in _each(program, values, kind, rng, chosen)}


def _each(
    program: Program, values: Mapping[Var, int], kind: str, rng: Any, chosen: Mapping[str, Any]
) -> Iterator[tuple[Any, Any]]:
    for param in program.params:
        if isinstance(param, Buffer):
            yield param, _tensor(param, values, kind, rng)
        elif param.name in chosen:
            yield param, param.dtype.numpy.type(chosen[param.name])
        else:
            # small numbers above zero: most scalars are sizes, counts or scales
            number = rng.integers(1, 4) if param.dtype.is_int else rng.uniform(0.5, 1.5)
            yield param, param.dtype.numpy.type(number)


def _tensor(param: Buffer, values: Mapping[Var, int], kind: str, rng: Any) -> Any:
    shape = tuple(_size(param, s, values) for s in param.shape)
    if param.dtype.is_float:
        array = supply("integer" if kind == "integers" else "uniform", shape, param.dtype, rng)
    elif param.dtype.is_bool:
        array = supply("auto", shape, param.dtype, rng)
    else:
        # not below zero: integers of tensors are often positions
        high = min(int(param.dtype.max_value), 2)
        array = rng.integers(0, high, shape, endpoint=True).astype(param.dtype.numpy)
    if param.strides is None:
        return array
    strides = tuple(_size(param, s, values) for s in param.strides)
    reach = sum((n - 1) * s for n, s in zip(shape, strides, strict=True)) + 1
    memory = np.zeros(max(reach, 1) if 0 not in shape else 1, array.dtype)
    item = array.itemsize
    view = np.lib.stride_tricks.as_strided(memory, shape, tuple(s * item for s in strides))
    view[...] = array
    return view


def _size(param: Buffer, size: Expr, values: Mapping[Var, int]) -> int:
    try:
        return static_value(size, values)
    except LaunchError as error:
        raise LaunchError(f"no size for {param.name}: {error.message}") from error
