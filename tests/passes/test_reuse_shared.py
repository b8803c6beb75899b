"""Shared memory laid over one another by lifetime: when, where, behind which barriers; when not."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright import machine
from tilewright.ir.analysis.aliases import places as places_of
from tilewright.ir.analysis.lifetimes import lifetimes
from tilewright.ir.buffer import Space
from tilewright.ir.chips import CHIPS
from tilewright.ir.op import Copy, Fence, Map, Role, Sync, walk_ops
from tilewright.ir.rewrite import map_body, rebuild
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.passes.cuda_passes import SCHEDULE
from tilewright.passes.memory import place_shared as module
from tilewright.passes.memory.place_shared import reuse_shared
from tilewright.support.errors import CompileError, TilewrightError
from tilewright.targets.cuda.backend import lower

HOPPER = Target.parse("cuda")
AMPERE = Target.parse("cuda -arch=sm_80")


@T.prim_func
def phases(X: T.Tensor((2, 64, 512), "float32"), Y: T.Tensor((2, 64, 512), "float32")):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((64, 512), "float32")
        b = T.alloc_shared((64, 512), "float32")
        T.copy(X[0, :, :], a)
        for i, j in T.Parallel(64, 512):
            Y[0, i, j] = a[63 - i, 511 - j]
        T.copy(X[1, :, :], b)
        for i, j in T.Parallel(64, 512):
            Y[1, i, j] = b[63 - i, 511 - j]


def turns(n: int):
    @T.prim_func
    def turns(X: T.Tensor((4, n, 64), "float32"), Y: T.Tensor((4, n, 64), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((n, 64), "float32")
            b = T.alloc_shared((n, 64), "float32")
            x = T.alloc_fragment((n, 64), "float32")
            for k in T.serial(4):
                T.copy(X[k, :, :], a)
                for i, j in T.Parallel(n, 64):
                    x[i, j] = a[n - 1 - i, 63 - j]
                T.copy(x, b)
                for i, j in T.Parallel(n, 64):
                    Y[k, i, j] = b[n - 1 - i, 63 - j]

    return turns.program


def places(kernel) -> dict[str, int]:
    return {
        buffer.name: place
        for buffer, place in places_of(kernel).items()
        if buffer.space is Space.SHARED
    }


def run(program, threads=True):
    rng = np.random.default_rng(0)
    args = {
        t.name: rng.integers(-9, 9, t.static_shape).astype(t.dtype.numpy) for t in program.tensors
    }
    (machine.run_threads if threads else machine.run)(program, args)
    return args["Y"]


@pytest.fixture
def eager(monkeypatch):
    """Memory is reused wherever that saves some."""
    monkeypatch.setattr(module, "_blocks", lambda kernel, chip, shared: -shared)


def test_what_does_not_fit_is_laid_over():
    trace = lower(phases.program, HOPPER)
    kernel = trace.after("reuse_shared").kernels[0]
    assert places(kernel) == {"a": 0, "b": 0}
    assert "more than the 232448 of a block" in trace.reasons["phases", "shared memory"]
    np.testing.assert_array_equal(run(trace.result), run(phases.program, threads=False))
    used = tw.compile(phases, target="cuda").resources["shared_bytes"]
    assert 131072 < used < 131200  # and barriers


@pytest.mark.parametrize("target", [HOPPER, AMPERE], ids=str)
@pytest.mark.parametrize(
    ("program", "needed"), [(phases.program, 1), (turns(64), 3)], ids=["phases", "turns"]
)
def test_a_barrier_that_is_dropped_is_noticed(program, needed, target, eager):
    trace = lower(program, target)
    assert set(places(trace.after("reuse_shared").kernels[0]).values()) == {0}
    want = run(program, threads=False)
    np.testing.assert_array_equal(run(trace.result), want)
    (kernel,) = trace.result.kernels
    meets = [op for op in walk_ops(kernel) if isinstance(op, Sync) and op.scope == "block"]
    noticed = 0
    for victim in meets:
        body = map_body(kernel.body, lambda op, v=victim: () if op is v else None)
        try:
            got = run(dataclasses.replace(trace.result, kernels=(rebuild(kernel, body=body),)))
        except TilewrightError:
            noticed += 1
            continue
        noticed += not np.array_equal(got, want)
    assert noticed >= needed


def test_engines_come_behind_a_fence():
    ops = list(walk_ops(lower(phases.program, HOPPER).after("reuse_shared").kernels[0]))
    (second,) = (
        i for i, op in enumerate(ops) if isinstance(op, Copy) and op.dst.buffer.name == "b"
    )
    kinds = [type(op) for op in ops[:second]]
    read = max(i for i, kind in enumerate(kinds) if kind is Map)
    assert [k for k in kinds[read + 1 :] if k in (Fence, Sync)] == [Fence, Sync]


def test_nothing_is_reused_where_all_fits_and_as_many_blocks_run():
    trace = lower(turns(16), HOPPER)
    assert trace.after("reuse_shared") is trace.after("insert_syncs")
    assert len(set(places(trace.after("place_shared").kernels[0]).values())) == 2


def test_more_blocks_are_a_reason():
    @T.prim_func
    def wide(X: T.Tensor((2, 64, 256), "float32"), Y: T.Tensor((2, 64, 256), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 256), "float32")
            b = T.alloc_shared((64, 256), "float32")
            T.copy(X[0, :, :], a)
            for i, j in T.Parallel(64, 256):
                Y[0, i, j] = a[i, j]
            T.copy(X[1, :, :], b)
            for i, j in T.Parallel(64, 256):
                Y[1, i, j] = b[i, j]

    trace = lower(wide.program, HOPPER)
    assert "3 blocks instead of 1" in trace.reasons["wide", "shared memory"]
    np.testing.assert_array_equal(run(trace.result), run(wide.program, threads=False))
    told = tw.compile(wide, target="cuda").explain()
    assert "a, used from line" in told and ", over b" in told


def test_too_much_even_so_names_what_lives_at_the_peak():
    @T.prim_func
    def heavy(X: T.Tensor((64, 512), "float32"), Y: T.Tensor((64, 512), "float32")):
        with T.Kernel(1, threads=128):
            early = T.alloc_shared((64, 256), "float32")
            a = T.alloc_shared((64, 512), "float32")
            b = T.alloc_shared((64, 512), "float32")
            T.copy(X[0:64, 0:256], early)
            T.copy(early, Y[0:64, 0:256])
            T.copy(X, a)
            T.copy(X, b)
            for i, j in T.Parallel(64, 512):
                Y[i, j] = a[63 - i, j] + b[i, 511 - j]

    with pytest.raises(CompileError, match="more shared memory than a block has") as error:
        tw.compile(heavy, target="cuda")
    first = heavy.program.kernels[0].loc.line
    text = str(error.value)
    assert f"a 131072 (line {first + 2}), b 131072 (line {first + 3})" in text
    assert "early" not in text.partition("got:")[2]
    assert error.value.loc is not None and error.value.loc.line == first + 2
    assert "at most 232448 bytes on sm_90a" in text


def test_the_limit_is_the_targets():
    @T.prim_func
    def large(X: T.Tensor((96, 512), "float32"), Y: T.Tensor((96, 512), "float32")):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((96, 512), "float32")
            T.copy(X, a)
            for i, j in T.Parallel(96, 512):
                Y[i, j] = a[95 - i, j]

    assert tw.compile(large, target="cuda").resources["shared_bytes"] > 196_608
    with pytest.raises(CompileError, match="more shared memory") as error:
        tw.compile(large, target=AMPERE)
    assert "at most 166912 bytes on sm_80" in str(error.value)
    assert HOPPER.without(*HOPPER.features).chip == HOPPER.chip != AMPERE.chip


# ── lifetimes ────────────────────────────────────────────────────────────────────────────────

PLAIN = 'shared layout="(64,64):(64,1)"'
HELD = 'fragment layout="frag{tile=(64,64) tv=(128,32):(32,1)}"'


def kernel(body: str, threads: str = "t in 128", more: str = ""):
    text = f"""program p {{
  param X: float32[64, 64] global
  param Y: float32[64, 64] global
  kernel k grid bx in 1 threads {threads} {more} {{
    alloc f: float32[64, 64] {HELD}
    alloc a: float32[64, 64] {PLAIN}
    alloc b: float32[64, 64] {PLAIN}
    {body}
  }}
}}"""
    return parse_program(text, "k.tw").kernels[0]


TO, FROM = "copy f -> {} atom=threads", "copy {} -> f atom=threads"
ONE = TO.format("a") + "\nsync block\n" + FROM.format("a") + "\nsync block\n"
TWO = ONE.replace("a", "b", 0).replace("-> a ", "-> b ").replace("copy a ", "copy b ")


@pytest.mark.parametrize(
    ("body", "apart"),
    [
        (ONE + TWO, True),
        (f"for i in 0 .. 4 {{ {ONE} {TWO} }}", True),  # both made anew in every turn
        (f"for i in 0 .. 4 {{ {ONE} }}\n{TWO}", True),
        (f"for i in 0 .. 4 {{ {FROM.format('b')}\n {ONE} {TWO} }}", False),  # b goes round
        (f"for i in 0 .. 4 {{ if i > 1 {{ {ONE} }}\n{TWO} }}", False),  # a may be an older one
        (f"{TO.format('b')}\n{ONE}{FROM.format('b')}\n", False),
        (f"for i in 0 .. 4 {{ {ONE} }}\n{TWO} {FROM.format('a')}\n", False),
        ("copy X -> a atom=cp_async\ncommit cp_async\nwait_group cp_async pending 0\n" + TWO, True),
        (
            "copy X -> a atom=cp_async\ncommit cp_async\nwait_group cp_async pending 1\n" + TWO,
            False,
        ),
        ("copy a -> Y atom=bulk_store\ncommit bulk\nwait_group bulk pending 0\n" + TWO, True),
        ("copy a -> Y atom=bulk_store\ncommit bulk\n" + TWO, False),
        (
            "copy X -> a atom=cp_async\ncommit cp_async\n"
            "if bx > 0 { wait_group cp_async pending 0 }\n" + TWO,
            False,
        ),
    ],
)
def test_lives(body, apart):
    found = lifetimes(kernel(body))
    assert found.apart("a", "b") == apart
    assert found.together == {"a", "b"}


def test_a_view_lives_as_what_it_shows():
    found = lifetimes(
        kernel(f'view c: float32[4096] shared layout="4096:1" of a\n{ONE}{TWO}\nY[0, 0] = c[0]\n')
    )
    assert not found.apart("a", "b") and "c" not in found.spans


@pytest.mark.parametrize(
    "changed",
    [
        kernel(ONE + TWO.replace("sync block", "b[t, 0] = 1.0\nsync block", 1)),
        kernel(ONE + TWO, more="cluster=(2,)"),
        kernel(f"role r warps 0 + 4 {{ {ONE} }}\nrole s warps 4 + 4 {{ {TWO} }}", "t in 256"),
        kernel(ONE + TWO.replace("sync block", "hint ws detail=(0,)\nsync block", 1)),
    ],
    ids=["by threads", "cluster", "roles", "placement"],
)
def test_left_alone(changed, eager):
    assert reuse_shared(changed, HOPPER) is changed
    assert reuse_shared(kernel(ONE + TWO), HOPPER) != kernel(ONE + TWO)


def test_its_text_can_be_read_again():
    trace = lower(phases.program, HOPPER)
    text = tw.compile(phases, target="cuda").ir("reuse_shared")
    again = lower(tw.parse_ir(text), HOPPER)
    assert [step.name for step in again] == [
        "input",
        "count_loops",
        "label_prints",
        "place_shared",
        "lower_threads",
    ]
    assert places(again.after("place_shared").kernels[0]) == {"a": 0, "b": 0}
    np.testing.assert_array_equal(run(again.result), run(trace.result))


def test_the_pass_is_listed_behind_the_waits():
    names = [step.name for step in SCHEDULE]
    assert names.index("reuse_shared") == names.index("insert_syncs") + 1


# ── beside a producer ────────────────────────────────────────────────────────────────────────


def product(n: int, blocks: int = 1):
    """A tile that is loaded once, a ring, and a result that goes through a tile of its own."""

    @T.prim_func
    def product(
        A: T.Tensor((blocks * 128, 64), "float16"),
        B: T.Tensor((n, 64, 64), "float16"),
        Y: T.Tensor((blocks * 128, 64), "float16"),
    ):
        with T.Kernel(blocks, threads=256) as b:
            a = T.alloc_shared((128, 64), "float16")
            t = T.alloc_shared((64, 64), "float16")
            y = T.alloc_shared((128, 64), "float16")
            acc = T.alloc_fragment((128, 64), "float32")
            T.copy(A[b * 128, 0], a)
            T.clear(acc)
            for k in T.Pipelined(n, num_stages=2):
                T.copy(B[k, :, :], t)
                T.gemm(a, t, acc)
            T.copy(acc, y)
            T.copy(y, Y[b * 128, 0])

    return product.program


ROLES = HOPPER.choosing(roles=True).choosing(split_stages=False)


@pytest.fixture
def tight(monkeypatch):
    """A chip whose blocks have room for the tile and the ring, not for the result beside them."""
    small = dataclasses.replace(CHIPS["sm_90a"], shared=36 * 1024, multiprocessors=1)
    monkeypatch.setitem(CHIPS, "sm_90a", small)


@pytest.mark.parametrize("n", [1, 2, 3, 6])
@pytest.mark.parametrize("blocks", [1, 3])
def test_a_result_lies_over_what_it_was_made_of(n, blocks, tight):
    program = product(n, blocks)
    trace = lower(program, ROLES)
    kernel = trace.after("part_roles").kernels[0]
    assert [op.name for op in kernel.body if isinstance(op, Role)] == ["consumer", "producer"]
    found = places(trace.after("reuse_shared").kernels[0])
    assert found["y"] in (found["a"], found["t"])
    want = run(program, threads=False)
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.integers(-9, 9, t.static_shape).astype(t.dtype.numpy) for t in program.tensors
    }
    for seed in range(5):
        args = {name: value.copy() for name, value in given.items()}
        machine.run_threads(trace.result, args, seed=seed)
        np.testing.assert_array_equal(args["Y"], want)


def test_blocks_that_stay_keep_their_tiles_apart(tight):
    """A producer is at the next tile's while this one's result leaves."""
    trace = lower(product(3, 3), ROLES)
    assert "persistent=off" in trace.reasons["product", "given up"]
    pinned = ROLES.choosing(persistent=True)
    with pytest.raises(CompileError, match="more shared memory than a block has"):
        lower(
            product(3, 3),
            pinned.choosing(multibuffer=False)
            .choosing(stages="least")
            .choosing(stage_stores=False),
        )
