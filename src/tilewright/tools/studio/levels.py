"""A kernel's text at every level, from formula to machine code, each line with the lines of the
source that it comes from."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from tilewright.inspect.explain import laid_out
from tilewright.ir.core import *
from tilewright.ir.text import print_located
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError
from tilewright.tools.studio.subject import Subject

_DIRECTIVE = re.compile(r'#line (\d+) "(.*)"')
_PTX_PLACE = re.compile(r"\.loc\s+(\d+) (\d+) \d+(?:,.*inlined_at (\d+) (\d+))?")
_PTX_FILE = re.compile(r'\.file\s+(\d+) "(.*)"')
_SASS_PLACE = re.compile(r'//## File "(.*)", line (\d+)')
_LLVM_PLACE = re.compile(r"; \w+ at (.*):(\d+):\d+")
NAME = "studio.cu"
MOST = 3000  # lines of machine code

Level = dict[str, Any]


def levels(subject: Subject, kernel: CompiledKernel, notes: list[str]) -> list[Level]:
    """Those that there are; `notes` says which are missing, and why."""
    file = subject.source()["file"]
    found: list[Level] = []
    made = subject.made
    if made is not None:
        found.append(_level("formula", "text", ((line, ()) for line in
                                                str(made.formula).splitlines())))  # fmt: skip
        text = enumerate(made.program.text.splitlines(), 1)
        found.append(_level("tile text", "python", ((line, (n,)) for n, line in text)))
    trace = kernel.executable.trace
    stages = [("tile IR", kernel.program)]
    if kernel.target.kind == "cuda":
        stages += [("scheduled IR", laid_out(trace)), ("thread code", trace[-1][1])]
    for name, program in stages:
        lines = print_located(program)
        found.append(_level(name, "tw", ((text, _here(loc, file)) for text, loc in lines)))
    if kernel.target.kind == "cuda":
        source, links = _cuda(kernel.get_kernel_source(), file)
        found.append(_level("CUDA", "cuda", zip(source, links, strict=True)))
        found += _machine(kernel, source, links, notes)
    elif kernel.target.kind == "cpu":
        found.append(_level("LLVM IR", "llvm", _llvm(kernel.get_kernel_source(), file)))
    return found


def _level(name: str, language: str, lines: Iterable[tuple[str, Iterable[int]]]) -> Level:
    told = list(lines)
    return {
        "name": name,
        "language": language,
        "lines": [text for text, _ in told],
        "links": [list(places) for _, places in told],
    }


def _here(loc: Loc | None, file: str) -> list[int]:
    """Lines of the file: of a macro elsewhere, where it is called."""
    if loc is None:
        return []
    return [place.line for place in (loc, *loc.callers) if place.file == file][:1]


def _cuda(source: str, file: str) -> tuple[list[str], list[list[int]]]:
    """Without its directives, which say where each line comes from."""
    lines: list[str] = []
    links: list[list[int]] = []
    at: list[int] = []
    for line in source.splitlines():
        directive = _DIRECTIVE.match(line)
        if directive:
            at = [int(directive[1])] if directive[2].replace("\\\\", "\\") == file else []
            continue
        if not line.startswith(" "):
            at = []
        lines.append(line)
        links.append(at)
    return lines, links


def _llvm(source: str, file: str) -> Iterator[tuple[str, list[int]]]:
    """Its comments say where the lines after them come from."""
    at: list[int] = []
    for line in source.splitlines():
        if place := _LLVM_PLACE.search(line):
            at = [int(place[2])] if place[1] == file else []
        elif not line.startswith(" "):
            at = []
        yield line, at


def _machine(
    kernel: CompiledKernel, source: list[str], links: list[list[int]], notes: list[str]
) -> Iterator[Level]:
    """PTX and SASS of the same source, compiled once more so that they name its own lines."""
    from tilewright.targets.cuda.backend import headers
    from tilewright.targets.cuda.nvrtc import compile_cuda
    from tilewright.targets.cuda.sass import disassemble

    try:
        text = "\n".join(source)
        options = () if kernel.program.sources else ("--minimal",)
        arch = kernel.target.arch
        made = compile_cuda(text, NAME, arch, options, headers(), diagnostic=True)
        yield _level("PTX", "ptx", _ptx(made.ptx, links))
        yield _level("SASS", "sass", _sass(disassemble(made.cubin, lines=True), links))
    except TilewrightError as error:
        notes.append(f"no machine code: {error.message}; {error.diagnostic.fix}")


def _ptx(text: str, links: list[list[int]]) -> Iterator[tuple[str, list[int]]]:
    files = {n for n, name in _PTX_FILE.findall(text) if name.endswith(NAME)}
    at: list[int] = []
    for line in text.splitlines()[:MOST]:
        place = _PTX_PLACE.search(line)
        if place:
            pairs = ((place[1], place[2]), (place[3], place[4]))
            at = next((_linked(links, int(n)) for f, n in pairs if f in files), at)
        elif line.strip() and not line.lstrip().startswith(("//", ".file")):
            yield line, at


def _sass(text: str, links: list[list[int]]) -> Iterator[tuple[str, list[int]]]:
    at: list[int] = []
    shown = [line for line in text.splitlines() if _SASS_PLACE.search(line) or "/*" in line
             or line.startswith(".L")]  # fmt: skip
    for line in shown[:MOST]:
        place = _SASS_PLACE.search(line)
        if place:
            at = _linked(links, int(place[2])) if place[1].endswith(NAME) else at
        else:
            yield line, at


def _linked(links: list[list[int]], line: int) -> list[int]:
    return links[line - 1] if 0 < line <= len(links) else []
