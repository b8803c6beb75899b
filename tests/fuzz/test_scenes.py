"""Random kernels about one thing each, and the schedules drawn for them."""

from __future__ import annotations

import pytest

from devtools.fuzz.check import DRAWN, WORDS, drawn
from devtools.fuzz.programs import make
from devtools.fuzz.recipe import render
from devtools.fuzz.run import judge
from devtools.fuzz.scenes import SCENES
from tilewright.ir.target import Target

# What programs of a kind have that those of the others seldom do.
PIECES = {
    "branches": ("else:", "if D", "T.view(", "T.serial("),
    "views": ("T.view(", "T.Pipelined(", "T.gemm("),
    "counters": ("return_prev=True", "T.atomic_max(", "T.atomic_min(", "use_tma=True"),
    "gathers": (">> ", "rng.permutation(", "T.if_then_else(", "T.gemm(", "// 3"),
    "chains": ("clear_accum=True", "num_stages=5", "T.alloc_local(", "T.Pipelined(0"),
    "tickets": ("T.Persistent(", "while t", "return_prev=True", "int64"),
    "ends": ("+ 3]", "- 8]", " - 1:", ") & (", "T.copy("),
    "ports": ("T.annotate_layout(", "T.view(", "T.unroll(", "T.Pipelined(", ":]"),
    "rows": ("clear=False", "T.reduce_sum(", "T.cummax(", "T.exp2(", "dim=0"),
}


@pytest.mark.parametrize("kind", SCENES)
def test_a_short_run_finds_nothing(kind):
    for seed in range(700, 702):
        verdict = judge(seed, ["interp", "cpu", DRAWN] if seed == 700 else ["interp", "cpu"], kind)
        assert verdict.kind in ("ok", "refused"), f"{verdict}\n{render(make(seed, kind))}"


@pytest.mark.parametrize("kind", SCENES)
def test_they_are_about_what_they_say(kind):
    text = "".join(render(make(seed, kind)) for seed in range(120))
    assert [piece for piece in PIECES[kind] if piece not in text] == []
    if kind != "counters":  # small types have no atomics
        kinds = ("bfloat16", "float8_e4m3fn", "int8")
        assert [name for name in kinds if f'"{name}"' not in text] == []


def test_every_choice_is_drawn():
    targets = [drawn(seed) for seed in range(300)]
    for name, values in WORDS.items():
        assert [v for v in values if not any(f"-{name}={v}" in t for t in targets)] == []
    assert any("-shared=" in t for t in targets) and any("-arch=sm_80" in t for t in targets)
    for text in targets:
        flags = [f for f in text.split()[1:] if not f.startswith("-shared=")]
        Target.parse(" ".join(["cuda", *flags]))


def test_numbers_at_the_ends_of_their_types():
    for seed in range(3):
        verdict = judge(seed, ["interp", "cpu", "threads"], "numbers")
        assert verdict.kind == "ok", f"{verdict}\n{render(make(seed, 'numbers'))}"
    text = "".join(render(make(seed, "numbers")) for seed in range(80))
    pieces = ("-2147483648", ">> 40", "range(start, stop, step)", "np.nan", "-0.0",
              "float8_e4m3fn", "T.fma(", "uint16", "** 3", "5e-324")  # fmt: skip
    assert [piece for piece in pieces if piece not in text] == []
