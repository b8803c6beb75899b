"""The machine kernels run on: its vector width, its registers, and LLVM's view of it."""

from __future__ import annotations

import ctypes
import ctypes.util
import os
import sys
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import llvmlite
import llvmlite.binding as llvm
from llvmlite.binding.newpassmanagers import NewPassManager

from tilewright.ir.buffer import Buffer
from tilewright.support.env import NUM_THREADS
from tilewright.support.errors import CompileError, LaunchError
from tilewright.support.forks import fork_lock
from tilewright.targets.entries import Json, from_json, to_json

# One LLVM context serves all compilations, and it is not safe to enter it twice.
LLVM_LOCK = fork_lock()


@dataclass(frozen=True)
class Host:
    """What the emitter asks of the machine.

    `lane_fma`: a multiply-add can take one lane of a register as its scalar (NEON), so operands
    are loaded as vectors; elsewhere a scalar is broadcast from memory for free. `keeps_nan`: the
    minimum and maximum of a number and NaN is NaN.
    """

    vector_bits: int
    vector_registers: int
    lane_fma: bool
    keeps_nan: bool = False

    def lanes(self, bits: int) -> int:
        return max(1, self.vector_bits // max(bits, 8))


@cache
def _features() -> Any:
    """A mapping from names to whether there is such a thing."""
    return llvm.get_host_cpu_features()


@cache
def host() -> Host:
    features = _features()
    if features.get("avx512f") and features.get("avx512vl"):
        return Host(512, 32, False)
    if features.get("avx2") and features.get("fma"):
        return Host(256, 16, False)
    if features.get("neon") or llvm.get_process_triple().startswith(("aarch64", "arm64")):
        return Host(128, 32, True, keeps_nan=True)
    return Host(128, 16, False)


@cache
def target_machine(level: str = "") -> Any:
    """LLVM's view of this computer, or of all processors of a `level`, for files."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    target = llvm.Target.from_triple(toolchain()["triple"])
    features = "" if level else toolchain()["features"]
    if host().vector_bits == 512:
        features += ",-prefer-256-bit"
    return target.create_target_machine(
        cpu=level or toolchain()["cpu"],
        features=features.lstrip(","),
        opt=3,
        reloc="pic",
        codemodel="default" if level else "jitdefault",
    )


# the levels of x86-64 that have vectors of so many bits, and the features that tell them apart
LEVELS = {
    128: ("x86-64", ()),
    256: ("x86-64-v3", ("avx", "avx2", "bmi", "bmi2", "fma")),
    512: ("x86-64-v4", ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl")),
}


def level() -> tuple[str, tuple[str, ...]]:
    """The processors that run what is emitted for this one, and features that they all have."""
    if llvm.get_process_triple().startswith("x86_64"):
        return LEVELS[host().vector_bits]
    return "generic", ()


@cache
def toolchain() -> dict[str, str]:
    """What shapes machine code besides the module it is made of."""
    return {
        "llvmlite": str(llvmlite.__version__),
        "llvm": ".".join(map(str, llvm.llvm_version_info)),
        "triple": llvm.get_process_triple(),
        "cpu": llvm.get_host_cpu_name(),
        "features": _features().flatten(),
    }


@cache
def _libm() -> Any:
    name = ctypes.util.find_library("m") or {"win32": "ucrtbase"}.get(sys.platform)
    return ctypes.CDLL(name)


def math_address(symbol: str) -> int:
    """Where the C library keeps one of its math functions."""
    function = getattr(_libm(), symbol, None)
    if function is None:
        raise CompileError(f"this machine's math library has no {symbol}")
    return int(ctypes.cast(function, ctypes.c_void_p).value or 0)


class Binary:
    """Machine code in memory: `address(symbol)` while the object lives."""

    def __init__(self, library: Any, linker: Any) -> None:
        self.library = library
        # a linker keeps about 9 KB of every library it has seen, so each library has its own
        weakref.finalize(self, _unload, library, linker).atexit = False

    def address(self, symbol: str) -> int:
        return int(self.library[symbol])


def _unload(library: Any, linker: Any) -> None:
    library.close()
    linker.close()


@cache
def _pass_builder(level: str) -> Any:
    options = llvm.create_pipeline_tuning_options(speed_level=2)
    # maps are vectors already; the vectorizers would only cost time on what is left
    options.loop_vectorization = False
    options.slp_vectorization = False
    options.loop_unrolling = False
    return llvm.create_pass_builder(target_machine(level), options)


def optimize(ir: str) -> Any:
    """Parse, check and optimize a module's text."""
    return optimized(llvm.parse_assembly(ir))


def optimized(module: Any, level: str = "") -> Any:
    """The module, checked and optimized."""
    builder = _pass_builder(level)
    module.verify()
    passes = builder.getModulePassManager()
    passes.run(module, builder)
    # llvmlite's own clean-up misses pass managers, about 77 KB each
    NewPassManager._dispose(passes)
    passes.detach()
    return module


def object_file(module: Any, level: str = "") -> bytes:
    """Machine code for an optimized module."""
    return bytes(target_machine(level).emit_object(module))


def link(image: bytes, exports: Sequence[str], imports: Mapping[str, int]) -> Binary:
    """An object file in memory, with the addresses of what it calls."""
    library = llvm.JITLibraryBuilder().add_object_img(image)
    for name in exports:
        library = library.export_symbol(name)
    for name, address in imports.items():
        library = library.import_symbol(name, address)
    linker = llvm.create_lljit_compiler(target_machine(), use_jit_link=False)
    return Binary(library.add_current_process().link(linker, "tilewright"), linker)


@dataclass(frozen=True)
class Code:
    """Machine code for this computer and what a launch needs to know of it, as it is kept on disk.

    `kernels` are symbols, each with the bytes that its blocks' tiles take; `imports` functions of
    the C library; `source` is LLVM IR, `image` the object file made of it. `watches` is what the
    code may report: ops, which no file holds."""

    kernels: tuple[tuple[str, int], ...]
    scratch: tuple[Buffer, ...]
    imports: tuple[str, ...]
    source: str
    image: bytes
    watches: tuple[Any, ...] = ()

    def link(self, symbols: Sequence[str] = ()) -> Binary:
        """In memory, ready to call: the kernels, and other `symbols`."""
        entries = [each for name, _ in self.kernels for each in (name, f"{name}.blocks")]
        imports = {symbol: math_address(symbol) for symbol in self.imports}
        return link(self.image, [*symbols, *entries], imports)

    def to_entry(self) -> tuple[dict[str, Json], bytes]:
        found = to_json((self.kernels, self.scratch, self.imports))
        return {"found": found, "image": len(self.image)}, self.image + self.source.encode()

    @staticmethod
    def from_entry(header: Mapping[str, Json], data: bytes) -> Code:
        end = header["image"]
        kernels, scratch, imports = from_json(header["found"])
        return Code(kernels, scratch, imports, data[end:].decode(), data[:end])


def thread_count() -> int:
    """Worker threads, the caller included."""
    text = NUM_THREADS()
    if text:
        try:
            return max(1, int(text))
        except ValueError:
            raise LaunchError(
                f"{NUM_THREADS.name} must be a number, not {text!r}",
                fix="set it to how many threads there may be, or not at all",
            ) from None
    if hasattr(os, "sched_getaffinity"):
        return max(1, len(os.sched_getaffinity(0)))
    return max(1, os.cpu_count() or 1)
