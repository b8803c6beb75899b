"""Warp-specialized programs in the style of another tile language: `T.ws` with barriers of the
program's own, `T.ws` without, and branches on the thread index that stand for roles."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.mutants import sync_ops, without
from tests.roads import HOPPER as CHIP
from tests.roads import on_gpu, on_threads
from tilewright import machine
from tilewright.ir.text import print_op
from tilewright.targets.cuda.backend import lower

HOPPER = [p for p in (*on_threads(), *on_gpu()) if "sm_90a" in p.id]
ROLES = ("interp", "interp -sanitize", *HOPPER)  # bulk copies and their barriers
PLACED = ("cpu", *ROLES, *(p for p in (*on_threads(), *on_gpu()) if "sm_80" in p.id))
with_roles = pytest.mark.parametrize("target", ROLES)
with_placement = pytest.mark.parametrize("target", PLACED)


def numbers(*shape, seed=0, dtype=np.float16):
    return np.random.default_rng(seed).integers(-2, 3, shape).astype(dtype)


def check(program, target, inputs, *expected):
    """`program` on its inputs: the rest of its arguments are outputs."""
    outputs = [np.full_like(e, 77) for e in expected]
    tw.compile(program, target=target)(*inputs, *outputs)
    for got, want in zip(outputs, expected, strict=True):
        np.testing.assert_array_equal(got, want)


def compiles(program):
    """Machine code for Hopper; its resources."""
    return tw.compile(program, target="cuda -arch=sm_90a").resources


def product(a, b):
    return (a.astype(np.float32) @ b.astype(np.float32)).astype(np.float16)


# ── a producer and a consumer, one buffer ──


def producer_consumer(M, N, K, consumer, block=(128, 128, 64)):
    producer, (BM, BN, BK) = 1 - consumer, block

    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, BN), T.ceildiv(M, BM), threads=256) as (bx, by):
            a = T.alloc_shared((BM, BK), "float16")
            b = T.alloc_shared((BK, BN), "float16")
            c = T.alloc_fragment((BM, BN), "float32")
            ready = T.alloc_barrier(arrive_count=128)
            done = T.alloc_barrier(arrive_count=128)
            with T.ws(consumer):
                T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, BK), num_stages=2):
                with T.ws(producer):
                    T.barrier_wait(done, (k + 1) % 2)
                    T.tma_copy(A[by * BM, k * BK], a, barrier=ready)
                    T.tma_copy(B[k * BK, bx * BN], b, barrier=ready)
                    T.barrier_arrive(ready)
                with T.ws(consumer):
                    T.barrier_wait(ready, k % 2)
                    T.gemm(a, b, c)
                    T.barrier_arrive(done)
            with T.ws(consumer):
                T.copy(c, C[by * BM, bx * BN])

    return gemm


@with_roles
@pytest.mark.parametrize("consumer", [0, 1])
def test_a_producer_and_a_consumer(target, consumer):
    a, b = numbers(192, 160), numbers(160, 136, seed=1)
    check(producer_consumer(192, 136, 160, consumer), target, (a, b), product(a, b))


def test_the_producer_is_one_thread():
    source = tw.compile(producer_consumer(256, 256, 256, 0), target="cuda").get_kernel_source()
    assert "role warps0" in source and "role warps4" in source
    assert source.count("__syncthreads") == 1  # behind the barriers' initialisation
    assert "wgmma_m64n128k16" in source and "sync_named" not in source


# ── a ring, registers moved ──


def ring(M, N, K, stages, loads="tma"):
    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((N, K), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
            a = T.alloc_shared((stages, 128, 64), "float16")
            b = T.alloc_shared((stages, 128, 64), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            full = T.alloc_barrier(arrive_count=[128] * stages)
            free = T.alloc_barrier(arrive_count=[128] * stages)
            steps = T.ceildiv(K, 64)
            with T.ws(1):
                T.dec_max_nreg(40)
                for k in T.serial(steps):
                    slot = k % stages
                    T.barrier_wait(free[slot], (k // stages + 1) % 2)
                    if loads == "tma":
                        T.tma_copy(A[by * 128, k * 64], a[slot, :, :], barrier=full[slot])
                        T.tma_copy(B[bx * 128, k * 64], b[slot, :, :], barrier=full[slot])
                    else:
                        T.copy(A[by * 128, k * 64], a[slot, :, :])
                        T.copy(B[bx * 128, k * 64], b[slot, :, :])
                    T.barrier_arrive(full[slot])
            with T.ws(0):
                T.inc_max_nreg(232)
                T.clear(c)
                for k in T.serial(steps):
                    slot = k % stages
                    T.barrier_wait(full[slot], k // stages % 2)
                    T.gemm(a[slot, :, :], b[slot, :, :], c, transpose_B=True)
                    T.barrier_arrive(free[slot])
                T.copy(c, C[by * 128, bx * 128])

    return gemm


@with_roles
@pytest.mark.parametrize(("stages", "loads"), [(1, "tma"), (3, "tma"), (2, "copy")])
def test_a_ring(target, stages, loads):
    a, b = numbers(128, 320), numbers(256, 320, seed=1)
    check(ring(128, 256, 320, stages, loads), target, (a, b), product(a, b.T))


def test_registers_move():
    source = tw.compile(ring(256, 256, 256, 3), target="cuda").get_kernel_source()
    assert "_registers<40>();" in source and "_registers<232>();" in source


# ── two consumers on halves, a third warpgroup loads ──


def two_consumers(M, N, K, waits):
    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=384) as (bx, by):
            a = T.alloc_shared((2, 2, 64, 64), "float16")
            b = T.alloc_shared((2, 64, 128), "float16")
            upper = T.alloc_fragment((64, 128), "float32")
            lower = T.alloc_fragment((64, 128), "float32")
            full = T.alloc_barrier([128, 128])
            free = T.alloc_barrier([256, 256])
            for k in T.serial(T.ceildiv(K, 64)):
                s = k % 2
                with T.ws(2):
                    T.barrier_wait(free[s], (k // 2 + 1) % 2)
                    for half in T.unroll(2):
                        T.tma_copy(
                            A[by * 128 + half * 64, k * 64], a[s, half, :, :], barrier=full[s]
                        )
                    T.tma_copy(B[k * 64, bx * 128], b[s, :, :], barrier=full[s])
                    T.barrier_arrive(full[s])
                for half, c in enumerate((upper, lower)):
                    with T.ws(half):
                        T.barrier_wait(full[s], k // 2 % 2)
                        if waits:
                            T.wgmma_gemm(a[s, half, :, :], b[s, :, :], c, clear_accum=k == 0)
                            T.wait_wgmma(0)
                        else:
                            T.gemm(a[s, half, :, :], b[s, :, :], c, clear_accum=k == 0)
                        T.barrier_arrive(free[s])
            with T.ws(0):
                T.copy(upper, C[by * 128, bx * 128])
            with T.ws(1):
                T.copy(lower, C[by * 128 + 64, bx * 128])

    return gemm


@with_roles
@pytest.mark.parametrize("waits", [False, True])
def test_two_consumers_on_halves(target, waits):
    a, b = numbers(256, 256), numbers(256, 128, seed=1)
    check(two_consumers(256, 128, 256, waits), target, (a, b), product(a, b))


# ── the seesaw: warpgroups that do different things, and exchange what they found ──


def seesaw(heads, keys, wide=128, depth=64, block=64):
    """O = (Q·Kᵀ)·V. Blocks of keys come in pairs: one warpgroup scores the first of a pair, the
    other the second; each has half of the result's columns, and needs both scores. Each loads what
    it scores."""
    half = wide // 2

    @T.prim_func
    def attention(
        Q: T.Tensor((heads, depth), "float16"), K: T.Tensor((keys, depth), "float16"),
        V: T.Tensor((keys, wide), "float16"), O: T.Tensor((heads, wide), "float32"),
    ):  # fmt: skip
        with T.Kernel(heads // 64, threads=256) as bx:
            q = T.alloc_shared((64, depth), "float16")
            k = [T.alloc_shared((block, depth), "float16") for i in (0, 1)]
            left = [T.alloc_shared((block, half), "float16") for i in (0, 1)]
            right = [T.alloc_shared((block, half), "float16") for i in (0, 1)]
            p = [T.alloc_shared((64, block), "float16") for i in (0, 1)]
            s = [T.alloc_fragment((64, block), "float32") for i in (0, 1)]
            o = [T.alloc_fragment((64, half), "float32") for i in (0, 1)]
            q_full = T.alloc_barrier(256)
            full = T.alloc_barrier([128, 128])
            scored = T.alloc_barrier([128, 128])
            used = T.alloc_barrier([256, 256])
            T.tma_copy(Q[bx * 64, 0], q, barrier=q_full)
            T.barrier_arrive(q_full)
            T.barrier_wait(q_full, 0)
            t = T.get_thread_binding()
            if t < 128:
                T.clear(o[0])
            else:
                T.clear(o[1])
            for n in T.serial(keys // (2 * block)):
                for me in (0, 1):
                    with T.ws(me):
                        T.barrier_wait(used[me], (n + 1) % 2)
                        at = (2 * n + me) * block
                        T.tma_copy(K[at, 0], k[me], barrier=full[me])
                        T.tma_copy(V[at, 0], left[me], barrier=full[me])
                        T.tma_copy(V[at, half], right[me], barrier=full[me])
                        T.barrier_arrive(full[me])
                        T.barrier_wait(full[me], n % 2)
                        T.gemm(q, k[me], s[me], transpose_B=True, clear_accum=True)
                        T.copy(s[me], p[me])
                        T.barrier_arrive(scored[me])
                        mine = left if me == 0 else right
                        for other in (me, 1 - me):
                            T.barrier_wait(full[other], n % 2)
                            T.barrier_wait(scored[other], n % 2)
                            T.gemm(p[other], mine[other], o[me])
                            T.barrier_arrive(used[other])
            for me in (0, 1):
                with T.ws(me):
                    T.copy(o[me], O[bx * 64, me * half])

    return attention


@with_roles
@pytest.mark.parametrize("keys", [128, 384])
def test_a_seesaw(target, keys):
    q, k, v = numbers(64, 64), numbers(keys, 64, seed=1), numbers(keys, 128, seed=2)
    f = np.float32
    expected = (q.astype(f) @ k.astype(f).T) @ v.astype(f)
    check(seesaw(64, keys), target, (q, k, v), expected)


# ── all warps together, between roles ──


def taking_turns(rounds, where):
    """Each round: all warps fill a tile, one warpgroup sums its rows, another its columns."""

    @T.prim_func
    def sums(
        X: T.Tensor((rounds, 64, 64), "float32"), R: T.Tensor((rounds, 64), "float32"),
        C: T.Tensor((rounds, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=256):
            tile = T.alloc_shared((64, 64), "float32")
            rows = T.alloc_fragment((64,), "float32")
            columns = T.alloc_fragment((64,), "float32")
            by_rows = T.alloc_fragment((64, 64), "float32")
            by_columns = T.alloc_fragment((64, 64), "float32")
            seen = T.alloc_barrier(128) if where == "inside" else None
            for n in T.serial(rounds):
                for i, j in T.Parallel(64, 64):
                    tile[i, j] = X[n, i, j] * 2
                with T.ws(0):
                    T.copy(tile, by_rows)
                    if where == "inside":
                        T.barrier_arrive(seen)
                    T.reduce_sum(by_rows, rows, dim=1)
                    T.copy(rows, R[n, :])
                with T.ws(1):
                    T.copy(tile, by_columns)
                    T.reduce_sum(by_columns, columns, dim=0)
                    if where == "inside":
                        T.barrier_wait(seen, n % 2)
                        T.clear(tile)
                    T.copy(columns, C[n, :])

    return sums


@pytest.mark.parametrize(
    ("target", "where"),
    [
        pytest.param(*p.values, where, marks=p.marks, id=f"{p.id}-{where}")
        for targets, where in ((PLACED, "nowhere"), (ROLES, "inside"))
        for p in (t if not isinstance(t, str) else pytest.param(t, id=t) for t in targets)
    ],
)
def test_all_warps_between_roles(target, where):
    x = numbers(3, 64, 64, dtype=np.float32)
    check(taking_turns(3, where), target, (x,), 2 * x.sum(2), 2 * x.sum(1))


def test_no_warp_passes_over_a_role_of_its_own():
    """Roles in a row are branches of one chain only where no warp has two of them."""
    source = tw.compile(taking_turns(3, "inside"), target="cuda").get_kernel_source()
    heads = [line.strip() for line in source.splitlines() if "// role" in line]
    assert heads == [
        "if (warp < 8) {  // role warps0",
        "if (warp < 4) {  // role warps0",
        "} else if (warp >= 4 && warp < 8) {  // role warps4",
    ]


# ── placement without barriers ──


def halves(M, N, K, stages):
    @T.prim_func
    def gemm(
        A: T.Tensor((M, K), "float16"), B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(N, 128), T.ceildiv(M, 128), threads=256) as (bx, by):
            a = T.alloc_shared((128, 64), "float16")
            b0 = T.alloc_shared((64, 64), "float16")
            b1 = T.alloc_shared((64, 64), "float16")
            c0 = T.alloc_fragment((128, 64), "float32")
            c1 = T.alloc_fragment((128, 64), "float32")
            with T.ws(1):
                T.clear(c1)
            with T.ws(0):
                T.clear(c0)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                T.copy(A[by * 128, k * 64], a)
                with T.ws(1):
                    T.copy(B[k * 64, bx * 128], b1)
                    T.gemm(a, b1, c1)
                with T.ws(0):
                    T.copy(B[k * 64, bx * 128 + 64], b0)
                    T.gemm(a, b0, c0)
            with T.ws(1):
                T.copy(c1, C[by * 128, bx * 128])
            with T.ws(0):
                T.copy(c0, C[by * 128, bx * 128 + 64])

    return gemm


@with_placement
@pytest.mark.parametrize("stages", [0, 2])
def test_halves_without_barriers(target, stages):
    a, b = numbers(128, 160), numbers(160, 192, seed=1)
    check(halves(128, 192, 160, stages), target, (a, b), product(a, b))


def test_halves_run_on_their_own_warps():
    source = tw.compile(halves(128, 128, 128, 0), target="cuda").get_kernel_source()
    first, second = source.split("} else if (warp >= 4 && warp < 8) {")
    own = first[first.index("if (warp < 4) {") :]
    assert "(c0, " in own and "(c1, " not in own
    assert "(c1, " in second and "(c0, " not in second


def passed_on():
    """A fragment of one warpgroup that another reads, and a variable that all know."""

    @T.prim_func
    def program(
        X: T.Tensor((4, 64, 64), "float32"), Y: T.Tensor((4, 64, 64), "float32"),
        Z: T.Tensor((4, 64), "float32"),
    ):  # fmt: skip
        with T.Kernel(1, threads=384):
            f = T.alloc_fragment((64, 64), "float32")
            g = T.alloc_fragment((64, 64), "float32")
            m = T.alloc_fragment((64,), "float32")
            count = T.alloc_var("int32", init=1)
            for n in T.serial(4):
                with T.ws(0):
                    T.copy(X[n, :, :], f)
                    T.reduce_sum(f, m, dim=1)
                count = count + n
                with T.ws(1, 2):
                    for i, j in T.Parallel(64, 64):
                        g[i, j] = f[i, j] + m[i] * count
                    T.copy(g, Y[n, :, :])
                T.copy(m, Z[n, :])

    return program


@with_placement
def test_fragments_are_passed_on(target):
    x = numbers(4, 64, 64, dtype=np.float32)
    z = x.sum(2)
    y = x + z[:, :, None] * np.array([1, 2, 4, 7])[:, None, None]
    check(passed_on(), target, (x,), y.astype(np.float32), z)


def test_explain_says_where_things_run():
    told = str(tw.compile(passed_on(), target="cuda").explain())
    assert "placement: warpgroup 0; warpgroups 1, 2: all warps meet at" in told
    assert "in shared memory: several warpgroups touch them: f, m" in told


# ── machine code ──


@pytest.mark.parametrize(
    "program",
    [
        pytest.param(lambda: producer_consumer(512, 512, 512, 0), id="producer"),
        pytest.param(lambda: ring(512, 512, 512, 4), id="ring"),
        pytest.param(lambda: two_consumers(512, 512, 512, True), id="two_consumers"),
        pytest.param(lambda: seesaw(128, 512), id="seesaw"),
        pytest.param(lambda: taking_turns(3, "inside"), id="turns"),
        pytest.param(lambda: halves(512, 512, 512, 0), id="halves"),
        pytest.param(passed_on, id="passed_on"),
    ],
)
def test_machine_code_without_spills(program):
    found = compiles(program())
    assert found["spill_bytes"] == 0 and found["local_bytes"] == 0
    assert found["registers"] > 32  # there is code


def test_chips_without_such_barriers_say_so():
    with pytest.raises(tw.CompileError, match="not compiled for sm_80") as caught:
        tw.compile(producer_consumer(128, 128, 128, 0), target="cuda -arch=sm_80")
    assert caught.value.loc.line and "T.ws alone" in str(caught.value)


# ── what is derived is needed ──


@pytest.mark.parametrize(
    ("program", "inputs", "outputs"),
    [
        pytest.param(
            lambda: ring(128, 128, 192, 2, "copy"),
            [(128, 192), (128, 192)],
            [(128, 128)],
            id="ring",
        ),
        pytest.param(lambda: taking_turns(3, "nowhere"), [(3, 64, 64)], [(3, 64)] * 2, id="turns"),
    ],
)
def test_every_dropped_synchronisation_shows(program, inputs, outputs):
    lowered = lower(program().program, CHIP).result
    kinds = [p.dtype.numpy for p in lowered.tensors]
    names = [p.name for p in lowered.tensors]
    given = [numbers(*s, dtype=k) for s, k in zip(inputs, kinds, strict=False)]
    taken = [np.zeros(s, k) for s, k in zip(outputs, kinds[len(inputs) :], strict=True)]

    def run(program):
        args = {n: a.copy() for n, a in zip(names, [*given, *taken], strict=True)}
        machine.run_threads(program, args, seed=1)
        return [args[n] for n in names[len(inputs) :]]

    want, survivors = run(lowered), []
    for index, op in enumerate(sync_ops(lowered)):
        try:
            if not all(map(np.array_equal, run(without(lowered, index)), want)):
                continue
        except tw.TilewrightError:
            continue
        survivors.append(print_op(op).strip())
    assert survivors == []


# ── one warpgroup, or two, loads and multiplies by itself ──


@with_placement
@pytest.mark.parametrize("places", [(0,), (1,), (0, 1)])
def test_placed_loads_wait_for_the_products_before(target, places):
    M, K, steps = 64 * len(places), 64, 3

    @T.prim_func
    def gemm(
        A: T.Tensor((M, K * steps), "float16"), B: T.Tensor((K * steps, 64), "float16"),
        C: T.Tensor((M, 64), "float16"),
    ):  # fmt: skip
        with T.Kernel(1, threads=384):
            a = T.alloc_shared((M, K), "float16")
            b = T.alloc_shared((K, 64), "float16")
            c = T.alloc_fragment((M, 64), "float32")
            with T.ws(*places):
                T.clear(c)
                for k in T.serial(steps):
                    T.copy(A[0, k * K], a)
                    T.copy(B[k * K, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, C)

    A, B = numbers(M, K * steps), numbers(K * steps, 64, seed=1)
    check(gemm, target, (A, B), product(A, B))
