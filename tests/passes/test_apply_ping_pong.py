"""Warpgroups with tiles of their own: the same numbers in any interleaving, what keeps a kernel
from it, and what comes of an order that is lost."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

import tilewright.language as T
from devtools.schedules.run import scheduled
from tilewright import machine
from tilewright.ir.layout.fragment import repeat, spatial
from tilewright.ir.op import Arrive, Program, Role, Wait, walk_ops
from tilewright.ir.rewrite import map_body, map_kernels, rebuild
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.overlap.ping_pong import ABOUT
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import RunError
from tilewright.targets.cuda.backend import lower

DEALT = Target.parse("cuda -arch=sm_90a -ping_pong -roles=on -persistent=on")
AUTO = Target.parse("cuda -arch=sm_90a")
GOLDEN = Path(__file__).parent / "golden/ping_pong_gemm.tw"


def product(M, N, K, block=(64, 32, 16), threads=256, stages=3, epilogue="relu", loops="grid"):
    """A product with one of several endings, over tiles of the grid or of `T.Persistent`."""
    bm, bn, bk = block
    said = {} if stages is None else {"num_stages": stages}

    @T.macro
    def tile(A, B, C, A_s, B_s, C_f, by, bx):
        T.clear(C_f)
        for ko in T.Pipelined(T.ceildiv(K, bk), **said):
            T.copy(A[by * bm, ko * bk], A_s)
            T.copy(B[ko * bk, bx * bn], B_s)
            T.gemm(A_s, B_s, C_f)

    @T.macro
    def end(A, C, C_f, by, bx):
        if epilogue == "columns":  # warps tell each other what they have
            total = T.alloc_fragment((bn,), "float32")
            T.reduce_sum(C_f, total, dim=0)
            for i, j in T.Parallel(bm, bn):
                C_f[i, j] = C_f[i, j] + total[j]
        elif epilogue == "sums":  # several elements at a time
            sums = T.alloc_fragment((bm, bn), "float32")
            T.cumsum(C_f, sums, dim=0)
            T.copy(sums, C_f)
        elif epilogue == "spread":  # over all threads, as the text says
            rows = T.alloc_fragment((bm, bn), "float32")
            T.annotate_layout({rows: repeat(bm // 8, 1) * spatial(8, bn)})
            T.copy(C_f, rows)
            T.copy(rows, C_f)
        elif epilogue == "view":  # of a tile of the consumers' own
            C_s = T.alloc_shared((bm, bn), "float32")
            line = T.view(C_s, (bm * bn,))
            T.copy(C_f, C_s)
            for i, j in T.Parallel(bm, bn):
                C_f[i, j] = line[bm * bn - 1 - i * bn - j]
        elif epilogue == "shared":  # a tile of the consumers' own
            C_s = T.alloc_shared((bm, bn), "float32")
            T.annotate_layout({C_s: T.make_swizzled_layout(C_s)})
            T.copy(C_f, C_s)
            for i, j in T.Parallel(bm, bn):
                C_f[i, j] = C_s[bm - 1 - i, j]
        elif epilogue == "loaded":  # into such a tile, for some tiles of the result only
            D_s = T.alloc_shared((bm, bn), "float16")
            if bx > 0:
                T.copy(A[by * bm, 0], D_s)
            else:
                T.clear(D_s)
            for i, j in T.Parallel(bm, bn):
                C_f[i, j] = C_f[i, j] + D_s[i, j]
        elif epilogue == "residual":  # which threads load themselves
            for i, j in T.Parallel(bm, bn):
                C_f[i, j] = C_f[i, j] + A[by * bm + i, j]
        else:
            for i, j in T.Parallel(bm, bn):
                C_f[i, j] = T.max(C_f[i, j], 0)
        T.copy(C_f, C[by * bm, bx * bn])

    @T.prim_func
    def main(
        A: T.Tensor((M, K), "float16"),
        B: T.Tensor((K, N), "float16"),
        C: T.Tensor((M, N), "float16"),
    ):
        if loops == "grid":
            with T.Kernel(T.ceildiv(N, bn), T.ceildiv(M, bm), threads=threads) as (bx, by):
                A_s = T.alloc_shared((bm, bk), "float16")
                B_s = T.alloc_shared((bk, bn), "float16")
                C_f = T.alloc_fragment((bm, bn), "float32")
                tile(A, B, C, A_s, B_s, C_f, by, bx)
                end(A, C, C_f, by, bx)
        else:
            with T.Kernel(2, threads=threads) as block_id:
                A_s = T.alloc_shared((bm, bk), "float16")
                B_s = T.alloc_shared((bk, bn), "float16")
                C_f = T.alloc_fragment((bm, bn), "float32")
                for by, bx in T.Persistent(
                    [T.ceildiv(M, bm), T.ceildiv(N, bn)], wave_size=2, index=block_id, group_size=2
                ):
                    tile(A, B, C, A_s, B_s, C_f, by, bx)
                    end(A, C, C_f, by, bx)

    return main.program


def arguments(M, N, K):
    rng = np.random.default_rng(7)
    A, B = (rng.integers(-3, 4, shape).astype(np.float16) for shape in ((M, K), (K, N)))
    return {"A": A, "B": B, "C": np.full((M, N), 9, np.float16)}


def result(program: Program, sizes, seed=0, threads=False, **how):
    args = arguments(*sizes)
    (machine.run_threads if threads else machine.run)(program, args, seed=seed, **how)
    return args["C"]


def consumer(program: Program) -> Role:
    return next(
        op for op in walk_ops(program.kernels[0]) if isinstance(op, Role) and op.name == "consumer"
    )


CASES = {
    "relu": {},
    "three warpgroups": {"threads": 384},
    "one warpgroup in the text": {"threads": 128},
    "a tile of their own": {"epilogue": "shared"},
    "a tile of their own, loaded": {"epilogue": "loaded"},
    "warps exchange": {"epilogue": "columns", "block": (128, 32, 16)},
    "warps exchange vectors": {"epilogue": "sums"},
    "walked by hand": {"loops": "persistent"},
}
SIZES = [(256, 96, 64), (130, 40, 16), (320, 33, 112)]


@pytest.mark.parametrize("how", CASES.values(), ids=CASES)
@pytest.mark.parametrize("sizes", SIZES, ids=lambda s: "x".join(map(str, s)))
def test_the_same_numbers(sizes, how):
    given = product(*sizes, **how)
    found = scheduled(given, DEALT, 2)
    assert consumer(found).instances == max(2, how.get("threads", 256) // 128)
    want = result(given, sizes)
    for seed in range(3):
        assert result(found, sizes, seed, explicit=True).tobytes() == want.tobytes()
    code = run_pipeline(found, DEALT, LOWER, stage=Stage.LAID_OUT).result
    assert result(code, sizes, 1, threads=True).tobytes() == want.tobytes()


def test_golden():
    text = print_program(scheduled(product(256, 64, 96), DEALT.choosing(stages="text"), 2))
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        GOLDEN.write_text(text, encoding="utf-8")
    assert text == GOLDEN.read_text(encoding="utf-8")


@pytest.mark.parametrize("lost", [Wait, Arrive])
def test_a_lost_order_is_noticed(lost):
    sizes = (256, 96, 112)
    found = scheduled(product(*sizes), DEALT, 2)

    def without(kernel):
        def rule(op):
            order = isinstance(op, lost) and op.barrier.buffer.name == "order"
            return () if order else None

        return rebuild(kernel, body=map_body(kernel.body, rule))

    broken = map_kernels(found, without)
    with pytest.raises(RunError):
        for seed in range(8):
            result(broken, sizes, seed, explicit=True)


def test_a_layout_for_all_threads_of_the_text():
    sizes = SIZES[0]
    given = product(*sizes, epilogue="spread")
    found = scheduled(given, DEALT, 2)
    assert consumer(found).instances == 1
    code = run_pipeline(found, DEALT, LOWER, stage=Stage.LAID_OUT).result
    assert result(code, sizes, threads=True).tobytes() == result(given, sizes).tobytes()


def test_a_view_of_a_tile_of_their_own():
    sizes = SIZES[0]
    given = product(*sizes, epilogue="view")
    found = scheduled(given, DEALT, 2)
    assert result(found, sizes, explicit=True).tobytes() == result(given, sizes).tobytes()
    assert consumer(found).instances == 1  # one view cannot show several tiles


def told(program: Program, target: Target) -> str:
    return lower(program, target).reasons[program.kernels[0].name, ABOUT]


def wide(**how):
    return product(8192, 8192, 512, **{"block": (128, 128, 64), "stages": 4, **how})


AGAINST = {
    "no second tile": lambda: (product(512, 512, 512, (128, 128, 64)), AUTO),
    "blocks are not persistent, so there is no second tile": lambda: (
        wide(block=(32, 96, 64), threads=256),
        AUTO,
    ),
    "192 registers per thread, 152": lambda: (
        wide(block=(128, 192, 64), epilogue="residual"),
        AUTO,
    ),
    "256 registers": lambda: (wide(block=(128, 256, 64)), AUTO),
    "two blocks fit": lambda: (wide(threads=128, stages=3), AUTO),
    "no producer": lambda: (wide(), DEALT.choosing(roles=False)),
    "bytes of shared memory": lambda: (wide(epilogue="shared"), AUTO),
    "no instruction for a whole tile": lambda: (
        wide(block=(128, 128, 8), threads=256),
        AUTO,
    ),
}


@pytest.mark.parametrize("why", AGAINST)
def test_what_is_said_against_it(why):
    program, target = AGAINST[why]()
    trace = lower(program, target)
    assert ("main", "given up") not in trace.reasons
    said = trace.reasons["main", ABOUT]
    assert said.startswith("no: ") and why in said


@pytest.mark.parametrize(
    "how", [{}, {"threads": 128}, {"threads": 128, "stages": None}, {"block": (128, 192, 64)}]
)
def test_chosen_where_it_pays(how):
    assert told(wide(**how), AUTO).startswith("2 warpgroups, each with tiles of its own")


def carried():
    @T.prim_func
    def main(A: T.Tensor((256, 64), "float16"), C: T.Tensor((256, 64), "float32")):
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((64, 64), "float16")
            sums = T.alloc_fragment((64, 64), "float32")
            T.clear(sums)
            for i in T.Persistent([4], wave_size=1, index=0, group_size=1):
                for k in T.Pipelined(1, num_stages=2):
                    T.copy(A[i * 64, 0], A_s)
                    T.gemm(A_s, A_s, sums)
                T.copy(sums, C[i * 64, 0])

    return main.program


def test_a_sum_over_tiles_stays_in_order():
    assert "no: sums may keep something from tile to tile" in told(carried(), DEALT)


def handing_on(how: str):
    """Tiles that a text walks over in order, each with something from the one before."""

    @T.prim_func
    def main(
        A: T.Tensor((256, 64), "float16"),
        B: T.Tensor((64, 32), "float16"),
        C: T.Tensor((256, 32), "float16"),
    ):
        with T.Kernel(1, threads=256):
            A_s = T.alloc_shared((64, 16), "float16")
            B_s = T.alloc_shared((16, 32), "float16")
            kept = T.alloc_shared((64, 32), "float32")
            C_f = T.alloc_fragment((64, 32), "float32")
            for i in T.Persistent([4], wave_size=1, index=0, group_size=1):
                T.clear(C_f)
                for k in T.Pipelined(4, num_stages=2):
                    T.copy(A[i * 64, k * 16], A_s)
                    T.copy(B[k * 16, 0], B_s)
                    T.gemm(A_s, B_s, C_f)
                if how == "shared":
                    for r, c in T.Parallel(64, 32):
                        if i > 0:
                            C_f[r, c] = C_f[r, c] + kept[r, c]
                elif how == "global":
                    for r, c in T.Parallel(64, 32):
                        if i > 0:
                            C_f[r, c] = C_f[r, c] + C[(i - 1) * 64 + r, c]
                for r, c in T.Parallel(64, 32):
                    kept[r, c] = C_f[r, c]
                T.copy(kept, C[i * 64, 0])

    return main.program


@pytest.mark.parametrize("how", ["shared", "global", "nothing"])
def test_tiles_that_hand_something_on_stay_in_order(how):
    given, sizes = handing_on(how), (256, 32, 64)
    found = scheduled(given, DEALT, 1)
    assert consumer(found).instances == (2 if how == "nothing" else 1)
    want = result(given, sizes)
    for seed in range(3):
        assert result(found, sizes, seed, explicit=True).tobytes() == want.tobytes()
