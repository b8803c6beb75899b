"""What random schedules found, as small kernels."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from devtools.schedules.run import Recipe, judge, scheduled
from tilewright import machine
from tilewright.ir.target import Target


def test_a_slot_is_handed_back_when_its_store_has_read_it():
    """The second loop lacks the `wait_group bulk … read=true` that a single loop has there."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 64, 16), "bfloat16"), C: T.Tensor((4, 64, 16), "bfloat16"), n: T.int32
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((64, 16), "bfloat16")
            f = T.alloc_fragment((64, 16), "bfloat16")
            T.clear(f)
            for k in T.Pipelined(n, num_stages=4):
                T.copy(A[k, 0, 0], a)
                T.copy(a, f)
            for k in T.Pipelined(n, num_stages=2):
                T.copy(A[k, 0, 0], a)
                T.copy(a, C[k, 0, 0])

    a = np.arange(4 * 64 * 16).reshape(4, 64, 16) % 100
    found = scheduled(main.program, Target.parse("cuda -roles=on"))
    for seed in range(4):
        args = {"A": a.astype(main.program.tensors[0].dtype.numpy), "n": 4}
        args["C"] = np.zeros_like(args["A"])
        machine.run(found, args, seed=seed, explicit=True)
        assert args["C"].tobytes() == args["A"].tobytes()


@pytest.mark.parametrize(
    "program",
    [
        "tiles(seed=16)",  # a kernel reads what a bulk store of the one before wrote
        "tiles(seed=36)",  # a reduction folds into shared memory
        "tiles(seed=73552)",  # a scan in place
        "rings(seed=587741)",  # a view that turns its source over
    ],
)
def test_the_interpreter_accuses_nobody_who_is_right(program):
    assert judge(Recipe(program, "cuda", seed=1)).verdict.kind == "ok"
