"""`@tw.autotune`: try a factory's configurations, keep the fastest that is right."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from tilewright.runtime.direct import key_of, outline
from tilewright.runtime.jit import Jit
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.content_key import content_key
from tilewright.support.errors import CompileError


class Autotuned:
    """A jitted factory whose missing arguments are found by measuring.

    A configuration that does not compile or run, for whatever reason (an `assert` in the factory
    included), is set aside with it (`failures`); only when none works is an error raised. What was
    measured is kept with the factory: a configuration that is added later is the only one to be
    timed.
    """

    def __init__(self, jitted: Jit, configs: Any, warmup: float, rep: float) -> None:
        self.jitted = jitted
        self.configs = configs
        self.warmup, self.rep = warmup, rep
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
        return self.jitted(*args, **{**kwargs, **(kernel.config or {})})

    def compile(self, *args: Any, **kwargs: Any) -> CompiledKernel:
        """The fastest kernel for these arguments; its `config` and `latency` say which and how
        fast. Arguments that are given are not tuned."""
        given = {**dict(zip(self.jitted.signature.parameters, args, strict=False)), **kwargs}
        if self.jitted.direct:
            given = {n: outline(v) for n, v in given.items()}
        parts = (key_of(self.jitted.fn, n, v) for n, v in given.items())
        seen = (self.jitted.context.key(), *given, *parts)
        key = (seen, None if callable(self.configs) else content_key(self.configs))
        if key not in self._best:
            self._best[key] = self._search(args, kwargs, seen)
        return self._best[key]

    def _open(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> list[dict[str, Any]]:
        """The configurations, each once, less the arguments that the call gives itself."""
        configs: Iterable[Mapping[str, Any]] = (
            self.configs(*args, **kwargs) if callable(self.configs) else self.configs
        )
        given = {*kwargs, *list(self.jitted.signature.parameters)[: len(args)]}
        found = [{n: v for n, v in config.items() if n not in given} for config in configs]
        return list({content_key(config): config for config in found}.values())

    def _search(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], seen: Any
    ) -> CompiledKernel:
        configs = self._open(args, kwargs)
        if configs == [{}]:
            return self.jitted.compile(*args, **kwargs)
        best: tuple[float, CompiledKernel] | None = None
        self.failures, self.timings = [], []
        for config in configs:
            try:
                kernel = self.jitted.compile(*args, **{**kwargs, **config})
                place = (kernel.target, seen, content_key(config), self.warmup, self.rep)
                if place not in self._measured:
                    profiler = kernel.get_profiler()
                    self._measured[place] = profiler.do_bench(warmup=self.warmup, rep=self.rep)
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


def autotune(
    fn: Any = None, *, configs: Any = (), warmup: float = 10, rep: float = 30, **_: Any
) -> Any:
    """Over a jitted factory: call it without the tuned arguments.

    Each configuration is compiled, run and timed; the fastest kernel is returned, with what was
    chosen in `config`. One that does not compile is left out.

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

    def decorate(jitted: Jit | Callable[..., Any]) -> Autotuned:
        factory = jitted if isinstance(jitted, Jit) else Jit(jitted)
        return Autotuned(factory, configs, warmup, rep)

    return decorate(fn) if fn is not None else decorate
