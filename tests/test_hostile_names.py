"""Names of parameters, tiles, loops, functions and files that Python takes: every target takes them
too."""

import keyword
import linecache
import random
import re
import sys
import unicodedata

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.targets.cuda.names import RESERVED, Names, comment, quoted_path

WORDS = (
    "α ναι été 变量 ª a·b uint8_t int64_t size_t NULL NAN INFINITY INT_MAX FLT_MAX EOF asm new "
    "class int float double signed template typename namespace this nullptr xor and_eq static_cast "
    "tw tw_x TW_DEVICE shared warp __shared__ __global__ _Bool __x blockIdx threadIdx blockDim "
    "gridDim warpSize min max abs fabsf expf exp2f floorf isnan printf main float4 int2 uint dim3 "
    "half entry memset memcpy malloc sinf u3b1 linux assert bx v A_ zeros status work"
).split()
WORDS = [w for w in dict.fromkeys(WORDS) if w.isidentifier() and w not in keyword.kwlist]


def written(text, name="main", file=None):
    """The function `name` of a source text."""
    file = file or f"<names {hash(text)}>"
    linecache.cache[file] = (len(text), None, text.splitlines(True), file)
    found = {"T": T}
    exec(compile(text, file, "exec"), found)
    return found[unicodedata.normalize("NFKC", name)]


def everywhere(tensor, scalar, tile, loop, function="main", file=None):
    return written(
        f"""@T.prim_func
def {function}({tensor}: T.Tensor((64,), "float32"), {scalar}: T.float32):
    with T.Kernel(1, threads=64):
        {tile} = T.alloc_shared((64,), "float32")
        T.copy({tensor}, {tile})
        for {loop} in T.Parallel(64):
            {tensor}[{loop}] = T.abs(T.exp2({tile}[63 - {loop}] * {scalar})) + T.max({loop}, 1)
""",
        function,
        file,
    )


def check(kernel):
    a = np.arange(64, dtype=np.float32) / 64
    want = np.exp2(a[::-1] * 2) + np.maximum(np.arange(64), 1)
    kernel(a, 2.0)
    np.testing.assert_allclose(a, want, rtol=1e-5)


GROUPS = [WORDS[at : at + 5] for at in range(0, len(WORDS), 5)]


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("words", GROUPS, ids="-".join)
def test_words_in_every_place(words, target):
    """As a tensor, a scalar, a tile, a loop's variable and the function."""
    spare = iter(("p_", "q_", "r_", "s_"))
    tensor, scalar, tile, loop, function = [*words, *spare][:5]
    kernel = tw.compile(everywhere(tensor, scalar, tile, loop, function), target=target)
    if target == "cpu":
        check(kernel)


def test_all_words_as_variables_of_one_kernel():
    lines = "".join(f"        {w} = T.alloc_var('float32', {k})\n" for k, w in enumerate(WORDS))
    text = f"""@T.prim_func
def main(A: T.Tensor((64,), "float32")):
    with T.Kernel(1, threads=64):
        t = T.get_thread_binding()
{lines}        A[t] = {" + ".join(WORDS)} + T.exp2(A[t]) + T.max(t, 3) + T.floor(A[t])
"""
    a = np.zeros(64, np.float32)
    tw.compile(written(text), target="cuda")
    tw.compile(written(text), target="cpu")(a)
    assert a[5] == sum(range(len(WORDS))) + 1 + 5


def test_names_stay_different():
    names = Names(["twice"])
    given = ["α", "_u3b1", "a.b", "a_b", "A", "a", "new", "new_", "twice", "__shared__", "1x", "vx"]
    found = [names.of(n) for n in given]
    assert len(set(found)) == len(found)
    assert all(re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", n) for n in found)
    assert not set(found) & (RESERVED | {"twice"})


def test_kernels_of_one_program_stay_different():
    text = """program p {
  param X: float32[64] global
  kernel `a.b` grid b in 1 threads t in 64 { X[t] = 1.0 }
  kernel a_b grid b in 1 threads t in 64 { X[t] = X[t] + 2.0 }
}
"""
    program = tw.parse_ir(text)
    source = tw.compile(program, target="cuda").get_kernel_source()
    assert len(set(re.findall(r"\n(p_\w+)\(", source))) == 2
    x = np.zeros(64, np.float32)
    tw.compile(program, target="cpu")(x)
    assert (x == 3).all()


PATHS = ["a\nb.py", 'a"b.py', "a\\", "a\\\nb", "α.py", "a\rb", "\udcff.py", "??/x", "*/x", "a/"]


@pytest.mark.parametrize("path", PATHS)
def test_paths_of_every_kind(path):
    kernel = tw.compile(everywhere("A", "s", "t", "i", file=path), target="cpu")
    check(kernel)
    source = tw.compile(
        everywhere("A", "s", "t", "i", file=path), target="cuda"
    ).get_kernel_source()
    lines = [line for line in source.splitlines() if line.startswith("#line")]
    assert lines and all(re.fullmatch(r'#line \d+ "[^"\\\\]*"', line) for line in lines)


@pytest.mark.parametrize("path", ['a"b.py', "a\\b.py", "a(1).py", "a(1): error: b.py"])
def test_errors_of_the_toolchain_in_files_of_every_kind(path):
    text = """@T.prim_func
def main(A: T.Tensor((64,), "int32")):
    with T.Kernel(1, threads=64):
        A[0] = 1
        T.call_extern("void", "nobody", A[0])
"""
    with pytest.raises(tw.CompileError, match="nobody") as raised:
        tw.compile(written(text, file=path), target="cuda")
    assert (raised.value.loc.file, raised.value.loc.line) == (path, 5)


@pytest.mark.skipif(sys.platform == "win32", reason="no such folders")
@pytest.mark.parametrize("name", ['a"b', "a\\", "a\nb"])
def test_folders_of_every_kind(name, tmp_path, monkeypatch):
    """With line information, NVRTC writes the current folder into PTX."""
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "cache"))
    (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / name)
    assert ".loc" not in tw.compile(everywhere("A", "s", "t", "i"), target="cuda").ptx
    for plain in ("/", str(tmp_path)):
        monkeypatch.chdir(plain)
        assert ".loc" in tw.compile(everywhere("B", "s", "t", "i"), target="cuda").ptx


def test_texts_behind_a_comment_sign_end_with_their_line():
    assert comment("a\\") == "a?" and comment("a\nint x;") == "a?int x;"
    assert quoted_path('a\n"b\\c') == "a??b/c"
    assert quoted_path("a/\\") == "a" and quoted_path("//") == quoted_path("") == "?"


def test_random_names():
    """Random identifiers, from the letters of several scripts."""
    rng = random.Random(7)
    letters = "aA_zZé0αβ变ñ"
    for _ in range(3):
        names = set()
        while len(names) < 4:
            word = "".join(rng.choices(letters, k=rng.randint(1, 4)))
            if word.isidentifier() and word != "T":
                names.add(word)
        check(tw.compile(everywhere(*sorted(names)), target="cpu"))
        tw.compile(everywhere(*sorted(names)), target="cuda")
