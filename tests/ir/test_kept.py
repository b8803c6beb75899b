"""What is kept with ops and ranges says what a walk would say."""

from __future__ import annotations

from tilewright.ir.analysis.bounds import Ranges
from tilewright.ir.expr import Cmp, Load, Var, const
from tilewright.ir.op import (
    Body,
    For,
    Kernel,
    Op,
    bodies,
    bound,
    bound_within,
    named_buffers,
    read_buffers,
    regions,
    touched_within,
    walk_ops,
    written_buffers,
)
from tilewright.ir.scope import entry, inside, remembering
from tilewright.ir.text import parse_program

PROGRAM = """program p {
  dim n
  param X: float32[n] global
  param Y: float32[n] global
  kernel main grid bx in 4 threads tx in 128 {
    alloc S: float32[64] shared
    for k in 0 .. 3 {
      copy X[bx * 64:+64] -> S[:]
      map (i) in (64) {
        let v: float32 = S[i] + X[k]
        Y[i] = v
      }
    }
    if bx < 2 {
      fill S = 0.0
    }
  }
}
"""


def kernel() -> Kernel:
    return parse_program(PROGRAM).kernels[0]


def plainly(body: Body) -> list[Op]:
    return [x for op in body for x in (op, *(y for b in bodies(op) for y in plainly(b)))]


def test_walk_is_in_text_order() -> None:
    main = kernel()
    assert [*map(id, walk_ops(main))] == [id(main), *map(id, plainly(main.body))]
    assert [*map(id, walk_ops(main.body))] == [*map(id, plainly(main.body))]


def test_what_lies_within() -> None:
    for op in walk_ops(kernel()):
        inner = [*walk_ops(op)]
        assert [v for each in inner for v in bound(each)] == [*bound_within(op)]
        touched = {(b, False) for each in inner for b in read_buffers(each)}
        touched |= {(b, True) for each in inner for b in written_buffers(each)}
        assert set(touched_within(op)) == touched


def test_regions_and_names_of_an_op() -> None:
    by_kind = {type(op).__name__: op for op in walk_ops(kernel())}
    copy, store, let = by_kind["Copy"], by_kind["Store"], by_kind["Let"]
    assert [r.buffer.name for r in regions(copy, reads=True)] == ["X"]
    assert [r.buffer.name for r in regions(copy, writes=True)] == ["S"]
    assert [r.buffer.name for r in regions(copy, reads=True, writes=True)] == ["X", "S"]
    assert [b.name for b in named_buffers(store)] == ["Y"]
    assert {b.name for b in named_buffers(let)} == {"S", "X"}


def test_richer_ranges_are_derived_once() -> None:
    i, n = Var("i"), Var("n")
    ranges = Ranges({n: (1, 64)})
    assert ranges.where(i, 0, 7) is ranges.where(i, 0, 7)
    assert ranges.where(i, 0, 7) is not ranges.where(i, 0, 8)
    assert ranges.given(Cmp("<", i, n)) is ranges.given(Cmp("<", i, n))
    assert ranges.given(Cmp("<", i, n)) is not ranges.given(Cmp("<", i, n), index=True)
    assert ranges.let(i, n + 1) is ranges.let(i, n + 1)
    one, step = const(1), const(2)
    assert ranges.loop(i, one, n, one) is ranges.loop(i, one, n, one)
    assert ranges.loop(i, one, n, one) is not ranges.loop(i, one, n, step)


def test_passes_of_one_compilation_share_ranges() -> None:
    first, again = kernel(), kernel()
    loop = next(op for op in walk_ops(first) if isinstance(op, For))
    with remembering():
        shared = entry(first)
        assert entry(again) is shared
        assert inside(loop, "body", shared) is inside(loop, "body", shared)
    assert entry(first) is not entry(first)
    assert entry(first) is not shared


def test_a_load_is_named_by_its_buffer() -> None:
    ranges = Ranges()
    buffer = next(b for op in walk_ops(kernel()) for b in named_buffers(op))
    v = Var("v", buffer.dtype)
    there = ranges.let(v, Load(buffer, (const(0),)))
    assert there is ranges.let(v, Load(buffer, (const(0),)))
    assert there is not ranges.let(v, Load(buffer, (const(1),)))
