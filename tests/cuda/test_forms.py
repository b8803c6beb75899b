"""Two forms of a program whose sizes are known at launch, and which of them a call runs."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda.fake import fake_driver
from tests.cuda.test_caller import PROGRAM, tensor, view
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.arrays import ProgramCheck
from tilewright.targets.cuda import kernel as cuda
from tilewright.targets.cuda import nvrtc
from tilewright.targets.cuda.caller import make_caller
from tilewright.targets.cuda.forms import aligned_rows
from tilewright.targets.cuda.launch import CudaModule, Form, LaunchSpec, TensorArg, TensorPointer

CUDA = "cuda -arch=sm_90a"


def add(m, n, dtype="float16", block=128):
    @T.prim_func
    def main(A: T.Tensor((m, n), dtype), B: T.Tensor((m, n), dtype), C: T.Tensor((m, n), dtype)):
        with T.Kernel(T.ceildiv(n, block), m, threads=32) as (bx, by):
            for i in T.Parallel(block):
                C[by, bx * block + i] = A[by, bx * block + i] + B[by, bx * block + i]

    return main


def product(m, n, k, size=64):
    @T.prim_func
    def main(
        A: T.Tensor((m, k), "float16"), B: T.Tensor((n, k), "float16"),
        C: T.Tensor((m, n), "float16"),
    ):  # fmt: skip
        with T.Kernel(T.ceildiv(n, size), T.ceildiv(m, size), threads=128) as (bx, by):
            a = T.alloc_shared((size, 32), "float16")
            b = T.alloc_shared((size, 32), "float16")
            c = T.alloc_fragment((size, size), "float32")
            T.clear(c)
            for step in T.Pipelined(T.ceildiv(k, 32), num_stages=2):
                T.copy(A[by * size, step * 32], a)
                T.copy(B[bx * size, step * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C[by * size, bx * size])

    return main


def sizes(*names, **contract):
    return [T.dynamic(name, **contract) for name in names]


# ------------------------------------------------------------------------------ which contracts


def multiples(text):
    program = aligned_rows(parse_program(text))
    return None if program is None else {d.var.name: d.multiple_of for d in program.dims}


def moves(*tensors, dims="dim m\n dim n", body="copy A[0:+4, 0:+64] -> x"):
    params = "\n ".join(f"param {t}" for t in tensors)
    return f"""program p {{
 {dims}
 {params}
 kernel k grid b in 1 threads t in 32 {{
  alloc x: float16[4, 64] shared
  {body}
 }}
}}"""


@pytest.mark.parametrize(
    "text, wanted",
    [
        (moves("A: float16[m, n] global"), {"m": 1, "n": 8}),
        (moves("A: float16[m, n] global", dims="dim m\n dim n multiple_of=12"), {"m": 1, "n": 24}),
        (moves("A: float16[m, n] global", dims="dim m\n dim n multiple_of=16"), None),
        (moves("A: float16[m, n] global", dims="dim m\n dim n max=7"), None),  # none would be left
        (moves("A: float16[m, 64] global"), None),
        (moves("A: float16[m, 3] global"), None),
        (moves("A: float16[m, n * 4] global"), {"m": 1, "n": 2}),
        (moves("A: float16[m, n + 1] global"), None),
        (moves("A: float16[n, m, 64] global", body="copy A[0, 0:+4, 0:+64] -> x"), None),
        (moves("A: float16[64, 64] global", "B: float16[m, n] global"), None),  # nobody touches B
        (moves("A: float16[m, 64] global strides=[n, 1]"), {"m": 1, "n": 8}),
        (moves("A: float16[m, 64] global strides=[1, n]"), None),
        (moves("A: float16[n] global", body="copy A[0:+64] -> x[0, 0:+64]"), {"m": 1, "n": 1}),
        (moves("A: float16[64] global", body="copy A[0:+64] -> x[0, 0:+64]"), None),
        (moves("A: float16[m, n] global", body="copy A[0:+4, 0] -> x[0:+4, 0]"), None),
    ],
)  # fmt: skip
def test_contracts_that_align_rows(text, wanted):
    assert multiples(text) == wanted


@pytest.mark.parametrize(
    "dtype, step",
    [("float32", 4), ("bfloat16", 8), ("float8_e4m3", 16), ("int8", 16), ("float64", 2)]
    # tables of numbers, and flags, are no rows of data
    + [("int32", None), ("int64", None), ("bool", None)],
)
def test_every_type_has_its_own_step(dtype, step):
    text = moves(f"A: {dtype}[m, n] global").replace("float16[4", f"{dtype}[4")
    assert multiples(text) == (None if step is None else {"m": 1, "n": step})


# ------------------------------------------------------------------------------------ compiling


def test_two_forms_are_compiled():
    kernel = tw.compile(product(*sizes("m", "n", "k")), target=CUDA)
    fast, general = kernel.executable, kernel.executable.otherwise
    assert "load_tensor" in fast.source or "bulk" in fast.source
    assert fast.source != general.source
    assert [d.multiple_of for d in general.given.dims] == [1, 1, 1]
    told = kernel.explain()
    assert "rows: aligned: where tensors begin on 16 bytes and" in told
    assert "k is a multiple of 8" in told
    only = tw.compile(product(*sizes("m", "n", "k")), target=f"{CUDA} -rows=any")
    assert only.executable.otherwise is None and only.executable.source == general.source
    assert "rows: aligned" not in only.explain()


def test_one_row_of_any_length():
    """Vectors, whole ones and the last by its elements; a slice moves them one by one, side by
    side."""
    n = T.dynamic("n")

    @T.prim_func
    def main(A: T.Tensor((n,), "float16"), C: T.Tensor((n,), "float16")):
        with T.Kernel(T.ceildiv(n, 2048), threads=256) as bx:
            for i in T.Parallel(2048):
                C[bx * 2048 + i] = A[bx * 2048 + i] * 2

    kernel = tw.compile(main, target=CUDA)
    assert "reads A      ld.global, 16 bytes a lane, once" in kernel.explain()
    assert kernel.executable.record.align == {"A": 16, "C": 16}
    general = tw.compile(main, target=f"{CUDA} -rows=any")
    assert "reads A      load, 2 bytes a lane, 8 times, 2 sectors" in general.explain()
    assert general.executable.source == kernel.executable.otherwise.source
    assert not general.executable.record.align


def flat(m, n, s):
    @T.prim_func
    def main(A: T.Tensor((m, n), "float16"), C: T.Tensor((m, n), "float16")):
        with T.Kernel(T.ceildiv(m * n, 1024), threads=128) as bx:
            a, c = T.reshape(A, (m * n,)), T.reshape(C, (m * n,))
            for i in T.Parallel(1024):
                c[bx * 1024 + i] = a[bx * 1024 + i] + 1

    return main


def numbers(m, n, s):
    @T.prim_func
    def main(A: T.Tensor((n,), "int32"), C: T.Tensor((n,), "int32")):
        with T.Kernel(T.ceildiv(n, 1024), threads=128) as bx:
            for i in T.Parallel(1024):
                C[bx * 1024 + i] = A[bx * 1024 + i] + 1

    return main


def filled(m, n, s):
    @T.prim_func
    def main(C: T.Tensor((n,), "float16")):
        with T.Kernel(T.ceildiv(n, 1024), threads=128) as bx:
            T.fill(C[bx * 1024 : (bx + 1) * 1024], 3)

    return main


def apart(m, n, s):
    kind = T.StridedTensor((m, n), (s, 1), "float16")

    @T.prim_func
    def main(A: kind, C: kind):
        with T.Kernel(T.ceildiv(n, 64), T.ceildiv(m, 4), threads=32) as (bx, by):
            for i, j in T.Parallel(4, 64):
                C[by * 4 + i, bx * 64 + j] = A[by * 4 + i, bx * 64 + j]

    return main


@pytest.mark.parametrize("make", [flat, numbers, filled, apart])
def test_slices_have_a_form_wherever_tensors_end_within_a_vector(make):
    kernel = tw.compile(make(*sizes("m", "n"), T.dynamic("s", multiple_of=8)), target=CUDA)
    assert set(kernel.executable.record.align.values()) == {16}
    assert not kernel.executable.otherwise.record.align
    assert "aligned: where tensors begin on 16 bytes, this is what runs" in kernel.explain()


def test_one_form_where_contracts_say_enough():
    for program in (
        product(*sizes("m", "n", "k", multiple_of=8)),
        product(T.dynamic("m"), 256, 256),
        product(128, 256, 257),
    ):
        assert tw.compile(program, target=CUDA).executable.otherwise is None


def test_a_form_that_does_not_compile_is_left_out(monkeypatch):
    real = cuda._compile_form

    def refusing(program, target):
        if any(dim.multiple_of > 1 for dim in program.dims):
            raise CompileError("too many registers")
        return real(program, target)

    monkeypatch.setattr(cuda, "_compile_form", refusing)
    kernel = tw.compile(product(*sizes("m", "n", "k")), target=CUDA)
    assert kernel.executable.otherwise is None
    assert "rows: any: no form for aligned ones compiles: too many registers" in kernel.explain()


def test_what_most_calls_run_is_told_without_a_compiler(monkeypatch):
    with_one = tw.compile(product(*sizes("m", "n", "k")), target=CUDA)

    def without(program, target):
        return cuda.Uncompiled(program, target, nvrtc.NoCompiler("no NVRTC here"))

    monkeypatch.setattr(cuda, "_compile_form", without)
    kernel = cuda.compile_program(with_one.program, Target.parse(CUDA))
    assert kernel.source == with_one.get_kernel_source()


def test_forms_come_from_the_cache(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    first, again = (
        tw.compile(product(*sizes("m", "n", "k")), target=CUDA).executable for _ in range(2)
    )
    assert again.source == first.source and again.otherwise.source == first.otherwise.source
    assert "trace" not in vars(again) and "trace" not in vars(again.otherwise)
    assert ("main", "rows") in again.trace.reasons


def test_dumps_of_both_forms_stay(tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    tw.compile(product(*sizes("m", "n", "k")), target=CUDA)
    assert len({f.read_text() for f in tmp_path.glob("*/*_source.cu")}) == 2


# -------------------------------------------------------------------------------------- calling

POINTERS = tuple(TensorPointer(name) for name in "ABC")


def make(scratch=((), ())):
    """A fast form for N a multiple of 8 and tensors on 16 bytes, and one for all calls."""
    api, found = fake_driver(1, fast={"params": [8] * 3}, general={"params": [8] * 3})
    api.contexts = [0xC0]
    fast, general = (
        CudaModule(b"\x7fELF", [LaunchSpec(name, (1,), 32, POINTERS)], using=found, scratch=own)
        for name, own in zip(("fast", "general"), scratch, strict=True)
    )
    form = Form(fast, {"M": 1, "N": 8}, dict.fromkeys("ABC", 16))
    args = [TensorArg(name) for name in "ABC"]
    return api, make_caller(general, args, ProgramCheck(PROGRAM, written={"C"}), [form])


def launched(api):
    return [done.kernel for done in api.launches]


@pytest.mark.parametrize(
    "scratch", [((), ()), ((tensor("V", (4, 3)),), ()), ((), (tensor("V", (4, 3)),))]
)
def test_a_call_runs_the_form_that_its_sizes_allow(scratch):
    api, call = make(scratch)
    wanted = []
    for _ in range(2):  # the second time from what is kept
        for columns, address, form in [
            (8, 0x1000, "fast"),
            (12, 0x1000, "general"),
            (16, 0x1008, "general"),
            (16, 0x1000, "fast"),
            (1, 0x1002, "general"),
        ]:
            arrays = [view(address + 0x1000 * i, (4, columns)) for i in range(3)]
            call(*arrays)
            wanted.append(form)
    assert launched(api) == wanted
    assert not api.live


def test_a_refused_launch_says_which_form_it_was():
    api, call = make()
    api.status = 1
    with pytest.raises(LaunchError, match="fast could not be launched"):
        call(*(view(0x1000 * i, (4, 8)) for i in (1, 2, 3)))
    with pytest.raises(LaunchError, match="general could not be launched"):
        call(*(view(0x1000 * i, (4, 9)) for i in (1, 2, 3)))


# -------------------------------------------------------------------------------- on a real one


@pytest.mark.gpu
@pytest.mark.parametrize("diagnostic", [False, True])
@pytest.mark.parametrize("m, n, k", [(64, 64, 64), (200, 136, 72), (129, 131, 67), (77, 8, 9)])
def test_products_of_any_size(m, n, k, diagnostic):
    torch = pytest.importorskip("torch")
    target = "cuda -diagnostic" if diagnostic else "cuda"
    kernel = tw.compile(product(*sizes("m", "n", "k")), target=target)
    a, b = (torch.randn(s, k, device="cuda", dtype=torch.float16) for s in (m, n))
    c = torch.full((m, n), torch.nan, device="cuda", dtype=torch.float16)
    kernel(a, b, c)
    torch.testing.assert_close(c.float(), a.float() @ b.float().T, rtol=2e-3, atol=2e-2)


@pytest.mark.gpu
@pytest.mark.parametrize("shift", [0, 1, 8])
@pytest.mark.parametrize("n", [8, 128, 129, 1000])
def test_sums_of_rows_that_begin_anywhere(n, shift):
    torch = pytest.importorskip("torch")
    kernel = tw.compile(add(*sizes("m", "n")), target="cuda")
    a, b, c = (
        torch.randn(3 * n + shift, device="cuda").half()[shift:].view(3, n) for _ in range(3)
    )
    want = a + b
    kernel(a, b, c)
    assert np.array_equal(c.cpu().numpy(), want.cpu().numpy())
