"""The words of warp roles one by one: barriers that expect bytes, barriers of some threads, where
threads arrive, and what is refused."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.ports.test_warp_roles import PLACED, check, numbers, with_placement, with_roles
from tests.roads import on_gpu, on_threads

THREADS = ("interp", "interp -sanitize", *on_threads(), *on_gpu())


def copied(body, threads=128, size=64):
    """A kernel from X to Y whose text is `body(X, Y)`."""
    macro = T.macro(body)

    @T.prim_func
    def program(X: T.Tensor((size, size), "float32"), Y: T.Tensor((size, size), "float32")):
        with T.Kernel(1, threads=threads):
            macro(X, Y)

    return program


def runs(body, target, threads=128, of=lambda x: x):
    x = numbers(64, 64, dtype=np.float32)
    check(copied(body, threads), target, (x,), np.ascontiguousarray(of(x)))


# ── bulk copies and their bytes ──


@with_roles
def test_a_bulk_copy_with_a_barrier(target):
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        full = T.alloc_barrier(128)
        T.tma_copy(X, tile, barrier=full)
        T.barrier_arrive(full)
        T.barrier_wait(full, 0)
        T.copy(tile, Y)

    runs(body, target)


@with_roles
@pytest.mark.parametrize("guarded", [False, True])
def test_expecting_bytes_beside_an_arrival(target, guarded):
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        full = T.alloc_barrier(1 if guarded else 128)
        if guarded:
            if T.get_thread_binding() == 64:
                T.mbarrier_expect_tx(full, 0)
                T.mbarrier_arrive(full)
        else:
            T.mbarrier_expect_tx(full, 0)
            T.mbarrier_arrive(full)
        T.mbarrier_wait_parity(full, 0)
        T.copy(X, tile)
        T.copy(tile, Y)

    runs(body, target)


def test_several_threads_expect_the_same_bytes():
    def body(X, Y):
        full = T.alloc_barrier(128)
        if T.get_thread_binding() < 7:
            T.mbarrier_expect_tx(full, 64)

    with pytest.raises(tw.CompileError, match="that 7 threads pass") as caught:
        copied(body)
    assert "test for one thread" in str(caught.value)


@pytest.mark.parametrize("target", PLACED)
@pytest.mark.parametrize("cache", ["no_allocate", "evict_first", "evict_last", "evict_normal"])
def test_what_caches_keep(target, cache):
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X, tile, cache=cache)
        T.copy(tile, Y, cache=cache)

    runs(body, target)


def test_the_engine_passes_by_the_first_cache():
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        T.copy(X, tile, cache="no_allocate")
        T.copy(tile, Y)

    tw.compile(copied(body), target="cuda")


# ── who arrives ──


@with_roles
@pytest.mark.parametrize("one", [0, 64, 127])
def test_one_thread_arrives(target, one):
    """It has touched memory before: nobody else is asked to meet it."""

    def body(X, Y):
        word = T.alloc_shared((1,), "float32")
        said = T.alloc_barrier(1)
        t = T.get_thread_binding()
        if t == one:
            word[0] = X[3, 5]
            T.mbarrier_arrive(said)
        T.mbarrier_wait_parity(said, 0)
        for i in T.serial(32):
            Y[t // 2, t % 2 * 32 + i] = word[0]

    runs(body, target, of=lambda x: np.full_like(x, x[3, 5]))


@with_roles
def test_some_threads_arrive(target):
    def body(X, Y):
        row = T.alloc_shared((64,), "float32")
        said = T.alloc_barrier(64)
        t = T.get_thread_binding()
        if t >= 64:
            row[t - 64] = X[7, t - 64]
            T.barrier_arrive(said)
        T.barrier_wait(said, 0)
        for i in T.serial(32):
            Y[t // 2, t % 2 * 32 + i] = row[63 - t % 2 * 32 - i]

    runs(body, target, of=lambda x: np.broadcast_to(x[7, ::-1], x.shape))


@with_roles
@pytest.mark.parametrize("threads", [256, 384])
def test_one_thread_arrives_for_its_warpgroups(target, threads):
    """What all its threads did before counts: products, ordinary reads and writes."""

    def body(X, Y):
        x = T.alloc_shared((64, 64), "float16")
        y = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        f = T.alloc_fragment((64, 64), "float16")
        full, free = T.alloc_barrier(1), T.alloc_barrier(1)
        t = T.get_thread_binding()
        for k in T.serial(3):
            with T.ws(0):
                T.barrier_wait(free, (k + 1) % 2)
                T.copy(X, f)
                T.copy(f, x)
                T.fill(y, k + 1)
                if t == 65:
                    T.barrier_arrive(full)
            with T.ws(*range(1, threads // 128)):
                T.barrier_wait(full, k % 2)
                T.gemm(x, y, c, clear_accum=k == 0)
                if t == 128:
                    T.mbarrier_arrive(free)
        with T.ws(*range(1, threads // 128)):
            T.copy(c, Y)

    runs(body, target, threads, of=lambda x: np.repeat(6 * x.sum(1, keepdims=True), 64, 1))


# ── named barriers ──


@pytest.mark.parametrize("target", THREADS)
@pytest.mark.parametrize("rounds", [1, 4])
def test_a_producer_and_a_consumer_by_named_barriers(target, rounds):
    def body(X, Y):
        row = T.alloc_shared((64,), "float32")
        t = T.get_thread_binding()
        for k in T.serial(rounds):
            if t < 64:
                if rounds > 1:
                    T.sync_threads(2, 128)
                row[t] = X[k, t]
                T.named_barrier_arrive(1, 128)
            else:
                if rounds > 1:
                    T.named_barrier_arrive(2, 128)
                T.sync_threads(1, 128)
                for i in T.serial(64):
                    if i % rounds == k:
                        Y[i, t - 64] = row[127 - t]

    runs(body, target, of=lambda x: np.stack([x[i % rounds, ::-1] for i in range(64)]))


@pytest.mark.parametrize("target", THREADS)
def test_tiles_and_named_barriers(target):
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        with T.ws(0):
            T.copy(X, tile)
            T.named_barrier_arrive(3, 256)
        with T.ws(1):
            T.sync_threads(3, 256)
            for i, j in T.Parallel(64, 64):
                Y[i, j] = tile[j, i]

    runs(body, target, 256, of=lambda x: x.T)


# ── variables ──


@with_roles
def test_each_thread_has_its_own_variables(target):
    """With barriers of its own, a warpgroup counts for itself."""

    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        full, free = T.alloc_barrier(128), T.alloc_barrier(128)
        phase = T.alloc_var("int32", init=0)
        for k in T.serial(3):
            with T.ws(1):
                T.barrier_wait(free, (phase + 1) % 2)
                for i, j in T.Parallel(64, 64):
                    tile[i, j] = X[i, j] * (phase + 1)
                T.barrier_arrive(full)
                phase = phase + 1
            with T.ws(0):
                T.barrier_wait(full, phase % 2)
                T.copy(tile, Y)
                T.barrier_arrive(free)
                phase = phase + 1

    runs(body, target, 256, of=lambda x: 3 * x)


def test_a_variable_of_one_warpgroup_is_not_read_elsewhere():
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        count = T.alloc_var("int32", init=0)
        with T.ws(0):
            count = count + 1
            T.copy(X, tile)
        with T.ws(1):
            for i, j in T.Parallel(64, 64):
                Y[i, j] = tile[i, j] * count

    with pytest.raises(tw.CompileError, match="count is set on warpgroup 0 alone") as caught:
        tw.compile(copied(body, 256), target="cuda")
    assert caught.value.loc.line and "outside T.ws" in str(caught.value)


# ── placement keeps the text's order ──


@with_placement
def test_threads_meet_among_their_own(target):
    def body(X, Y):
        row = T.alloc_shared((128,), "float32")
        t = T.get_thread_binding()
        with T.ws(1):
            if t >= 128:
                row[t - 128] = X[0, (t - 128) % 64]
            T.sync_threads()
            for i, j in T.Parallel(64, 64):
                Y[i, j] = row[63 - j] + row[64 + i]

    runs(body, target, 256, of=lambda x: x[0, ::-1][None, :] + x[0][:, None])


@with_placement
def test_threads_of_a_warpgroup_change_what_is_theirs(target):
    def body(X, Y):
        row = T.alloc_shared((64,), "float32")
        count = T.alloc_shared((4,), "int32")
        t = T.get_thread_binding()
        with T.ws(0):
            T.copy(X[0, :], row)
            T.fill(count, 0)
        with T.ws(1):
            if 128 <= t < 192:
                row[t - 128] = row[t - 128] * 2
                T.atomic_add(count[t % 4], 1)
            for i, j in T.Parallel(64, 64):
                Y[i, j] = row[63 - j] + count[i % 4]

    runs(body, target, 256, of=lambda x: np.broadcast_to(2 * x[0, ::-1] + 16, x.shape))


@with_placement
def test_written_and_read_in_turns(target):
    """A tile goes to and fro between warpgroups, in a loop that may end early."""

    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        f = T.alloc_fragment((64, 64), "float32")
        g = T.alloc_fragment((64, 64), "float32")
        T.copy(X, tile)
        for k in T.serial(6):
            if k == 4:
                break
            with T.ws(0):
                T.copy(tile, f)
                for i, j in T.Parallel(64, 64):
                    tile[j, i] = f[i, j] + 1
            with T.ws(1):
                T.copy(tile, g)
                for i, j in T.Parallel(64, 64):
                    tile[i, j] = g[i, j] * 2
        T.copy(tile, Y)

    def of(x):
        for _ in range(4):
            x = (x.T + 1) * 2
        return x

    runs(body, target, 256, of=of)


@with_placement
def test_a_tensor_written_on_one_warpgroup_and_read_on_another(target):
    def body(X, Y):
        f = T.alloc_fragment((64, 64), "float32")
        with T.ws(1):
            T.copy(X, Y)
        with T.ws(0):
            T.copy(Y, f)
            for i, j in T.Parallel(64, 64):
                Y[j, i] = f[i, j] * 2

    runs(body, target, 256, of=lambda x: 2 * x.T)


@with_placement
def test_a_condition_that_a_warpgroup_decides(target):
    def body(X, Y):
        flag = T.alloc_shared((1,), "int32")
        tile = T.alloc_shared((64, 64), "float32")
        with T.ws(1):
            T.fill(flag, 3)
        while flag[0] > 0:
            with T.ws(0):
                for i, j in T.Parallel(64, 64):
                    tile[i, j] = X[i, j] * flag[0]
            with T.ws(1):
                for i, j in T.Parallel(64, 64):
                    Y[i, j] = tile[i, j]
                for i in T.Parallel(1):
                    flag[i] = flag[i] - 1

    runs(body, target, 256)


# ── what is refused ──


def test_a_fragment_of_two_warpgroups_with_barriers():
    def body(X, Y):
        f = T.alloc_fragment((64, 64), "float32")
        ready = T.alloc_barrier(128)
        with T.ws(0):
            T.copy(X, f)
            T.barrier_arrive(ready)
        with T.ws(1):
            T.barrier_wait(ready, 0)
            T.copy(f, Y)

    with pytest.raises(tw.CompileError, match="f is a fragment of warpgroup 0, and used on") as c:
        tw.compile(copied(body, 256), target="cuda")
    assert c.value.loc.line and "shared memory" in str(c.value)


def test_products_of_warpgroups_are_for_warpgroups():
    def body(X, Y):
        a = T.alloc_shared((64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        ready = T.alloc_barrier(128)
        t = T.get_thread_binding()
        if t < 64:
            T.copy(X, a)
        elif t < 192:
            T.barrier_wait(ready, 1)
            T.wgmma_gemm(a, a, c)
            T.wait_wgmma(0)
            T.copy(c, Y)

    with pytest.raises(tw.CompileError, match="for whole warpgroups") as caught:
        tw.compile(copied(body, 192), target="cuda")
    assert "4 warps from warp 2 on" in str(caught.value)


def test_an_atomic_for_all():
    @T.prim_func
    def program(N: T.Tensor((1,), "int32"), Y: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((64, 64), "float32")
            mine = T.atomic_add(N[0], 1, return_prev=True)
            with T.ws(0):
                T.fill(tile, 1)
            with T.ws(1):
                for i, j in T.Parallel(64, 64):
                    Y[i, j] = tile[i, j] + mine

    with pytest.raises(tw.CompileError, match="would do it again") as caught:
        tw.compile(program, target="cuda")
    assert caught.value.loc.line


def test_a_missing_arrival_is_a_deadlock_that_names_both():
    def body(X, Y):
        tile = T.alloc_shared((64, 64), "float32")
        ready, done = T.alloc_barrier(128), T.alloc_barrier(128)
        for k in T.serial(2):
            with T.ws(0):
                T.barrier_wait(done, (k + 1) % 2)
                T.tma_copy(X, tile, barrier=ready)
                T.barrier_arrive(ready)
            with T.ws(1):
                T.barrier_wait(ready, k % 2)
                T.copy(tile, Y)
                if k > 5:
                    T.barrier_arrive(done)

    kernel = tw.compile(copied(body, 256), target="interp")
    x = numbers(64, 64, dtype=np.float32)
    with pytest.raises(tw.RunError, match="deadlock") as caught:
        kernel(x, x.copy())
    assert "warps0" in str(caught.value) and "warps4" in str(caught.value)
