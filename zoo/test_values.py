"""Kernels over tile values that move numbers, and how long the texts are."""

import ast
import inspect
import textwrap

import ml_dtypes
import numpy as np
import pytest

from zoo import values
from zoo.attention import values as attention
from zoo.case import normal, within
from zoo.elementwise import swiglu
from zoo.gemm import values as gemm
from zoo.mla import values as mla

# the most lines that the body of a kernel may take; declarations apart, for the first two
LINES = {
    values.softmax: 6,
    values.layer_norm: 8,
    gemm.matmul: 12,
    gemm.linear: 12,
    gemm.matmul_transposed: 12,
    gemm.matmul_scaled: 16,
    gemm.grouped: 20,
    gemm.convolution: 14,
    attention.attention: 22,
    attention.attention_gradients: 45,
    mla.mla_decode: 40,
}


@pytest.mark.parametrize("kernel", LINES, ids=lambda kernel: kernel.fn.__name__)
def test_texts_are_short(kernel):
    (function,) = ast.parse(textwrap.dedent(inspect.getsource(kernel.fn))).body
    body = function.body[ast.get_docstring(function) is not None :]
    if kernel in (values.softmax, values.layer_norm):
        body = [each for each in body if isinstance(each, ast.For)]
    assert sum(each.end_lineno - each.lineno + 1 for each in body) <= LINES[kernel]


@pytest.mark.parametrize("tiles", [{}, {"n": 32, "m": 16}])
def test_elementwise(target, tiles):
    a, b = (normal(33, 70, dtype=ml_dtypes.bfloat16, seed=s) for s in (1, 2))

    def run(kernel, *args, tiles=tiles):
        return np.asarray(kernel.on(target).with_schedule(tiles=tiles)(*args))

    assert (run(values.transpose, a) == a.T).all()
    within(run(values.swiglu, a, b), swiglu.reference(a, b), 1e-2, 1e-3)
    x, y = normal(1000, seed=1), normal(1000, seed=2)
    assert (run(values.vector_add, x, y, tiles={"n": 32} if tiles else {}) == x + y).all()
