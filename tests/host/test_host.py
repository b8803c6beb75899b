"""Emitted CUDA C++ compiled for the host and run: right sources pass, wrong ones are found.
Without a C++ compiler all of it is skipped."""

from __future__ import annotations

import re

import numpy as np
import pytest

import tilewright.language as T
from devtools.fuzz.run import judge as judged
from devtools.host import build, extremes, judge
from devtools.host.asm import translated
from tests.cuda.atom_programs import CASES
from tests.cuda.test_plain import arguments, parsed
from tests.cuda.test_warp_reduce import words
from tilewright import machine
from tilewright.ir.target import Target
from tilewright.targets.cuda.backend import headers, lower


@pytest.fixture(scope="module", autouse=True)
def a_compiler():
    try:
        build.compiler()
    except build.NoCompiler as error:
        pytest.skip(str(error))


def made(program, arch="sm_90a", change=str, **more):
    thread_code = lower(program, Target.parse(f"cuda -arch={arch}")).result
    return judge.ready(program, thread_code, arch, change, **more)


def drop(pattern):
    """A change that takes something out of a source."""

    def change(text):
        found = re.sub(pattern, "", text, flags=re.M)
        assert found != text, pattern
        return found

    return change


# ── instructions as calls ────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "text, call",
    [
        (
            'asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(b), "f"(x[1]));',
            "ptx::cvt_rn_f16x2_f32((r), (b), (x[1]));",
        ),
        (
            'asm volatile("ld.shared" ".v2.b32 {%0, %1}, [%2];" : "=r"(w[0]), "=r"(w[1])\n'
            ': "r"(at) : "memory");',
            "ptx::ld_shared_v2_b32((w[0]), (w[1]), (at));",
        ),
        (
            'asm volatile("{\\n .reg .pred p;\\n elect.sync _|p, 0xffffffff;\\n '
            'selp.b32 %0, 1, 0, p;\\n}" : "=r"(chosen));',
            "bool p; ptx::elect_sync(p, 0xffffffff); ptx::selp_b32((chosen), 1, 0, p);",
        ),
        ('asm volatile("fence.acq_rel.gpu;" ::: "memory");', "ptx::nothing();"),
        ('asm volatile("" : "+f"(x)::"memory");', ""),
        (
            'asm("mov.u32 %0, %%nsmid;" : "=r"(sm));',
            'ptx::mov_u32((sm), (host::excluded("nsmid"), 0));',
        ),
        ('asm("vadd.u32 %0, %1;" : "=r"(a) : "r"(b));', 'host::excluded("vadd.u32");'),
    ],
)  # fmt: skip
def test_statements(text, call):
    found = translated(f"f();\n{text}\ng();")
    assert re.sub(r"\s+", " ", found) == f"f(); do {{ {call} }} while (0) ; g();".replace(
        "{  }", "{ }"
    ).replace(") ;", ")" + (" " if "\n" in text else "") + ";")
    assert found.count("\n") == text.count("\n") + 2


# ── right sources ────────────────────────────────────────────────────────────────────────────


def compared(name, arch="sm_90a", seeds=(0, 1, 2), change=str):
    """What differs from the interpreter, by tensor; a fault in words."""
    program = parsed(name)
    want = arguments(program)
    given = {n: a.copy() for n, a in want.items()}
    machine.run(program, want, explicit=False)
    ready = made(program, arch, change)
    for seed in seeds:
        try:
            got = ready(given, seed)
        except judge.Fault as error:
            return str(error)
        wrong = [n for n, a in want.items() if not np.array_equal(got[n], a)]
        if wrong:
            return f"{', '.join(wrong)} of order {seed}"
    return ""


# fragments by shared memory, asynchronous copies, shuffles, votes, atomics, loops and locals
@pytest.mark.parametrize(
    "name, arch",
    [
        ("by_shared", "sm_90a"),
        ("cp_async_edge", "sm_90a"),
        ("across_warps_sum", "sm_90a"),
        ("threads_lanes", "sm_90a"),
        ("threads_atomics", "sm_90a"),
        ("product_float16_float16", "sm_90a"),
        ("product_float16_float16", "sm_80"),
    ],
)
def test_right_sources(name, arch):
    assert compared(name, arch) == ""


@pytest.mark.parametrize(
    "name",
    [
        "wgmma_bf16_bf16_f32_m64n24_rs_kk128",
        "mma_s8_s8_s32_ldmatrix",
        "mma_f64_f64_f64_threads",
        "matrices_trans_bfloat16_bfloat16",
    ],
)
def test_matrix_instructions(name):
    case = CASES[name]
    inputs = case.inputs()
    wanted = case.wanted(inputs)
    blank = {n: np.full_like(w, 77) for n, w in wanted.items()}
    got = made(case.program)({**inputs, **blank}, seed=2)
    assert all(np.array_equal(got[n], w) for n, w in wanted.items())


n = T.dynamic("n")


@T.prim_func
def sized(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32"), x: T.float32):
    with T.Kernel(T.ceildiv(n, 64), threads=64) as bx:
        for i in T.Parallel(64):
            B[bx * 64 + i] = A[bx * 64 + i] * x


def test_sizes_and_scalars():
    a = np.arange(100, dtype=np.float32)
    got = judge.run(sized, {"A": a, "B": np.zeros_like(a), "x": 3.0})
    assert np.array_equal(got["B"], 3 * a)


@pytest.mark.parametrize("seed, name", [(4, "host"), (5, "host-sm80"), (11, "host-drawn")])
def test_programs_of_the_fuzzer(seed, name):
    verdict = judged(seed, ["interp", name])
    assert verdict.kind == "ok", verdict


# ── wrong sources ────────────────────────────────────────────────────────────────────────────

N = 64
BODIES = {
    # what C++ leaves undefined
    "sums": ("C[i] = A[i] + B[i];", "signed integer overflow"),
    "products": ("C[i] = A[i] * A[i];", "signed integer overflow"),
    "right shifts": ("C[i] = A[i] >> 40 * B[i];", "shift exponent 40"),
    "left shifts": ("C[i] = A[i] << 40 * B[i];", "shift exponent 40"),
    "division": ("C[i] = A[i] / (B[i] - 1);", "division by zero"),
    # memory
    "stores behind the end": (f"C[i + {N}] = 1;", "outside of memory"),
    "stores close behind the end": (f"if (i == 0) C[{N} - 1 + 4] = 1;", "outside"),
    "loads far away": ("C[i] = A[i + 100000];", "outside of memory"),
    "misaligned vectors": (
        "if (i == 0) { int r[4]; tw::load_global<tw::int32, 4>(r, A + 1); C[0] = r[0]; }",
        "misaligned",
    ),
    "shared memory": (
        "tw::store_shared<tw::int32, 1>(tw::address(shared) + 4096, A + i);",
        "outside of 256 bytes of shared memory",
    ),
    # threads
    "half a block": ("if (i < 32) __syncthreads(); C[i] = 1;", "deadlock"),
    "half a warp": ("if (i < 16) C[i] = __shfl_sync(~0u, i, 0); __syncthreads();", "deadlock"),
    "a mask without oneself": ("C[i] = __shfl_sync(1u, i, 0);", "has no bit of lane"),
    "barriers nobody made": ("tw::arrive(tw::address(shared));", "has not been initialized"),
}  # fmt: skip


@T.prim_func
def one(A: T.Tensor((N,), "int32"), B: T.Tensor((N,), "int32"), C: T.Tensor((N,), "int32")):
    with T.Kernel(1, threads=64):
        shared = T.alloc_shared((N,), "int32")
        for i in T.Parallel(N):
            shared[i] = A[i] + B[i]
        T.sync_threads()
        for i in T.Parallel(N):
            C[i] = shared[N - 1 - i]


@pytest.fixture(scope="module")
def planted():
    """One program with a kernel for each of `BODIES`, under its name."""

    def change(text):
        head, _, rest = text.partition('extern "C"')
        found = re.match(r".*?shared\[\];\n", rest, re.S)
        assert found
        kernels = [
            re.sub(r"one_one(?=\()", f"one_{n}", 'extern "C"' + found[0])
            + f"  const int i = threadIdx.x;\n  {code}\n}}\n"
            for n, (code, _) in enumerate(BODIES.values())
        ]
        return head + "".join(kernels)

    ready = made(one.program, change=change, names=[f"one_{n}" for n in range(len(BODIES))])
    ready.specs = ready.specs * len(BODIES)
    return ready


@pytest.mark.parametrize("name", BODIES)
def test_wrong_bodies_are_found(planted, name):
    most = np.full(N, 2**31 - 1, np.int32)
    given = {"A": most, "B": np.ones(N, np.int32), "C": np.zeros(N, np.int32)}
    with pytest.raises(judge.Fault, match=BODIES[name][1]):
        planted(given, only=[list(BODIES).index(name)], seconds=20)


@pytest.mark.parametrize(
    "name, pattern",
    [
        ("by_shared_columns", r"^ *__syncthreads\(\);$"),
        ("cp_async_plain", r"^ *tw::wait_cp_async<\d>\(\);$"),
        ("wgmma_two_across", r"^ *tw::wait_wgmma<0>\(\);$"),
    ],
)
def test_what_is_missing_shows(name, pattern):
    assert compared(name) == ""
    assert compared(name, change=drop(pattern)) != ""


@T.prim_func
def stepped(B: T.Tensor((16,), "int32"), a: T.int32, b: T.int32, s: T.int32):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding(0)
        if t == 0:
            for j in range(a, b, s):
                B[j] = j


def walked(change=str):
    """What a loop from 10 down to 0 by threes leaves, and what it should."""
    given = {"B": np.zeros(16, np.int32), "a": 10, "b": 0, "s": -3}
    want = {**given, "B": given["B"].copy()}
    machine.run(stepped.program, want)
    return made(stepped.program, change=change)(given)["B"].tolist(), want["B"].tolist()


def test_a_loop_that_only_goes_up_is_found():
    def change(text):
        loop = "if (threadIdx.x == 0) for (int j = a; j < b; j += s) B[j] = j;"
        return re.sub(r"(shared\[\];\n).*", rf"\1{loop}\n}}\n", text, flags=re.S)

    got, want = walked(change)
    assert got != want


def test_steps_of_either_sign():
    got, want = walked()
    assert got == want


@T.prim_func
def hashed(A: T.Tensor((T.dynamic("n"),), "int32"), B: T.Tensor((4,), "int32")):
    with T.Kernel(1, threads=32):
        h = T.alloc_var("int32", init=7)
        last = T.alloc_var("int32", init=2147483640)
        count = T.alloc_var("int32", init=0)
        for _ in range(A.shape[0]):
            h = h + 1640531527
            last = last + 1
            for _ in range(A.shape[0]):
                count = count + 1
        B[0] = h
        B[1] = last
        B[2] = count
        B[T.int64(3)] = B[T.int64(3)] + 1


def test_scalars_wrap_that_grow_as_often_as_sizes_say():
    """Only what counts iterations is known not to overflow. One thread adds to what it reads."""
    given = {"A": np.zeros(40, np.int32), "B": np.zeros(4, np.int32)}
    want = {**given, "B": given["B"].copy()}
    machine.run(hashed.program, want)
    ready = made(hashed.program)
    assert ready(given)["B"].tolist() == want["B"].tolist()
    assert "wrap_add(h, 1640531527)" in ready.emitted.text
    assert "count + 1" in ready.emitted.text


def test_an_instruction_without_a_meaning_is_named():
    def change(text):
        return text.replace("shared[];\n", 'shared[];\n  asm volatile("vote.sync.any.pred;");\n', 1)

    given = {name: np.zeros(N, np.int32) for name in "ABC"}
    with pytest.raises(judge.Excluded, match="vote.sync.any.pred"):
        made(one.program, change=change)(given)


# ── the ends of every type ───────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("kind", ["int32", "uint8", "float16", "float64"])
def test_extremes(kind):
    """All types, both chips: `python -m devtools extremes`."""
    assert extremes.findings(kind) == {}


@pytest.mark.slow
def test_bugs_in_the_header_are_found():
    text = headers()["numbers.cuh"]
    wrong = text.replace("((1u << (drop - 1)) - 1)", "(1u << (drop - 1))")
    assert wrong != text
    table = [row for row in extremes.rows("float32") if row.name == "cast float8_e4m3fn"]
    assert extremes.findings("float32", "host-sm80", table) == {}
    assert extremes.findings("float32", "host-sm80", table, replaced={"numbers.cuh": wrong})


@pytest.mark.parametrize("kind, threads", [("int32", 50), ("uint32", 64)])
def test_reductions_of_a_warp(kind, threads):
    main = words(threads, kind)
    x = np.random.default_rng(0).integers(0, 2**32, threads).astype(np.uint32).view(kind)
    want = {"X": x, "Y": np.zeros((5, threads), kind)}
    got = made(main.program)({**want})
    machine.run(main.program, want)
    np.testing.assert_array_equal(got["Y"], want["Y"])


@T.prim_func
def gathered(
    A: T.Tensor((8, 8), "int32"), R: T.Tensor((32,), "int32"), B: T.Tensor((32, 4), "int32")
):
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding(0)
        row = R[t]
        for j in T.unroll(4):
            B[t, j] = A[row + t, row + j]


def test_addresses_before_a_loop_wrap_where_guards_come_later():
    rows = np.where(np.arange(32) % 2, np.arange(32) % 4 - np.arange(32), 2**31 - 1)
    given = {"A": np.arange(64, dtype=np.int32).reshape(8, 8), "R": rows.astype(np.int32)}
    given["B"] = np.zeros((32, 4), np.int32)
    want = {**given, "B": given["B"].copy()}
    machine.run(gathered.program, want)
    ready = made(gathered.program)
    assert "* A_" in ready.emitted.text
    assert ready(given)["B"].tolist() == want["B"].tolist()
