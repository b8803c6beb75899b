"""The forward walk: joins, loops to a fixed point, jumps, and code that it changes."""

from __future__ import annotations

import pytest

from tilewright.ir.analysis.flow import Flow, body_at, chain, paths
from tilewright.ir.op import Fill, Op, Sync, walk_ops
from tilewright.ir.text import parse_program

HEAD = """program p {
  param Y: float32[64] global
  kernel k grid bx in 4 threads tx in 32 {
    alloc a: float32[64] shared
    alloc b: float32[64] shared
    alloc n: int32 local init=0
"""


class Written(Flow[frozenset[str]]):
    """Buffers that may have been filled since the last barrier; one goes before a fill that would
    follow another of the same buffer."""

    def join(self, a: frozenset[str], b: frozenset[str]) -> frozenset[str]:
        return a | b

    def visit(self, op: Op, state: frozenset[str], out: list[Op]) -> frozenset[str]:
        if isinstance(op, Sync):
            return frozenset()
        if not isinstance(op, Fill):
            return state
        name = op.dst.buffer.name
        if name in state:
            out.append(Sync("block"))
            return frozenset({name})
        return state | {name}


def kernel(body: str):
    return parse_program(HEAD + body + "\n}\n}").kernels[0]


@pytest.mark.parametrize(
    ("body", "end", "syncs"),
    [
        ("fill a = 0.0", {"a"}, 0),
        ("if bx == 0 { fill a = 0.0 } else { fill b = 0.0 }", {"a", "b"}, 0),
        ("fill a = 0.0\nif bx == 0 { sync block }", {"a"}, 1),
        # round the loop, and past it
        ("for k in 0 .. 4 { fill a = 0.0 }", {"a"}, 1),
        ("fill a = 0.0\nfor k in 0 .. 4 { sync block }", {"a"}, 1),
        ("for k in 0 .. 4 { fill a = 0.0\nsync block }", set(), 1),
        # what a jump leaves pending is so in the next iteration, and behind the loop
        ("for k in 0 .. 4 { fill a = 0.0\nif k == bx { continue }\nsync block }", {"a"}, 2),
        ("for k in 0 .. 4 { fill a = 0.0\nif k == bx { break }\nsync block }", {"a"}, 2),
        ("while n < 3 { for k in 0 .. 4 { fill a = 0.0\nbreak }\nsync block }", set(), 2),
    ],
)
def test_walk(body, end, syncs):
    given = kernel(body)
    new, state = Written().body(given.body, frozenset())
    assert state == end
    assert sum(isinstance(op, Sync) for op in walk_ops(new)) == syncs
    if not any(a is not b for a, b in zip(walk_ops(new), walk_ops(given.body), strict=False)):
        assert new is given.body  # nothing changed


def test_paths_lead_to_ops():
    given = kernel("for k in 0 .. 4 { if k == bx { fill a = 0.0 } else { fill b = 0.0 } }")
    places = paths(given)
    for op in walk_ops(given.body):
        path = places[id(op)]
        assert chain(given, path)[-1] is op
        assert body_at(given, path[:-1])[path[-1][0]] is op
