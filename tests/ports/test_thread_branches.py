"""`T.Parallel` under a branch on the thread index, between thread-level statements."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from devtools.host import build, judge
from tests.roads import on_gpu, on_threads

N, THREADS = 200, 128
ROADS = ("cpu", "interp -sanitize", *on_threads(), *on_gpu())
on_all = pytest.mark.parametrize("target", ROADS)
x = np.arange(1, N + 1, dtype=np.int32)


def copied(body, threads=THREADS):
    """A kernel from X to Y whose text is `body(X, Y)`."""
    macro = T.macro(body)

    @T.prim_func
    def program(X: T.Tensor((N,), "int32"), Y: T.Tensor((N,), "int32")):
        with T.Kernel(1, threads=threads):
            macro(X, Y)

    return program


def check(program, target, expected):
    y = np.full_like(x, -1)
    tw.compile(program, target=target)(x, y)
    np.testing.assert_array_equal(y, expected)


def run_alone(lo, hi):
    """Shared memory and tensors, written by a loop of some threads and read by another."""

    def body(X, Y):
        s = T.alloc_shared((N,), "int32")
        t = T.get_thread_binding()
        if lo <= t < hi:
            for i in T.Parallel(N):
                s[i] = X[i] + 1
            for i in T.Parallel(N):
                Y[i] = s[N - 1 - i]

    return copied(body)


@on_all
@pytest.mark.parametrize(("lo", "hi"), [(32, 64), (5, 77)])
def test_loops_of_some_threads(target, lo, hi):
    check(run_alone(lo, hi), target, x[::-1] + 1)


def beside_statements(X, Y):
    """Threads write before a loop what it reads, and read behind it what it wrote; a value of the
    branch is used in it."""
    s = T.alloc_shared((N,), "int32")
    r = T.alloc_shared((N,), "int32")
    t = T.get_thread_binding()
    T.fill(s, 0)
    if t // 32 == 1:
        s[t] = t
        scale = T.alloc_var("int32", init=3)
        for k in T.serial(2):
            first = s[32] + k
            for i in T.Parallel(N):
                r[i] = s[N - 1 - i] * scale + first
            T.sync_warp()
            s[t] = r[t + 1] + r[0]
    elif t < 64:
        s[t + 100] = 7
    else:
        for i in T.Parallel(N):
            r[i] = r[i] + 1
    T.sync_threads()
    for i in T.Parallel(N):
        Y[i] = s[i] + r[i]


def meaning():
    s, own = np.zeros(N, np.int32), slice(32, 64)
    s[own] = np.arange(32, 64)
    for k in range(2):
        r = s[::-1] * 3 + s[32] + k
        s[own] = r[33:65] + r[0]
    s[100:132] = 7
    return s + r + 1


@on_all
def test_loops_beside_thread_level_statements(target):
    check(copied(beside_statements), target, meaning())


def test_the_emitted_source_on_the_host():
    try:
        build.compiler()
    except build.NoCompiler as error:
        pytest.skip(str(error))
    for text, want in ((copied(beside_statements), meaning()), (run_alone(5, 77), x[::-1] + 1)):
        got = judge.run(text.program, {"X": x, "Y": np.full_like(x, -1)})
        np.testing.assert_array_equal(got["Y"], want)


@on_all
def test_what_is_the_same_in_all_threads_is_asked_as_well(target):
    def body(X, Y):
        t = T.get_thread_binding()
        T.fill(Y, 0)
        for k in range(4):
            if t < 16 and k == 3:
                for i in T.Parallel(N):
                    T.atomic_add(Y[i], X[i] + k)

    check(copied(body), target, x + 3)


@on_all
def test_a_branch_that_no_thread_takes(target):
    def body(X, Y):
        t = T.get_thread_binding()
        T.copy(X, Y)
        if t >= THREADS:
            for i in T.Parallel(N):
                Y[i] = 0

    check(copied(body), target, x)


@pytest.mark.parametrize("target", ("interp -sanitize", *on_threads("threads-sm_90a")))
def test_statements_stay_with_their_threads_where_barriers_are_used(target):
    def body(X, Y):
        s = T.alloc_shared((N,), "int32")
        t = T.get_thread_binding()
        ready = T.alloc_barrier(THREADS)
        T.fill(s, 0)
        T.copy(X, Y)
        T.barrier_arrive(ready)
        T.barrier_wait(ready, 0)
        if t < 32:
            for i in T.Parallel(N):
                s[i] = X[i] * 2
            Y[t] = s[t]

    check(copied(body), target, np.where(np.arange(N) < 32, 2 * x, x))


@pytest.mark.parametrize("target", ("interp -sanitize", *on_threads("threads-sm_90a")))
def test_a_branch_inside_a_role(target):
    def body(X, Y):
        s = T.alloc_shared((N,), "int32")
        t = T.get_thread_binding()
        ready = T.alloc_barrier(128)
        with T.ws(0):
            T.copy(X, s)
            T.barrier_arrive(ready)
        with T.ws(1):
            T.barrier_wait(ready, 0)
            if t < 160:
                s[t - 128] = s[t - 128] * 2
                for i in T.Parallel(N):
                    Y[i] = s[N - 1 - i]
            if t < 32:  # none of these
                for i in T.Parallel(N):
                    Y[i] = 0

    want = np.where(np.arange(N) < 32, 2 * x, x)[::-1]
    check(copied(body, 256), target, want)


# ── what is refused ──


def refused(body, *words):
    with pytest.raises(tw.CompileError) as caught:
        copied(body)
    assert caught.value.loc.line and caught.value.diagnostic.fix
    assert all(word in str(caught.value) for word in words), str(caught.value)


def test_a_fragment_under_a_branch():
    def body(X, Y):
        f = T.alloc_fragment((N,), "int32")
        if T.get_thread_binding() < 32:
            for i in T.Parallel(N):
                f[i] = X[i]

    refused(body, "f, a fragment", "T.alloc_shared", "for i in T.Parallel(N)")


def test_threads_with_gaps():
    def body(X, Y):
        if T.get_thread_binding() % 32 == 0:
            for i in T.Parallel(N):
                Y[i] = X[i]

    refused(body, "threads 0 and 96 take, and thread 1 does not", "lo <= t < hi")


def test_a_bound_known_at_run_time():
    def body(X, Y):
        if T.get_thread_binding() < X[0]:
            for i in T.Parallel(N):
                Y[i] = X[i]

    refused(body, "not all of them reach this one", "constants")


def test_a_value_of_one_thread():
    def body(X, Y):
        t = T.get_thread_binding()
        if t < 32:
            for i in T.Parallel(N):
                Y[i] = X[i] + t

    refused(body, "must be the same in all threads")


def test_a_value_of_a_thread_from_before_the_loop():
    def body(X, Y):
        t = T.get_thread_binding()
        if t < 32:
            mine = X[t]
            for i in T.Parallel(N):
                Y[i] = X[i]
            Y[t] = mine

    refused(body, "mine is a value of some threads", "T.alloc_var")


def test_some_threads_that_wait():
    def body(X, Y):
        t = T.get_thread_binding()
        flag = T.alloc_shared((1,), "int32")
        if t < 16:
            while flag[0] == 0:
                flag[0] = 1
        if t < 16:
            for i in T.Parallel(N):
                Y[i] = X[i]

    refused(body, "some threads wait on their own")


def test_a_condition_on_memory_that_is_written():
    def body(X, Y):
        t = T.get_thread_binding()
        if t < 16 and Y[0] == 0:
            for i in T.Parallel(N):
                Y[i] = X[i]

    refused(body, "reads memory which the kernel writes", "a line of its own")
