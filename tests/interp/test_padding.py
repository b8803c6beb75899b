"""Elements outside a tensor that a reduction takes for data, and those that it may take."""

from __future__ import annotations

import numpy as np
import pytest

from tilewright.ir.text import parse_program
from tilewright.machine import run

HEAD = "alloc x: float32[16, 64] fragment\nalloc m: float32[16] fragment\n"
COPY = HEAD + "copy X[bx * 16:+16, 0:+64] -> x\n"
OUT = "\ncopy m -> Y[bx * 16:+16]"


def warnings_of(body: str):
    text = (
        "program p {\nparam X: float32[20, 40] global\nparam Y: float32[20] global\n"
        f"kernel k grid bx in 2 threads tx in 32 {{\n{body}\n}}\n}}"
    )
    arrays = {"X": -np.ones((20, 40), np.float32), "Y": np.zeros(20, np.float32)}
    return run(parse_program(text), arrays, sanitize=True).warnings


TAKEN = {
    "a maximum": COPY + "reduce max x -> m dim 1" + OUT,
    "a minimum": COPY + "reduce min x -> m dim 1" + OUT,
    "a maximum over rows": "alloc x: float32[16, 40] fragment\nalloc m: float32[40] fragment\n"
    "copy X[bx * 16:+16, 0:+40] -> x\nreduce max x -> m dim 0\nmap i in 4 { Y[bx * 4 + i] = m[i] }",
    "through a copy": COPY + "alloc s: float32[16, 64] shared\ncopy x -> s\n"
    "alloc y: float32[16, 64] fragment\ncopy s -> y\nreduce max y -> m dim 1" + OUT,
    "through elementwise code": COPY + "map (i, j) in (16, 64) { let v = x[i, j] * 2.0\n"
    "x[i, j] = v + 1.0 }\nreduce max x -> m dim 1" + OUT,
    "loaded by a map": HEAD + "map (i, j) in (16, 64) { x[i, j] = X[bx * 16 + i, j] }\n"
    "reduce max x -> m dim 1" + OUT,
    "a sum of what became of zeros": COPY + "map (i, j) in (16, 64) { x[i, j] = exp(x[i, j]) }\n"
    "reduce sum x -> m dim 1" + OUT,
    "one by one": COPY + "alloc s: float32[16, 64] shared\ncopy x -> s\nmap i in 16 {\n"
    "alloc v: float32 local init=-9.0\nfor j in 0 .. 64 { v = max(v, s[i, j]) }\nm[i] = v }" + OUT,
    "a mean": COPY + "reduce sum x -> m dim 1\nmap i in 16 { m[i] = m[i] / 64.0 }" + OUT,
    "folded in": COPY + "fill m = -9.0\nreduce max x -> m dim 1 clear=false" + OUT,
    "the wrong mask": COPY + "map (i, j) in (16, 64) { x[i, j] = x[i, j] if j < 50 else -9.0 }\n"
    "reduce max x -> m dim 1" + OUT,
    "by atomics": "alloc s: float32[16] shared\nfill s = -9.0\nmap (i, j) in (16, 64) { "
    "atomic max s[i] value=X[bx * 16 + i, j] }\ncopy s -> Y[bx * 16:+16]",
    "a product's columns": "alloc q: float32[32, 64] shared\nalloc s: float32[32, 32] fragment\n"
    "alloc m: float32[32] fragment\ncopy X[0:+32, 0:+64] -> q\nfill s = 0.0\n"
    "gemm q, q -> s transpose_b=true\nreduce max s -> m dim 1\nif bx == 0 { copy m -> Y[0:+32] }",
}


@pytest.mark.parametrize("what", TAKEN)
def test_taken_for_data(what):
    (found,) = warnings_of(TAKEN[what])
    assert found.kind == "padding" and found.diagnostic.loc is not None and found.diagnostic.fix


FINE = {
    "a sum": COPY + "reduce sum x -> m dim 1" + OUT,
    "the largest size": COPY + "reduce absmax x -> m dim 1" + OUT,
    "a mean over what is there": COPY + "reduce sum x -> m dim 1\n"
    "map i in 16 { m[i] = m[i] / 40.0 }" + OUT,
    "chosen away": COPY + "map (i, j) in (16, 64) { x[i, j] = x[i, j] if j < 40 else -9.0 }\n"
    "reduce max x -> m dim 1" + OUT,
    "overwritten": COPY + "map (i, j) in (16, 64) { if j >= 40 { x[i, j] = -9.0 } }\n"
    "reduce max x -> m dim 1" + OUT,
    "never loaded": HEAD + "map (i, j) in (16, 64) { "
    "x[i, j] = X[bx * 16 + i, j] if j < 40 else -9.0 }\nreduce max x -> m dim 1" + OUT,
    "filled before": HEAD + "fill x = -9.0\nmap (i, j) in (16, 40) { "
    "x[i, j] = X[bx * 16 + i, j] }\nreduce max x -> m dim 1" + OUT,
    "rows that do not exist": "alloc x: float32[16, 40] fragment\nalloc m: float32[16] fragment\n"
    "copy X[bx * 16:+16, 0:+40] -> x\nfill m = -9.0\nreduce max x -> m dim 1 clear=false\n"
    "map (i, j) in (16, 40) { x[i, j] = exp(x[i, j] - m[i]) }\nreduce sum x -> m dim 1" + OUT,
    "not below zero": COPY + "map (i, j) in (16, 64) { x[i, j] = abs(x[i, j]) }\n"
    "reduce max x -> m dim 1" + OUT,
    "squares": COPY + "map (i, j) in (16, 64) { x[i, j] = x[i, j] * x[i, j] }\n"
    "reduce max x -> m dim 1" + OUT,
    "one by one, guarded": COPY + "alloc s: float32[16, 64] shared\ncopy x -> s\nmap i in 16 {\n"
    "alloc v: float32 local init=-9.0\nfor j in 0 .. 40 { v = max(v, s[i, j]) }\nm[i] = v }" + OUT,
    "one by one, rows that do not exist": "alloc s: float32[16, 40] shared\n"
    "copy X[bx * 16:+16, 0:+40] -> s\nmap i in 16 {\nalloc v: float32 local init=-9.0\n"
    "for j in 0 .. 40 { v = max(v, s[i, j]) }\nY[bx * 16 + i] = v }",
    "by atomics, columns that do not exist": "alloc s: float32[64] shared\nfill s = -9.0\n"
    "map (i, j) in (16, 64) { atomic max s[j] value=X[i, j] }\n"
    "if bx == 0 { copy s[0:+20] -> Y }",
    "a tile written again": COPY + "map (i, j) in (16, 64) { x[i, j] = float32(i) }\n"
    "reduce max x -> m dim 1" + OUT,
}


@pytest.mark.parametrize("what", FINE)
def test_not_accused(what):
    assert not warnings_of(FINE[what])
