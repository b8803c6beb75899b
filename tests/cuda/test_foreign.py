"""PTX and C++ functions in kernels: what they write stays written, on the way to CUDA source.
No GPU is needed."""

import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import CompileError, RunError, VerifyError
from tilewright.ir.ptx_text import written_operands

SQUARE = "mul.lo.s32 $1, $3, $3; mul.hi.s32 $2, $3, $3;"


def asm(kernel):
    """The operands of each asm statement of the source: text, written, read."""
    pattern = r'asm volatile\("(.*)" : (.*) : (.*) : "memory"\);'
    return re.findall(pattern, kernel.get_kernel_source())


def into_variables():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64, 4), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            low = T.alloc_var("int32")
            high = T.alloc_var("int32", 0)
            pair = T.alloc_local((2,), "int32")
            T.ptx(SQUARE, low, high, A[t])
            T.ptx(SQUARE, pair[0], pair[1], low)
            B[t, 0] = low
            B[t, 1] = high
            B[t, 2] = pair[0]
            B[t, 3] = pair[1]

    return main


def several_results():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64, 2), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            kinds = ("int32", "int32")
            low, high = T.ptx(
                "mul.lo.s32 $0, $2, $3; mul.hi.s32 $1, $2, $3;", A[t], 1 << 20, dtype=kinds
            )
            B[t, 0] = low
            B[t, 1] = high

    return main


def test_operands_that_are_written_are_outputs():
    first, second = asm(tw.compile(into_variables(), target="cuda"))
    assert first[1:] == ('"+&r"(low), "+&r"(high)', '"r"(A[tx])')
    assert second[1:] == ('"+&r"(pair[0]), "+&r"(pair[1])', '"r"(low)')
    assert first[0] == "mul.lo.s32 %0, %2, %2; mul.hi.s32 %1, %2, %2;"


def test_a_tuple_of_types_gives_several_results():
    (found,) = asm(tw.compile(several_results(), target="cuda"))
    assert re.fullmatch(r'"\+&r"\(\w+\), "\+&r"\(\w+\)', found[1])
    assert found[2] == '"r"(A[tx]), "r"(1048576)'


def test_a_result_shares_no_register_with_an_operand():
    """The text writes its result before it reads the operand, in a loop that feeds it back."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), n: T.int32):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            x = T.alloc_var("int32", A[t])
            for _ in T.serial(n):
                x = T.ptx("{ mov.s32 $0, 7; add.s32 $0, $0, $1; }", x, dtype="int32")
            A[t] = x

    texts = re.findall(r"mov.s32 (%r\d+), 7; add.s32 \1, \1, (%r\d+)",
                       tw.compile(main, target="cuda").ptx)  # fmt: skip
    assert texts and all(result != operand for result, operand in texts)


def test_what_ptx_writes_is_seen_by_passes():
    """A variable that foreign code wrote is not taken for its first value."""

    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            x = T.alloc_var("int32", 3)
            T.ptx("add.s32 $1, $1, $2;", x, A[t])
            B[t] = x * 2

    source = tw.compile(main, target="cuda").get_kernel_source()
    assert re.search(r"B\[tx\] = tw::wrap_mul\(x, 2\)", source)


@pytest.mark.parametrize(
    ("text", "written"),
    [
        ("add.s32 $0, $1, $2;", {0}),
        ("{ .reg .b64 t; mov.b64 t, {$2, $3}; add.s64 $1, t, 1; }", {1}),
        ("mov.b64 {$1, $2}, $3;", {1, 2}),
        ("setp.eq.s32 $1|$2, $3, $4;", {1, 2}),
        ("@!p add.f32 $1, $2, $3; // mov $4, 1;\n", {1}),
        ("loop: add.s32 $2, $2, 1; @p bra loop;", {2}),
        ("st.shared::cta.b32 [$1], $2; red.global.add.f32 [$3], $4;", set()),
        ("bar.sync $1, $2; barrier.cta.arrive $3, $4;", set()),
        ("barrier.cta.red.popc.aligned.u32 $1, $2, p;", {1}),
        ("ld.global.v2.f32 {$1, $2}, [$3];", {1, 2}),
        ("mbarrier.arrive.shared.b64 _, [$1];", set()),
        ("mbarrier.test_wait.shared.b64 p, [$1], $2; selp.u32 $0, 1, 0, p;", {0}),
        ("ldmatrix.sync.aligned.m8n8.x2.shared.b16 {$1, $2}, [$3];", {1, 2}),
        ("stmatrix.sync.aligned.m8n8.x1.shared.b16 [$1], {$2};", set()),
        ("nanosleep.u32 $1; fence.proxy.async; /* $2 */ membar.gl;", set()),
    ],
)
def test_which_operands_a_text_writes(text, written):
    assert written_operands(text) == written


def kernel_of(statement):
    @T.prim_func
    def main(A: T.Tensor((64,), "int32"), B: T.Tensor((64,), "float32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding()
            x = T.alloc_var("int32", 0)
            A[t] = x + statement(A, t, x)

    return main


@pytest.mark.parametrize(
    ("statement", "words"),
    [
        (lambda A, t, x: T.ptx("mov.b32 $1, $2;", t, 1) or 0, ("writes $1", "T.alloc_var")),
        (lambda A, t, x: T.ptx("mov.b32 $1, $2;", A[t], 1) or 0, ("writes $1", "variable")),
        (lambda A, t, x: T.ptx("mov.b32 $0, $5;", t, dtype="int32"), ("names $5", "$0 … $1")),
        (lambda A, t, x: T.ptx("mov.b32 $0, $1;", t) or 0, ("names $0", "dtype=")),
        (lambda A, t, x: T.ptx("mov.b32 $1, $2;", x, t, dtype="int32"), ("no instruction", "$0")),
        (lambda A, t, x: T.ptx("mov.b32 $0, $2;", t, dtype=("int32",) * 2)[0], ("writes $1",)),
        (lambda A, t, x: T.call_extern(3, x), ("name of a function",)),
    ],
)  # fmt: skip
def test_wrong_texts_are_refused_where_they_stand(statement, words):
    with pytest.raises(CompileError) as error:
        tw.compile(kernel_of(statement), target="cuda")
    assert error.value.loc is not None
    assert all(word in str(error.value) for word in words), str(error.value)


def test_written_operands_are_verified():
    text = """program p {
  param A: int32[32] global
  kernel main grid b in 1 threads t in 32 {
    alloc x: int32 local init=0
    intrinsic ptx (x, A[t]) text="add.s32 $1, $2, 1;"
    A[t] = x
  }
}
"""
    with pytest.raises(VerifyError, match=r"writes \$1, an operand that it only reads"):
        tw.compile(tw.parse_ir(text), target="cuda")
    right = text.replace("(x, A[t])", "(&x, A[t])").replace('1;"', '1;" width=1')
    assert asm(tw.compile(tw.parse_ir(right), target="cuda"))[0][1] == '"+&r"(x)'


TWICE = "__device__ void twice(float* a, float* b) { for (int i = 0; i < 4; ++i) b[i] = 2 * a[i]; }"


def calls(**options):
    @T.prim_func
    def main(A: T.Tensor((128, 4), "float32"), B: T.Tensor((128, 4), "float32")):
        T.import_source(TWICE)
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding()
            a = T.alloc_local((4,), "float32")
            b = T.alloc_local((4,), "float32")
            for v in T.vectorized(4):
                a[v] = A[t, v]
            T.call_extern("twice", T.access_ptr(a, "r"), T.access_ptr(b, "w"), **options)
            for v in T.vectorized(4):
                B[t, v] = b[v]

    return main


@pytest.mark.parametrize(
    "options", [{}, {"dtype": "void"}, {"dtype": "handle"}, {"dtype": "float32"}, {"dtype": "uint"}]
)
def test_functions_that_return_nothing(options):
    source = tw.compile(calls(**options), target="cuda").get_kernel_source()
    assert "\n  twice(a_, b_);" in source  # a and b are words of the imported source


def test_results_of_functions_by_every_name_of_a_type():
    for kind in ("uint", "int", "float", T.uint32, np.float32):

        @T.prim_func
        def main(A: T.Tensor((64,), "int32")):
            T.import_source("__device__ int next(int x) { return x + 1; }")
            with T.Kernel(1, threads=64):
                t = T.get_thread_binding()
                A[t] = T.cast(T.call_extern("next", A[t], dtype=kind), "int32")

        assert "next(int(A[tx]))" in tw.compile(main, target="cuda").get_kernel_source()


def test_no_reference_reaches_a_variable():
    @T.prim_func
    def main(A: T.Tensor((64,), "int32")):
        T.import_source("__device__ void bump(int& x) { x += 1; }")
        with T.Kernel(1, threads=64):
            x = T.alloc_var("int32", 0)
            T.call_extern("void", "bump", x)
            A[0] = x

    with pytest.raises(CompileError, match="does not compile") as error:
        tw.compile(main, target="cuda")
    assert "bump" in error.value.loc.source


def test_other_targets_refuse_foreign_code_and_say_why():
    for make in (calls, into_variables, several_results):
        with pytest.raises(CompileError, match="foreign code") as error:
            tw.compile(make(), target="cpu")
        assert "T." in error.value.loc.source and "cuda" in str(error.value)
    x, y = np.zeros((128, 4), np.float32), np.zeros((128, 4), np.float32)
    with pytest.raises(RunError, match="foreign code, which the interpreter cannot run"):
        tw.compile(calls(), target="interp")(x, y)


@pytest.mark.gpu
def test_results_on_a_gpu():
    import torch

    a = torch.arange(64, dtype=torch.int32, device="cuda") * 1000003
    wide = a.long() ** 2
    low = wide.int()
    b = torch.zeros((64, 4), dtype=torch.int32, device="cuda")
    tw.compile(into_variables(), target="cuda")(a, b)
    assert torch.equal(b[:, 0], low) and torch.equal(b[:, 1], (wide >> 32).int())
    assert torch.equal(b[:, 2], (low.long() ** 2).int())
    c = torch.zeros((64, 2), dtype=torch.int32, device="cuda")
    tw.compile(several_results(), target="cuda")(a, c)
    assert torch.equal(c[:, 1], (a.long() * (1 << 20) >> 32).int())
    x = torch.randn(128, 4, device="cuda")
    y = torch.zeros_like(x)
    tw.compile(calls(), target="cuda")(x, y)
    assert torch.equal(y, 2 * x)
