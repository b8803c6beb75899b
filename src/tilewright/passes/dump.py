"""TILEWRIGHT_DUMP: what a compilation left, in files whose names sort in the order of their making.

    <dump>/<program>.<target>/00_input.tw
                              01_<pass>.tw …
                              12_source.cu          (or .ll)
                              07_<pass>.error.txt   where a pass failed: the file before it is
                                                    what it was given

A program that is compiled again for the same target takes the place of the last one; another one
of the same name gets a folder of its own, `<program>_2.<target>`.
"""

from __future__ import annotations

import re
import threading
from pathlib import Path

from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.support import env

_lock = threading.Lock()
_owners: dict[Path, Program] = {}  # whose folder it is, in this process


class Dump:
    """The files of one compilation; nothing is written where nobody asked for them."""

    def __init__(self, program: Program, target: Target, where: str | Path | None = None) -> None:
        self.folder: Path | None = None
        self.number = 0
        root = env.DUMP() if where is None else str(where)
        if root:
            self.folder = _own(Path(root), _plain(program.name), _plain(str(target)), program)
            self.folder.mkdir(parents=True, exist_ok=True)
            for old in self.folder.glob("[0-9][0-9]_*"):
                old.unlink()

    def program(self, name: str, program: Program) -> None:
        """The program after pass `name`."""
        if self.folder is not None:
            self._write(f"{_plain(name)}.tw", print_program(program))

    def source(self, kind: str, text: str) -> None:
        """What was generated; a second one takes the place of the first."""
        if self.folder is not None:
            for old in self.folder.glob("[0-9][0-9]_source.*"):
                old.unlink()
                self.number -= 1
            self._write(f"source.{kind}", text)

    def error(self, name: str, error: Exception) -> None:
        """Pass `name` failed."""
        if self.folder is not None:
            self._write(f"{_plain(name)}.error.txt", f"{type(error).__name__}: {error}\n")

    def _write(self, name: str, text: str) -> None:
        assert self.folder is not None
        (self.folder / f"{self.number:02}_{name}").write_text(text, encoding="utf-8")
        self.number += 1


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9_]+", "_", name) or "program"


def _own(root: Path, name: str, target: str, program: Program) -> Path:
    """The folder of a program, which no other program of this process has."""
    with _lock:
        for count in range(2, 1000):
            folder = root / f"{name}.{target}"
            if _owners.setdefault(folder, program) == program:
                break
            name = f"{_plain(program.name)}_{count}"
    return folder
