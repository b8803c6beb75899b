"""Runs a program's text on the CPU target and in the interpreter, on the same arguments. Where a
test compares the two, `conftest.py` puts other roads in the CPU's place."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.dtype import dtype
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.machine.run import run
from tilewright.runtime.backends import build
from tilewright.support.errors import CompileError

CPU = Target.parse("cpu")
ROAD = CPU
# What CUDA refuses, and says so: types and atomics that the hardware has not, elements of fragments
# and of packed rows one by one, reductions of part of a warp.
REFUSED = (
    "has no CUDA form",
    "is written element by element",
    "is read outside a tile op",
    "all lanes of a warp take part",
    "there is no atomic",
)


def compiled(text):
    return build(parse_program(text), CPU)


def both(text, args):
    """(the road's arrays, interpreter's arrays) after one call each."""
    program = parse_program(text)
    copies = [
        {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()} for _ in range(2)
    ]
    made = built(program)
    made(copies[0])
    run(program, copies[1])
    return copies


def built(program):
    try:
        return build(program, ROAD)
    except CompileError as error:
        if ROAD.kind == "cpu" or not any(words in error.message for words in REFUSED):
            raise
        pytest.skip(error.message)


def check(text, args, rtol=0.0, atol=0.0):
    """Both agree, NaN included; returns the road's arrays."""
    cpu, ref = both(text, args)
    for name, value in cpu.items():
        if isinstance(value, np.ndarray):
            got, want = (np.asarray(a[name]).astype(np.float64) for a in (cpu, ref))
            np.testing.assert_allclose(got, want, rtol=rtol, atol=atol, err_msg=name)
    return cpu


def draw(shape, kind="float32", seed=0, low=None, high=None):
    """Random elements of a type: normal floats, small or given integers, coin flips."""
    rng = np.random.default_rng(seed)
    found = dtype(kind)
    if found.is_bool:
        return rng.integers(0, 2, shape).astype(bool)
    if found.is_float and low is None:
        return rng.standard_normal(shape).astype(np.float32).astype(found.numpy)
    if found.is_float:
        return rng.uniform(low, high, shape).astype(np.float32).astype(found.numpy)
    low = max(int(found.min_value), -50) if low is None else low
    high = min(int(found.max_value), 50) if high is None else high
    return rng.integers(low, high, shape, endpoint=True).astype(found.numpy)
