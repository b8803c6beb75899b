"""The pass runner: order, verification with the pass's name, dumps, the trace."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.ir import op as O
from tilewright.ir.expr import const
from tilewright.ir.rewrite import map_ops, rebuild
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage
from tilewright.passes.run import Pass, Step, run_pipeline
from tilewright.support.errors import VerifyError

TEXT = """program "a b" {
  param A: float32[64] global
  kernel main grid bx in 8 threads tx in 64 {
    let x = 1
    A[tx] = 2.0
  }
  kernel second grid by in 8 threads ty in 64 {
    A[ty] = 3.0
  }
}
"""
CPU = Target.parse("cpu")


def double_stores(kernel, target):
    assert target is CPU

    def one(op):
        return rebuild(op, value=op.value * 2.0) if isinstance(op, O.Store) else None

    return map_ops(kernel, one)


def spoil(kernel, target):
    return map_ops(
        kernel, lambda op: rebuild(op, value=const(1)) if isinstance(op, O.Store) else None
    )


def drop_kernels(program, target):
    return dataclasses.replace(program, kernels=program.kernels[:1])


DOUBLE = Pass(double_stores, "first, because the rest reads stores")
FIRST = Pass(drop_kernels, "last", Stage.THREAD)


def test_passes_run_in_order_and_leave_a_trace():
    program = parse_program(TEXT)
    trace = run_pipeline(program, CPU, [DOUBLE, DOUBLE, FIRST])
    assert [name for name, _ in trace] == [
        "input",
        "double_stores",
        "double_stores",
        "drop_kernels",
    ]
    assert trace[0] == Step("input", program)
    assert "A[tx] = 2.0 * 2.0\n" in print_program(trace.after("double_stores"))
    assert "A[tx] = 2.0 * 2.0 * 2.0\n" in print_program(trace.result)
    assert len(trace.result.kernels) == 1
    with pytest.raises(KeyError, match="no pass called 'x' ran; there were input"):
        trace.after("x")


def test_an_error_names_the_pass_and_the_line():
    program = parse_program(TEXT, file="pipe.tw")
    passes = [DOUBLE, Pass(spoil, "to fail")]
    with pytest.raises(VerifyError) as caught:
        run_pipeline(program, CPU, passes)
    error = caught.value
    assert error.message == (
        "after pass spoil: the stored value has another type than what it goes to"
    )
    assert (error.loc.file, error.loc.line, error.loc.column) == ("pipe.tw", 5, 5)
    assert (error.diagnostic.expected, error.diagnostic.got) == ("float32", "int32")


def test_the_input_is_verified_too():
    program = spoil(parse_program(TEXT).kernels[0], CPU)
    broken = dataclasses.replace(parse_program(TEXT), kernels=(program,))
    with pytest.raises(VerifyError, match="the program given to the pipeline: the stored value"):
        run_pipeline(broken, CPU, [])


def test_dumps(tmp_path, monkeypatch):
    program = parse_program(TEXT)
    monkeypatch.setenv("TILEWRIGHT_DUMP", str(tmp_path))
    run_pipeline(program, CPU, [DOUBLE, DOUBLE])
    trace = run_pipeline(program, CPU, [FIRST])
    folder = tmp_path / "a_b.cpu"
    assert sorted(p.name for p in folder.iterdir()) == ["00_input.tw", "01_drop_kernels.tw"]
    assert parse_program((folder / "01_drop_kernels.tw").read_text()) == trace.result
    assert (folder / "00_input.tw").read_text() == TEXT
    run_pipeline(program, CPU, [], dump=tmp_path / "other")
    assert (tmp_path / "other" / "a_b.cpu" / "00_input.tw").exists()


def test_a_faulty_result_is_dumped(tmp_path):
    with pytest.raises(VerifyError) as caught:
        run_pipeline(parse_program(TEXT), CPU, [Pass(spoil, "")], dump=tmp_path)
    assert "A[tx] = int32(1)" in (tmp_path / "a_b.cpu" / "01_spoil.tw").read_text()
    told = (tmp_path / "a_b.cpu" / "02_spoil.error.txt").read_text()
    assert "after pass spoil" in told
    assert [name for name, _ in caught.value.trace] == ["input"]


def test_a_failing_pass_leaves_what_it_was_given(tmp_path):
    def fail(kernel, target):
        raise ValueError("not today")

    passes = [DOUBLE, Pass(fail, "")]
    with pytest.raises(ValueError) as caught:
        run_pipeline(parse_program(TEXT), CPU, passes, dump=tmp_path)
    names = sorted(p.name for p in (tmp_path / "a_b.cpu").iterdir())
    assert names == ["00_input.tw", f"01_{DOUBLE.name}.tw", "02_fail.error.txt"]
    assert len(caught.value.trace) == 2


def test_programs_of_one_name_keep_apart(tmp_path):
    program = parse_program(TEXT)
    other = dataclasses.replace(program, kernels=program.kernels[:1])
    for one in (program, other, program):
        run_pipeline(one, CPU, [], dump=tmp_path)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a_b.cpu", "a_b_2.cpu"]
    run_pipeline(program, Target.parse("cuda"), [], dump=tmp_path)
    assert (tmp_path / "a_b.cuda_arch_sm_90a").is_dir()
