"""A CUDA driver made of Python: answers as cuda-bindings does and writes down what it is asked."""

from __future__ import annotations

import ctypes
import re
from collections import Counter
from enum import IntEnum
from types import SimpleNamespace

from tilewright.targets.cuda import driver as real
from tilewright.targets.cuda.launch import (
    Map,
    Scalar,
    TensorArg,
    TensorPointer,
    read_arguments,
)
from tilewright.targets.cuda.prepared import Prepared


class Status(IntEnum):
    CUDA_SUCCESS = 0
    CUDA_ERROR_INVALID_VALUE = 1
    CUDA_ERROR_INVALID_CONTEXT = 201
    CUDA_ERROR_NO_BINARY_FOR_GPU = 209
    CUDA_ERROR_NOT_FOUND = 500
    CUDA_ERROR_NOT_READY = 600
    CUDA_ERROR_LAUNCH_OUT_OF_RESOURCES = 701


class _Names:
    """CU_DEVICE_ATTRIBUTE_X → 'X', for every X."""

    def __init__(self, prefix: str) -> None:
        self.prefix = prefix

    def __getattr__(self, name: str) -> str:
        return name.removeprefix(self.prefix)


class FakeApi:
    """One 'H200' per entry of `registers`; kernels are what `kernels` says they are."""

    CUresult = Status
    CUdevice_attribute = _Names("CU_DEVICE_ATTRIBUTE_")
    CUfunction_attribute = _Names("CU_FUNC_ATTRIBUTE_")
    CUpointer_attribute = _Names("CU_POINTER_ATTRIBUTE_")
    CUstreamCaptureMode = SimpleNamespace(CU_STREAM_CAPTURE_MODE_RELAXED="relaxed")
    CUmemAllocationType = _Names("CU_MEM_ALLOCATION_TYPE_")
    CUmemLocationType = _Names("CU_MEM_LOCATION_TYPE_")
    CUmemPool_attribute = _Names("CU_MEMPOOL_ATTR_")
    CUevent_flags = SimpleNamespace(CU_EVENT_DISABLE_TIMING=2)
    cuuint64_t = int

    def __init__(self, devices: int = 1, **kernels: dict) -> None:
        self.devices = devices
        self.kernels = kernels
        self.contexts: list[int] = []  # the stack of current contexts
        self.launches: list[SimpleNamespace] = []
        self.encoded: list[SimpleNamespace] = []
        self.limits_raised: list[tuple] = []
        self.capture_mode = "global"
        self.loads = 0
        self.status = 0
        self.done: list[tuple] = []  # what streams were given besides launches
        self.live: dict[int, int] = {}  # allocations: address → bytes
        self.capturing: set[int] = set()
        self.finished = True  # whether events have come to pass
        self._kept = {
            "cuLaunchKernelEx": real._LAUNCH(self._launch),
            "cuTensorMapEncodeTiled": real._ENCODE(self._encode),
        }

    # --- what driver.py calls

    def cuInit(self, flags):
        return (Status(0),)

    def cuDeviceGetCount(self):
        return Status(0), self.devices

    def cuDriverGetVersion(self):
        return Status(0), 13000

    def cuDeviceGet(self, ordinal):
        return Status(0), ordinal

    def cuDeviceGetName(self, length, device):
        return Status(0), b"Fake H200".ljust(length, b"\0")

    def cuDeviceGetAttribute(self, name, device):
        return Status(0), {
            "COMPUTE_CAPABILITY_MAJOR": 9,
            "COMPUTE_CAPABILITY_MINOR": 0,
            "MULTIPROCESSOR_COUNT": 132,
            "MAX_SHARED_MEMORY_PER_BLOCK_OPTIN": 232_448,
            "MAX_REGISTERS_PER_BLOCK": 65_536,
            "MAX_THREADS_PER_BLOCK": 1024,
            "CLUSTER_LAUNCH": 1,
        }[name]

    def cuDevicePrimaryCtxRetain(self, device):
        return Status(0), 0xC0 + device

    def cuCtxGetCurrent(self):
        return Status(0), self.contexts[-1] if self.contexts else 0

    def cuCtxGetDevice(self):
        return Status(0), self.contexts[-1] - 0xC0

    def cuCtxPushCurrent(self, context):
        self.contexts.append(context)
        return (Status(0),)

    def cuCtxPopCurrent(self):
        return Status(0), self.contexts.pop()

    def cuCtxSetCurrent(self, context):
        self.contexts[-1:] = [context]
        return (Status(0),)

    def cuThreadExchangeStreamCaptureMode(self, mode):
        before, self.capture_mode = self.capture_mode, mode
        return Status(0), before

    def cuModuleLoadData(self, image):
        assert self.capture_mode == "relaxed"
        self.loads += 1
        return (Status(0), 0xE0) if image else (Status.CUDA_ERROR_NO_BINARY_FOR_GPU, None)

    def cuModuleGetFunction(self, module, name):
        if name.decode() not in self.kernels:
            return Status.CUDA_ERROR_NOT_FOUND, None
        return Status(0), 0xF0 + list(self.kernels).index(name.decode())

    def cuFuncLoad(self, function):
        return (Status(0),)

    def cuFuncGetAttribute(self, name, function):
        kernel = list(self.kernels.values())[function - 0xF0]
        defaults = {"NUM_REGS": 32, "MAX_THREADS_PER_BLOCK": 1024}
        return Status(0), kernel.get(name, defaults.get(name, 0))

    def cuFuncGetParamInfo(self, function, index):
        sizes = list(self.kernels.values())[function - 0xF0]["params"]
        if index >= len(sizes):
            return Status.CUDA_ERROR_INVALID_VALUE, None, None
        return Status(0), 0, sizes[index]

    def cuFuncSetAttribute(self, function, name, value):
        self.limits_raised.append((name, value))
        return (Status(0),)

    def cuPointerGetAttribute(self, name, address):
        return Status(0), 0

    def CUmemPoolProps(self):
        return SimpleNamespace(location=SimpleNamespace())

    def cuMemPoolCreate(self, props):
        assert self.capture_mode == "relaxed" and props.allocType == "PINNED"
        return Status(0), ("pool", props.location.id)

    def cuMemPoolSetAttribute(self, pool, name, value):
        assert (name, value) == ("RELEASE_THRESHOLD", 2**64 - 1)
        return (Status(0),)

    def cuMemAllocFromPoolAsync(self, size, pool, stream):
        assert self.contexts, "no context"
        address = 0x7000_0000
        while address in self.live:
            address += 0x100_0000
        self.live[address] = size
        self.done.append(("allocate", size, stream))
        return Status(0), address

    def cuMemFreeAsync(self, address, stream):
        assert self.contexts, "no context"
        self.done.append(("free", self.live.pop(address), stream))
        return (Status(0),)

    def cuMemsetD8Async(self, address, byte, size, stream):
        assert self.contexts and size <= self.live[address], "not allocated"
        self.done.append(("fill", byte, size, stream))
        return (Status(0),)

    def cuStreamSynchronize(self, stream):
        self.done.append(("wait", stream))
        return (Status(0),)

    def cuMemcpyDtoH(self, to, address, size):
        assert self.contexts and size <= self.live[address], "not allocated"
        ctypes.memset(to, 0x11, size)
        self.done.append(("read", size))
        return (Status(0),)

    def cuEventCreate(self, flags):
        return Status(0), SimpleNamespace(stream=None)

    def cuEventRecord(self, event, stream):
        event.stream = stream
        return (Status(0),)

    def cuStreamWaitEvent(self, stream, event, flags):
        self.done.append(("order", event.stream, stream))
        return (Status(0),)

    def cuEventQuery(self, event):
        return (Status(0) if self.finished else Status.CUDA_ERROR_NOT_READY,)

    def cuEventDestroy(self, event):
        return (Status(0),)

    def cuStreamIsCapturing(self, stream):
        return Status(0), int(stream in self.capturing)

    def cuGetErrorName(self, status):
        return Status(0), status.name.encode()

    def cuGetErrorString(self, status):
        return Status(0), b"in words"

    def cuGetProcAddress(self, symbol, version, flags):
        return Status(0), ctypes.cast(self._kept[symbol.decode()], ctypes.c_void_p).value, 0

    # --- what is called by address

    def _launch(self, config, function, pointers, extra):
        if not self.contexts:
            return Status.CUDA_ERROR_INVALID_CONTEXT
        if self.status:
            return self.status
        c = real.LaunchConfig.from_address(config)
        kernel = list(self.kernels.values())[function - 0xF0]
        where = (ctypes.c_void_p * len(kernel["params"])).from_address(pointers)
        attributes = []
        if c.attribute_count:
            array = (real.LaunchAttribute * c.attribute_count).from_address(c.attributes)
            attributes = [(a.id, tuple(a.value[:3])) for a in array]
        self.launches.append(
            SimpleNamespace(
                kernel=list(self.kernels)[function - 0xF0],
                grid=tuple(c.grid),
                block=tuple(c.block),
                shared=c.shared,
                stream=c.stream or 0,
                attributes=attributes,
                context=self.contexts[-1],
                params=[
                    ctypes.string_at(p, n) for p, n in zip(where, kernel["params"], strict=True)
                ],
            )
        )
        return 0

    def _encode(self, out, kind, rank, address, sizes, strides, box, steps, *rest):
        assert out % 64 == 0

        def read(pointer, item, count):
            return tuple((item * count).from_address(pointer)) if count else ()

        self.encoded.append(
            SimpleNamespace(
                kind=kind,
                address=address,
                sizes=read(sizes, ctypes.c_uint64, rank),
                strides=read(strides, ctypes.c_uint64, rank - 1),
                box=read(box, ctypes.c_uint32, rank),
                steps=read(steps, ctypes.c_uint32, rank),
                rest=rest,
            )
        )
        ctypes.memset(out, len(self.encoded), 128)
        return 0


def fake_driver(devices: int = 1, **kernels: dict) -> tuple[FakeApi, real.Driver]:
    api = FakeApi(devices, **kernels)
    return api, real.Driver(api)


def launch(module, args, sizes=None, stream=None) -> None:
    """Run a module once on `args`, arrays and numbers by name."""
    every = [p for spec in module.specs for p in spec.params]
    tensors = [p.name for p in every if isinstance(p, TensorPointer)]
    tensors += [p.spec.tensor for p in every if isinstance(p, Map)]
    made = {b.name for b in module.scratch}
    params = [TensorArg(name) for name in dict.fromkeys(tensors) if name not in made]
    scalars = [p for p in dict.fromkeys(every) if isinstance(p, Scalar)]
    views, where, numbers = read_arguments([*params, *scalars], args, stream)
    Prepared(module, views, numbers, sizes or {}, where).run()
    module.hold(views, where)


_INSTRUCTION = re.compile(r"^\s*/\*[0-9a-f]{4,}\*/\s+(?:@!?U?P\w+\s+)?([A-Z][\w.]*)", re.M)


def opcodes(sass: str) -> Counter[str]:
    """How often each instruction occurs, by the word before its first dot.

    >>> opcodes("  /*0010*/  @!P0 HGMMA.64x256x16.F32.BF16 R24, gdesc[UR4] ;")["HGMMA"]
    1
    """
    return Counter(word.partition(".")[0] for word in _INSTRUCTION.findall(sass))
