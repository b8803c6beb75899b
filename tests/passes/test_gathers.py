"""Maps that gather: ahead by `cp.async`, the same numbers, and what keeps a map from it."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from devtools.schedules.run import draw
from tests.passes.overlap import AMPERE, HOPPER, ROLES, numbers
from tests.schedules.harness import mutants
from tilewright import machine
from tilewright.ir.op import Copy, Map, Role, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program, print_program
from tilewright.ir.verify import Stage, verify
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import CompileError, RunError, TilewrightError, VerifyError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.kernel import CudaKernel

TARGETS = {"producer": ROLES, "all threads": HOPPER, "sm_80": AMPERE}
ROWS = 300


def rows_of(table="global", K=192, stages=3, dtype="float16", threads=256, wrap=0, tiles=1):
    """Rows of the first operand are named by a table. `wrap`: what is done to what is moved."""

    @T.prim_func
    def main(
        X: T.Tensor((ROWS, K), dtype),
        rows: T.Tensor((tiles * 128,), "int32"),
        B: T.Tensor((K, 64), dtype),
        C: T.Tensor((tiles * 128, 64), "float32"),
    ):
        with T.Kernel(tiles, threads=threads) as bx:
            a = T.alloc_shared((128, 64), dtype)
            b = T.alloc_shared((64, 64), dtype)
            c = T.alloc_fragment((128, 64), "float32")
            named = T.alloc_shared((128,), "int32")
            held = T.alloc_fragment((128,), "int32")
            if table == "shared":
                T.copy(rows[bx * 128], named)
            if table == "fragment":
                T.copy(rows[bx * 128], held)
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(K, 64), num_stages=stages):
                for i, j in T.Parallel(128, 64):
                    if table == "shared":
                        a[i, j] = X[named[i], k * 64 + j]
                    elif table == "fragment":
                        a[i, j] = X[held[i], k * 64 + j]
                    elif wrap:
                        a[i, j] = X[rows[bx * 128 + i], k * 64 + j] * wrap
                    else:
                        a[i, j] = X[rows[bx * 128 + i], k * 64 + j]
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[bx * 128, 0])

    return main.program


def windows(channels=64, side=6, stages=3, branch=False):
    """A convolution as a product: windows of an image, zeros around it; weights seen as rows."""
    points, deep = 2 * side * side, 9 * channels

    @T.prim_func
    def main(
        X: T.Tensor((2, side, side, channels), "float16"),
        W: T.Tensor((3, 3, channels, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            flat = T.reshape(W, (deep, 64))
            T.clear(c)
            for k in T.Pipelined(T.ceildiv(deep, 64), num_stages=stages):
                for i, j in T.Parallel(128, 64):
                    d = k * 64 + j
                    y = i // side % side + d // (3 * channels) - 1
                    x = i % side + d // channels % 3 - 1
                    near = (y >= 0) and (y < side) and (x >= 0) and (x < side) and (i < points)
                    if branch:
                        if near:
                            a[i, j] = X[i // (side * side), y, x, d % channels]
                        else:
                            a[i, j] = 0
                    else:
                        value = X[i // (side * side), y, x, d % channels]
                        a[i, j] = T.if_then_else(near, value, 0)
                T.copy(flat[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    return main.program


def arguments(program):
    found = {}
    for tensor in program.tensors:
        shape = tuple(int(s.value) for s in tensor.shape)
        found[tensor.name] = numbers(*shape, dtype=tensor.dtype.numpy)
    if "rows" in found:
        rng = np.random.default_rng(0)
        found["rows"] = rng.integers(-5, ROWS + 5, found["rows"].shape).astype(np.int32)
    return found


def results(program, given, seed=0, **kw):
    args = {n: a.copy() for n, a in given.items()}
    machine.run(program, args, seed=seed, **kw)
    return args["C"]


def scheduled(program, target):
    return next(s.program for s in lower(program, target) if s.name == "order_warpgroups")


def gathers(program):
    """Maps by `cp.async`, and whether a producer runs them."""
    inside = {id(op) for r in walk_ops(program.kernels[0]) if isinstance(r, Role)
              for op in walk_ops(r.body) if r.name == "producer"}  # fmt: skip
    found = [op for op in walk_ops(program.kernels[0]) if isinstance(op, Map) and op.atom]
    assert all(op.atom == "cp_async" for op in found)
    return [id(op) in inside for op in found]


def check(program, target, seeds=2, threads=True):
    given = arguments(program)
    want = results(program, given)
    trace = lower(program, target)
    found = next(s.program for s in trace if s.name == "order_warpgroups")
    for seed in range(seeds):
        np.testing.assert_array_equal(results(found, given, seed, explicit=True), want)
    if threads:
        args = {n: a.copy() for n, a in given.items()}
        machine.run_threads(trace.result, args)
        np.testing.assert_array_equal(args["C"], want)
    return found


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("stages", [2, 3, 4])
def test_rows_that_a_table_names(name, stages):
    found = check(rows_of(stages=stages, K=320, tiles=2), TARGETS[name])
    assert gathers(found) == ([True] if name == "producer" else [False, False])


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("branch", [False, True], ids=["select", "if"])
def test_windows_of_an_image(name, branch):
    found = check(windows(branch=branch), TARGETS[name])
    assert gathers(found) == ([True] if name == "producer" else [False, False])
    loads = [op for op in walk_ops(found.kernels[0]) if isinstance(op, Copy)]
    loads = {op.atom for op in loads if op.src.buffer.name.startswith("flat")}
    assert loads == {"cp_async" if name == "sm_80" else "bulk_load"}


@pytest.mark.parametrize("table", ["shared", "fragment"])
def test_a_table_that_threads_hold_keeps_them_alike(table):
    found = check(rows_of(table), ROLES)
    assert gathers(found) == [False, False]


@pytest.mark.parametrize("K, size", [(192, 16), (100, 8), (66, 4)])
@pytest.mark.parametrize("target", [ROLES, AMPERE], ids=["hopper", "sm_80"])
def test_odd_rows_move_in_smaller_pieces(K, size, target):
    program = rows_of(K=K, stages=2)
    check(program, target)
    text = print_program(lower(program, target).result)
    assert f'text="bytes={size}"' in text
    narrow = gathers(scheduled(program, target)) == [False, False]
    assert narrow == (size < 16 or target is AMPERE)  # many instructions are for many threads


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("form", ["<", "<=", ">", ">="])
def test_a_border_that_lies_between_vectors(name, form):
    """The guard is asked once for 16 bytes, whichever way it is written."""

    @T.prim_func
    def main(
        X: T.Tensor((ROWS, 400), "float16"),
        rows: T.Tensor((128,), "int32"),
        B: T.Tensor((400, 64), "float16"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for k in T.Pipelined(4, num_stages=3):
                limit = 200
                for i, j in T.Parallel(128, 64):
                    d = k * 64 + j
                    near = {
                        "<": d < 200,
                        "<=": d <= 199,
                        ">": limit > d,
                        ">=": d >= 40,
                    }[form]
                    a[i, j] = T.if_then_else(near and rows[i] > 2, X[rows[i], d], 0)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C)

    assert gathers(check(main.program, TARGETS[name]))
    assert 'text="bytes=16"' in print_program(lower(main.program, TARGETS[name]).result)


@pytest.mark.parametrize("name", TARGETS)
def test_single_words(name):
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, 9), "float32"),
        rows: T.Tensor((128,), "int32"),
        C: T.Tensor((9, 128), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((128,), "float32")
            for k in T.Pipelined(9, num_stages=3):
                for i in T.Parallel(128):
                    a[i] = X[rows[i], k]
                for i in T.Parallel(128):
                    C[k, i] = a[i] * 2

    assert gathers(check(main.program, TARGETS[name]))


@pytest.mark.parametrize("name", TARGETS)
@pytest.mark.parametrize("trips", [0, 1, 2, 5])
def test_trip_counts(name, trips):
    @T.prim_func
    def main(
        X: T.Tensor((ROWS, 320), "float16"),
        rows: T.Tensor((128,), "int32"),
        count: T.Tensor((3,), "int32"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((128, 64), "float32")
            T.clear(c)
            for t in T.serial(3):
                for k in T.Pipelined(count[t], num_stages=3):
                    for i, j in T.Parallel(128, 64):
                        a[i, j] = X[rows[i], k * 64 + j]
                    for i, j in T.Parallel(64, 64):
                        b[i, j] = X[rows[i] + t, k * 64 + j]
                    T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    program = main.program
    given = arguments(program)
    given["count"] = np.array([trips, 3, trips], np.int32)
    want = results(program, given)
    trace = lower(program, TARGETS[name])
    found = next(s.program for s in trace if s.name == "order_warpgroups")
    assert gathers(found)
    for seed in range(2):
        np.testing.assert_array_equal(results(found, given, seed, explicit=True), want)
    args = {n: a.copy() for n, a in given.items()}
    machine.run_threads(trace.result, args)
    np.testing.assert_array_equal(args["C"], want)


PRODUCER = """\
      alloc row: int32[128] fragment layout="frag{tile=(128) tv=((8,16),8):((0,1),16)}"
      map i_1 in 128 layout="frag{tile=(128) tv=((8,16),8):((0,1),16)}" {
        row[i_1] = rows[bx * 128 + i_1]
      }
      for k_1 in 0 .. 4 {
        let k_slot_1 = k_count_1 % 3
        wait b_free[k_slot_1] phase (k_count_1 // 3 % 2 + 1) % 2
        arrive b_full[k_slot_1] bytes=8192
        copy B[k_1 * 64:+64, :] -> b[k_slot_1, :, :] barrier=b_full[k_slot_1] atom=bulk_load
        let k_slot = k_count_1 % 3
        wait a_free[k_slot] phase (k_count_1 // 3 % 2 + 1) % 2
        map (i_2, j_1) in (128, 64) layout="frag{tile=(128,64) tv=(128,(8,8)):(8,(1,1024))}" \
atom=cp_async {
          a[k_slot, i_2, j_1] = X[row[i_2], k_1 * 64 + j_1]
        }
        commit cp_async
        wait_group cp_async pending 1
        if k_1 >= 1 {
          fence proxy_async
          arrive a_full[(k_count_1 + 2) % 3] count=4 by=warps
        }
        k_count_1 = k_count_1 + 1
      }
      wait_group cp_async pending 0
      fence proxy_async
      arrive a_full[(k_count_1 + 2) % 3] count=4 by=warps
"""


def test_what_the_producer_does():
    """The table is asked once; a slot is announced an iteration after its copies began."""
    target = Target.parse("cuda -roles -persistent=off -stages=text")
    text = print_program(scheduled(rows_of(K=256), target))
    assert PRODUCER in text


def test_without_a_producer_threads_wait_fence_and_meet():
    text = print_program(scheduled(rows_of(K=256), HOPPER))
    wait = text.index("wait_group cp_async pending 1")
    lines = [line.strip() for line in text[wait:].splitlines()[:6]]
    assert "fence proxy_async" in lines and "sync block" in lines
    assert lines.index("fence proxy_async") < lines.index("sync block")


@pytest.mark.parametrize("name", ["producer", "all threads"])
def test_nothing_can_be_dropped_unnoticed(name):
    target = TARGETS[name].choosing(stages="text")  # slots come round
    program = rows_of(K=320)
    given = arguments(program)
    want = results(program, given)
    missed = []
    for said, mutant in mutants(scheduled(program, target)):
        try:
            same = [
                (results(mutant, given, seed, explicit=True) == want).all() for seed in range(3)
            ]
        except TilewrightError:
            continue
        if all(same) and not races(mutant, given, target):
            missed.append(said)
    # slots of both rings are handed back together, and the producer asks for those of `b` first
    assert [m for m in missed if "wait a_free" not in m] == []


def races(mutant, given, target):
    """Whether threads get in each other's way, which only thread code shows."""
    try:
        code = run_pipeline(mutant, target, LOWER, stage=Stage.LAID_OUT).result
        machine.run_threads(code, {n: a.copy() for n, a in given.items()})
    except TilewrightError:
        return True
    return False


def in_the_loop(what):
    """A map that must stay where it is."""

    @T.prim_func
    def main(
        X: T.Tensor((ROWS, 256), "float16"),
        Y: T.Tensor((ROWS, 256), "float16"),
        Q: T.Tensor((ROWS, 256), "int8"),
        rows: T.Tensor((128,), "int32"),
        C: T.Tensor((128, 64), "float32"),
    ):
        with T.Kernel(1, threads=256):
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 64), "float16")
            named = T.alloc_shared((128,), "int32")
            c = T.alloc_fragment((128, 64), "float32")
            T.copy(rows, named)
            T.clear(c)
            for k in T.Pipelined(4, num_stages=3):
                for i, j in T.Parallel(128, 64):
                    if what == "converts":
                        a[i, j] = T.cast(Q[rows[i], k * 64 + j], "float16")
                    elif what == "a condition without zeros":
                        if rows[i] > 3:
                            a[i, j] = X[rows[i], k * 64 + j]
                    elif what == "ones outside":
                        a[i, j] = T.if_then_else(rows[i] > 3, X[rows[i], k * 64 + j], 1)
                    elif what == "rows apart by a half word":
                        a[i, j] = X[rows[i], k * 64 + j + 1]
                    elif what == "columns":
                        a[i, j] = X[k * 64 + j, i]
                    elif what == "the table changes":
                        a[i, j] = X[named[i], k * 64 + j]
                    elif what == "the tensor is written":
                        a[i, j] = Y[rows[i], k * 64 + j]
                T.copy(X[k * 64, 0], b)
                T.gemm(a, b, c)
                if what == "the table changes":
                    for i in T.Parallel(128):
                        named[i] = (named[i] + 1) % ROWS
                if what == "the tensor is written":
                    T.copy(b, Y[k * 64, 0])
            T.copy(c, C)

    return main.program


@pytest.mark.parametrize(
    "what",
    [
        "converts",
        "a condition without zeros",
        "ones outside",
        "rows apart by a half word",
        "columns",
        "the table changes",
        "the tensor is written",
    ],
)
def test_what_stays_with_registers(what):
    program = in_the_loop(what)
    if what in ("a condition without zeros", "the tensor is written"):
        found = scheduled(program, ROLES)  # what is not written, or when, nobody knows
    else:
        found = check(program, ROLES, threads=False)
    assert gathers(found) == []


def test_it_can_be_switched_off():
    off = Target.parse("cuda -roles -async_gathers=off")
    assert gathers(check(rows_of(), off, threads=False)) == []
    kernel = CudaKernel(rows_of(), Target.parse("cuda"))
    assert "cp.async.cg.shared.global" in kernel.ptx


def test_it_is_given_up_for_room():
    """Slots for all stages do not fit; two that threads write do."""
    program = rows_of(stages=10, K=704)
    trace = lower(program, Target.parse("cuda -roles"))
    found = next(s.program for s in trace if s.name == "order_warpgroups")
    assert gathers(found) == []
    assert "async_gathers=off" in trace.reasons["main", "given up"]


def test_explain_says_so():
    kernel = CudaKernel(rows_of(), Target.parse("cuda -roles"))
    reasons = " ".join(kernel.trace.reasons.values())
    assert "gathered by cp.async, 16 bytes at a time" in reasons


TILE = """\
program p {
  param X: float16[8, 64] global
  param Y: float16[8, 64] global
  kernel k grid bx in 1 threads tx in 128 {
    alloc s: float16[8, 64] shared
    map (i, j) in (8, 64) atom=cp_async { s[i, j] = VALUE }
    commit cp_async
    WAIT
    map (i, j) in (8, 64) { Y[i, j] = s[i, j] }
  }
}
"""


def tile(value="X[7 - i, j] if i != 2 else 0.0", wait="wait_group cp_async pending 0\nsync block"):
    return parse_program(TILE.replace("VALUE", value).replace("WAIT", wait))


def test_it_arrives_at_the_wait():
    x = numbers(8, 64, dtype=np.float16)
    want = np.where(np.arange(8)[:, None] != 2, x[::-1], 0)
    for seed in range(3):
        y = np.zeros_like(x)
        machine.run(tile(), {"X": x.copy(), "Y": y}, seed=seed, explicit=True)
        np.testing.assert_array_equal(y, want)
    for wait in ("", "sync block", "wait_group cp_async pending 1\nsync block"):
        with pytest.raises(RunError):
            machine.run(tile(wait=wait), {"X": x.copy(), "Y": x.copy()}, explicit=True)


@pytest.mark.parametrize(
    "value", ["X[i, j] * X[i, j]", "X[i, j] if i > 2 else 1.0", "X[j, i] + 0.5"]
)
def test_other_maps_have_no_atom(value):
    with pytest.raises(VerifyError, match="atom cp_async does not serve this map"):
        verify(tile(value), Stage.TILE)


def test_random_targets():
    """Whatever else is chosen, results are what the text says."""
    for n in range(12):
        target = draw(n).target + (" -roles" if n % 2 and "-roles" not in draw(n).target else "")
        program = rows_of(K=(192, 320, 100)[n % 3], stages=2 + n % 4, tiles=1 + n % 3)
        try:
            check(program, Target.parse(target), seeds=1, threads=n % 4 == 0)
        except CompileError as error:
            assert "shared memory" in error.message, target
