"""Kernels made to break prefetched loads, turning tiles, fetched numbers, staged stores, vector
accesses and chosen stages; each did."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.passes.overlap import AMPERE, HOPPER, ROLES
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import lower

AUTO = Target.parse("cuda -arch=sm_90a")
M, N, K = 384, 128, 128


def arguments(program, **given):
    found = {}
    for k, tensor in enumerate(program.tensors):
        shape = tuple(int(s.value) for s in tensor.shape)
        values = np.random.default_rng(k).integers(-3, 4, shape)
        found[tensor.name] = np.array(given.get(tensor.name, values)).astype(tensor.dtype.numpy)
    return found


def check(program, target, **given):
    """The scheduled program and the thread code leave what the text means."""
    args = arguments(program, **given)

    def run(how, what, **kw):
        copies = {name: array.copy() for name, array in args.items()}
        how(what, copies, **kw)
        return copies

    want = run(machine.run, program)
    trace = lower(program, target)
    scheduled = next(s.program for s in trace if s.name == "order_warpgroups")
    results = [run(machine.run, scheduled, seed=seed, explicit=True) for seed in range(2)]
    results.append(run(machine.run_threads, trace.result))
    for got in results:
        for name, value in want.items():
            np.testing.assert_array_equal(got[name], value, err_msg=name)


# ── lower_vectors ────────────────────────────────────────────────────────────────────────────


def mapped(kind):
    """Maps of one thread block over X, C and D, 64 × 64."""

    @T.prim_func
    def main(
        X: T.Tensor((64, 64), "float16"),
        C: T.Tensor((64, 64), "float16"),
        D: T.Tensor((64, 64), "float16"),
    ):
        with T.Kernel(1, threads=128):
            f = T.alloc_fragment((64, 64), "float16")
            T.copy(X, f)
            if kind == "condition on itself":
                for i, j in T.Parallel(64, 64):
                    if C[i, j] > 0:
                        C[i, j] = X[i, j]
            elif kind == "read before a guarded store":
                for i, j in T.Parallel(64, 64):
                    v = C[i, j]
                    if i < 20:
                        C[i, j] = v * 2
            elif kind == "moved and cleared":
                for i, j in T.Parallel(64, 64):
                    D[i, j] = C[i, j]
                    if i < 20:
                        C[i, j] = 0
            elif kind == "first of two stores changes the condition":
                for i, j in T.Parallel(64, 64):
                    x = X[i, j]
                    if C[i, j] > 0:
                        C[i, j] = 0
                        D[i, j] = x
            elif kind == "first of two stores changes a fragment":
                for i, j in T.Parallel(64, 64):
                    x = C[i, j]
                    if f[i, j] > 0:
                        f[i, j] = 0
                        D[i, j] = x
            elif kind == "written under another name":
                rows = T.reshape(D, (64 * 64,))
                for i, j in T.Parallel(64, 64):
                    rows[i * 64 + j] = X[i, j]
                    C[i, j] = D[i, j] + 1

    return main.program


@pytest.mark.parametrize(
    "kind",
    [
        "condition on itself",
        "read before a guarded store",
        "moved and cleared",
        "first of two stores changes the condition",
        "first of two stores changes a fragment",
        "written under another name",
    ],
)
def test_vector_accesses(kind):
    check(mapped(kind), HOPPER)


# ── multibuffer ────────────────────────────────────────────────────────────────────────────


def multiplied_before(loop):
    """A product reads the tile before it is written again in the same iteration."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 256), "float16"),
        B: T.Tensor((256, 64), "int8"),
        C: T.Tensor((128, 64), "float32"),
        D: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            q = T.alloc_shared((64, 64), "int8")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            d = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            T.clear(d)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], q)
                for i, j in T.Parallel(64, 64):
                    b[i, j] = T.cast(q[i, j], "float16")
                if loop:
                    for t in T.serial(2):
                        T.gemm(a, b, d)
                        for i, j in T.Parallel(64, 64):
                            b[i, j] += T.cast(q[i, j], "float16")
                elif k % 2 == 0:
                    T.gemm(a, b, d)
                    for i, j in T.Parallel(64, 64):
                        b[i, j] = T.cast(q[i, j], "float16") * 3
                T.gemm(a, b, c)
            T.copy(c, C)
            T.copy(d, D)

    return main.program


@pytest.mark.parametrize("loop", [False, True], ids=["guard", "loop"])
@pytest.mark.parametrize("target", [HOPPER, ROLES], ids=["all threads", "producer"])
def test_a_tile_that_is_multiplied_between_its_writes(loop, target):
    check(multiplied_before(loop), target)


def laid_over():
    """Behind the loop another tile takes the bytes of one that products read: two blocks fit."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float16"),
        B: T.Tensor((256, 128), "int8"),
        C: T.Tensor((2, 128, 128), "float32"),
        D: T.Tensor((2, 128, 64), "float16"),
    ):
        with T.Kernel(2, threads=256) as bx:
            a = T.alloc_shared((128, 64), "float16")
            q = T.alloc_shared((64, 128), "int8")
            b = T.alloc_shared((64, 128), "float16")
            s = T.alloc_shared((128, 128), "float32")
            c = T.alloc_fragment((128, 128), "float32")
            T.copy(A, a)
            T.clear(c)
            for k in T.Pipelined(4, num_stages=2):
                T.copy(B[k * 64, 0], q)
                for i, j in T.Parallel(64, 128):
                    b[i, j] = T.cast(q[i, j], "float16")
                T.gemm(a, b, c)
            T.copy(c, s)
            T.copy(s, C[bx, 0, 0])
            for i, j in T.Parallel(128, 64):
                D[bx, i, j] = a[i, 63 - j]

    return main.program


def test_another_tile_in_its_bytes():
    check(laid_over(), HOPPER)


def exchanged(rows=256):
    """Shared memory is full but for what warps exchange in an iteration."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 512), "float16"),
        B: T.Tensor((512, 128), "int8"),
        F: T.Tensor((rows, 64), "float32"),
        C: T.Tensor((128, 128), "float32"),
        G: T.Tensor((rows, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            q = T.alloc_shared((64, 128), "int8")
            e = T.alloc_shared((rows, 64), "float32")
            c = T.alloc_fragment((128, 128), "float32")
            p = T.alloc_fragment((128, 128), "float32")
            T.copy(F, e)
            T.clear(c)
            for k in T.Pipelined(4, num_stages=3):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], q)
                for i, j in T.Parallel(64, 128):
                    b[i, j] = T.cast(q[i, j], "float16")
                T.gemm(a, b, p, clear_accum=True)
                T.gemm(a, b, c)
                for i, j in T.Parallel(128, 128):
                    c[i, j] += p[j, i]
            T.copy(c, C)
            T.copy(e, G)

    return main.program


def test_slots_are_given_up_for_what_warps_exchange():
    lower(exchanged(), AUTO)  # with one slot it fits


def two_depths(first=3, second=2):
    """Two loops of different depths through the same tiles: a ring for each."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 512), "float16"),
        B: T.Tensor((512, 256), "int8"),
        C: T.Tensor((128, 256), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            q = T.alloc_shared((64, 256), "int8")
            b = T.alloc_shared((64, 256), "float16")
            d = T.alloc_shared((64, 256), "float16")
            c = T.alloc_fragment((128, 256), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=first):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], q)
                for i, j in T.Parallel(64, 256):
                    b[i, j] = T.cast(q[i, j], "float16")
                T.gemm(a, b, c)
            for k in T.Pipelined(4, num_stages=second):
                T.copy(A[0, 256 + k * 64], a)
                T.copy(B[256 + k * 64, 0], q)
                for i, j in T.Parallel(64, 256):
                    d[i, j] = T.cast(q[i, j], "float16") * 2
                T.gemm(a, d, c)
            T.copy(c, C)

    return main.program


def test_rings_of_several_depths_are_counted():
    lower(two_depths(), ROLES)  # with one slot of each filled tile it fits


# ── choose_stages ────────────────────────────────────────────────────────────────────────────


def crossed(**stages):
    """A sum of a product and its transpose: warps exchange 64 KiB behind the loop."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 1024), "float16"),
        B: T.Tensor((1024, 128), "float16"),
        C: T.Tensor((128, 128), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            p = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(16, **stages):
                T.copy(A[0, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, p)
            for i, j in T.Parallel(128, 128):
                c[i, j] += p[j, i]
            for i, j in T.Parallel(128, 128):
                p[i, j] += c[j, i]
            T.copy(p, C)

    return main.program


def test_chosen_stages_leave_room_for_what_warps_exchange():
    lower(crossed(num_stages=3), AUTO)
    lower(crossed(), AUTO)


# ── stage_stores ─────────────────────────────────────────────────────────────────────────────


def guarded(kind):
    """A condition that keeps reads inside a fragment, or inside a thread's own array."""

    @T.prim_func
    def main(
        A: T.Tensor((128, 64), "float16"),
        B: T.Tensor((64, 128), "float16"),
        S: T.Tensor((40,), "float32"),
        C: T.Tensor((128, 128), "float16"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            f = T.alloc_fragment((40,), "float32")
            own = T.alloc_local((4,), "float32")
            T.copy(S, f)
            for n in T.serial(4):
                own[n] = n
            T.copy(A, a)
            T.copy(B, b)
            T.gemm(a, b, c, clear_accum=True)
            for i, j in T.Parallel(128, 128):
                if kind == "fragment":
                    if j < 40:
                        C[i, j] = c[i, j] * f[j]
                elif j < 4:
                    C[i, j] = c[i, j] * own[j]

    return main.program


@pytest.mark.parametrize("kind", ["fragment", "array"])
@pytest.mark.parametrize("target", [HOPPER, AMPERE], ids=["sm_90a", "sm_80"])
def test_what_a_condition_keeps_inside(kind, target):
    check(guarded(kind), target)


# ── fetched_scalars and roles ────────────────────────────────────────────────────────────────


def fetching(kind):
    """Tiles from a counter, which is asked for in several ways."""

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        steps: T.Tensor((2,), "int32"),
        counter: T.Tensor((4,), "int32"),
        wide: T.Tensor((1,), "int64"),
        seen: T.Tensor((3,), "int32"),
        C: T.Tensor((M, 64), "float16"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            one = T.alloc_var("int32", 1)
            ones = T.alloc_shared((4,), "int32")
            other = T.reshape(counter, (2, 2))
            for t in T.serial(3):
                T.clear(c)
                if kind == "adds a scalar":
                    one = 1
                    tile = T.atomic_add(counter[0], one, return_prev=True)
                elif kind == "adds what is in shared memory":
                    for i in T.Parallel(4):
                        ones[i] = 1
                    tile = T.atomic_add(counter[0], ones[0], return_prev=True)
                elif kind == "adds what the kernel wrote":
                    steps[0] = 1 - t % 2
                    tile = T.atomic_add(counter[0], steps[0], return_prev=True)
                elif kind == "under another name":
                    tile = T.atomic_add(other[0, 0], 1, return_prev=True)
                else:
                    tile = T.atomic_add(counter[0], 1, return_prev=True)
                for k in T.Pipelined(K // 64, num_stages=2):
                    T.copy(A[tile * 128, k * 64], a)
                    T.copy(B[k * 64, 0], b)
                    T.gemm(a, b, c)
                T.copy(c, C[tile * 128, 0])
                if kind == "looked at":
                    seen[t] = counter[0]
                elif kind == "looked at under another name":
                    seen[t] = other[0, 0]
                elif kind == "two types":
                    T.atomic_add(wide[0], 1, return_prev=True)

    return main.program


@pytest.mark.parametrize(
    "kind",
    [
        "adds a scalar",
        "adds what is in shared memory",
        "adds what the kernel wrote",
        "under another name",
        "looked at",
        "looked at under another name",
        "two types",
    ],
)
def test_a_counter(kind):
    check(fetching(kind), ROLES, counter=[0] * 4, steps=[5, 5])


# ── announce_barriers ────────────────────────────────────────────────────────────────────────


def test_barriers_made_one_after_the_other_is_used():
    @T.prim_func
    def main(A: T.Tensor((128,), "float32"), C: T.Tensor((128,), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((128,), "float32")
            x = T.alloc_barrier(128)
            for i in T.Parallel(128):
                s[i] = A[i]
            T.mbarrier_arrive(x)
            T.mbarrier_wait_parity(x, 0)
            y = T.alloc_barrier(128)
            T.mbarrier_arrive(y)
            T.mbarrier_wait_parity(y, 0)
            for i in T.Parallel(128):
                C[i] = s[127 - i]

    check(main.program, HOPPER)


# ── hoist_views ──────────────────────────────────────────────────────────────────────────────


def test_a_view_whose_shape_a_scalar_says():
    @T.prim_func
    def main(A: T.Tensor((64, 64), "float32"), C: T.Tensor((128, 32), "float32")):
        with T.Kernel(1, threads=128):
            width = T.alloc_var("int32", 64)
            width = 32
            rows = T.view(A, (64 * 64 // width, width))
            for i, j in T.Parallel(128, 32):
                C[i, j] = rows[i, j]

    check(main.program, HOPPER)
