"""Asking for more than there is fails while compiling, with the line and the figures."""

from types import SimpleNamespace

import pytest

import tilewright as tw
from tilewright.ir.chips import CHIPS
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.targets.cuda.launch import check_fits
from tilewright.targets.cuda.nvrtc import Resources

HEAD = "program p {\n  param X: float32[64] global\n  kernel k grid b in "
SHARED = '1 threads t in 128 {\n    alloc s: float32[{n}] shared layout="{n}:1"\n    s[t] = X[t]\n'


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (
            SHARED.replace("{n}", "70000") + "    X[t] = s[127 - t]\n",
            ("k.tw:4", "s needs more shared memory", "at most 232448 bytes", "280000 bytes: 70000"),
        ),
        ("1 threads t in 2048 {\n", ("k.tw:3", "threads is out of range", "1 … 1024", "2048")),
        ("64 threads t in 32 cluster=(32,) {\n", ("k.tw:3", "cluster", "at most 16", "(32,)")),
        (
            "1 threads t in 384 {\n    role a warps 0 + 4 registers=128 { }\n"
            "    role c warps 4 + 8 registers=240 { }\n",
            ("k.tw:5", "more registers", "at most 504", "168 each", "128 + 240 + 240 = 608"),
        ),
    ],
)
def test_refused_while_compiling(body, words):
    with pytest.raises(TilewrightError) as caught:
        tw.compile(tw.parse_ir(HEAD + body + "  }\n}", "k.tw"), target="cuda")
    for word in words:
        assert word in str(caught.value), str(caught.value)


def test_as_much_as_there_is():
    text = (
        HEAD + '1 threads t in 128 {\n    alloc s: float32[58112] shared layout="58112:1"\n'
        '    map r in 128 layout="frag{tile=(128) tv=(128,1):(1,0)}" { s[r] = 0.0 }\n  }\n}'
    )
    kernel = tw.compile(tw.parse_ir(text, "k.tw"), target="cuda")
    assert kernel.resources["shared_bytes"] == 232_448


def fits(**change):
    resources = change.pop("resources", Resources(168, max_threads=384, params=(8, 4)))
    asked = {"threads": 384, "shared": 200_000, "cluster": (2, 1, 1), "sizes": (8, 4), **change}
    check_fits(SimpleNamespace(kernel="gemm", loc=None, **asked), resources, CHIPS["sm_90a"])


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"resources": Resources(255)}, r"98304 \(255 in each of 384 threads\)"),
        ({"resources": Resources(168, static_shared=40_000)}, "7552 too many"),
        ({"cluster": (4, 4, 2)}, r"32 \(4, 4, 2\)"),
        ({"threads": 512}, "its launch bound"),
        ({"sizes": (8, 8)}, r"\(8, 4\) bytes"),
        ({"sizes": (40_000,), "resources": Resources(168)}, "at most 32764 bytes"),
    ],
)
def test_what_the_compiled_code_takes(change, text):
    fits()
    with pytest.raises(CompileError, match=text):
        fits(**change)
