"""Values that loops and branches change, and what is made of values before, in and after loops."""

import ml_dtypes
import numpy as np
import pytest

import tests.roads  # noqa: F401  (cuda_threads)
import tilewright as tw
import tilewright.language as T

TARGETS = ["interp -sanitize", "cpu"]
BF16 = ml_dtypes.bfloat16
each_target = pytest.mark.parametrize("target", TARGETS)


def run(kernel, target, tiles, *args):
    return kernel.on(target).with_schedule(tiles=tiles)(*args)


@each_target
def test_carried_values_are_exchanged_as_in_python(target):
    @tw.jit(target=target)
    def fibonacci(X, count: int):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N, size=16):
            a, b = T.zeros((n,)), T.ones((n,))
            for _ in range(count):
                a, b = b, a + b
            Y[n] = a
        return Y

    assert fibonacci(np.zeros(20, np.float32), 10).tolist() == [55] * 20


@each_target
def test_a_name_keeps_the_value_that_it_was_given(target):
    @tw.jit(target=target)
    def kernel(X):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        Y = T.empty((N,), "float32")
        for n in T.tile(N, size=16):
            acc = T.load(X[n])
            start, twice = acc, acc * 2
            for _ in range(3):
                before = acc
                acc = acc + 1
                twice = twice + before
            Y[n] = 100 * start + twice
        return Y

    x = np.arange(20, dtype=np.float32)
    assert kernel(x).tolist() == (100 * x + 2 * x + 3 * x + 3).tolist()


@each_target
def test_two_names_of_a_value_that_a_loop_has_changed(target):
    @tw.jit
    def kernel(X):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        Y = T.empty((2, N), "float32")
        for n in T.tile(N):
            a = T.zeros((n,))
            for i in T.tile(T.each(M)):
                a += X[i, n]
            b = a
            for i in T.tile(T.each(M)):
                b, a = b * 2 + X[i, n], a
            Y[0, n], Y[1, n] = a, b
        return Y

    x = np.arange(12, dtype=np.float32).reshape(3, 4)
    a = x.sum(0)
    want = [a, ((a * 2 + x[0]) * 2 + x[1]) * 2 + x[2]]
    np.testing.assert_array_equal(run(kernel, target, {"n": 2}, x), want)


@each_target
def test_branches_carry_values(target):
    @tw.jit(target=target)
    def kernel(X, flag):
        N = T.const("N")
        X: T.Tensor((N,), "float32")
        flag: T.Tensor((2,), "int32")
        Y = T.empty((2, N), "float32")
        for i, n in T.tile(T.each(2), N):
            x = T.load(X[n])
            if flag[i] > 0:
                x = x * 2
            else:
                x = -x
            Y[i, n] = x
        return Y

    x = np.arange(5, dtype=np.float32)
    assert kernel(x, np.array([0, 1], np.int32)).tolist() == [(-x).tolist(), (2 * x).tolist()]


@each_target
def test_a_carried_product_is_added_to(target):
    @tw.jit(target=target)
    def kernel(A, X):
        M, K = T.const("M, K")
        A: T.Tensor((M, K), "float32")
        X: T.Tensor((M, M), "float32")
        Y = T.empty((M, M), "float32")
        for _ in T.tile():
            acc = A[:, :] @ A[:, :].T
            for _ in range(3):
                acc += X[:, :] * 2
            Y[:, :] = acc
        return Y

    a, x = np.ones((16, 8), np.float32), np.ones((16, 16), np.float32)
    assert kernel(a, x).tolist() == [[14.0] * 16] * 16


@tw.jit
def counted(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((1,), "float32")
    for _ in T.tile():
        last, turns = T.full((), 0), T.full((), 0, "int32")
        for n in T.tile(N):
            last = T.sum(X[n], dim=0)
            if last > 0:
                turns = T.full((), 7, "int32")
        Y[0] = last + turns
    return Y


@each_target
def test_values_of_rank_0_are_carried(target):
    x = np.arange(10, dtype=np.float32)
    assert run(counted, target, {"n": 4}, x).tolist() == [8 + 9 + 7]


@tw.jit
def of_changed(X, W, form: str, count: int):
    """What is made of a whole value before a loop changes it, in the loop, and after it."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    W: T.Tensor((N, N), "float32")
    Y = T.empty((M, N), "float32")
    for m in T.tile(M):
        y = T.load(X[m, :])
        total = _made(y, W[:, :], form)
        for _ in range(count):
            total += _made(y, W[:, :], form)
            y = y @ W[:, :] if form == "power" else y + 1
        Y[m, :] = total + _made(y, W[:, :], form)
    return Y


def _made(y, w, form):
    """A helper is a plain function, of values and of arrays."""
    if form in ("product", "power"):
        return y @ w
    if form == "right":
        return (y @ w.T) @ w
    if form == "turned":
        return (w.T @ y.T).T
    is_array = isinstance(y, np.ndarray)
    if form == "sum":
        return y * 0 + (y.sum(1, keepdims=True) if is_array else T.sum(y, dim=1, keepdim=True))
    return y.cumsum(1) if is_array else T.cumsum(y, dim=1)


@each_target
@pytest.mark.parametrize("form", ["product", "power", "right", "turned", "sum", "scan"])
@pytest.mark.parametrize("rows", [1, 4])
def test_what_is_made_of_a_value_follows_its_changes(target, form, rows):
    rng = np.random.default_rng(7)
    x, w = rng.integers(-2, 3, (5, 3)), rng.integers(-1, 2, (3, 3))
    y, total = x.astype(np.float32), 0
    w = w.astype(np.float32)
    total = _made(y, w, form)
    for _ in range(3):
        total = total + _made(y, w, form)
        y = y @ w if form == "power" else y + 1
    got = run(of_changed, target, {"m": rows}, x.astype(np.float32), w, form, 3)
    np.testing.assert_array_equal(got, total + _made(y, w, form))


@each_target
def test_a_matrix_that_a_loop_changes_is_multiplied_after_it(target):
    @tw.jit
    def kernel(X, W):
        M, N = T.const("M, N")
        X: T.Tensor((M, N), "float32")
        W: T.Tensor((N, N), "float32")
        Y = T.empty((M, N), "float32")
        for m in T.tile(M):
            w = T.load(W[:, :])
            for _ in range(2):
                w = w * 2
            if W[0, 0] > 0:
                w = w.T @ w
            Y[m, :] = X[m, :] @ w
        return Y

    rng = np.random.default_rng(8)
    x, w = (rng.integers(-2, 3, shape).astype(np.float32) for shape in ((5, 4), (4, 4)))
    for sign in (1, -1):
        w[0, 0] = sign
        want = x @ ((4 * w).T @ (4 * w) if sign > 0 else 4 * w)
        np.testing.assert_array_equal(run(kernel, target, {"m": 2}, x, w), want)


@T.macro
def grown(x, count):
    for _ in range(count):
        x = x + 1
    return x


@tw.jit
def again_and_again(X, W, form: str):
    """Uses of a value before a loop, in it and after it; `x` itself never changes."""
    M, N = T.const("M, N")
    X: T.Tensor((M, N))
    W: T.Tensor((N, N), "float32")
    Y = T.empty((M, N), "float32")
    for m in T.tile(M):
        x = T.load(X[m, :])
        wide = T.cast(x, "float32")
        y, w = wide * 1, W[:, :] @ W[:, :]
        if form == "padding":
            y += T.max(x, dim=1, keepdim=True)
            for _ in range(2):
                y += T.max(x, dim=1, keepdim=True) + T.sum(x, dim=1, keepdim=True)
        if form == "wide":
            for _ in range(2):
                y += T.cumsum(x, dim=1)
            y += T.cumsum(x, dim=1) + T.sum(x, dim=1, keepdim=True)
        if form == "operand":
            for _ in range(2):
                y = y @ w
            y = y @ w
        if form == "both":
            z = y + 1
            for _ in range(2):
                y = z = z @ w + y
            y += z
        if form == "named":
            z = y + 1
            for _ in range(2):
                t = z @ w + y
                y, z = t, t + 1
            y += z
        if form == "totals":
            c, s = T.cumsum(y, dim=1), T.sum(y, dim=1, keepdim=True)
            for _ in range(2):
                c = c + 1
            y = c + s
        if form == "macro":
            y = grown(y, 2) + 10 * y
        Y[m, :] = y
    return Y


def reference(x, w, form):
    y, w, m, s = x * 1, w @ w, x.max(1, keepdims=True), x.sum(1, keepdims=True)
    z = y + 1
    for _ in range(2):
        if form == "both":
            y = z = z @ w + y
        if form == "named":
            y = z @ w + y
            z = y + 1
    return {
        "padding": lambda: x + m + 2 * (m + s),
        "wide": lambda: x + 3 * x.cumsum(1) + s,
        "operand": lambda: x @ w @ w @ w,
        "both": lambda: y + z,
        "named": lambda: y + z,
        "totals": lambda: x.cumsum(1) + 2 + s,
        "macro": lambda: x + 2 + 10 * x,
    }[form]()


@each_target
@pytest.mark.parametrize("kind", [np.float32, BF16])
@pytest.mark.parametrize("form", ["padding", "wide", "operand", "both", "named", "totals", "macro"])
def test_a_value_is_used_again_and_again(target, kind, form):
    rng = np.random.default_rng(9)
    x, w = -rng.integers(1, 5, (3, 7)).astype(kind), rng.integers(-1, 2, (7, 7)).astype(np.float32)
    want = reference(x.astype(np.float64), w.astype(np.float64), form)
    for tiles in ({}, {"m": 2}):
        np.testing.assert_array_equal(run(again_and_again, target, tiles, x, w, form), want)


@tw.jit
def turned_and_cleared(X):
    M, N = T.const("M, N")
    X: T.Tensor((M, N), "float32")
    Y = T.empty((N, M), "float32")
    for m in T.tile(M):
        x = X[m, :]
        X[m, :] = x * 0 + 5
        Y[:, m] = x.T
    return Y


@pytest.mark.parametrize("target", ["interp -sanitize", "cpu", "cuda_threads"])
def test_a_load_that_is_under_way_ends_before_its_tensor_is_written(target):
    x = np.arange(16, dtype=np.float32).reshape(2, 8)
    given = x.copy()
    assert turned_and_cleared.on(target)(given).tolist() == x.T.tolist()
    assert (given == 5).all()
