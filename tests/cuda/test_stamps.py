"""Traced builds without a GPU: the stamps that are emitted, what they note when the source runs on
the host, how launches read them back, and what a trace says of them."""

from __future__ import annotations

import ctypes
import json
from collections import Counter
from contextlib import nullcontext
from functools import cache
from itertools import pairwise
from unittest import mock

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from devtools.host import build, judge
from tests.cuda.fake import fake_driver, launch
from tilewright import machine
from tilewright.inspect.explain import explanation, in_words
from tilewright.inspect.measured import UNWRITTEN, about, read
from tilewright.inspect.trace import trace_of
from tilewright.ir.buffer import Buffer, Space
from tilewright.ir.dtype import dtype
from tilewright.ir.expr import const
from tilewright.ir.op import Break, For, Gemm, Hint, If, Sync, Wait, walk_ops
from tilewright.ir.target import Target
from tilewright.passes.lower import stamp_ops
from tilewright.support.errors import CompileError, LaunchError
from tilewright.targets.arrays import ArrayView
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.emit import emit_program
from tilewright.targets.cuda.launch import LaunchSpec, TensorPointer
from tilewright.targets.cuda.stamps import StampedModule, Stamps
from zoo.attention.flash import flash_attention
from zoo.gemm.gemm import gemm_relu
from zoo.softmax.softmax import online_softmax

TRACED = Target.parse("cuda -stamps")


@T.prim_func
def shift(A: T.Tensor((8, 256), "float32"), B: T.Tensor((8, 256), "float32")):
    with T.Kernel(8, threads=128) as bx:
        held = T.alloc_shared((256,), "float32")
        for k in T.serial(3):
            for i in T.Parallel(256):
                held[i] = A[bx, i] + k
            for i in T.Parallel(256):
                B[bx, i] = held[255 - i]


KERNELS = {
    "gemm": lambda: gemm_relu.on("interp")(256, 128, 512, block_N=64, threads=256).program,
    "softmax": lambda: online_softmax.on("interp")(16, 5000).program,
    "shift": lambda: shift.program,
    "tiles": lambda: gemm_relu.on("interp")(384, 128, 256, block_N=64, threads=256).program,
}
ROLES = {name: {"producer", "consumer 0", "consumer 1"} for name in ("gemm", "tiles")}
TWO = mock.patch("tilewright.passes.grid.persist_blocks.blocks_of", lambda *_: 2)


@cache
def traced(name):
    """A kernel of the list with stamps, run on the host: program, passes, arguments, results."""
    try:
        build.compiler()
    except build.NoCompiler as error:
        pytest.skip(str(error))
    program = KERNELS[name]()
    with TWO if name == "tiles" else nullcontext():  # persistent blocks
        steps = lower(program, TRACED)
    rng = np.random.default_rng(0)
    given = {
        t.name: rng.integers(-2, 3, t.static_shape).astype(t.dtype.numpy) for t in program.tensors
    }
    stamps = steps.result.scratch[-1].name
    found = judge.ready(program, steps.result)(given, scratch=[stamps])
    (kernel,) = steps.result.kernels
    grid = tuple(judge.evaluate(g, {"sm_count": judge.MULTIPROCESSORS}) for g in kernel.grid)
    return program, steps, given, found, Stamps(0, grid, found.pop(stamps))


def plan(name):
    program, steps, *_ = traced(name)
    (kernel,) = steps.after("fit_registers").kernels
    return kernel, stamp_ops.planned(kernel)[0]


@pytest.mark.parametrize("name", KERNELS)
def test_results_are_those_of_the_plain_build(name):
    program, _, given, found, _ = traced(name)
    plain = judge.ready(program, lower(program, Target.parse("cuda")).result)(given)
    assert {n: a.tobytes() for n, a in found.items()} == {n: a.tobytes() for n, a in plain.items()}


@pytest.mark.parametrize("name", KERNELS)
def test_every_op_ends_and_clocks_go_forward(name):
    stamps = traced(name)[-1]
    kernel, told = plan(name)
    agents = read(kernel, stamps.grid, stamps.words)
    blocks = {agent.block for agent in agents}
    assert len(blocks) == min(stamp_ops.BLOCKS, int(np.prod(stamps.grid)))
    for block in blocks:
        own = [agent for agent in agents if agent.block == block]
        assert {agent.name for agent in own} == ROLES.get(name, {"warpgroup"})
        for agent in own:
            assert agent.sites[-1] == stamp_ops.END and len(agent.sites) < stamp_ops.SLOTS
            assert all(a < b for a, b in pairwise(agent.clocks))
            assert all(abs(site) <= len(told.sites) for site in agent.sites)
    # somebody comes to every op that is stamped, and nobody notes anything else
    assert {s for agent in agents for s in agent.sites} >= set(range(1, len(told.sites) + 1))
    written = (stamps.words[:, 1:, 0] != 0xCDCDCDCD).sum()
    assert written == sum(len(agent.sites) for agent in agents)


def test_a_persistent_block_stamps_its_first_tiles():
    """Three tiles of four iterations each, of which consumers take every other one."""
    _, steps, *_, stamps = traced("tiles")
    kernel, told = plan("tiles")
    assert len(told.first) == 2  # the loop of each role
    agents = read(kernel, stamps.grid, stamps.words)
    begun = Counter((a.block, a.role) for a in agents for s in a.sites if s in told.first.values())
    assert set(begun.values()) == {4 * stamp_ops.TILES}
    assert set(begun) == {(block, role) for block in (0, 1) for role in ("consumer", "producer")}
    assert all(agent.sites[-1] == stamp_ops.END for agent in agents)
    text = str(trace_of("tiles", TRACED, steps, [stamps], [{}]))
    assert " measured\n" in text and "waits for products" in text


def test_what_is_not_traced_between_tiles_counts_for_nothing():
    program, steps, *_, stamps = traced("tiles")
    kernel, _ = plan("tiles")
    words, late = stamps.words.copy(), np.uint32(1_000_000)
    for section in words[1:, 2:]:
        ends = section[section[:, 0] == stamp_ops.END, 1] + np.uint32(1001)
        if len(ends):  # the clock's first reading is 0 then
            section[:, 1] += late * (section[:, 1] + np.uint32(1001) > ends.min()).astype(np.uint32)
    told = [
        trace_of("tiles", TRACED, steps, [Stamps(0, stamps.grid, each)], [{}])
        for each in (stamps.words, words)
    ]
    lengths = [[(s.op, s.iteration, s.end - s.start) for s in t.spans] for t in told]
    assert lengths[0] == lengths[1] and told[1].spans[-1].end > late
    one, other = (next(iter(t.timelines.values()))["measured"] for t in told)
    assert one["interval"] == other["interval"] and one["differences"] == other["differences"]


def test_a_full_section_stops(monkeypatch):
    whole = traced("shift")[-1]
    kernel, _ = plan("shift")
    monkeypatch.setattr(stamp_ops, "SLOTS", 4)
    traced.cache_clear()
    stamps = traced("shift")[-1]
    traced.cache_clear()
    assert stamps.words.shape[1] == 4
    few = read(kernel, stamps.grid, stamps.words)
    all_of_them = read(kernel, whole.grid, whole.words)
    assert [a.sites for a in few] == [a.sites[:2] for a in all_of_them]


def test_only_waits_that_last_are_noted():
    """On the host every barrier is incomplete when it is tested; here none is."""
    *_, stamps = traced("gemm")
    kernel, told = plan("gemm")
    late = {n for n, (op, *_) in enumerate(told.sites, 1) if isinstance(op, Wait)}
    words = stamps.words.copy()
    two = words[1:].reshape(-1, 4)  # stamps
    of_waits = np.isin(two[:, 0], list(late))
    assert of_waits.any() and (two[of_waits, 2] == stamp_ops.BACK).all()
    two[of_waits] = UNWRITTEN
    waited, ready = (read(kernel, stamps.grid, each) for each in (stamps.words, words))
    for one, other in zip(waited, ready, strict=True):
        # what a wait interrupts goes on after it, as the same op of the same iteration
        parts = [(site, n) for site, *_, n in one.spans() if site not in late]
        ops = [(site, n) for site, *_, n in other.spans()]
        assert len(ops) == len(set(ops)) < len(parts) and set(ops) == set(parts)


def test_the_trace_of_a_loop_stands_beside_the_modelled_one(tmp_path):
    program, steps, *_, stamps = traced("gemm")
    trace = trace_of("gemm", TRACED, steps, [stamps], [{}])
    text = str(trace)
    assert "cycles an iteration (modelled), " in text and " measured\n" in text
    assert text.count("clock   |") >= 2
    assert "differs: consumer, waits for products: " in text
    assert {s.iteration for s in trace.spans if s.op.startswith("T.gemm")} == set(range(8))
    assert all(s.loc is not None and s.start < s.end for s in trace.spans)
    told = in_words(explanation("gemm", TRACED, steps, [], trace.timelines))
    assert told.count("clock   |") >= 2 and "differs: consumer" in told
    trace.save(tmp_path / "trace.json")
    events = json.loads((tmp_path / "trace.json").read_text())["traceEvents"]
    assert len(events) == len(trace.spans)
    assert {"name", "ph", "pid", "tid", "ts", "dur"} <= set(events[0])
    assert {e["tid"] for e in events} == ROLES["gemm"]


def test_a_kernel_without_a_modelled_loop_is_drawn_whole():
    program, steps, *_, stamps = traced("softmax")
    text = str(trace_of("softmax", TRACED, steps, [stamps], [{}]))
    assert "timeline of block 0, " in text and "cycles (measured)" in text
    assert "line 125: for i, j in T.Parallel(block_M, block_N):" in text


@T.prim_func
def twice(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
    with T.Kernel(2, threads=128) as bx:
        for i in T.Parallel(128):
            B[bx * 128 + i] = A[bx * 128 + i] + 1
    with T.Kernel(1, threads=64):
        for i in T.Parallel(256):
            B[i] = B[i] * 2


def test_every_launch_is_traced():
    traced("shift")  # skips where there is no compiler
    steps = lower(twice.program, TRACED)
    first, second = steps.result.kernels
    made = judge.ready(twice.program, steps.result)
    given = {name: np.ones(256, np.float32) for name in "AB"}
    taken = [
        Stamps(n, grid, made(given, only=[n], scratch=["stamps"])["stamps"])
        for n, grid in enumerate([(2,), (1,)])
    ]
    trace = trace_of("twice", TRACED, steps, taken, [{}, {}])
    spans = [(span.kernel, span.block, span.role) for span in trace.spans]
    assert spans == [(first.name, 0, "warpgroup"), (first.name, 1, "warpgroup"),
                     (second.name, 0, "warpgroup")]  # fmt: skip
    assert str(trace).count("timeline of block 0") == 2


def test_differences_are_named():
    """A wait that takes longer than modelled comes first."""
    program, steps, *_, stamps = traced("gemm")
    kernel, told = plan("gemm")
    words = stamps.words.copy()
    late_one = "waits for A_shared_full"
    full = [n for n, op in enumerate(told.sites, 1) if about(op[0]) == late_one]
    for section in words[1:, 2:]:
        since = section[:, 1] + np.uint32(1001)  # the clock's first reading is 0 then
        late = np.sort(since[np.isin(section[:, 0], full)])
        section[:, 1] += np.uint32(100_000) * np.searchsorted(late, since).astype(np.uint32)
    trace = trace_of("gemm", TRACED, steps, [Stamps(0, stamps.grid, words)], [{}])
    (told_of,) = trace.timelines.values()
    first = told_of["measured"]["differences"][0]
    assert first["what"] == late_one and first["measured"] > 90_000


# ── source ───────────────────────────────────────────────────────────────────────────────────


def test_the_source():
    text, plain = (
        [
            line.strip()
            for line in emit_program(lower(shift.program, target).result).text.splitlines()
            if not line.startswith("#line")
        ]
        for target in (TRACED, Target.parse("cuda"))
    )
    begin, orelse = text.index("int stamps_left = 0;"), text.index("} else {")
    assert text[begin:orelse] == GOLDEN.splitlines()
    # blocks that are not traced run the plain source, and without stamps the other one is the same
    inside = plain[plain.index("float* const held = reinterpret_cast<float*>(shared + 0);") :]
    assert text[orelse + 1 :] == [*inside, "}"]
    assert [x for x in text[begin + 4 : orelse] if "stamps" not in x] == inside[:-1]
    assert not any("stamp" in line for line in plain)


GOLDEN = """\
int stamps_left = 0;
uint32_t stamps_at = 0, stamps_clocks[2];
stamps_left = tw::begin_stamps<4096, 4, 2, 0, 4, 0>(stamps, stamps_at);
if (stamps_left-- > 0) {
float* const held = reinterpret_cast<float*>(shared + 0);
#pragma unroll 1
for (int k = 0; k < 3; ++k) {
stamps_clocks[0] = tw::clock();
__syncthreads();
stamps_clocks[1] = tw::clock();
tw::stamp<4096>(stamps, stamps_at, 1, stamps_clocks[0], 2, stamps_clocks[1]);
const int i_2 = tx * 2;
float A_in[2];
float held_out[2];
tw::load_global<tw::float32, 2, tw::normal, true>(A_in, A + int64_t(bx) * (256) + i_2);
#pragma unroll
for (int e_2 = 0; e_2 < 2; ++e_2) {
held_out[e_2] = A_in[e_2] + float(k);
}
tw::store_shared<tw::float32, 2>(tw::address(held + i_2), held_out);
stamps_clocks[0] = tw::clock();
__syncthreads();
stamps_clocks[1] = tw::clock();
tw::stamp<4096>(stamps, stamps_at, 3, stamps_clocks[0], 4, stamps_clocks[1]);
const int i_1_1 = tx * 2;
float B_out[2];
#pragma unroll
for (int e_5 = 0; e_5 < 2; ++e_5) {
B_out[e_5] = held[255 - i_1_1 - e_5];
}
tw::store_global<tw::float32, 2>(B + int64_t(bx) * (256) + i_1_1, B_out);
}
stamps_clocks[0] = tw::clock();
tw::stamp<4096>(stamps, stamps_at, 0, stamps_clocks[0]);
"""


def test_few_clocks_of_an_iteration_of_attention():
    """Of a consumer: a product with its waits, softmax, the turn, the other product. Barriers have
    stamps only where threads wait for them, and a store takes two clocks."""
    tiles = {"block_M": 128, "block_N": 128, "threads": 256}
    kernel = flash_attention.on("interp")(2, 16, 16, 8192, 8192, 128, **tiles)
    steps = lower(kernel.program, TRACED)
    (kernel,) = steps.after("stamp_ops").kernels
    loops = [loop for loop in walk_ops(kernel, For) if loop.kind != "unroll"]
    inner = [loop for loop in loops if not any(walk_ops(loop.body, For))]
    (loop,) = [loop for loop in inner if len(list(walk_ops(loop.body, Gemm))) == 2]
    names = [op.name if isinstance(op, Hint) else type(op).__name__ for op in loop.body]
    stamps = [name for name in names if name in ("clock", "stamp", "stamp_wait")]
    assert stamps == [
        "clock",
        "stamp_wait",
        "clock",
        "stamp",
        "stamp_wait",
        "clock",
        "clock",
        "stamp",
    ]
    assert names[names.index("WaitGroup") + 1] == "clock"
    text = emit_program(steps.result).text
    assert text.count("tw::wait<") == text.count("tw::wait(") == 6  # the copy without stamps


def test_clocks_are_stored_before_a_loop_is_left():
    """And before others are read in their place."""
    sync, leave = Sync("block"), If(const(1) < const(2), (Break(),))
    body = stamp_ops.Plan(stamp_ops.NOWHERE, 128).body((sync, leave, sync), loop=leave)
    assert [(op.name, *op.detail) if isinstance(op, Hint) else op for op in body] == [
        ("clock", 0), sync, ("stamp", 1, 0), leave, ("clock", 0), sync, ("stamp", 2, 0),
    ]  # fmt: skip


def test_registers_and_spills_stay():
    gemm = KERNELS["gemm"]()
    plain, stamped = (
        tw.compile(gemm, target=str(t)).resources for t in (Target.parse("cuda"), TRACED)
    )
    assert stamped["spill_bytes"] == plain["spill_bytes"] == 0
    assert stamped["blocks_per_sm"] == plain["blocks_per_sm"]


def test_the_thread_interpreter_passes_over_them():
    program, steps, given, found, _ = traced("shift")
    assert any(op.name == "stamp" for op in walk_ops(steps.result.kernels, Hint))
    arrays = {name: array.copy() for name, array in given.items()}
    machine.run_threads(steps.result, arrays)
    assert all((arrays[name] == found[name]).all() for name in arrays)


# ── launching ────────────────────────────────────────────────────────────────────────────────

SHAPE = (9, 16, 2)


def module(api_driver):
    stamps = Buffer("stamps", tuple(map(const, SHAPE)), dtype("uint32"), Space.GLOBAL)
    params = (TensorPointer("A"), TensorPointer("stamps"))
    spec = LaunchSpec("k", (6,), 64, params)
    return StampedModule(b"code", [spec], scratch=[stamps], using=api_driver)


def test_a_launch_reads_its_stamps_back():
    api, found = fake_driver(k={"params": [8, 8]})
    made = module(found)
    launch(made, {"A": ArrayView(0x1000, (4,), (1,), dtype("float32"), 0)})
    size = 4 * int(np.prod(SHAPE))
    assert [each[0] for each in api.done] == ["allocate", "fill", "wait", "read", "free"]
    assert ("fill", 0xCD, size, 0) in api.done
    (taken,) = made.taken
    assert taken.kernel == 0 and taken.grid == (6, 1, 1)
    assert taken.words.shape == SHAPE and (taken.words == 0x11111111).all()


def test_a_kernel_is_traced(monkeypatch):
    """From the call to the drawing, where the driver only pretends to run."""
    *_, stamps = traced("shift")
    api, found = fake_driver(shift_shift={"params": [8, 8, 8]})
    monkeypatch.setattr("tilewright.targets.cuda.launch.driver", lambda: found)
    monkeypatch.setattr(
        api, "cuMemcpyDtoH",
        lambda to, address, size: (ctypes.memmove(to, stamps.words.ctypes.data, size) and (0,)),
    )  # fmt: skip
    kernel = tw.compile(shift, target="cuda")
    arrays = [ArrayView(0x10000 * n, (8, 256), (256, 1), dtype("float32"), 0) for n in (1, 2)]
    trace = kernel.trace(*arrays)
    assert [done.kernel for done in api.launches] == ["shift_shift"] and not api.live
    assert {s.block for s in trace.spans} == {0, 2, 4, 6} and "clock" in kernel.explain()
    assert kernel.explain(as_dict=True)["kernels"][0]["timeline"] == trace.timelines["shift"]
    assert "tw::stamp" not in kernel.get_kernel_source()


def test_no_graph_captures_it():
    api, found = fake_driver(k={"params": [8, 8]})
    api.capturing.add(0)
    with pytest.raises(LaunchError, match="no graph can capture it"):
        launch(module(found), {"A": ArrayView(0x1000, (4,), (1,), dtype("float32"), 0)})


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("target", ["cpu", "interp", "cuda -diagnostic"])
def test_other_builds_say_what_to_do(target):
    kernel = tw.compile(shift, target=target)
    with pytest.raises(CompileError, match="only an ordinary build for CUDA is traced") as error:
        kernel.trace(np.zeros((8, 256), np.float32), np.zeros((8, 256), np.float32))
    assert error.value.loc.file == __file__ and "run it on a GPU" in str(error.value)
