"""Runs a program's text on the CPU target and in the interpreter, on the same arguments."""

from __future__ import annotations

import numpy as np

from tilewright.interp.run import run
from tilewright.ir.dtype import dtype
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.targets.cpu.backend import compile_program

CPU = Target.parse("cpu")


def compiled(text):
    return compile_program(parse_program(text), CPU)


def both(text, args):
    """(CPU's arrays, interpreter's arrays) after one call each."""
    program = parse_program(text)
    copies = [
        {k: v.copy() if isinstance(v, np.ndarray) else v for k, v in args.items()} for _ in range(2)
    ]
    compile_program(program, CPU)(copies[0])
    run(program, copies[1])
    return copies


def check(text, args, rtol=0.0, atol=0.0):
    """Both agree, NaN included; returns the CPU's arrays."""
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
