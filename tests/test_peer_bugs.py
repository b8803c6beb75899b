"""What users of other tile compilers report as broken works here, on every road.

The programs are a table, `peer_programs.py`; what no program shows is below.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tests.peer_programs import CASES, gemm, integers
from tests.roads import on_gpu, on_threads


@pytest.fixture(
    params=["cpu", "interp -sanitize", *on_threads(), *on_gpu("gpu-sm_90a", "gpu-sm_80")]
)
def target(request):
    return request.param


@pytest.mark.parametrize("name", CASES)
def test_program(target, name):
    example = CASES[name].example()
    args = [a.copy() if isinstance(a, np.ndarray) else a for a in example.args]
    tw.compile(example.kernel, target=target)(*args)
    for position, want in example.want.items():
        got = args[position].astype(np.float64) if example.rtol else args[position]
        np.testing.assert_allclose(got, want, rtol=example.rtol, atol=0, equal_nan=False)


def test_every_report_has_a_program():
    """A program that is forgotten, or compiled for one road only, is noticed."""
    assert len({case.report for case in CASES.values()}) >= 14


# ── barriers, layouts, mistakes: refused in the user's words ────────────────────────────────


def test_a_barrier_under_a_branch_that_some_threads_take_is_refused():
    def main(A: T.Tensor((64,), "int32"), O: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=64):
            t = T.get_thread_binding(0)
            s = T.alloc_shared((64,), "int32")
            if t < 40:
                s[t] = A[t]
                T.sync_threads()
                O[t] = s[39 - t]

    with pytest.raises(tw.CompileError, match="barrier") as caught:
        T.prim_func(main)
    assert caught.value.loc.line == main.__code__.co_firstlineno + 6


@pytest.mark.parametrize("target", on_threads())
def test_a_named_barrier_that_waits_for_too_many_is_found(target):
    @T.prim_func
    def main(O: T.Tensor((64,), "int32")):
        with T.Kernel(1, threads=128):
            t = T.get_thread_binding(0)
            if t < 64:
                T.sync_threads(2, 96)
                O[t] = 1

    with pytest.raises(tw.TilewrightError, match="barrier"):
        tw.compile(main, target=target)(np.zeros(64, np.int32))


@pytest.mark.parametrize("target", on_threads())
def test_a_layout_that_cannot_be_names_both_sides(target):
    """A view is given another layout than the tile it shows."""

    def main(A: T.Tensor((32, 32), "float16")):
        with T.Kernel(1, threads=128):
            tile = T.alloc_shared((16, 64), "float16")
            seen = T.reshape(tile, (32, 32))
            T.annotate_layout({seen: T.layout.make_swizzled_layout(seen)})
            T.copy(A, seen)
            T.clear(tile)

    with pytest.raises(tw.CompileError) as caught:
        tw.compile(T.prim_func(main), target=target)
    said = str(caught.value)
    assert "tile" in said and "fix:" in said and "(32,32):(32,1)" in said
    assert caught.value.loc.line == main.__code__.co_firstlineno + 3


def mismatched():
    @T.prim_func
    def main(A: T.Tensor((32, 32), "float16")):
        with T.Kernel(1, threads=32):
            a = T.alloc_shared((32, 16), "float16")
            b = T.alloc_shared((24, 32), "float16")
            c = T.alloc_fragment((32, 32), "float32")
            T.gemm(a, b, c)


def not_contiguous():
    @T.prim_func
    def main(A: T.Tensor((4, 4), "float32")):
        with T.Kernel(1, threads=32):
            T.clear(A)

    tw.compile(main, target="cpu")(np.zeros((4, 8), np.float32)[:, ::2])


def too_much_shared_memory():
    @T.prim_func
    def main(A: T.Tensor((1024, 1024), "float32")):
        with T.Kernel(1, threads=128):
            s = T.alloc_shared((1024, 1024), "float32")
            T.copy(A, s)
            T.copy(s, A)

    tw.compile(main, target="cuda")


def too_many_threads():
    @T.prim_func
    def main(A: T.Tensor((4096,), "float32")):
        with T.Kernel(1, threads=2048):
            T.clear(A)

    tw.compile(main, target="cuda")


@pytest.mark.parametrize(
    ("mistake", "words"),
    [
        (mismatched, ("16", "24")),
        (not_contiguous, ("A", "contiguous")),
        (too_much_shared_memory, ("shared memory",)),
        (too_many_threads, ("1024", "2048")),
    ],
)
def test_mistakes_are_reported_as_the_users_own(mistake, words):
    """No assertion of ours, no dump; the whole list of mistakes is `errors/test_corpus.py`."""
    with pytest.raises(tw.TilewrightError) as caught:
        mistake()
    said = str(caught.value)
    assert all(word in said for word in words), said
    assert len(said.splitlines()) < 12 and "Assertion" not in said


# ── compile times, dynamic sizes ────────────────────────────────────────────────────────────


def double_of_any_size(dtype):
    m = T.dynamic("m")

    @T.prim_func
    def main(A: T.Tensor((m,), dtype), O: T.Tensor((m,), dtype)):
        with T.Kernel(T.ceildiv(m, 32), threads=32) as bx:
            for i in T.Parallel(32):
                O[bx * 32 + i] = A[bx * 32 + i] * 2

    return main


def test_one_dynamic_kernel_serves_all_sizes(target):
    factory = tw.jit(double_of_any_size).on(target)
    kernel = factory("float32")
    for size in (1, 31, 32, 33, 1000, 0):
        assert factory("float32") is kernel
        a = integers(size)
        o = np.full(size, np.nan, np.float32)
        kernel(a, o)
        np.testing.assert_array_equal(o, 2 * a)


SPIKES = {
    "product": lambda: gemm(1000, 1000, 1000, 96, 88, 40, stages=4),
    "large product": lambda: gemm(4096, 4096, 4096, 128, 256, 64, stages=4, threads=256),
    "large nest": lambda: CASES["large_parallel-(1048576,)"].example().kernel,
    "long pipeline": lambda: gemm(128, 128, 8192, 128, 128, 32, stages=8),
}


@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", SPIKES)
def test_compilation_is_quick(target, name, tmp_path, monkeypatch):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    started = time.process_time()
    tw.compile(SPIKES[name](), target=target)
    assert time.process_time() - started < 5  # at most 0.6 s on an idle laptop


# ── tuning ──────────────────────────────────────────────────────────────────────────────────


def factory(target, tried):
    @tw.jit(target=target)
    def double(N, block):
        tried.append(block)
        assert block == 0 or block % 5, "not this one"

        @T.prim_func
        def main(A: T.Tensor((N,), "float32"), O: T.Tensor((N,), "float32")):
            with T.Kernel(T.ceildiv(N, block), threads=32) as bx:
                a = T.alloc_fragment((block,), "float32")
                T.copy(A[bx * block], a)
                for i in T.Parallel(block):
                    O[bx * block + i] = a[i] * 2

        return main

    return double


def blocks(*sizes):
    return [{"block": size} for size in sizes]


@pytest.fixture(params=["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
def timed(request):
    return request.param


def test_a_bad_configuration_does_not_end_a_search(timed):
    tuned = tw.autotune(configs=blocks(0, 32, 7, 10), warmup=1, rep=1)(factory(timed, []))
    kernel = tuned.compile(100)
    assert kernel.config["block"] in (32, 7)
    assert [config["block"] for config, _ in tuned.failures] == [0, 10]
    none = tw.autotune(configs=blocks(0, 10), warmup=1, rep=1)(factory(timed, []))
    with pytest.raises(tw.TilewrightError):
        none.compile(100)


def test_an_added_configuration_is_the_only_one_to_be_timed(timed, monkeypatch):
    from tilewright.runtime.bench import Profiler

    runs = []
    bench = Profiler.do_bench
    monkeypatch.setattr(
        Profiler, "do_bench", lambda self, **how: runs.append(1) or bench(self, **how)
    )
    double = factory(timed, [])
    tw.autotune(configs=blocks(32, 7), warmup=1, rep=1)(double).compile(100)
    assert len(runs) == 2
    again = tw.autotune(configs=blocks(32, 7, 16), warmup=1, rep=1)(double)
    again.compile(100)
    assert len(runs) == 3 and len(again.timings) == 3
    again.configs.append({"block": 64})
    again.compile(100)
    again.compile(100)
    assert len(runs) == 4


def test_what_was_timed_is_checked_all_the_same(timed):
    double = factory(timed, [])
    tw.autotune(configs=blocks(32, 7), warmup=1, rep=1)(double).compile(100)
    checked = tw.autotune(configs=blocks(32, 7), warmup=1, rep=1, ref_prog=lambda a: a * 3)
    with pytest.raises(AssertionError, match="differs in"):
        checked(double).compile(100)


# ── dependencies, caches ────────────────────────────────────────────────────────────────────

ROOT = Path(__file__).parent.parent


def test_dependencies_are_few_and_none_is_pinned():
    text = (ROOT / "pyproject.toml").read_text()
    wanted = text.split("dependencies = [", 1)[1].split("]", 1)[0].split()
    names = [line.strip('",') for line in wanted]
    assert len(names) <= 6
    assert all(">=" in name and "==" not in name and "<" not in name for name in names), names


def test_importing_brings_no_framework():
    code = "import sys, tilewright.language; print(*{m.partition('.')[0] for m in sys.modules})"
    run = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True,
        env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
    )  # fmt: skip
    loaded = set(run.stdout.split())
    assert not loaded & {"torch", "jax", "cupy", "triton", "tvm", "cuda", "llvmlite", "cutlass"}


def test_nothing_is_pickled():
    """The store holds JSON and bytes under a checksum (`runtime/test_cache.py`): nothing runs."""
    for path in (ROOT / "src").rglob("*.py"):
        text = path.read_text()
        assert "pickle" not in text and "marshal" not in text and "shelve" not in text, path


WRITER = """
import sys
from pathlib import Path
from tilewright.support.cache import Store, digest
store, key = Store(Path(sys.argv[1])), digest({"source": "x"})
for turn in range(60):
    store.put(key, {"turn": turn, "by": sys.argv[2]}, (sys.argv[2] * 3000).encode() * 40)
    found = store.get(key)
    if found is None or found[1] != (found[0]["by"] * 3000).encode() * 40:
        sys.exit(f"turn {turn}: {found and found[0]}")
"""


def test_writers_at_the_same_time_leave_whole_entries(tmp_path):
    started = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "cache"), name],
            stderr=subprocess.PIPE,
            text=True,
            env={"PYTHONPATH": str(ROOT / "src"), "PATH": ""},
        )
        for name in ("first", "second", "third")
    ]
    for process in started:
        _, said = process.communicate(timeout=120)
        assert process.returncode == 0, said
