"""Programs at stage THREAD: what lowering leaves means what it was given, for whole kernels; and
what threads must not do is an error that names the place."""

from __future__ import annotations

from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

import tilewright.language as T
from tests.cuda.atom_programs import CASES
from tests.passes import register_maps as documented
from tests.schedules import test_flash_attention as attention
from tests.schedules import test_gemm as gemm
from tests.schedules import test_mla as mla
from tests.schedules import test_softmax_cluster as softmax
from tests.schedules import test_softmax_cluster_wide as wide
from tests.schedules.harness import load, run, sync_ops, without
from tilewright import machine
from tilewright.ir.core import Var, compare, const, select
from tilewright.ir.dtype import dtype
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_op
from tilewright.ir.verify import Stage
from tilewright.machine import meaning
from tilewright.machine.evaluate import Evaluator
from tilewright.machine.run import ThreadKernel, is_thread_ir
from tilewright.machine.thread_async import operand_addresses, swizzled
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import RunError, TilewrightError
from tilewright.targets.cuda.backend import lower

bf16 = ml_dtypes.bfloat16


def lowered(program):
    return run_pipeline(program, Target.parse("cuda"), LOWER, stage=Stage.LAID_OUT).result


def same(program, args, seeds=range(2)):
    """The program before and after lowering leaves the same bits."""
    want, after = run(program, args), lowered(program)
    for seed in seeds:
        got = run(after, args, seed)
        for name, value in want.items():
            if isinstance(value, np.ndarray):
                np.testing.assert_array_equal(got[name], value, err_msg=f"{name}, seed {seed}")


@pytest.mark.parametrize("name", ["bulk_row", "settle", "load_shared", "ballot"])
def test_thread_code_is_seen_by_what_only_it_has(name):
    text = f"program p {{\nkernel k grid bx in 1 threads tx in 32 {{\nintrinsic {name}\n}}\n}}"
    assert is_thread_ir(parse_program(text, "p.tw")) == (name != "ballot")


# ── hand schedules ───────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", gemm.SCHEDULES)
@pytest.mark.parametrize("size", [(128, 128, 64, 2), (300, 264, 136, 4), (1, 1, 1, 2)])
def test_gemm(name, size):
    same(load(name), gemm.problem(*size))


def exact_attention(head, size):
    """One entry a query and small keys: scores are integers in ±2, so powers of two and their
    sums are exact in any order."""
    batch, heads, sq, sk, blocks = size
    rng = np.random.default_rng(sq + sk)
    q = np.zeros((batch, heads, sq, head))
    signs = rng.choice((-1.0, 1.0), (batch, heads, sq, 1))
    np.put_along_axis(q, rng.integers(0, head, (batch, heads, sq, 1)), signs, -1)
    k, v = (rng.integers(-2, 3, (batch, heads, sk, head)) for _ in range(2))
    return {
        "Q": q.astype(bf16),
        "K": k.astype(bf16),
        "V": v.astype(bf16),
        "O": np.full(q.shape, np.nan, bf16),
        "scale": np.float32(1),
        "blocks": blocks,
    }


@pytest.mark.parametrize("name", attention.NAMES)
@pytest.mark.parametrize("which", [0, -1])
def test_attention(name, which):
    size = attention.SIZES[name][which]
    same(load(name), exact_attention(attention.head_of(name), size), range(1))


@pytest.mark.parametrize("seq", [0, 65, 257])
def test_mla(seq):
    same(load("mla_seesaw"), mla.arguments(seq, 1, exact=True), range(1))


@pytest.mark.parametrize("size", [(3, 1024, 1), (40, 260, 1)])
def test_softmax(size):
    same(load("softmax_cluster"), softmax.arguments(*size, exact=True))


def test_wide_softmax():
    same(load("softmax_cluster_wide"), wide.arguments(3, 27, 1, exact=True), range(1))


# lowering adds these: the assembler wants a fence in front of every product
ADDED = ("fence wgmma",)


def test_clusters_too_large_to_watch_still_run(monkeypatch):
    monkeypatch.setattr(ThreadKernel, "most", 0)
    same(load("gemm_cooperative"), gemm.problem(128, 128, 64, 2), range(1))


def test_every_dropped_synchronisation_of_a_lowered_gemm_shows():
    program = lowered(load("gemm_pingpong"))
    args = gemm.problem(256, 256, 320, 1)
    want = run(program, args)["C"]
    survivors = []
    for index, op in enumerate(sync_ops(program)):
        try:
            if not np.array_equal(run(without(program, index), args)["C"], want):
                continue
        except TilewrightError:
            continue
        survivors.append(print_op(op).strip())
    assert [s for s in survivors if s not in ADDED] == []


# ── matrix instructions ──────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", CASES)
def test_matrix_instructions(name):
    case = CASES[name]
    inputs = case.inputs()
    wanted = case.wanted(inputs)
    args = {**inputs, **{n: np.full(w.shape, 7, w.dtype) for n, w in wanted.items()}}
    machine.run(lowered(case.program), args)
    for tensor, want in wanted.items():
        np.testing.assert_array_equal(args[tensor], want)


@pytest.mark.parametrize("span", [0, 32, 64, 128])
@pytest.mark.parametrize(("size", "major"), [(1, False), (2, False), (4, False), (2, True)])
def test_descriptors_and_swizzles_as_documented(span, size, major):
    at = np.arange(0, 4096, 2)
    np.testing.assert_array_equal(swizzled(at, span), documented.swizzled(at, span))
    bits = {0: 0, 128: 1, 64: 2, 32: 3}[span]
    code = 0x40 | 72 << 16 | 136 << 32 | bits << 62
    i, j = np.indices((64, 32 // size))
    want = documented.descriptor_address(code, i, j, size, major)
    np.testing.assert_array_equal(operand_addresses(code, 64, 32 // size, size, major), want)


@pytest.mark.parametrize("count", [1, 2, 4])
@pytest.mark.parametrize("trans", [0, 1])
def test_matrices_of_eight_rows_as_documented(count, trans):
    program = parse_program(f"""program p {{
  param X: uint16[512] global
  param Y: uint16[32, {2 * count}] global
  param Z: uint16[512] global
  kernel main grid bx in 1 threads tx in 32 {{
    alloc tile: uint16[512] shared
    alloc out: uint16[512] shared
    alloc r: uint16[{2 * count}] local
    for i in 0 .. 16 {{ tile[i * 32 + tx] = X[i * 32 + tx] }}
    for i in 0 .. 16 {{ out[i * 32 + tx] = 0 }}
    sync warp
    intrinsic ldmatrix (&r, &tile[tx * 16:+8]) text="count={count} trans={trans}"
    for i in 0 .. {2 * count} {{ Y[tx, i] = r[i] }}
    intrinsic stmatrix (&out[tx * 16:+8], &r) text="count={count} trans={trans} from=words"
    sync warp
    for i in 0 .. 16 {{ Z[i * 32 + tx] = out[i * 32 + tx] }}
  }}
}}
""")
    x = np.arange(512, dtype=np.uint16)
    args = {"X": x, "Y": np.zeros((32, 2 * count), np.uint16), "Z": np.ones(512, np.uint16)}
    machine.run(program, args)
    for lane, matrix, i in np.ndindex(32, count, 2):
        row, column = documented.matrix(lane, i, 2, trans == 1)
        giver = documented.matrix_row_lane(matrix, row)
        assert args["Y"][lane, 2 * matrix + i] == giver * 16 + column
    rows = x.reshape(32, 16).copy()
    rows[:, 8:], rows[8 * count :] = 0, 0
    np.testing.assert_array_equal(args["Z"].reshape(32, 16), rows)


# ── kernels without roles ────────────────────────────────────────────────────────────────────

ACC = "frag{tile=(64,64) tv=((4,8,4),(2,2,8)):((2,64,1024),(1,512,8))}"
SWIZZLED = "S<3,3,3> o 0 o (64,64):(64,1)"
PLAIN_GEMM = f"""program g {{
  dim m min=1
  dim k min=1
  param A: bfloat16[m, k] global
  param B: bfloat16[64, k] global
  param C: float32[m, 64] global
  kernel main grid bx in (m + 63) // 64 threads tx in 128 {{
    alloc a: bfloat16[64, 64] shared layout="{SWIZZLED}"
    alloc b: bfloat16[64, 64] shared layout="{SWIZZLED}"
    alloc full: barrier[1] barrier
    barrier_init full count 1
    fence barrier_init
    sync block
    alloc acc: float32[64, 64] fragment layout="{ACC}"
    fill acc = 0.0
    for i in 0 .. (k + 63) // 64 {{
      arrive full[0] bytes=16384
      copy A[bx * 64:+64, i * 64:+64] -> a barrier=full[0] atom=bulk_load
      copy B[:, i * 64:+64] -> b barrier=full[0] atom=bulk_load
      wait full[0] phase i % 2
      fence wgmma
      gemm a, b -> acc transpose_b=true atom=wgmma
      commit wgmma
      wait_group wgmma pending 0
      sync block
    }}
    copy acc -> C[bx * 64:+64, :] atom=threads
  }}
}}
"""


def plain_gemm(m=100, k=136):
    rng = np.random.default_rng(m)
    a, b = (rng.integers(-2, 3, s).astype(bf16) for s in ((m, k), (64, k)))
    return {"A": a, "B": b, "C": np.full((m, 64), np.nan, np.float32)}


def test_gemm_without_roles():
    args = plain_gemm()
    same(parse_program(PLAIN_GEMM), args, range(3))
    want = args["A"].astype(np.float32) @ args["B"].astype(np.float32).T
    np.testing.assert_array_equal(run(parse_program(PLAIN_GEMM), args)["C"], want)


WIDER = (
    ("threads tx in 128", "threads tx in 256"),
    (f'acc: float32[64, 64] fragment layout="{ACC}"',
     'acc: float32[128, 64] fragment '
     'layout="frag{tile=(128,64) tv=((4,8,8),(2,2,8)):((2,64,1024),(1,512,8))}"'),
    (f'a: bfloat16[64, 64] shared layout="{SWIZZLED}"',
     'a: bfloat16[128, 64] shared layout="S<3,3,3> o 0 o (128,64):(64,1)"'),
    ("(m + 63) // 64", "(m + 127) // 128"),
    ("bx * 64:+64", "bx * 128:+128"),
    ("bytes=16384", "bytes=24576"),
)  # fmt: skip


def test_two_warpgroups_without_roles():
    text = PLAIN_GEMM
    for old, new in WIDER:
        assert old in text
        text = text.replace(old, new)
    program, args = parse_program(text), plain_gemm(200)
    same(program, args)
    program = lowered(program)
    for index in range(len(sync_ops(program))):
        with pytest.raises(RunError):
            run(without(program, index), args)


def test_a_product_under_way_owns_its_registers():
    text = PLAIN_GEMM.replace("      wait_group wgmma pending 0\n", "")
    text = text.replace("    copy acc", "    wait_group wgmma pending 0\n    copy acc")
    with pytest.raises(RunError, match=r"race on [ab]\[0\]: this writes it, but an asynchronous"):
        run(lowered(parse_program(text)), plain_gemm())


ROWS = "frag{tile=(8,128) tv=((32,4),(4,2)):((4,256),(1,128))}"
TURN = f"""program t {{
  dim m min=1
  dim n min=1
  param X: float32[m, n] global
  param Y: bfloat16[m, n] global
  param S: float32[m] global
  kernel main grid bx in (m + 7) // 8 threads tx in 128 {{
    alloc tile: float32[8, 128] shared layout="(8,128):(128,1)"
    alloc x: float32[8, 128] fragment layout="{ROWS}"
    alloc y: float32[8, 128] fragment layout="{ROWS}"
    alloc s: float32[8] fragment layout="frag{{tile=(8) tv=((32,4),2):((0,2),1)}}"
    copy X[bx * 8:+8, 0:+128] -> x atom=threads
    copy x -> tile atom=threads
    sync block
    map (i, j) in (8, 128) layout="{ROWS}" {{ y[i, j] = tile[7 - i, 127 - j] * 2.0 }}
    reduce sum y -> s dim 1
    copy s -> S[bx * 8:+8] atom=threads
    copy y -> Y[bx * 8:+8, 0:+128] atom=threads
  }}
}}
"""


def turn(m=21, n=101):
    rng = np.random.default_rng(n)
    x = rng.integers(-8, 9, (m, n)).astype(np.float32)
    return {"X": x, "Y": np.full((m, n), 7, bf16), "S": np.zeros(m, np.float32)}


@pytest.mark.parametrize("size", [(8, 128), (21, 101), (1, 1)])
def test_elements_through_shared_memory(size):
    same(parse_program(TURN), turn(*size))


def test_a_missing_barrier_is_found():
    program = lowered(parse_program(TURN.replace("    sync block\n", ""), "turn.tw"))
    with pytest.raises(
        RunError, match=r"race on tile\[\d+\]: this reads it, but another thread"
    ) as e:
        run(program, turn())
    assert e.value.loc is not None and e.value.loc.line == 14
    assert "first written by" in str(e.value) and "turn.tw" in str(e.value)


# ── thread IR by hand ────────────────────────────────────────────────────────────────────────


X64 = np.arange(64, dtype=np.int32)


def threads(body, count=64, **arrays):
    """Run `body` on tensors of these names; what they hold afterwards."""
    kinds = {"float32": "float32", "int32": "int32", "uint8": "uint8", "bfloat16": "bfloat16"}
    params = "\n".join(
        f"param {n}: {kinds[a.dtype.name]}{list(a.shape)} global" for n, a in arrays.items()
    )
    text = f"""program p {{
{params}
kernel main grid bx in 1 threads tx in {count} {{
{body}
}}
}}
"""
    copies = {n: a.copy() for n, a in arrays.items()}
    machine.run(parse_program(text, "p.tw"), copies, threads=True)
    return copies


def test_buffers_at_one_place_share_bits():
    found = threads(
        """alloc a: float32[64] shared place=0
        alloc b: uint8[256] shared place=0
        a[tx] = X[tx]
        sync block
        for i in 0 .. 4 { Y[tx * 4 + i] = b[tx * 4 + i] }""",
        X=np.arange(64, dtype=np.float32), Y=np.zeros(256, np.uint8),
    )  # fmt: skip
    np.testing.assert_array_equal(found["Y"].view(np.float32), found["X"])


KINDS = (
    "float64 float32 tfloat32 float16 bfloat16 float8_e4m3fn float8_e5m2 bool int8 int16 int32 "
    "int64 uint8 uint16 uint32 uint64"
).split()


@pytest.mark.parametrize("kind", KINDS)
def test_every_type_through_shared_memory(kind):
    program = parse_program(f"""program p {{
  param X: {kind}[64] global
  param Y: {kind}[64] global
  param Z: float32[64] global
  kernel main grid bx in 1 threads tx in 64 {{
    alloc a: {kind}[64] shared
    alloc r: {kind}[2] local
    r[1] = X[tx]
    a[tx] = r[1]
    sync block
    Y[tx] = a[63 - tx]
    Z[tx] = float32(a[tx]) * 2.0
  }}
}}
""")
    x = (np.arange(64) % 8).astype(dtype(kind).numpy)
    args = {"X": x, "Y": np.zeros_like(x), "Z": np.zeros(64, np.float32)}
    machine.run(program, args, threads=True)
    np.testing.assert_array_equal(args["Y"], x[::-1])
    np.testing.assert_array_equal(args["Z"], x.astype(np.float32) * 2)


def test_views_share_bits():
    found = threads(
        """alloc a: int32[128] shared
        view b: uint8[256] shared of a offset=256
        alloc r: int32[2] local
        view s: uint8[8] local of r
        a[tx + 64] = X[tx]
        r[0] = X[tx]
        sync block
        for i in 0 .. 4 { Y[tx * 4 + i] = b[tx * 4 + i] }
        for i in 0 .. 4 { Z[tx * 4 + i] = s[i] }""",
        X=X64 * 999, Y=np.zeros(256, np.uint8), Z=np.zeros(256, np.uint8),
    )  # fmt: skip
    np.testing.assert_array_equal(found["Y"].view(np.int32), X64 * 999)
    np.testing.assert_array_equal(found["Z"].view(np.int32), X64 * 999)


def test_what_nothing_wrote_is_not_a_number():
    found = threads(
        "alloc a: bfloat16[64] shared\nalloc r: float32[2] local\nX[tx] = a[tx]\nY[tx] = r[1]",
        X=np.zeros(64, bf16), Y=np.zeros(64, np.float32),
    )  # fmt: skip
    assert np.isnan(found["X"].astype(np.float32)).all() and np.isnan(found["Y"]).all()


def test_reads_by_many_are_over_behind_a_barrier():
    found = threads(
        """alloc a: int32[64] shared
        a[tx] = X[tx]
        sync block
        Y[tx] = a[0]
        sync block
        X[tx] = a[tx]
        a[tx] = 0""",
        X=X64.copy(), Y=np.zeros(64, np.int32),
    )  # fmt: skip
    np.testing.assert_array_equal(found["X"], X64)


WRONG = {
    "write after read": (
        "alloc a: int32[64] shared\na[tx] = tx\nsync block\nX[tx] = a[63 - tx]\na[tx] = 0",
        r"race on a\[\d+\]: this writes it, but another thread",
    ),
    "a warp's barrier is not the block's": (
        "alloc a: int32[64] shared\na[tx] = tx\nsync warp\nX[tx] = a[63 - tx]",
        r"race on a\[63\]",
    ),
    "another view of the bytes": (
        """alloc a: int32[64] shared place=0
        alloc b: uint8[256] shared place=0
        a[tx] = tx
        X[tx] = int32(b[255 - tx])""",
        r"race on a\[63\]",
    ),
    "two values at once": (
        "alloc a: int32[1] shared\na[0] = tx",
        r"race on a\[0\]: two threads store different values",
    ),
    "behind a tensor": ("X[tx + 1] = 0", r"out-of-range: X\[64\] is outside X"),
    "before a tensor": ("let x = X[tx - 1]\nX[tx] = x", r"out-of-range: X\[-1\] is outside X"),
    "behind shared memory": (
        "alloc a: int32[32] shared\na[tx] = 0",
        r"out-of-range: a\[32\] is outside a",
    ),
    "half of the threads": ("if tx < 40 { sync block }", "24 threads do not reach this barrier"),
    "a barrier for all": (
        "alloc full: barrier[1] barrier\nbarrier_init full count 1",
        "one thread initialises a barrier",
    ),
    "nobody arrives": (
        """alloc full: barrier[1] barrier
        if tx == 0 { barrier_init full count 1 }
        sync block
        wait full[0] phase 0""",
        "deadlock",
    ),
    "unordered initialisation": (
        """alloc full: barrier[1] barrier
        if tx == 0 { barrier_init full count 64 }
        arrive full[0]
        wait full[0] phase 0""",
        r"nothing orders the initialisation of full\[0\]",
    ),
    "a leader speaks for others": (
        """alloc full: barrier[1] barrier
        alloc a: int32[64] shared
        if tx == 0 { barrier_init full count 1 }
        sync block
        a[tx] = tx
        if tx == 0 { arrive full[0] }
        wait full[0] phase 0
        X[tx] = a[63 - tx]""",
        r"race on a\[63\]",
    ),
    "an atomic and a plain read": (
        """alloc a: int32[64] shared
        a[tx] = 0
        sync block
        intrinsic atomic (&a[tx // 2:+1], tx) text="op=add"
        if tx % 2 == 1 { X[tx] = a[tx // 2] }""",
        r"race on a\[0\]: this reads it(.|\n)*first updated by atomic",
    ),
    "a plain read and an atomic": (
        """alloc a: int32[64] shared
        a[tx] = 0
        sync block
        X[tx] = a[0]
        intrinsic atomic (&a[0:+1], tx) text="op=add\"""",
        r"race on a\[0\]: this updates it",
    ),
    "two threads and a tensor": (
        "X[tx] = tx\nlet y = X[63 - tx]\nX[tx] = y",
        r"race on X\[63\]: this reads it, but another thread",
    ),
    "two values in a tensor": ("X[tx // 2] = tx", r"race on X\[0\]: two threads store different"),
    "a tensor, atomically and plainly": (
        'intrinsic atomic (&X[0:+1], tx) text="op=add"\nif tx == 5 { X[0] = 1 }',
        r"race on X\[0\]: this writes it",
    ),
    "a lane that does not run": (
        'if tx < 8 { intrinsic shfl_sync (X[tx], 20) result=y text="mask=active" }',
        "lane 0 asks for the value of lane 20, which does not run this",
    ),
    "lanes of a shuffle": (
        "if tx < 8 { intrinsic shfl_xor (X[tx], 1) result=y }",
        "shfl_xor is for all threads of a warp together",
    ),
}


@pytest.mark.parametrize("what", WRONG)
def test_errors_name_the_place(what):
    body, message = WRONG[what]
    with pytest.raises(RunError, match=message) as error:
        threads(body, X=X64)
    assert error.value.loc is not None and error.value.loc.file == "p.tw"


RIGHT = {
    "guarded": "if tx < 63 { X[tx + 1] = tx }",
    "select is lazy": "let x = X[tx - 1] if tx > 0 else 0\nsync block\nX[tx] = x",
    "within a warp": (
        "alloc a: int32[64] shared\na[tx] = tx\nsync warp\nX[tx] = a[tx ^ 31]\nsync warp\na[tx] = 0"
    ),
    "a shuffle orders a warp": (
        "alloc a: int32[64] shared\na[tx] = tx\nintrinsic shfl_xor (X[tx], 1) result=y\n"
        "X[tx] = a[tx ^ 31] + y"
    ),
    "half a warp": "alloc a: int32[64] shared\na[tx] = tx\nsync warp\nX[tx] = a[tx ^ 1]",
    "a thread's own": "alloc a: int32[64] shared\na[tx] = tx\nX[tx] = a[tx]\na[tx] = 1",
    "one value at once": "alloc a: int32[1] shared\na[0] = 5\nsync block\nX[tx] = a[0]",
    "all arrive": """alloc full: barrier[1] barrier
        alloc a: int32[64] shared
        if tx == 0 { barrier_init full count 64 }
        sync block
        a[tx] = tx
        arrive full[0]
        wait full[0] phase 0
        X[tx] = a[63 - tx]""",
    "a leader's own": """alloc full: barrier[1] barrier
        alloc a: int32[1] shared
        if tx == 0 { barrier_init full count 1 }
        sync block
        if tx == 0 {
          a[0] = 7
          arrive full[0]
        }
        wait full[0] phase 0
        X[tx] = a[0]""",
    "broadcast, then overwrite": """alloc a: int32[1] shared
        if tx == 3 { a[0] = 5 }
        sync block
        X[tx] = a[0]
        sync block
        if tx == 60 { a[0] = 6 }""",
    "atomics meet": """alloc a: int32[1] shared
        if tx == 0 { a[0] = 0 }
        sync block
        intrinsic atomic (&a[0:+1], tx) text="op=add"
        sync block
        X[tx] = a[0]""",
}


def blocks(body: str):
    head = "param X: int32[64] global\nkernel k grid bx in 2 threads tx in 32"
    text = f"program p {{\n{head} {{\n{body}\n}}\n}}"
    machine.run_threads(parse_program(text, "p.tw"), {"X": X64.copy()})


@pytest.mark.parametrize(
    "body", ["X[tx] = bx", "X[bx * 32 + tx] = 1\nlet y = X[tx]\nif bx == 1 { X[tx + 32] = y }",
             'if bx == 0 { intrinsic atomic (&X[0:+1], tx) text="op=add" } else { X[0] = 1 }']
)  # fmt: skip
def test_two_blocks_and_one_element(body):
    with pytest.raises(RunError, match=r"block-race: X\[\d+\]") as error:
        blocks(body)
    assert error.value.loc is not None


def test_blocks_that_keep_apart():
    blocks("X[bx * 32 + tx] = X[bx * 32 + tx] + 1")
    blocks('intrinsic atomic (&X[0:+1], tx) text="op=add"')


@pytest.mark.parametrize("what", RIGHT)
def test_what_is_ordered_runs(what):
    threads(RIGHT[what], 48 if what == "half a warp" else 64, X=X64)


def test_values_of_the_right_ones():
    def x(what):
        return threads(RIGHT[what], X=X64)["X"]

    np.testing.assert_array_equal(x("all arrive"), X64[::-1])
    assert (x("a leader's own") == 7).all() and (x("atomics meet") == X64.sum()).all()
    np.testing.assert_array_equal(x("guarded")[1:], X64[:-1])


CP_ASYNC = """alloc a: int32[256] shared
    intrinsic cp_async (&a[tx * 4:+4], &X[tx * 4:+4], 16 if tx < 60 else 0) text="bytes=16"
    commit cp_async
    wait_group cp_async pending 0
    {sync}
    for i in 0 .. 4 {{ Y[tx * 4 + i] = a[(63 - tx) * 4 + i] }}"""


def test_copies_by_threads_that_do_not_wait():
    x = np.arange(240, dtype=np.int32)
    y = np.ones(256, np.int32)
    found = threads(CP_ASYNC.format(sync="sync block"), X=x, Y=y)
    want = np.concatenate([x, np.zeros(16, np.int32)]).reshape(64, 4)[::-1]
    np.testing.assert_array_equal(found["Y"].reshape(64, 4), want)
    with pytest.raises(RunError, match=r"race on a\["):
        threads(CP_ASYNC.format(sync=""), X=x, Y=y)


def test_foreign_code_that_is_never_reached_does_no_harm():
    threads('if tx > 99 { intrinsic ptx text="trap;" }', X=X64)
    with pytest.raises(RunError, match="ptx is foreign code"):
        threads('if tx > 9 { intrinsic ptx text="trap;" }', X=X64)


def test_instructions_without_a_meaning_are_named(monkeypatch):
    monkeypatch.delitem(meaning.THREADS, "elect")
    with pytest.raises(RunError, match="no meaning for intrinsic elect") as error:
        threads("intrinsic elect tx < 32 result=leader: bool", X=X64)
    assert error.value.loc is not None and error.value.loc.line == 4


def test_thread_code_whose_only_stores_are_atomic_updates():
    @T.prim_func
    def number(Y: T.Tensor((100,), "int32")):
        for n in T.tile(100):
            T.atomic_add(Y[n], n.index)

    got = np.ones(100, np.int32)
    machine.run(lower(number.program, Target.parse("cuda -arch=sm_90a")).result, {"Y": got})
    assert got.tolist() == [*range(1, 101)]


@pytest.mark.parametrize("sanitize", [False, True])
def test_a_choice_among_hundreds(sanitize):
    """A register that is chosen at run time; the text of one may not be so deep."""
    t = Var("t", dtype("int32"))
    chain = const(0)
    for k in range(1, 300):
        chain = select(compare("==", t, const(k)), const(k % 7), chain)
    fr = SimpleNamespace(vars={"t": np.arange(40)}, mask=None)
    np.testing.assert_array_equal(Evaluator(sanitize=sanitize)(chain)(fr), np.arange(40) % 7)
