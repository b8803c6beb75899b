"""Exports for the CPU: run from C++, against the interpreter, and against their contracts."""

from __future__ import annotations

import json
import shutil
import subprocess
from hashlib import sha256

import numpy as np
import pytest

import tilewright as tw
from tests.commands import ROOT, tilewright
from tests.export import programs
from tests.export.library import (
    COMPILER,
    CONTRACT,
    MACHINE,
    OK,
    PROGRAMS,
    Library,
    needs_compiler,
    tensor,
    tensor_of,
    write_export,
)
from tilewright.support.errors import LaunchError
from tilewright.targets.arrays import ProgramCheck, view_of

pytestmark = needs_compiler
KERNELS = ["scale", "rows", "pieces", "softmax", "two_steps", "product"]
SIZES = ["M=96, N=80, K=64", "N=40", "x='float32[40, 24]'"]


def words(kernels=KERNELS, sizes=SIZES, *more):
    return (
        [w for k in kernels for w in ("--kernel", k)]
        + [w for s in sizes for w in ("--sizes", s)]
        + ["--target", "cpu", *more]
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return write_export(tmp_path_factory.mktemp("export") / "kernels", *words())


@pytest.fixture(scope="module")
def library(folder):
    return Library(folder)


def random(*shape, dtype=np.float32, seed=0):
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def test_dynamic_sizes_and_scalars(library):
    for rows in (0, 1, 5, 4096):
        a, b = random(rows, 8), np.full((rows, 8), 7, np.float32)
        assert library("scale", a, 3.0, b) == OK, library.message
        assert (b == a * 3).all()


def test_strides_and_unused_arrays(library):
    x, y = random(70, 12, dtype=np.float16), np.zeros((70, 12), np.float16)
    assert library("rows", x[:, :8], 1, None, y[:, :8]) == OK, library.message
    want = np.zeros((70, 12), np.float16)
    interp = tw.compile(programs.rows, target="interp")
    interp(x[:, :8], 1, np.zeros(70, np.int8), want[:, :8])
    assert (y == want).all() and y[:, :8].any() and not y[:, 8:].any()
    # interleaved with what is written, and yet apart from it
    both = np.zeros((70, 16), np.float16)
    both[:, :8] = x[:, :8]
    assert library("rows", both[:, :8], 1, None, both[:, 8:]) == OK, library.message
    assert (both[:, 8:] == want[:, :8]).all()


def test_sizes_inside_expressions(library):
    a, b = random(4 * 3 + 2), np.zeros((2, 2), np.float32)
    assert library("pieces", a, b) == OK, library.message
    assert (b[0] == a[:2] + 3).all()


def test_formulas_and_scratch_between_kernels(library):
    x = random(40, 24)
    out = np.zeros_like(x)
    assert library("softmax", x, out) == OK, library.message
    want = np.exp(x) / np.exp(x).sum(-1, keepdims=True)
    np.testing.assert_allclose(out, want, rtol=1e-5)
    a, out = random(40, 64, dtype=np.float16), np.zeros((40, 64), np.float32)
    assert library("two_steps", a, out) == OK, library.message
    assert (out == a.astype(np.float32)[::-1, ::-1] * 2 + 1).all()


def test_a_kernel_of_tile_values_equals_the_interpreter(library):
    a, b = random(96, 64, dtype=np.float16), random(64, 80, dtype=np.float16)
    c = np.zeros((96, 80), np.float32)
    assert library("product", a, b, c) == OK, library.message
    np.testing.assert_allclose(c, programs.product.on("interp")(a, b), rtol=1e-3, atol=1e-3)


def test_calls_against_the_contract_say_what_is_wrong(library):
    a, b = random(5, 8), np.zeros((5, 8), np.float32)
    odd = np.zeros(5 * 8 * 4 + 1, np.uint8)[1:].ctypes.data
    rank = tensor(a)
    rank.rank = 1
    flat, half = np.zeros((5, 0), np.float32), random(9, 8, dtype=np.float16)
    cases = [
        ("scale", (a.astype(np.float64), 2.0, b), "A has the wrong dtype: expected float32, got"),
        ("scale", (a, 2.0, random(6, 8)), "both n but differ"),
        ("scale", (random(5, 9), 2.0, b), "A has the wrong size in dimension 1: expected 8"),
        ("scale", (np.ones((8, 5), np.float32).T, 2.0, b), "A has the wrong stride in dimension 1"),
        ("scale", (None, 2.0, b), "A is null"),
        ("scale", (tensor_of(0, "float32", (5, 8), (8, 1)), 2.0, b), "A has no memory"),
        ("scale", (tensor_of(odd, "float32", (5, 8), (8, 1)), 2.0, b), "A is misaligned"),
        ("scale", (rank, 2.0, b), "A must have 2 dimensions"),
        ("scale", (b, 2.0, b), "B is written and overlaps A"),
        ("scale", (tensor_of(64, "float32", (-1, 8), (8, 1)), 2.0, b), "A has -1 elements"),
        ("scale", (random(4097, 8), 2.0, random(4097, 8)), "the contract of n is broken"),
        ("scale", (flat, 2.0, b), "A has the wrong size in dimension 1"),
        ("rows", (half, 2**31, None, half + half), "stream = 2147483648 does not"),
        ("pieces", (random(15), np.zeros((2, 2), np.float32)), "no m gives dimension 0 of A"),
        ("pieces", (random(4), np.zeros((0, 2), np.float32)), "the contract of k is broken"),
        ("product", (random(96, 64), random(64, 80), random(96, 80)), "expected float16"),
    ]
    for kernel, arguments, text in cases:
        assert library(kernel, *arguments) == CONTRACT, text
        assert text in library.message, (library.message, text)
    assert library("scale", a, 2.0, b, stream=1) == CONTRACT and "streams" in library.message


def lies(rng, count, step):
    """An array that may or may not be what `rows` takes, in memory that others may have, too."""
    odd = rng.integers(0, 12)
    kind = np.int16 if odd == 0 else np.float16
    count = int(rng.integers(0, 5)) if odd == 1 else count
    step = int(rng.choice([0, 4, 8, 12, 16, -8])) if odd == 2 else step
    shape, inner = (count, 7 if odd == 3 else 8), 2 if odd == 4 else 1
    begin = int(rng.integers(0, 96)) + (64 if step < 0 else 0)
    base = MEMORY[begin:].view(kind)
    return np.lib.stride_tricks.as_strided(base, shape, (step * 2, inner * 2))


MEMORY = np.zeros(4096, np.float16)


def test_contracts_are_those_of_python(library):
    """The same calls are refused, whatever their strides, overlaps and sizes."""
    rng = np.random.default_rng(3)
    program = programs.rows.program
    check = ProgramCheck(program, {"Y"})
    agreed = {True: 0, False: 0}
    for _ in range(1500):
        count, step = int(rng.integers(0, 5)), int(rng.choice([4, 8, 12, 16, 20, 24]))
        x, y = lies(rng, count, step), lies(rng, count, step)
        views = {"X": view_of(x, "X", host=True), "Y": view_of(y, "Y", host=True)}
        try:
            check(views)
            fine = True
        except LaunchError:
            fine = False
        first = int(rng.integers(0, 3))
        status = library("rows", x, first, None, y)
        assert (status == OK) is fine, (library.message, x.shape, x.strides, y.shape, y.strides)
        agreed[fine] += 1
    assert min(agreed.values()) > 200, agreed


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("cmake") is None, reason="no cmake")
def test_the_example_builds_by_cmake_and_runs(tmp_path):
    example, exported = ROOT / "examples" / "deploy", tmp_path / "exported"
    sizes = ["--sizes", 'x="float32[8, 256]"']
    done = tilewright("export", example / "kernels.py", "--target", "cpu", *sizes, "-o", exported)
    assert done.returncode == 0 and "kernels_softmax(" in done.stdout, done.stderr
    for command in (
        ["cmake", "-S", example, "-B", "build", f"-DKERNELS={exported}"],
        ["cmake", "--build", "build"],
    ):
        built = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True)
        assert built.returncode == 0, built.stdout + built.stderr
    ran = subprocess.run([tmp_path / "build" / "server"], capture_output=True, text=True)
    assert ran.stdout.splitlines() == [
        "y[0][255] = 2.49219, a row of p sums to 1.000",
        "refused: softmax: X has the wrong size in dimension 1: expected 256 of "
        "float32[ROWS, 256], got 255",
    ]


def test_what_lacks_sizes_is_left_out_and_told(tmp_path):
    kernels = ["--kernel", "scale", "--kernel", "softmax"]
    done = tilewright("export", PROGRAMS, "--target", "cpu", *kernels[:2], "-o", tmp_path / "a")
    assert done.returncode == 0 and not done.stderr
    example = ROOT / "examples" / "deploy" / "kernels.py"
    done = tilewright("export", example, "--target", "cpu", "-o", tmp_path / "b")
    assert done.returncode == 0
    assert "left out: softmax: call it in the file, or pass --sizes" in done.stderr


def test_sizes_of_one_formula_are_not_all_of_another(tmp_path):
    file = tmp_path / "two.py"
    file.write_text(
        "import tilewright as tw\n\n\n@tw.math\ndef scaled(x, w):\n    return x * w\n\n\n"
        "@tw.math\ndef picked(x, i):\n    return x[i]\n"
    )
    sizes = [f"x='float32[5]', {each}" for each in ("w='float32[5]'", "i='int64[3]'")]
    given = [word for each in sizes for word in ("--sizes", each)]
    done = tilewright("export", file, "--target", "cpu", *given, "-o", tmp_path / "a")
    assert done.returncode == 0 and "left out" not in done.stderr
    header = (tmp_path / "a" / "two.h").read_text()
    assert header.count("two_scaled") == header.count("two_picked") > 0


def test_the_header_is_c(folder, tmp_path):
    file = tmp_path / "user.c"
    file.write_text('#include "programs.h"\nint main(void) { return programs_message() == 0; }\n')
    command = [COMPILER, "-x", "c", "-std=c99", "-Wall", "-Werror", "-c", "-I", folder, file, "-o",
               tmp_path / "user.o"]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_another_processor_is_refused(tmp_path):
    folder = write_export(tmp_path / "x", *words(["scale"], []))
    source = (folder / "programs.cpp").read_text()
    start = source.index("bool fits()")
    end = source.index("\n", start)
    changed = source[:start] + "bool fits() { return false; }" + source[end:]
    (folder / "programs.cpp").write_text(changed)
    other = Library(folder)
    a = random(5, 8)
    assert other("scale", a, 2.0, a.copy()) == MACHINE and "exported for " in other.message


def test_the_same_input_gives_the_same_bytes_and_the_manifest_has_their_sums(folder, tmp_path):
    again = write_export(tmp_path / "again", *words())
    names = {f.name for f in folder.iterdir()}
    assert names == {f.name for f in again.iterdir()}
    for name in names:
        assert (folder / name).read_bytes() == (again / name).read_bytes(), name
    manifest = json.loads((folder / "manifest.json").read_text())
    assert set(manifest["sha256"]) == names - {"manifest.json"}
    for name, sum_ in manifest["sha256"].items():
        assert sha256((folder / name).read_bytes()).hexdigest() == sum_
    (scale,) = (f for f in manifest["functions"] if f["name"] == "scale")
    assert scale["sizes"] == [{"name": "n", "min": 0, "max": 4096, "multiple_of": 1}]
    assert scale["parameters"][2]["shape"] == ["n", 8] and scale["parameters"][2]["written"]


def test_an_export_replaces_an_export_and_nothing_else(tmp_path):
    folder = write_export(tmp_path / "x", *words(["scale"], [], "--name", "one"))
    write_export(folder, *words(["pieces"], [], "--name", "two"))
    assert not (folder / "one.h").exists() and not (folder / "scale.o").exists()
    (tmp_path / "notes").mkdir()
    (tmp_path / "notes" / "mine.txt").write_text("mine")
    done = tilewright("export", PROGRAMS, *words(["scale"], []), "-o", tmp_path / "notes")
    assert done.returncode == 1 and "neither empty nor an export" in done.stderr


def test_several_sizes_are_several_functions(tmp_path):
    sizes = ["M=32, N=32, K=32", "M=64, N=32, K=32"]
    folder = write_export(tmp_path / "x", *words(["product"], sizes))
    header = (folder / "programs.h").read_text()
    assert "programs_product_M32_N32_K32(" in header and "programs_product_M64_N32_K32(" in header


@pytest.mark.parametrize(
    "given, text",
    [
        (["--kernel", "nothing", "--target", "cpu"], "made no kernel named 'nothing'"),
        (["--kernel", "clustered", "--target", "cpu"], "pass --sizes 'width=…'"),
        (["--kernel", "softmax", "--target", "cpu"], "call it in the file, or pass"),
        (["--kernel", "softmax", "--target", "cpu", "--sizes", "x='float32[0, 8]'"],
         "has no kernel for arguments like these"),
        (["--kernel", "nibbles", "--target", "cpu"], "elements of some bits"),
        (["--kernel", "scale", "--target", "cpu", "--sizes", "1 +"], "--sizes '1 +' does not read"),
        (["--target", "interp"], "has no machine code"),
        (["--target", "cpu", "--arch", "sm_90a"], "--arch is for CUDA"),
        (["--arch", "sm_1"], "unknown architecture"),
    ],
)  # fmt: skip
def test_exports_that_cannot_be(tmp_path, given, text):
    done = tilewright("export", PROGRAMS, *given, "-o", tmp_path / "x")
    assert done.returncode in (1, 2) and text in done.stderr, done.stderr


@pytest.mark.parametrize("flag", ["TILEWRIGHT_SANITIZE", "TILEWRIGHT_DIAGNOSTIC"])
def test_checking_builds_are_not_exported(tmp_path, flag):
    words = ["export", PROGRAMS, "--kernel", "scale", "--target", "cpu", "-o", tmp_path / "x"]
    done = tilewright(*words, **{flag: "1"})
    assert done.returncode == 1 and f"{flag}" in done.stderr, done.stderr
