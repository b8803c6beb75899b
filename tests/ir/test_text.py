"""The text form: goldens, round trips over random ops and expressions, and located errors."""

from __future__ import annotations

import dataclasses
import textwrap
import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tilewright.ir.text as text_module
from tilewright.ir import op as O
from tilewright.ir.arith import BIN_OPS, CMP_OPS
from tilewright.ir.buffer import Buffer, Region, Space, element, whole
from tilewright.ir.dtype import BARRIER, BOOL, DTYPES, FLOAT32, INT32, INT64, dtype
from tilewright.ir.expr import Bin, Call, Cast, Cmp, Const, Load, Select, Var, const
from tilewright.ir.intrinsics import FUNCTIONS
from tilewright.ir.layout.fragment import repeat, spatial
from tilewright.ir.layout.layout import Layout, parse_layout
from tilewright.ir.text import (
    parse_body,
    parse_expr,
    parse_program,
    print_expr,
    print_op,
    print_program,
)
from tilewright.support.errors import CompileError

F16, F64, U8 = dtype("float16"), dtype("float64"), dtype("uint8")
GLOBAL, SHARED, FRAGMENT, LOCAL = Space.GLOBAL, Space.SHARED, Space.FRAGMENT, Space.LOCAL

# ── expressions ──────────────────────────────────────────────────────────────────────────────

I, J, B = Var("i"), Var("j"), Var("b", BOOL)
X, H, L, D = Var("x", FLOAT32), Var("h", F16), Var("l", INT64), Var("d", F64)
A = Buffer("A", (const(8), const(4)), FLOAT32, GLOBAL)
N = Buffer("n", (), INT32, LOCAL)
BARS = Buffer("full", (const(4),), BARRIER, Space.BARRIER)
SCOPE = {v.name: v for v in (I, J, B, X, H, L, D, A, N, BARS)}

GOLDEN = [
    (I + 1, "i + 1"),
    (L + 1, "l + 1"),
    (H * 0.5, "h * 0.5"),
    (H * 0.1, "h * 0.1"),
    (const(5, INT64), "int64(5)"),
    (const(1 << 40), "1099511627776"),
    (const(0.5, F16), "float16(0.5)"),
    (const(0.1), "0.1"),
    (const(-3), "-3"),
    (const(float("-inf")), "-inf"),
    (const(float("nan"), F16), "float16(nan)"),
    (const(1e-8), "1e-08"),
    (const(-0.0), "-0.0"),
    (const(True), "true"),
    ((I + J) * 2 - I % 4, "(i + j) * 2 - i % 4"),
    (Bin("-", I, Bin("-", J, I)), "i - (j - i)"),
    (Bin("*", const(2), const(64)), "2 * 64"),
    (Bin("*", const(2, INT64), const(64, INT64)), "int64(2) * 64"),
    (Bin("+", L, Bin("*", const(2, INT64), const(64, INT64))), "l + 2 * 64"),
    (Bin("min", I, const(4)), "min(i, 4)"),
    (Bin("and", Cmp("<", I, J), Cmp("<=", const(0), I)), "i < j and 0 <= i"),
    (Call("not", (Bin("or", B, B),), BOOL), "not (b or b)"),
    (Bin("and", Call("not", (B,), BOOL), B), "not b and b"),
    (Cmp("==", Cmp("<", I, J), B), "(i < j) == b"),
    (Select(B, const(0.0, F16), const(-1.0, F16)), "float16(0.0) if b else -1.0"),
    (Select(B, H, const(float("-inf"), F16)), "h if b else -inf"),
    (Select(B, Select(B, X, X), Select(B, X, X)), "(x if b else x) if b else x if b else x"),
    (Cast(F16, X * 2.0), "float16(x * 2.0)"),
    (Cast(F16, const(3)), "float16(int32(3))"),
    (Cast(BOOL, I), "bool(i)"),
    (Call("exp2", (X,), FLOAT32), "exp2(x)"),
    (Call("pow", (X, const(2.0)), FLOAT32), "pow(x, 2.0)"),
    (Call("neg", (I,), INT32), "-i"),
    (Call("neg", (const(3),), INT32), "neg(3)"),
    (Call("neg", (Call("neg", (I,), INT32),), INT32), "--i"),
    (Call("invert", (I + J,), INT32), "~(i + j)"),
    (Call("reinterpret", (X,), INT32), "reinterpret(x, int32)"),
    (Call("isnan", (X,), BOOL), "isnan(x)"),
    (Load(A, (I, J + 1)), "A[i, j + 1]"),
    (Load(N, ()) + 1, "n + 1"),
    (Var("and") + 1, "`and` + 1"),
]


@pytest.mark.parametrize(("expr", "text"), GOLDEN, ids=[t for _, t in GOLDEN])
def test_expression_text(expr, text):
    assert print_expr(expr) == text
    assert parse_expr(text, SCOPE | {"and": Var("and")}) == expr


@pytest.mark.parametrize(
    ("text", "same"),
    [
        ("0 <= i < j", "0 <= i and i < j"),
        ("select(b, x, 1)", "x if b else 1.0"),
        ("max(i, j, 3)", "max(max(i, j), 3)"),
        ("i + 0x10", "i + 16"),
        ("x * 2", "x * 2.0"),
        ("n[]", "n"),
        ("A[i,\n  j]", "A[i, j]"),
        ("h + (1.0 if b else 0)", "h + (1.0 if b else 0.0)"),
        ("True or False", "true or false"),
        ("1e3 + x", "1000.0 + x"),
        (".5", "0.5"),
    ],
)
def test_other_spellings(text, same):
    assert print_expr(parse_expr(text, SCOPE)) == same


VARS = [I, J, B, X, H, L, D, Var("u", U8), Var("max"), Var("A.1", F16), Var("if", FLOAT32)]
TYPES = [INT32, INT64, FLOAT32, F16, F64, U8, BOOL, DTYPES["bfloat16"], DTYPES["float8_e4m3fn"]]
RANDOM_SCOPE = SCOPE | {v.name: v for v in VARS}


def draw_constant(draw, kind):
    if kind.is_bool:
        return const(draw(st.booleans()))
    if kind.is_int:
        return const(draw(st.integers(int(kind.min_value), int(kind.max_value))), kind)
    return const(draw(st.floats(width=32)), kind)


ARITHMETIC = tuple(op for op in BIN_OPS if op not in ("and", "or"))
LOADS = (Load(A, (I, const(3))), Load(N, ()))


@st.composite
def expressions(draw, depth=3):
    """A well-typed expression of any type."""
    any_type = st.sampled_from(TYPES)

    def sub(kind, left):
        leaves = [v for v in (*VARS, *LOADS) if v.dtype == kind]
        shape = draw(st.integers(0, 7 if left else 1))
        if shape == 0 or (shape == 1 and not leaves):
            return draw_constant(draw, kind)
        if shape == 1:
            return draw(st.sampled_from(leaves))
        left -= 1
        if shape == 2:
            return Select(sub(BOOL, left), sub(kind, left), sub(kind, left))
        if shape == 3:
            inner = sub(draw(any_type), left)
            return inner if inner.dtype == kind else Cast(kind, inner)
        if shape == 4 and kind.is_bool:
            return Call("not", (sub(kind, left),), kind)
        if shape == 4:
            name = draw(st.sampled_from(["neg", "abs", "exp2", "invert"]))
            return Call(name, (sub(kind, left),), kind)
        if shape == 5 and kind.is_bool:
            side = draw(any_type)
            return Cmp(draw(st.sampled_from(CMP_OPS)), sub(side, left), sub(side, left))
        if shape == 5:
            return Call("pow", (sub(kind, left), sub(kind, left)), kind)
        if shape == 6:
            return Call("reinterpret", (sub(draw(any_type), left),), kind)
        ops = ("and", "or", "&", "^") if kind.is_bool else ARITHMETIC
        return Bin(draw(st.sampled_from(ops)), sub(kind, left), sub(kind, left))

    return sub(draw(any_type), depth)


@given(expressions())
@settings(max_examples=300, deadline=None)
def test_expressions_round_trip(expr):
    text = print_expr(expr)
    again = parse_expr(text, RANDOM_SCOPE)
    assert again == expr, text
    assert print_expr(again) == text


@given(expressions())
@settings(max_examples=100, deadline=None)
def test_stored_values_round_trip(expr):
    target = Buffer("out", (), expr.dtype, LOCAL)
    store = O.Store(target, (), expr)
    assert parse_body(print_op(store), RANDOM_SCOPE | {"out": target}) == (store,)


def test_every_function_round_trips():
    for f in FUNCTIONS.values():
        arg = {"float": X, "int": I, "bool": B, "any": X}[f.domain]
        result = {"same": arg.dtype, "bool": BOOL, "free": INT64}[f.result]
        call = Call(f.name, (arg,) * f.arity, result)
        assert parse_expr(print_expr(call), SCOPE) == call


# ── ops ──────────────────────────────────────────────────────────────────────────────────────

S = Buffer(
    "S",
    (const(2), const(8), const(4)),
    F16,
    SHARED,
    None,
    parse_layout("S<1,0,2> o 0 o (2,8,4):(32,4,1)"),
)
FRAG = Buffer("C", (const(8), const(8)), FLOAT32, FRAGMENT, None, spatial(8, 4) * repeat(1, 2))
M = Var("m")
G = Buffer("G", (M, const(64)), F16, GLOBAL, (const(128), const(1)))
K, R, V = Var("k"), Var("r"), Var("v", FLOAT32)
OUTER = {v.name: v for v in (I, J, B, X, H, L, A, N, BARS, S, FRAG, M, G, R)}
SLOT = Region(S, (I, const(0), const(0)), (const(1), const(8), const(4)))
BOX = Region(G, (I * 8, const(0)), (const(8), const(4)))
STORE = O.Store(N, (), const(1))

OP_GOLDEN = [
    (O.For(K, const(0), M, (STORE,)), "for k in 0 .. m {\n  n = 1\n}"),
    (
        O.For(K, I, M, (), const(2), "pipelined", 3, (0, 1), (0,)),
        "for k in i .. m step=2 kind=pipelined stages=3 order=(0, 1) stage=0 {}",
    ),
    (O.For(Var("k", INT64), const(0, INT64), L, ()), "for k: int64 in 0 .. l {}"),
    (O.While(B, (O.Break(),)), "while b {\n  break\n}"),
    (O.If(B, (STORE,)), "if b {\n  n = 1\n}"),
    (O.If(B, (), (O.Continue(),)), "if b {} else {\n  continue\n}"),
    (
        O.If(B, (STORE,), (O.If(B, (), (STORE,)),)),
        "if b {\n  n = 1\n} else if b {} else {\n  n = 1\n}",
    ),
    (O.Break(), "break"),
    (O.Continue(), "continue"),
    (O.Let(K, I + 1), "let k = i + 1"),
    (O.Let(V, const(2.0)), "let v: float32 = 2.0"),
    (O.Let(Var("k", INT64), const(2, INT64)), "let k: int64 = 2"),
    (
        O.Role("producer", 4, 4, (STORE,), registers=24),
        "role producer warps 4 + 4 registers=24 {\n  n = 1\n}",
    ),
    (O.Role("wg", 0, 8, (), 2, K), "role wg warps 0 + 8 instances=2 var=k {}"),
    (
        O.Map((K, Var("q")), (const(8), M + 1), (O.Store(A, (K, const(0)), X),)),
        "map (k, q) in (8, m + 1) {\n  A[k, 0] = x\n}",
    ),
    (
        O.Map((K,), ((M + 1) * 2,), (), spatial(4)),
        'map k in (m + 1) * 2 layout="frag{tile=(4) tv=(4,1):(1,0)}" {}',
    ),
    (O.Alloc(dataclasses.replace(N, name="z"), const(3)), "alloc z: int32 local init=3"),
    (
        O.Alloc(dataclasses.replace(S, name="z")),
        'alloc z: float16[2, 8, 4] shared layout="S<1,0,2> o 0 o (2,8,4):(32,4,1)"',
    ),
    (
        O.Alloc(dataclasses.replace(FRAG, name="z")),
        f'alloc z: float32[8, 8] fragment layout="{FRAG.layout}"',
    ),
    (
        O.View(Buffer("z", (const(64),), U8, SHARED), S, I),
        "view z: uint8[64] shared of S offset=i",
    ),
    (O.Copy(BOX, SLOT), "copy G[i * 8:+8, 0:+4] -> S[i, :, :]"),
    (
        O.Copy(BOX, SLOT, element(BARS, I), const(3), "bulk_load", "evict_first", "tma", "add"),
        "copy G[i * 8:+8, 0:+4] -> S[i, :, :] barrier=full[i] multicast=3 atom=bulk_load"
        " cache=evict_first prefer=tma reduce=add",
    ),
    (O.Copy(whole(FRAG), Region(FRAG, (const(0), I), (const(8), const(1)))), "copy C -> C[:, i]"),
    (O.Store(A, (I, J), X), "A[i, j] = x"),
    (O.Store(FRAG, (I, J), const(2.0)), "C[i, j] = 2.0"),
    (
        O.Atomic("add", element(G, I, J), const(1.0, F16), None, Var("old", F16), "acq_rel"),
        "atomic add G[i, j] value=1.0 result=old: float16 order=acq_rel",
    ),
    (O.Atomic("add", BOX, src=SLOT), "atomic add G[i * 8:+8, 0:+4] src=S[i, :, :]"),
    (O.Fill(SLOT, const(0.0, F16)), "fill S[i, :, :] = 0.0"),
    (
        O.Gemm(
            SLOT,
            SLOT,
            whole(FRAG),
            Cmp("==", I, const(0)),
            True,
            True,
            "full_row",
            "tf32",
            "wgmma",
            BOX,
        ),
        "gemm S[i, :, :], S[i, :, :] -> C clear=i == 0 transpose_a=true transpose_b=true"
        " policy=full_row precision=tf32 atom=wgmma meta=G[i * 8:+8, 0:+4]",
    ),
    (O.Reduce("max", whole(FRAG), SLOT, 1, False), "reduce max C -> S[i, :, :] dim 1 clear=false"),
    (O.Scan("sum", whole(FRAG), whole(FRAG), -1, True), "scan sum C -> C dim -1 reverse=true"),
    (
        O.Scan("by", SLOT, BOX, 0, by=O.Operator((X, V, D, H), (X * V, D)), more=(SLOT, BOX)),
        "scan by S[i, :, :] -> G[i * 8:+8, 0:+4] dim 0 by=(x: float32, v: float32, d: float64,"
        " h: float16) -> (x * v, d) more=(S[i, :, :], G[i * 8:+8, 0:+4])",
    ),
    (O.Relayout(whole(FRAG), whole(FRAG), "shuffle"), "relayout C -> C via=shuffle"),
    (O.BarrierInit(whole(BARS), const(2)), "barrier_init full count 2"),
    (O.Arrive(element(BARS, I, cta=R)), "arrive full[i]@r"),
    (
        O.Arrive(Region(BARS, (const(0),), (const(4),), R ^ 1), I * 2, const(2)),
        "arrive full@(r ^ 1) bytes=i * 2 count=2",
    ),
    (O.Wait(element(BARS, I), (I + 1) % 2), "wait full[i] phase (i + 1) % 2"),
    (O.Commit("wgmma"), "commit wgmma"),
    (O.WaitGroup("bulk", 1, True), "wait_group bulk pending 1 read=true"),
    (O.Fence("proxy_async"), "fence proxy_async"),
    (O.Sync(), "sync block"),
    (O.Sync("named", I + 1, 256, True), "sync named id=i + 1 threads=256 arrive=true"),
    (O.Turn("begin"), "turn begin"),
    (O.Intrinsic("pdl_wait"), "intrinsic pdl_wait"),
    (O.Intrinsic("print", (whole(N),)), "intrinsic print &n"),
    (
        O.Intrinsic("ptx", (element(A, I, J), Load(A, (I, J)), const(2.0)), V, 'a "b"\n\\c', 4),
        'intrinsic ptx (&A[i, j], A[i, j], 2.0) result=v: float32 text="a \\"b\\"\\n\\\\c" width=4',
    ),
    (
        O.Intrinsic("shfl_xor", (X * (X + 1.0),), V),
        "intrinsic shfl_xor x * (x + 1.0) result=v: float32",
    ),
    (
        O.Intrinsic("shfl_xor", ((X + 1.0) * X,), V),
        "intrinsic shfl_xor (x + 1.0) * x result=v: float32",
    ),
    (
        O.Hint("swizzle", detail=(4, "row", True, None, (1.5,), ())),
        'hint swizzle detail=(4, "row", true, none, (1.5,), ())',
    ),
    (O.Hint("layout", S, layout=Layout((2, 4))), 'hint layout buffer=S layout="(2,4):(1,2)"'),
    (O.Hint("assume", value=I < M), "hint assume value=i < m"),
]


@pytest.mark.parametrize(("op", "text"), OP_GOLDEN, ids=[t.split("\n")[0] for _, t in OP_GOLDEN])
def test_op_text(op, text):
    assert print_op(op) == text
    assert parse_body(text, OUTER) == (op,)


def test_every_op_has_a_golden():
    assert {type(op) for op, _ in OP_GOLDEN} == set(O.OPS.values()) - {O.Kernel}


def _fresh(op, counter):
    def new(var):
        counter[0] += 1
        return Var(f"v{counter[0]}", var.dtype)

    changes = {}
    for f in O.marked(op, "binds"):
        value = getattr(op, f.name)
        if isinstance(value, tuple):
            changes[f.name] = tuple(new(v) for v in value)
        elif value is not None:
            changes[f.name] = new(value)
    if isinstance(op, (O.Alloc, O.View)):
        counter[0] += 1
        changes["buffer"] = dataclasses.replace(op.buffer, name=f"b{counter[0]}")
    return changes


@st.composite
def bodies(draw, depth=2):
    """Random sequences of the golden ops, with fresh names, nested in one another."""
    counter = [0]

    def build(level):
        found = []
        for op, _ in draw(st.lists(st.sampled_from(OP_GOLDEN), max_size=5)):
            changes = _fresh(op, counter)
            for f in O.marked(op, "body"):
                changes[f.name] = build(level - 1) if level else ()
            found.append(dataclasses.replace(op, **changes))
        return tuple(found)

    return build(depth)


@given(bodies())
@settings(max_examples=100, deadline=None)
def test_bodies_round_trip(body):
    text = "\n".join(print_op(op) for op in body)
    again = parse_body(text, OUTER)
    assert again == body
    assert "\n".join(print_op(op) for op in again) == text


# ── programs ─────────────────────────────────────────────────────────────────────────────────


def documented_example():
    """The program in the module's own documentation."""
    lines = text_module.__doc__.split("\n\n", 1)[1].split("\n\nLines end")[0]
    return textwrap.dedent(lines)


PROGRAM = """\
program "a name" {
  dim m min=1 max=8192 multiple_of=8
  dim k: int64
  param A: float16[m, 64] global strides=[128, 1]
  param n: int32
  param flag: bool
  param zero: float32 global
  scratch W: float32[m, n] global
  source "int f() {\\n  return \\"x\\"[0];\\n}"
  kernel main grid (bx, by: int64) in (m, 8 * k) threads (tx, ty) in (32, 4) cluster=(2, 1) rank=r {
    alloc S: float16[128, 64] shared layout="S<3,4,3> o 0 o (128,64):(64,1)"
    copy A[bx * 128:+128, :] -> S@(r ^ 1)
  }
  kernel after grid () in () threads tx_1 in 128 {}
}
"""


def test_program_golden():
    program = parse_program(PROGRAM)
    assert print_program(program) == PROGRAM
    assert parse_program(print_program(program)) == program
    m, k = Var("m"), Var("k", INT64)
    assert program.name == "a name"
    assert program.dims == (O.Dim(m, 1, 8192, 8), O.Dim(k))
    A = Buffer("A", (m, const(64)), F16, GLOBAL, (const(128), const(1)))
    assert program.params[:2] == (A, Var("n"))
    assert program.params[3] == Buffer("zero", (), FLOAT32, GLOBAL)
    assert program.sources == ('int f() {\n  return "x"[0];\n}',)
    main, after = program.kernels
    assert main.blocks == (Var("bx"), Var("by", INT64)) and main.cluster == (2, 1)
    assert main.body[0].buffer.layout == parse_layout("S<3,4,3> o 0 o (128,64):(64,1)")
    assert after.grid == () and after.threads == (128,)


def test_documented_example():
    program = parse_program(documented_example())
    text = print_program(program)
    assert parse_program(text) == program
    assert print_program(parse_program(text)) == text


def test_layout_of_free_text():
    program = parse_program(
        """
        # a comment
        program p { param A: float32[4]; param n: int32   # space defaults to global

          kernel main grid b in 1 threads t in 32 {
              let x = \\
                  1.5
              A[0] = x ; A[1] = min(x,
                                    2)
              if n < 2 { A[2] = 0 }
              else { A[3] = 0 }
              sync
          }
        }
        """
    )
    assert print_program(program) == textwrap.dedent(
        """\
        program p {
          param A: float32[4] global
          param n: int32
          kernel main grid b in 1 threads t in 32 {
            let x: float32 = 1.5
            A[0] = x
            A[1] = min(x, 2.0)
            if n < 2 {
              A[2] = 0.0
            } else {
              A[3] = 0.0
            }
            sync block
          }
        }
        """
    )


def test_names_used_again_in_another_scope_are_made_unique():
    body = parse_body("for i in 0 .. 4 { let s = i }\nfor i in 0 .. 4 { let s = i + 1 }")
    assert [op.var.name for op in O.walk_ops(body) if isinstance(op, (O.For, O.Let))] == [
        "i",
        "s",
        "i_1",
        "s_1",
    ]
    assert body[1].body[0].value == Var("i_1") + 1


def test_shapes_and_extents_fold():
    (alloc, fill) = parse_body("alloc A: int8[2 * 64, 8 - 1] shared\nfill A[0, 1:+3 * 2] = 0")
    assert alloc.buffer.static_shape == (128, 7)
    assert fill.dst.extents == (const(1), const(6))


def test_ops_point_into_the_text():
    program = parse_program(PROGRAM, file="prog.tw")
    copy = program.kernels[0].body[1]
    assert (copy.loc.file, copy.loc.line, copy.loc.column) == ("prog.tw", 12, 5)
    line = PROGRAM.splitlines()[11]
    assert copy.loc.end_column == len(line) + 1
    assert copy.loc.excerpt().splitlines()[0].endswith(line)
    (store,) = parse_body("C[i, j] = C[i, j + 1]", OUTER)
    assert (store.value.loc.column, store.value.loc.end_column) == (11, 22)


def test_parsing_is_quick():
    kernel = documented_example().split("\n\n", 1)[1].rsplit("}", 1)[0]
    text = documented_example().rsplit("}", 1)[0] + kernel * 8 + "}\n"
    program = parse_program(text)
    start = time.process_time()
    parse_program(text)
    print_program(program)
    lines = len(print_program(program).splitlines())
    # 0.1 ms a line, measured on a slow core; the margin is for busy machines
    assert time.process_time() - start < lines * 1.5e-3


# ── errors ───────────────────────────────────────────────────────────────────────────────────

HEAD = "program p {\n  param A: float16[64, 64] global\n  kernel k grid b in 1 threads t in 32 {\n"

ERRORS = [
    ("coppy A -> A", 1, "unknown statement 'coppy'", "did you mean copy?"),
    ("copy A -> Ab", 11, "Ab is not defined", "did you mean A?"),
    ("copy A -> b", 11, "b is not a buffer", ""),
    ("let x = tt + 1", 9, "tt is not defined", "did you mean t?"),
    ("let x = A[0]", 9, "A has 2 dimensions", ""),
    ("copy A[0] -> A", 6, "A has 2 dimensions", ""),
    ("A[0] = 1.0", 2, "A has 2 dimensions", ""),
    ("let x = sqr(1.0)", 9, "unknown function sqr", "did you mean sqrt?"),
    ("let x = exp2(1.0, 2.0)", 9, "exp2 takes 1 arguments", ""),
    (
        "let x = reinterpret(1)",
        9,
        "reinterpret needs its result type",
        "write reinterpret(…, int32)",
    ),
    (
        "let x = b + 0.5",
        13,
        "0.5 is not an integer, but int32 is needed here",
        "write float32(0.5) and cast the other side",
    ),
    ("let x: float33 = 1", 8, "unknown dtype 'float33'", "did you mean 'float32'?"),
    ("let t = 1", 5, "t is already defined on line 3", "choose another name"),
    ("let if = 1", 5, "if is a reserved word", "write `if`"),
    (
        "alloc S: int8[4] shred",
        18,
        "expected where the buffer lives, found 'shred'",
        "did you mean shared?",
    ),
    (
        'alloc S: int8[4] shared layout="(4):("',
        32,
        "not a layout: cannot read '(': expected an integer or '(', found 'the end'",
        "",
    ),
    ("gemm A, A -> A polcy=square", 16, "gemm has no attribute polcy", "did you mean policy?"),
    ("gemm A, A -> A policy=square policy=square", 30, "policy is given twice", ""),
    ("copy A to A", 8, "expected '->'", ""),
    ("copy A -> A A", 13, "copy has no attribute A", ""),
    ("wait_group bulk pending x", 25, "expected a constant, found 'x'", ""),
    ("wait_group bulk pending 1.5", 25, "expected an integer", ""),
    ("let x = (1 + ", 14, "expected an expression, found '}'", ""),
    (
        "let x = 1 2",
        11,
        "expected the end of the statement, found '2'",
        "start a new line, or separate statements with ';'",
    ),
    ("let x: int8 = 300", 15, "300 does not fit int8", ""),
    ("for i in 0 .. 4", 16, "expected '{', found the end of the line", ""),
    ("A[0, 0] = $", 11, "a stray '$' in the IR text", ""),
    ('source "abc', 8, "an unfinished string in the IR text", ""),
]


@pytest.mark.parametrize(("line", "column", "message", "fix"), ERRORS, ids=[e[0] for e in ERRORS])
def test_errors_are_located(line, column, message, fix):
    with pytest.raises(CompileError) as caught:
        parse_program(HEAD + line + "\n}}", file="bad.tw")
    error = caught.value
    assert error.message == message
    if "(1 + " not in line:
        assert (error.loc.file, error.loc.line, error.loc.column) == ("bad.tw", 4, column)
        assert f"{line}\n" in str(error) + "\n" and "^" in str(error)
    assert error.diagnostic.fix == fix


def test_errors_of_the_program():
    for text, line, message in [
        ("kernel k", 1, "expected 'program'"),
        ("program p {\n  parm x: int32\n}", 2, "expected a kernel, found 'parm'"),
        (HEAD + "\n  }\n", 6, "expected a kernel, found the end of the text"),
        (HEAD + "\n", 3, "this body is never closed"),
        (HEAD + "}\n  param z: int32\n}", 5, "expected a kernel, found 'param'"),
        (HEAD + "}\n}\nx", 6, "expected the end of the text, found 'x'"),
        ("program p {\n  dim m mn=1\n}", 2, "dim has no attribute mn"),
        ("program p {\n  param A: int8[q] global\n}", 2, "q is not defined"),
    ]:
        with pytest.raises(CompileError) as caught:
            parse_program(text)
        assert (caught.value.message, caught.value.loc.line) == (message, line)


def test_values_without_a_text_are_refused():
    with pytest.raises(CompileError, match="a dict has no text in the IR"):
        print_op(O.Hint("x", detail=({},)))


def test_const_is_typed_by_its_spelling():
    assert parse_expr("1") is Const(1, INT32)
    assert parse_expr("1.0") is Const(1.0, FLOAT32)
    assert parse_expr("1", context=F16) is Const(1.0, F16)
