"""What an error says to do about it is true: the program that it leads to compiles and runs."""

from __future__ import annotations

import linecache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import tilewright as tw
from tests.errors.case import CASES, Case
from tests.errors.test_corpus import known
from tilewright.ir.buffer import Buffer
from tilewright.lang.trace import PrimFunc


def run(text: str, file: Path) -> dict[str, Any]:
    """The names that a file defines."""
    file.write_text(text)
    linecache.checkcache(str(file))
    names: dict[str, Any] = {"__name__": "fixed"}
    exec(compile(text, str(file), "exec"), names)
    return names


def zeros(kernel: PrimFunc, size: int = 16) -> list[Any]:
    """Arguments that a kernel takes."""
    dims = {dim.var.name: max(dim.min, min(size, dim.max or size)) for dim in kernel.program.dims}
    found: list[Any] = []
    for param in kernel.program.params:
        if isinstance(param, Buffer):
            shape = [dims.get(getattr(s, "name", ""), getattr(s, "value", 0)) for s in param.shape]
            if param.dtype.packed:
                shape[-1] = shape[-1] * param.dtype.bits // 8
            found.append(np.zeros(shape, np.uint8 if param.dtype.packed else param.dtype.numpy))
        else:
            found.append(1)
    return found


def check(text: str, file: Path) -> None:
    """Compile what a file defines, and run what the interpreter can."""
    own = [v for v in run(text, file).values() if isinstance(v, PrimFunc) and _in(v, file)]
    for kernel in own:
        if "cuda" in text:
            continue  # compiled by the text itself
        if "T.wgmma_gemm" in text:
            tw.compile(kernel, target="cuda")
            continue
        tw.compile(kernel, target="interp")(*zeros(kernel))


def _in(kernel: PrimFunc, file: Path) -> bool:
    return bool(kernel.fn.__code__.co_filename == str(file))


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_the_fix_compiles(case: Case, tmp_path: Path):
    file = tmp_path / "fixed.py"
    edits = known(case).diagnostic.edits
    text = case.fixed()
    assert text or edits, "the case needs the lines that put it right"
    if text:
        check(text, file)
    if edits:
        # what a tool does: change the file, and run it again
        source = Path(case.run.__code__.co_filename).read_text()
        for edit in edits:
            source = edit.apply(source)
        lines, first = case.lines
        changed = source.splitlines(keepends=True)[first - 1 : first - 1 + len(lines)]
        check(case.script(changed), file)
