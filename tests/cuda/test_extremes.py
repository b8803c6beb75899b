"""Where C++ leaves a result undefined, the emitted text does not: overflow, shifts, quotients."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda import extreme_programs as programs
from tilewright import machine
from tilewright.ir.dtype import DTYPES, dtype
from tilewright.ir.expr import Cast, Var, binary, const
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.emit_expr import Names, print_expr
from tilewright.tools.compare import SIGNED, difference

KINDS = ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"]


def printed(expr):
    return print_expr(expr, Names(), lambda load: "")


def test_sums_of_unknown_numbers_wrap():
    x, y, s = Var("x"), Var("y", dtype("int64")), Var("s", dtype("int16"))
    u, w = Var("u", dtype("uint32")), Var("w", dtype("uint16"))
    assert printed(x + 1) == "tw::wrap_add(x, 1)"
    assert printed(y * 3 - 2) == "tw::wrap_sub(tw::wrap_mul(y, 3ll), 2ll)"
    assert printed(-x) == "tw::wrap_neg(x)" and printed(abs(x)) == "tw::wrap_abs(x)"
    assert printed(u + 1) == "u + 1u" and printed(s + 1) == "int16_t(s + 1)"
    assert printed(w * w) == "uint16_t(uint32_t(w) * w)"  # int would overflow


def test_sums_in_an_index_do_not():
    x = Var("x")
    inner = binary("//", x * 3, 2)

    def index(e):
        return print_expr(e, Names(), lambda load: "", index=True)

    assert index(x * 8 + 1) == "x * 8 + 1"
    assert index(inner + 1) == "(tw::wrap_mul(x, 3) >> 1) + 1"  # but what is divided does


def test_shifts():
    x, n, u = Var("x"), Var("n"), Var("u", dtype("uint32"))
    assert printed(x >> 3) == "x >> 3" and printed(u << 3) == "u << 3u"
    assert printed(x << 3) == "int(uint32_t(x) << 3)"
    assert printed(x << n) == "tw::shift_left<int>(x, n)"
    assert printed(x >> n) == "tw::shift_right<int>(x, n)"
    low = Var("b", dtype("int8"))
    assert printed(low << low) == "tw::shift_left<int8_t>(b, b)"


def test_quotients_that_overflow():
    x, n = Var("x"), Var("n")
    assert printed(x // 3) == "tw::floor_div(x, 3)"
    assert printed(x // -1) == "tw::wrap_floor_div(x, -1)"
    assert printed(x % n) == "tw::wrap_floor_mod(x, n)"


def test_conversions_round_once():
    y, d = Var("y", dtype("int64")), Var("d", dtype("float64"))
    assert printed(Cast(DTYPES["bfloat16"], y)) == "tw::to_bfloat16(int64_t(y))"
    assert printed(Cast(DTYPES["float8_e4m3fn"], d)) == "tw::to_float8_e4m3fn(d)"


def test_a_negative_zero_is_no_decrement():
    assert printed(-(const(-0.0) * Var("f", DTYPES["float32"]))) == "-(-0.0f * f)"
    assert printed(Var("f", DTYPES["float32"]) - const(-0.0)) == "f - -0.0f"


def test_overflow_is_not_assumed_away():
    ptx = tw.compile(programs.integers("int32"), target="cuda").ptx
    assert "2147483647" in ptx  # the comparison is made
    assert re.search(r"shl\.b32\s+%r\d+, %r\d+, 1;\s*shr\.s32\s+%r\d+, %r\d+, 1;", ptx)


@pytest.mark.parametrize("kind", ["int8", "int64", "uint16"])
def test_integers_compile(kind):
    assert "st.global" in tw.compile(programs.integers(kind), target="cuda").ptx


@pytest.mark.parametrize("arch", ["sm_80", "sm_90a"])
def test_conversions_compile(arch):
    ptx = tw.compile(programs.conversions, target=f"cuda -arch={arch}").ptx
    assert "cvt.rz.f32.f64" in ptx  # to odd, on the way to fp8


def test_a_stride_that_needs_64_bits():
    @T.prim_func
    def far(A: T.Tensor((3, 70000, 70000), "int8")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(32):
                A[2, 5, i] = 1

    source = tw.compile(far, target="cuda").get_kernel_source()
    assert re.search(r"(?<!int64_t\(1\) \* )70000 \* 70000", source) is None


def arrays_of(kind):
    a = programs.extremes(kind)
    return {"A": a, "B": np.roll(a, 5), "O": np.zeros((14, programs.N), kind)}


@pytest.mark.parametrize("kind", KINDS)
def test_integers_agree_on_every_road(kind):
    program = programs.integers(kind)
    want, cpu, threads = (arrays_of(kind) for _ in range(3))
    tw.compile(program, target="interp -sanitize")(*want.values())
    tw.compile(program, target="cpu")(*cpu.values())
    machine.run_threads(
        tw.parse_ir(tw.compile(program, target="cuda").ir("lower_threads")), threads
    )
    assert difference(want["O"], cpu["O"]) == "" and difference(want["O"], threads["O"]) == ""


def test_conversions_agree_on_every_road():
    want, cpu, threads = (programs.conversion_data() for _ in range(3))
    tw.compile(programs.conversions, target="interp")(*want.values())
    tw.compile(programs.conversions, target="cpu")(*cpu.values())
    compiled = tw.compile(programs.conversions, target="cuda")
    machine.run_threads(tw.parse_ir(compiled.ir("lower_threads")), threads)
    for name in want:
        assert difference(want[name], cpu[name], SIGNED) == "", name
        assert difference(want[name], threads[name], SIGNED) == "", name


def test_comparisons_of_unsigned_coordinates_and_narrow_remainders():
    """Terms of an unsigned comparison stay on their side; constants have the type of their call."""

    @T.prim_func
    def main(A: T.Tensor((64,), "uint16"), B: T.Tensor((4, 64), "int32")):
        with T.Kernel(1, threads=32):
            for i in T.Parallel(64):
                B[0, i] = T.if_then_else(T.cast(i, "uint64") + 3 < T.cast(1, "uint64"), 1, 2)
                B[1, i] = T.if_then_else(T.cast(i, "uint32") - 8 < T.cast(A[0], "uint32"), 1, 2)
                B[2, i] = T.cast(T.fmod(T.cast(3, "uint16"), A[i] | T.cast(1, "uint16")), "int32")
                B[3, i] = T.if_then_else(T.cast(i * 5, "int8") < T.cast(A[0], "int8"), 1, 2)

    def arrays():
        return {"A": np.arange(20, 84, dtype=np.uint16), "B": np.zeros((4, 64), np.int32)}

    want, got = arrays(), arrays()
    machine.run(main.program, want)
    machine.run_threads(lower(main.program, Target.parse("cuda")).result, got)
    np.testing.assert_array_equal(got["B"], want["B"])
    assert tw.compile(main, target="cuda").ptx
