"""A recording says what the simulator, the interpreter and the compiler say."""

from __future__ import annotations

import base64
import inspect
import json
from importlib import import_module
from itertools import pairwise
from types import SimpleNamespace

import numpy as np
import pytest
from click.testing import CliRunner

import tilewright as tw
import tilewright.language as T
import tilewright.math as tm
from tests.studio.kernels import GEMM, names, recorded
from tilewright import machine
from tilewright.inspect.explain import laid_out
from tilewright.inspect.simulate import simulate
from tilewright.support.errors import CompileError
from tilewright.tools.inputs import arguments
from tilewright.tools.studio.compare import compare
from tilewright.tools.studio.export import MOST, without
from tilewright.tools.studio.gallery import LESSONS, told_of
from tilewright.tools.studio.measured import measured, raced, told
from tilewright.tools.studio.recording import record
from tilewright.tools.studio.subject import Request
from tilewright.tools.studio.values import frame, values
from tilewright.tools.studio_cli import studio_command

SIZES = {"M": 4096, "N": 4096, "K": 4096}


@pytest.fixture(scope="module")
def gemm():
    return recorded("gemm", want=["values", "levels", "layouts"])


@pytest.fixture(scope="module")
def kernel():
    return GEMM.on("cuda -arch=sm_90a").compile(**SIZES)


def spans(part):
    told = part["timeline"]["spans"]
    return [dict(zip(told["columns"], row, strict=True)) for row in told["rows"]]


def test_the_timeline_is_the_simulators(gemm, kernel):
    """Span by span, as far as `explain()` walks; and its figures."""
    laid = laid_out(kernel.executable.trace)
    run = simulate(laid, laid.kernels[0], kernel.target, 1)
    assert run is not None
    (part,) = gemm["parts"]
    found = [(s["track"], s["unit"], s["start"], s["end"], s["bytes"], s["wait"]) for s in
             spans(part)]  # fmt: skip
    last = min(who.starts[-1] for who in run.agents)
    walked = [s for s in run.spans if s.end < last]
    assert len(walked) > 50
    for span in walked:
        told = (span.who, span.unit, round(span.start), round(span.end), round(span.size))
        assert (*told, span.what) in found
    told = kernel.explain(as_dict=True)["kernels"][0]["timeline"]
    same = ("interval", "limit", "agents", "bytes")
    assert {n: part["timeline"][n] for n in same} == {n: told[n] for n in same}
    assert part["timeline"]["busy"] == told["utilisation"]


def test_a_whole_block(gemm):
    """All iterations, the epilogue with its stores, and the first loads of the next tile."""
    (part,) = gemm["parts"]
    line = part["timeline"]
    assert line["walked"] == {"iterations": 64, "of": 64, "tiles": 2, "complete": True}
    assert [p["name"] for p in line["phases"]] == ["prologue", "main loop", "epilogue", "next tile"]
    first = [s for s in spans(part) if s["tile"] <= 0]
    assert sum(s["bytes"] for s in first if s["unit"] == "stores") == 128 * 256 * 2
    (gap,) = line["elided"]
    kept = sum(s["bytes"] for s in first if s["unit"] == "copies")
    left_out = 64 * (128 + 256) * 64 * 2 - kept
    assert left_out / (gap["iterations"][1] - gap["iterations"][0]) == pytest.approx(
        (128 + 256) * 64 * 2, rel=0.1
    )
    assert not line["standing"]


def test_units_take_one_after_the_other(gemm):
    (part,) = gemm["parts"]
    for units in (["tensor core"], ["copies", "stores"]):
        own = sorted((s["start"], s["end"]) for s in spans(part) if s["unit"] in units)
        assert all(b[0] >= a[1] - 1 for a, b in pairwise(own))


def test_rings_and_tiles_in_flight(gemm):
    """A copy fills the slot that a product then reads, and a barrier flips in between."""
    (part,) = gemm["parts"]
    line, rings = part["timeline"], {r["buffer"]: r for r in part["rings"]}
    ring = rings["tile"]
    assert (ring["slots"], ring["slot_bytes"]) == (4, 128 * 64 * 2)
    assert (ring["full"], ring["free"]) == ("tile_full", "tile_free")
    regions = line["regions"]
    fifth = [s for s in spans(part) if s["iteration"] == 5 and s["tile"] == 0]
    copies = [s for s in fifth if s["unit"] == "copies"]
    sources = {regions[i][0]: regions[i] for s in copies for i in s["reads"]}
    assert sources["A"][1][1] == 5 * 64 and list(sources["A"][2]) == [128, 64]
    slots = {regions[i][0]: regions[i][1][0] for s in copies for i in s["writes"]}
    assert slots["tile"] == 5 % 4
    products = [s for s in fifth if s["unit"] == "tensor core"]
    read = {regions[i][1][0] for s in products for i in s["reads"] if regions[i][0] == "tile"}
    assert read == {1}
    flips = [row for row in line["flips"]["rows"] if row[1:3] == ["tile_full", 1]]
    arrived = next(time for time, _, _, phase in flips if phase == 2)  # of iteration 5
    assert max(s["end"] for s in copies) <= arrived <= min(s["start"] for s in products)


def test_values_are_the_interpreters(gemm):
    """Sums of the frames are those of a run, to the last one."""
    told = gemm["values"]
    kernel = GEMM.on("interp -sanitize").compile(M=128, N=128, K=128)
    given = arguments(kernel.program, {}, "floats", 0, {})
    given["C"] = np.zeros_like(given["C"])
    machine.run(kernel.program, given, made=("C",))
    assert told["result"]["C"]["sum"] == given["C"].astype(np.float64).sum()
    tiles = told["frames"], told["steps"]
    last = [s["changed"]["acc"] for s in tiles[1] if "acc" in s["changed"]][-1]
    size = tiles[0][last]["shape"]
    a, b = (given[n].astype(np.float64) for n in "AB")
    want = (a @ b)[: size[0], : size[1]]
    assert tiles[0][last]["sum"] == pytest.approx(want.sum(), rel=1e-5)
    data = np.frombuffer(base64.b64decode(tiles[0][last]["b64"]), np.uint8)
    found = tiles[0][last]
    seen = data.reshape(found["rows"]) / 254 * (found["high"] - found["low"]) + found["low"]
    step = found["step"]
    error = abs(seen - want[:: step[0], :: step[1]]).max()
    assert error <= (found["high"] - found["low"]) / 254


def test_values_of_every_kernel_of_a_program():
    """The first one of this text only clears the sums."""
    found = recorded("split_k", want=["values"])
    steps = found["values"]["steps"]
    assert {step["kernel"] for step in steps} == {part["name"] for part in found["parts"]}
    acc = [step["changed"]["acc"] for step in steps if "acc" in step["changed"]]
    assert found["values"]["frames"][acc[-1]]["high"] > 0


def test_frames_of_odd_numbers():
    tile = np.array([[np.nan, 1.0], [np.inf, 3.0]], np.float32)
    found = frame(tile)
    assert (found["nan"], found["inf"], found["low"], found["high"], found["sum"]) == (
        1,
        1,
        1,
        3,
        4,
    )
    assert list(base64.b64decode(found["b64"])) == [255, 0, 255, 254]
    large = frame(np.arange(300 * 500).reshape(300, 500))
    assert (
        large["step"] == [5, 8] and large["rows"] == [60, 63] and large["sum"] == sum(range(150000))
    )
    assert frame(np.ones(3))["shape"] == [3]


def test_layouts_are_the_fragments(gemm, kernel):
    laid = laid_out(kernel.executable.trace)
    held = {op.buffer.name: op.buffer for op in tw_allocs(laid)}
    told = {one["buffer"]: one for one in gemm["parts"][0]["layouts"]}
    acc = told["acc"]
    thread = np.frombuffer(base64.b64decode(acc["thread"]["b64"]), np.uint16).reshape(64, 64)
    register = np.frombuffer(base64.b64decode(acc["register"]["b64"]), np.uint16).reshape(64, 64)
    for at in ((0, 0), (3, 17), (63, 63)):
        assert (thread[at], register[at]) == held["acc"].layout.owner(at)[0]
    shared = told["tile"]
    address = np.frombuffer(base64.b64decode(shared["address"]["b64"]), np.uint32).reshape(64, 64)
    for at in ((0, 0), (5, 9), (63, 63)):
        assert address[at] == 2 * held["tile"].layout(0, *at)
    assert told["acc_stage"]["accesses"][0]["instruction"] == "stmatrix"


def test_bank_conflicts_of_single_threads():
    @tw.jit
    def transposed(X):
        N = T.const("N")
        X: T.Tensor((N, N), "float32")
        Y = T.empty((N, N), "float32")
        with T.Kernel(N // 32, N // 32, threads=(32, 32)) as (bx, by):
            s = T.alloc_shared((32, 32), "float32")
            tx, ty = T.get_thread_binding(0), T.get_thread_binding(1)
            s[ty, tx] = X[by * 32 + ty, bx * 32 + tx]
            T.sync_threads()
            Y[bx * 32 + ty, by * 32 + tx] = s[tx, ty]
        return Y

    found = record({"transposed": transposed}, Request.of({"want": ["layouts"]}), "t.py")
    (tile,) = found["parts"][0]["layouts"]
    bank = np.frombuffer(base64.b64decode(tile["bank"]["b64"]), np.uint8).reshape(32, 32)
    assert (bank == np.arange(32)).all()
    assert {a["writes"]: a["wavefronts"] / a["ideal"] for a in tile["accesses"]} == {
        True: 1,
        False: 32,
    }


def tw_allocs(program):
    from tilewright.ir.op import Alloc, walk_ops

    return list(walk_ops(program.kernels[0], Alloc))


def test_levels_link_to_the_source(gemm):
    levels = {level["name"]: level for level in gemm["levels"]}
    assert {"tile IR", "scheduled IR", "thread code", "CUDA"} <= levels.keys()
    source = gemm["source"]["lines"]
    product = next(n for n, line in enumerate(source, 1) if "acc += A" in line)
    words = {"tile IR": "gemm", "scheduled IR": "gemm", "CUDA": "wgmma", "SASS": "HGMMA"}
    for name, word in words.items():
        if name in levels:
            pairs = zip(levels[name]["lines"], levels[name]["links"], strict=True)
            assert any(word in line and links == [product] for line, links in pairs), name
    assert "SASS" in levels or gemm["notes"]


def test_choices(gemm):
    told = gemm["choices"]
    assert [t["loop"] for t in told["tiles"]] == ["m", "n", "k"]
    best = told["runners_up"][0]
    assert best["tiles"] == {"m": 128, "n": 256, "k": 64} and best["us"] > 0 and best["limit"]
    assert {f["name"] for f in told["fields"]} >= {"stages", "roles", "persistent", "cluster"}
    assert gemm["roofline"]["flops"] == 2 * 4096**3 and gemm["roofline"]["bound"] == "compute"
    assert gemm["roofline"]["bytes"] == 3 * 2 * 4096**2


def test_a_draft_has_the_same_timeline(gemm):
    """What is sent while a slider moves."""
    draft = recorded("gemm", want=[])
    assert draft["draft"] and not gemm["draft"]
    assert draft["parts"][0]["timeline"] == gemm["parts"][0]["timeline"]
    assert draft["values"] is None and draft["levels"] == []


def test_compare(gemm):
    two = recorded("gemm", want=[], schedule={"stages": 2})
    found = compare(two, gemm)
    intervals = [r["parts"][0]["timeline"]["interval"] for r in (two, gemm)]
    assert found["faster"] == "b" and found["ratio"] == round(intervals[0] / intervals[1], 3)
    ring = next(s for s in found["sentences"] if s.startswith("ring"))
    less = f"an iteration is {intervals[0] - intervals[1]} cycles shorter"
    assert ring == f"ring 2 → 4 slots: {less} ({intervals[0]} → {intervals[1]})"
    assert any("of waiting for loads" in s for s in found["sentences"])
    same = compare(gemm, gemm)
    assert same["faster"] is None and same["ratio"] == 1


def test_a_race_is_told_with_both_accesses():
    found = recorded("race", want=["values"])
    (error,) = found["errors"]
    lines = found["source"]["lines"]
    assert (error["stage"], error["kind"]) == ("sanitizer", "race")
    told = {lines[access["line"] - 1].strip() for access in error["accesses"]}
    assert told == {"tile[t] = X[bx * 128 + t]", "Y[bx * 128 + t] = tile[127 - t]"}
    assert found["values"]["steps"][error["step"]]["line"] == error["line"]


def test_a_deadlock_says_who_waits_where():
    @tw.jit
    def stuck(A):
        N = T.const("N")
        A: T.Tensor((N, 64), "float16")
        B = T.empty((N, 64), "float16")
        with T.Kernel(1, threads=256):
            full = T.alloc_barrier(128)
            with T.ws(0):
                T.barrier_arrive(full)
            with T.ws(1):
                T.barrier_wait(full, 0)
                T.barrier_wait(full, 1)  # nobody arrives again
                for i, j in T.Parallel(64, 64):
                    B[i, j] = A[i, j]
        return B

    _, error = values(stuck.on("interp -sanitize").compile(N=64), {}, {})
    assert error["stage"] == "deadlock"
    assert [w["text"].split(":")[0] for w in error["waiting"]] == ["Wait"]
    assert error["waiting"][0]["line"] == error["line"]


@tw.jit
def never_free(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, 64), T.ceildiv(N, 64), threads=256) as (bx, by):
        a = T.alloc_shared((2, 64, 64), "float16")
        b = T.alloc_shared((2, 64, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        full, free = T.alloc_barrier([128, 128]), T.alloc_barrier([128, 128])
        with T.ws(1):
            for k in T.serial(T.ceildiv(K, 64)):
                T.barrier_wait(free[k % 2], k // 2 % 2)  # a phase too far
                T.copy(A[bx * 64, k * 64], a[k % 2, :, :])
                T.copy(B[k * 64, by * 64], b[k % 2, :, :])
                T.barrier_arrive(full[k % 2])
        with T.ws(0):
            T.clear(c)
            for k in T.serial(T.ceildiv(K, 64)):
                T.barrier_wait(full[k % 2], k // 2 % 2)
                T.gemm(a[k % 2, :, :], b[k % 2, :, :], c)
                T.barrier_arrive(free[k % 2])
            T.copy(c, C[bx * 64, by * 64])
    return C


def test_a_deadlock_on_the_timeline():
    """Both roles stand, and wait until the end of what is drawn."""
    found = record({"never_free": never_free}, Request.of({"want": ["values"]}), "ring.py")
    (part,), line = found["parts"], found["parts"][0]["timeline"]
    stand = {line["tracks"][s["track"]]["role"]: s["line"] for s in line["standing"]}
    (error,) = found["errors"]
    assert error["stage"] == "deadlock" and len(stand) == 2
    assert {w["line"] for w in error["waiting"]} == set(stand.values())
    last = {s["track"]: s for s in spans(part)}
    assert {s["wait"] for s in last.values()} == {"full", "free"}
    assert all(s["end"] == line["cycles"] and s["start"] < s["end"] for s in last.values())


@pytest.mark.parametrize("name", LESSONS)
def test_gallery_texts(name):
    lesson = LESSONS[name]
    assert lesson.path.is_file() and lesson.title and lesson.text.endswith(".") and lesson.trying
    told = told_of(name)
    Request.of({k: v for k, v in told["request"].items()})
    assert json.dumps(told)


@pytest.mark.parametrize("name", ["softmax", "grouped"])
def test_gallery_kernels_are_walked_to_the_end(name):
    found = recorded(name, want=[])
    assert not found["errors"]
    for part in found["parts"]:
        assert part["timeline"]["walked"]["complete"] and part["timeline"]["cycles"] > 0


def test_a_request_is_checked():
    for wrong, word in (
        ([], "object"),
        ({"kernal": "x"}, "no field"),
        ({"sizes": {"M": "4"}}, "integer"),
        ({"sizes": {"M": -1}}, "integer"),
        ({"schedule": 3}, "type"),
        ({"schedule": {"stagse": 3}}, "no field 'stagse'"),
    ):
        with pytest.raises(CompileError, match=word):
            Request.of(wrong)


def test_what_cannot_be_compiled_is_an_error_with_its_line():
    found = recorded("gemm", want=[], schedule={"tiles": {"m": 256, "n": 256, "k": 256}})
    (error,) = found["errors"]
    assert error["stage"] == "compile" and "shared memory" in error["text"] and not found["parts"]
    with pytest.raises(CompileError, match="no kernel named 'matmu'"):
        recorded("gemm", kernel="matmu")


def test_large_runs_are_not_made():
    found = recorded("gemm", want=["values"], small={"M": 4096, "N": 4096, "K": 64})
    assert found["values"] is None and "smaller sizes" in found["notes"][-1]


def test_sizes_of_files(gemm):
    assert len(json.dumps(gemm)) < MOST / 3
    smaller = without(gemm, ("levels", "layouts"))
    assert not smaller["parts"][0]["layouts"] and "left out" in smaller["notes"][-1]
    assert len(json.dumps(smaller)) < len(json.dumps(gemm))


def test_pictures(kernel):
    drawn = str(kernel.picture())
    assert drawn.startswith("<svg") and "waits for tile_full" in drawn
    assert kernel.picture("acc")._repr_svg_().startswith("<svg")
    with pytest.raises(CompileError, match="no tile named 'ac'"):
        kernel.picture("ac")


def test_measured_times_beside_the_model(gemm, tmp_path):
    """Of a trace with the same sizes and choices; where a role is off by more, it says so."""
    spans = [
        {"role": "consumer 0", "start": 0, "end": 900, "statement": "A", "for": "line 16"},
        {"role": "consumer 0", "start": 900, "end": 2200, "statement": ".",
         "for": "waits for products"},
        {"role": "producer", "start": -100, "end": 2300, "statement": ".", "for": "waits for x"},
    ]  # fmt: skip
    found = {"interval": 1100, "iterations": 60, "length": 2200, "spans": spans, "differences": []}
    trace = SimpleNamespace(
        timelines={"matmul": {"loop": "k", "interval": 1024, "measured": found}, "other": None}
    )
    kept = tmp_path / "traces.json"
    about = {"arch": "sm_90a", "date": "2026-01-01", "device": "a GPU"}
    kept.write_text(json.dumps({**about, "traces": [told(trace, gemm["request"])]}))
    (part,) = measured(gemm, kept)["parts"]
    role, producer = part["roles"]
    assert producer["modelled"]["computes"] and "tile_free" in producer["modelled"]["waits"]
    assert role["measured"] == {"role": "consumer 0", "computes": 450, "waits": {"products": 650}}
    model = gemm["parts"][0]["timeline"]["agents"][0]
    assert role["off"] == round((450 - model["computes"]) / 1100, 3)
    assert part["off"] == round(1100 / 1024 - 1, 3)
    assert "consumer computes: 450 cycles, 0 in the model" in part["differs"]
    assert not any("an iteration takes" in each for each in part["differs"])
    # a product shares its stamp with the waits for it, and is none of the threads' computing
    spans[1]["statement"] = "D"
    kept_too = tmp_path / "products.json"
    kept_too.write_text(json.dumps({**about, "traces": [told(trace, gemm["request"])]}))
    (part,) = measured(gemm, kept_too)["parts"]
    assert part["roles"][0]["measured"] == role["measured"]
    assert [row[3] for row in part["spans"]["rows"]] == [False, True, True]
    other = {**gemm, "request": {**gemm["request"], "sizes": {"M": 1}}}
    assert measured(other, kept) is None
    assert measured(gemm, tmp_path / "none.json") is None


def test_a_page_says_where_the_model_is_wrong():
    """By more than 15 % of an iteration; and why, where memory is the limit."""
    part = recorded("split_k", want=[])["measured"]["parts"][0]
    first, why, *roles = part["differs"]
    measured, modelled = part["interval"], part["modelled"]
    assert abs(part["off"]) > 0.15 and f"{measured} cycles, " in first and f"{modelled} of" in first
    assert "where the model has 58" in why and "from L2" in why
    assert any(each.startswith("warpgroup waits for") for each in roles)


def test_races_of_results_files():
    told = raced(*LESSONS["gemm"].race)
    assert "ours" in {one["name"] for one in told} and told[0]["us"] <= told[-1]["us"]
    # one of ours that computes something else is no contender
    races = {race for lesson in LESSONS.values() if (race := lesson.race)}
    names = {one["name"] for race in races for one in raced(*race)}
    assert {"ours", "cuBLAS", "cuDNN"} <= names
    assert not [name for name in names if name.startswith("by ")]
    assert raced("none.json", "gemm") == []


def test_a_formula_has_its_own_text():
    @tw.math
    def doubled(x):
        return x * 2 + 1

    request = Request.of({"args": {"x": "float32[64, 128]"}, "want": ["values", "levels"]})
    found = record({"doubled": doubled}, request, "doubled.py")
    assert not found["errors"]
    names = [level["name"] for level in found["levels"]]
    assert names[:2] == ["formula", "tile text"] and "x" in found["levels"][0]["lines"][0]
    assert found["values"]["result"]


def test_a_formula_of_many_elements_has_values_of_few():
    @tw.math
    def normed(x, w):
        return x / tm.sqrt(tm.mean(x * x, axis=-1, keepdims=True) + 1e-6) * w

    args = {"x": "float16[512, 8192]", "w": "float16[8192]"}
    for want in ("values", "levels", "values"):  # as the page asks a process
        request = Request.of({"args": args, "want": [want]})
        found = record({"normed": normed}, request, "normed.py")
        assert found["parts"][0]["grid"] == [512] and not found["errors"]
    frames, start = found["values"]["frames"], found["values"]["initial"]
    assert [frames[i]["shape"] for i in start.values()][:2] == [[96, 96], [96]]


def test_prim_funcs():
    @T.prim_func
    def double(A: T.Tensor((256,), "float32"), B: T.Tensor((256,), "float32")):
        with T.Kernel(2, threads=128) as bx:
            for i in T.Parallel(128):
                B[bx * 128 + i] = A[bx * 128 + i] * 2

    found = record({"double": double}, Request.of({"want": ["values"]}), "double.py")
    assert not found["errors"] and found["parts"][0]["grid"] == [2]
    frames, result = found["values"]["frames"], found["values"]["result"]["B"]
    assert result["sum"] == 2 * frames[found["values"]["initial"]["A"]]["sum"]
    steps = [s["line"] for s in found["values"]["steps"]]
    assert steps == sorted(steps)
    assert found["source"]["kernel"][0] < steps[0] <= found["source"]["kernel"][1]


@pytest.mark.parametrize(
    "name, kernel, module",
    [
        ("gemm", "matmul", "zoo.gemm.values"),
        ("grouped", "grouped", "zoo.gemm.values"),
        ("attention", "attention", "zoo.attention.values"),
        ("mla", "mla_decode", "zoo.mla.values"),
    ],
)
def test_the_gallery_shows_the_zoos_texts(name, kernel, module):
    """Those that are raced."""
    own, zoo = names(name)[kernel].fn, getattr(import_module(module), kernel).fn
    assert inspect.getsource(own) == inspect.getsource(zoo)


def test_factories():
    @tw.jit(out_idx=[-1])
    def scale(N, by=2):
        @T.prim_func
        def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, 128), threads=128) as bx:
                for i in T.Parallel(128):
                    B[bx * 128 + i] = A[bx * 128 + i] * by

        return main

    file = {"scale": scale, "gemm": GEMM}
    found = record(file, Request.of({"kernel": "scale", "want": []}), "scale.py")
    assert "give --args 'N=…'" in found["errors"][0]["fix"]
    assert record(file, Request.of({"want": []}), "scale.py")["kernel"] == "gemm"
    sizes = {"args": {"N": 4096}, "small": {"N": 256}, "want": ["values"]}
    found = record(file, Request.of(sizes), "scale.py")
    assert (found["kernel"], found["parts"][0]["grid"]) == ("scale", [32])
    assert found["values"]["frames"][found["values"]["result"]["B"]["frame"]]["shape"] == [256]


@tw.jit(target="cpu")
def scaled(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    for n in T.tile(N):
        Y[n] = X[n] * 2
    return Y


def test_a_kernel_has_its_own_target():
    """Unless another one is asked for."""
    found = record({"scaled": scaled}, Request.of({}), __file__)
    assert found["target"] == found["request"]["target"] == "cpu" and not found["errors"]
    assert found["target"] in found["choices"]["targets"] and found["values"]["steps"]
    llvm = next(level for level in found["levels"] if level["name"] == "LLVM IR")
    line = found["source"]["kernel"][1] - 1  # before the last
    assert any("fmul" in text and at == [line] for text, at in
               zip(llvm["lines"], llvm["links"], strict=True))  # fmt: skip
    asked = Request.of({"target": "cuda -arch=sm_80", "want": []})
    assert record({"scaled": scaled}, asked, __file__)["arch"] == "sm_80"


def test_values_have_the_small_sizes():
    """Sizes that are given for the model are not those of the run with values."""
    found = recorded("gemm", sizes=SIZES, small={"M": 64}, want=["values"])
    assert found["values"]["sizes"] == {"M": 64, "N": 96, "K": 96}
    assert found["request"]["sizes"] == SIZES


def test_a_file_of_the_gallery_has_its_sizes(tmp_path):
    """Opened by its path; unless sizes are given."""
    lesson, out = LESSONS["softmax"], tmp_path / "recording.json"
    for more, m in (([], lesson.request["sizes"]["M"]), (["--sizes", "M=256, N=512"], 256)):
        done = CliRunner().invoke(
            studio_command, [str(lesson.path), "--json", str(out), *more]
        )  # fmt: skip
        assert done.exit_code == 0, done.output
        assert json.loads(out.read_text())["request"]["sizes"]["M"] == m


@tw.jit
def turned(X):
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    Y = T.empty((N,), "float32")
    with T.Kernel(N // 128, threads=128) as bx:
        t = T.get_thread_binding(0)
        Y[bx * 128 + t] = X[bx * 128 + 127 - t]
    return Y


@tw.jit
def product(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float16")
    B: T.Tensor((K, N), "float16")
    C = T.empty((M, N), "float32")
    with T.Kernel(T.ceildiv(M, 64), T.ceildiv(N, 64), threads=128) as (bx, by):
        a, b = T.alloc_shared((64, 32), "float16"), T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(T.ceildiv(K, 32), num_stages=2):
            T.copy(A[bx * 64, k * 32], a)
            T.copy(B[k * 32, by * 64], b)
            T.gemm(a, b, c)
        T.copy(c, C[bx * 64, by * 64])
    return C


@pytest.mark.parametrize("kernel", [turned, product], ids=lambda k: k.fn.__name__)
def test_sizes_that_nobody_gives(kernel):
    """Of kernels whose grid is written out, too."""
    found = record({"kernel": kernel}, Request.of({"want": ["values"]}), "kernels.py")
    assert not found["errors"] and set(found["request"]["sizes"].values()) == {1024}
    assert found["values"]["steps"] and all(
        each["sum"] for each in found["values"]["result"].values()
    )
