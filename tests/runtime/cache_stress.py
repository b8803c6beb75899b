"""Processes that share a store, are killed at random and find its files damaged at random.

    python -m tests.runtime.cache_stress --processes 16 --rounds 500

A round reads an entry, and writes it where there is none, as a compilation would. What an entry
must hold follows from its key, so whatever else is read is a bad load. Between rounds files are
truncated, flipped, overwritten, exchanged or left half-written; whole processes end in the middle
of anything. Kernels that are compiled, not made up, are damaged in `test_cache_kernels.py`.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from typing import Any

from tilewright.support.cache import Store, digest

KEYS = [digest({"program": n}) for n in range(48)]
# codes of what a worker did: one byte each
HIT, MISS, REFUSED, BAD, DAMAGE = b"hmrbd"
DAMAGED, MOST_BYTES = 0.15, 200_000


def contents(key: str) -> tuple[dict[str, Any], bytes]:
    """What must be found under `key`."""
    seed = bytes.fromhex(key)
    size = int.from_bytes(seed[:4], "little") % MOST_BYTES
    block = b"".join(sha256(seed + bytes([i])).digest() for i in range(64))
    return {"kind": "kernel", "kernel": key[:6]}, (block * (size // len(block) + 1))[:size]


# ── damage ───────────────────────────────────────────────────────────────────────────────────


def truncate(path: Path, dice: random.Random) -> None:
    os.truncate(path, dice.randrange(path.stat().st_size + 1))


def flip(path: Path, dice: random.Random) -> None:
    with open(path, "r+b") as file:
        for _ in range(dice.choice((1, 1, 3))):
            at = dice.randrange(path.stat().st_size)
            file.seek(at)
            byte = file.read(1)
            file.seek(at)
            file.write(bytes([byte[0] ^ 1 << dice.randrange(8)]))


def overwrite(path: Path, dice: random.Random) -> None:
    path.write_bytes(dice.choice((b"", b"{}\n", b"tilewright-entry-2 \n{}\n", dice.randbytes(999))))


def exchange(path: Path, dice: random.Random) -> None:
    """Another entry under this one's name."""
    others = [p for p in path.parent.parent.glob("*/*") if len(p.name) == 62 and p != path]
    shutil.copyfile(dice.choice(others), path)


def half_write(path: Path, dice: random.Random) -> None:
    """What a killed writer leaves, and its beginning where the entry should be."""
    data = path.read_bytes()
    (path.parent / f".new-0-{dice.randbytes(4).hex()}").write_bytes(data[: len(data) // 2])
    path.write_bytes(data[: dice.randrange(len(data) + 1)])


def remove(path: Path, dice: random.Random) -> None:
    path.unlink()


DAMAGES: tuple[Callable[[Path, random.Random], None], ...] = (
    truncate, flip, flip, overwrite, exchange, half_write, remove,
)  # fmt: skip


# ── workers ──────────────────────────────────────────────────────────────────────────────────


def one_round(store: Store, dice: random.Random) -> bytes:
    key = dice.choice(KEYS)
    found = store.get(key)
    if found is not None:
        header = {name: value for name, value in found[0].items() if name != "made"}
        return bytes([HIT]) if (header, found[1]) == contents(key) else bytes([BAD])
    return bytes([MISS if store.put(key, *contents(key)) else REFUSED])


def work(number: int, store: Store, seed: int, rounds: int, report: int) -> None:
    dice = random.Random(seed)
    for _ in range(rounds):
        code = one_round(store, dice)
        if dice.random() < DAMAGED:
            try:
                dice.choice(DAMAGES)(store.path(dice.choice(KEYS)), dice)
                os.write(report, bytes([number, DAMAGE]))
            except (OSError, IndexError, ValueError):
                pass  # there is no such entry now, or it is empty
        os.write(report, bytes([number, *code]))


@dataclass
class Outcome:
    """What a run has seen; `fine` when nothing bad was loaded and no process ended by itself."""

    counts: Counter[str]
    crashes: list[str]
    seconds: float
    left: int = 0
    bytes: int = 0

    @property
    def fine(self) -> bool:
        return not self.crashes and not self.counts["bad loads"]


NAMES = {HIT: "hits", MISS: "written", REFUSED: "not written", BAD: "bad loads", DAMAGE: "damages"}


def run(processes: int, rounds: int, *, kill_every: float, seed: int, limit: int) -> Outcome:
    """`processes` at once, each `rounds` long however often it is killed and begun again."""
    started, dice = time.monotonic(), random.Random(seed)
    counts: Counter[str] = Counter()
    crashes: list[str] = []
    with tempfile.TemporaryDirectory() as folder:
        store = Store(Path(folder) / "cache", limit)
        reader, writer = os.pipe()
        left = dict.fromkeys(range(processes), rounds)
        alive: dict[int, int] = {}  # process → its number
        killed: set[int] = set()

        def begin(number: int) -> None:
            counts["processes"] += 1
            process = os.fork()
            if process == 0:
                status = 1
                try:
                    work(number, store, dice.randrange(2**32) ^ os.getpid(), left[number], writer)
                    status = 0
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(status)
            alive[process] = number

        for number in left:
            begin(number)
        next_kill = time.monotonic()
        while alive:
            while select.select([reader], [], [], 0.001)[0]:
                said = os.read(reader, 4096)
                if len(said) % 2:
                    said += os.read(reader, 1)
                for number, code in zip(said[::2], said[1::2], strict=True):
                    counts[NAMES[code]] += 1
                    left[number] -= code != DAMAGE
            if kill_every and time.monotonic() > next_kill:
                next_kill = time.monotonic() + dice.expovariate(1 / kill_every)
                victim = dice.choice(list(alive))
                os.kill(victim, signal.SIGKILL)
                killed.add(victim)
            while alive:
                process, status = os.waitpid(-1, os.WNOHANG)
                if process == 0:
                    break
                number = alive.pop(process)
                if os.WIFSIGNALED(status) and process in killed:
                    counts["kills"] += 1
                elif status:
                    crashes.append(f"process {number} ended with status {status}")
                    left[number] = 0
                # what it reported before it ended is read first
                while select.select([reader], [], [], 0)[0]:
                    said = os.read(reader, 2)
                    counts[NAMES[said[1]]] += 1
                    left[said[0]] -= said[1] != DAMAGE
                if left[number] > 0:
                    begin(number)
        os.close(reader)
        os.close(writer)
        counts["damaged at the end"] = len(store.damaged())
        files, size = store.size()
        for path in store.damaged():
            path.unlink()
        dice_again = random.Random(seed)
        for _ in range(len(KEYS)):
            if one_round(store, dice_again)[0] == BAD:
                counts["bad loads"] += 1
    return Outcome(counts, crashes, time.monotonic() - started, files, size)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--processes", type=int, default=16)
    parser.add_argument("--rounds", type=int, default=500)
    parser.add_argument("--kill-every", type=float, default=0.01, help="Seconds, on average.")
    parser.add_argument("--limit", type=float, default=3.0, help="MiB that the store may take.")
    parser.add_argument("--seed", type=int, default=0)
    given = parser.parse_args()
    limit = int(given.limit * 2**20)
    done = run(
        given.processes, given.rounds, kill_every=given.kill_every, seed=given.seed, limit=limit
    )
    shown = {"fine": done.fine, **done.counts, "crashes": done.crashes}
    shown |= {"files left": done.left, "bytes left": done.bytes, "seconds": round(done.seconds, 1)}
    print(json.dumps(shown, indent=1))
    sys.exit(0 if done.fine else 1)


if __name__ == "__main__":
    main()
