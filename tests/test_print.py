"""`T.print`: the same text from the interpreter and the CPU, readable code for CUDA."""

import contextlib
import io
import re

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.dtype import DTYPES
from tilewright.support.show import left_out, show_value


def said(prim, *args, target):
    """The lines of one run, those of a block together, blocks in order."""
    out = io.StringIO()
    with contextlib.redirect_stdout(out):
        tw.compile(prim, target=target)(*args)
    return by_block(out.getvalue())


def by_block(text):
    parts = re.split(r"^(?=block \()", text, flags=re.M)
    assert not parts[0]
    return sorted(parts[1:], key=lambda p: re.match(r"block \((.*?)\)", p)[1].split(", ")[::-1])


def same(prim, *args):
    """What both targets say."""
    kept = [np.array(a) if isinstance(a, np.ndarray) else a for a in args]
    want = said(prim, *args, target="interp")
    for target in ("cpu", "interp -sanitize"):
        for array, old in zip(args, kept, strict=True):
            if isinstance(array, np.ndarray):
                array[...] = old
        assert said(prim, *args, target=target) == want
    return "".join(want)


def text_of(prim):
    """The printf lines of the kernel for CUDA, which compiles."""
    kernel = tw.compile(prim, target="cuda")
    assert kernel.ptx
    return [
        line.strip()
        for line in kernel.get_kernel_source().splitlines()
        if line.strip().startswith("printf(")
    ]


def test_values_and_messages():
    @T.prim_func
    def main(A: T.Tensor((4,), "float32"), n: T.int32):
        with T.Kernel(1, 2, threads=32) as (bx, by):
            x = T.alloc_var("float32", init=2.5)
            T.print(by)
            T.print(n * 2 + by, "twice")
            T.print(A[1], msg="element")
            T.print(A[1] > 1, "larger")
            T.print('100% {braces} and "quotes"')
            T.print(x, "x")
            if by == 1:
                T.print(n, "guarded")

    text = same(main, np.arange(4, dtype=np.float32), 3)
    assert text.splitlines() == [
        "block (0, 0): 0",
        "block (0, 0): twice 6",
        "block (0, 0): element 1.0",
        "block (0, 0): larger False",
        'block (0, 0): 100% {braces} and "quotes"',
        "block (0, 0): x 2.5",
        "block (0, 1): 1",
        "block (0, 1): twice 7",
        "block (0, 1): element 1.0",
        "block (0, 1): larger False",
        'block (0, 1): 100% {braces} and "quotes"',
        "block (0, 1): x 2.5",
        "block (0, 1): guarded 3",
    ]
    lines = text_of(main)
    assert r'printf("block (%d, %d): 100%% {braces} and \"quotes\"\n", int(bx), int(by));' in lines
    assert any('"block (%d, %d): larger %s\\n"' in line and '"True"' in line for line in lines)


def test_tiles_and_regions():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float16")):
        with T.Kernel(1, threads=32):
            s = T.alloc_shared((4, 8), "float16")
            f = T.alloc_fragment((4, 8), "float32")
            T.copy(A, s)
            T.copy(s, f)
            T.print(s[1:3, 2:4], "part")
            T.print(f[1, :])
            T.print(f, "all")
            T.print(A[3:5, 0:2], "over the edge")

    text = same(main, np.arange(32, dtype=np.float16).reshape(4, 8))
    assert (
        text
        == """\
block (0,): part s[1:3, 2:4]: float16[2, 2] =
[[10. 11.]
 [18. 19.]]
block (0,): f[1, 0:8]: float32[8] = [ 8.  9. 10. 11. 12. 13. 14. 15.]
block (0,): all f: float32[4, 8] =
[[ 0.  1.  2.  3.  4.  5.  6.  7.]
 [ 8.  9. 10. 11. 12. 13. 14. 15.]
 [16. 17. 18. 19. 20. 21. 22. 23.]
 [24. 25. 26. 27. 28. 29. 30. 31.]]
block (0,): over the edge A[3:5, 0:2]: float16[2, 2] =
[[24. 25.]
 [ 0.  0.]]
"""
    )
    lines = text_of(main)
    assert any(line.startswith('printf("block (%d,): all f: float32[4, 8]\\n"') for line in lines)
    assert any(line.startswith('printf("block (%d,): f[%d, 0:8] = %.9g') for line in lines)


def test_per_thread_values():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=4):
            tx = T.get_thread_binding(0)
            r = T.alloc_local((3,), "float32")
            s = T.alloc_shared((4, 8), "float32")
            T.copy(A, s)
            for i in T.serial(3):
                r[i] = A[tx, i] * 2
            T.print(r, "mine")
            if tx == 2:
                T.print(r[1], "one")
                T.print(s[tx, 0:4], "row")
                T.print("here")

    text = same(main, np.arange(32, dtype=np.float32).reshape(4, 8))
    assert text.splitlines() == [
        "block (0,) thread 0: mine r: float32[3] = [0. 2. 4.]",
        "block (0,) thread 1: mine r: float32[3] = [16. 18. 20.]",
        "block (0,) thread 2: mine r: float32[3] = [32. 34. 36.]",
        "block (0,) thread 3: mine r: float32[3] = [48. 50. 52.]",
        "block (0,) thread 2: one 34.0",
        "block (0,) thread 2: row s[2, 0:4]: float32[4] = [16. 17. 18. 19.]",
        "block (0,) thread 2: here",
    ]
    assert any("thread %d: mine r: float32[3] = %.9g %.9g %.9g" in line for line in text_of(main))


def test_inside_parallel():
    @T.prim_func
    def main(A: T.Tensor((4, 8), "float32")):
        with T.Kernel(1, threads=32):
            f = T.alloc_fragment((4, 8), "float32")
            T.copy(A, f)
            for i, j in T.Parallel(4, 8):
                f[i, j] = f[i, j] + 1
                if i == 2 and j > 5:
                    T.print(f[i, j], "new")
            T.copy(f, A)

    text = same(main, np.zeros((4, 8), np.float32))
    assert text == "block (0,) at (2, 6): new 1.0\nblock (0,) at (2, 7): new 1.0\n"
    assert any('"block (%d,) at (%d, %d): new %.9g\\n"' in line for line in text_of(main))


SPECIAL = [-0.0, np.nan, np.inf, -np.inf, 0.1, 1 / 3]


@pytest.mark.parametrize("kind", ["float16", "bfloat16", "float32", "float64", "float8_e4m3"])
def test_special_floats(kind):
    @T.prim_func
    def main(A: T.Tensor((6,), kind)):
        with T.Kernel(1, threads=32):
            T.print(A)
            for i in T.serial(6):
                T.print(A[i])

    dtype = DTYPES["float8_e4m3fn" if kind == "float8_e4m3" else kind].numpy
    with np.errstate(all="ignore"):
        text = same(main, np.array(SPECIAL).astype(dtype))
    values = [line.split(": ")[1] for line in text.splitlines()[-6:]]
    assert float(values[0]) == 0 and values[0].startswith("-")
    assert values[1] == "nan"
    if kind != "float8_e4m3":
        assert values[2:4] == ["inf", "-inf"]
    assert text_of(main)


@pytest.mark.parametrize(
    "kind", ["int4", "uint4", "int2", "int8", "uint8", "int64", "uint64", "bool"]
)
def test_integers(kind):
    @T.prim_func
    def main(A: T.Tensor((8,), "int32")):
        with T.Kernel(1, threads=32):
            q = T.alloc_fragment((8,), kind)
            for i in T.Parallel(8):
                q[i] = T.cast(A[i], kind)
            T.print(q, "q")
            T.print(T.cast(A[3], kind))

    text = same(main, np.arange(-4, 4, dtype=np.int32))
    assert f"q: {kind}[8] =" in text
    assert text_of(main)


def test_packed_and_strided_tensors():
    @T.prim_func
    def main(A: T.Tensor((2, 4), "int4"), B: T.StridedTensor((2, 3), (8, 2), "int32")):
        with T.Kernel(1, threads=32):
            T.print(A)
            T.print(B)
            T.print(B[1, 0:2])

    a = np.arange(-4, 4).reshape(2, 4).astype(ml_dtypes.int4)
    b = np.arange(16, dtype=np.int32).reshape(2, 8)[:, :6:2]
    assert "B: int32[2, 3] =\n[[ 0  2  4]\n [ 8 10 12]]" in same(main, a, b)


def test_sizes_known_at_launch():
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m, 2), "float32")):
        with T.Kernel(T.ceildiv(m, 2), threads=32) as bx:
            T.print(A[bx * 2 : bx * 2 + 2, :], "rows")
            if bx == 0:
                T.print(A, "whole")
                T.print(m, "m")

    text = same(main, np.arange(6, dtype=np.float32).reshape(3, 2))
    assert "block (1,): rows A[2:4, 0:2]: float32[2, 2] =\n[[4. 5.]\n [0. 0.]]" in text
    assert "block (0,): whole A: float32[3, 2] =\n[[0. 1.]\n" in text and "block (0,): m 3" in text
    assert any("whole A: float32[%d, 2] (the first and last 4" in line for line in text_of(main))


def test_large_tiles_are_cut(monkeypatch):
    @T.prim_func
    def main(A: T.Tensor((64, 64), "int32")):
        with T.Kernel(1, threads=32):
            T.print(A, "A")

    a = np.arange(4096, dtype=np.int32).reshape(64, 64)
    text = same(main, a)
    note = "(64 of 4096 elements; TILEWRIGHT_PRINT_LIMIT=4096 shows all)"
    assert text.endswith(note + "\n") and len(text.splitlines()) == 11
    lines = text_of(main)
    assert len(lines) == 3 and note in lines[0]
    monkeypatch.setenv("TILEWRIGHT_PRINT_LIMIT", "4096")
    text = same(main, a)
    assert "..." not in text and " 2015 " in text
    assert len(re.findall("%d", text_of(main)[1])) > 16


def test_left_out():
    assert left_out((8, 8)) == "" and left_out((3,)) == ""
    assert left_out((4, 4, 2000)).startswith("(128 of 32000")
    assert show_value(np.float32(0.1)) == "0.1"
    assert show_value(np.zeros((0, 3))) == "[]"


def test_pipelined_loops():
    @T.prim_func
    def main(A: T.Tensor((64, 32), "float16"), B: T.Tensor((32, 64), "float16"),
             C: T.Tensor((64, 64), "float32")):  # fmt: skip
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 16), "float16")
            b = T.alloc_shared((16, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(2, num_stages=2):
                T.copy(A[0, k * 16], a)
                T.copy(B[k * 16, 0], b)
                T.print(k, "k")
                T.print(a[0, 0:4], "a")
                T.gemm(a, b, c)
                T.print(c[1, 0:4], "c")
            T.copy(c, C)

    rng = np.random.default_rng(0)
    a, b = rng.integers(-2, 3, (64, 32)), rng.integers(-2, 3, (32, 64))
    args = a.astype(np.float16), b.astype(np.float16), np.zeros((64, 64), np.float32)
    text = same(main, *args)
    half = (a[1, :16] @ b[:16, :4]).astype(np.float32)
    assert f"block (0,): c c[1, 0:4]: float32[4] = {show_value(half)}" in text
    assert len(text.splitlines()) == 6
    for target in ("cuda", "cuda -roles"):
        thread_ir = tw.parse_ir(tw.compile(main, target=target).ir("lower_threads"))
        names = {"A": args[0], "B": args[1], "C": args[2].copy()}
        with contextlib.redirect_stdout(io.StringIO()):
            lines = machine.run_threads(thread_ir, names).printed
        assert len(lines) == 6
        numbers = re.findall(r"-?\d+\.\d*", lines[2].split("=")[1])
        assert [float(n) for n in numbers] == half.tolist()


def test_logical_block_indices_where_blocks_are_reordered():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32")):
        with T.Kernel(4, 4, threads=32) as (bx, by):
            T.use_swizzle(2)
            if bx == 1 and by == 3:
                T.print(A[by * 16, bx * 16], "corner")

    a = np.arange(4096, dtype=np.float32).reshape(64, 64)
    assert same(main, a) == "block (1, 3): corner 3088.0\n"
    thread_ir = tw.parse_ir(tw.compile(main, target="cuda").ir("lower_threads"))
    with contextlib.redirect_stdout(io.StringIO()):
        lines = machine.run_threads(thread_ir, {"A": a}).printed
    assert lines == ["block (1, 3): corner 3088.0"]


@T.prim_func
def many(A: T.Tensor((64, 256), "float32")):
    with T.Kernel(64, threads=32) as bx:
        f = T.alloc_fragment((256,), "float32")
        T.copy(A[bx, :], f)
        for i in T.Parallel(256):
            f[i] = T.exp(f[i]) + T.sin(f[i])
        T.print(f[0:40], "row")
        T.copy(f, A[bx, :])


def test_lines_of_blocks_stay_apart(capfd):
    a = np.zeros((64, 256), np.float32)
    kernel = tw.compile(many, target="cpu")
    print("before")
    for _ in range(3):
        kernel(a)
        print("after")
    out = capfd.readouterr().out  # what reaches the file itself, in order
    lines = out.splitlines()
    assert lines[0] == "before" and lines.count("after") == 3
    blocks = [int(m) for m in re.findall(r"^block \((\d+),\)", out, re.M)]
    assert blocks == [*range(64)] * 3


def test_errors_of_the_stream_reach_the_caller():
    class Full(io.StringIO):
        def write(self, text):
            raise OSError("no space left")

    kernel = tw.compile(many, target="cpu")
    with contextlib.redirect_stdout(Full()), pytest.raises(OSError, match="no space left"):
        kernel(np.zeros((64, 256), np.float32))
