"""Input that nobody means: IR text, extents and scalars. All of it works or is a `TilewrightError`
with a place, in little time; never another exception.

TILEWRIGHT_HOSTILE=5000 tries that many mutants of IR texts instead of a few."""

import os
import random
import re
from pathlib import Path
from time import process_time

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import TilewrightError

TEXT = """program d {
  param X: float32[64] global
  kernel d grid bx in 2 threads tx in %s {
    map i in %s {
      X[i] = %s
    }
  }
}
"""
EXPRESSIONS = {
    "parentheses": "(" * 2000 + "X[i]" + ")" * 2000,
    "a sum": "+".join(["X[i]"] * 5000),
    "digits": "9" * 5000,
    "hexadecimal digits": "0x" + "f" * 5000,
    "minus signs": "-" * 3000 + "X[i]",
    "nots": "not " * 3000 + "true",
    "calls": "exp(" * 1500 + "X[i]" + ")" * 1500,
    "choices": "1.0 if X[i] > 0.0 else " * 1500 + "2.0",
    "indices": "X[int32(" * 500 + "i" + ")]" * 500,
    "comparisons": "X[i] < " * 3000 + "1.0",
    "an exponent": "1e999999999",
    "a float of many digits": "1." + "0" * 5000,
}


@pytest.mark.parametrize("name", EXPRESSIONS)
def test_expressions_of_ir_text(name):
    started = process_time()
    try:
        program = tw.parse_ir(TEXT % (32, 32, EXPRESSIONS[name]))
        tw.compile(program, target="interp")(np.zeros(64, np.float32))
    except TilewrightError as error:
        assert error.loc is not None
    assert process_time() - started < 5


def test_bodies_of_ir_text():
    for depth in (60, 400, 3000):
        body = "if true { " * depth + "X[0] = 1.0" + " }" * depth
        head = "program d { param X: float32[64] global\n kernel d grid b in 1 threads t in 32 "
        text = f"{head} {{ {body} }} }}"
        for target in ("interp", "cpu"):
            try:
                x = np.zeros(64, np.float32)
                tw.compile(tw.parse_ir(text), target=target)(x)
                assert x[0] == 1
            except TilewrightError as error:
                assert depth > 60 and error.loc is not None


@pytest.mark.parametrize("target", ["interp", "interp -sanitize", "cpu", "cuda"])
@pytest.mark.parametrize("threads", ["0", "-32", "2000", "100000000000000000000"])
def test_threads_of_ir_text(threads, target):
    with pytest.raises(TilewrightError) as error:
        tw.compile(tw.parse_ir(TEXT % (threads, 32, "X[i]")), target=target)
    assert error.value.loc is not None


@pytest.mark.parametrize("target", ["interp", "cpu", "cuda"])
@pytest.mark.parametrize("extent", ["0", "-3", "99999999999999999999"])
def test_extents_of_ir_text(extent, target):
    try:
        kernel = tw.compile(tw.parse_ir(TEXT % (32, extent, "1.0")), target=target)
    except TilewrightError as error:
        assert extent != "0" and error.loc is not None
        return
    assert extent != "99999999999999999999"
    if target != "cuda":
        x = np.zeros(64, np.float32)
        kernel(x)
        assert not x.any()


# ── mutants ──────────────────────────────────────────────────────────────────────────────────

GOLDEN = Path(__file__).parent.parent / "passes" / "golden"
PLAIN = [
    TEXT % (32, 32, "X[i] * 2.0 + float32(i)"),
    """program m {
  dim n min=1
  param A: float16[n, 32] global
  param B: float32[16] global
  kernel m grid bx in (n + 15) // 16 threads tx in 64 {
    alloc s: float16[16, 32] shared
    alloc f: float32[16, 32] fragment
    alloc r: float32[16] fragment
    copy A[bx * 16:+16, :] -> s
    map (i, j) in (16, 32) { f[i, j] = float32(s[i, j]) }
    reduce sum f -> r axis=1
    for k in 0 .. 4 { if k < n { r[k] = r[k] + 1.0 } }
    copy r -> B
  }
}
""",
]
TOKEN = re.compile(r"[A-Za-z_]\w*|\d+\.\d+|\d+|->|\.\.|:\+|//|[^\s\w]")
ODD = (
    "0 -1 1 7 2147483648 99999999999999999999 1.5 inf nan true X A s f r i n bx tx ( ) [ ] { } : , "
    "-> .. // % << float16 int4 bool barrier shared fragment local global map for if kernel copy"
).split()


def mutant(rng):
    text = rng.choice(PLAIN)
    for _ in range(rng.randint(1, 3)):
        found = list(TOKEN.finditer(text))
        at, other = rng.choice(found), rng.choice(found)
        new = rng.choice([rng.choice(ODD), other.group(), "", at.group() + " " + at.group()])
        text = text[: at.start()] + new + text[at.end() :]
    return text


def arguments(program):
    sizes = {d.var: 20 for d in program.dims}
    given = []
    for param in program.params:
        if hasattr(param, "shape"):
            shape = [sizes.get(s) or int(s) for s in param.shape]
            if np.prod(shape, dtype=object) > 1 << 20:
                return None
            given.append(np.zeros(shape, param.dtype.numpy))
        else:
            given.append(1)
    return given


def test_mutants_of_ir_text():
    rng = random.Random(11)
    ran = 0
    for number in range(int(os.environ.get("TILEWRIGHT_HOSTILE", "120"))):
        text = mutant(rng)
        target = "cpu" if number % 8 == 0 else "interp"
        started = process_time()
        try:
            program = tw.parse_ir(text)
            kernel = tw.compile(program, target=target)
            given = arguments(program)
            if given is not None:
                kernel(*given)
                ran += 1
        except TilewrightError:
            pass
        except Exception as error:
            raise AssertionError(f"{type(error).__name__}: {error}\n{text}") from error
        assert process_time() - started < 10, text
    assert ran


# ── scalars and extents of kernels ───────────────────────────────────────────────────────────


def scaled(kind):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), s: kind):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(8):
                A[i] = s

    return main


SCALARS = [
    10**400, -(10**400), 10**5000, 10**39, 2**63, -(2**63) - 1, float("nan"), float("inf"), 1e300,
    np.float64(1e300), np.array([1, 2]), "3", b"x", None, 1j, [1], True, object(),
]  # fmt: skip


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("kind", ["float32", "float16", "int32", "uint8", "int64", "bool"])
def test_scalars(kind):
    for target in ("cpu", "interp"):
        kernel = tw.compile(scaled(getattr(T, kind)), target=target)
        for value in SCALARS:
            try:
                kernel(np.zeros(8, np.float32), value)
            except TilewrightError as error:
                assert error.loc is not None and len(str(error)) < 2000


def test_scalars_on_their_way_to_a_gpu():
    from tilewright.ir.dtype import dtype
    from tilewright.targets.cuda.launch import encode_scalar

    for kind in ("float32", "float16", "int32", "uint8", "int64"):
        for value in SCALARS:
            try:
                encode_scalar("s", dtype(kind), value)
            except TilewrightError as error:
                assert len(str(error)) < 2000


@pytest.mark.parametrize("target", ["interp", "cpu", "cuda"])
def test_loops_without_iterations(target):
    @T.prim_func
    def main(A: T.Tensor((8,), "float32"), s: T.float32):
        with T.Kernel(1, threads=32):
            f = T.alloc_fragment((8,), "float32")
            T.fill(f, 5)
            for i in T.Parallel(0):
                A[i] = s
            for i, j in T.Parallel(8, 0):
                f[i] = j
            for i in T.serial(0):
                A[i] = s
            for i in T.unroll(0):
                A[i] = s
            for _ in T.Pipelined(0, num_stages=2):
                T.copy(A, f)
            T.copy(f, A)

    kernel = tw.compile(main, target=target)
    if target != "cuda":
        a = np.zeros(8, np.float32)
        kernel(a, 1.0)
        assert (a == 5).all()


def test_code_without_a_hash():
    """Before Python 3.12 a slice has none, and PyTorch writes code with slices."""

    def call(function):
        return function(np.ones(4, np.float32))

    call.__code__ = call.__code__.replace(co_consts=(*call.__code__.co_consts, slice(1, 2)))
    assert call(tw.math(lambda x: x * 2 + 3)).tolist() == [5.0] * 4
