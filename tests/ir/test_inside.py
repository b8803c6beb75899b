"""Indices of tiles that are out of range: refused when that is sure, harmless on the CPU when only
a run can tell."""

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import CompileError
from tilewright.ir.analysis.inside import check_inside

TARGETS = ("interp", "interp -sanitize", "cpu", "cuda")


def kernel(body):
    @T.prim_func
    def main(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(2, threads=128) as bx:
            f = T.alloc_fragment((16,), "float32")
            s = T.alloc_shared((8, 32), "float32")
            T.clear(f)
            T.clear(s)
            body(A, n, bx, f, s)
            T.copy(f, A[0:16])

    return main


@T.macro
def stored(A, n, bx, f, s):
    for i in T.Parallel(64):
        f[i] = 1


@T.macro
def loaded(A, n, bx, f, s):
    for i in T.Parallel(16):
        A[i] = f[i + 1]


@T.macro
def second_index(A, n, bx, f, s):
    for i, j in T.Parallel(8, 32):
        s[i, 2 * j - 32] = 1


@T.macro
def turned(A, n, bx, f, s):
    for i in T.Parallel(16):
        f[14 - i] = 1


@T.macro
def in_a_region(A, n, bx, f, s):
    for k in T.serial(4):
        T.copy(A[0:16], s[k, k * 8 : k * 8 + 16])


@T.macro
def of_the_block(A, n, bx, f, s):
    for j in T.Parallel(32):
        s[bx * 8, j] = 1


@T.macro
def half_guarded(A, n, bx, f, s):
    for i in T.Parallel(64):
        if i < 20:
            f[i] = 1


@T.macro
def in_a_branch_of_the_launch(A, n, bx, f, s):
    if n > 4:
        for i in T.Parallel(32):
            f[i] = 1


@T.macro
def in_a_choice(A, n, bx, f, s):
    for i in T.Parallel(32):
        A[i] = T.if_then_else(i > 3, f[i], 0)


@T.macro
def by_a_remainder(A, n, bx, f, s):
    for i in T.Parallel(64):
        A[i] = f[i % 17]


WRONG = [
    stored, loaded, second_index, turned, in_a_region, of_the_block, half_guarded,
    in_a_branch_of_the_launch, in_a_choice, by_a_remainder,
]  # fmt: skip


@pytest.mark.parametrize("body", WRONG, ids=lambda m: m.__name__)
def test_an_index_that_is_surely_outside_is_refused_on_every_target(body):
    for target in TARGETS:
        with pytest.raises(CompileError, match="is outside dimension") as error:
            tw.compile(kernel(body), target=target)
        assert error.value.diagnostic.code == "index"
        assert "where" in error.value.diagnostic.got
        assert any(tile in error.value.loc.source for tile in ("f[", "s["))


@T.macro
def guarded(A, n, bx, f, s):
    for i in T.Parallel(64):
        if i < 16:
            f[i] = 1


@T.macro
def guarded_by_the_launch(A, n, bx, f, s):
    for i in T.Parallel(64):
        if i < n:
            f[i] = 1


@T.macro
def chosen(A, n, bx, f, s):
    for i in T.Parallel(64):
        A[i] = T.if_then_else((i >= 1) & (i <= 16), f[i - 1], 0)


@T.macro
def wrapped(A, n, bx, f, s):
    for i in T.Parallel(64):
        A[i] = f[i % 16] + s[i // 8, i // 2]


@T.macro
def left_early(A, n, bx, f, s):
    for i in T.serial(64):
        if i >= 16:
            break
        f[i] = 1


@T.macro
def never_run(A, n, bx, f, s):
    for i in T.serial(20, 16):
        f[i] = 1


@T.macro
def last_block_only(A, n, bx, f, s):
    for i in T.Parallel(16):
        if bx * 16 + i < 16:
            f[bx * 16 + i] = 1


@T.macro
def left_in_time(A, n, bx, f, s):
    for i in T.serial(32):
        f[i] = 1
        if i == 15:
            break


@T.macro
def in_a_loop_never_run(A, n, bx, f, s):
    for _ in T.serial(0):
        for i in T.Parallel(64):
            f[i] = 1


RIGHT = [
    guarded, guarded_by_the_launch, chosen, wrapped, left_early, never_run, last_block_only,
    left_in_time, in_a_loop_never_run,
]  # fmt: skip


@pytest.mark.parametrize("body", RIGHT, ids=lambda m: m.__name__)
def test_right_kernels_are_not_accused(body):
    check_inside(kernel(body).program)


def canaries(index):
    """Writes and reads at `index`, known at run time only, between tiles that must not change."""

    @T.prim_func
    def main(I: T.Tensor((4,), "int32"), O: T.Tensor((3, 64), "float32")):
        with T.Kernel(1, threads=64):
            before = T.alloc_shared((64,), "float32")
            middle = T.alloc_shared((16,), "float32")
            after = T.alloc_shared((64,), "float32")
            T.fill(before, 1)
            T.fill(middle, 2)
            T.fill(after, 3)
            for i in T.Parallel(4):
                mine = T.alloc_local((2,), "float32")
                mine[0] = 7
                mine[1] = 7
                if index == "local":
                    mine[I[i]] = 9
                    O[1, 32 + i] = mine[0]
                else:
                    middle[I[i]] = 9
                O[1, 16 + i] = middle[I[i]] if index != "local" else mine[I[i]]
            for i in T.Parallel(16):
                O[1, i] = middle[i]
            T.copy(before, O[0, 0:64])
            T.copy(after, O[2, 0:64])

    return main


@pytest.mark.parametrize("where", ["shared", "local"])
@pytest.mark.parametrize(
    "spots", [(16, 17, 40, 79), (-1, -5, -63, -64), (2**31 - 1, -(2**31), 0, 1)]
)
def test_the_cpu_writes_nothing_beside_a_tile(where, spots):
    o = np.zeros((3, 64), np.float32)
    tw.compile(canaries(where), target="cpu")(np.array(spots, np.int32), o)
    assert np.all(o[0] == 1) and np.all(o[2] == 3)
    size = 16 if where == "shared" else 2
    inside = [0 <= s < size for s in spots]
    assert list(o[1, 16:20] != 0) == inside


def test_a_region_is_moved_inside_on_the_cpu():
    @T.prim_func
    def main(I: T.Tensor((1,), "int32"), O: T.Tensor((1,), "float32")):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((4, 16), "float32")
            f = T.alloc_fragment((1,), "float32")
            T.fill(s, 1)
            row = T.alloc_var("int32", I[0])
            T.reduce_sum(s[row : row + 1, :], f, dim=1)
            T.copy(f, O)

    for row in (0, 3, 4, -1, 100000, -100000):
        o = np.zeros(1, np.float32)
        tw.compile(main, target="cpu")(np.array([row], np.int32), o)
        assert o[0] == 16
