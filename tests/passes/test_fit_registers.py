"""Registers: who gets how many, and what is said of fragments that need more."""

from __future__ import annotations

from typing import Any

import pytest

import tilewright.language as T
from tilewright.ir.op import Gemm, Program, Role, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.overlap.roles import KEPT, handed_over
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower
from zoo.attention.flash import flash_attention
from zoo.gemm.gemm import gemm_relu

ROLES = Target.parse("cuda -arch=sm_90a -roles")


def product(**tile: Any) -> Program:
    program: Program = gemm_relu.prim_func(512, 512, 512, dtype="bfloat16", **tile).program
    return program


@pytest.mark.parametrize("consumers", [1, 2, 3])
def test_shares(consumers: int) -> None:
    """All of a block's registers, as far as threads can use them, and no more."""
    kept, taken = handed_over(consumers, 65536)
    if consumers == 1:
        assert (kept, taken) == (None, None)
        return
    assert kept is not None and taken is not None
    born = 65536 // (128 * (consumers + 1)) // 8 * 8
    assert kept + consumers * taken <= born * (consumers + 1)
    assert kept in KEPT and taken % 8 == 0 and kept < born < taken <= 240
    # what a producer could give besides would not make a unit for each consumer
    assert taken == 240 or min(KEPT) + consumers * (taken + 8) > born * (consumers + 1)


@pytest.mark.parametrize(
    ("threads", "tile", "shares"),
    [(256, {"block_M": 128}, (240, 24)), (384, {"block_M": 192}, (160, 32))],
)
def test_roles_have_them(threads: int, tile: dict[str, int], shares: tuple[int, int]) -> None:
    program = flash_attention.prim_func(
        1, 1, 1, 768, 768, 64, block_N=64, threads=threads, dtype="bfloat16", **tile
    ).program
    lowered = lower(program, ROLES).after("fit_registers")
    roles = [op for op in walk_ops(lowered.kernels) if isinstance(op, Role)]
    assert [(op.name, op.registers) for op in roles] == [
        ("consumer", shares[0]),
        ("producer", shares[1]),
    ]


def test_reasons() -> None:
    trace = lower(product(threads=256, block_N=256, stages=3), ROLES)
    assert trace.reasons["main", "registers"] == "fragments in role consumer take 128 of 240"


@pytest.mark.parametrize(
    "tile",
    [
        {"threads": 128, "block_N": 256, "stages": 2},
        {"threads": 256, "block_M": 256, "block_N": 256, "stages": 2},
    ],
)
def test_accumulators_that_do_not_fit(tile: dict[str, int]) -> None:
    """No compiler is asked whether 256 registers fit into a thread."""
    trace = lower(product(**tile), ROLES)
    (atom,) = {op.atom for op in walk_ops(trace.after("choose_gemms").kernels)
               if isinstance(op, Gemm)}  # fmt: skip
    assert atom == "mma"
    (why,) = {w for w in trace.reasons.values() if w.startswith("not wgmma")}
    assert "C_local 256 (" in why


def test_accumulators_that_live_at_once() -> None:
    program = flash_attention.prim_func(
        1, 1, 1, 512, 512, 128, block_M=128, block_N=128, threads=128, dtype="bfloat16"
    ).program
    (why, *_) = {w for w in lower(program, ROLES).reasons.values() if w.startswith("not wgmma")}
    assert "S 128 (128×128 float32)" in why and "acc 128" in why


def test_fragments_that_do_not_fit() -> None:
    """Each of them would; all together need more than twice what a thread has, and go to local
    memory with a warning."""

    @T.prim_func
    def main(A: T.Tensor((6, 128, 128), "float32"), B: T.Tensor((128, 128), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((128, 128), "float32")
            b = T.alloc_fragment((128, 128), "float32")
            c = T.alloc_fragment((128, 128), "float32")
            d = T.alloc_fragment((128, 128), "float32")
            e = T.alloc_fragment((128, 128), "float32")
            T.copy(A[0, :, :], a)
            T.copy(A[1, :, :], b)
            T.copy(A[2, :, :], c)
            T.copy(A[3, :, :], d)
            T.copy(A[4, :, :], e)
            for i, j in T.Parallel(128, 128):
                a[i, j] = a[i, j] + b[i, j] * c[i, j] + d[i, j] * e[i, j]
            T.copy(a, B)

    (cost,) = lower(main.program, Target.parse("cuda")).costs
    assert "fragments take 640 registers per thread, of 255" in cost.text
    assert "local memory (a 128 (128×128" in cost.text and "and 1 more" in cost.text
    assert cost.loc is not None and cost.kernel == "main"


def test_fragments_that_are_a_mistake() -> None:
    @T.prim_func
    def main(A: T.Tensor((9, 128, 256), "float32"), B: T.Tensor((128, 256), "float32")):
        with T.Kernel(1, threads=128):
            x = T.alloc_fragment((9, 128, 256), "float32")
            y = T.alloc_fragment((128, 256), "float32")
            T.copy(A, x)
            T.reduce_sum(x, y, dim=0)
            T.copy(y, B)

    with pytest.raises(CompileError, match="x does not fit the registers of 128 threads") as caught:
        lower(main.program, Target.parse("cuda"))
    assert caught.value.diagnostic.code == "registers"
