"""What `plant.py` runs in a process of its own, with one copy of the sources on its path.

hunter.py codes TARGET FIRST COUNT          the hash of each seed's thread code
hunter.py hunt TARGET FIRST COUNT CODES     programs whose code is not that in the file CODES,
                                            until one fails
"""

from __future__ import annotations

import hashlib
import json
import signal
import sys
import time
from pathlib import Path
from typing import Any

from tilewright.ir.text import print_program
from tilewright.targets.cuda.backend import lower
from tilewright.tools.fuzz import judge
from tilewright.tools.fuzz_check import THREADS, Verdict, load
from tilewright.tools.fuzz_programs import make
from tilewright.tools.fuzz_recipe import render

EACH = 90  # seconds a program


def code(seed: int, target: str) -> str:
    """A hash of the code that `target` runs for a seed."""
    try:
        program = load(render(make(seed)), f"fuzz_{seed}.py")["program"].program
        text = print_program(lower(program, THREADS[target]).result)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return hashlib.sha256(text.encode()).hexdigest()


def judged(seed: int, target: str) -> Verdict:
    def late(*_: Any) -> None:
        raise TimeoutError("did not end in time")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(EACH)
    try:
        return judge(seed, ["interp", target])
    except TimeoutError as error:
        return Verdict("crash", target, str(error))
    finally:
        signal.alarm(0)


def main() -> None:
    word, target, first, count = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
    seeds = range(first, first + count)
    if word == "codes":
        print(json.dumps({seed: code(seed, target) for seed in seeds}))
        return
    known = json.loads(Path(sys.argv[5]).read_text()) if len(sys.argv) > 5 else {}
    changed = 0
    for done, seed in enumerate(seeds):
        if str(seed) in known and code(seed, target) == known[str(seed)]:
            continue
        changed += 1
        verdict = judged(seed, target)
        # a target that refuses is not wrong; the CPU takes every legal program
        if verdict.found and not (verdict.kind == "refused" and target != "cpu"):
            print(json.dumps({"seed": seed, "done": done + 1, "changed": changed,
                              "words": str(verdict), "cpu": time.process_time()}))  # fmt: skip
            return
    print(json.dumps({"seed": None, "done": count, "changed": changed, "words": "",
                      "cpu": time.process_time()}))  # fmt: skip


if __name__ == "__main__":
    main()
