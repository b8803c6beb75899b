"""Device memory of our own: scratch of a call, outputs for callers whose library makes none, and
arrays that must live until a kernel has read them."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from math import prod
from typing import Any

from tilewright.ir.dtype import DType
from tilewright.support.errors import TilewrightError
from tilewright.targets.cuda.dlpack import CUDA, export
from tilewright.targets.cuda.driver import Device, Driver


class DeviceMemory:
    """Bytes that a stream may use from now on. They go back when nobody holds this any more,
    behind all that the stream, and those in `users`, have been given by then."""

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
