"""Bugs planted in passes and emitters, one at a time: does the fuzzer find them?

    python tests/fuzz/plant.py [--count 300] [--time 120] [--only NAME]

Each bug is an edit of one place in a copy of the sources; the fuzzer runs in that copy until it
finds something or its programs are up.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).resolve().parents[2] / "src"


@dataclass(frozen=True)
class Bug:
    """`old`, found once in `file`, becomes `new`."""

    name: str
    file: str
    old: str
    new: str
    target: str = "cpu"

    def apply(self, root: Path) -> None:
        path = root / "tilewright" / self.file
        text = path.read_text(encoding="utf-8")
        if text.count(self.old) != 1:
            raise SystemExit(f"{self.name}: {self.file} has {text.count(self.old)} places for it")
        path.write_text(text.replace(self.old, self.new), encoding="utf-8")


BUGS = (
    # passes and analysis
    Bug("copies from the wrong corner", "passes/expand_copies.py",
        "else start + next(left)", "else next(left)"),
    Bug("a nest fused with one that reads its neighbours", "passes/fuse_maps.py",
        "if touched and len(places | touched) != 1:", "if touched and len(places | touched) > 2:"),
    Bug("a loop absorbed although its turns depend on each other", "passes/absorb_loops.py",
        "written.get(load.buffer.name, load.indices) == load.indices", "load.indices is not None"),
    Bug("a barrier that splits nothing", "passes/split_at_barriers.py",
        "                self._check_sync(op, mask)\n                flush()\n",
        "                self._check_sync(op, mask)\n"),
    Bug("shuffle up instead of down", "passes/split_at_barriers.py",
        '"down": lane + by,', '"down": lane - by,'),
    Bug("loops of one turn dropped", "passes/simplify_indices.py",
        'case For() if prove(compare(">=", op.start, op.stop), ranges):',
        'case For() if prove(compare(">=", op.start + 1, op.stop), ranges):'),
    Bug("the other branch taken", "passes/simplify_indices.py",
        "case If() if op.cond is FALSE:\n            return op.orelse",
        "case If() if op.cond is FALSE:\n            return ()"),
    Bug("min and max exchanged where one side is known", "ir/simplify_rules.py",
        'return x if e.op == "min" else y', 'return y if e.op == "min" else x'),
    Bug("a <= b read as a < b", "ir/simplify_rules.py",
        'diff, op = diff.plus(-1), "<" if op == "<=" else ">="',
        'diff, op = diff, "<" if op == "<=" else ">="'),
    Bug("a remainder dropped off by a period", "ir/simplify_rules.py",
        "return s.rebuild(left.plus(-(v.lo // c) * c), dtype)", "return s.rebuild(left, dtype)"),
    Bug("loop ranges one too short", "ir/bounds.py",
        "self.value(stop, True).hi - 1, mod", "self.value(stop, True).hi - 2, mod"),
    # the CPU emitter
    Bug("a dropped guard at the lower end", "targets/cpu/emit_nest.py",
        'if low != "0":', 'if low == "":'),
    Bug("a dropped guard at the upper end", "targets/cpu/emit_nest.py",
        "new += [_Bound(False, at, -1, 0, size)] * (not high)",
        "new += [_Bound(False, at, -1, 0, size)] * 0"),
    Bug("a panel with the wrong stride", "targets/cpu/gemm.py",
        "down, across = (columns, 1)", "down, across = (max(columns, 1) + columns % 2, 1)"),
    Bug("the last value of k forgotten", "targets/cpu/gemm.py",
        "if self.k - whole:", "if self.k - whole > 1:"),
    Bug("transposes exchanged", "targets/cpu/gemm.py",
        "b = b.transposed if op.transpose_b else b",
        "b = b.transposed if op.transpose_b and b.shape[0] != b.shape[1] else b"),
    Bug("clear=False forgotten", "targets/cpu/emit_tile.py",
        "if not op.clear:\n                old", "if False:\n                old"),
    Bug("maximum that starts from 0", "targets/cpu/emit_tile.py",
        'return wide, same, lambda a, b: self.keep_nan("max", a, b), low',
        'return wide, same, lambda a, b: self.keep_nan("max", a, b), 0'),
    Bug("a tail of columns left out of a scan", "targets/cpu/gemm.py",
        'with self.fn.loop(str(whole), str(size), hint="column")',
        'with self.fn.loop(str(whole), str(size - 1), hint="column")'),
    Bug("atomic minimum as maximum", "targets/cpu/emit_tile.py",
        '"min": f"{signed}min"', '"min": f"{signed}max"'),
    Bug("signed integers widened as unsigned", "targets/cpu/numbers.py",
        'a = self.convert("sext" if a.dtype.kind == "int" else "zext", a, dtype)',
        'a = self.convert("zext", a, dtype)'),
    Bug("no saturation at the lower end", "targets/cpu/numbers.py",
        'if sign == "s":\n                found', 'if sign == "":\n                found'),
    Bug("bfloat16 truncated", "targets/cpu/numbers.py",
        "self._round_bits(bits, 16)", 'self._shift("lshr", bits, 16)'),
    Bug("floor division that truncates", "targets/cpu/numbers.py",
        "found = self.choose_lanes(move, lower, quotient)", "found = quotient"),
    Bug("grid axes in the wrong order", "targets/cpu/emit.py",
        'rest = fn.value(f"udiv i64 {rest}, {extent}")',
        'rest = fn.value(f"udiv i64 {rest}, {grid[-1]}")'),
    # the CUDA road, as thread code
    Bug("idle slots visited", "passes/nests.py",
        "if most > size:", "if most > 2 * size:", "threads"),
    Bug("atomics by every copy of an element", "passes/lower_maps.py",
        "atomic_element(low, op, nest.expr, nest.index, nest.first_copy())",
        "atomic_element(low, op, nest.expr, nest.index)", "threads"),
    Bug("iterations of several threads that read what one writes", "passes/lower_maps.py",
        "once = nest.first_copy() if runs_once(low, op) else TRUE", "once = TRUE", "threads"),
    Bug("idle registers folded", "passes/reduce_any.py",
        "return select(cond, folded, identity(op.op, kind)) if cond is not TRUE else folded",
        "return folded", "threads"),
    Bug("clear=False forgotten across warps", "passes/reduce_any.py",
        "if not op.clear:\n        old", "if False:\n        old", "threads"),
    Bug("scans from the wrong end", "passes/lower_scan.py",
        "const(last) - step if op.reverse else step", "step", "threads"),
    Bug("no barrier on the way through shared memory", "passes/lower_relayout.py",
        "    yield from low.join(op.loc)\n", "", "threads"),
    Bug("zeros outside a tensor forgotten", "passes/lower_moves.py",
        "value = select(moves.cond, value, const(0, held))", "pass", "threads"),
    Bug("hazards of the next iteration not seen", "passes/hazards.py",
        "if state == before:\n                return", "return", "threads"),
    Bug("boxes apart that touch", "passes/hazards.py",
        "if i + size <= j or j + extent <= i:", "if i + size <= j + 1 or j + extent <= i:",
        "threads"),
    Bug("no barriers at all", "passes/insert_syncs.py",
        "    return _mended(kernel)\n\n\ndef settle", "    return kernel\n\n\ndef settle",
        "threads"),
    Bug("one group too many left open", "passes/pipeline_loops.py",
        "pending = ring.stages - 1 - place.lag", "pending = ring.stages - place.lag",
        "threads-sm80"),
    Bug("a ring's phase that never turns", "passes/rings.py",
        "return Load(self.counter, ()) // self.stages % 2", "return Load(self.counter, ()) * 0",
        "threads"),
    Bug("rings refilled behind the loop's end", "passes/pipeline_loops.py",
        'cond = compare("<", value, loop.stop)\n        known',
        'cond = compare("<=", value, loop.stop)\n        known', "threads"),
    Bug("shared buffers that overlap", "passes/place_shared.py",
        "offset += shared_bytes(op.buffer)", "offset += shared_bytes(op.buffer) * 3 // 4",
        "threads"),
    Bug("a padded fragment viewed as if it were whole", "passes/infer_layouts.py",
        "known is not None and known.cover == known.tile:", "known is not None:", "threads"),
)  # fmt: skip


def run(bug: Bug, count: int, seconds: float, seed: int, jobs: int) -> tuple[bool, str]:
    """(found, the fuzzer's last words)."""
    with tempfile.TemporaryDirectory() as folder:
        shutil.copytree(SOURCE, folder, dirs_exist_ok=True,
                        ignore=shutil.ignore_patterns("__pycache__"))  # fmt: skip
        bug.apply(Path(folder))
        command = [
            sys.executable, "-m", "tilewright", "fuzz", "--targets", f"interp,{bug.target}",
            "--count", str(count), "--seed", str(seed), "--time", str(seconds), "--shrink", "0",
            "--findings", "1", "--each", "30", "--jobs", str(jobs),
        ]  # fmt: skip
        env = {**os.environ, "PYTHONPATH": folder}
        done = subprocess.run(command, env=env, capture_output=True, text=True)
    found = re.search(r"^  (seed .*)$", done.stdout, re.MULTILINE)
    programs = re.search(r"^(\d+) programs \(", done.stdout, re.MULTILINE)
    ran = programs[1] if programs else "?"
    words = found[1] if found else (done.stderr.strip().splitlines() or ["nothing found"])[-1]
    return bool(found), f"after {ran} programs: {words[:150]}" if found else words[:200]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--count", type=int, default=400)
    parser.add_argument("--time", type=float, default=120.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--only", default="")
    parser.add_argument("--first", type=int, default=0, help="Leave so many out.")
    parser.add_argument("--target", default="cpu")
    options = parser.parse_args()
    bugs = [b for b in BUGS if options.only in b.name and b.target.startswith(options.target)]
    bugs = bugs[options.first :]
    caught = 0
    for bug in bugs:
        started = time.monotonic()
        found, words = run(bug, options.count, options.time, options.seed, options.jobs)
        caught += found
        spent = time.monotonic() - started
        print(f"{'found ' if found else 'MISSED'} {spent:4.0f} s  {bug.name}: {words}", flush=True)
    print(f"{caught} of {len(bugs)} planted bugs found")
    return 0 if caught >= 0.9 * len(bugs) else 1


if __name__ == "__main__":
    sys.exit(main())
