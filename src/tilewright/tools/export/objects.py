"""Machine code of the CPU target as an object file for a linker."""

from __future__ import annotations

import llvmlite.binding as llvm

from tilewright.targets.cpu.host import LLVM_LOCK, Code, object_file, optimized


def object_for(code: Code, prefix: str, processor: str) -> tuple[bytes, list[tuple[str, str, int]]]:
    """The file, and for each kernel the symbols of its entry and of what counts its blocks, with
    the bytes of its tiles. Symbols begin with `prefix`, so that several files link together."""
    entries = []
    with LLVM_LOCK:
        module = llvm.parse_assembly(code.source)
        for i, (name, size) in enumerate(code.kernels):
            entry, count = f"{prefix}_{i}", f"{prefix}_{i}_blocks"
            module.get_function(name).name = entry
            module.get_function(f"{name}.blocks").name = count
            entries.append((entry, count, size))
        return object_file(optimized(module, processor), processor), entries
