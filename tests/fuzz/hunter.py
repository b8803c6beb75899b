"""What `plant.py` runs in a process of its own, with one copy of the sources on its path.

hunter.py codes TARGET KIND FIRST COUNT          the hash of each seed's thread code
hunter.py hunt TARGET KIND FIRST COUNT CODES     programs whose code is not that in the file CODES,
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

from devtools.compare import Verdict, lowered
from devtools.fuzz.check import for_seed, load
from devtools.fuzz.programs import make
from devtools.fuzz.recipe import render
from devtools.fuzz.run import judge
from devtools.host import target as host
from tilewright.ir.text import print_program
from tilewright.targets.cuda.backend import headers
from tilewright.targets.cuda.emit import emit_program

EACH = 90  # seconds a program


def code(seed: int, target: str, kind: str) -> str:
    """A hash of the code that `target` runs for a seed."""
    try:
        program = load(render(make(seed, kind)), f"fuzz_{seed}.py")["program"].program
        asked = for_seed(target, seed)
        if host.is_host(asked):
            text = emit_program(lowered(program, host.road(asked)).result).text
            text += "".join(headers().values())
        else:
            text = print_program(lowered(program, asked).result)
    except Exception as error:
        text = f"{type(error).__name__}: {error}"
    return hashlib.sha256(text.encode()).hexdigest()


def judged(seed: int, target: str, kind: str) -> Verdict:
    def late(*_: Any) -> None:
        raise TimeoutError("did not end in time")

    signal.signal(signal.SIGALRM, late)
    signal.alarm(EACH)
    try:
        return judge(seed, ["interp", target], kind)
    except TimeoutError as error:
        return Verdict("crash", target, str(error))
    finally:
        signal.alarm(0)


def main() -> None:
    word, target, kind, first, count = *sys.argv[1:4], int(sys.argv[4]), int(sys.argv[5])
    seeds = range(first, first + count)
    if word == "codes":
        print(json.dumps({seed: code(seed, target, kind) for seed in seeds}))
        return
    known = json.loads(Path(sys.argv[6]).read_text()) if len(sys.argv) > 6 else {}
    changed = 0
    for done, seed in enumerate(seeds):
        if str(seed) in known and code(seed, target, kind) == known[str(seed)]:
            continue
        changed += 1
        verdict = judged(seed, target, kind)
        # a target that refuses is not wrong; the CPU takes every legal program
        if verdict.found and not (verdict.kind == "refused" and target != "cpu"):
            print(json.dumps({"seed": seed, "done": done + 1, "changed": changed,
                              "words": str(verdict), "cpu": time.process_time()}))  # fmt: skip
            return
    print(json.dumps({"seed": None, "done": count, "changed": changed, "words": "",
                      "cpu": time.process_time()}))  # fmt: skip


if __name__ == "__main__":
    main()
