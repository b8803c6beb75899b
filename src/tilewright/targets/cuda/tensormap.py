"""Tensor maps: what the bulk-copy engine is told about a tensor in global memory.

`TensorMapSpec` is the part known at compile time. With a tensor's address and the sizes of a
launch it becomes 128 opaque bytes, encoded by the driver and kept by content.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import TypeAlias

from tilewright.ir.bind import static_value
from tilewright.ir.core import *
from tilewright.targets.dlpack import row_major

Sizes: TypeAlias = Mapping[str, int]
Value: TypeAlias = int | str | Expr | Callable[[Sizes], int]

SM_COUNT = "%sms"
"""The size that every launch knows: how many multiprocessors the device has."""


def evaluate(value: Value, sizes: Sizes) -> int:
    """`value` as an integer.

    >>> evaluate("M", {"M": 5}), evaluate(lambda s: -(-s["M"] // 2), {"M": 5})
    (5, 3)
    """
    if isinstance(value, int):
        return value
    try:
        if isinstance(value, str):
            return sizes[value]
        if isinstance(value, Expr):
            names = {v: sizes[v.name] for v in variables(value)}
            return static_value(value, names)
        return int(value(sizes))
    except KeyError as error:
        raise LaunchError(
            f"no size is called {error.args[0]!r}", expected=f"one of {sorted(sizes)}"
        ) from None


MAP_BYTES = 128
MAP_ALIGN = 64
MAX_RANK = 5
MAX_BOX = 256
MAX_STRIDE = 1 << 40
MAX_SIZE = 1 << 32

# Types the engine does not know are moved as bits of the same width.
ELEMENT_TYPES = {
    "uint8": 0, "int8": 0, "bool": 0,
    "float8_e4m3fn": 0, "float8_e5m2": 0, "float8_e4m3fnuz": 0, "float8_e5m2fnuz": 0,
    "float8_e8m0fnu": 0,
    "uint16": 1, "int16": 1, "uint32": 2, "int32": 3, "uint64": 4, "int64": 5,
    "float16": 6, "float32": 7, "float64": 8, "bfloat16": 9, "tfloat32": 11,
}  # fmt: skip
SWIZZLES = {0: 0, 32: 1, 64: 2, 128: 3}
UNIT = 16  # bytes on which a tensor and its rows begin
L2_128B = 2  # the promotion of what is fetched


@dataclass(frozen=True)
class TensorMapSpec:
    """How boxes of the tensor parameter `tensor` travel. Axes run as in Python, outermost first.

    `box` is the shape of one copy; `swizzle` the pattern's span in bytes (0, 32, 64 or 128).
    `shape` and `strides` (elements; the innermost is 1) describe the tensor where it is seen
    otherwise than it was passed, for instance with axes merged.
    """

    tensor: str
    dtype: DType
    box: tuple[int, ...]
    swizzle: int = 0
    shape: tuple[Value, ...] | None = None
    strides: tuple[Value, ...] | None = None

    def __post_init__(self) -> None:
        check_spec(self)

    @property
    def rank(self) -> int:
        return len(self.box)


def check_spec(spec: TensorMapSpec) -> None:
    """The rules that hold whatever the launch: element type, rank, box, swizzle."""

    def refuse(message: str, expected: str, got: object, fix: str = "") -> None:
        raise CompileError(
            f"no tensor map for {spec.tensor}: {message}", expected=expected, got=str(got), fix=fix
        )

    if spec.dtype.name not in ELEMENT_TYPES:
        refuse(
            f"the engine moves no {spec.dtype}",
            ", ".join(ELEMENT_TYPES),
            spec.dtype,
            "describe packed elements as uint8, the innermost sizes divided accordingly",
        )
    if spec.swizzle not in SWIZZLES:
        refuse("no such swizzle", f"one of {', '.join(map(str, SWIZZLES))}", spec.swizzle)
    if not 1 <= spec.rank <= MAX_RANK:
        refuse(
            f"a box of rank {spec.rank}",
            f"rank 1 … {MAX_RANK}",
            spec.box,
            "merge axes that are contiguous with each other",
        )
    for field, given in (("shape", spec.shape), ("strides", spec.strides)):
        if given is not None and len(given) != spec.rank:
            refuse(f"{field} has another rank than the box", f"rank {spec.rank}", given)
    if spec.strides is not None and spec.shape is None:
        refuse("strides without a shape", "both or neither", spec.strides)
    for extent in spec.box:
        if not 1 <= extent <= MAX_BOX:
            refuse(
                f"a box extent of {extent}",
                f"1 … {MAX_BOX} in every dimension",
                spec.box,
                "split the copy into several boxes",
            )
    inner = spec.box[-1] * spec.dtype.bytes
    if inner % UNIT:
        refuse(
            f"an inner box of {inner} bytes",
            f"a multiple of {UNIT} bytes",
            f"{spec.box[-1]} elements of {spec.dtype}",
        )
    if spec.swizzle and inner > spec.swizzle:
        refuse(
            f"an inner box wider than the {spec.swizzle}-byte swizzle",
            f"at most {spec.swizzle // spec.dtype.bytes} elements of {spec.dtype}",
            f"{spec.box[-1]} elements ({inner} bytes)",
            f"split the copy into boxes of {spec.swizzle // spec.dtype.bytes} columns",
        )


@dataclass(frozen=True)
class Encoding:
    """Everything a map's bytes depend on. Sizes and strides (bytes) run innermost first."""

    dtype: int
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    swizzle: int

    @property
    def empty(self) -> bool:
        return prod(self.sizes) == 0


def resolve(
    spec: TensorMapSpec,
    address: int,
    shape: Sequence[int],
    strides: Sequence[int],
    sizes: Sizes,
) -> Encoding:
    """The map of a launch: an array at `address` with `shape` and `strides` (elements).

    Raises where the engine could not follow: alignment of the base and of every stride.
    """
    if spec.shape is not None:
        shape = [evaluate(v, sizes) for v in spec.shape]
        strides = row_major(tuple(shape))
        if spec.strides is not None:
            strides = [evaluate(v, sizes) for v in spec.strides]
    if len(shape) != spec.rank:
        raise LaunchError(
            f"no tensor map for {spec.tensor}: its rank and its box's differ",
            expected=f"{spec.rank} dimensions, for a box of {spec.box}",
            got=str(tuple(shape)),
        )
    item = spec.dtype.bytes
    encoding = Encoding(
        ELEMENT_TYPES[spec.dtype.name],
        address,
        tuple(reversed(shape)),
        # a stride along one element is never taken; the encoder checks it all the same
        tuple(
            s * item if extent > 1 else _round_up(max(s * item, 16), 32)
            for s, extent in zip(strides[-2::-1], shape[-2::-1], strict=True)
        ),
        tuple(reversed(spec.box)),
        SWIZZLES[spec.swizzle],
    )
    if not encoding.empty:
        _check_launch(spec, encoding, shape, strides)
    return encoding


def _check_launch(
    spec: TensorMapSpec, encoding: Encoding, shape: Sequence[int], strides: Sequence[int]
) -> None:
    def refuse(message: str, expected: str, got: object, fix: str) -> None:
        raise LaunchError(
            f"{spec.tensor} cannot be copied in bulk: {message}",
            expected=expected,
            got=str(got),
            fix=fix,
        )

    if encoding.address % UNIT:
        refuse(
            "its start is not aligned",
            f"an address that is a multiple of {UNIT}",
            f"{encoding.address:#x} ({encoding.address % UNIT} over)",
            "pass a tensor that starts at an aligned element, or a copy",
        )
    if shape[-1] > 1 and strides[-1] != 1:
        refuse(
            "its innermost dimension is not contiguous",
            "an innermost stride of 1",
            f"strides {tuple(strides)}",
            "pass x.contiguous()",
        )
    for axis, (extent, step) in enumerate(zip(shape[:-1], strides[:-1], strict=True)):
        size = step * spec.dtype.bytes
        if extent > 1 and (size % UNIT or not 0 <= size < MAX_STRIDE):
            refuse(
                f"dimension {axis} has a stride of {size} bytes",
                f"a multiple of {UNIT} below 2^40",
                f"shape {tuple(shape)}, strides {tuple(strides)} elements of {spec.dtype}",
                "pad the rows to a multiple of 16 bytes",
            )
    if max(shape) > MAX_SIZE:
        refuse(f"it is {max(shape)} long", "at most 2^32 in a dimension", tuple(shape), "")


def _round_up(value: int, unit: int) -> int:
    return -(-value // unit) * unit


Encoder = Callable[[Encoding], bytes]


def driver_encoder(encode: Callable[..., int], fail: Callable[[int, str], Exception]) -> Encoder:
    """An encoder around the driver's `cuTensorMapEncodeTiled`, called by address."""

    def run(e: Encoding) -> bytes:
        rank = len(e.sizes)
        memory = ctypes.create_string_buffer(MAP_BYTES + MAP_ALIGN)
        start = _round_up(ctypes.addressof(memory), MAP_ALIGN)
        status = encode(
            start,
            e.dtype,
            rank,
            e.address,
            (ctypes.c_uint64 * rank)(*e.sizes),
            (ctypes.c_uint64 * max(rank - 1, 1))(*e.strides),
            (ctypes.c_uint32 * rank)(*e.box),
            (ctypes.c_uint32 * rank)(*[1] * rank),  # every element
            0,  # not interleaved
            e.swizzle,
            L2_128B,
            0,  # zeros outside
        )
        if status:
            raise fail(status, f"the driver refuses the tensor map {e}")
        return ctypes.string_at(start, MAP_BYTES)

    return run


class MapCache:
    """Encoded maps by content, address included; forgets everything when full."""

    def __init__(self, encode: Encoder, capacity: int = 4096) -> None:
        self._encode = encode
        self._capacity = capacity
        self._maps: dict[Encoding, bytes] = {}

    def get(self, encoding: Encoding) -> bytes:
        # The encoder refuses empty tensors. Zeros are no valid map: a kernel that copied from an
        # empty tensor after all would fault, not read what is not there.
        if encoding.empty:
            return bytes(MAP_BYTES)
        found = self._maps.get(encoding)
        if found is None:
            if len(self._maps) >= self._capacity:
                self._maps.clear()
            found = self._maps[encoding] = self._encode(encoding)
        return found

    def __len__(self) -> int:
        return len(self._maps)
