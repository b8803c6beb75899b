"""Launches: what a kernel is called with, made once; then pointers and numbers at each call.

A launch is a pure function of the arguments' addresses, shapes, strides and element types, of the
scalars and the stream. So everything that follows from them (checks, sizes, tensor maps, the
parameter block, the launch configuration) is made on first sight and kept under them as a key;
a kept step is never changed, and threads may share it. A call that hits costs reading the
arguments, one lookup and the driver's own work. Scratch is allocated and freed in the order of
the stream and nothing waits, so a launch may be captured into a CUDA graph.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tilewright.ir.bind import checked_scalar
from tilewright.ir.buffer import Buffer
from tilewright.ir.chips import CHIPS, Chip
from tilewright.ir.dtype import INT32, DType
from tilewright.support.errors import CompileError, Cost, LaunchError, Loc
from tilewright.targets.arrays import ArrayView, common_device, read_arrays
from tilewright.targets.cuda.driver import (
    CLUSTER_DIMENSION,
    NO_CONTEXT,
    PROGRAMMATIC_SERIALIZATION,
    Device,
    Driver,
    Held,
    LaunchAttribute,
    LaunchConfig,
    driver,
)
from tilewright.targets.cuda.limits import GRID, registers_of_block
from tilewright.targets.cuda.nvrtc import Remedied, Resources
from tilewright.targets.cuda.tensormap import (
    MAP_ALIGN,
    MAP_BYTES,
    Encoding,
    MapCache,
    Sizes,
    TensorMapSpec,
    Value,
    driver_encoder,
    evaluate,
    resolve,
)
from tilewright.targets.entries import Json, from_json, to_json


@dataclass(frozen=True)
class TensorPointer:
    """The address of a tensor."""

    name: str
    bytes = align = 8


class _Number:
    dtype: DType

    @property
    def bytes(self) -> int:
        return self.dtype.bytes

    align = bytes


@dataclass(frozen=True)
class Scalar(_Number):
    """A number the caller passes."""

    name: str
    dtype: DType


@dataclass(frozen=True)
class Size(_Number):
    """A number that follows from the arguments' shapes."""

    value: Value
    dtype: DType = INT32


@dataclass(frozen=True)
class Map:
    """A tensor map, by value: `const __grid_constant__` in the kernel."""

    spec: TensorMapSpec
    bytes = MAP_BYTES
    align = MAP_ALIGN


Param: TypeAlias = TensorPointer | Scalar | Size | Map


@dataclass(frozen=True)
class LaunchSpec:
    """One kernel of a module and how it is launched. `shared` counts dynamic bytes;
    `programmatic` lets it start before the kernel in front of it has ended."""

    kernel: str
    grid: tuple[Value, ...]
    threads: int
    params: tuple[Param, ...]
    cluster: tuple[int, ...] = (1, 1, 1)
    shared: int = 0
    programmatic: bool = False
    loc: Loc | None = field(default=None, compare=False, repr=False)

    @property
    def sizes(self) -> tuple[int, ...]:
        """Bytes of each parameter."""
        return tuple(p.bytes for p in self.params)

    @cached_property
    def layout(self) -> tuple[tuple[int, ...], int]:
        """Offset of each parameter, and the total."""
        return block_layout(self.params)


# ── what is kept of a compiled program ───────────────────────────────────────────────────────


@dataclass(frozen=True)
class Record:
    """`align` says on which bytes tensors must begin, by name; `serialized` what the assembler had
    against products by warpgroups, with what helped; `costs` what the passes left slow."""

    specs: tuple[LaunchSpec, ...]
    scratch: tuple[Buffer, ...] = ()
    align: Mapping[str, int] = field(default_factory=dict)
    serialized: Remedied | None = None
    costs: tuple[Cost, ...] = ()

    def to_json(self) -> Json:
        return to_json(self)

    @staticmethod
    def from_json(value: Json) -> Record:
        found = from_json(value, *_PARTS)
        if not isinstance(found, Record):
            raise ValueError
        return found


_PARTS = (
    Record, LaunchSpec, TensorPointer, Scalar, Size, Map, TensorMapSpec, Remedied, Cost,
)  # fmt: skip


# ── the parameters of a launch ───────────────────────────────────────────────────────────────


def block_layout(params: Sequence[Param]) -> tuple[tuple[int, ...], int]:
    """Offset of each parameter, each on its own alignment as in the kernel, and the total."""
    offsets, end = [], 0
    for p in params:
        end = -(-end // p.align) * p.align
        offsets.append(end)
        end += p.bytes
    return tuple(offsets), end


def encode_scalar(name: str, dtype: DType, value: Any) -> bytes:
    """`value` as the kernel reads it.

    >>> encode_scalar("n", INT32, 3).hex()
    '03000000'
    """
    return bytes(np.asarray(checked_scalar(name, dtype, value)).tobytes())


def read_arguments(
    params: Sequence[TensorArg | Scalar], args: Mapping[str, Any], stream: Any
) -> tuple[Mapping[str, ArrayView], int, dict[str, bytes]]:
    """The arrays, the stream that they are ready on, and the encoded scalars of a call."""
    arrays, scalars = {}, {}
    for p in params:
        if isinstance(p, Scalar):
            scalars[p.name] = encode_scalar(p.name, p.dtype, args[p.name])
        elif not (p.optional and args[p.name] is None):
            arrays[p.name] = args[p.name]
    return *read_arrays(arrays, stream), scalars


@dataclass(frozen=True)
class Step:
    """One launch, ready: `arguments` are what the driver's entry point takes. `raw` are the bytes
    of the parameters, `encodings` the tensor maps among them by their offset."""

    spec: LaunchSpec
    device: Device
    resources: Resources
    function: int
    config: LaunchConfig = field(repr=False)
    attributes: Any = field(repr=False)  # what `config` points into
    raw: bytes = field(repr=False)
    encodings: Mapping[int, Encoding] = field(repr=False)
    arguments: tuple[int, int, int, None] = field(init=False)
    memory: tuple[Any, ...] = field(init=False, repr=False)  # what `arguments` point into

    def __post_init__(self) -> None:
        offsets, total = self.spec.layout
        block = ctypes.create_string_buffer(total + MAP_ALIGN)
        base = -(-ctypes.addressof(block) // MAP_ALIGN) * MAP_ALIGN
        ctypes.memmove(base, self.raw, total)
        pointers = (ctypes.c_void_p * max(len(offsets), 1))(*[base + o for o in offsets])
        arguments = ctypes.addressof(self.config), self.function, ctypes.addressof(pointers), None
        object.__setattr__(self, "arguments", arguments)
        object.__setattr__(self, "memory", (pointers, block))

    def moved(self, given: Mapping[str, Any], maps: MapCache) -> Step:
        """The same launch of tensors at these addresses, and of these encoded scalars."""
        raw = bytearray(self.raw)
        for p, offset in zip(self.spec.params, self.spec.layout[0], strict=True):
            match p:
                case TensorPointer(name):
                    raw[offset : offset + 8] = given[name].to_bytes(8, "little")
                case Scalar(name):
                    raw[offset : offset + p.bytes] = given[name]
                case Map(spec):
                    known = replace(self.encodings[offset], address=given[spec.tensor])
                    raw[offset : offset + p.bytes] = maps.get(known)
        return replace(self, raw=bytes(raw))


def make_step(
    spec: LaunchSpec,
    loaded: Loaded,
    stream: int,
    views: Mapping[str, ArrayView],
    scalars: Mapping[str, bytes],
    sizes: Sizes,
    maps: MapCache,
) -> Step | None:
    """The launch of `spec` on these arguments; None when its grid is empty."""
    grid = tuple(evaluate(v, sizes) for v in spec.grid) + (1,) * (3 - len(spec.grid))
    if 0 in grid:
        return None
    cluster = spec.cluster + (1,) * (3 - len(spec.cluster))
    check_grid(spec, grid, cluster)
    offsets, total = spec.layout
    raw, encodings = bytearray(total), dict[int, Encoding]()
    for p, offset in zip(spec.params, offsets, strict=True):
        match p:
            case TensorPointer(name):
                value = views[name].address.to_bytes(8, "little")
            case Scalar(name):
                value = scalars[name]
            case Size(number, dtype):
                value = encode_scalar(str(number), dtype, evaluate(number, sizes))
            case Map(seen):
                view = views[seen.tensor]
                found = resolve(seen, view.address, view.shape, view.strides, sizes)
                encodings[offset], value = found, maps.get(found)
        raw[offset : offset + p.bytes] = value

    attributes = []
    if prod(cluster) > 1:
        value_of = (ctypes.c_uint32 * 16)(*cluster)
        attributes.append(LaunchAttribute(CLUSTER_DIMENSION, 0, value_of))
    if spec.programmatic:
        value_of = (ctypes.c_uint32 * 16)(1)
        attributes.append(LaunchAttribute(PROGRAMMATIC_SERIALIZATION, 0, value_of))
    array = (LaunchAttribute * max(len(attributes), 1))(*attributes)
    config = LaunchConfig(
        (ctypes.c_uint32 * 3)(*grid),
        (ctypes.c_uint32 * 3)(spec.threads, 1, 1),
        spec.shared,
        stream,
        ctypes.addressof(array) if attributes else None,
        len(attributes),
    )
    function, resources = loaded.functions[spec.kernel], loaded.resources[spec.kernel]
    return Step(spec, loaded.device, resources, function, config, array, bytes(raw), encodings)


def check_grid(spec: LaunchSpec, grid: tuple[int, ...], cluster: tuple[int, ...]) -> None:
    for axis, (extent, limit, together) in enumerate(zip(grid, GRID, cluster, strict=True)):
        if not 0 < extent <= limit:
            raise LaunchError(
                f"{spec.kernel}: dimension {axis} of the grid is out of range",
                expected=f"1 … {limit}",
                got=f"a grid of {grid}",
            )
        if extent % together:
            raise LaunchError(
                f"{spec.kernel}: clusters do not divide the grid",
                expected=f"dimension {axis} a multiple of {together}",
                got=f"a grid of {grid}, clusters of {cluster}",
            )


class Loaded:
    """A module on one device: function handles, limits raised, everything checked to fit."""

    def __init__(self, found: Driver, device: Device, cubin: bytes, specs: Sequence[LaunchSpec]):
        self.device = device
        self.module = found.load(device, cubin)
        self.functions: dict[str, int] = {}
        self.resources: dict[str, Resources] = {}
        for spec in specs:
            function = found.function(device, self.module, spec.kernel)
            with found.active(device):
                resources = self.resources[spec.kernel] = found.resources(function)
                check_fits(spec, resources, device.limits)
                found.allow(function, shared=spec.shared, cluster=prod(spec.cluster))
            self.functions[spec.kernel] = int(function)


def check_fits(spec: LaunchSpec, resources: Resources, limits: Chip) -> None:
    """Raise unless the kernel can start at all."""

    def refuse(what: str, expected: str, got: str, fix: str) -> None:
        raise CompileError(
            f"{spec.kernel} asks for {what}", loc=spec.loc, expected=expected, got=got, fix=fix
        )

    threads, most = spec.threads, 1024
    bound = min(most, resources.max_threads or most)
    if not 0 < threads <= bound:
        refuse(
            "more threads than a block of it may have",
            f"at most {bound} threads" + (" (its launch bound)" if bound < most else ""),
            f"{threads} threads",
            "launch fewer threads, or compile it with a larger __launch_bounds__",
        )
    total = resources.static_shared + spec.shared
    if total > limits.shared:
        refuse(
            "more shared memory than there is",
            f"at most {limits.shared} bytes in a block",
            f"{total} bytes ({resources.static_shared} static + {spec.shared} dynamic), "
            f"{total - limits.shared} too many",
            "use smaller tiles or fewer stages",
        )
    taken = registers_of_block(resources.registers, threads)
    if taken > limits.registers:
        refuse(
            "more registers than there are",
            f"at most {limits.registers} in a block",
            f"{taken} ({resources.registers} in each of {threads} threads)",
            f"compile it with __launch_bounds__({threads}, 1)",
        )
    if prod(spec.cluster) > limits.cluster:
        refuse(
            "a larger cluster than there is",
            f"at most {limits.cluster} blocks",
            f"{prod(spec.cluster)} {tuple(spec.cluster)}",
            "use a smaller cluster",
        )
    if resources.params and spec.sizes != resources.params:
        refuse(
            "other parameters than are passed to it",
            f"parameters of {resources.params} bytes",
            f"{spec.sizes} bytes",
            "list the launch's parameters as the kernel declares them",
        )
    if sum(spec.sizes) > limits.param_bytes:
        refuse(
            "more parameter space than there is",
            f"at most {limits.param_bytes} bytes",
            f"{sum(spec.sizes)} bytes",
            "pass fewer tensor maps",
        )


# enough for a model's layers and a few sequence lengths; a step is about 2 KB
KEPT = 1024


class CudaModule:
    """Compiled kernels that run one after the other. Loads itself on each device it meets.

    With `resources` and `arch`, a launch that cannot fit is refused here, without a GPU.
    """

    waits = False  # whether `run` does more than launch

    def __init__(
        self,
        cubin: bytes,
        specs: Sequence[LaunchSpec],
        *,
        scratch: Sequence[Buffer] = (),
        resources: Mapping[str, Resources] | None = None,
        arch: str = "",
        using: Driver | None = None,
    ) -> None:
        self.cubin = cubin
        self.specs = tuple(specs)
        self.scratch = tuple(scratch)
        self._using = using
        self._loaded: dict[int, Loaded] = {}
        self._maps: MapCache | None = None
        self._held: Held | None = None
        self._lock = threading.Lock()
        for spec in self.specs:
            if resources is not None and arch in CHIPS:
                check_fits(spec, resources[spec.kernel], CHIPS[arch])

    @property
    def driver(self) -> Driver:
        if self._using is None:
            self._using = driver()
        return self._using

    def load(self, ordinal: int | None = None) -> Loaded:
        """Put the code on a device now rather than at the first launch."""
        if ordinal is None:
            ordinal = self.driver.current_ordinal()
        loaded = self._loaded.get(ordinal)
        if loaded is None:
            with self._lock:
                if ordinal not in self._loaded:
                    found = self.driver
                    self._loaded[ordinal] = Loaded(
                        found, found.device(ordinal), self.cubin, self.specs
                    )
                loaded = self._loaded[ordinal]
        return loaded

    def maps(self) -> MapCache:
        if self._maps is None:
            found = self.driver
            encode = driver_encoder(lambda *a: int(found.encode_tiled(*a)), found.error)
            self._maps = MapCache(encode)
        return self._maps

    def hold(self, views: Mapping[str, ArrayView], stream: int) -> None:
        """Keep borrowed arrays until what was launched on them is done."""
        owners = [view.owner for view in views.values() if view.borrowed]
        ordinal = common_device(views)
        if owners and ordinal is not None:
            if self._held is None:
                self._held = Held(self.driver)
            self._held.until_done(self.driver.device(ordinal), stream, owners)

    def integers(self, scalars: Mapping[str, bytes]) -> dict[str, int]:
        """Integer scalars count among the sizes: a grid may depend on them."""
        kinds = {p.name: p.dtype for s in self.specs for p in s.params if isinstance(p, Scalar)}
        return {
            name: int(np.frombuffer(raw, kinds[name].numpy)[0])
            for name, raw in scalars.items()
            if name in kinds and kinds[name].is_int
        }

    def run(self, steps: tuple[Step, ...]) -> None:
        """Launch what was prepared."""
        found = self.driver
        for step in steps:
            # with several GPUs the thread may be on another one
            if found.device_count > 1 and not found.is_current(step.device):
                with found.active(step.device):
                    status = found.launch(*step.arguments)
            else:
                status = found.launch(*step.arguments)
            if status:
                self.failed(status, step)

    def failed(self, status: int, step: Step) -> None:
        """After a launch was refused: once more if the thread had no context, else raise."""
        found = self.driver
        if status in NO_CONTEXT and not found.is_current(step.device):
            found.make_current(step.device)
            status = found.launch(*step.arguments)
            if not status:
                return
        raise found.error(
            status,
            f"{step.spec.kernel} could not be launched",
            notes=(
                f"grid {tuple(step.config.grid)}, {step.spec.threads} threads, "
                f"clusters of {step.spec.cluster}, {step.spec.shared} bytes of dynamic shared "
                f"memory, {step.resources}",
            ),
        )

    def formed(
        self, forms: Sequence[Form], views: Mapping[str, ArrayView], sizes: Sizes
    ) -> CudaModule:
        """The first of `forms` that takes a call, or this module."""
        return next((form.module for form in forms if form.takes(views, sizes)), self)


@dataclass(frozen=True)
class Form:
    """A module for some calls: those whose sizes are `multiples`, and whose tensors begin on
    `align` bytes."""

    module: CudaModule
    multiples: Mapping[str, int]
    align: Mapping[str, int]

    def takes(self, views: Mapping[str, ArrayView], sizes: Sizes) -> bool:
        known = (sizes[name] % step for name, step in self.multiples.items())
        begun = (views[name].address % step for name, step in self.align.items() if name in views)
        return not any(known) and not any(begun)


@dataclass(frozen=True)
class TensorArg:
    """A tensor among a caller's arguments. Unless `strided`, it must be contiguous; None may stand
    for one that is `optional`; the kernel writes it unless `written` says no."""

    name: str
    strided: bool = False
    optional: bool = False
    written: bool = True


def facts_of(views: Mapping[str, ArrayView]) -> tuple[Any, ...]:
    """What a launch depends on."""
    return tuple(
        (n, v.address, v.shape, v.strides, v.dtype.name, v.device, v.recorded)
        for n, v in views.items()
    )
