"""Two forms of one program: for sizes that put every row of a tensor on 16 bytes, and for all.

The bulk engine and vector accesses need rows that begin on 16 bytes. Where sizes are known at
launch only, and their contract does not say that they are such multiples, nobody knows; and yet
almost all sizes that people pass are. So there are two kernels, compiled together, and a launch
takes the one that its sizes allow: nothing is compiled later.

    C[m, n] = A[m, k] @ B[n, k], float16      k and n multiples of 8: bulk copies, a producer
                                              others: elements, two bytes at a time

Tensors must begin on 16 bytes, too, for the first; a slice may not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from math import gcd, lcm, prod

from tilewright.ir import scope
from tilewright.ir.analysis.bounds import multiple_of
from tilewright.ir.core import *

ROWS = "rows"  # the choice, and what explanations call it
ROW = 128  # bits on which rows begin


def aligned_rows(program: Program) -> Program | None:
    """`program` with contracts that put the rows of its tensors on 16 bytes; None where they say
    so already, or nothing that they could say would help. A tensor of one row of any length needs
    no other contract, but begins on them."""
    known = scope.contracts(program.dims)
    steps: dict[Var, int] = {}
    alone = False
    for tensor in _moved(program):
        step = ROW // gcd(ROW, tensor.dtype.bits)
        if tensor.rank == 1 and not isinstance(tensor.shape[0], Const):
            alone |= multiple_of(tensor.shape[0], known) % step > 0
        for pitch in _pitches(tensor):
            if multiple_of(pitch, known) % step:
                found = _divided(pitch, step)
                if found is not None:
                    steps[found[0]] = lcm(steps.get(found[0], 1), found[1])
    dims = tuple(_tightened(dim, steps.get(dim.var, 1)) for dim in program.dims)
    return replace(program, dims=dims) if alone or dims != program.dims else None


def end_within(program: Program, align: Mapping[str, int]) -> bool:
    """Whether tensors that must begin on `align` bytes may end within as many: that is asked for
    speed alone, also of those that `aligned_rows` did not think of (views, numbers, fills), and
    slices need another form."""
    known = scope.contracts(program.dims)
    return any(
        prod(multiple_of(size, known) for size in t.shape) * t.dtype.bits % (8 * align[t.name])
        for t in program.tensors
        if t.name in align and not all(isinstance(size, Const) for size in t.shape)
    )


def _moved(program: Program) -> Iterator[Buffer]:
    """Tensors whose rows are moved in pieces. Tables that say where something lies, and flags, are
    not among them: they are read one by one, or are short, and must not keep the data from it."""
    touched = set()
    for op in walk_ops(program.kernels, Copy, Map):
        if isinstance(op, Map):
            touched |= set(_along(op))
        else:
            touched |= {r.buffer.name for r in (op.src, op.dst) if _has_rows(r)}
    for tensor in program.tensors:
        kind = tensor.dtype
        if tensor.name in touched and (kind.is_float or (kind.is_int and kind.bits <= 8)):
            yield tensor


def _has_rows(region: Region) -> bool:
    return len(region.extents) - 1 in long_dims(region.extents)


def _along(map_: Map) -> Iterator[str]:
    """Tensors that a map's last variable runs along."""
    for op in walk_ops(map_.body):
        for x, _ in elements_of(op):
            if x.indices and map_.vars[-1] in variables(x.indices[-1]):
                yield x.buffer.name


def _pitches(tensor: Buffer) -> Iterator[Expr]:
    """Elements from one row to the next, as far as sizes decide them."""
    if tensor.strides is None:
        yield from tensor.shape[-1:] if tensor.rank > 1 else ()
    elif isinstance(tensor.strides[-1], Const) and tensor.strides[-1].value == 1:
        yield from tensor.strides[:-1]


def _divided(pitch: Expr, step: int) -> tuple[Var, int] | None:
    """The size that must be a multiple for `pitch` to be one of `step`, and of what."""
    match pitch:
        case Var():
            return pitch, step
        case Bin("*", Var() as size, Const(value)) | Bin("*", Const(value), Var() as size):
            return size, step // gcd(step, int(value))
    return None


def _tightened(dim: Dim, step: int) -> Dim:
    together = lcm(dim.multiple_of, step)
    if dim.max is not None and together > dim.max:
        return dim  # no size would be left
    return replace(dim, multiple_of=together)


def in_words(aligned: Program, general: Program) -> str:
    """Which calls the first form takes."""
    said = [
        f"{dim.var.name} is a multiple of {dim.multiple_of}"
        for dim, before in zip(aligned.dims, general.dims, strict=True)
        if dim != before
    ]
    where = " and ".join(["tensors begin on 16 bytes", *said])
    return f"aligned: where {where}, this is what runs; else another form, which -rows=any tells of"
