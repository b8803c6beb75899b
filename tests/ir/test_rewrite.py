"""Rewriting from field marks: what changes, what stays the same object, what keeps its place."""

from __future__ import annotations

import dataclasses

from tilewright.ir import op as O
from tilewright.ir.buffer import Space
from tilewright.ir.dtype import DTYPES
from tilewright.ir.expr import Bin, Var, const
from tilewright.ir.rewrite import (
    defined_names,
    fresh_name,
    map_body,
    map_exprs,
    map_kernels,
    map_ops,
    program_names,
    rebuild,
    rename_unique,
    replace_buffers,
    substitute_vars,
)
from tilewright.ir.text import parse_body, parse_program, print_op
from tilewright.ir.verify import Stage, verify

PROGRAM = """program p {
  dim m
  param A: float32[m, 64] global
  param n: int32
  kernel main grid bx in 8 threads tx in 64 cluster=2 rank=r {
    alloc S: float32[2, 64] shared
    alloc v: float32 local init=0.0
    for k in n .. 8 step=n {
      copy A[n + k, :] -> S[n, :]@(r + n)
      if k < n {
        v = S[0, n] + A[k, n]
      } else {
        break
      }
    }
    map (i, j) in (n, 4) {
      S[0, i] = v
    }
    view W: float32[128] shared of S
    intrinsic print (&S[n, :], n + 1, W[n]) text="n"
  }
}
"""


def program():
    return parse_program(PROGRAM, file="rewrite.tw")


def text(code):
    return "\n".join(print_op(op) for op in (code if isinstance(code, tuple) else (code,)))


def test_rebuild_keeps_the_position_and_the_object():
    (op,) = parse_body("let x = 1")
    assert rebuild(op, value=op.value) is op
    changed = rebuild(op, value=const(2))
    assert changed.value == const(2) and changed.loc is op.loc and op.loc is not None


def test_substitution_reaches_every_operand():
    kernel = program().kernels[0]
    new = substitute_vars(kernel, {Var("n"): const(3)})
    assert text(new) == text(kernel).replace("step=n", "step=3").replace(" n ", " 3 ").replace(
        "n + k", "3 + k"
    ).replace("[n", "[3").replace(", n]", ", 3]").replace("+ n)", "+ 3)").replace(
        "k < n", "k < 3"
    ).replace("(n,", "(3,").replace(", n +", ", 3 +")
    assert [op.loc for op in O.walk_ops(new)] == [op.loc for op in O.walk_ops(kernel)]
    assert substitute_vars(kernel, {Var("unused"): const(3)}) is kernel


def test_replacing_buffers_reaches_declarations_and_loads():
    p = program()
    kernel = p.kernels[0]
    old = kernel.body[0].buffer
    new = dataclasses.replace(old, name="T", dtype=DTYPES["float32"])
    replaced = replace_buffers(kernel, {old: new})
    assert "S" not in {w for w in text(replaced).replace("[", " ").replace("@", " ").split()}
    assert text(replaced).count("T") == text(kernel).count("S")
    verify(dataclasses.replace(p, kernels=(replaced,)), Stage.TILE)
    assert replace_buffers(kernel, {new: old}) is kernel


def test_map_exprs_sees_roots():
    (op,) = parse_body("for k in 1 + 2 .. 8 * 2 step=4 { let y = 5 }")
    seen = []
    assert map_exprs(op, lambda e: seen.append(e) or e) is op
    assert [str(e) for e in seen] == ["1 + 2", "8 * 2", "4"]
    folded = map_exprs(op, lambda e: const(7) if isinstance(e, Bin) else e)
    assert text(folded).startswith("for k in 7 .. 7 step=4 {")


def test_map_body_replaces_drops_splices_and_keeps():
    body = parse_body("let a = 1\nfor k in 0 .. 4 {\n  let b = 2\n  let c = 3\n}\nsync block")
    order = []

    def fn(op):
        order.append(type(op).__name__ + getattr(getattr(op, "var", None), "name", ""))
        if isinstance(op, O.Sync):
            return ()
        if isinstance(op, O.Let) and op.var.name == "b":
            return (op, O.Sync("warp"))
        if isinstance(op, O.Let) and op.var.name == "a":
            return rebuild(op, value=const(9))
        return None

    assert text(map_body(body, fn)) == (
        "let a = 9\nfor k in 0 .. 4 {\n  let b = 2\n  sync warp\n  let c = 3\n}"
    )
    assert order == ["Leta", "Letb", "Letc", "Fork", "Sync"]
    assert map_body(body, lambda op: None) is body
    assert map_ops(body[1], lambda op: None) is body[1]


def test_map_kernels():
    p = program()
    assert map_kernels(p, lambda k: k) is p
    renamed = map_kernels(p, lambda k: rebuild(k, name="other"))
    assert renamed.kernels[0].name == "other" and p.kernels[0].name == "main"


def test_rename_unique_makes_a_copy_that_verifies_beside_the_original():
    p = program()
    kernel = p.kernels[0]
    taken = program_names(p)
    assert taken == {"m", "A", "n", "bx", "tx", "r", "S", "v", "k", "i", "j", "W"}
    copy = rename_unique(kernel, taken)
    assert defined_names(copy).isdisjoint(defined_names(kernel))
    assert defined_names(copy) < taken
    both = dataclasses.replace(p, kernels=(kernel, rebuild(copy, name="second")))
    verify(both, Stage.TILE)
    body = rename_unique(kernel.body, program_names(p))
    twice = dataclasses.replace(p, kernels=(rebuild(kernel, body=kernel.body + body),))
    verify(twice, Stage.TILE)
    assert "alloc S_1: float32[2, 64] shared" in text(body)


def test_fresh_names():
    taken = {"a", "a_1"}
    assert [fresh_name("a", taken), fresh_name("a", taken), fresh_name("b", taken)] == [
        "a_2",
        "a_3",
        "b",
    ]


def test_spaces_can_be_changed():
    (alloc, fill) = parse_body("alloc S: int32[4] shared\nfill S = 0")
    moved = dataclasses.replace(alloc.buffer, space=Space.LOCAL)
    assert text(replace_buffers((alloc, fill), {alloc.buffer: moved})) == (
        "alloc S: int32[4] local\nfill S = 0"
    )
