"""The event graph: which statements of a body must wait for which."""

from __future__ import annotations

import pytest

from tilewright.ir.analysis.accesses import Graph, print_graphs
from tilewright.ir.analysis.aliases import aliases
from tilewright.ir.op import For, walk_ops
from tilewright.ir.text import parse_program

HEAD = """program p {
  param X: float16[64, 64] global
  param Y: float16[64, 64] global
  kernel k grid bx in 1 threads tx in 128 {
    alloc s: float16[64, 64] shared
    alloc t: float16[64, 64] shared
    view v: float16[4096] shared of s
    alloc c: float32[64, 64] fragment
"""


def program(body: str):
    return parse_program(HEAD + body + "\n}\n}")


def edges(body: str) -> set[str]:
    kernel = program("for k in 0 .. 4 {\n" + body + "\n}").kernels[0]
    loop = next(op for op in walk_ops(kernel) if isinstance(op, For))
    found = Graph(loop.body, aliases(kernel), loops=True)
    return {f"{e.before}{'>>' if e.distance else '>'}{e.after} {e.name}" for e in found.edges}


def test_golden():
    found = program(
        """for k in 0 .. 4 kind=pipelined stages=2 {
      copy X[k * 16:+16, :] -> s[0:+16, :] atom=bulk_load
      copy X[:, k * 16:+16] -> t[:, 0:+16] atom=bulk_load
      gemm s, t -> c atom=wgmma
    }
    copy c -> Y"""
    )
    assert print_graphs(found) == (
        """kernel k grid bx in 1 threads tx in 128
  0  threads alloc s: float16[64, 64] shared
  1  threads alloc t: float16[64, 64] shared
  2  threads view v: float16[4096] shared of s
  3  threads alloc c: float32[64, 64] fragment
  4  threads for k in 0 .. 4 kind=pipelined stages=2 {
  5  threads copy c -> Y
     4 -> 5 c: read after write

for k in 0 .. 4 kind=pipelined stages=2
  0  copy    copy X[k * 16:+16, :] -> s[0:+16, :] atom=bulk_load
  1  copy    copy X[:, k * 16:+16] -> t[:, 0:+16] atom=bulk_load
  2  tensor  gemm s, t -> c atom=wgmma
     0 -> 0 (next iteration) s: write after write
     2 -> 0 (next iteration) s: write after read
     1 -> 1 (next iteration) t: write after write
     2 -> 1 (next iteration) t: write after read
     0 -> 2 s: read after write
     1 -> 2 t: read after write
     2 -> 2 (next iteration) c: read after write, write after read, write after write
"""
    )


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # constants keep boxes apart, a variable of the loop does not
        ("fill s[0:+32, :] = 0.0\ncopy s[32:+32, :] -> Y[0:+32, :]", {"0>>0 s", "1>>1 Y"}),
        (
            "fill s[0:+33, :] = 0.0\ncopy s[32:+32, :] -> Y[0:+32, :]",
            {"0>>0 s", "0>1 s", "1>>0 s", "1>>1 Y"},
        ),
        ("fill s[k, :] = 0.0", {"0>>0 s"}),
        # two names of one memory
        ("fill v = 0.0\ncopy s -> Y", {"0>>0 s", "0>1 s", "1>>0 s", "1>>1 Y"}),
        # readers keep no order among themselves; what stands in a branch counts
        ("copy s -> c\nif bx == 0 { copy s -> Y }", {"0>>0 c", "1>>1 Y"}),
    ],
)
def test_edges(body, expected):
    assert edges(body) == expected


def test_effects_keep_their_order():
    found = edges("atomic add X[0, 0] value=float16(1.0)\natomic add Y[0, 0] value=float16(1.0)")
    assert {"0>1  effects", "1>>0  effects"} <= found
