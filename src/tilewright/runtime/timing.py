"""Contenders in turn: bursts timed by the clock, by CUDA events, or as CUDA graphs; a race is
contenders that do the same work, checked first.

Events are the driver's own, on the stream the contenders' library is working on, so that PyTorch,
CuPy, Triton and our kernels are timed alike. A contender that only uses the CPU is timed rightly
by them too: the second event is recorded when it has returned.
"""

from __future__ import annotations

import math
import statistics
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol
from weakref import finalize

from tilewright.support.errors import LaunchError

Run = Callable[[], Any]
BACKENDS = ("auto", "clock", "event", "graph")
# other names for them, as ported programs write
_ALIASES = {"cudagraph": "graph", "cupti": "event", "host": "clock", "wall": "clock"}
_LONGEST = 4096  # calls in a burst: a graph of more nodes is slow to make
_GPU_PAUSE = 5e-3


def spread(times: Sequence[float]) -> float:
    """How far apart the rounds are, as a part of their median.

    >>> spread([1.0, 1.1, 0.9])
    0.2
    """
    return round((max(times) - min(times)) / statistics.median(times), 12)


# ----------------------------------------------------------------------------- what is in use


def _torch_on_gpu() -> Any:
    """PyTorch, if this process uses a GPU with it."""
    torch = sys.modules.get("torch")
    cuda = getattr(torch, "cuda", None)
    return torch if cuda is not None and cuda.is_initialized() else None


def _cupy() -> Any:
    cupy = sys.modules.get("cupy")
    try:
        return cupy if cupy is not None and cupy.cuda.is_available() else None
    except Exception:  # CuPy without a driver fails in ways of its own
        return None


def gpu_in_use() -> bool:
    """Whether something in this process has begun to use a GPU."""
    if _torch_on_gpu() or _cupy():
        return True
    cuda = sys.modules.get("tilewright.targets.cuda.driver")
    return cuda is not None and bool(cuda.driver.cache_info().currsize)


def current_stream() -> int:
    """The stream that PyTorch, or else CuPy, is working on; 0 is the default one."""
    if torch := _torch_on_gpu():
        return int(torch.cuda.current_stream().cuda_stream)
    if cupy := _cupy():
        return int(cupy.cuda.get_current_stream().ptr)
    return 0


# ------------------------------------------------------------------------------------- timers


class Timer(Protocol):
    """`ready(run, count)` is a function that makes `count` calls and says how long they took."""

    pause: float

    def ready(self, run: Run, count: int) -> Callable[[], float]: ...


class Clock:
    """The host's clock. Where a GPU is in use, its queue is empty before a burst, so that the cost
    of launching is what is measured."""

    def __init__(self, drain: Run | None = None) -> None:
        self.drain = drain
        self.pause = 0.0

    def ready(self, run: Run, count: int) -> Callable[[], float]:
        def burst() -> float:
            if self.drain is not None:
                self.drain()
            start = time.perf_counter()
            for _ in range(count):
                run()
            return time.perf_counter() - start

        return burst


class Events:
    """A pair of CUDA events around a burst, and a call ahead of it: the GPU has work while the host
    launches, whose first launch after a pause is slow."""

    ahead = 1

    def __init__(self, driver: Any, current: Callable[[], int] = current_stream) -> None:
        self.driver, self.current = driver, current
        self.pause = _GPU_PAUSE
        if not int(driver.call(driver.api.cuCtxGetCurrent()) or 0):
            driver.make_current(driver.device(0))
        self._pair = [driver.call(driver.api.cuEventCreate(0)) for _ in range(2)]

    def ready(self, run: Run, count: int) -> Callable[[], float]:
        call, api = self.driver.call, self.driver.api
        start, stop = self._pair

        def burst() -> float:
            for _ in range(self.ahead):
                run()
            stream = self.current()
            call(api.cuEventRecord(start, stream))
            for _ in range(count):
                run()
            call(api.cuEventRecord(stop, stream))
            call(api.cuEventSynchronize(stop))
            return float(call(api.cuEventElapsedTime(start, stop))) / 1e3

        return burst


class Graphs(Events):
    """A burst captured once into a CUDA graph; its replay is timed, so the host costs nothing."""

    ahead = 0

    def ready(self, run: Run, count: int) -> Callable[[], float]:
        try:
            replay = _capture(run, count)
        except LaunchError:
            raise
        except RuntimeError as error:  # PyTorch's and CuPy's errors are RuntimeErrors
            raise LaunchError(
                "a contender cannot be captured into a CUDA graph",
                got=str(error).partition("\n")[0],
                fix='time it with backend="event", or keep it from waiting for the GPU',
            ) from error
        return super().ready(replay, 1)


class StreamGraphs(Events):
    """The same for contenders that launch on `stream`, whatever library their arrays are of."""

    ahead = 0

    def __init__(self, driver: Any, stream: int) -> None:
        super().__init__(driver, lambda: stream)
        self.stream, self.pause = stream, 0.0

    def ready(self, run: Run, count: int) -> Callable[[], float]:
        call, api, stream = self.driver.call, self.driver.api, self.stream
        run()
        self.driver.synchronize(stream)
        call(api.cuStreamBeginCapture(stream, api.CUstreamCaptureMode(2)))  # relaxed
        try:
            for _ in range(count):
                run()
        finally:
            graph = call(api.cuStreamEndCapture(stream))
        replay = call(api.cuGraphInstantiate(graph, 0))
        call(api.cuGraphDestroy(graph))

        burst = super().ready(lambda: call(api.cuGraphLaunch(replay, stream)), 1)
        finalize(burst, api.cuGraphExecDestroy, replay)
        return burst


def _capture(run: Run, count: int) -> Run:
    def burst() -> None:
        for _ in range(count):
            run()

    if torch := _torch_on_gpu():
        stream = torch.cuda.Stream()
        stream.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(stream):
            run()  # libraries make their workspaces for a stream at its first use
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream, capture_error_mode="relaxed"):
            burst()
        replay: Run = graph.replay
        return replay
    if cupy := _cupy():
        stream = cupy.cuda.Stream(non_blocking=True)
        with stream:
            run()
            stream.synchronize()
            stream.begin_capture()
            try:
                burst()
            finally:
                graph = stream.end_capture()
        return lambda: graph.launch(cupy.cuda.get_current_stream())
    raise LaunchError(
        "timing as a CUDA graph needs a library whose stream can be captured",
        expected="arrays of PyTorch or CuPy",
        fix='use backend="event"',
    )


def timer_for(backend: str) -> Timer:
    """The timer of that name; without a GPU in use there is only the clock."""
    backend = _ALIASES.get(backend, backend)
    if backend not in BACKENDS:
        raise ValueError(f"unknown timing backend {backend!r}: use one of {', '.join(BACKENDS)}")
    if not gpu_in_use():
        return Clock()
    from tilewright.targets.cuda.driver import driver

    if backend == "clock":
        return Clock(lambda: driver().call(driver().api.cuCtxSynchronize()))
    return Graphs(driver()) if backend == "graph" else Events(driver())


# ---------------------------------------------------------------------------------- measuring


def measure(
    contenders: Mapping[str, Run],
    *,
    rounds: int = 10,
    warmup: float = 0.05,
    budget: float = 1.0,
    burst: float = 1e-3,
    pause: float | None = None,
    backend: str = "auto",
    count: int | None = None,
    timer: Timer | None = None,
) -> dict[str, list[float]]:
    """Seconds per call of each contender, one entry a round; contenders take turns in every
    round, and a round is a burst of at least `burst` seconds, or of `count` calls. Their order
    changes from round to round: who comes after a hot kernel finds a slower GPU.

    `backend` is 'auto' or 'event' (CUDA events where a GPU is in use, the clock elsewhere),
    'graph' (the burst as one CUDA graph) or 'clock' (what a call costs the host).

    Between bursts there is a `pause`, by default 5 ms on a GPU: the threads of a BLAS spin for tens
    of milliseconds after a product and would take the next contender's cores, and a GPU at its
    power limit would still be throttled for the one before. Rounds end when there are `rounds` of
    them, or after three once `budget` seconds are spent.

    >>> a = np.ones((64, 64))
    >>> times = tw.measure({"product": lambda: a @ a, "sum": lambda: a.sum()}, rounds=3)
    >>> sorted(times), len(times["sum"])
    (['product', 'sum'], 3)
    """
    for run in contenders.values():
        run()  # before the timer is chosen: the first call may be what first uses the GPU
    timer = timer or timer_for(backend)
    pause = timer.pause if pause is None else pause
    ready: dict[str, tuple[Callable[[], float], int]] = {
        name: _ready(timer, run, warmup, burst, count) for name, run in contenders.items()
    }
    taken: dict[str, list[float]] = {name: [] for name in contenders}
    begin = time.perf_counter()
    for done in range(10_000):
        if done >= 3 and (done >= rounds or time.perf_counter() - begin > budget):
            break
        for name in _order(list(ready), done):
            timed, calls = ready[name]
            if pause:
                time.sleep(pause)
            taken[name].append(timed() / calls)
    return taken


def _order(names: list[str], turn: int) -> list[str]:
    """Names forwards and backwards in turn, each pair of rounds beginning with another."""
    first = turn // 2 % max(len(names), 1)
    order = names[first:] + names[:first]
    return order[::-1] if turn % 2 else order


def _ready(
    timer: Timer, run: Run, warmup: float, burst: float, count: int | None
) -> tuple[Callable[[], float], int]:
    """A burst that is long enough, and the number of calls in it."""
    single = timer.ready(run, 1)
    begin = time.perf_counter()
    once = max(single(), 1e-7)
    while time.perf_counter() - begin < warmup:
        once = max(single(), 1e-7)
    if count is not None:
        return timer.ready(run, count), count
    if isinstance(timer, Clock):
        return timer.ready(run, calls := max(1, int(burst / once))), calls
    # calls that overlap take less than one alone: lengthen until the burst is as long as asked
    calls = min(_LONGEST, max(1, math.ceil(burst / once)))
    timed = timer.ready(run, calls)
    for _ in range(6):
        took = max(timed(), 1e-7)
        if took >= burst or calls == _LONGEST:
            break
        calls = min(_LONGEST, math.ceil(calls * min(16.0, 1.2 * burst / took)))
        timed = timer.ready(run, calls)
    return timed, calls


# -------------------------------------------------------------------------------------- races

Found = Mapping[str, Any]  # what a check says: "ok", and whatever else it found


@dataclass(frozen=True)
class Race:
    """Contenders that do the same work.

    `contenders` maps names to calls without arguments, or is a function that makes such a mapping
    when the race's turn has come. `check`, called before anything is timed, gives one finding or
    several: mappings with `ok`, by custom `error` and `bound`, and `contender` where only that one
    is concerned. What is not ok is not timed. `work` is what a call does, in `unit`s: 'FLOP', or
    'B' for bytes moved. Contenders in `ours` are compared with the best of the others, or, where
    none are named, each with the best of its rivals. `about` goes into the record as it is when
    the race has ended. `backend`, `count` and `rounds` are `measure`'s.

    >>> Race("sum", {"python": lambda: sum(range(9))}, work=9, unit="FLOP").name
    'sum'
    """

    name: str
    contenders: Mapping[str, Run] | Callable[[], Mapping[str, Run]]
    check: Callable[[], Found | Iterable[Found] | None] | None = None
    work: float = 0.0
    unit: str = "FLOP"
    ours: Sequence[str] = ()
    about: Mapping[str, Any] = field(default_factory=dict)
    backend: str = "auto"
    count: int | None = None
    rounds: int | None = None


@dataclass(frozen=True)
class Settings:
    """How races are run; times in seconds. `force` times what failed its check, too."""

    rounds: int = 12
    burst: float = 2e-3
    pause: float | None = None
    backend: str = "auto"
    force: bool = False
    warmup: float = 0.05


# unit → the JSON key of a rate, and what one of it is
RATES = {"FLOP": "tflops", "B": "terabytes_per_second"}


def run_race(
    race: Race,
    settings: Settings | None = None,
    note: Callable[[str], None] = lambda text: None,
    timer: Timer | None = None,
) -> dict[str, Any]:
    """Check and time; the record is plain data. `note` hears what is going on."""
    settings = settings or Settings()
    made = race.contenders() if callable(race.contenders) else race.contenders
    contenders = dict(made)
    checks: list[Found] = []
    for found in _findings(race):
        checks.append(found)
        note(f"checked {_brief(found)}")
    record: dict[str, Any] = {"race": race.name, "checks": checks, "contenders": {}}
    failed = [c for c in checks if not c.get("ok", True)]
    record["ok"] = not failed
    if not settings.force:
        for found in failed:
            name = found.get("contender")
            for dropped in [name] if name is not None else list(contenders):
                contenders.pop(dropped, None)
    if contenders:
        note("timing " + ", ".join(contenders))
        times = measure(
            contenders,
            rounds=race.rounds or settings.rounds,
            warmup=settings.warmup,
            budget=float("inf"),
            burst=settings.burst,
            pause=settings.pause,
            backend=settings.backend if race.backend == "auto" else race.backend,
            count=race.count,
            timer=timer,
        )
        record["contenders"] = figures(race, times)
    return {**record, **race.about}


def figures(race: Race, times: Mapping[str, Sequence[float]]) -> dict[str, dict[str, Any]]:
    """Each contender's times, their median and spread, its rate, and how it stands to the others:
    `against_x` is how many times faster than x it is."""
    middle = {name: statistics.median(found) for name, found in times.items()}
    result: dict[str, dict[str, Any]] = {}
    for name, found in times.items():
        one = result[name] = {"ms": middle[name] * 1e3}
        if race.work and race.unit in RATES:
            one[RATES[race.unit]] = race.work / middle[name] / 1e12
        one["spread"] = spread(found)
        one["times_ms"] = [t * 1e3 for t in found]
        others = [n for n in times if n != name]
        if race.ours:
            others = [n for n in others if n not in race.ours] if name in race.ours else []
            for other in others:
                one[f"against_{other}"] = middle[other] / middle[name]
        if others:
            one["against_best"] = min(middle[n] for n in others) / middle[name]
    return result


def _findings(race: Race) -> Iterable[Found]:
    found = race.check() if race.check is not None else None
    if found is None:
        return ()
    return (found,) if isinstance(found, Mapping) else found


def _brief(found: Found) -> str:
    return ", ".join(
        f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in found.items()
    )
