"""`@tw.autotune`: try a factory's configurations, or what a kernel's text leaves open, and keep the
fastest that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from typing import Any

from tilewright.runtime.direct import key_of, outline
from tilewright.runtime.jit import Jit
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.content_key import content_key
from tilewright.support.errors import CompileError
from tilewright.tune.progress import tune_watched

_INPUTS: ContextVar[list[Any] | None] = ContextVar("autotune inputs", default=None)


@contextmanager
def set_autotune_inputs(*tensors: Any) -> Iterator[None]:
    """What tuning inside runs on, instead of inputs that it makes: the arguments of the kernel
    that it does not make itself, in order, or one list of them.

    >>> @tw.autotune(configs=[{"block": 64}, {"block": 128}], warmup=1, rep=1)
    ... @tw.jit(target="cpu", out_idx=[-1])
    ... def double(N, block):
    ...     @T.prim_func
    ...     def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    ...         with T.Kernel(T.ceildiv(N, block)) as bx:
    ...             for i in T.Parallel(block):
    ...                 B[bx * block + i] = A[bx * block + i] * 2
    ...     return main
    >>> a = np.ones(1000, np.float32)
    >>> with tw.set_autotune_inputs(a):
    ...     kernel = double(1000)
    >>> float(kernel(a).sum())
    2000.0
    """
    alone = len(tensors) == 1 and isinstance(tensors[0], (list, tuple))
    token = _INPUTS.set(list(tensors[0] if alone else tensors))
    try:
        yield
    finally:
        _INPUTS.reset(token)


class Autotuned:
    """A jitted factory whose missing arguments are found by measuring.

    A configuration that does not compile or run, for whatever reason (an `assert` in the factory
    included), is set aside with it (`failures`); only when none works is an error raised. What was
    measured is kept with the factory: a configuration that is added later is the only one to be
    timed.
    """

    def __init__(
        self, jitted: Jit, configs: Any, warmup: float, rep: float, profile: Profile | None = None
    ) -> None:
        self.jitted = jitted
        self.configs = configs
        self.warmup, self.rep = warmup, rep
        self.profile = profile or Profile()
        self.failures: list[tuple[Mapping[str, Any], Exception]] = []
        self.timings: list[tuple[Mapping[str, Any], float]] = []
        self._best: dict[Any, CompiledKernel] = {}
        self._measured: dict[Any, float] = jitted.__dict__.setdefault("_measured", {})

    def __content_parts__(self) -> tuple[Any, ...]:
        return (self.jitted, self.configs, self.warmup, self.rep)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        kernel = self.compile(*args, **kwargs)
        if not self.jitted.direct:
            return kernel
        jitted, config = self._parts(kernel.config or {})
        return jitted(*args, **{**kwargs, **config})

    def _parts(self, config: Mapping[str, Any]) -> tuple[Jit, dict[str, Any]]:
        """The function with the `pass_configs` of a configuration, and its arguments."""
        if "pass_configs" not in config or "pass_configs" in self.jitted.signature.parameters:
            return self.jitted, dict(config)
        rest = {n: v for n, v in config.items() if n != "pass_configs"}
        return self.jitted.configured(config["pass_configs"] or {}), rest

    def compile(self, *args: Any, **kwargs: Any) -> CompiledKernel:
        """The fastest kernel for these arguments; its `config` and `latency` say which and how
        fast. Arguments that are given are not tuned."""
        given = {**dict(zip(self.jitted.signature.parameters, args, strict=False)), **kwargs}
        if self.jitted.direct:
            given = {n: outline(v) for n, v in given.items()}
        asked = (*given, *(key_of(self.jitted.fn, n, v) for n, v in given.items()))
        configs = None if callable(self.configs) else content_key(self.configs)
        key = (self.jitted.context.key(), asked, configs)
        if key not in self._best:
            self._best[key] = self._search(args, kwargs, asked)
        return self._best[key]

    def _open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The configurations, each once, less the arguments that the call gives itself."""
        configs: Iterable[Mapping[str, Any]] = (
            self.configs(*args, **kwargs) if callable(self.configs) else self.configs
        )
        given = {*kwargs, *list(self.jitted.signature.parameters)[: len(args)]}
        found = [{n: v for n, v in config.items() if n not in given} for config in configs]
        return list({content_key(config): config for config in found}.values())

    def _measure(self, kernel: CompiledKernel, inputs: list[Any] | None) -> tuple[Any, ...]:
        """What a measurement is of: the kernel itself, whatever its factory went by, and how it
        is run."""
        looks = None if inputs is None else content_key([outline(v) for v in inputs])
        how = content_key((self.profile.supply_type, self.warmup, self.rep))
        return (kernel.target, kernel.ir(), looks, how)

    def _search(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], asked: Any
    ) -> CompiledKernel:
        configs = self._open(args, kwargs)
        if configs == [{}]:
            return self.jitted.compile(*args, **kwargs)
        best: tuple[float, CompiledKernel] | None = None
        self.failures, self.timings = [], []
        for config in configs:
            try:
                jitted, given = self._parts(config)
                kernel = jitted.compile(*args, **{**kwargs, **given})
                inputs = self.profile.inputs(kernel)
                profiler = kernel.get_profiler(self.profile.supply_type)
                self.profile.check(profiler, inputs)
                place = (*self._measure(kernel, inputs), asked)
                if place not in self._measured:
                    self._measured[place] = profiler.do_bench(
                        warmup=self.warmup, rep=self.rep, input_tensors=inputs
                    )
                ms = self._measured[place]
            except Exception as error:
                self.failures.append((config, error))
                continue
            self.timings.append((config, ms))
            if best is None or ms < best[0]:
                kernel.config, kernel.latency = config, ms
                best = (ms, kernel)
        if best is None:
            if self.failures:
                raise self.failures[0][1]
            raise CompileError(
                "autotune was given no configurations",
                expected="configs=[{…}, …], or a function that returns them",
                fix="give it at least one, e.g. configs=[{'block_M': 128}, {'block_M': 64}]",
            )
        return best[1]


@dataclass
class Profile:
    """How configurations are tried: on which inputs, and against which reference."""

    supply_type: Any = "auto"
    supply_prog: Callable[[Any], Sequence[Any]] | None = None
    ref_prog: Callable[..., Any] | None = None
    rtol: float = 1e-2
    atol: float = 1e-2
    max_mismatched_ratio: float = 0.01
    skip_check: bool = False

    @staticmethod
    def of(words: Mapping[str, Any]) -> Profile:
        """Of options, those that are known."""
        return Profile(**{n: v for n, v in words.items() if n in Profile.__dataclass_fields__})

    def inputs(self, kernel: CompiledKernel) -> list[Any] | None:
        """The inputs that were given; None: they are made."""
        given = _INPUTS.get()
        if given is None and self.supply_prog is not None:
            launcher = kernel.launcher
            return list(self.supply_prog([launcher.params[i] for i in launcher.inputs]))
        return None if given is None else list(given)

    def check(self, profiler: Any, inputs: list[Any] | None) -> None:
        """Raise where the kernel and the reference differ."""
        if self.ref_prog is not None and not self.skip_check:
            profiler.assert_allclose(
                self.ref_prog, inputs, rtol=self.rtol, atol=self.atol,
                max_mismatched_ratio=self.max_mismatched_ratio,
            )  # fmt: skip


@dataclass(frozen=True)
class AutotuneResult:
    """The fastest configuration: its kernel, `config`, and `latency` in milliseconds."""

    latency: float
    config: Mapping[str, Any]
    kernel: CompiledKernel
    ref_latency: float | None = None

    @property
    def func(self) -> Any:
        """The kernel's program."""
        return self.kernel.program

    @property
    def libcode(self) -> str:
        return self.kernel.get_kernel_source()


class AutoTuner:
    """Tuning a factory step by step, as TileLang's scripts do.

    >>> def double(block=64):
    ...     @T.prim_func
    ...     def main(A: T.Tensor((1000,), "float32"), B: T.Tensor((1000,), "float32")):
    ...         with T.Kernel(T.ceildiv(1000, block)) as bx:
    ...             for i in T.Parallel(block):
    ...                 B[bx * block + i] = A[bx * block + i] * 2
    ...     return main
    >>> tuner = tw.AutoTuner.from_kernel(kernel=double, configs=[{"block": 64}, {"block": 128}])
    >>> tuner = tuner.set_compile_args(out_idx=[-1], target="cpu")
    >>> result = tuner.set_profile_args(ref_prog=lambda a: a * 2).run(warmup=1, rep=1)
    >>> result.config["block"] in (64, 128), result.latency > 0
    (True, True)
    """

    def __init__(self, kernel: Any, configs: Any) -> None:
        self.kernel, self.configs = kernel, configs
        self._compile: dict[str, Any] = {}
        self._profile = Profile()

    @classmethod
    def from_kernel(cls, kernel: Any, configs: Any) -> AutoTuner:
        """A tuner of a factory, plain or jitted, over configurations of its arguments. One that
        has `pass_configs` is compiled with these too."""
        return cls(kernel, configs)

    def set_compile_args(
        self, out_idx: Any = None, target: Any = "auto", pass_configs: Any = None, **others: Any
    ) -> AutoTuner:
        """What `tw.jit` takes."""
        self._compile = {"out_idx": out_idx, "target": target, "pass_configs": pass_configs}
        return self

    def set_profile_args(self, **profile: Any) -> AutoTuner:
        """`supply_type`, `supply_prog`, `ref_prog`, `rtol`, `atol`, `max_mismatched_ratio` and
        `skip_check`: how configurations are tried. One that differs from the reference is set
        aside."""
        self._profile = Profile.of(profile)
        return self

    def run(self, warmup: float = 25, rep: float = 100, timeout: float | None = None) -> Any:
        """The fastest configuration that is right."""
        jitted = self.kernel.jitted if isinstance(self.kernel, Autotuned) else self.kernel
        if not isinstance(jitted, Jit):
            jitted = Jit(jitted, **self._compile)
        tuned = Autotuned(jitted, self.configs, warmup, rep, self._profile)
        kernel = tuned.compile()
        reference = None
        if self._profile.ref_prog is not None:
            profiler = kernel.get_profiler(self._profile.supply_type)
            reference = profiler.do_bench(
                self._profile.ref_prog, warmup, rep, input_tensors=self._profile.inputs(kernel)
            )
        return AutotuneResult(kernel.latency or 0.0, kernel.config or {}, kernel, reference)


def autotune(
    fn: Any = None, *, configs: Any = (), warmup: float = 10, rep: float = 30, **profile: Any
) -> Any:
    """Over a kernel that leaves sizes open: measure what may be chosen for them, once for each set
    of shapes, and keep that between processes (see `tilewright tune`). Over a jitted factory: call
    it without the tuned arguments.

    >>> @tw.autotune
    ... @tw.jit(target="cpu")
    ... def double(A):
    ...     N = T.const("N")
    ...     A: T.Tensor((N,), "float32")
    ...     B = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         B[n] = A[n] * 2
    ...     return B
    >>> double  # the first call measures
    <kernel function double(A) for cpu>

    Each configuration is compiled, run and timed; the fastest kernel is returned, with what was
    chosen in `config`. One that does not compile is left out, and with `ref_prog=` one that
    differs from the reference. A configuration may have `pass_configs` besides arguments:
    `{"block": 64, "pass_configs": {"roles": False}}`.

    >>> @tw.autotune(configs=[{"block": 64}, {"block": 128}], warmup=1, rep=1)
    ... @tw.jit
    ... def double(N, block):
    ...     @T.prim_func
    ...     def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    ...         with T.Kernel(T.ceildiv(N, block)) as bx:
    ...             for i in T.Parallel(block):
    ...                 B[bx * block + i] = A[bx * block + i] * 2
    ...     return main
    >>> kernel = double(1000)
    >>> kernel.config["block"] in (64, 128)
    True
    """

    def decorate(jitted: Jit | Callable[..., Any]) -> Jit | Autotuned:
        factory = jitted if isinstance(jitted, Jit) else Jit(jitted)
        if factory.direct and configs == ():
            if profile:
                raise CompileError(
                    f"autotune without configs has no {', '.join(profile)}",
                    expected="a kernel alone: results are compared with the model's choice",
                    fix="leave it out, or give configs=[…]",
                )
            return factory.tuned_by(tune_watched)
        return Autotuned(factory, configs, warmup, rep, Profile.of(profile))

    return decorate(fn) if fn is not None else decorate
