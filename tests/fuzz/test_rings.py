"""Random pipelined kernels whose copies run ahead, which general programs seldom have: aligned
tiles, several stages, trip counts from none, guards, loops around. Interpreter against thread
code."""

from __future__ import annotations

import random

import pytest

from tilewright.tools.fuzz_check import check_source

HEAD = """import ml_dtypes
import numpy as np
import tilewright as tw
import tilewright.language as T


@T.prim_func
def program(
    n: T.int32,
    A: T.Tensor(({M}, {K}), "{kind}"),
    B: T.Tensor(({M}, {K}), "{kind}"),
    C: T.Tensor(({M}, {bk}), "float32"),
    D: T.Tensor(({M}, {K}), "{kind}"),
):
    with T.Kernel(2, threads={threads}) as bx:
        a = T.alloc_shared(({bm}, {bk}), "{kind}")
        b = T.alloc_shared(({bm}, {bk}), "{kind}")
        t = T.alloc_shared(({bm}, {bk}), "{kind}")
        acc = T.alloc_fragment(({bm}, {bk}), "float32")
        x = T.alloc_var("int32", init=0)
        T.clear(acc)
"""
TAIL = """        T.copy(acc, C[bx * {bm}, 0])


def arguments(n):
    rng = np.random.default_rng({seed})
    kind = getattr(ml_dtypes, "{kind}", "{kind}")

    def tile(*shape):
        return rng.integers(-2, 3, shape).astype(kind)

    C = np.zeros(({M}, {bk}), np.float32)
    return dict(n=n, A=tile({M}, {K}), B=tile({M}, {K}), C=C, D=tile({M}, {K}))


CASES = [dict(n={longest}), dict(n={shortest})]
EXACT = True
"""
# what a body does with a tile `{s}` that has come
USES = (
    """for i, j in T.Parallel({bm}, {bk}):
    acc[i, j] = acc[i, j] * 2 % 64 + T.cast({s}[i, {bk} - 1 - j], "float32")""",
    """for i, j in T.Parallel({bm}, {bk}):
    t[i, j] = {s}[{bm} - 1 - i, j]
for i, j in T.Parallel({bm}, {bk}):
    acc[i, j] = acc[i, j] + T.cast(t[i, j], "float32")""",
    """if k % 2 == 1:
    for i, j in T.Parallel({bm}, {bk}):
        acc[i, j] = acc[i, j] + T.cast({s}[i, j], "float32")""",
    """T.copy({s}, D[bx * {bm}, k * {bk}])""",
    """x = x + 1
for i, j in T.Parallel({bm}, {bk}):
    acc[i, j] = acc[i, j] + T.cast({s}[(i + x) % {bm}, j], "float32")""",
)


def ring_program(seed: int) -> str:
    r = random.Random(seed)
    bm, bk, trips = r.choice([16, 32, 64]), r.choice([16, 32, 64]), r.randrange(7)
    kind = r.choice(["float16", "bfloat16", "float32", "int32"])
    sizes = {
        "bm": bm, "bk": bk, "M": 2 * bm, "K": bk * max(trips, 1) + r.choice([0, 0, bk // 2]),
        "kind": kind, "threads": r.choice([32, 64, 128, 256]), "seed": seed,
        "longest": trips * bk, "shortest": bk if trips else 0,
    }  # fmt: skip
    how = r.choice(["", "", ', prefer="cp_async"', ', prefer="sync"'])
    body = [f"T.copy(A[bx * {bm}, k * {bk}], a{how})"]
    second = f"T.copy(B[bx * {bm}, k * {bk}], b)"
    both = r.random() < 0.7
    early = both and r.random() < 0.5
    body += (
        [second] * early + [r.choice(USES).format(s="a", **sizes)] + [second] * (both and not early)
    )
    if both:
        body.append(r.choice(USES).format(s="b", **sizes))
        if kind != "int32" and bm == bk:
            body.append(r.choice(["T.gemm(a, b, acc)", "T.gemm(a, b, acc, transpose_B=True)"]))
    if r.random() < 0.3:
        body.append(r.choice(USES).format(s="a", **sizes))
    stop = r.choice([str(trips), f"T.ceildiv(n, {bk})"])
    first = r.choice(["", "", "", "1, "])
    loop = f"for k in T.Pipelined({first}{stop}, num_stages={r.randrange(5)}):"
    lines = ["\n".join(body).replace("\n", "\n    ")]
    text = loop + "\n    " + lines[0]
    around = r.choice([0, 0, 1, 2, 3])
    if around:
        text = f"for o in T.serial({around}):\n    " + text.replace("\n", "\n    ")
    return (
        HEAD.format(**sizes)
        + "        "
        + text.replace("\n", "\n        ")
        + "\n"
        + TAIL.format(**sizes)
    )


@pytest.mark.parametrize("seed", range(24))
def test_rings(seed: int):
    verdict = check_source(ring_program(seed), ["interp", "threads", "threads-sm80"], f"r{seed}.py")
    assert verdict.kind == "ok", f"{verdict}\n{ring_program(seed)}"
