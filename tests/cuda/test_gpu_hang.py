"""A hang on a real GPU is an error that names the barrier, its slot and line, within seconds; the
intact schedule in a diagnostic build is right. Each in a child process that can be killed."""

import re
import time

import pytest

from tests.schedules.harness import HERE, load, sync_ops, without
from tilewright.ir.op import Arrive, Sync
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.support.errors import HangError
from tilewright.targets.cuda.guard import run_guarded
from tilewright.targets.cuda.kernel import compile_program

SCHEDULES = ["gemm_cooperative", "gemm_pingpong", "softmax_cluster"]


# Dropping the only arrival at a barrier is refused by the verifier: these leave it out once.
ONCE = {
    ("gemm_cooperative", "full"): ("arrive full[s] bytes=49152", "ki != 3"),
    ("gemm_pingpong", "full"): ("arrive full[s] bytes=32768", "ki != 3"),
    ("softmax_cluster", "got"): ("arrive got[s]@peer bytes=64", "tile != 5"),
}


def dropped(name):
    """(index, barrier) of the arrivals that the verifier lets go."""
    for index, op in enumerate(sync_ops(load(name))):
        if isinstance(op, Arrive) and (name, op.barrier.buffer.name) not in ONCE:
            yield index, op.barrier.buffer.name


def mutant(name, what):
    """The schedule without the arrival of that index, or with the one of `ONCE` left out once."""
    if isinstance(what, int):
        return without(load(name), what)
    text = (HERE / f"{name}.tw").read_text()
    arrive, condition = ONCE[name, what]
    assert arrive in text
    return parse_program(text.replace(arrive, f"if {condition} {{ {arrive} }}"), MUTANT)


MUTANT = "mutant.tw"
CASES = [(name, *case) for name in SCHEDULES for case in dropped(name)]
CASES += [(name, barrier, barrier) for name, barrier in ONCE]


def problem(name):
    """Arguments that go round every ring, and a check of the result."""
    import torch

    torch.manual_seed(0)
    if name == "softmax_cluster":
        x = torch.randn(400, 900, device="cuda")
        y = torch.full_like(x, 7)
        args = {"X": x, "Y": y, "scale": 1.4426950408889634, "blocks": 16}
        return args, lambda: torch.testing.assert_close(y, torch.softmax(x, 1))
    a = torch.randint(-2, 3, (1024, 640), device="cuda").bfloat16()
    b = torch.randint(-2, 3, (640, 1024), device="cuda").bfloat16()
    c = torch.full((1024, 1024), torch.nan, device="cuda", dtype=torch.bfloat16)
    want = (a.double() @ b.double()).bfloat16()
    return {"A": a, "B": b, "C": c, "blocks": 8}, lambda: torch.testing.assert_close(
        c, want, rtol=0, atol=0
    )


def run_intact(name):
    kernel = compile_program(load(name), Target.parse("cuda -diagnostic"))
    args, check = problem(name)
    for _ in range(3):
        kernel(args)
        check()


def caught(program, args):
    """What the user reads, and the seconds until then."""
    kernel = compile_program(program, Target.parse("cuda -diagnostic"))
    started = time.monotonic()
    try:
        kernel(args)
    except HangError as error:
        assert error.loc is not None
        return error.message, error.loc.line, str(error), time.monotonic() - started
    raise AssertionError("it did not hang")


def run_mutant(name, what):
    return caught(mutant(name, what), problem(name)[0])


LONELY = """
program lonely {
  param X: float32[64] global
  kernel main grid b in 1 threads t in 64 {
    role first warps 0 + 1 {
      sync named id=3 threads=64
    }
    role second warps 1 + 1 {
      sync named id=4 threads=64
    }
  }
}
"""


def run_lonely():
    import torch

    program = parse_program(LONELY, "lonely.tw")
    return caught(program, {"X": torch.zeros(64, device="cuda")})


def lines_of(name, barrier):
    """Lines on which the schedule waits for a barrier."""
    text = (HERE / f"{name}.tw").read_text().splitlines()
    return [n for n, line in enumerate(text, 1) if line.strip().startswith(f"wait {barrier}[")]


def test_the_lonely_program_compiles():
    kernel = compile_program(parse_program(LONELY, "lonely.tw"), Target.parse("cuda -diagnostic"))
    assert "tw::sync_named(3, 64, 0);" in kernel.source


@pytest.mark.parametrize("name, barrier", ONCE)
def test_mutants_compile(name, barrier):
    assert compile_program(mutant(name, barrier), Target.parse("cuda -diagnostic")).cubin


@pytest.mark.gpu
@pytest.mark.parametrize("name", SCHEDULES)
def test_intact_schedules_are_right(name):
    run_guarded(run_intact, name, timeout=120)


@pytest.mark.gpu
@pytest.mark.parametrize("name, what, barrier", CASES)
def test_a_dropped_arrival_names_its_barrier(name, what, barrier):
    message, line, text, seconds = run_guarded(run_mutant, name, what, timeout=120)
    assert seconds < 20
    named = re.findall(rf"`wait {barrier}\[\d+\] phase [01]`", text)
    assert named and any(f".tw:{n}:" in text for n in lines_of(name, barrier)), text
    if isinstance(what, int):  # else the other role may have come to stand within a microsecond
        assert message.startswith(named[0]) and f"{line} |" in text, text
        assert line in lines_of(name, barrier), text


@pytest.mark.gpu
def test_a_dropped_signal_is_in_the_report():
    """A named barrier has no clock: it is another's wait that expires, or the host that sees it."""
    ops = sync_ops(load("gemm_pingpong"))
    index = next(i for i, op in enumerate(ops) if isinstance(op, Sync) and op.arrive)
    _, _, text, seconds = run_guarded(run_mutant, "gemm_pingpong", index, timeout=120)
    assert "sync named id=" in text and seconds < 20


@pytest.mark.gpu
def test_threads_that_never_meet():
    message, line, text, seconds = run_guarded(run_lonely, timeout=120)
    id, role, thread = {6: (3, "first", 0), 9: (4, "second", 32)}[line]
    assert message.startswith(f"`sync named id={id} threads=64`"), text
    assert f"role {role}, block (0, 0, 0), thread {thread}" in text
    assert "id=3" in text and "id=4" in text and seconds < 20
