"""The kernels that measure memory compute what they say, on the CPU; and where figures were kept,
the studio shows them."""

from __future__ import annotations

import importlib.util
import json
import re

import numpy as np
import pytest

from tests.commands import ROOT
from tilewright.ir.target import Target
from tilewright.tools.studio import measured
from tilewright.tools.studio.memory import chip_told

TARGET = Target.parse("cuda -arch=sm_90a")


@pytest.fixture(scope="module")
def bench():
    path = ROOT / "benchmarks" / "memory_levels.py"
    spec = importlib.util.spec_from_file_location(path.stem, path)
    found = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(found)
    return found


@pytest.mark.parametrize("shared", [False, True])
def test_the_chain_is_followed(bench, shared):
    links, order = bench.chain(4096)
    assert sorted(order) == list(range(0, 1024, bench.LINE))
    chase = bench.chase.on("interp -sanitize")
    for warm, counted in ((0, 0), (3, 5), (len(order), 1)):
        p = np.array([order[0], warm, counted], np.int32)
        at, cycles = chase(links, p, shared=shared, native=False)
        assert at[0] == order[(warm + counted) % len(order)] and cycles[0] == 0


@pytest.mark.parametrize("shared", [False, True])
def test_all_is_read(bench, shared):
    x = np.random.default_rng(0).integers(0, 8, 1024).astype(np.float32)
    p = np.array([255, 100, 3], np.int32)
    read = bench.read.on("interp -sanitize")
    sums, cycles = read(x, p, blocks=3, threads=64, shared=shared, native=False)
    assert (sums == bench.read_sums(x, p, [0, 1, 2], 64)).all() and not cycles.any()
    # 24 loads of 64 threads: the working set six times over
    assert (sums.sum(1) == 6 * x.sum()).all()


@pytest.mark.parametrize("shared", [False, True])
def test_results_are_compared(bench, shared, monkeypatch):
    """The functions that measure, without the clock: they fail where a result is wrong."""
    give = {"give": np.asarray, "native": False}
    few = {"blocks": 2, "threads": 64, **give}
    assert bench.latency(4096, shared, **give) == bench.row("latency", 4096, shared, cycles=0.0)
    assert bench.bandwidth(4096, shared, **few)["bytes_per_cycle"] > 0
    monkeypatch.setattr(bench, "chase", lambda *_, **__: (np.full(1, -1), np.zeros(1)))
    with pytest.raises(AssertionError, match="ends elsewhere"):
        bench.latency(4096, shared, **give)


def test_machine_code_loads_as_it_is_told(bench):
    """One load of 16 bytes for each of the unrolled ones, none of them merged; one instruction
    between two loads of a chain; the clock is read around them."""
    on = {name: getattr(bench, name).on("cuda -arch=sm_90a") for name in ("chase", "read")}
    for shared in (False, True):
        read = on["read"].compile(N=4096, blocks=2, shared=shared).ptx
        assert read.count("ld.shared.v4.f32" if shared else "ld.global.v4.f32") == bench.UNROLL
        chase = on["chase"].compile(N=4096, shared=shared).ptx
        assert chase.count("%clock") == read.count("%clock") == 2
        timed = chase.split("%clock")[1]
        assert timed.count("ld.shared" if shared else "ld.global") == 1
        assert "setp" in timed and "and.b32" not in timed and "selp" not in timed  # no guard


def kept(bench, tmp_path, arch="sm_90a"):
    rows = [
        bench.row("latency", size, False, cycles=cycles)
        for size, cycles in ((1 << 14, 40.0), (1 << 15, 42.0), (1 << 22, 250.0), (1 << 30, 800.0))
    ]
    rows += [
        bench.row("bandwidth", 1 << 30, False, bytes_per_cycle=18.0),
        bench.row("latency", 1 << 26, False, cycles=500.0),  # between L2 and HBM
        bench.row("bandwidth", 1 << 14, True, bytes_per_cycle=120.0),
    ]
    told = {"date": "2000-01-01", "device": "a device", "arch": arch, "rows": rows,
            "levels": bench.levels(rows, 50 << 20)}  # fmt: skip
    path = tmp_path / f"{arch}.json"
    path.write_text(json.dumps(told))
    return path


def test_levels_are_the_sets_within_them(bench, tmp_path):
    assert json.loads(kept(bench, tmp_path).read_text())["levels"] == {
        "HBM": {"latency": 800.0, "bytes_per_cycle": 18.0},
        "L2": {"latency": 250.0, "bytes": 50 << 20},
        "L1": {"latency": 41.0},
        "shared": {"bytes_per_cycle": 120.0},
    }


def test_the_studio_shows_what_was_measured(bench, tmp_path):
    found = chip_told(TARGET, kept(bench, tmp_path))
    assert found["measured"] == {"device": "a device", "date": "2000-01-01", "file": "sm_90a.json"}
    told = {level["name"]: level for level in found["levels"]}
    assert list(told) == ["HBM", "L2", "L1", "shared", "registers", "tensor core"]
    assert told["HBM"]["measured"] == {"latency": 800.0, "bytes_per_cycle": 18.0}
    assert told["L1"]["bytes"] is None and told["L1"]["measured"] == {"latency": 41.0}
    assert told["registers"]["measured"] is None


def test_and_nothing_where_nothing_was(bench, tmp_path):
    for path in (tmp_path / "none.json", kept(bench, tmp_path, "sm_80")):
        found = chip_told(TARGET, path)
        assert found["measured"] is None
        assert [level["name"] for level in found["levels"] if level["measured"]] == []
        assert "L1" not in {level["name"] for level in found["levels"]}


def test_wheels_have_the_files_that_the_studio_reads():
    project = (ROOT / "pyproject.toml").read_text()
    shipped = dict(re.findall(r'^"(.*)" = "(tilewright/.*)"$', project, re.M))
    for name in (measured.TRACES, measured.LEVELS):
        path = f"benchmarks/results/{name}"
        if (ROOT / path).exists():
            assert shipped.get(path) == f"tilewright/tools/studio/results/{name}"
