"""Machine code for this computer and what a launch needs to know of it, as it is kept on disk."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from tilewright.ir.buffer import Buffer
from tilewright.targets.cpu.host import Binary, link
from tilewright.targets.entries import Json, scratch_from_json, scratch_to_json


@dataclass(frozen=True)
class Code:
    """`kernels` are symbols, each with the bytes that its blocks' tiles take; `slots` the places of
    arguments, 8 bytes each; `imports` functions of the C library; `source` is LLVM IR, `image` the
    object file made of it. `watches` is what the code may report: ops, which no file holds."""

    kernels: tuple[tuple[str, int], ...]
    slots: Mapping[str, int]
    scratch: tuple[Buffer, ...]
    imports: tuple[str, ...]
    source: str
    image: bytes
    watches: tuple[Any, ...] = ()

    def link(self) -> Binary:
        exports = tuple(n for name, _ in self.kernels for n in (name, f"{name}.blocks"))
        return link(self.image, exports, self.imports)

    def to_entry(self) -> tuple[dict[str, Json], bytes]:
        header = {
            "kernels": self.kernels,
            "slots": dict(self.slots),
            "scratch": scratch_to_json(self.scratch),
            "imports": self.imports,
            "image": len(self.image),
        }
        return header, self.image + self.source.encode()

    @staticmethod
    def from_entry(header: Mapping[str, Json], data: bytes) -> Code:
        end = header["image"]
        return Code(
            tuple((name, size) for name, size in header["kernels"]),
            header["slots"],
            scratch_from_json(header["scratch"]),
            tuple(header["imports"]),
            data[end:].decode(),
            data[:end],
        )
