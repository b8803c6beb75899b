"""Target text, `pass_configs`, keyword arguments and files fill the same fields."""

from __future__ import annotations

import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.ir.op import For, walk_ops
from tilewright.ir.schedule import HOME, RECORDS, WORDS, Schedule, word
from tilewright.ir.target import Target
from tilewright.support.errors import CompileError
from zoo.gemm.gemm import gemm_relu

SIZES = (256, 256, 256)


def test_few_choices_are_public():
    named = [name for name, home in HOME.items() if home == "schedule" and name != "tiles"]
    assert len(named) <= 12


@pytest.mark.parametrize("name", WORDS)
def test_a_field_comes_back_from_text(name):
    plain = Target.parse("cuda")
    default = word(getattr(RECORDS[HOME[name]](), name))
    for text in WORDS[name]:
        value = WORDS[name][text]
        found = plain.choosing(**{name: value})
        assert getattr(getattr(found, HOME[name]), name) == value
        assert Target.parse(str(found)) == found == Target.parse(f"cuda -{name}={text}")
        assert (found == plain) is (text == default)


def test_all_ways_are_one(tmp_path):
    want = Target.parse("cuda -arch=sm_90a -roles=off -stages=3 -waits=each")
    want.schedule.save(tmp_path / "fast.json")
    jitted = gemm_relu.on("cuda -arch=sm_90a")
    said = {"roles": False, "stages": 3, "waits": "each"}
    for made in (
        gemm_relu.on(str(want)),
        jitted.with_schedule(**said),
        jitted.with_schedule(Schedule.load(tmp_path / "fast.json")),
        jitted.with_schedule(want.schedule, stages="3"),
        jitted.configured(said),
    ):
        assert made.compile(*SIZES).target == want


def test_a_number_of_stages_is_taken():
    given = gemm_relu.on("cuda -arch=sm_90a")
    for stages in (1, 5):
        kernel = given.with_schedule(stages=stages).compile(*SIZES)
        after = kernel.executable.trace.after("choose_stages").kernels[0]
        loops = [op for op in walk_ops(after) if isinstance(op, For) and op.kind == "pipelined"]
        assert [loop.stages for loop in loops] == [stages]
        assert f"{stages} stages, as requested" in kernel.explain()


def test_what_is_no_choice(tmp_path):
    with pytest.raises(CompileError, match="'maybe' is no choice for 'roles'") as caught:
        Schedule(roles="maybe")
    assert "auto or on or off" in caught.value.diagnostic.expected
    (tmp_path / "old.json").write_text('{"depth": "text"}')
    with pytest.raises(TypeError, match="'depth'"):
        Schedule.load(tmp_path / "old.json")
    with pytest.raises(CompileError, match="unknown option '-stages=seven'") as caught:
        Target.parse("cuda -stages=seven")
    assert "-roles=auto|on|off" in caught.value.diagnostic.expected
    assert "rows" not in caught.value.diagnostic.expected


def test_numerics_hold_on_every_target():
    @T.prim_func
    def total(X: T.Tensor((64,), "float32"), Y: T.Tensor((1,), "float32")):
        with T.Kernel(64, threads=32) as b:
            T.atomic_add(Y[0], X[b])

    for target in ("interp", "cuda", "cpu"):
        with pytest.raises(CompileError, match="other bits from run to run"):
            tw.compile(total, target=f"{target} -deterministic")
