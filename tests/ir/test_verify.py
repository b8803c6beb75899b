"""For every rule a program that breaks it: the message, and the line and column it points at."""

from __future__ import annotations

import dataclasses

import pytest

from tilewright.ir import op as O
from tilewright.ir.buffer import Buffer, Space, whole
from tilewright.ir.dtype import FLOAT32, INT64
from tilewright.ir.expr import Bin, Call, Load, Select, Var, const
from tilewright.ir.text import parse_program
from tilewright.ir.verify import RULES, Stage, verify
from tilewright.support.errors import VerifyError

HEAD = """program p {
  dim m
  param A: float16[m, 64] global
  param C: float32[64, 64] global
  param n: int32
  kernel main grid bx in 8 threads tx in 384 %s{
    alloc S: float16[2, 64, 64] shared layout="(2,64,64):(4096,64,1)"
    alloc F: float32[64, 64] fragment
    alloc R: float32[64] fragment
    alloc H: float16[64, 64] fragment
    alloc v: float32 local init=0
    alloc bar: barrier[2] barrier
    alloc q: uint4[64] shared
"""
FIRST = HEAD.count("\n") + 1


def check(body, stage=Stage.TILE, kernel=""):
    verify(parse_program(HEAD % kernel + body + "\n}\n}", file="test.tw"), stage)


GOOD = {
    "tiles": """
        fill F = 0
        for k in 0 .. m kind=pipelined stages=3 {
          copy A[k * 64:+64, :] -> S[0, :, :]
          gemm S[0, :, :], S[1, :, :] -> F transpose_b clear=k == 0
        }
        reduce max F -> R dim 1
        map (i, j) in (64, 64) {
          if i < n and j < 4 { F[i, j] = F[i, j] * v + exp2(R[i]) }
          for e in 0 .. 4 { let x = e + 1; if x == 2 { break } }
        }
        copy F -> C
        atomic add C[0, tx] value=1 result=old: float32
        view flat: float16[8192] shared of S
        scan sum R -> R dim 0
        intrinsic print (&F, old) text="x"
        sync named id=3 threads=128
    """,
    "scheduled": """
        barrier_init bar count 1
        fence barrier_init
        sync block
        role producer warps 8 + 4 registers=24 {
          for ko in 0 .. 4 {
            wait bar[1] phase (ko + 1) % 2
            arrive bar[0] bytes=8192
            copy A[bx * 64:+64, :] -> S[0, :, :] barrier=bar[0] atom=bulk_load
          }
        }
        role consumer warps 0 + 8 instances=2 var=wg registers=240 {
          for ki in 0 .. 4 {
            wait bar[0] phase ki % 2
            gemm S[0, :, :], S[0, :, :] -> F atom=wgmma
            commit wgmma
            wait_group wgmma pending 0
            arrive bar[1]
          }
        }
    """,
    "thread": """
        while v < 3.0 { v = v + 1 ; if tx == 0 { continue } }
        C[0, tx] = v if n > 0 else -inf
        intrinsic shfl_xor (v, 1) result=w: float32
    """,
}


@pytest.mark.parametrize("name", GOOD)
def test_good_programs_pass(name):
    check(GOOD[name], Stage.THREAD if name == "thread" else Stage.TILE)


LAID = ' layout="frag{tile=(64,64) tv=((4,8,4,2),(2,2,8)):((2,64,1024,0),(1,512,8))}"'

# body (the first line is where the error is, unless `↑` marks another), column, message
BAD = [
    # structure
    ("break", 1, "break outside a loop"),
    (
        "for i in 0 .. 4 { map j in 4 { continue } }",
        32,
        "continue outside a loop (a map lies between)",
    ),
    ("if n { }", 1, "the condition must be a bool"),
    ("while n { }", 1, "the condition must be a bool"),
    ("for i: float32 in 0 .. 4 { }", 1, "a loop variable must be an integer"),
    ("for i: int64 in 0 .. n { }", 1, "the loop's stop has another type than i"),
    ("for i in 0 .. 4 step=0 { }", 1, "a loop's step must be positive"),
    ("for i in 0 .. 4 kind=serail { }", 1, "unknown loop kind 'serail'"),
    ("for i in 0 .. 4 stages=-1 { }", 1, "stages must not be negative"),
    (
        "for i in 0 .. 4 order=(0, 1) stage=(0, 1, 2) { }",
        1,
        "order and stage pin the same statements",
    ),
    ("let x: int32 = 1.5 * v", 1, "the value of x has another type than what it goes to"),
    # roles
    ("role a warps 8 + 8 { }", 1, "role a wants warps the block does not have"),
    (
        "role a warps 0 + 4 instances=3 { }",
        1,
        "role a: its warps do not divide among its instances",
    ),
    ("role a warps 0 + 4 registers=20 { }", 1, "role a: registers cannot be moved in this amount"),
    ("role a warps 0 + 4 registers=25 { }", 1, "role a: registers cannot be moved in this amount"),
    ("role a warps 0 + 2 registers=24 { }", 1, "role a: registers are moved by whole warpgroups"),
    ("role a warps 0 + 4 { role b warps 0 + 4 { } }", 22, "a role inside a role"),
    ("fill F = 0 ; role a warps 0 + 4 { }", 1, "fill outside the roles of a kernel that has them"),
    ("role a warps 0 + 8 registers=240 { }", 1, "the roles take more registers than the block has"),
    # maps
    ("map (i, j) in 4 { }", 1, "a map needs one variable per extent"),
    ("map i in 1.5 { }", 1, "an extent of a map must be an integer"),
    ("map i in 4 { map j in 4 { } }", 14, "a map inside a map"),
    ("map i in 4 { fill F = 0 }", 14, "Fill inside a map: it needs all threads together"),
    ("map i in 4 { sync block }", 14, "Sync inside a map: it needs all threads together"),
    ("map i in 4 { alloc s: int32[4] shared }", 14, "s is allocated inside a map"),
    # expressions
    ("let x = n + v", 1, "the sides of n + v have different types"),
    ("let x = n / 2", 1, "'/' needs floats"),
    ("let x = v & 1", 1, "'&' needs integers or bools"),
    ("let x = v << 1", 1, "'<<' needs integers"),
    ("let x = n and true", 1, "the sides of n and true have different types"),
    ("let x = n and n", 1, "'and' needs bools"),
    ("let x = true + false", 1, "'+' needs numbers"),
    ("let x = v < n", 1, "the sides of v < n have different types"),
    ("let x = v if n else v", 1, "the condition of v if n else v must be a bool"),
    ("let x = v if true else n", 1, "the sides of v if true else n have different types"),
    ("let x = exp2(n)", 1, "exp2 takes float arguments"),
    ("let x = popcount(v)", 1, "popcount takes int arguments"),
    ("let x = pow(v, n)", 1, "the arguments of pow have different types"),
    ("let x = C[0, 1.0]", 9, "index 1 of C must be an integer"),
    ("let x = F[64, 0]", 9, "index 0 of F is out of range"),
    ("let x = F[0, -1]", 9, "index 1 of F is out of range"),
    ("let x = bar[0]", 9, "bar is a barrier and has no value"),
    # buffers
    ("alloc z: float16[n] shared", 1, "z: tiles have constant sizes"),
    ("alloc z: float16[0] shared", 1, "z: sizes must be positive integers"),
    ("alloc z: barrier[2] shared", 1, "z: barriers, and only they, live in barrier space"),
    ("alloc z: int32[2] barrier", 1, "z: barriers, and only they, live in barrier space"),
    ("alloc z: int4[3] shared", 1, "z: the innermost extent of a packed type fills whole bytes"),
    (
        "alloc z: int8[4] shared strides=[1]",
        1,
        "z: strides are for global tensors, one per dimension",
    ),
    ("alloc z: int8[4] global", 1, "z is global memory allocated in a kernel"),
    ('alloc z: int8[4] local layout="4:1"', 1, "z: only shared and fragment buffers have layouts"),
    (
        'alloc z: int8[4] fragment layout="4:1"',
        1,
        "z: a fragment's layout says which thread holds what",
    ),
    ('alloc z: int8[4] shared layout="8:1"', 1, "z: the layout does not fit the buffer's shape"),
    (
        'alloc z: int8[4] fragment layout="frag{tile=(8) tv=(8,1):(1,0)}"',
        1,
        "z: the layout does not fit the buffer's shape",
    ),
    (
        'alloc z: int8[4] shared layout="frag{tile=(4) tv=(4,1):(1,0)}"',
        1,
        "z: a fragment layout on shared memory",
    ),
    ("alloc z: int8[4] local init=0", 1, "z: only a scalar variable has an initial value"),
    ("alloc z: int8 local init=n", 1, "the initial value has another type than what it goes to"),
    ("view z: int8[4] local of S", 1, "z and S are in different memories"),
    ("view z: float32[4096] shared of S offset=1", 1, "z reaches beyond S"),
    ("view z: int8[4] shared of S offset=v", 1, "the offset must be an integer"),
    # regions
    ("fill F[0:+65, :] = 0", 1, "index 0 of F is out of range"),
    ("fill F[1, 1:+64] = 0", 1, "index 1 of F is out of range"),
    ("fill F[0:+0, :] = 0", 1, "extent 0 of F must be positive"),
    ("fill F[v, :] = 0", 1, "index 0 of F must be an integer"),
    ("copy S[0, :, :]@1 -> H", 1, "S@1 in a kernel without a cluster"),
    # copies
    ("copy F[0:+32, :] -> C", 1, "F and C have different shapes"),
    ("copy F[:, 0] -> C", 1, "F and C have different shapes"),
    ("copy bar -> F[0, 0:+2]", 1, "the source bar is in the wrong memory"),
    ("copy C -> F atom=bulk_laod", 1, "unknown atom 'bulk_laod'"),
    ("copy C -> F atom=wgmma", 1, "atom wgmma does not serve copy"),
    (
        "copy A[0:+64, :] -> S[0, :, :] atom=bulk_load",
        1,
        "bulk_load completes on a barrier, but none is given",
    ),
    (
        "copy A[0:+64, :] -> S[0, :, :] atom=cp_async barrier=bar[0]",
        1,
        "cp_async does not complete on a barrier but with `commit cp_async`",
    ),
    (
        "copy A[0:+64, :] -> S[0, :, :] atom=threads barrier=bar[0]",
        1,
        "threads does not complete on a barrier but when it returns",
    ),
    ("copy A[0:+64, :] -> S[0, :, :] atom=bulk_load barrier=bar", 1, "one barrier is needed"),
    (
        "copy A[0:+64, :] -> S[0, :, :] atom=bulk_load barrier=R[0]",
        1,
        "the barrier R is in the wrong memory",
    ),
    (
        "copy A[0:+64, :] -> H atom=cp_async",
        1,
        "cp_async: the destination H is in the wrong memory",
    ),
    ("copy C -> S[0, :, :] atom=cp_async", 1, "cp_async does not convert"),
    (
        "copy A[0:+64, :] -> S[0, :, :] atom=bulk_load barrier=bar[0] multicast=3",
        1,
        "multicast in a kernel without a cluster",
    ),
    ("copy S[0, :, :] -> A[0:+64, :] reduce=mul", 1, "unknown reduce 'mul'"),
    ("copy S[0, :, :] -> A[0:+64, :] reduce=add atom=threads", 1, "threads does not reduce"),
    # stores, atomics, fills
    ("C[0, 0] = n", 1, "the stored value has another type than what it goes to"),
    ("F[64, 0] = 1", 1, "index 0 of F is out of range"),
    ("atomic mul C[0, 0] value=1", 1, "unknown atomic 'mul'"),
    ("atomic add q[0] value=1", 1, "uint4 is packed: its elements have no atomics"),
    ("atomic add C[0, 0]", 1, "atomic add takes a value or a source"),
    ("atomic load C[0, 0] value=1", 1, "atomic load takes no value"),
    ("atomic add C[0, 0] value=n", 1, "the value has another type than what it goes to"),
    ("atomic add C src=R", 1, "R and C have different shapes"),
    ("atomic add C src=F result=o: float32", 1, "only an atomic on one element has a result"),
    (
        "atomic add C[0, 0] value=1 result=o",
        1,
        "the old value has another type than what it goes to",
    ),
    ("fill F = n", 1, "the value has another type than what it goes to"),
    ("fill bar = n", 1, "the destination bar is in the wrong memory"),
    # compute
    ("gemm S[0, :, :], S[1, 0:+32, :] -> F", 1, "gemm's shapes do not fit"),
    ("gemm S[0, :, :], S[1, 0:+32, :] -> F transpose_b", 1, "gemm's shapes do not fit"),
    ("gemm S[0, 0:+32, :], S[1, :, :] -> F", 1, "gemm's shapes do not fit"),
    ("gemm S, S[1, :, :] -> F", 1, "gemm needs a matrix, but S is not"),
    ("gemm S[0, :, :], S[1, :, :] -> C", 1, "gemm's c C is in the wrong memory"),
    ("gemm H, H -> F atom=wgmma", 1, "gemm's b H is in the wrong memory"),
    ("gemm S[0, :, :], S[1, :, :] -> F atom=bulk_load", 1, "atom bulk_load does not serve gemm"),
    ("gemm S[0, :, :], S[1, :, :] -> F policy=row", 1, "unknown policy 'row'"),
    ("gemm S[0, :, :], S[1, :, :] -> F precision=fp8", 1, "unknown precision 'fp8'"),
    ("gemm S[0, :, :], S[1, :, :] -> F clear=n", 1, "clear must be a bool"),
    ("reduce mean F -> R dim 1", 1, "unknown reduction 'mean'"),
    ("reduce max F -> R dim 2", 1, "F has no dimension 2"),
    ("reduce max F -> H dim 0", 1, "H does not have the shape of the reduction"),
    ("scan any R -> R dim 0", 1, "unknown scan 'any'"),
    ("scan by R -> R dim 0", 1, "scan's operator does not fit its tiles"),
    ("scan sum R -> R dim 0 totals=R", 1, "R does not have the shape of the totals"),
    ("scan sum R -> F dim 0", 1, "R and F have different shapes"),
    ("scan sum R -> R dim 1", 1, "R has no dimension 1"),
    ("relayout F -> S[0, :, :]", 1, "the destination S is in the wrong memory"),
    ("relayout F -> H", 1, "the source has another type than what it goes to"),
    # synchronisation
    ("barrier_init F[0, 0] count 1", 1, "the barrier F is in the wrong memory"),
    ("barrier_init bar count 0", 1, "a barrier needs at least one arrival"),
    ("arrive bar", 1, "one barrier is needed"),
    ("arrive bar[0] bytes=v", 1, "bytes must be an integer"),
    ("wait bar[0] phase v", 1, "the phase must be an integer"),
    ("commit tma", 1, "unknown unit 'tma'"),
    ("wait_group tma pending 0", 1, "unknown unit 'tma'"),
    ("wait_group bulk pending -1", 1, "pending must not be negative"),
    ("wait_group wgmma pending 0 read", 1, "read= is for bulk stores"),
    ("fence all", 1, "unknown fence 'all'"),
    ("sync grid", 1, "unknown scope 'grid'"),
    ("sync cluster", 1, "sync cluster in a kernel without a cluster"),
    ("sync block threads=128", 1, "sync block takes no id and no threads"),
    ("sync named id=1", 1, "sync named needs id and threads"),
    ("sync named id=16 threads=128", 1, "there is no such named barrier"),
    ("sync named id=1 threads=48", 1, "a named barrier counts whole warps of the block"),
    ("sync named id=1 threads=512", 1, "a named barrier counts whole warps of the block"),
    # late
    ("intrinsic shfl_xr (v, 1)", 1, "unknown intrinsic 'shfl_xr'"),
    ("intrinsic print v result=w: float32", 1, "print has no result"),
    ("hint assume value=n", 1, "what is assumed must be a bool"),
    # what cannot work whatever the timing
    ("arrive bar[0]", 1, "barrier bar is never initialised"),
    (
        "barrier_init bar count 1 ; wait bar[0] phase 0",
        28,
        "nobody arrives at barrier bar, so this wait never ends",
    ),
    (
        "barrier_init bar count 1 ; arrive bar[0] ; wait bar[0] phase 0\n"
        "↑copy A[0:+64, :] -> S[0, :, :] barrier=bar[0] atom=bulk_load",
        1,
        "this copy counts its bytes on bar, but nobody there expects bytes",
    ),
    (
        "barrier_init bar count 1 ; arrive bar[0] bytes=8192\n"
        "↑copy A[0:+64, :] -> S[0, :, :] barrier=bar[0] atom=bulk_load",
        1,
        "nobody waits on bar, so nothing may use what this copy brings",
    ),
    (
        "barrier_init bar count 1 ; wait bar[0] phase 0\n↑arrive bar[0] bytes=64",
        1,
        "this arrival expects bytes on bar, but no copy completes there",
    ),
    (
        "gemm S[0, :, :], S[1, :, :] -> F atom=wgmma ; wait_group wgmma pending 0",
        1,
        "this op is asynchronous on wgmma, but its group is never closed",
    ),
    (
        "copy S[0, :, :] -> A[0:+64, :] atom=bulk_store ; commit bulk",
        1,
        "this op is asynchronous on bulk, but nothing waits for it",
    ),
    (
        "role a warps 4 + 4 { commit wgmma ; wait_group wgmma pending 0 }\n"
        "role b warps 0 + 4 {\n↑gemm S[0, :, :], S[1, :, :] -> F atom=wgmma\n}",
        1,
        "this op is asynchronous on wgmma, but its group is never closed in role b",
    ),
]


@pytest.mark.parametrize(("body", "column", "message"), BAD, ids=[b[0][:60] for b in BAD])
def test_broken_rules(body, column, message):
    lines = body.split("\n")
    line = next((i for i, text in enumerate(lines) if "↑" in text), 0)
    with pytest.raises(VerifyError) as caught:
        check(body.replace("↑", ""))
    error = caught.value
    assert error.message == message
    assert (error.loc.file, error.loc.line, error.loc.column) == ("test.tw", FIRST + line, column)
    assert "^" in str(error)


def test_cluster_rules():
    good = "barrier_init bar count 2 ; arrive bar[0]@(r ^ 1) ; wait bar[0] phase 0 ; sync cluster"
    check(good, kernel="cluster=2 rank=r ")
    for body, message in [
        ("wait bar[0]@r phase 0", "a block can only wait on its own barriers"),
        ("fill F@r = 0", "F cannot be reached in another block"),
        ("arrive bar[0]@v", "the rank after '@' must be an integer"),
        (
            "copy A[0:+64, :] -> S[0, :, :] atom=threads multicast=3",
            "threads does not multicast",
        ),
    ]:
        with pytest.raises(VerifyError) as caught:
            check(body, kernel="cluster=2 rank=r ")
        assert (caught.value.message, caught.value.loc.line) == (message, FIRST)


KERNELS = [
    ("grid b in 8 threads t in 2048 ", "the number of threads is out of range"),
    ("grid (b, c) in 8 threads t in 32 ", "grid: one variable for each of at most 3 axes"),
    ("grid b in 8 threads (t, u) in 32 ", "threads: one variable for each of at most 3 axes"),
    ("grid b in 1.5 threads t in 32 ", "a grid extent must be an integer"),
    ("grid b in 8 threads t in 32 rank=r ", "rank= in a kernel without a cluster"),
    ("grid b in 8 threads t in 32 cluster=(2, 2) ", "the cluster does not fit"),
    ("grid b in 32 threads t in 32 cluster=32 ", "the cluster does not fit"),
]


@pytest.mark.parametrize(("kernel", "message"), KERNELS)
def test_kernel_rules(kernel, message):
    with pytest.raises(VerifyError) as caught:
        verify(parse_program(f"program p {{\n  kernel k {kernel}{{}}\n}}"), Stage.TILE)
    error = caught.value
    assert (error.message, error.loc.line, error.loc.column) == (message, 2, 3)


def test_program_rules():
    for text, message in [
        ("program p {}", "program p has no kernel"),
        (
            "program p {\n param A: int8[4] shared\n kernel k grid b in 1 threads t in 1 {}\n}",
            "A is a parameter or scratch tensor, which live in global memory",
        ),
        (
            "program p {\n kernel k grid b in 1 threads t in 1 {}\n"
            "kernel k grid c in 1 threads u in 1 {}\n}",
            "two kernels are called k",
        ),
    ]:
        with pytest.raises(VerifyError) as caught:
            verify(parse_program(text), Stage.TILE)
        assert caught.value.message == message


def test_laid_out_needs_layouts_and_atoms():
    head = "program p {\n param C: float32[64, 64]\n kernel k grid b in 1 threads t in 128 {\n"
    for body, message in [
        ("alloc F: float32[64, 64] fragment", "F has no layout at stage LAID_OUT"),
        ("alloc S: float32[64, 64] shared", "S has no layout at stage LAID_OUT"),
        (
            f"alloc F: float32[64, 64] fragment{LAID}\n↑copy F -> C",
            "copy has no atom at stage LAID_OUT",
        ),
        (
            f"alloc F: float32[64, 64] fragment{LAID}\n↑gemm F, F -> F",
            "gemm has no atom at stage LAID_OUT",
        ),
    ]:
        with pytest.raises(VerifyError) as caught:
            verify(parse_program(head + body.replace("↑", "") + "\n}}"), Stage.LAID_OUT)
        line = 4 + ("↑" in body)
        assert (caught.value.message, caught.value.loc.line) == (message, line)
        verify(parse_program(head + body.replace("↑", "") + "\n}}"), Stage.TILE)
    verify(
        parse_program(
            head + f"alloc F: float32[64, 64] fragment{LAID}\ncopy F -> C atom=threads\n}}}}"
        ),
        Stage.LAID_OUT,
    )


@pytest.mark.parametrize(
    "body",
    [
        "copy F -> C", "fill F = 0", "gemm F, F -> F", "reduce max F -> R dim 0",
        "scan sum R -> R dim 0", "relayout F -> F", "map i in 4 { }",
    ],
)  # fmt: skip
def test_thread_stage_has_no_tile_ops(body):
    with pytest.raises(VerifyError) as caught:
        check(body, Stage.THREAD)
    name = body.split()[0].capitalize()
    assert caught.value.message == f"{name} may not stand in a program at stage THREAD"
    assert caught.value.loc.line == FIRST


# ── what the text cannot say ─────────────────────────────────────────────────────────────────

S = Buffer("S", (const(8),), FLOAT32, Space.SHARED)
I, X = Var("i"), Var("x", FLOAT32)


def built(*body):
    kernel = O.Kernel("k", (Var("b"),), (const(1),), (Var("t"),), (32,), body)
    return O.Program("p", (), (kernel,))


HAND_BUILT = [
    ((O.Let(I, const(1)), O.Let(I, const(2))), "i is defined twice"),
    ((O.Alloc(S), O.Let(Var("S"), const(2))), "S is defined twice"),
    ((O.For(I, const(0), const(4), ()), O.For(I, const(0), const(4), ())), "i is defined twice"),
    ((O.Let(Var("y"), I),), "variable i is never defined"),
    ((O.For(I, const(0), const(4), ()), O.Let(Var("y"), I)), "variable i is not in scope here"),
    (
        (O.Let(I, const(1)), O.Let(Var("y", INT64), Var("i", INT64))),
        "i is used as int64 but defined as int32",
    ),
    ((O.Fill(whole(S), const(0.0)),), "buffer S is never allocated"),
    (
        (O.If(const(True), (O.Alloc(S),)), O.Fill(whole(S), const(0.0))),
        "buffer S is not in scope here",
    ),
    (
        (O.Alloc(S), O.Fill(whole(dataclasses.replace(S, dtype=INT64)), const(0, INT64))),
        "S here is not the buffer that was allocated: dtype differ",
    ),
    ((O.Alloc(S), O.Let(X, Load(S, ()))), "S has 1 dimensions"),
    ((O.Let(X, Call("exp2", (), FLOAT32)),), "exp2 takes 1 arguments"),
    ((O.Let(X, Call("frob", (const(1.0),), FLOAT32)),), "unknown function frob"),
    ((O.Let(I, Call("exp2", (const(1.0),), const(1).dtype)),), "exp2 has another type"),
    ((O.Let(I, Bin("**", const(1), const(1))),), "unknown operator '**'"),
    (
        (O.Let(I, Select(const(1), const(1), const(1))),),
        "the condition of 1 if 1 else 1 must be a bool",
    ),
    ((O.Kernel("q", (), (), (), (), ()),), "a kernel inside another op"),
]


@pytest.mark.parametrize(("body", "message"), HAND_BUILT, ids=[m for _, m in HAND_BUILT])
def test_rules_on_built_programs(body, message):
    with pytest.raises(VerifyError) as caught:
        verify(built(*body), Stage.TILE)
    assert caught.value.message == message


def test_an_op_without_a_position_is_quoted():
    with pytest.raises(VerifyError) as caught:
        verify(built(O.Break()), Stage.TILE)
    assert "in: break" in str(caught.value)


def test_every_op_has_checks():
    assert RULES.keys() == O.OPS.keys()


# ── no correct program is accused ────────────────────────────────────────────────────────────

FINE = [
    # a fresh barrier lets parity 1 pass
    "barrier_init bar count 1 ; wait bar[0] phase 1",
    # foreign code may do anything to a barrier it is given, and commit by itself
    'barrier_init bar count 1 ; wait bar[0] phase 0 ; intrinsic ptx &bar[0] text="arrive"',
    'gemm S[0, :, :], S[1, :, :] -> F atom=wgmma ; intrinsic ptx n text="commit"',
    # empty groups, and waits for nothing, do nothing
    "commit bulk ; wait_group bulk pending 0 ; wait_group cp_async pending 1",
    # out of range in a global tensor reads zero
    "let x = C[-1, 70] ; copy C[32:+64, :] -> F",
    # sizes known at run time may fit
    "copy A[0:+n, :] -> S[0, :, :] ; copy C[0:+n, 0] -> R",
    # a unit extent is no dimension
    "reduce sum F[0:+1, :] -> R[0] dim 0 ; reduce sum F[0:+1, :] -> R dim 0",
    "gemm F[0:+1, :], F -> F[0:+1, :]",
    # a commit outside the roles closes what a role issued
    "role a warps 0 + 4 { gemm S[0, :, :], S[1, :, :] -> F atom=wgmma }\n"
    "commit wgmma ; wait_group wgmma pending 0",
]


@pytest.mark.parametrize("body", FINE)
def test_no_false_alarm(body):
    check(body)
