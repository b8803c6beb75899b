"""Check your answers: no GPU needed.

python examples/puzzles/check.py            # from the first one on, until one is not solved
python examples/puzzles/check.py 3          # one puzzle
python examples/puzzles/check.py 3 --hint   # what may help
python examples/puzzles/check.py 3 --solution
"""

from __future__ import annotations

import argparse
import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parent))

from specs import PUZZLES, Puzzle

import tilewright as tw


class Wrong(Exception):
    """What is wrong with an answer."""


def check(puzzle: Puzzle, file: Path | None = None) -> None:
    """Run an answer under the sanitizer and on the CPU, and compile it for CUDA."""
    file = file or puzzle.file
    if "raise NotImplementedError" in file.read_text():
        raise Wrong("the hole is still there: write your part, and delete the `raise`")
    make = runpy.run_path(str(file))["puzzle"]
    for sizes in puzzle.sizes:
        kernel = make(*sizes)
        for target in ("interp -sanitize", "cpu"):
            compare(puzzle, kernel, sizes, target)
        text = tw.compile(kernel, target="interp").ir()
        for word in puzzle.uses:
            if word not in text:
                raise Wrong(f"the results are right, but nothing in the kernel is {word}")
    try:
        tw.compile(kernel, target="cuda")
    except tw.CompileError as error:
        if "NVRTC" not in error.message:  # which not every laptop has
            raise


def compare(puzzle: Puzzle, kernel: Any, sizes: tuple[int, ...], target: str) -> None:
    """Run the kernel and compare what it wrote."""
    args, want = puzzle.make(np.random.default_rng(0), *sizes)
    tw.compile(kernel, target=target)(*args)
    for at, expected in want.items():
        name, got = kernel.program.params[at].name, args[at]
        close = np.isclose(got, expected, rtol=1e-4, atol=1e-5)
        if close.all():
            continue
        first = tuple(int(i) for i in np.argwhere(~close)[0])
        place = f"{name}[{', '.join(map(str, first))}]"
        rest = "nothing wrote it" if np.isnan(got[first]) else f"got {got[first]:g}"
        raise Wrong(
            f"with sizes {sizes} on {target}, {int((~close).sum())} of {close.size} elements of "
            f"{name} are wrong; the first is {place}: {rest}, expected {expected[first]:g}"
        )


def report(puzzle: Puzzle, file: Path | None = None) -> bool:
    """Whether an answer is right; says so, or why not."""
    try:
        check(puzzle, file)
    except (Wrong, tw.TilewrightError) as error:
        print(f"{puzzle.name}: not yet\n{error}")
        return False
    print(f"{puzzle.name}: right, under the sanitizer and on the CPU")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description="Check the puzzles.")
    parser.add_argument("number", type=int, nargs="?", choices=range(1, len(PUZZLES) + 1))
    parser.add_argument("--hint", action="store_true", help="what may help")
    parser.add_argument("--solution", action="store_true", help="one way to do it")
    given = parser.parse_args()
    if given.number is None:
        return 0 if all(report(puzzle) for puzzle in PUZZLES) else 1
    puzzle = PUZZLES[given.number - 1]
    if given.solution:
        print(puzzle.solution.read_text())
    elif given.hint:
        print("\n".join(f"- {hint}" for hint in puzzle.hints))
    else:
        return 0 if report(puzzle) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
