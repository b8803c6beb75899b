"""Wrong programs with the place and the words of their errors, and what puts them right.

A case is a function that goes wrong. A comment line under the wrong line holds carets under the
span that the error must point at:

    T.copy(A, s)
#   ^^^^^^^^^^^^

A line that goes wrong further down is marked in the same way; a case has one such mark.

The program that the error's fix leads to is written between the lines: `#+` takes the place of the
line above it, further ones follow it, and `#-` leaves the line above out.

    T.copy(A, s)
#   ^^^^^^^^^^^^
#+  T.copy(A[0:8], s)

A fix that a tool can apply needs no such lines: the tests apply it.
"""

from __future__ import annotations

import linecache
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Case:
    """A wrong program, what its error is and what the rendered text must say."""

    run: Callable[[], Any]
    error: type[Exception]
    words: tuple[str, ...]
    # where an iteration stands is the whole loop in Python 3.11, its iterable in later ones
    iteration: bool = False

    @property
    def name(self) -> str:
        return f"{self.run.__module__.rsplit('.', 1)[-1]}-{self.run.__name__}"

    @property
    def lines(self) -> tuple[list[str], int]:
        """The source up to the next case, with the number of its first line."""
        first = self.run.__code__.co_firstlineno
        rest = linecache.getlines(self.run.__code__.co_filename)[first - 1 :]
        after = (at for at, line in enumerate(rest) if at and line.startswith("@case"))
        return rest[: next(after, len(rest))], first

    def mark(self) -> tuple[int, int, int]:
        """Line, column and width of the place that is marked, all from the file's view."""
        lines, first = self.lines
        marks = [
            (first + at - 1, line.index("^") + 1, line.count("^"))
            for at, line in enumerate(lines)
            if line.lstrip().startswith("#") and not line.strip("# ^\n") and "^" in line
        ]
        assert len(marks) == 1, f"{self.name} needs one mark, has {len(marks)}"
        return marks[0]

    def script(self, lines: list[str] | None = None) -> str:
        """The case as a file of its own, its kernel at the top level."""
        lines = self.lines[0] if lines is None else lines
        body = next(at for at, line in enumerate(lines) if line.startswith("def ")) + 1
        text = "".join(line for line in lines[body:] if not line.startswith("#"))
        return f"from {self.run.__module__} import *\n\n" + textwrap.dedent(text)

    def fixed(self) -> str:
        """The script with the lines that put it right, or '' where there are none."""
        found: list[str] = []
        changed = replaced = False
        for line in self.lines[0]:
            if line.startswith(("#+", "#-")):
                if not replaced:
                    found.pop()
                if line.startswith("#+"):
                    found.append(line.replace("#+", "  ", 1))
                changed = replaced = True
            elif not line.startswith("#"):
                found.append(line)
                replaced = False
        return self.script(found) if changed else ""


CASES: list[Case] = []


def case(
    error: type[Exception], *words: str, iteration: bool = False
) -> Callable[[Callable[[], Any]], Callable[[], Any]]:
    """The function fails with `error`, and the text says all of `words`."""

    def register(run: Callable[[], Any]) -> Callable[[], Any]:
        CASES.append(Case(run, error, words, iteration))
        return run

    return register
