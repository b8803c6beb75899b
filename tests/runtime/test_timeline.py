"""The modelled timeline of a loop: against measurements, word for word for two kernels, and over
the zoo."""

import json
import os
from functools import cache
from pathlib import Path

import pytest

import tilewright as tw
import tilewright.language as T
from tests.cuda.test_zoo import KERNELS as ZOO
from tests.cuda.test_zoo import TARGETS, lowered
from tilewright.inspect.explain import explanation, in_words
from tilewright.inspect.multiprocessor import COPIES, WAITS, Clock, Slots, sharing
from tilewright.inspect.simulate import MEMORY, Simulation, simulate
from tilewright.inspect.timeline import COLUMNS, drawing, interval, timeline
from tilewright.ir.op import Copy, For, Gemm, Map, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.passes.overlap import unit_times as rates

HERE = Path(__file__).parent
CUDA = Target.parse("cuda")
ATTENTION, PRODUCT, MLA = 4 * 128**3, 2 * 128 * 256 * 64, 2 * 64 * 64 * (576 + 512)
# Flops of an iteration, TFLOP/s measured on an H200: attention of 2 × 16 heads, 8192 keys, head
# 128; a product of 8192³; MLA of 128 requests, 128 heads, 8192 keys. The derived programs are
# kept as text, so that other schedules do not move what is compared.
MEASURED = {
    "attention_skew": (ATTENTION, 611),
    "attention_roles": (ATTENTION, 571),
    "attention_alike": (ATTENTION, 427),
    "gemm": (PRODUCT, 770),
    "mla_seesaw": (2 * MLA, 557),
    "mla_roles": (MLA, 440),
    "mla_skew": (MLA, 401),
}
SIZES = {"batch": 128, "groups": 2, "seq": 8192}  # of the one that was written by hand
TOLERANCE = 0.25


@cache
def measured(name):
    folder = HERE.parent / "schedules" if name == "mla_seesaw" else HERE / "measured"
    path = folder / f"{name}.tw"
    return parse_program(path.read_text(), str(path))


@cache
def modelled(name):
    program = measured(name)
    run = simulate(program, program.kernels[0], CUDA, sizes=SIZES)
    flops, _ = MEASURED[name]
    return flops / interval(run) * CUDA.chip.multiprocessors * rates.CLOCK / 1e12


@pytest.mark.parametrize("name", MEASURED)
def test_model_is_near_what_was_measured(name):
    assert modelled(name) == pytest.approx(MEASURED[name][1], rel=TOLERANCE)


@pytest.mark.parametrize("kind", ["attention", "mla"])
def test_model_ranks_schedules_as_measured(kind):
    names = [n for n in MEASURED if n.startswith(kind)]
    assert sorted(names, key=modelled) == sorted(names, key=lambda n: MEASURED[n][1])


def told(name, **options):
    program = measured(name)
    return timeline(program, program.kernels[0], CUDA, **options)


def test_skew_of_mla_waits_for_its_slots():
    """What speaks against it: the consumers' wait for keys grows by more than their other waits
    shrink."""
    waits = {n: told(n)["agents"][0]["waits"]["KV_shared_full"] for n in ("mla_roles", "mla_skew")}
    assert waits["mla_skew"] > 1.3 * waits["mla_roles"]
    assert told("mla_skew")["interval"] > told("mla_roles")["interval"]
    assert "KV_shared_full: memory (72 KB an iteration" in told("mla_skew")["limit"]
    assert "too few slots (2), or freed too late" in told("mla_skew")["limit"]


def test_narrow_products_are_told():
    (first, second) = told("mla_roles")["notes"]
    assert "takes 1536 cycles, but 1024 to multiply" in first
    assert "takes 192 cycles, but 128 to multiply" in second
    assert told("gemm")["notes"] == []
    assert told("gemm")["limit"] == "tensor core 100 % busy"


@pytest.mark.parametrize("name", ["gemm", "attention_skew", "mla_skew"])
def test_drawing_is_golden(name):
    text = "\n".join(drawing(told(name))) + "\n"
    path = HERE / "golden_timeline" / f"{name}.txt"
    if os.environ.get("TILEWRIGHT_UPDATE_GOLDEN"):
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
    assert path.read_text() == text


def test_drawing_has_two_iterations():
    rows = [line for line in drawing(told("attention_skew")) if "|" in line and "T." not in line]
    assert len(rows) == 5  # a producer's copies, products and threads of two warpgroups
    for row in rows:
        _, first, second, rest = row.split("|")
        assert len(first) == len(second) == COLUMNS // 2 and not rest


def test_blocks_share_the_units():
    one, two = told("attention_alike"), told("attention_alike", blocks=2)
    assert two["blocks"] == 2
    # while one computes, the other multiplies
    assert one["interval"] <= two["interval"] < 1.6 * one["interval"]
    assert two["utilisation"]["tensor core"] > one["utilisation"]["tensor core"]


@pytest.mark.parametrize("name", MEASURED)
def test_it_takes_few_events(name):
    """About ten microseconds each: explain() may take its time, but not a second."""
    program = measured(name)
    simulation = Simulation(program, program.kernels[0], CUDA, 1, SIZES)
    assert simulation.run() is not None
    assert simulation.clock.count < 3000


@pytest.mark.parametrize("arch", TARGETS)
@pytest.mark.parametrize("name", ZOO)
def test_zoo(name, arch):
    trace = lowered(name, arch)
    found = explanation(name, TARGETS[arch], trace, [])["kernels"]
    kernels = trace.after("place_shared").kernels
    for kernel, one in zip(kernels, found, strict=True):
        line = one["timeline"]
        json.dumps(line)  # plain data
        has_products = any(isinstance(op, Gemm) for op in walk_ops(kernel))
        assert (line is not None) == has_products
        if line is None:
            continue
        assert line["interval"] > 0 and line["limit"] and line["spans"]
        assert all(0 <= part <= 1 for part in line["utilisation"].values())
        assert all(len(text) < 100 for text in drawing(line))
    text = in_words(explanation(name, TARGETS[arch], trace, []))
    assert text.count("timeline of loop") == sum(one["timeline"] is not None for one in found)


@pytest.mark.parametrize(
    "target",
    ["cuda", "cuda -arch=sm_80", "cuda -roles -order_warpgroups -skew -split_stages=off"],
)
def test_compiled_kernels_have_one(target):
    @T.prim_func
    def product(
        A: T.Tensor((256, 1024), "float16"),
        B: T.Tensor((1024, 128), "float16"),
        C: T.Tensor((256, 128), "float32"),
    ):
        with T.Kernel(2, threads=256) as by:
            a = T.alloc_shared((128, 64), "float16")
            b = T.alloc_shared((64, 128), "float16")
            c = T.alloc_fragment((128, 128), "float32")
            T.clear(c)
            for k in T.Pipelined(16, num_stages=3):
                T.copy(A[by * 128, k * 64], a)
                T.copy(B[k * 64, 0], b)
                T.gemm(a, b, c)
            T.copy(c, C[by * 128, 0])

    kernel = tw.compile(product, target=target)
    (one,) = kernel.explain(as_dict=True)["kernels"]
    line = one["timeline"]
    assert (line["loop"], line["iterations"], line["steady"]) == ("k", 16, True)
    assert line["bytes"] == pytest.approx(2 * (128 * 64 + 64 * 128), rel=0.1)
    assert "timeline of loop k, " in kernel.explain()


def test_only_loops_with_products_or_rings_have_one():
    @T.prim_func
    def rows(X: T.Tensor((64, 512), "float32"), Y: T.Tensor((64, 512), "float32")):
        with T.Kernel(64, threads=128) as b:
            x = T.alloc_fragment((512,), "float32")
            T.copy(X[b, :], x)
            T.copy(x, Y[b, :])

    assert "timeline" not in tw.compile(rows, target="cuda").explain()
    assert tw.compile(rows, target="cpu").explain(as_dict=True)["kernels"][0]["timeline"] is None
    program = measured("gemm")
    assert timeline(program, program.kernels[0], Target.parse("cpu")) is None


def test_issue_slots_are_shared():
    clock = Clock()
    slots = Slots(clock)
    ends = {}

    def agent(name, start, work):
        yield start
        yield slots.run(work)
        ends[name] = clock.now

    for name, start, work in (("a", 0.0, 100.0), ("b", 0.0, 100.0), ("c", 100.0, 50.0)):
        clock.at(0.0, agent(name, start, work))
    while clock.queue:
        clock.step()
    # a and b have half each until c comes, then a third
    assert ends == {"a": pytest.approx(250), "b": pytest.approx(250), "c": pytest.approx(250)}


def test_few_warps_fill_as_many_slots():
    """Two warps fill half of what a warpgroup does, also beside others: six such blocks need as
    long as their work, not twice."""
    for jobs, cycles in ((1, 400), (4, 400), (6, 600)):
        clock = Clock()
        slots = Slots(clock)

        def agent(slots=slots):
            yield slots.run(100.0, 0.25)

        for _ in range(jobs):
            clock.at(0.0, agent())
        while clock.queue:
            clock.step()
        assert clock.now == pytest.approx(cycles)


def test_narrow_instructions_wait_for_shared_memory():
    # m64n256k16 multiplies for 128 cycles and reads 10 KB, m64n32k16 for 16 and 3 KB
    assert rates.warpgroup_cycles(64, 256, 16, 16, 256, True) == 128
    assert rates.warpgroup_cycles(64, 32, 16, 16, 32, True) == 24
    assert rates.warpgroup_cycles(64, 32, 16, 16, 32, False) == 16


def test_blocks_that_run_at_once_share_tiles():
    program = measured("mla_roles")
    simulation = Simulation(program, program.kernels[0], CUDA, 1, {})
    simulation.run()
    # two groups of heads read the same keys; queries are each block's own
    assert sorted(simulation.sharing.values()) == [1, 1, 2, 2]
    unknown = measured("mla_seesaw").kernels[0]
    assert set(sharing(unknown, {}, 132, set()).values()) == {132}
    # blocks of a cluster have parts of a row each
    copy = "copy X[r // 4, cluster_rank * 64:+64] -> x"
    kernel = parse_program(ROWS.format(copy=copy)).kernels[0]
    assert list(sharing(kernel, {}, 8, set()).values()) == [1]


ROWS = """
program rows {{
  param X: float32[2, 256] global
  kernel rows grid r in 8 threads tx in 128 cluster=(4) rank=cluster_rank {{
    alloc x: float32[1, 64] shared
    {copy}
  }}
}}
"""
READS = """
program reads {
  param Y: float32[64] global
  kernel reads grid n in 1 threads tx in 128 {
    alloc a: float32[64] shared
    alloc b: float32[64] fragment layout="frag{tile=(64) tv=((2,64),1):((0,1),0)}"
    copy a -> b atom=threads
    copy b -> Y atom=threads
  }
}
"""
LOADS = """
program loads {
  param X: uint8[128, 4096] global
  param Y: uint8[128] global
  kernel loads grid n in 1 threads tx in 128 {
    alloc early: uint8[128] fragment layout="frag{tile=(128) tv=(128,1):(1,0)}"
    alloc now: uint8[128] fragment layout="frag{tile=(128) tv=(128,1):(1,0)}"
    alloc tile: uint8[128] shared
    for k in 0 .. 64 {
      copy early -> now atom=threads
      map i in 128 layout="frag{tile=(128) tv=(128,1):(1,0)}" {
        early[i] = X[i, k]
      }
      sync block
      copy now -> tile atom=threads
      sync block
    }
    copy tile -> Y atom=threads
  }
}
"""


def test_loads_of_threads_wait_where_they_are_used():
    """Not at barriers; and sectors that were loaded before are near: 64 bytes of a row are two."""
    program = parse_program(LOADS)
    run = Simulation(program, program.kernels[0], CUDA, 1, {})
    run.loop = next(walk_ops(program.kernels[0], For))
    run.env, run.trip, run.loops = dict.fromkeys(program.kernels[0].blocks, 0), 64, {id(run.loop)}
    run.rounds, run.whole = run.trip, True
    run.walk()
    waits = [s for s in run.spans if s.unit == WAITS and s.what == MEMORY]
    assert all(isinstance(s.op, Copy) for s in waits)
    assert sum(s.end - s.start > 400 for s in waits) == 2
    assert len([s for s in run.spans if s.unit == COPIES and isinstance(s.op, Map)]) == 2


MOVES = """
program moves {{
  param X: bfloat16[{rows}, {columns}] global
  kernel moves grid n in {blocks} threads tx in 128 {{
    alloc x: bfloat16[64, 64] shared
    copy X[n * 64:+64, 0:+64] -> x
  }}
}}
"""


@pytest.mark.parametrize(
    ("rows", "columns", "blocks", "bytes"),
    [
        (64 * 132, 64, 132, CUDA.chip.dram_bytes),
        (64 * 12, 64, 12, rates.ENGINE),  # memory has more for each
        (8, 64, 1, rates.ENGINE / (1 / 8 + 7 / 8 * 2)),  # the rest of the box lies outside
        (64 * 12, 8264, 12, rates.ENGINE / (1 + 0.74 * 7 / 8)),  # rows lie in two lines
    ],
)
def test_copies_come_at_the_rate_of_what_they_move(rows, columns, blocks, bytes):
    program = parse_program(MOVES.format(rows=rows, columns=columns, blocks=blocks))
    run = Simulation(program, program.kernels[0], CUDA, 1, {})
    run.env, run.loops = dict.fromkeys(program.kernels[0].blocks, 0), set()
    run.busy = min(1.0, blocks / 132)
    copy = next(walk_ops(program.kernels[0], Copy))
    (who,) = run.members(0)
    assert 64 * 64 * 2 / run.move(who, copy, 64 * 64 * 2)[0] == pytest.approx(bytes, rel=0.01)


LANES = """
program lanes {
  kernel lanes grid n in 1 threads tx in 128 {
    alloc a: float32[32, 4] shared
    alloc pairs: float32[32, 4] fragment layout="frag{tile=(32,4) tv=((2,32,2),4):((0,4,0),1)}"
    alloc own: float32[32, 4] fragment layout="frag{tile=(32,4) tv=((4,4,8),4):((4,0,16),1)}"
    copy a -> pairs atom=threads
    copy a -> own atom=threads
  }
}
"""


def test_lanes_that_read_the_same_sixteen_bytes_read_them_at_once():
    program = parse_program(LANES)
    run = Simulation(program, program.kernels[0], CUDA, 1, {})
    pairs, own = [run.cost(op).shared for op in walk_ops(program.kernels[0], Copy)]
    assert (pairs, own) == (8, 16)


def test_bounds_of_indices_take_no_time_and_products_of_lanes_fill_the_slots():
    """Masks of the zoo's attention were a third of its threads' time."""
    program = parse_program(MASKED)
    run = Simulation(program, program.kernels[0], CUDA, 1, {})
    masked, gemm = program.kernels[0].body[-2:]
    assert run.cost(masked).threads == 0
    assert (run.cost(gemm).solo, run.cost(gemm).threads) == (1.0, 64 * 64 * 4 / rates.LANES)


MASKED = """
program masked {
  kernel masked grid n in 1 threads tx in 128 {
    alloc a: float32[64, 4] fragment
    alloc b: float32[4, 64] fragment
    alloc c: float32[64, 64] fragment
    map (i, j) in (64, 64) {
      c[i, j] = c[i, j] if n * 64 + j < 1000 else -inf
    }
    gemm a, b -> c atom=fma
  }
}
"""


def test_all_who_hold_an_element_read_it_from_shared_memory():
    program = parse_program(READS)
    run = Simulation(program, program.kernels[0], CUDA, 1, {})
    both = [run.cost(op) for op in walk_ops(program.kernels[0], Copy)]
    assert [each.shared for each in both] == [2 * 64 * 4 / 128, 0]
