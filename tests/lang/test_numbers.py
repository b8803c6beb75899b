"""What arithmetic a kernel's text stands for: bools, shifts, powers, steps."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.ir.arith import power
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import Call, Cast, Const, Var, binary
from tilewright.support.errors import CompileError, SanitizerError

INT32, INT8, UINT8, BOOL = (dtype(n) for n in ("int32", "int8", "uint8", "bool"))
FLOAT32, FLOAT16 = dtype("float32"), dtype("float16")
MOST, LEAST = 2**31 - 1, -(2**31)


def test_bools_are_integers_in_arithmetic():
    b, x = Var("b", BOOL), Var("x")
    assert str(-b) == "-int32(b)" and (-b).dtype is INT32
    assert abs(b).dtype is INT32 and (b**b).dtype is INT32
    assert str(b << 3) == "int32(b) << 3" and str(x << b) == "x << int32(b)"
    assert (b // b).dtype is INT32 and (b + 1).dtype is INT32


def test_counts_of_shifts_lose_nothing():
    x, n = Var("x", INT8), Var("n")
    assert binary("<<", x, 8) == Const(0, INT8)
    assert str(binary(">>", x, 40)) == "x >> 7"
    assert binary(">>", Var("u", UINT8), 40) == Const(0, UINT8)
    found = binary("<<", x, n)  # 256 is no count of int8
    assert isinstance(found, Cast) and found.dtype is INT8 and found.a.dtype is INT32
    assert binary(">>", -8, Const(40, INT32)) == Const(-1, INT32)


@pytest.mark.parametrize("op, other", [("<<", ">>"), (">>", "<<")])
def test_negative_constant_counts_are_refused(op, other):
    with pytest.raises(CompileError, match="a shift by a negative constant") as caught:
        binary(op, Var("x"), -3)
    assert f"shift the other way: {other} 3" in str(caught.value)


def test_small_powers_are_products():
    x, h, i = Var("x", FLOAT32), Var("h", FLOAT16), Var("i")
    assert str(x**3) == str(power(x, 3.0)) == "x * (x * x)"
    assert str(x**4) == "x * x * (x * x)" and x**1 is x and x**0 == Const(1.0, FLOAT32)
    assert str(x**-1) == "1.0 / x"
    assert str(h**2) == "float16(float32(h) * float32(h))"  # rounded once
    assert str(i**2) == "i * i"
    for left in (x**0.5, x**9, x**-2, x**x, power(2.0, x), i**-1):
        assert isinstance(left, Call) and left.name == "pow"


@T.prim_func
def steps(B: T.Tensor((4,), "int64"), a: T.int32, b: T.int32, s: T.int32):
    with T.Kernel(1, threads=32):
        total = T.alloc_var("int64", init=0)
        count = T.alloc_var("int64", init=0)
        for j in range(a, b, s):
            total = total * 31 + T.cast(j, "int64")
            count += 1
        B[0] = total
        B[1] = count


LOOPS = [
    (10, 0, -3), (0, 10, -3), (0, 10, 3), (10, 0, 3), (5, 5, -1), (MOST - 5, MOST, 2),
    (MOST, MOST - 5, -2), (LEAST + 5, LEAST, -2), (LEAST, MOST, 2**30), (MOST, LEAST, LEAST),
]  # fmt: skip


def folded(loop: range) -> list[int]:
    total = 0
    for j in loop:
        total = (total * 31 + j + 2**63) % 2**64 - 2**63
    return [total, len(loop)]


@pytest.mark.parametrize("target", ["interp", "cpu", "threads"])
def test_run_time_steps_of_either_sign(target):
    kernel = tw.compile(steps, target="cuda" if target == "threads" else target)
    for loop in LOOPS:
        out = np.zeros(4, np.int64)
        if target == "threads":
            thread_code = tw.parse_ir(kernel.ir("lower_threads"))
            given = dict(zip("abs", loop, strict=True))
            tw.machine.run_threads(thread_code, {"B": out, **given})
        else:
            kernel(out, *loop)
        assert out.tolist()[:2] == folded(range(*loop)), loop


@pytest.mark.parametrize("loop", LOOPS[5::2])
def test_constant_steps_at_the_ends_of_the_type(loop):
    a, b, s = loop

    @T.prim_func
    def constant(B: T.Tensor((4,), "int64"), zero: T.int32):
        with T.Kernel(1, threads=32):
            total = T.alloc_var("int64", init=0)
            count = T.alloc_var("int64", init=0)
            for j in range(zero + a, b, s):
                total = total * 31 + T.cast(j, "int64")
                count += 1
            B[0] = total
            B[1] = count

    for target in ("interp", "cpu"):
        out = np.zeros(4, np.int64)
        tw.compile(constant, target=target)(out, 0)
        assert out.tolist()[:2] == folded(range(a, b, s))


def test_a_step_of_zero_has_no_iterations_and_is_reported():
    for target in ("interp", "cpu"):
        out = np.ones(4, np.int64)
        tw.compile(steps, target=target)(out, 0, 10, 0)
        assert out.tolist()[:2] == [0, 0]
    with pytest.raises(SanitizerError, match="zero-step"):
        tw.compile(steps, target="interp -sanitize")(np.ones(4, np.int64), 0, 10, 0)


def test_a_negative_count_is_reported():
    @T.prim_func
    def shifted(A: T.Tensor((32,), "int32"), n: T.int32):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                A[i] = A[i] << n

    with pytest.raises(SanitizerError, match="negative-shift") as caught:
        tw.compile(shifted, target="interp -sanitize")(np.ones(32, np.int32), -1)
    assert caught.value.loc is not None
    tw.compile(shifted, target="interp -sanitize")(np.ones(32, np.int32), 99)
