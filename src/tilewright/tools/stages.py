"""A program from stage to stage: as text, and what passes changed."""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from itertools import pairwise

from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.runtime.backends import build, resolve
from tilewright.support.errors import TilewrightError


class UnknownStage(Exception):
    """A stage that there is not, and those that there are."""


@dataclass
class Passed:
    """What each pass left, the text as written first; `error` is what ended them early."""

    target: Target
    stages: dict[str, Program]
    error: TilewrightError | None = None

    def text(self, stage: str) -> str:
        return print_program(self.program(stage))

    def program(self, stage: str) -> Program:
        if stage not in self.stages:
            close = difflib.get_close_matches(stage, self.stages, 1)
            text = f"no stage {stage!r} for {self.target}"
            text += f"; did you mean {close[0]!r}?" if close else ""
            text += f"\nthere are: {', '.join(self.stages)}"
            if self.error is not None:
                text += f"\nthen a pass failed: {self.error.message}"
            raise UnknownStage(text)
        return self.stages[stage]


def passed(program: Program, target: str) -> Passed:
    """Compile `program` and keep what every pass left, also where one fails."""
    found, error = resolve(target), None
    try:
        trace = build(program, found).trace
    except TilewrightError as caught:
        trace, error = caught.__dict__.get("trace") or [], caught
    stages = {"tile": program}
    # "input" is the text as written
    stages |= {name: result for name, result in trace if name != "input"}
    return Passed(found, stages, error)


def difference(of: Passed, before: str, after: str) -> str:
    """A unified diff from one stage to another."""
    lines = difflib.unified_diff(
        of.text(before).splitlines(), of.text(after).splitlines(), before, after, lineterm="", n=2
    )
    return "\n".join(lines) or f"{before} and {after} are the same"


def changes(of: Passed) -> str:
    """The diff of every pass that changed something."""
    names = list(of.stages)
    found = [
        difference(of, before, after)
        for before, after in pairwise(names)
        if of.stages[before] != of.stages[after]
    ]
    same = [b for a, b in pairwise(names) if of.stages[a] == of.stages[b]]
    if same:
        found.append(f"# nothing changed in: {', '.join(same)}")
    return "\n\n".join(found)


def listing(of: Passed) -> str:
    """The stages in order, with how much of the text each pass changed."""
    lines = []
    last: list[str] | None = None
    for name in of.stages:
        text = of.text(name).splitlines()
        note = "as written"
        if last is not None:
            ops = [d[0] for d in difflib.unified_diff(last, text, lineterm="", n=0)][2:]
            note = f"+{ops.count('+')} -{ops.count('-')} lines" if ops else "no change"
        lines.append(f"{name:<24}{note}")
        last = text
    return f"{next(iter(of.stages.values())).name} for {of.target}\n" + "\n".join(lines)
