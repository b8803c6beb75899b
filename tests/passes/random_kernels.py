"""Random small kernels: loops, guards, copies that may and may not run ahead, tiles that ordinary
code, matrix instructions and stores share."""

from __future__ import annotations

import random
from typing import Any

import numpy as np

from tests.passes.overlap import numbers, program
from tilewright.ir.op import Program

HEAD = """program p {{
  param A: float16[64, 256] global
  param B: float16[64, 250] global
  param D: float16[64, 256] global
  param C: float16[64, 256] global
  param E: float16[64, 256] global
  param n: int32
  param m: int32
  kernel k grid bx in 2 threads tx in {threads} {{
    alloc r0: float16[16, 32] shared
    alloc r1: float16[16, 32] shared
    alloc r2: float16[16, 32] shared
    alloc g0: float16[16, 32] shared
    alloc g1: float16[16, 32] shared
    alloc f: float16[16, 32] fragment
    alloc h: float16[16, 32] fragment
    alloc acc: float32[16, 16] fragment
    alloc sums: float32[16] fragment
    alloc tops: float16[16] fragment
    alloc count: int32 local init=0
    fill g0 = 1.0
    fill g1 = 2.0
    fill f = 1.0
    fill h = 1.0
    fill acc = 0.0
    fill sums = 0.0
    fill tops = 0.0
"""


class Maker:
    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.lines: list[str] = []
        self.depth = 2
        self.vars: list[str] = ["bx"]
        self.names = 0
        self.filled: list[str] = []

    def emit(self, line: str) -> None:
        self.lines.append("  " * self.depth + line)

    def fresh(self, stem: str) -> str:
        self.names += 1
        return f"{stem}{self.names}"

    def tile(self) -> str:
        return self.rng.choice(["g0", "g1", *self.filled, *self.filled])

    def operand(self) -> str:
        return self.rng.choice([self.tile(), self.tile(), "f"])

    def place(self) -> str:
        """Corner of a tile in a tensor, aligned or not."""
        var = self.rng.choice(self.vars)
        row = self.rng.choice(["0", "16", f"{self.rng.choice(self.vars)} % 3 * 16"])
        column = self.rng.choice([f"{var} * 32", f"{var} * 32", f"{var} * 8", f"{var} * 3", "64"])
        return f"[{row}:+16, {column}:+32]"

    def statement(self) -> None:
        rng = self.rng
        i, j = self.fresh("i"), self.fresh("j")
        match rng.randrange(11):
            case 0 | 1:
                clear = rng.choice(["", " clear=true"])
                a = self.operand()
                self.emit(f"gemm {a}, {self.tile()} -> acc transpose_b=true{clear}")
            case 2:
                self.emit(f"copy {self.tile()} -> f")
            case 3:
                self.emit(f"copy f -> {rng.choice(['g0', 'g1'])}")
            case 4:
                to = rng.choice(["g0", "g1"])
                self.emit(f"map ({i}, {j}) in (16, 32) {{")
                self.emit(f"  {to}[{i}, {j}] = f[{i}, {j}] + {self.tile()}[{i}, {j}]")
                self.emit("}")
            case 5:
                self.emit(f"map ({i}, {j}) in (16, 16) {{ acc[{i}, {j}] = acc[{i}, {j}] * 0.5 }}")
            case 6:
                self.emit(f"reduce max {self.tile()} -> tops dim 1 clear=false")
            case 7:
                self.emit(f"copy {rng.choice(['f', self.tile()])} -> C{self.place()}")
            case 8:
                self.emit(f"copy D{self.place()} -> {rng.choice(['f', 'g0', 'g1'])}")
                if rng.random() < 0.5:
                    self.emit(f"copy f -> D{self.place()}")
            case 9:
                self.emit(f"copy {rng.choice('AB')}{self.place()} -> {rng.choice(['g0', 'g1'])}")
            case 10:
                self.emit("count = count + 1")

    def block(self, level: int) -> None:
        for _ in range(self.rng.randint(1, 3)):
            kind = self.rng.random()
            if level and kind < 0.45:
                self.loop(level)
            elif level and kind < 0.55:
                cond = f"({self.rng.choice(self.vars)} + count) % 2 == 0"
                self.emit(f"if {cond} {{")
                self.depth += 1
                self.block(level - 1)
                self.depth -= 1
                self.emit("}")
            else:
                self.statement()

    def loop(self, level: int) -> None:
        rng = self.rng
        var = self.fresh("k")
        start = rng.choice(["0", "0", "1", "m"])
        stop = rng.choice(["n", "n", "4", "3", "n + bx", "min(count, 2) + n"])
        step = rng.choice(["", "", " step=2"])
        kind = rng.choice(["", " kind=pipelined stages={}"])
        kind = " kind=pipelined stages={}" if rng.random() < 0.7 else kind
        self.emit(f"for {var} in {start} .. {stop}{step}{kind.format(rng.randint(1, 4))} {{")
        self.depth += 1
        self.vars.append(var)
        before = list(self.filled)
        rings = rng.sample([r for r in ("r0", "r1", "r2") if r not in before] or ["g0"], 1)
        if rng.random() < 0.6:
            rings += [r for r in ("r0", "r1", "r2") if r not in (*before, *rings)][:1]
        column = f"{var} * 32"
        if rng.random() < 0.3:
            at = self.fresh("at")
            self.emit(f"let {at} = {var} * {rng.choice([32, 8, 2])}")
            column = at
        for k, ring in enumerate(rings):
            tensor = rng.choice("AAAB")
            if rng.random() < 0.1:
                column = "count % 8 * 32"
            self.emit(f"copy {tensor}[0:+16, {column}:+32] -> {ring}")
            self.filled.append(ring)
            if k == 0 and rng.random() < 0.4:
                self.statement()
        self.block(level - 1)
        self.emit(f"gemm {self.operand()}, {rings[-1]} -> acc transpose_b=true")
        if rng.random() < 0.5:
            self.emit(f"copy {rings[0]} -> f")
        if rng.random() < 0.1:
            self.emit(f"copy f -> {rings[0]}")
        if rng.random() < 0.08:
            self.emit(f"if {var} == 3 {{ break }}")
        if rng.random() < 0.3:
            self.statement()
        self.filled = before
        self.vars.pop()
        self.depth -= 1
        self.emit("}")

    def text(self, threads: int) -> str:
        self.block(3)
        self.loop(2)
        tail = """    map (x, y) in (16, 16) {
      E[bx * 16 + x, y] = float16(acc[x, y] + sums[x]) + tops[x]
    }
    copy f -> E[bx * 16:+16, 32:+32]
    copy g0 -> E[bx * 16:+16, 64:+32]
    copy g1 -> E[bx * 16:+16, 96:+32]
  }
}
"""
        return HEAD.format(threads=threads) + "\n".join(self.lines) + "\n" + tail


def random_program(seed: int) -> tuple[Program, dict[str, Any]]:
    """A program, and arguments for it. Blocks do not meet: both write C and D alike only where
    the same values go, so one block is run."""
    maker = Maker(seed)
    text = maker.text(maker.rng.choice([128, 256])).replace("grid bx in 2", "grid bx in 1")
    args: dict[str, Any] = {
        name: numbers(64, 250 if name == "B" else 256, dtype=np.float16, seed=k)
        for k, name in enumerate("ABDCE")
    }
    args["n"] = maker.rng.choice([0, 1, 2, 3, 4, 5, 7])
    args["m"] = maker.rng.choice([0, 1, 2])
    return program(text), args
