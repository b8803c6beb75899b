"""Timing: bursts, turns and timers, on clocks and a driver made of Python."""

import re
import sys
from types import SimpleNamespace

import numpy as np
import pytest

import tilewright as tw
from tilewright.ir.chips import CHIPS
from tilewright.profiler import Race, do_bench, measure, rotate, spread
from tilewright.runtime import timing
from tilewright.runtime.timing import Clock, Events, Graphs, Settings, run_race
from tilewright.support.errors import LaunchError
from tilewright.targets.cuda.limits import blocks_per_sm


class FakeApi:
    """A GPU whose time is a number that contenders move on."""

    def __init__(self) -> None:
        self.now, self.context, self.log = 0.0, 0, []

    def cuCtxGetCurrent(self):
        return 0, self.context

    def cuEventCreate(self, flags):
        return 0, SimpleNamespace(at=None)

    def cuEventRecord(self, event, stream):
        event.at = self.now
        self.log.append(("record", stream))
        return (0,)

    def cuEventSynchronize(self, event):
        return (0,)

    def cuEventElapsedTime(self, start, stop):
        return 0, (stop.at - start.at) * 1e3


class FakeDriver:
    def __init__(self) -> None:
        self.api = FakeApi()

    def call(self, result):
        assert result[0] == 0
        return result[1] if len(result) > 1 else None

    def device(self, ordinal):
        return ordinal

    def make_current(self, device):
        self.api.context = 0xC0

    def work(self, seconds, log=None):
        def run():
            self.api.now += seconds
            if log is not None:
                log.append(seconds)

        return run


def test_events_time_each_in_turn():
    gpu, log = FakeDriver(), []
    runs = {"slow": gpu.work(4e-4, log), "fast": gpu.work(1e-4, log)}
    times = measure(runs, rounds=10, warmup=0, pause=0, timer=Events(gpu))
    assert gpu.api.context == 0xC0
    assert {name: len(t) for name, t in times.items()} == {"slow": 10, "fast": 10}
    assert times["slow"] == pytest.approx([4e-4] * 10)
    assert times["fast"] == pytest.approx([1e-4] * 10)
    # a round: a call ahead and at least a millisecond of each, one after the other, in an order
    # that changes
    ran = "".join("s" if x == 4e-4 else "f" for x in log)
    slow, fast = "s{4}", "f{11,13}"
    rounds = [slow + fast, fast + slow, fast + slow, slow + fast] * 3
    assert re.search("".join(rounds[:10]) + "$", ran)


def test_every_order_has_its_turn():
    orders = ["".join(timing._order(list("abc"), turn)) for turn in range(6)]
    assert sorted(orders) == ["abc", "acb", "bac", "bca", "cab", "cba"]
    assert timing._order(["a"], 5) == ["a"]
    assert timing._order([], 1) == []


def test_a_burst_is_long_enough_when_calls_overlap():
    gpu = FakeDriver()
    calls = []

    def run():  # the first call after a pause takes a thousand times as long
        calls.append(1)
        gpu.api.now += 1e-3 if len(calls) == 2 else 1e-6

    timed, count = timing._ready(Events(gpu), run, 0.0, 1e-3, None)
    assert timed() >= 1e-3 and count >= 1000


def test_the_clock_counts_launches_on_an_empty_queue():
    drained = []
    burst = Clock(lambda: drained.append(1)).ready(lambda: None, 3)
    assert burst() >= 0 and drained == [1]
    times = measure({"it": lambda: None}, rounds=5, count=7, warmup=0, timer=Clock())
    assert len(times["it"]) == 5


class FakeGraph:
    def __init__(self):
        self.calls = []

    def replay(self):
        for call in self.calls:
            call()


class _Nothing:
    def __enter__(self):
        return self

    def __exit__(self, *error):
        return False


def fake_torch(gpu, capturing, stream=7):
    """Just enough of PyTorch: a captured call is kept, not run."""
    made = []

    class Capture(_Nothing):
        def __init__(self, graph, stream, capture_error_mode):
            made.append(graph)

        def __enter__(self):
            capturing.append(made[-1])

        def __exit__(self, *error):
            capturing.pop()

    current = SimpleNamespace(cuda_stream=stream)
    cuda = SimpleNamespace(
        is_initialized=lambda: True,
        current_stream=lambda device=None: current,
        Stream=lambda: SimpleNamespace(wait_stream=lambda other: None),
        stream=lambda s: _Nothing(),
        synchronize=lambda: None,
        CUDAGraph=FakeGraph,
        graph=Capture,
    )
    return SimpleNamespace(cuda=cuda, made=made)


def test_a_graph_is_captured_once_and_replayed(monkeypatch):
    gpu, capturing = FakeDriver(), []
    torch = fake_torch(gpu, capturing)
    monkeypatch.setitem(sys.modules, "torch", torch)
    work = gpu.work(1e-4)

    def run():
        capturing[-1].calls.append(work) if capturing else work()

    times = measure({"it": run}, rounds=10, warmup=0, pause=0, timer=Graphs(gpu))["it"]
    assert times == pytest.approx([1e-4] * 10)
    assert len(torch.made) <= 3
    assert set(gpu.api.log) == {("record", 7)}


def test_what_cannot_be_captured_says_so(monkeypatch):
    gpu = FakeDriver()
    torch = fake_torch(gpu, [])
    monkeypatch.setitem(sys.modules, "torch", torch)

    def run():
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    with pytest.raises(LaunchError, match="cannot be captured") as caught:
        Graphs(gpu).ready(run, 3)
    assert "not permitted" in str(caught.value) and "more" not in str(caught.value)


def test_without_a_gpu_there_is_only_the_clock(monkeypatch):
    monkeypatch.setattr(timing, "gpu_in_use", lambda: False)
    for backend in ("auto", "event", "graph", "cudagraph", "cupti"):
        assert isinstance(timing.timer_for(backend), Clock)
        assert do_bench(lambda: None, warmup=0, rep=1, backend=backend) >= 0
    with pytest.raises(ValueError, match="unknown timing backend 'sundial'"):
        timing.timer_for("sundial")


def test_spread_and_rotation():
    assert spread([2.0, 1.0, 1.5]) == pytest.approx(2 / 3)
    calls = rotate(lambda: 1, lambda: 2)
    assert [calls() for _ in range(3)] == [1, 2, 1]


# -------------------------------------------------------------------------------------- races


def test_a_race_is_checked_and_ranked():
    gpu = FakeDriver()
    race = Race(
        "copy",
        lambda: {"mine": gpu.work(1e-4), "theirs": gpu.work(2e-4), "slow": gpu.work(4e-4)},
        check=lambda: {"ok": True, "error": 0.5, "bound": 1.0},
        work=1e9,
        unit="B",
        ours=["mine"],
        about={"shape": (4, 4)},
    )
    notes = []
    record = run_race(race, Settings(rounds=10, burst=1e-3, pause=0), notes.append, Events(gpu))
    mine = record["contenders"]["mine"]
    assert record["ok"] and record["shape"] == (4, 4)
    assert mine["ms"] == pytest.approx(0.1) and len(mine["times_ms"]) == 10
    assert mine["terabytes_per_second"] == pytest.approx(10)
    assert mine["against_best"] == pytest.approx(2) == mine["against_theirs"]
    assert mine["against_slow"] == pytest.approx(4)
    assert "against_best" not in record["contenders"]["theirs"]
    assert notes == ["checked ok True, error 0.5, bound 1", "timing mine, theirs, slow"]


@pytest.mark.parametrize("force", [False, True])
def test_what_is_wrong_is_not_timed(force):
    def check():
        yield {"contender": "good", "ok": True}
        yield {"contender": "bad", "ok": False, "why": "runs differ"}

    ran = []
    contenders = {"good": lambda: ran.append("good"), "bad": lambda: ran.append("bad")}
    settings = Settings(rounds=3, burst=1e-6, force=force)
    record = run_race(Race("r", contenders, check), settings, timer=Clock())
    assert not record["ok"]
    assert ("bad" in ran) == force == ("bad" in record["contenders"])
    whole = run_race(Race("r", contenders, lambda: {"ok": False}), settings, timer=Clock())
    assert bool(whole["contenders"]) == force


# ---------------------------------------------------------------------------------- resources

SCALE = """
program scale {
  dim n min=1
  param X: float32[n] global
  param Y: float32[n] global
  kernel main grid b in (n + 127) // 128 threads t in 128 {
    if b * 128 + t < n { Y[b * 128 + t] = X[b * 128 + t] * 2.0 }
  }
}
"""


def test_resources_of_a_cuda_kernel():
    kernel = tw.compile(tw.parse_ir(SCALE), target="cuda")
    found = kernel.resources
    assert found["threads"] == 128 and 0 < found["registers"] <= 32
    assert found["spill_bytes"] == found["local_bytes"] == found["shared_bytes"] == 0
    assert found["blocks_per_sm"] == 16 and found["occupancy"] == 1.0
    assert "__global__" in kernel.get_kernel_source() and ".entry" in kernel.ptx


@pytest.mark.parametrize(
    ("threads", "registers", "shared", "blocks"),
    [
        (32, 16, 0, 32),  # the number of blocks
        (1024, 32, 0, 2),  # threads
        (384, 168, 200_000, 1),
        (128, 255, 0, 2),  # registers: 8 warps of 255 (256) fit
        (96, 168, 0, 4),  # three warps a block, 12 resident
        (128, 32, 48 * 1024, 4),  # shared memory, with 1 KB a block for the system
        (128, 32, 227 * 1024, 1),
    ],
)
def test_blocks_per_sm(threads, registers, shared, blocks):
    sm = CHIPS["sm_90a"]
    assert blocks_per_sm(sm, threads=threads, registers=registers, shared=shared) == blocks


def test_a_profiler_without_a_gpu_says_what_is_missing(monkeypatch):
    from tilewright.runtime import bench

    monkeypatch.setattr(bench.importlib.util, "find_spec", lambda name: None)
    kernel = tw.compile(tw.parse_ir(SCALE), target="cuda")
    with pytest.raises(LaunchError, match="needs PyTorch or CuPy"):
        kernel.get_profiler().do_bench()


def test_a_profiler_makes_inputs_on_the_gpu(monkeypatch):
    from tilewright.runtime import bench

    kernel = tw.compile(tw.parse_ir(SCALE), target="cuda")
    monkeypatch.setattr(bench, "_on_gpu", lambda: lambda array: ("gpu", array))
    (place, x), (_, y) = kernel.get_profiler().inputs({"n": 100})
    assert place == "gpu" and x.shape == y.shape == (100,) and x.dtype == np.float32
    called, asked = [], {}
    monkeypatch.setattr(bench, "_bytes_of", lambda value: 30 * 2**20)
    monkeypatch.setattr(kernel, "__call__", lambda x, y: called.append(id(x)))

    def measured(contenders, **how):
        asked.update(how)
        contenders["it"](), contenders["it"](), contenders["it"]()
        return {"it": [1e-3]}

    monkeypatch.setattr(bench, "measure", measured)
    assert kernel.get_profiler().do_bench(backend="graph") == 1.0
    # 60 MB a set: two sets, so that none is found in the L2 cache
    assert len(set(called)) == 2 and called[0] == called[2] and asked["backend"] == "graph"


# ---------------------------------------------------------------------------------- on a GPU


def on_gpu():
    import torch

    kernel = tw.compile(tw.parse_ir(SCALE), target="cuda")
    x = torch.randn(1 << 24, device="cuda")
    y, z = torch.empty_like(x), torch.empty_like(x)
    runs = {"ours": lambda: kernel(x, y), "torch": lambda: torch.mul(x, 2.0, out=z)}
    for backend in ("event", "graph"):
        times = measure(runs, backend=backend)
        assert all(len(t) >= 10 and min(t) > 1e-5 for t in times.values()), (backend, times)
        # 128 MB moved: no GPU does it in under 10 µs, and no launch takes a millisecond
        assert max(map(max, times.values())) < 1e-3
    assert torch.equal(y, z)
    for backend in ("event", "graph"):
        ms = kernel.get_profiler().do_bench(backend=backend, rep=20)
        assert 1e-4 < ms < 1
    kernel.get_profiler().assert_allclose(lambda x: x * 2, rtol=1e-6, atol=1e-6)


@pytest.mark.gpu
def test_timing_on_a_gpu():
    from tilewright.targets.cuda.guard import run_guarded

    run_guarded(on_gpu, timeout=120)
