"""How much work compiling an attention is, counted, not timed: what is found once is not looked for
again, and what the compiler is given is small."""

from __future__ import annotations

import sys
from collections import Counter
from dataclasses import replace
from types import FrameType
from typing import Any

import pytest

from tilewright.ir import verify as verifier
from tilewright.ir.analysis import accesses
from tilewright.ir.expr import const
from tilewright.ir.op import For, Intrinsic, Program, Store, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage, verify
from tilewright.support.errors import VerifyError
from tilewright.targets.cuda import backend
from tilewright.targets.cuda.instructions import MOST_PRODUCTS, adjacent, together
from zoo.attention.flash import flash_attention

ROLES = Target.parse("cuda -roles -persistent")


def attention(sequence: int, causal: bool = True) -> Program:
    blocks: dict[str, Any] = {"block_M": 128, "block_N": 128, "threads": 256}
    made = flash_attention.prim_func(
        2, 16, 16, sequence, sequence, 128, causal, **blocks, dtype="bfloat16"
    )
    program: Program = made.program
    return program


def test_calls() -> None:
    """Some 550,000 calls and resumptions of Python functions, 0.3 s; 1,300,000 when nothing was
    remembered."""
    backend.lower(attention(1024), ROLES)  # imports and tables that processes have once
    program, calls = attention(2048), 0

    def count(frame: FrameType, event: str, arg: object) -> None:
        nonlocal calls
        calls += event == "call"

    sys.setprofile(count)
    try:
        backend.lower(program, ROLES)
    finally:
        sys.setprofile(None)
    assert calls < 800_000


def test_ops_are_looked_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Hazards are mended one by one; what ops access is found once for all of these walks."""
    found: Counter[Any] = Counter()
    kept: list[Any] = []
    find = accesses.Accesses.find

    def counted(self: Any, op: Any, loops: Any, differs: Any) -> Any:
        found[id(self), id(op), loops] += 1
        kept.append((self, op))  # ids stay theirs
        return find(self, op, loops, differs)

    monkeypatch.setattr(accesses.Accesses, "find", counted)
    backend.lower(attention(1024), ROLES)
    assert len(found) > 100 and max(found.values()) == 1


def test_programs_are_verified_once(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[Program, Stage]] = []
    check = verifier._verify

    def counted(program: Program, stage: Stage) -> None:
        seen.append((program, stage))
        check(program, stage)

    monkeypatch.setattr(verifier, "_verify", counted)
    trace = backend.lower(attention(1024), ROLES)
    steps = (*backend.FIRST, *backend.SCHEDULE, *backend.LOWER)
    stages = {step.name: step.stage for step in steps}
    stages["input"] = Stage.TILE
    for step in trace:  # every result was looked at, as what it claims to be
        assert any(p is step.program and s is stages[step.name] for p, s in seen)
    assert len({(id(p), s) for p, s in seen}) == len(seen)


def test_a_wrong_program_stays_wrong() -> None:
    program = attention(1024)
    verify(program, Stage.TILE)
    with pytest.raises(VerifyError):
        verify(program, Stage.THREAD)
    with pytest.raises(VerifyError):
        verify(program, Stage.THREAD)
    # the same expressions, whose types are known to be right, where their variables are not
    (kernel,) = program.kernels
    loop = next(op for op in walk_ops(kernel) if isinstance(op, For))
    assert any(isinstance(op, Store) for op in walk_ops(loop))
    bare = replace(program, kernels=(replace(kernel, body=loop.body),))
    with pytest.raises(VerifyError):
        verify(bare, Stage.TILE)


@pytest.mark.parametrize("causal", [False, True])
def test_products_are_one_statement(causal: bool) -> None:
    lowered = backend.lower(attention(1024, causal), ROLES).result
    products = [
        op
        for kernel in lowered.kernels
        for op in walk_ops(kernel)
        if isinstance(op, Intrinsic) and op.name == "wgmma"
    ]
    statements = [
        line
        for line in backend.emit_program(lowered).text.splitlines()
        if line.lstrip().startswith("wgmma_")
    ]
    assert len(statements) * MOST_PRODUCTS == len(products)
    assert all("_x8(" in line for line in statements)


def test_only_what_adds_to_one_accumulator_is() -> None:
    lowered = backend.lower(attention(1024), ROLES).result
    (body,) = [
        body
        for op in walk_ops(lowered.kernels)
        if isinstance(op, For)
        for body in [tuple(i for i in op.body if isinstance(i, Intrinsic) and i.name == "wgmma")]
        if body
    ][:1]
    run = adjacent(body, 0)
    assert run == list(body[:MOST_PRODUCTS])
    one = together(run)
    assert one.args == (run[0].args[0], *(a for op in run for a in op.args[1:3]), run[0].args[3])
    first, second, *rest = run
    assert adjacent((first,), 0) == []
    anew = replace(second, args=(*second.args[:3], const(0)))
    assert adjacent((first, anew, *rest), 0) == []
    assert adjacent((first, second, anew), 0) == [first, second]
    other = replace(second, text=second.text + " tb=1")
    assert adjacent((first, other), 0) == []
