"""Tensor maps: what the bulk-copy engine is told about a tensor in global memory.

`TensorMapSpec` is the part known at compile time. With a tensor's address and the sizes of a
launch it becomes 128 opaque bytes, encoded by the driver and kept by content.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from tilewright.ir.dtype import DType
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.cuda.values import Sizes, Value, evaluate

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
INTERLEAVES = {0: 0, 16: 1, 32: 2}
PROMOTIONS = {0: 0, 64: 1, 128: 2, 256: 3}
FILLS = {"zero": 0, "nan": 1}


@dataclass(frozen=True)
class TensorMapSpec:
    """How boxes of the tensor parameter `tensor` travel. Axes run as in Python, outermost first.

    `box` is the shape of one copy; `swizzle` the pattern's span in bytes (0, 32, 64 or 128).
    `shape` and `strides` (elements; the innermost is 1) describe the tensor where it is seen
    otherwise than it was passed, for instance with axes merged; `offset` counts elements.
    """

    tensor: str
    dtype: DType
    box: tuple[int, ...]
    swizzle: int = 0
    interleave: int = 0
    l2: int = 128
    fill: str = "zero"
    shape: tuple[Value, ...] | None = None
    strides: tuple[Value, ...] | None = None
    offset: Value = 0
    element_strides: tuple[int, ...] | None = None

    def __post_init__(self) -> None:
        check_spec(self)

    @property
    def rank(self) -> int:
        return len(self.box)


def _refuse(spec: TensorMapSpec, message: str, expected: str, got: object, fix: str = "") -> None:
    raise CompileError(
        f"no tensor map for {spec.tensor}: {message}", expected=expected, got=str(got), fix=fix
    )


def check_spec(spec: TensorMapSpec) -> None:
    """The rules that hold whatever the launch: element type, rank, box, swizzle, fill."""
    if spec.dtype.name not in ELEMENT_TYPES:
        _refuse(
            spec,
            f"the engine moves no {spec.dtype}",
            ", ".join(ELEMENT_TYPES),
            spec.dtype,
            "describe packed elements as uint8, the innermost sizes divided accordingly",
        )
    for field, table in (
        ("swizzle", SWIZZLES),
        ("interleave", INTERLEAVES),
        ("l2", PROMOTIONS),
        ("fill", FILLS),
    ):
        if getattr(spec, field) not in table:
            _refuse(
                spec,
                f"no such {field}",
                f"one of {', '.join(map(str, table))}",
                getattr(spec, field),
            )
    low = 3 if spec.interleave else 1
    if not low <= spec.rank <= MAX_RANK:
        _refuse(
            spec,
            f"a box of rank {spec.rank}",
            f"rank {low} … {MAX_RANK}",
            spec.box,
            "merge axes that are contiguous with each other",
        )
    for field in ("shape", "strides", "element_strides"):
        given = getattr(spec, field)
        if given is not None and len(given) != spec.rank:
            _refuse(spec, f"{field} has another rank than the box", f"rank {spec.rank}", given)
    if spec.strides is not None and spec.shape is None:
        _refuse(spec, "strides without a shape", "both or neither", spec.strides)
    for extent in spec.box:
        if not 1 <= extent <= MAX_BOX:
            _refuse(
                spec,
                f"a box extent of {extent}",
                f"1 … {MAX_BOX} in every dimension",
                spec.box,
                "split the copy into several boxes",
            )
    for step in spec.element_strides or ():
        if not 1 <= step <= 8:
            _refuse(spec, f"an element stride of {step}", "1 … 8", spec.element_strides)
    inner = spec.box[-1] * spec.dtype.bytes
    if not spec.interleave and inner % 16:
        _refuse(
            spec,
            f"an inner box of {inner} bytes",
            "a multiple of 16 bytes",
            f"{spec.box[-1]} elements of {spec.dtype}",
        )
    if spec.swizzle and not spec.interleave and inner > spec.swizzle:
        _refuse(
            spec,
            f"an inner box wider than the {spec.swizzle}-byte swizzle",
            f"at most {spec.swizzle // spec.dtype.bytes} elements of {spec.dtype}",
            f"{spec.box[-1]} elements ({inner} bytes)",
            f"split the copy into boxes of {spec.swizzle // spec.dtype.bytes} columns",
        )
    if spec.interleave == 32 and spec.swizzle != 32:
        _refuse(spec, "32-byte interleave needs the 32-byte swizzle", "swizzle=32", spec.swizzle)
    if spec.fill == "nan" and not spec.dtype.is_float:
        _refuse(spec, "NaN fill of elements that are no floats", "fill='zero'", spec.dtype)


@dataclass(frozen=True)
class Encoding:
    """Everything a map's bytes depend on. Sizes and strides (bytes) run innermost first."""

    dtype: int
    address: int
    sizes: tuple[int, ...]
    strides: tuple[int, ...]
    box: tuple[int, ...]
    element_strides: tuple[int, ...]
    interleave: int
    swizzle: int
    l2: int
    fill: int

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
        strides = (
            _row_major(shape)
            if spec.strides is None
            else [evaluate(v, sizes) for v in spec.strides]
        )
    if len(shape) != spec.rank:
        raise LaunchError(
            f"no tensor map for {spec.tensor}: its rank and its box's differ",
            expected=f"{spec.rank} dimensions, for a box of {spec.box}",
            got=str(tuple(shape)),
        )
    item = spec.dtype.bytes
    base = address + evaluate(spec.offset, sizes) * item
    encoding = Encoding(
        dtype=ELEMENT_TYPES[spec.dtype.name],
        address=base,
        sizes=tuple(reversed(shape)),
        # a stride along one element is never taken; the encoder checks it all the same
        strides=tuple(
            s * item if extent > 1 else _round_up(max(s * item, 16), 32)
            for s, extent in zip(strides[-2::-1], shape[-2::-1], strict=True)
        ),
        box=tuple(reversed(spec.box)),
        element_strides=tuple(reversed(spec.element_strides or (1,) * spec.rank)),
        interleave=INTERLEAVES[spec.interleave],
        swizzle=SWIZZLES[spec.swizzle],
        l2=PROMOTIONS[spec.l2],
        fill=FILLS[spec.fill],
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

    unit = 32 if spec.interleave == 32 else 16
    if encoding.address % unit:
        refuse(
            "its start is not aligned",
            f"an address that is a multiple of {unit}",
            f"{encoding.address:#x} ({encoding.address % unit} over)",
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
        if extent > 1 and (size % unit or not 0 <= size < MAX_STRIDE):
            refuse(
                f"dimension {axis} has a stride of {size} bytes",
                f"a multiple of {unit} below 2^40",
                f"shape {tuple(shape)}, strides {tuple(strides)} elements of {spec.dtype}",
                "pad the rows to a multiple of 16 bytes",
            )
    if max(shape) > MAX_SIZE:
        refuse(f"it is {max(shape)} long", "at most 2^32 in a dimension", tuple(shape), "")


def _row_major(shape: Sequence[int]) -> list[int]:
    strides = [1]
    for extent in reversed(shape[1:]):
        strides.insert(0, strides[0] * extent)
    return strides


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
            (ctypes.c_uint32 * rank)(*e.element_strides),
            e.interleave,
            e.swizzle,
            e.l2,
            e.fill,
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
