"""Handlers for XLA on CUDA: the driver's own launches on JAX's stream, of buffers where they are.

Shapes are known when a call is traced, so grids, sizes and tensor maps are constants; a call fills
in addresses and scalars, and its maps are encoded by the driver's function.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from math import prod

from tilewright.frameworks.jax_frame import (
    API,
    DEVICE,
    INTERNAL,
    STREAM,
    aligned,
    attribute,
    buffer,
    handler,
    load,
    text,
)
from tilewright.ir.core import *
from tilewright.targets.cpu.host import LLVM_LOCK, Binary, Code, object_file, optimize
from tilewright.targets.cuda.driver import (
    CLUSTER_DIMENSION,
    PROGRAMMATIC_SERIALIZATION,
    Driver,
)
from tilewright.targets.cuda.launch import (
    CudaModule,
    LaunchSpec,
    Scalar,
    Size,
    TensorPointer,
    block_layout,
    check_grid,
    encode_scalar,
)
from tilewright.targets.cuda.launch import Map as MapArg
from tilewright.targets.cuda.tensormap import L2_128B, MAP_ALIGN, Encoding, evaluate, resolve
from tilewright.targets.dlpack import row_major

Shape = tuple[int, ...]


def data(raw: bytes) -> str:
    """Bytes as LLVM has them."""
    return f'[{len(raw)} x i8] c"' + "".join(f"\\{b:02X}" for b in raw) + '"'


class _Text:
    """Constants and instructions of a handler."""

    def __init__(self) -> None:
        self.constants: list[str] = []
        self.body: list[str] = []

    def constant(self, raw: bytes, align: int = 16) -> str:
        name = f"@tw.c{len(self.constants)}"
        self.constants.append(f"{name} = internal constant {data(raw)}, align {align}")
        return name

    def say(self, *lines: str) -> None:
        self.body += [f"  {line}\n" for line in lines]


def compiled(
    module: CudaModule,
    align: Mapping[str, int],
    tensors: Mapping[str, tuple[str, int]],
    shapes: Mapping[str, Shape],
    scalars: Sequence[str],
    counts: tuple[int, int, int],
    sizes: Mapping[str, int],
    name: str,
) -> Binary:
    """The handler `tw.handler` of a module for these sizes, on every GPU there is. `tensors` says
    in which list of buffers each tensor is, and where; `scalars` are attributes in this order."""
    found = module.driver
    devices = range(found.device_count)
    loaded = [module.load(ordinal) for ordinal in devices]
    out = _Text()
    for i, (_, (of, place)) in enumerate(tensors.items()):
        out.body.append(buffer(f"t{i}", f"%{of}", place))
    at = {tensor: f"%t{i}" for i, tensor in enumerate(tensors)}
    for i, _ in enumerate(scalars):
        out.body.append(attribute(f"x{i}", i))
    values = {scalar: f"%x{i}" for i, scalar in enumerate(scalars)}
    out.body.append(aligned([(at[t], unit) for t, unit in align.items() if t in at]))
    out.say("%streamed = alloca [4 x i64]", "store [4 x i64] zeroinitializer, ptr %streamed",
            f"store i64 {STREAM}, ptr %streamed",
            "%streamed.in = getelementptr i8, ptr %streamed, i64 16",
            "store ptr %context, ptr %streamed.in")  # fmt: skip
    out.body.append(load("stream.get", "%api", API["stream"]))
    out.say("%no.stream = call ptr %stream.get(ptr %streamed)",
            "%has.stream = icmp eq ptr %no.stream, null",
            "br i1 %has.stream, label %streaming, label %streamless")  # fmt: skip
    out.body.append("streamless:\n  ret ptr %no.stream\nstreaming:\n")
    out.body.append(load("stream", "%streamed", 24))
    out.body.append(_device(len(devices)))
    failures = []
    for i, spec in enumerate(module.specs):
        grid = tuple(evaluate(v, sizes) for v in spec.grid) + (1,) * (3 - len(spec.grid))
        if 0 in grid:
            continue
        cluster = (*spec.cluster, 1, 1)[:3]
        check_grid(spec, grid, cluster)
        handles = [int(each.functions[spec.kernel]) for each in loaded]
        table = out.constant(struct.pack(f"<{len(handles)}Q", *handles))
        failures += _launch(out, i, spec, grid, at, shapes, values, sizes, table, found)
    out.say("ret ptr null")
    for label, constant in failures:
        out.body.append(f"{label}:\n")
        out.say(f"%{label}.e = call ptr @tw.fail(ptr %frame, ptr {constant}, i32 {INTERNAL})",
                f"ret ptr %{label}.e")  # fmt: skip
    constants = [f"@tw.odd = internal constant {text(f'{name}: a buffer is misaligned')}"]
    source = handler(name, counts, "".join(out.body), "\n".join([*constants, *out.constants]))
    with LLVM_LOCK:
        image = object_file(optimize(source))
        return Code((), (), (), source, image).link(("tw.handler",))


def _device(count: int) -> str:
    """`%device`: the place of a call's GPU in tables of functions."""
    if count == 1:
        return "  %device = add i64 0, 0\n"
    return f"""\
  %placed = alloca [4 x i64]
  store [4 x i64] zeroinitializer, ptr %placed
  store i64 {DEVICE}, ptr %placed
  %placed.in = getelementptr i8, ptr %placed, i64 16
  store ptr %context, ptr %placed.in
{load("device.get", "%api", API["device"])}
  %no.device = call ptr %device.get(ptr %placed)
  %has.device = icmp eq ptr %no.device, null
  br i1 %has.device, label %on.device, label %deviceless
deviceless:
  ret ptr %no.device
on.device:
{load("device.narrow", "%placed", 24, "i32")}
  %device = sext i32 %device.narrow to i64
"""


def _launch(
    out: _Text,
    i: int,
    spec: LaunchSpec,
    grid: Shape,
    at: Mapping[str, str],
    shapes: Mapping[str, Shape],
    values: Mapping[str, str],
    sizes: Mapping[str, int],
    table: str,
    found: Driver,
) -> list[tuple[str, str]]:
    """Emit one launch; labels of its failures, with what they say."""
    failures = []
    offsets, total = block_layout(spec.params)
    out.say(f"%b{i} = alloca [{max(total, 1)} x i8], align {MAP_ALIGN}")
    out.say(f"%p{i} = alloca [{max(len(offsets), 1)} x ptr], align 16")
    for k, (p, offset) in enumerate(zip(spec.params, offsets, strict=True)):
        slot = f"%a{i}.{k}"
        out.say(f"{slot} = getelementptr i8, ptr %b{i}, i64 {offset}",
                f"{slot}.p = getelementptr ptr, ptr %p{i}, i64 {k}",
                f"store ptr {slot}, ptr {slot}.p")  # fmt: skip
        match p:
            case TensorPointer(tensor):
                out.say(f"store ptr {at.get(tensor, 'null')}, ptr {slot}")
            case Scalar(scalar, dtype):
                bits = 8 * dtype.bytes
                narrow = values[scalar]
                if bits < 64:
                    out.say(f"{slot}.n = trunc i64 {narrow} to i{bits}")
                    narrow = f"{slot}.n"
                out.say(f"store i{bits} {narrow}, ptr {slot}")
            case Size(value, dtype):
                raw = encode_scalar(str(value), dtype, evaluate(value, sizes))
                number = int.from_bytes(raw, "little")
                out.say(f"store i{8 * len(raw)} {number}, ptr {slot}")
            case MapArg(tensor_map):
                shape = shapes[tensor_map.tensor]
                made = resolve(tensor_map, 0, shape, row_major(shape), sizes)
                _encode(out, made, slot, at[tensor_map.tensor], found)
                if not made.empty:
                    label = f"map.{i}.{k}"
                    said = f"{spec.kernel}: the driver refuses a tensor map of {tensor_map.tensor}"
                    failures.append((label, out.constant(said.encode() + b"\0")))
                    out.say(f"{slot}.ok = icmp eq i32 {slot}.s, 0",
                            f"br i1 {slot}.ok, label %fine.{i}.{k}, label %{label}")  # fmt: skip
                    out.body.append(f"fine.{i}.{k}:\n")
    attributes = []
    if prod(spec.cluster) > 1:
        cluster = (*spec.cluster, 1, 1)[:3]
        attributes.append(struct.pack("<II3I52x", CLUSTER_DIMENSION, 0, *cluster))
    if spec.programmatic:
        attributes.append(struct.pack("<III60x", PROGRAMMATIC_SERIALIZATION, 0, 1))
    listed = out.constant(b"".join(attributes)) if attributes else "null"
    config = struct.pack(
        "<7I4xQQI4x", *grid, spec.threads, 1, 1, spec.shared, 0, 0, len(attributes)
    )
    kept = out.constant(config)
    address = found.address("cuLaunchKernelEx", 12000)
    label = f"launch.{i}"
    said = f"{spec.kernel} could not be launched: grid {grid}, {spec.threads} threads"
    failures.append((label, out.constant(said.encode() + b"\0")))
    out.say(f"%c{i} = alloca [{len(config)} x i8], align 16",
            f"%c{i}.all = load [{len(config)} x i8], ptr {kept}",
            f"store [{len(config)} x i8] %c{i}.all, ptr %c{i}",
            f"%c{i}.stream = getelementptr i8, ptr %c{i}, i64 32",
            f"store ptr %stream, ptr %c{i}.stream",
            f"%c{i}.attrs = getelementptr i8, ptr %c{i}, i64 40",
            f"store ptr {listed}, ptr %c{i}.attrs",
            f"%f{i}.at = getelementptr i64, ptr {table}, i64 %device",
            f"%f{i} = load ptr, ptr %f{i}.at",
            f"%s{i} = call i32 inttoptr (i64 {address} to ptr)(ptr %c{i}, ptr %f{i}, ptr %p{i}, "
            "ptr null)",
            f"%ok{i} = icmp eq i32 %s{i}, 0",
            f"br i1 %ok{i}, label %launched.{i}, label %{label}")  # fmt: skip
    out.body.append(f"launched.{i}:\n")
    return failures


def _encode(out: _Text, made: Encoding, slot: str, address: str, found: Driver) -> None:
    """Emit the map of a tensor at `address` into `slot`: zeros of one without elements."""
    out.say(f"store [128 x i8] zeroinitializer, ptr {slot}")
    if made.empty:
        return
    rank = len(made.sizes)
    sizes = out.constant(struct.pack(f"<{rank}Q", *made.sizes))
    strides = out.constant(struct.pack(f"<{max(rank - 1, 1)}Q", *(made.strides or (0,))))
    box = out.constant(struct.pack(f"<{rank}I", *made.box))
    ones = out.constant(struct.pack(f"<{rank}I", *[1] * rank))
    function = found.address("cuTensorMapEncodeTiled", 12000)
    out.say(
        f"{slot}.s = call i32 inttoptr (i64 {function} to ptr)(ptr {slot}, i32 {made.dtype}, "
        f"i32 {rank}, ptr {address}, ptr {sizes}, ptr {strides}, ptr {box}, ptr {ones}, i32 0, "
        f"i32 {made.swizzle}, i32 {L2_128B}, i32 0)"
    )
