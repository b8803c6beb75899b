"""Sums of data wrap, in guards of elementwise loops too; sums of coordinates and sizes do not."""

import numpy as np
import pytest

from devtools.compare import lowered
from devtools.fuzz.check import check, load

MOST, LEAST = 2**31 - 1, -(2**31)
GUARDS = (
    "n * 2 > 5", "n + 1 > n", "n - 1 < n", "n + i >= n", "n - i <= n", "i + n < m", "i - n < m",
    "i + 1 < n + 1", "n * 4 // 4 == n", "T.abs(n) >= 0", "L[0] * 2 > 5", "L[0] + i >= L[0]",
    "k + i >= k", "T.min(n + i, n) == n", 'i < T.cast(n + 1, "int64")', "n + bx * 128 + i > bx",
    "i * 100000000 < n", "n * 2 > 5 or i < 3", "N + i >= N", "bx * 128 + i < n",
)  # fmt: skip
FORMS = {
    "if": "if {guard}:\n    D[{at}, i] = 5",
    "value": "D[{at}, i] = T.if_then_else({guard}, S[i], 0)",
    "tile": "f[i] = T.if_then_else({guard}, i + 1, 0)",
    "gather": "s[i] = T.if_then_else({guard}, S[i], 0)",
    "atomic": "if {guard}:\n    T.atomic_add(F[{at}, i], 1.0)",
    "let": "c = {guard}\nif c:\n    D[{at}, i] = 5",
}
END = {
    "tile": "T.reduce_sum(f, r)\nfor i in T.Parallel(1):\n    D[{at}, i] = r[i]",
    "gather": "T.copy(s, D[{at}, :])",
}


def indented(text, by):
    return "".join(" " * by + line + "\n" for line in text.split("\n"))


def built(form, guards):
    count = len(guards)
    text = f"""import tilewright.language as T
N = T.dynamic("N")

@T.prim_func
def program(D: T.Tensor(({count}, 128), "int32"), F: T.Tensor(({count}, 128), "float32"),
            S: T.Tensor((128,), "int32"), L: T.Tensor((N,), "int32"), n: T.int32, m: T.int32):
    with T.Kernel(T.ceildiv(N, 128), threads=32) as bx:
        f = T.alloc_fragment((128,), "int32")
        r = T.alloc_fragment((1,), "int32")
        s = T.alloc_shared((128,), "int32")
        k = L[1]
"""
    for at, guard in enumerate(guards):
        text += "        for i in T.Parallel(128):\n"
        text += indented(FORMS[form].format(guard=guard, at=at), 12)
        if form in END:
            text += indented(END[form].format(at=at), 8)
    return load(text, f"guards_{form}.py")["program"].program


CASES = [{"n": n, "m": m} for n, m in ((MOST, 5), (LEAST, 5), (0, LEAST), (5, -1), (-1, MOST))]


def judged(form, guards, target):
    def arguments(n, m):
        return {
            "D": np.zeros((len(guards), 128), np.int32),
            "F": np.zeros((len(guards), 128), np.float32),
            "S": np.arange(1, 129, dtype=np.int32),
            "L": np.array([n, n, 0, 5], np.int32),
            "n": n,
            "m": m,
        }

    return str(check(built(form, guards), arguments, CASES, True, [target]))


# every guard in a statement, a part of them in other forms: the fuzzer's `numbers` draws the rest
@pytest.mark.parametrize("at, form", [*enumerate(FORMS)])
def test_guards_over_data_wrap(at, form):
    guards = GUARDS if form == "if" else GUARDS[at % 4 :: 4]
    assert judged(form, guards, "threads").startswith("ok")


def test_guards_over_data_wrap_on_the_cpu():
    guards = ("n + i >= n", "n - i <= n", "i + 1 < n + 1", 'i < T.cast(n + 1, "int64")')
    assert judged("if", guards, "cpu").startswith("ok")


def test_guards_within_known_ranges_wrap():
    """What a condition around says of one end of `n` says nothing of the other."""
    text = "for j in T.serial(2):\n    for i in T.Parallel(128):\n        if i < n:\n"
    text += "            D[0, i] = 5 + j"
    source = f"""import tilewright.language as T

@T.prim_func
def program(D: T.Tensor((1, 128), "int32"), n: T.int32):
    with T.Kernel(1, threads=32) as bx:
{indented(text, 8)}"""
    program = load(source, "hoisted.py")["program"].program

    def given(n):
        return {"D": np.zeros((1, 128), np.int32), "n": n}

    cases = [{"n": n} for n in (LEAST, LEAST + 3, 0, 100, MOST)]
    verdict = check(program, given, cases, True, ["threads"])
    assert verdict.kind == "ok", str(verdict)


@pytest.mark.parametrize(
    "guard", ["bx * 128 + i < N", "(bx * 128 + i) // 128 + n > 3", "n * 2 > 5"]
)
def test_guards_over_sizes_keep_vectors(guard):
    """A sum of blocks and coordinates does not wrap, whatever it is compared with."""
    source = f"""import tilewright.language as T
N = T.dynamic("N", multiple_of=8)

@T.prim_func
def program(D: T.Tensor((N,), "int32"), n: T.int32):
    with T.Kernel(T.ceildiv(N, 128), threads=32) as bx:
        for i in T.Parallel(128):
            if {guard}:
                D[bx * 128 + i] = 5
"""
    program = load(source, "sized.py")["program"].program
    assert "store_global" in str(lowered(program, "threads").result)


def test_distances_that_no_type_holds():
    guards = (
        "i - 2147483647 < bx * 0 + 2147483000",
        "i - 2147483647 - 1 < m",
        "m < i - 2147483647",
    )
    assert judged("if", guards, "threads").startswith("ok")
