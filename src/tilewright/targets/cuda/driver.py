"""The CUDA driver, through cuda-bindings: devices, contexts, modules, function handles.

Two entry points are called with `ctypes` on the driver's own addresses, with memory laid out
here: the launch, because it is the hot path, and the tensor-map encoder, because its result must
lie on a 64-byte boundary.
"""

from __future__ import annotations

import ctypes
import threading
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from functools import cache, cached_property
from math import prod
from typing import Any

from tilewright.ir.chips import CHIPS, DEFAULT, Chip, arch_for
from tilewright.ir.dtype import DType
from tilewright.support.errors import LaunchError, RunError, TilewrightError
from tilewright.targets.cuda.nvrtc import INSTALL, Resources
from tilewright.targets.dlpack import CUDA, export

# errors that mean the context is lost and the kernel is at fault, found by a later call
_STICKY = {700, 701, 702, 714, 715, 716, 717, 718, 719}
NO_CONTEXT = (201, 400)  # INVALID_CONTEXT, INVALID_HANDLE


class LaunchAttribute(ctypes.Structure):
    """CUlaunchAttribute: an id and a 64-byte union, of which the first words are used."""

    _fields_ = [("id", ctypes.c_uint32), ("pad", ctypes.c_uint32), ("value", ctypes.c_uint32 * 16)]


CLUSTER_DIMENSION, PROGRAMMATIC_SERIALIZATION = 4, 6


class LaunchConfig(ctypes.Structure):
    """CUlaunchConfig."""

    _fields_ = [
        ("grid", ctypes.c_uint32 * 3),
        ("block", ctypes.c_uint32 * 3),
        ("shared", ctypes.c_uint32),
        ("stream", ctypes.c_void_p),
        ("attributes", ctypes.c_void_p),
        ("attribute_count", ctypes.c_uint32),
    ]


_LAUNCH = ctypes.CFUNCTYPE(
    ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p
)
_ENCODE = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.c_void_p,  # where the map goes
    ctypes.c_int,  # element type
    ctypes.c_uint32,  # rank
    ctypes.c_void_p,  # global address
    *[ctypes.c_void_p] * 4,  # sizes, strides, box, element strides
    *[ctypes.c_int] * 4,  # interleave, swizzle, L2 promotion, fill
)


@dataclass(frozen=True)
class Device:
    """One GPU and its primary context, the one PyTorch, CuPy and JAX use."""

    ordinal: int
    name: str
    arch: str
    sms: int
    limits: Chip
    context: Any


class Driver:
    """The driver, initialised. Use `driver()`."""

    def __init__(self, api: Any) -> None:
        self.api = api
        self.call(api.cuInit(0))
        self.device_count = int(self.call(api.cuDeviceGetCount()))
        if not self.device_count:
            raise LaunchError("there is no CUDA device")
        self.driver_version = int(self.call(api.cuDriverGetVersion()))
        self._devices: dict[int, Device] = {}
        self._pools: dict[int, Any] = {}
        self._lock = threading.Lock()

    # ------------------------------------------------------------------------------ calling

    def call(self, result: tuple[Any, ...]) -> Any:
        """The value of a cuda-bindings call, or its error as an exception."""
        status, *values = result
        if int(status):
            raise self.error(int(status), "the CUDA driver refused")
        return (values[0] if len(values) == 1 else tuple(values)) if values else None

    def error(self, status: int, what: str, **more: Any) -> LaunchError | RunError:
        """The exception for a CUresult: `RunError` when a kernel has already gone wrong."""
        name, text = f"error {status}", ""
        try:
            code = self.api.CUresult(status)
            name = self.api.cuGetErrorName(code)[1].decode()
            text = self.api.cuGetErrorString(code)[1].decode()
        except (AttributeError, ValueError, IndexError):
            pass
        kind = RunError if status in _STICKY else LaunchError
        if status in _STICKY:
            what = f"a kernel launched earlier failed, found while this happened: {what}"
            more.setdefault("fix", "run under target='interp -sanitize' or compute-sanitizer")
        return kind(f"{what}: {name}", got=text, **more)

    def address(self, symbol: str, version: int) -> int:
        """Where the driver's function is."""
        found = self.call(self.api.cuGetProcAddress(symbol.encode(), version, 0))
        pointer = int(found[0] if isinstance(found, tuple) else found)
        if not pointer:
            raise LaunchError(
                f"this driver has no {symbol}",
                expected="a driver for CUDA 12 or newer",
                got=f"CUDA {self.driver_version // 1000}.{self.driver_version % 1000 // 10}",
            )
        return pointer

    @cached_property
    def launch(self) -> Any:
        """`launch(config address, function, parameter pointers, 0) -> status`, no checks.

        The interpreter lock is released meanwhile: a full queue blocks here, and a host callback
        that must run first may need the lock.
        """
        return _LAUNCH(self.address("cuLaunchKernelEx", 12000))

    @cached_property
    def encode_tiled(self) -> Any:
        return _ENCODE(self.address("cuTensorMapEncodeTiled", 12000))

    # ------------------------------------------------------------------------------ devices

    def device(self, ordinal: int) -> Device:
        with self._lock:
            if ordinal not in self._devices:
                self._devices[ordinal] = self._open(ordinal)
            return self._devices[ordinal]

    def _open(self, ordinal: int) -> Device:
        if not 0 <= ordinal < self.device_count:
            raise LaunchError(f"there is no CUDA device {ordinal}, only {self.device_count}")
        api = self.api
        handle = self.call(api.cuDeviceGet(ordinal))

        def ask(name: str) -> int:
            kind = getattr(api.CUdevice_attribute, f"CU_DEVICE_ATTRIBUTE_{name}")
            return int(self.call(api.cuDeviceGetAttribute(kind, handle)))

        major, minor = ask("COMPUTE_CAPABILITY_MAJOR"), ask("COMPUTE_CAPABILITY_MINOR")
        arch = arch_for(major, minor) or f"sm_{major}{minor}"
        chip = CHIPS.get(arch, CHIPS[DEFAULT])
        return Device(
            ordinal=ordinal,
            name=bytes(self.call(api.cuDeviceGetName(100, handle))).partition(b"\0")[0].decode(),
            arch=arch,
            sms=ask("MULTIPROCESSOR_COUNT"),
            limits=replace(
                chip,
                shared=ask("MAX_SHARED_MEMORY_PER_BLOCK_OPTIN"),
                registers=ask("MAX_REGISTERS_PER_BLOCK"),
                cluster=chip.cluster if major >= 9 and ask("CLUSTER_LAUNCH") else 1,
                param_bytes=32_764 if self.driver_version >= 12010 and major >= 7 else 4096,
            ),
            context=self.call(api.cuDevicePrimaryCtxRetain(handle)),
        )

    def current_ordinal(self) -> int:
        """The calling thread's device; 0 if it has none."""
        if not int(self.call(self.api.cuCtxGetCurrent()) or 0):
            return 0
        return int(self.call(self.api.cuCtxGetDevice()))

    def is_current(self, device: Device) -> bool:
        return int(self.call(self.api.cuCtxGetCurrent()) or 0) == int(device.context)

    @contextmanager
    def active(self, device: Device) -> Iterator[None]:
        """The device's context is current inside."""
        self.call(self.api.cuCtxPushCurrent(device.context))
        try:
            yield
        finally:
            self.call(self.api.cuCtxPopCurrent())

    @contextmanager
    def relaxed(self) -> Iterator[None]:
        """This thread may allocate while a stream is captured."""
        api = self.api
        mode = api.CUstreamCaptureMode.CU_STREAM_CAPTURE_MODE_RELAXED
        before = self.call(api.cuThreadExchangeStreamCaptureMode(mode))
        try:
            yield
        finally:
            self.call(api.cuThreadExchangeStreamCaptureMode(before))

    def make_current(self, device: Device) -> None:
        self.call(self.api.cuCtxSetCurrent(device.context))

    def synchronize(self, stream: int = 0) -> None:
        self.call(self.api.cuStreamSynchronize(stream))

    def query(self, stream: int) -> int:
        """0 when all work of the stream is done, 600 while it is not, or what went wrong."""
        return int(self.api.cuStreamQuery(stream)[0])

    def is_capturing(self, stream: int) -> bool:
        return bool(int(self.call(self.api.cuStreamIsCapturing(stream))))

    # ------------------------------------------------------------------------------- memory

    def host_memory(self, device: Device, size: int) -> tuple[int, int]:
        """Memory of the host that the device writes: its address here and there. Never freed."""
        api = self.api
        flags = api.CU_MEMHOSTALLOC_PORTABLE | api.CU_MEMHOSTALLOC_DEVICEMAP
        with self.active(device):
            host = int(self.call(api.cuMemHostAlloc(size, flags)))
            return host, int(self.call(api.cuMemHostGetDevicePointer(host, 0)))

    def allocate(self, device: Device, size: int, stream: int) -> int:
        """Memory of the device for what follows on `stream`; a capture gets an allocation node."""
        if device.ordinal not in self._pools:
            self._pools[device.ordinal] = self._pool(device)
        pool = self._pools[device.ordinal]
        with self.active(device):
            return int(self.call(self.api.cuMemAllocFromPoolAsync(max(size, 1), pool, stream)))

    def _pool(self, device: Device) -> Any:
        """A pool of our own that keeps its memory: the default one gives everything back to the
        system whenever the host waits, and getting it again takes longer than most kernels."""
        api = self.api
        props = api.CUmemPoolProps()
        props.allocType = api.CUmemAllocationType.CU_MEM_ALLOCATION_TYPE_PINNED
        props.location.type = api.CUmemLocationType.CU_MEM_LOCATION_TYPE_DEVICE
        props.location.id = device.ordinal
        kind = api.CUmemPool_attribute.CU_MEMPOOL_ATTR_RELEASE_THRESHOLD
        with self.active(device), self.relaxed():
            pool = self.call(api.cuMemPoolCreate(props))
            self.call(api.cuMemPoolSetAttribute(pool, kind, api.cuuint64_t(2**64 - 1)))
        return pool

    def free(self, device: Device, address: int, stream: int) -> None:
        """Give memory of `allocate` back once `stream` has come this far."""
        with self.active(device):
            self.call(self.api.cuMemFreeAsync(address, stream))

    def fill(self, address: int, byte: int, size: int, stream: int) -> None:
        """Memory of the device, in the order of `stream`."""
        self.call(self.api.cuMemsetD8Async(address, byte, size, stream))

    def read(self, address: int, to: int, size: int, stream: int) -> None:
        """What memory of the device holds once `stream` is done, to an address of the host."""
        self.synchronize(stream)
        self.call(self.api.cuMemcpyDtoH(to, address, size))

    def event(self, stream: int) -> Any:
        """A mark after what `stream` has been given so far."""
        flags = int(self.api.CUevent_flags.CU_EVENT_DISABLE_TIMING)
        event = self.call(self.api.cuEventCreate(flags))
        self.call(self.api.cuEventRecord(event, stream))
        return event

    def order(self, device: Device, first: int, then: int) -> None:
        """What `then` is given from now on runs after what `first` has been given so far."""
        if first == then:
            return
        with self.active(device):
            event = self.event(first)
            self.call(self.api.cuStreamWaitEvent(then, event, 0))
            self.call(self.api.cuEventDestroy(event))

    def set_global(self, device: Device, module: Any, name: str, data: bytes) -> None:
        """Write a variable of a module."""
        with self.active(device):
            where, size = self.call(self.api.cuModuleGetGlobal(module, name.encode()))
            assert size == len(data), (name, size, len(data))
            self.call(self.api.cuMemcpyHtoD(where, data, size))

    # ------------------------------------------------------------------------------ modules

    def load(self, device: Device, cubin: bytes) -> Any:
        """A module handle. Safe while a stream is captured, though loading may allocate."""
        with self.active(device), self.relaxed():
            status, module = self.api.cuModuleLoadData(cubin)
        if int(status):
            raise self.error(
                int(status),
                f"the code does not load on {device.name}",
                expected=f"code for {device.arch}",
                fix=f'compile with target="cuda -arch={device.arch}"',
            )
        return module

    def function(self, device: Device, module: Any, name: str) -> Any:
        """A function handle, its code on the device (drivers load lazily by default)."""
        api = self.api
        with self.active(device):
            status, function = api.cuModuleGetFunction(module, name.encode())
            if int(status):
                raise self.error(int(status), f"the compiled code has no kernel {name!r}")
            if hasattr(api, "cuFuncLoad"):
                with self.relaxed():
                    self.call(api.cuFuncLoad(function))
        return function

    def resources(self, function: Any) -> Resources:
        """What the loaded kernel takes, from the driver."""
        api = self.api

        def ask(name: str) -> int:
            kind = getattr(api.CUfunction_attribute, f"CU_FUNC_ATTRIBUTE_{name}")
            return int(self.call(api.cuFuncGetAttribute(kind, function)))

        return Resources(
            registers=ask("NUM_REGS"),
            local_bytes=ask("LOCAL_SIZE_BYTES"),
            static_shared=ask("SHARED_SIZE_BYTES"),
            max_threads=ask("MAX_THREADS_PER_BLOCK"),
            params=self._params(function),
        )

    def _params(self, function: Any) -> tuple[int, ...]:
        if not hasattr(self.api, "cuFuncGetParamInfo"):
            return ()
        sizes: list[int] = []
        while True:  # the driver has no count: it refuses the first index that is not there
            status, *values = self.api.cuFuncGetParamInfo(function, len(sizes))
            if int(status):
                return tuple(sizes)
            sizes.append(int(values[1]))

    def allow(self, function: Any, *, shared: int, cluster: int) -> None:
        """Raise the function's limits to what the launch will ask for."""
        kinds = self.api.CUfunction_attribute
        if shared:
            kind = kinds.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self.call(self.api.cuFuncSetAttribute(function, kind, shared))
        if cluster > 8:
            kind = kinds.CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED
            self.call(self.api.cuFuncSetAttribute(function, kind, 1))


@cache
def driver() -> Driver:
    """The driver of this machine, or an error that says what is missing."""
    try:
        from cuda.bindings import driver as api

        return Driver(api)
    except ImportError as error:
        raise LaunchError(
            "running on a GPU needs cuda-bindings", got=str(error), fix=INSTALL
        ) from None
    except RuntimeError as error:
        raise LaunchError(
            "this machine has no CUDA driver",
            got=str(error).partition("\n")[0],
            fix='use target="cpu", or run on a machine with an NVIDIA GPU',
        ) from None


# ------------------------------------------------------------------------------ our own memory


class DeviceMemory:
    """Bytes that a stream may use from now on. They go back when nobody holds this any more,
    after all that the stream, and those in `users`, have been given by then."""

    def __init__(self, found: Driver, device: Device, size: int, stream: int) -> None:
        self.found, self.device, self.stream = found, device, stream
        self.users: set[int] = set()
        self.address = found.allocate(device, size, stream)

    def free(self) -> None:
        address, self.address = self.address, 0
        if address:
            for user in self.users:
                self.found.order(self.device, user, self.stream)
            self.found.free(self.device, address, self.stream)

    def __del__(self) -> None:
        # a lost context, or an interpreter that is closing, has nothing left to give back
        with suppress(AttributeError, TilewrightError, TypeError):
            self.free()


class DeviceArray:
    """A row-major array on the GPU. `torch.from_dlpack`, `cupy.from_dlpack` and
    `jax.dlpack.from_dlpack` take it over without a copy."""

    def __init__(
        self, found: Driver, device: Device, shape: Sequence[int], dtype: DType, stream: int
    ) -> None:
        self.shape, self.dtype = tuple(shape), dtype
        self.memory = DeviceMemory(found, device, dtype.storage_bytes(prod(shape)), stream)

    def __repr__(self) -> str:
        size = "×".join(map(str, self.shape))
        return f"DeviceArray({self.dtype} {size}, cuda:{self.memory.device.ordinal})"

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        return {
            "version": 3,
            "shape": self.shape,
            "typestr": self.dtype.numpy.str,
            "data": (self.memory.address, False),
            "stream": self.memory.stream or 1,
        }

    def __dlpack_device__(self) -> tuple[int, int]:
        return CUDA, self.memory.device.ordinal

    def __dlpack__(self, *, stream: int | None = None, **_: Any) -> Any:
        """A capsule; `stream` is made to wait for what writes the array (-1: it need not)."""
        memory = self.memory
        if stream != -1:
            user = 0 if stream in (None, 1) else int(stream or 0)
            memory.found.order(memory.device, memory.stream, user)
            memory.users.add(user)
        return export(memory.address, self.shape, self.dtype, self.__dlpack_device__(), self)


class Held:
    """Arrays that stay until the work in front of them is done: their library does not know our
    stream, and would give their memory to somebody else."""

    def __init__(self, found: Driver) -> None:
        self.found = found
        self.waiting: deque[tuple[Any, Any]] = deque()

    def until_done(self, device: Device, stream: int, owners: Any) -> None:
        """Keep `owners` until `stream` has come this far."""
        found = self.found
        with found.active(device):
            if found.is_capturing(stream):
                return  # a graph reads them whenever it runs: as with every library, the
                # caller keeps what it was captured with
            self.waiting.append((found.event(stream), owners))
            while self.waiting:
                event, _ = self.waiting[0]
                if int(found.api.cuEventQuery(event)[0]):
                    break
                self.waiting.popleft()
                found.call(found.api.cuEventDestroy(event))
