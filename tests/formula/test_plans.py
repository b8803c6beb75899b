"""Plans and schedules change no result, and the printed text is the kernel."""

from __future__ import annotations

import importlib.util
import random
import re

import numpy as np
import pytest

import tilewright as tw
import tilewright.math as tm
from tests.formula.cases import CASES
from tests.formula.test_program import agrees
from tilewright.formula.function import load


def loops_of(text: str) -> list[str]:
    """The variables of the loops over tiles, whose sizes are open."""
    found = []
    for names, sizes in re.findall(r"for ([\w, ]+) in T\.tile\((.*)\):", text):
        axes = re.findall(r"T\.each\([^()]*\)|\([^()]*(?:\([^()]*\)[^()]*)*\)|[^,()]+", sizes)
        axes = [a.strip() for a in axes if a.strip()]
        if names != "_" and len(axes) == len(names.split(", ")):
            pairs = zip(names.split(", "), axes, strict=True)
            found += [name for name, axis in pairs if not axis.startswith("T.each")]
    return list(dict.fromkeys(found))


@pytest.mark.parametrize("name", CASES)
def test_schedules_change_no_result(name):
    function, arrays = CASES[name]
    rng = random.Random(name)
    names = loops_of(tw.math(function).tile(*arrays))
    for _ in range(3):
        tiles = {n: rng.choice((4, 8, 16, 24, 32)) for n in names}
        agrees(tw.math(function, target="cpu").with_schedule(tiles=tiles), arrays, None)


@tw.math
def gelu_of_product(x, w, b):
    return tm.gelu(x @ w + b)


@tw.math
def causal(q, k, v):
    s = q @ tm.matrix_transpose(k) * q.shape[-1] ** -0.5
    i, j = tm.indices(s, -2, -1)
    return tm.softmax(tm.where(j <= i, s, -tm.inf), axis=-1) @ v


@pytest.mark.parametrize(
    ("function", "shapes", "most"),
    [
        (gelu_of_product, [(256, 64), (64, 128), (128,)], 20),
        (tw.math(lambda x: tm.softmax(x, axis=-1)), [(64, 1000)], 15),
        (causal, [(2, 128, 64)] * 3, 45),
    ],
)
def test_texts_are_short_and_are_the_kernel(function, shapes, most, tmp_path):
    arrays = [np.zeros(shape, np.float16) for shape in shapes]
    text = function.tile(*arrays)
    assert len(text[text.index("@tw.jit") :].splitlines()) <= most
    path = tmp_path / "kernel.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location("kernel", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    made, _ = function._of(tuple(arrays), {})
    own, saved = (
        k.on("cuda").compile(*made.examples()).get_kernel_source()
        for k in (load(made.program), getattr(module, made.program.name))
    )
    assert _without_lines(own) == _without_lines(saved)


def _without_lines(source: str) -> str:
    """The source but for the lines of Python that it names."""
    return re.sub(r'(?m)^\s*#line .*\n|"[^"\n]*"|//.*', "", source)
