"""Products that no matrix instruction does: threads load parts of both factors, and multiply."""

from itertools import pairwise
from math import prod

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.analysis.points import evaluate
from tilewright.ir.expr import loads, variables
from tilewright.ir.op import For, Gemm, Let, Store, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.layout.choose_gemms import UNROLLED, choose_gemms
from tilewright.passes.layout.matrix_tiles import fragments_of, split_of
from tilewright.targets.cuda.backend import lower

CUDA = Target.parse("cuda -arch=sm_90a")
ORIENTATIONS = [(False, False), (False, True), (True, False), (True, True)]


def product(
    m=64, n=64, k=32, threads=128, dtype="float32", turn=(False, False), whole=2, narrow=None
):
    kind = narrow or dtype
    a_shape, b_shape = ((k, m) if turn[0] else (m, k)), ((n, k) if turn[1] else (k, n))
    deep = k * whole

    @T.prim_func
    def main(
        A: T.Tensor((deep, m) if turn[0] else (m, deep), kind),
        B: T.Tensor((n, deep) if turn[1] else (deep, n), kind),
        C: T.Tensor((m, n), dtype),
    ):
        with T.Kernel(1, threads=threads):
            a = T.alloc_shared(a_shape, kind)
            b = T.alloc_shared(b_shape, kind)
            c = T.alloc_fragment((m, n), dtype)
            T.clear(c)
            for step in T.Pipelined(whole):
                T.copy(A[step * k, 0] if turn[0] else A[0, step * k], a)
                T.copy(B[0, step * k] if turn[1] else B[step * k, 0], b)
                T.gemm(a, b, c, transpose_A=turn[0], transpose_B=turn[1])
            T.copy(c, C)

    return main.program


def run(program, turn):
    """What thread code computes, and what it should."""
    rng = np.random.default_rng(1)
    a, b, out = (
        rng.integers(-3, 4, [int(n) for n in x.shape]).astype(x.dtype.name) for x in program.tensors
    )
    machine.run(lower(program, CUDA).result, {"A": a, "B": b, "C": out})
    return out, (a.T if turn[0] else a) @ (b.T if turn[1] else b)


@pytest.mark.parametrize("turn", ORIENTATIONS)
@pytest.mark.parametrize("dtype", ["float32", "int32", "float64"])
def test_every_orientation(turn, dtype):
    found, want = run(product(dtype=dtype, turn=turn), turn)
    assert (found == want).all()


@pytest.mark.parametrize(
    "sizes",
    [
        {"m": 16, "n": 32, "threads": 64},
        {"m": 128, "n": 32, "threads": 256},
        {"m": 32, "n": 128, "k": 8, "threads": 64},
        {"k": 6},  # less than 16 bytes at a time
        {"m": 48, "n": 40, "threads": 96},
        {"m": 24, "n": 20, "threads": 64},  # threads do not divide it
        {"m": 1, "n": 64, "threads": 32},
    ],
    ids=str,
)
@pytest.mark.parametrize("turn", ORIENTATIONS[:2])
def test_sizes(sizes, turn):
    found, want = run(product(**sizes, turn=turn), turn)
    assert (found == want).all()


@pytest.mark.parametrize("turn", ORIENTATIONS)
def test_narrow_factors_do_not_spill(turn):
    """A part is as deep for bytes as for words: each takes a register."""
    made = product(128, 128, 32, 256, dtype="int32", narrow="int16", turn=turn)
    kernel = tw.compile(made, target="cuda -arch=sm_90a")
    assert not kernel.spills
    a, b = (np.random.default_rng(k).integers(-3, 4, (128, 64)).astype("int16") for k in (0, 1))
    a, b, out = a.T if turn[0] else a, b if turn[1] else b.T, np.zeros((128, 128), "int32")
    given = {"A": np.ascontiguousarray(a), "B": np.ascontiguousarray(b), "C": out}
    machine.run(made, given)
    want = (a.T if turn[0] else a).astype(int) @ (b.T if turn[1] else b).astype(int)
    assert (out == want).all()


@pytest.mark.parametrize("turn", ORIENTATIONS)
def test_loads_meet_no_conflict(turn):
    text = tw.compile(product(128, 128, 32, 256, turn=turn), target="cuda -arch=sm_90a").explain()
    assert text.count("16 bytes a lane") >= 2 and "extra wavefronts" not in text


@pytest.mark.parametrize("turn", ORIENTATIONS)
@pytest.mark.parametrize("shape", [(128, 128, 256), (64, 256, 128), (16, 64, 128)])
def test_threads_hold_what_they_multiply(turn, shape):
    """Every element of C belongs to one thread, which holds its row of A and column of B."""
    *tile, threads = shape
    kernel = product(*tile, 16, threads, turn=turn).kernels[0]
    (op,) = walk_ops(kernel, Gemm)
    held = fragments_of(op, split_of(op, threads, CUDA))
    axes = {"a": (1, 0) if turn[0] else (0, 1), "b": (1, 0) if turn[1] else (0, 1)}
    assert held["c"].values * threads == prod(tile)
    for thread in range(0, threads, 37):
        own = {
            name: {each.coord(thread, v) for v in range(each.values)} for name, each in held.items()
        }
        rows = {at[axes["a"][0]] for at in own["a"]}
        columns = {at[axes["b"][1]] for at in own["b"]}
        assert {i for i, _ in own["c"]} == rows and {j for _, j in own["c"]} == columns


@pytest.mark.parametrize("shape", [(128, 128, 256), (128, 256, 256), (64, 64, 128)])
def test_code_is_not_long(shape):
    m, n, threads = shape
    made = choose_gemms(product(m, n, 32, threads), CUDA)
    loops = [op for op in walk_ops(made.kernels[0], For) if op.kind == "unroll"]
    for loop in loops:
        (op,) = walk_ops(loop, Gemm)
        assert int(loop.stop) * m * n * int(op.a.extents[-1]) // threads <= UNROLLED
    assert len(loops) == 1


@pytest.mark.parametrize("turn", ORIENTATIONS)
@pytest.mark.parametrize("shape", [(128, 128, 256), (64, 128, 128), (64, 32, 64)])
def test_four_neighbours_read_two_places_of_each_factor(turn, shape):
    """Shared memory takes two turns for such a load of 16 bytes, not four."""
    *tile, threads = shape
    (op,) = walk_ops(product(*tile, 16, threads, turn=turn).kernels[0], Gemm)
    held = fragments_of(op, split_of(op, threads, CUDA))
    for name in "ab":
        table = held[name].table()
        assert all(len(np.unique(table[lane : lane + 4, 0])) == 2 for lane in range(0, threads, 4))


def in_turns(program):
    """Of a thread's sums, in the order in which products are added: indices of both factors."""
    loop = next(
        op
        for op in walk_ops(lower(program, CUDA).result.kernels[0], For)
        if [type(inner) for inner in op.body] == [Let, Store]
    )
    turn, add = loop.body
    factors = [load.indices[0] for load in loads(add.value) if load.buffer != add.buffer]
    for w in range(int(loop.stop)):
        at = {loop.var: w, **{v: 0 for e in factors for v in variables(e) if v != turn.var}}
        at[turn.var] = evaluate(turn.value, at)
        yield int(at[turn.var]), *(int(evaluate(e, at)) for e in factors)


@pytest.mark.parametrize("turn", ORIENTATIONS)
def test_a_factor_stays_from_each_product_to_the_next(turn):
    """An operand that stays is not read again: two banks give two operands a cycle."""
    order = list(in_turns(product(128, 128, 32, 256, turn=turn)))
    assert sorted(value for value, *_ in order) == list(range(64))
    for (_, *last), (_, *now) in pairwise(order):
        assert sum(a == b for a, b in zip(last, now, strict=True)) == 1


@pytest.mark.parametrize("turn", ORIENTATIONS)
def test_tiles_are_swizzled_only_where_rows_would_meet_in_a_bank(turn):
    """Addresses in rows one behind the other differ by constants: a swizzle's are computed."""
    text = tw.compile(product(128, 128, 32, 256, turn=turn), target="cuda -arch=sm_90a").explain()
    along_rows = turn[0] + (not turn[1])  # factors of which a load takes several rows or columns
    assert text.count("only threads and bulk copies touch it") == along_rows
    assert text.count("swizzled, so that rows") == 2 - along_rows


def test_sums_are_stored_from_other_registers():
    """A vector is stored from four registers in a row: sums that lay so would meet in banks."""
    source = tw.compile(product(), target="cuda -arch=sm_90a").get_kernel_source()
    assert "tw::store_global<tw::float32, 4, tw::normal, true>" in source
