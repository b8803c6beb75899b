"""Which candidates a search measures, what it keeps, and what it makes of those that fail. Times
are made up: nothing is compiled."""

from __future__ import annotations

from itertools import product as all_of

import numpy as np
import pytest

import tilewright as tw
import tilewright.language as T
from tilewright.choose import measured, pick
from tilewright.choose.candidates import Candidate
from tilewright.ir.text import print_program
from tilewright.support.errors import LaunchError, RunError
from tilewright.tune.search import MOST, _inputs, tune


@tw.jit(target="cpu")
def product(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float32")
    B: T.Tensor((K, N), "float32")
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


def forget(jit):
    """Its kernels, so that it chooses again."""
    jit.calls.kernels.clear()
    jit.calls._recent.clear()


SIZES = {"M": 512, "N": 512, "K": 512}


class Told:
    """A pool that says how long a candidate takes by its name, and which go wrong."""

    def __init__(self, seconds, wrong=lambda name: ""):
        self.seconds, self.wrong = seconds, wrong
        self.loaded, self.timed = [], []

    def begin(self, target):
        assert target == "cpu"
        return measured.machine_of("cpu")

    def load(self, jobs, inputs):
        for name, job in jobs.items():
            assert "program product" in job["program"] and job["target"] == "cpu"
            self.loaded.append(name)
            yield name, self.wrong(name)

    def times(self, names, rounds, burst):
        self.timed += names
        return {name: self.seconds(name) for name in names}

    def close(self):
        raise AssertionError("it is not the search's own")


def near(builder, sizes):
    """Candidates from 64 each on, the nearest first."""
    ladder = [64, 32, 128, 16, 256]
    ranks = sorted(all_of(range(5), repeat=len(builder.open_tiles)), key=sum)
    names = [name for _, name in builder.open_tiles]
    if not names:
        return {}
    found = [Candidate(tuple(zip(names, (ladder[n] for n in each))), 0) for each in ranks]
    return {0: [(each, f"{each}: 1.0 µs") for each in found]}


@pytest.fixture(autouse=True)
def nothing_is_known(monkeypatch, tmp_path):
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(measured, "_here", {})
    monkeypatch.setattr(pick, "on_cpu", near)
    yield
    forget(product)


def wide(name):
    """The wider the faster."""
    size = dict(part.split() for part in name.split(", "))
    return 1.0 / int(size["n"]) + 1e-6 * int(size["m"])


def test_the_fastest_is_chosen_by_later_calls_and_other_processes(monkeypatch):
    found = tune(product, {}, SIZES, pool=Told(wide))
    best, seconds = found.times[0][0]
    assert dict(best.tiles)["n"] == 256 and seconds == wide(str(best))
    assert found.gain > 2 and found.is_kept
    kernel = product.compile(**SIZES)
    assert "n 256" in kernel.explain() and "µs measured" in kernel.explain()
    monkeypatch.setattr(measured, "_here", {})  # as in another process
    forget(product)
    assert "µs measured" in product.compile(**SIZES).explain()
    assert "measured" not in product.compile(M=512, N=512, K=256).explain()


def test_what_is_near_the_best_is_tried_as_long_as_that_gains():
    pool = Told(wide)
    found = tune(product, {}, SIZES, pool=pool, most=7)
    assert found.tried > 7 and pool.loaded.index(str(found.times[0][0][0])) >= 7
    alike = Told(lambda name: 1.0)
    assert tune(product, {}, {**SIZES, "K": 64}, pool=alike, most=4).tried == 4


def test_those_that_lose_are_stopped_early():
    pool = Told(wide)
    tune(product, {}, SIZES, pool=pool)
    counts = {name: pool.timed.count(name) for name in pool.loaded}
    best = min(counts, key=wide)
    assert counts[best] >= 3 and counts[max(counts, key=wide)] == 1


def test_what_is_known_is_not_measured_again():
    tune(product, {}, SIZES, pool=Told(wide), most=4)
    pool = Told(wide)
    before = {str(c) for c, _ in tune(product, {}, SIZES, pool=pool, most=4).times[0]}
    assert pool.loaded == []
    more = tune(product, {}, SIZES, pool=pool, most=30)
    assert pool.loaded and not before & set(pool.loaded[1:])  # the first runs beside them
    assert before <= {str(c) for c, _ in measured.known(product.calls.opened({}, SIZES))[0]}
    assert more.times[0][0][1] <= wide(min(before, key=wide))


def test_one_that_fails_is_left_out_and_said():
    def wrong(name):
        return "it ended with code -11" if "n 256" in name else ""

    found = tune(product, {}, SIZES, pool=Told(wide, wrong))
    assert dict(found.times[0][0][0].tiles)["n"] == 128
    assert found.failures
    assert all("n 256" in str(each) and "-11" in why for each, why in found.failures.items())
    pool = Told(wide)
    tune(product, {}, SIZES, pool=pool)
    assert not pool.loaded  # that some failed is no reason to search again


def test_none_that_works_is_an_error_and_the_kernel_still_runs():
    with pytest.raises(RunError, match="no candidate for product could be measured") as error:
        tune(product, {}, SIZES, pool=Told(wide, lambda name: "no"))
    assert ": no" in str(error.value)
    a = np.ones((8, 8), np.float32)
    np.testing.assert_array_equal(product(a, a), 8 * a)


def test_a_search_that_is_stopped_keeps_what_it_knows():
    with pytest.raises(KeyboardInterrupt):
        tune(product, {}, SIZES, pool=Stopped(wide))
    assert len(measured.known(product.calls.opened({}, SIZES))[0]) == MOST


class Stopped(Told):
    def times(self, names, rounds, burst):
        if self.timed:
            raise KeyboardInterrupt
        return super().times(names, rounds, burst)


def test_a_disk_that_is_full_costs_the_next_process_a_search(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    monkeypatch.setenv("TILEWRIGHT_CACHE_DIR", str(tmp_path / "file" / "no folder"))
    found = tune(product, {}, SIZES, pool=Told(wide))
    assert not found.is_kept
    assert "measured" in product.compile(**SIZES).explain()


@tw.jit(target="cpu")
def copied(A):
    M, N = T.const("M, N")
    A: T.Tensor((M, N), "float32")
    B = T.empty((M, N), "float32")
    for m in T.tile(M, size=4):
        B[m, :] = A[m, :]
    return B


def test_nothing_is_open():
    found = tune(copied, {}, {"M": 8, "N": 8}, pool=Told(wide))
    assert not found.times and "nothing is left open" in str(found)


def test_on_a_gpu_the_model_says_what_to_measure_first():
    jit = product.on("cuda -arch=sm_90a")
    opened = jit.calls.opened({}, SIZES)
    ranked = jit.calls.opened({}, SIZES, ranked=True).found
    assert set(ranked) == {0} and len(ranked[0]) > 20 and opened.found[0]
    given = jit.calls.trace({}, SIZES, given={0: ranked[0][3]}).program
    text, sizes = print_program(given), dict(ranked[0][3].tiles)
    assert f"threads tx in {ranked[0][3].threads}" in text
    assert f"alloc acc: float32[{sizes['m']}, {sizes['n']}]" in text


def test_one_that_is_lost_in_the_finals_is_not_chosen():
    class Losing(Told):
        def times(self, names, rounds, burst):
            found = super().times(names, rounds, burst)
            return {n: t for n, t in found.items() if rounds == 3 or "n 256" not in n}

    found = tune(product, {}, SIZES, pool=Losing(wide))
    assert all("n 256" not in str(candidate) for candidate, _ in found.times[0])
    assert any("n 256" in str(candidate) for candidate in found.failures)


def test_measured_again_is_measured_anew():
    tune(product, {}, SIZES, pool=Told(wide))
    narrow = Told(lambda name: 1 / wide(name), lambda name: "no" if "n 16" in name else "")
    found = tune(product, {}, SIZES, pool=narrow, again=True)
    kept = measured.known(product.calls.opened({}, SIZES))[0]
    assert kept == found.times[0] and "n 16" not in str(kept[0][0])


@tw.jit(target="cpu")
def pinned(A, B):
    M, N, K = T.const("M, N, K")
    A: T.Tensor((M, K), "float32")
    B: T.Tensor((K, N), "float32")
    C = T.empty((M, N), "float32")
    for m, n in T.tile(M, N, size=(64, None)):
        acc = T.zeros((m, n))
        for k in T.tile(K):
            acc += A[m, k] @ B[k, n]
        C[m, n] = acc
    return C


def test_times_are_of_what_is_open_and_of_the_schedule():
    opened = product.calls.opened({}, SIZES)
    others = (pinned, product.with_schedule(tiles={"m": 64}), product.on("cuda -arch=sm_90a"))
    places = [
        measured.place_of(opened, "here"),
        *(measured.place_of(each.calls.opened({}, SIZES), "here") for each in others),
    ]
    hopper = product.on("cuda -arch=sm_90a").with_schedule(stages=3)
    places.append(measured.place_of(hopper.calls.opened({}, SIZES), "here"))
    assert len({measured._key(place) for place in places}) == len(places)


def test_a_choice_that_does_not_compile_gives_way_to_the_next(monkeypatch):
    jit = product.on("cuda -arch=sm_90a")
    huge = Candidate((("m", 256), ("n", 256), ("k", 2048)), 256)
    fine = Candidate((("m", 64), ("n", 64), ("k", 32)), 128)
    opened = jit.calls.opened({}, SIZES)
    measured.keep(opened, {0: [(huge, 1e-6), (fine, 2e-6)]}, {0: MOST})
    kernel = jit.compile(**SIZES)
    assert "m 64, n 64, k 32, 128 threads: 2.0 µs measured" in kernel.explain()


def test_numbers_and_sizes_of_the_call_are_passed_on():
    rows = T.dynamic("rows", multiple_of=4)

    @tw.jit(target="cpu")
    def scaled(A, by: T.float32, at):
        N = T.const("N")
        A: T.Tensor((rows, N), "float32")
        at: T.Tensor((rows,), "int32")
        B = T.empty((rows, N), "float32")
        for r, n in T.tile(rows, N):
            B[r, n] = A[at[r], n] * by
        return B

    a, at = np.ones((12, 40), np.float32), np.arange(12, dtype=np.int32)
    bound = scaled.calls.bind((a, np.float32(3), at), {})
    program = scaled.calls.opened(bound, {}).program
    found = _inputs(program, bound)
    assert found["rows"] == 12 and found["by"] == 3.0 and found["at"].tolist() == at.tolist()
    assert "A" not in found
    with pytest.raises(RunError, match="known at launch only"):
        _inputs(program, {})


def test_without_such_a_gpu_it_says_so_at_once(monkeypatch):
    monkeypatch.setattr("tilewright.tune.search.gpu_target", lambda: None)
    with pytest.raises(LaunchError, match="needs such a GPU"):
        tune(product.on("cuda -arch=sm_90a"), {}, SIZES)
    tuned = tw.autotune(product).on("cuda -arch=sm_90a")
    with pytest.warns(tw.PerformanceWarning, match="was not tuned: tuning for sm_90a"):
        tuned.compile(**SIZES)
    monkeypatch.setattr("tilewright.tune.progress.tune", None)
    tw.autotune(product).on("interp").compile(**SIZES)  # nothing to tune
