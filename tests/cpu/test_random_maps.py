"""Random maps with guards, conditions, loops and gathers: the CPU and the interpreter agree."""

import random

import numpy as np
import pytest

from tests.cpu.common import check, draw


class Maker:
    """Writes one program from a seed. Values are small integers, so every sum is exact."""

    def __init__(self, seed):
        self.r = random.Random(seed)
        self.m, self.n = self.r.choice([5, 16, 33]), self.r.choice([1, 7, 24, 40, 67])
        self.bm, self.bn = self.r.choice([4, 8]), self.r.choice([8, 24, 32])
        self.names = 0

    def index(self, var, base, size):
        """An index around base + var, sometimes out of range or out of line."""
        r = self.r
        return r.choice([
            f"{base} + {var}", f"{base} + {var}", f"{base} + {var} - {r.randint(1, 3)}",
            f"{base} + {var} + {r.randint(1, 5)}", f"{size - 1} - {base} - {var}", f"{var} // 2",
            f"{base} + {var} * 2", f"({var} * 3 + 1) % {size}", str(r.randrange(size)),
            f"I[{base} + {var}]",
        ])  # fmt: skip

    def load(self):
        row = self.index("i", f"by * {self.bm}", self.m)
        column = self.index("j", f"bx * {self.bn}", self.n)
        return f"A[{row}, {column}]"

    def tile(self):
        return self.r.choice(["t[i, j]", "t[i, 0]", f"t[i, {self.bn - 1} - j]", "t[0, j]"])

    def value(self, depth=2):
        r = self.r
        if depth == 0:
            return r.choice([self.load(), self.load(), self.tile(), "float32(i + 2 * j)"])
        a, b = self.value(depth - 1), self.value(depth - 1)
        return r.choice([
            f"({a} + {b})", f"({a} - {b})", f"max({a}, {b})", f"float32(int32({a}) // 3)", a,
            f"(({a}) if {self.cond()} else ({b}))",
        ])  # fmt: skip

    def cond(self):
        r = self.r
        k = r.randint(0, 40)
        return r.choice([
            f"i < {k}", f"j >= {k // 2}", f"bx * {self.bn} + j < {k}", f"i + {k % 7} > j",
            f"{self.load()} > 0.0", f"(i > 1 and j < {k})", f"j % 3 == {k % 3}",
            f"(j < 3 or i > {k})",
            "(t[i - 1, j] > 0.0 if i > 0 else false)" if r.random() < 0.3 else "bx == 0",
        ])  # fmt: skip

    def statement(self, depth=2):
        r = self.r
        out = f"C[by * {self.bm} + i, bx * {self.bn} + j]"
        kind = r.randrange(7 if depth else 2)
        if kind < 2:
            return f"{out} = {self.value()}"
        if kind == 2:
            other = f" else {{ {self.statement(depth - 1)} }}" if r.random() < 0.5 else ""
            return f"if {self.cond()} {{ {self.statement(depth - 1)} }}{other}"
        self.names += 1
        k = self.names
        if kind == 3:
            return (f"alloc n{k}: float32 local init=0.0\nfor k{k} in 0 .. {r.randint(0, 4)} {{ "
                    f"n{k} = n{k} + {self.value(1)} * float32(k{k}) }}\n{out} = n{k}")  # fmt: skip
        if kind == 6:  # a tile that no other map has
            return f"u[i, j] = {self.value(1)}\n{out} = u[i, j] * {self.value(1)} + u[i, j]"
        if kind == 4:
            return f"let x{k} = {self.value(1)}\n{out} = x{k} + {self.value(1)} + x{k}"
        return (f"alloc w{k}: float32[3] local\n"
                f"for k{k} in 0 .. 3 {{ w{k}[k{k}] = {self.value(1)} }}\n"
                f"if {self.cond()} {{ w{k}[(i + j) % 3] = 1.0 }}\n"
                f"{out} = w{k}[1] + w{k}[j % 3]")  # fmt: skip

    def text(self):
        body = "\n".join(self.statement() for _ in range(self.r.randint(1, 3)))
        grid = f"({-(-self.n // self.bn)}, {-(-self.m // self.bm)})"
        return f"""program p {{
        param A: float32[{self.m}, {self.n}] global
        param I: int32[64] global
        param C: float32[{self.m}, {self.n}] global
        kernel main grid (bx, by) in {grid} threads tx in 32 {{
          alloc t: float32[{self.bm}, {self.bn}] shared
          alloc u: float32[{self.bm}, {self.bn}] fragment
          copy A[by * {self.bm}:+{self.bm}, bx * {self.bn}:+{self.bn}] -> t
          map (i, j) in ({self.bm}, {self.bn}) {{
            {body}
          }} }} }}"""


@pytest.mark.parametrize("seed", range(40))
def test_random_maps(seed):
    maker = Maker(seed)
    shape = (maker.m, maker.n)
    args = {
        "A": draw(shape, "int8", low=-9, high=9).astype(np.float32),
        "I": draw(64, "int32", low=-2, high=40),
        "C": np.zeros(shape, np.float32),
    }
    check(maker.text(), args)
