"""Roles that an author has placed, split once: every pass after that sees them, and each stage
means what the text means."""

import numpy as np
import pytest

from tests.ports.test_warp_roles import (
    halves,
    numbers,
    passed_on,
    producer_consumer,
    ring,
    taking_turns,
)
from tilewright import machine
from tilewright.ir.op import Fence, Gemm, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.targets.cuda.backend import lower

STAGES = (
    "split_roles", "choose_gemms", "pipeline_loops", "infer_layouts", "choose_copies",
    "insert_syncs",
)  # fmt: skip
HOPPER = Target.parse("cuda -arch=sm_90a")
SPLIT = """\
    fence barrier_init
    sync block
    role warps0 warps 0 + 4 derived=true {
      fill c = 0.0
      for k in 0 .. 2 {
        wait ready phase k % 2
        gemm a, b -> c
        arrive done count=128
      }
      copy c -> C[by * 128:+128, bx * 128:+128]
    }
    role warps4 warps 4 + 4 derived=true {
      for k_1 in 0 .. 2 {
        wait done phase (k_1 + 1) % 2
"""


def test_loops_go_into_each_role():
    trace = lower(producer_consumer(128, 128, 128, 0).program, HOPPER)
    assert SPLIT in print_program(trace.after("split_roles"))
    # one wait for each product, before its role signals that a slot is free
    settled = print_program(trace.after("insert_syncs"))
    assert settled.count("wait_group wgmma pending 0\n        arrive done") == 1
    assert "derived" not in settled


def test_loops_around_joint_roles_stay():
    found = print_program(lower(taking_turns(3, "inside").program, HOPPER).after("insert_syncs"))
    head, body = found.split("for n in 0 .. 3 {", 1)
    assert "role" not in head and body.count("role warps") == 3
    assert body.index("role warps0 warps 0 + 8") < body.index("role warps0 warps 0 + 4")


@pytest.mark.parametrize(
    ("program", "inputs", "outputs"),
    [
        (lambda: producer_consumer(128, 128, 128, 1), [(128, 128), (128, 128)], [(128, 128)]),
        (lambda: ring(128, 128, 192, 2, "copy"), [(128, 192), (128, 192)], [(128, 128)]),
        (lambda: taking_turns(2, "nowhere"), [(2, 64, 64)], [(2, 64), (2, 64)]),
        (lambda: halves(128, 128, 64, 0), [(128, 64), (64, 128)], [(128, 128)]),
        (passed_on, [(4, 64, 64)], [(4, 64, 64), (4, 64)]),
    ],
    ids=["producer", "ring", "turns", "halves", "passed_on"],
)
def test_every_stage_means_the_same(program, inputs, outputs):
    trace = lower(program().program, HOPPER)
    # gemms are waited for last: in between, nothing says when they are over
    waits = any(walk_ops(trace.after("split_roles").kernels[0], Gemm))
    stages = ("split_roles", "insert_syncs") if waits else STAGES
    # nor, once engines load, that what threads read of their tiles has been read
    if any(op.kind == "proxy_async" for op in walk_ops(trace.result.kernels[0], Fence)):
        stages = tuple(stage for stage in stages if stage != "choose_copies")
    tensors = trace.after("split_roles").tensors
    shapes, results = [*inputs, *outputs], [t.name for t in tensors][len(inputs) :]
    found = []
    for stage in stages:
        args = {
            t.name: numbers(*shape, seed=seed, dtype=t.dtype.numpy)
            for seed, (t, shape) in enumerate(zip(tensors, shapes, strict=True))
        }
        machine.run(trace.after(stage), args)
        found.append([args[name] for name in results])
    for stage, got in zip(stages, found, strict=True):
        for one, other in zip(got, found[-1], strict=True):
            np.testing.assert_array_equal(one, other, err_msg=stage)
