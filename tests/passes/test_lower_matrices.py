"""Matrix instructions as thread code, run by the interpreter: products in every type from shared
memory and registers, loads and stores of matrices; and what is refused."""

from dataclasses import replace

import numpy as np
import pytest

from tests.cuda.atom_programs import CASES, wgmma
from tests.passes.test_lower_threads import TARGET
from tilewright import machine
from tilewright.ir.atoms import MATRIX_TYPES, matrix_fragments
from tilewright.ir.layout.fragment import parse_fragment, repeat, spatial
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.lower import gemm as lower_gemm
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import CompileError


def lowered(program):
    return run_pipeline(program, TARGET, LOWER, stage=Stage.LAID_OUT).result


def check(case):
    """Run a program's thread code; its outputs are what they should be."""
    inputs = case.inputs()
    wanted = case.wanted(inputs)
    args = {**inputs, **{n: np.full(w.shape, 7, w.dtype) for n, w in wanted.items()}}
    machine.run_threads(lowered(case.program), args)
    for tensor, want in wanted.items():
        np.testing.assert_array_equal(args[tensor].astype(float), want.astype(float))


@pytest.mark.parametrize("name", CASES)
def test_thread_code_of_matrix_instructions(name):
    check(CASES[name])


@pytest.mark.parametrize("name", CASES)
def test_the_program_means_the_same(name):
    case = CASES[name]
    inputs = case.inputs()
    wanted = case.wanted(inputs)
    args = {**inputs, **{n: np.zeros_like(w) for n, w in wanted.items()}}
    machine.run(case.program, args, sanitize=True)
    for tensor, want in wanted.items():
        np.testing.assert_array_equal(args[tensor], want)


def test_a_wrong_register_map_is_a_wrong_number(monkeypatch):
    case = wgmma("bfloat16", n=8)
    right = matrix_fragments("wgmma", MATRIX_TYPES["bfloat16"], 8)["c"]
    wrong = parse_fragment(repr(right).replace("(1,64)", "(64,1)"))
    assert wrong.is_bijective and wrong != right
    monkeypatch.setattr(lower_gemm, "matrix_fragments", lambda *_: {"c": wrong})
    with pytest.raises(AssertionError, match="not equal"):
        check(replace(case, text=case.text.replace(repr(right), repr(wrong))))


# ── refusals ─────────────────────────────────────────────────────────────────────────────────

ACC = matrix_fragments("wgmma", MATRIX_TYPES["bfloat16"], 64)["c"]
ROWS = spatial(64, 2) * repeat(1, 32)
A_MMA = spatial(4, 1) * matrix_fragments("mma", MATRIX_TYPES["bfloat16"])["a"]
C_MMA = spatial(4, 1) * matrix_fragments("mma", MATRIX_TYPES["bfloat16"])["c"]
B_MMA = matrix_fragments("mma", MATRIX_TYPES["bfloat16"])["b"].replicate(4)
WAIT = ("commit wgmma", "wait_group wgmma pending 0")
TILE = "S<3,3,3> o 0 o (64,64):(64,1)"
BYTES = "S<3,4,3> o 0 o (64,64):(128,1)"


def shared(name, kind, layout=TILE, shape=(64, 64)):
    return f'alloc {name}: {kind}{list(shape)} shared layout="{layout}"'


def held(name, kind, fragment=ACC):
    return f'alloc {name}: {kind}{list(fragment.tile)} fragment layout="{fragment}"'


REFUSED = {
    "fp8 with N contiguous": (
        [shared("a", "float8_e4m3fn", BYTES), shared("b", "float8_e4m3fn", BYTES)],
        [held("c", "float32"), "gemm a, b -> c atom=wgmma", *WAIT],
        "only 16-bit types may have M or N contiguous: transpose b",
    ),
    "tf32 with M contiguous": (
        [shared("a", "tfloat32", "S<3,2,3> o 0 o (32,(32,2)):(32,(1,1024))", (32, 64)),
         shared("b", "tfloat32", "S<3,2,3> o 0 o (64,32):(32,1)", (64, 32))],
        [held("c", "float32"),
         "gemm a, b -> c transpose_a=true transpose_b=true atom=wgmma", *WAIT],
        "no matrix descriptor says the layout of a",
    ),
    "two families": (
        [shared("a", "bfloat16"), shared("b", "float16")],
        [held("c", "float32"), "gemm a, b -> c transpose_b=true atom=wgmma", *WAIT],
        "no matrix instruction multiplies bfloat16 by float16 into float32",
    ),
    "bf16 into float16": (
        [shared("a", "bfloat16"), shared("b", "bfloat16")],
        [held("c", "float16"), "gemm a, b -> c transpose_b=true atom=wgmma", *WAIT],
        "bfloat16 by bfloat16 into float16",
    ),
    "float32 without tf32": (
        [shared("a", "float32"), shared("b", "float32")],
        [held("c", "float32"), "gemm a, b -> c transpose_b=true atom=wgmma", *WAIT],
        'precision="tf32" for float32',
    ),
    "a register operand of another type's map": (
        [shared("b", "int8", BYTES)],
        [held("c", "int32"), held("a", "int8"),
         "gemm a, b -> c transpose_b=true atom=wgmma", *WAIT],
        "a does not have the registers that wgmma needs",
    ),
    "rows of a fragment": (
        [shared("t", "bfloat16")],
        [held("x", "bfloat16", ROWS), "copy t -> x atom=ldmatrix"],
        "the registers of x are not matrices that ldmatrix moves",
    ),
    "rows off 16 bytes": (
        [shared("t", "bfloat16", "(64,64):(68,1)")],
        [held("x", "bfloat16"), "copy x -> t atom=stmatrix"],
        "stmatrix needs rows of 16 contiguous bytes in t, aligned to 16",
    ),
    "a swizzle of less than 16 bytes": (
        [shared("t", "bfloat16", "S<3,2,3> o 0 o (64,64):(64,1)")],
        [held("x", "bfloat16"), "copy t -> x atom=ldmatrix"],
        "ldmatrix needs rows of 16 contiguous bytes",
    ),
    "a start off 16 bytes": (
        [shared("t", "bfloat16", "(64,72):(72,1)", (64, 72))],
        [held("x", "bfloat16"), "copy t[:, 4:+64] -> x atom=ldmatrix"],
        "ldmatrix needs rows of 16 contiguous bytes",
    ),
    "transposed bytes": (
        [shared("t", "int8", "(64,32):(1,64)", (64, 32))],
        [held("x", "int8", matrix_fragments("wgmma", MATRIX_TYPES["int8"])["a"]),
         "copy t -> x atom=ldmatrix"],
        "the registers of x are not matrices",
    ),
    "a conversion while loading": (
        [shared("t", "bfloat16")],
        [held("x", "float32"), "copy t -> x atom=ldmatrix"],
        "ldmatrix from bfloat16 to float32",
    ),
    "copies of elements": (
        [shared("t", "bfloat16", "(16,8):(8,1)", (16, 8))],
        [held("x", "bfloat16", B_MMA), "copy x -> t atom=stmatrix"],
        "several threads hold elements of x",
    ),
    "mma from shared memory": (
        [shared("a", "bfloat16", "(64,16):(16,1)", (64, 16))],
        [held("b", "bfloat16", B_MMA), held("c", "float32", C_MMA), "gemm a, b -> c atom=mma"],
        "mma multiplies fragments, and a is in shared memory",
    ),
    "mma of other registers": (
        [],
        [held("a", "bfloat16", spatial(64, 2) * repeat(1, 8)), held("b", "bfloat16", B_MMA),
         held("c", "float32", C_MMA), "gemm a, b -> c atom=mma"],
        "a does not have the registers that mma needs",
    ),
    "mma of another warp's rows": (
        [],
        [held("a", "bfloat16", (spatial(2, 1) * (repeat(2, 1) * matrix_fragments(
            "mma", MATRIX_TYPES["bfloat16"])["a"])).replicate(2)),
         held("b", "bfloat16", B_MMA), held("c", "float32", C_MMA), "gemm a, b -> c atom=mma"],
        "warps do not hold the part of a that their part of c needs",
    ),
    "fma from registers": (
        [shared("b", "float32", "(16,8):(8,1)", (16, 8))],
        [held("a", "float32", A_MMA), held("c", "float32", C_MMA), "gemm a, b -> c atom=fma"],
        "a thread needs an element of a that it does not hold",
    ),
    "fma into bf16": (
        [shared("a", "float32", "(64,16):(16,1)", (64, 16)),
         shared("b", "float32", "(16,8):(8,1)", (16, 8))],
        [held("c", "bfloat16", C_MMA), "gemm a, b -> c atom=fma"],
        "fma accumulates in",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_refusals_say_why_and_where(name):
    tiles, body, message = REFUSED[name]
    head = ["program p {", "kernel main grid bx in 1 threads tx in 128 {"]
    lines = [*head, *tiles, "role r warps 0 + 4 {", *body, "}\n}\n}"]
    with pytest.raises(CompileError) as error:
        lowered(parse_program("\n".join(lines), "p.tw"))
    assert message in str(error.value)
    (line,) = (i for i, text in enumerate(lines) if "atom=" in text)
    assert error.value.loc is not None and error.value.loc.line == line + 1
