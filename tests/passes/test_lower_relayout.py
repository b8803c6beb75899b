"""Fragments spread anew: what it costs, how it is done, and what is refused."""

import numpy as np
import pytest

from tests.cuda.plain_programs import RELAYOUTS, kernel
from tilewright.ir.buffer import Space
from tilewright.ir.dtype import DTYPES, FLOAT32
from tilewright.ir.layout.fragment import repeat, spatial, wgmma_accumulator
from tilewright.ir.op import Alloc, Intrinsic, Sync, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.layout.thread_layouts import coalesced
from tilewright.passes.lower.relayout import plan_relayout, relayout_cost
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import CompileError


def lowered(body, params="param C: float32[64, 32] global"):
    program = parse_program(kernel(body, params), "p.tw")
    return run_pipeline(program, Target.parse("cuda"), LOWER, stage=Stage.LAID_OUT).result


def test_each_kind_is_found():
    kinds = {name: relayout_cost(*pair, FLOAT32)[0] for name, pair in RELAYOUTS.items()}
    assert kinds == {
        "transposed": "registers", "quads": "shuffle", "pairs": "shuffle", "rows": "shared",
        "cropped": "shared", "replicas": "shared", "to_replicas": "shared", "warp": "shuffle",
        "mma": "shared", "registers": "registers",
    }  # fmt: skip


@pytest.mark.parametrize("name", list(RELAYOUTS))
def test_plans_name_the_elements(name):
    src, dst = RELAYOUTS[name]
    steps = plan_relayout(src, dst)
    if steps is None:
        return
    number = np.arange(src.threads)
    for k, step in enumerate(steps):
        lane = number % 32 if step.lane is None else np.array(step.lane)
        got = src.table()[number // 32 * 32 + lane, np.array(step.register)]
        need = dst.table()[:, k]
        np.testing.assert_array_equal(got[need >= 0], need[need >= 0])


def test_costs_grow_with_the_type_and_a_trip_costs_more_than_nothing():
    a, b = RELAYOUTS["quads"]
    assert relayout_cost(a, b, DTYPES["float64"])[1] > relayout_cost(a, b, FLOAT32)[1]
    assert relayout_cost(a, a, FLOAT32) == ("registers", a.values)


def test_syncs_of_the_scratch():
    """One in front of the reads; another only where a scratch was read before."""
    one, other = wgmma_accumulator(64, 32), coalesced((64, 32), 128, 4)
    body = f"""
    alloc f: float32[64, 32] fragment layout="{one!r}"
    alloc g: float32[64, 32] fragment layout="{other!r}"
    fill f = 1.0
    relayout f -> g
    relayout g -> f
    copy f -> C atom=threads
    """
    ops = list(walk_ops(lowered(body).kernels[0]))
    assert sum(isinstance(op, Sync) for op in ops) == 3
    assert sum(isinstance(op, Alloc) and op.buffer.space is Space.SHARED for op in ops) == 2
    assert not any(isinstance(op, Intrinsic) and op.name.startswith("shfl") for op in ops)


def test_what_cannot_be_done_in_registers_is_refused():
    one, other = wgmma_accumulator(64, 32), coalesced((64, 32), 128, 4)
    body = f"""alloc f: float32[64, 32] fragment layout="{one!r}"
    alloc g: float32[64, 32] fragment layout="{other!r}"
    fill f = 1.0
    relayout f -> g via=shuffle
    """
    with pytest.raises(CompileError, match="do not hold what they need of f") as error:
        lowered(body)
    assert error.value.loc is not None and error.value.loc.line == 7


REFUSED = {
    "no view of the registers": 'view w: float32[32, 64] fragment layout="'
    + repr(spatial(32, 4) * repeat(1, 16)) + '" of f',
    "stored to outside a tile op": "f[0, tx % 32] = 1.0",
    "is read outside a tile op": "C[0, 0] = f[0, 0]",
    "no atomic xor of float32": "atomic xor C[0:+1, 0:+1] value=1.0",
    "all lanes of a warp take part":
        "if tx < 3 { intrinsic warp_reduce_sum (tx) result=x: int32 }",
    "are no threads": f'map (i, j) in (64, 32) layout="{wgmma_accumulator(64, 32)!r}" '
    + "{ intrinsic shfl_xor (i, 1) result=x: int32 }",
    "has no address": 'intrinsic call_extern (&f[0:+1, 0:+1]) text="g"',
}  # fmt: skip


@pytest.mark.parametrize("message", list(REFUSED))
def test_refusals_say_the_line(message):
    layout = wgmma_accumulator(64, 32)
    body = f'alloc f: float32[64, 32] fragment layout="{layout!r}"\nfill f = 1.0\n'
    with pytest.raises(CompileError, match=message) as error:
        lowered(body + REFUSED[message])
    assert error.value.loc is not None and error.value.loc.line == 6
