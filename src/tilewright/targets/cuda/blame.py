"""What CUDA's own compiler says against generated source, at the line of the kernel's text that
it comes from: foreign code, which nothing has checked before."""

from __future__ import annotations

import linecache
import re

from tilewright.ir.core import *
from tilewright.passes.memory.place_shared import TooMuchShared
from tilewright.targets.cuda.names import quoted_path

_QUOTED = re.compile(r"['\"]([^'\"]+)['\"]")


def blamed(error: CompileError, program: Program) -> CompileError:
    """`error` of the toolchain with the op or the import that it is about, where that shows."""
    ops = list(walk_ops(program.kernels))
    foreign = [op for op in ops if isinstance(op, Intrinsic) and op.text]
    words = _QUOTED.findall(error.message)
    found = error.diagnostic
    place = _op_at(found.loc, ops) or _about(foreign, words)
    loc, fix = found.loc, found.fix
    if "registers" in found.message:
        tiles = [op for op in ops if isinstance(op, Alloc) and op.buffer.is_fragment]
        largest = max(tiles, key=lambda op: op.buffer.bytes, default=None)
        loc = largest.loc if largest is not None else _kernel_loc(program)
        fix = "use smaller fragments, or fewer threads with more registers each"
    elif place is not None:
        loc = place.loc
        if isinstance(place, Intrinsic) and place.name == "call_extern":
            fix = 'give its source: T.import_source("__device__ …")'
        elif isinstance(place, Intrinsic):
            fix = "correct the instruction; the PTX manual has its forms"
    elif program.sources:
        loc = _import(program) or _kernel_loc(program)
        fix = "correct the text that T.import_source gives"
    elif loc is None or loc.file.endswith(".cu"):
        loc = _kernel_loc(program)
    return type(error)(
        found.message,
        loc=loc,
        expected=found.expected,
        got=found.got,
        fix=fix or "this is a fault of Tilewright: please report it with the kernel",
        notes=found.notes,
        code="toolchain",
    )


def with_tiles(error: TooMuchShared, program: Program) -> TooMuchShared:
    """`error` at the largest tile of the text, with what each tile takes: its slots in a ring, and
    its line."""
    allocs = {op.buffer.name: op for op in walk_ops(program.kernels, Alloc) if op.buffer.is_shared}
    found, words, deep, first = error.diagnostic, [], False, None
    for name, size in sorted(error.tiles.items(), key=lambda tile: (-tile[1], tile[0])):
        op = allocs.get(name)
        if op is None:
            words.append(f"{name} {size} (made by the compiler)")
            continue
        first = first or op.loc
        slots = size // op.buffer.bytes
        ring = f": {slots} stages of {op.buffer.bytes}" if slots > 1 else ""
        deep = deep or slots > 1
        words.append(f"{name} {size} ({f'line {op.loc.line}' if op.loc else 'no line'}{ring})")
    if not words:
        return error
    return TooMuchShared(
        found.message,
        loc=first or found.loc,
        expected=found.expected,
        got=f"{found.got}: {', '.join(words[:8])}"
        + (f" and {len(words) - 8} more" if len(words) > 8 else ""),
        fix="use fewer stages or smaller tiles" if deep else "use smaller tiles",
        notes=found.notes,
    )


def _op_at(loc: Loc | None, ops: list[Op]) -> Op | None:
    """The op that `#line` says."""
    if loc is None:
        return None
    where = (loc.file, loc.line)
    there = [op for op in ops if op.loc and (quoted_path(op.loc.file), op.loc.line) == where]
    return next((op for op in there if isinstance(op, Intrinsic)), there[0] if there else None)


def _about(foreign: list[Intrinsic], words: list[str]) -> Intrinsic | None:
    named = [op for op in foreign if any(word.strip(".") in op.text for word in words)]
    return named[0] if named else foreign[0] if len(foreign) == 1 else None


def _kernel_loc(program: Program) -> Loc | None:
    return next((kernel.loc for kernel in program.kernels if kernel.loc), program.loc)


def _import(program: Program) -> Loc | None:
    """Where the kernel's file imports source, if it does so once."""
    around = _kernel_loc(program)
    if around is None:
        return None
    found = [
        Loc(around.file, number, at.start() + 1, len(line.rstrip()) + 1)
        for number, line in enumerate(linecache.getlines(around.file), start=1)
        if (at := re.search(r"[\w.]*\bimport_source\(", line))
    ]
    return found[0] if len(found) == 1 else None
