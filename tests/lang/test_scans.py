"""Scans and folds of tile values mean the same at every choice of tiles, on every target, and in
thread code."""

import ml_dtypes
import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.op import Alloc, Intrinsic, Program, Scan, Sync, walk_ops
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower
from zoo import scans

BF16 = ml_dtypes.bfloat16
HOPPER = "cuda -arch=sm_90a"
each_target = pytest.mark.parametrize("target", ["interp -sanitize", "cpu", HOPPER])


def program_of(kernel, *args, tiles=None, threads=128, **more) -> Program:
    kernel = kernel.on(HOPPER).with_schedule(tiles=tiles or {}, threads=threads)
    return kernel.compile(*args, **more).program


def by_threads(program, *args):
    """What the thread code of a program makes of its arguments, and that code."""
    code = lower(program, Target.parse(HOPPER)).result
    arrays = {
        tensor.name: np.zeros([int(n) for n in tensor.shape], tensor.dtype.numpy)
        for tensor in program.tensors
    }
    arrays |= dict(zip(arrays, (x.copy() for x in args), strict=False))
    machine.run(code, arrays)
    return [*arrays.values()][len(args) :], code


def run(kernel, target, tiles, *args, threads=128, **more):
    if target == HOPPER:
        made, _ = by_threads(program_of(kernel, *args, tiles=tiles, threads=threads, **more), *args)
        return made[0] if len(made) == 1 else made
    return kernel.on(target).with_schedule(tiles=tiles)(*args, **more)


def near(got, want, tolerance=1e-4):
    got = np.asarray(got).astype(np.float32)
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def drawn(*shape, seed=0):
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


ZOO = {
    "cumsum_rows": lambda x: x.cumsum(1),
    "cumsum_columns": lambda x: x.cumsum(0),
    "reverse_cumsum_rows": lambda x: x[:, ::-1].cumsum(1)[:, ::-1],
    "cumprod_rows": lambda x: x.cumprod(1),
    "cumprod_columns": lambda x: x.cumprod(0),
}


@each_target
@pytest.mark.parametrize("name", ZOO)
def test_long_lines_in_pieces(name, target):
    x = 1 + 0.1 * drawn(9, 70) if "prod" in name else drawn(9, 70)
    near(run(getattr(scans, name), target, {"r": 4, "n": 32}, x), ZOO[name](x))


@each_target
def test_narrow_types_round_once(target):
    x = drawn(5, 40).astype(BF16)
    got = run(scans.cumsum_rows, target, {"r": 2, "n": 16}, x, dtype="bfloat16")
    assert got.dtype == BF16
    near(got, x.astype(np.float32).cumsum(1), 1e-2)


@each_target
def test_masked(target):
    x, mask = drawn(5, 64), drawn(5, 64, seed=1) > 0
    near(run(scans.masked_cumsum_rows, target, {"r": 4, "n": 32}, x, mask), (x * mask).cumsum(1))


@each_target
def test_a_recurrence(target):
    a, b = np.abs(drawn(5, 50)), drawn(5, 50, seed=1)
    want, h = np.empty_like(b), 0
    for k in range(50):
        want[:, k] = h = a[:, k] * h + b[:, k]
    near(run(scans.recurrence_rows, target, {"r": 2, "n": 32}, a, b), want)


@tw.jit
def folded(X, dim: int, reverse: bool):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "int32")
    by_name = T.empty((M, N), "int32")
    by_function = T.empty((M, N), "int32")
    total = T.empty((M, N), "int32")
    product = T.empty((M, N), "int32")
    for m, n in T.tile(M, N):
        x = T.load(X[m, n])
        by_name[m, n] = T.scan(x, "min", dim=dim, reverse=reverse)
        by_function[m, n] = T.scan(x, lambda a, b: a * b % 7, dim=dim, reverse=reverse)
        total[m, n] = T.reduce(x, lambda a, b: T.maximum(a, b), dim=dim, keepdim=True)
        product[m, n] = T.prod(x, dim=dim, keepdim=True)
    return by_name, by_function, total, product


@each_target
@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("dim", [0, 1])
def test_operators(target, dim, reverse):
    x = np.random.default_rng(0).integers(1, 7, (23, 37)).astype(np.int32)
    tiles = {"m": 8, "n": 16}
    got = run(folded, target, tiles, x, dim=dim, reverse=reverse)
    want = [np.empty_like(x) for _ in range(4)]
    for m in range(0, 23, 8):
        for n in range(0, 37, 16):
            at = np.s_[m : m + 8, n : n + 16]
            lines = np.moveaxis(x[at], dim, 0)[:: -1 if reverse else 1]
            mixed = lines.copy()
            for k in range(1, len(lines)):
                mixed[k] = mixed[k - 1] * lines[k] % 7
            lowest = np.minimum.accumulate(lines)
            for out, found in zip(want, (lowest, mixed), strict=False):
                out[at] = np.moveaxis(found[:: -1 if reverse else 1], 0, dim)
            want[2][at], want[3][at] = x[at].max(dim, keepdims=True), x[at].prod(dim, keepdims=True)
    for one, other in zip(got, want, strict=True):
        assert (one == other).all()


@tw.jit
def whole_rows(X, reverse: bool):
    """A scan, one by a function, a total and a maximum of whole rows."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    sums = T.empty((M, N), "float32")
    mixed = T.empty((M, N), "float32")
    last = T.empty((M,), "float32")
    for r in T.tile(M):
        x = T.load(X[r, :])
        then = lambda a, b: (a[0] * b[0], a[1] * b[0] + b[1])
        _, h = T.scan((x * 0.5, x), then, dim=1, reverse=reverse)
        _, last[r] = T.reduce((x * 0.5, x), then, dim=1)
        sums[r, :] = T.cumsum(x, dim=1, reverse=reverse)
        mixed[r, :] = h - T.scan(x, "max", dim=1) + T.sum(x, dim=1)[:, None]
    return sums, mixed, last


@each_target
@pytest.mark.parametrize("columns, reverse", [(500, False), (501, True), (501, False)])
def test_whole_rows_go_in_pieces(target, columns, reverse):
    x = np.clip(drawn(2, columns), -1, 1)
    sums, mixed, last = run(whole_rows, target, {"N": 128}, x, threads=64, reverse=reverse)
    way = slice(None, None, -1 if reverse else 1)
    near(sums, x.astype(np.float64)[:, way].cumsum(1)[:, way], 1e-3)
    state = np.empty((2, 2, columns))  # forwards, and in the order of the scan
    for each, lines in zip(state, (x, x[:, way]), strict=True):
        h = 0
        for k in range(columns):
            each[:, k] = h = 0.5 * lines[:, k] * h + lines[:, k]
    top, total = np.maximum.accumulate(x, 1), x.sum(1, keepdims=True, dtype=np.float64)
    near(mixed, state[1][:, way] - top + total, 1e-3)
    near(last, state[0][:, -1])


@pytest.mark.parametrize("target", ["interp", "cpu"])
def test_rows_that_no_block_holds(target):
    @tw.jit
    def columns(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "int32")
        Y = T.empty((M, N), "int32")
        for n in T.tile(N):
            Y[:, n] = T.cumsum(X[:, n], dim=0)
        return Y

    @tw.jit
    def rows(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "int32")
        Y = T.empty((M, N), "int32")
        for r in T.tile(M):
            Y[r, :] = T.cumsum(X[r, :], dim=1)
        return Y

    x = np.random.default_rng(0).integers(-9, 9, (2, 70001)).astype(np.int32)
    assert (rows.on(target)(x) == x.cumsum(1)).all()
    assert (columns.on(target)(x.T.copy()) == x.cumsum(1).T).all()


@each_target
@pytest.mark.parametrize("name", ["reverse_cumsum_rows", "cumsum_rows", "recurrence_rows"])
def test_loops_along_odd_rows_begin_on_vectors(name, target):
    x = np.clip(drawn(2, 1503), -1, 1)
    args, kernel = [x, x] if name == "recurrence_rows" else [x], getattr(scans, name)
    if target == HOPPER:
        (got,), _ = by_threads(kernel.on(HOPPER).compile(*args).program, *args)
        assert "load_global<tw::float32, 4" in kernel.on(HOPPER).compile(*args).get_kernel_source()
    else:
        got = kernel.on(target)(*args)
    want = np.empty(x.shape)
    if name == "recurrence_rows":
        h = 0
        for k in range(1503):
            want[:, k] = h = x[:, k] * h + x[:, k]
    else:
        want = ZOO[name](x.astype(np.float64))
    near(got, want, 1e-3)


def chosen(kernel, rows, columns, kind=np.float32):
    """The tile that is scanned, and the threads, where nothing is pinned."""
    name = "float32" if kind == np.float32 else "bfloat16"
    made = kernel.on(HOPPER).compile(np.empty((rows, columns), kind), dtype=name)
    (program,) = made.program.kernels
    (scan,) = walk_ops(program, Scan)
    return tuple(map(int, scan.src.buffer.shape)), program.threads[0], made


def test_blocks_have_a_row_and_64_bytes_a_thread():
    tile, threads, made = chosen(scans.cumsum_rows, 4096, 32768)
    assert (tile, threads) == ((1, 4096), 256)
    assert made.resources["spill_bytes"] == 0 and made.resources["blocks_per_sm"] >= 4
    assert chosen(scans.cumsum_rows, 4096, 32768, BF16)[:2] == ((1, 8192), 256)
    assert chosen(scans.cumsum_rows, 4096, 1000)[:2] == ((4, 1024), 128)  # one in each warp
    assert chosen(scans.cumsum_rows, 7, 300000)[1] == 1024  # few


def test_columns_make_lines_of_memory_and_one_wave():
    for columns, kind in ((32768, np.float32), (20000, BF16), (10159, np.float32)):
        tile, threads, made = chosen(scans.cumsum_columns, 2048, columns, kind)
        (blocks,) = map(int, made.program.kernels[0].grid)
        assert 128 <= tile[1] * np.dtype(kind).itemsize <= 1024
        assert 132 / 2 <= blocks <= 132 * made.resources["blocks_per_sm"]
        assert made.resources["shared_bytes"] > 1 << 16  # loads that run ahead
        assert made.resources["spill_bytes"] == 0
    assert chosen(scans.cumsum_columns, 4096, 1000)[0][1] < 32  # every multiprocessor has some


def test_a_row_of_totals_is_told_once_a_warp():
    _, threads, made = chosen(scans.cumsum_rows, 4096, 32768)
    code = lower(made.program, Target.parse(HOPPER)).result
    (scratch,) = [op.buffer for op in walk_ops(code.kernels[0], Alloc) if op.buffer.is_shared]
    assert scratch.bytes == threads // 32 * 4


@tw.jit
def totals(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((M, N), "float32")
    S = T.empty((M,), "float32")
    for r in T.tile(M):
        x = T.load(X[r, :])
        Y[r, :] = T.cumsum(x, dim=1)
        S[r] = T.sum(x, dim=1)
    return Y, S


@tw.jit
def two_types(X, L):
    """The last element with a label that is not negative, and a fold over cut tiles."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float64")
    L: T.Tensor((M, N), "int32")
    Y = T.empty((M, N), "float64")
    S = T.empty((M,), "int32")
    for r in T.tile(M):
        last = lambda a, b: (T.where(b[1] >= 0, b[0], a[0]), T.where(b[1] >= 0, b[1], a[1]))
        Y[r, :], _ = T.scan((X[r, :], L[r, :]), last, dim=1)
        S[r] = T.reduce(L[r, :], lambda a, b: T.where(b >= 0, b, a), dim=1)
    return Y, S


@pytest.mark.parametrize("columns, threads", [(1024, 128), (999, 64), (64, 32)])
def test_elements_of_two_types_cross_warps(columns, threads):
    x, labels = drawn(3, columns).astype(np.float64), drawn(3, columns, seed=1) * 9
    labels = labels.astype(np.int32)
    labels[:, 0] = 1
    got, last = run(two_types, HOPPER, {"r": 1}, x, labels, threads=threads)
    for row in range(3):
        at = np.maximum.accumulate(np.where(labels[row] >= 0, np.arange(columns), 0))
        assert (got[row] == x[row][at]).all() and last[row] == labels[row][at[-1]]


def test_a_wider_copy_of_what_is_scanned_has_its_vectors():
    x = np.zeros((8, 2048), BF16)
    tiles = {"r": 4, "n": 1024}
    program = program_of(scans.cumsum_rows, x, tiles=tiles, dtype="bfloat16")
    code = lower(program, Target.parse(HOPPER)).result
    (kernel,) = code.kernels
    assert not any(walk_ops(kernel, Sync))  # a row in each warp
    shuffles = [op for op in walk_ops(kernel, Intrinsic) if op.name == "shfl_up"]
    assert len(shuffles) == 6


@pytest.mark.parametrize("columns", [96, 70])
def test_loads_run_ahead_where_stages_are_asked_for(columns):
    x = drawn(5, columns)
    kernel = scans.cumsum_rows.on(HOPPER).with_schedule(tiles={"r": 4, "n": 16}, stages=3)
    program = kernel.compile(x).program
    target = Target.parse(HOPPER).choosing(stages=3)
    code = lower(program, target).result
    arrays = {"X": x, "Y": np.zeros_like(x)}
    machine.run(code, arrays)
    near(arrays["Y"], x.cumsum(1))
    assert any(op.buffer.is_shared for op in walk_ops(code.kernels[0], Alloc))


@tw.jit
def negated(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    for n in T.tile(N):
        Y[n] = abs(X[n]) * 0 - T.maximum(X[n], 0).__neg__().__neg__()
    return Y


def test_a_minus_of_a_minus():
    kernel = negated.on(HOPPER).compile(np.zeros(8, np.float32))
    assert "--" not in kernel.get_kernel_source().replace("-->", "")


# tile, threads: shuffles alone, or shared memory between warps
@pytest.mark.parametrize(
    "rows, columns, threads, meets",
    [
        (4, 512, 128, False),
        (1, 2048, 128, True),
        (2, 1024, 256, True),
        (4, 100, 64, False),
        (1, 37, 32, False),
    ],
)
def test_how_a_scan_is_dealt(rows, columns, threads, meets):
    x = drawn(rows, columns)
    program = program_of(totals, x, tiles={"r": rows}, threads=threads)
    assert sum(1 for k in program.kernels for _ in walk_ops(k, Scan)) == 1
    (got, sums), code = by_threads(program, x)
    near(got, x.cumsum(1), 1e-3)
    near(sums, x.sum(1), 1e-3)
    (kernel,) = code.kernels
    assert any(op.scope == "block" for op in walk_ops(kernel, Sync)) == meets
    shuffles = {op.name for op in walk_ops(kernel, Intrinsic)}
    assert {"shfl_up", "shfl_sync"} >= {s for s in shuffles if s.startswith("shfl")}
    assert not any("reduce" in name for name in shuffles)  # the sum is the scan's


@pytest.mark.parametrize(
    "word", [lambda x: T.sum(T.cumsum(x, dim=1), dim=1), lambda x: T.sum(x, dim=1)]
)
def test_a_value_that_a_loop_changes_is_summed_again(word):
    @tw.jit
    def changed(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((M,), "float32")
        for r in T.tile(M):
            x, out = T.load(X[r, :]), T.zeros((r,))
            Y[r] = word(x)
            for _ in T.tile(T.each(3)):
                out += T.sum(x, dim=1)
                x = x * 2
            Y[r] = out
        return Y

    x = drawn(4, 8)
    near(changed.on("interp")(x), 7 * x.sum(1))


@pytest.mark.parametrize(
    "word, message",
    [
        (lambda x: T.scan(x, "mean", dim=1), "unknown operator"),
        (lambda x: T.scan((x, x), "sum", dim=1), "of a tuple"),
        (lambda x: T.scan(x, lambda a, b: a * 0.5, dim=(0, 1)), "one dimension"),
        (lambda x: T.scan(x, lambda a, b: (a, b), dim=1), "gives something else"),
        (lambda x: T.scan((x, x[0:1, :]), lambda a, b: a, dim=1), "different shapes"),
        (lambda x: T.reduce(x, "sum", dim=1), "takes a function"),
        (lambda x: T.cummax(x, dim=1), r"fix: +T\.scan\(x, .max., dim=1"),
    ],
)
def test_what_is_refused(word, message):
    @tw.jit(target="interp")
    def kernel(X):
        X: T.Tensor((4, 8), "float32")
        Y = T.empty((4, 8), "float32")
        for _ in T.tile():
            Y[:, :] = word(T.load(X[:, :]))
        return Y

    with pytest.raises(CompileError, match=message):
        kernel(np.zeros((4, 8), np.float32))
