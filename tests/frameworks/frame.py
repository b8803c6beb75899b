"""XLA's call frame, made by hand: handlers are called as XLA calls them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

from tilewright.frameworks import jax_frame as layout

_ANSWER = ctypes.CFUNCTYPE(ctypes.c_void_p, ctypes.c_void_p)


class _Struct:
    """Bytes with words at offsets."""

    def __init__(self, size: int, **words: int) -> None:
        self.memory = ctypes.create_string_buffer(size)
        self.address = ctypes.addressof(self.memory)

    def put(self, offset: int, value: int, kind: Any = ctypes.c_uint64) -> None:
        kind.from_address(self.address + offset).value = value


def list_of(addresses: Sequence[int]) -> Any:
    return (ctypes.c_void_p * max(len(addresses), 1))(*addresses)


class Frame:
    """A call with arguments and results at these addresses, on a stream of a device."""

    def __init__(
        self, arguments: Sequence[int], results: Sequence[int], attributes: Sequence[int] = (),
        stream: int = 0, device: int = 0,
    ) -> None:  # fmt: skip
        self.message = ""
        kept: list[Any] = []
        api = _Struct(256)

        def answer(offset: int, value: int, kind: Any) -> Any:
            def run(given: int) -> int:
                kind.from_address(given + offset).value = value
                return 0

            return _ANSWER(run)

        def fail(given: int) -> int:
            where = ctypes.c_void_p.from_address(given + 16).value
            self.message = ctypes.string_at(where).decode()
            return 0xE

        functions = {
            "error_create": _ANSWER(fail),
            "stream": answer(24, stream, ctypes.c_uint64),
            "device": answer(24, device, ctypes.c_int32),
        }
        for name, function in functions.items():
            api.put(layout.API[name], ctypes.cast(function, ctypes.c_void_p).value or 0)
        self.frame = _Struct(256)
        put, at = self.frame.put, layout.FRAME
        put(at["api"], api.address)
        put(at["context"], 0xC)
        put(at["stage"], layout.EXECUTE, ctypes.c_int32)
        for count, place, addresses in (("arg_count", "args", arguments),
                                        ("result_count", "results", results)):  # fmt: skip
            buffers = [_Struct(48) for _ in addresses]
            for each, address in zip(buffers, addresses, strict=True):
                each.put(layout.BUFFER["data"], address)
            listed = list_of([b.address for b in buffers])
            put(at[count], len(addresses))
            put(at[place], ctypes.addressof(listed))
            kept += [buffers, listed]
        values = [ctypes.c_uint64(a) for a in attributes]
        scalars = [_Struct(16) for _ in attributes]
        for each, value in zip(scalars, values, strict=True):
            each.put(layout.SCALAR["value"], ctypes.addressof(value))
        listed = list_of([s.address for s in scalars])
        put(at["attribute_count"], len(attributes))
        put(at["attributes"], ctypes.addressof(listed))
        self.kept = [kept, api, functions, values, scalars, listed]

    def call(self, handler: Any) -> bool:
        """Whether the handler says that it went well; else `message` says why."""
        return not _ANSWER(handler.address("tw.handler"))(self.frame.address)
