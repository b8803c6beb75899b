"""`@tw.jit`, `tw.compile`, `tw.par_compile`, and their `pass_configs`: `diagnostic`, fields of a
target's schedule and numerics (`ir.schedule`), and the spellings that ported kernels bring."""

from __future__ import annotations

import dataclasses
import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from enum import Enum
from pathlib import Path
from typing import Any

from tilewright.choose.candidates import Candidate
from tilewright.ir.core import *
from tilewright.ir.schedule import HOME, Schedule
from tilewright.ir.target import Target
from tilewright.lang.trace import DirectTrace, PrimFunc, is_direct
from tilewright.runtime.backends import compiled_for, resolve, settings, traced_for
from tilewright.runtime.direct import KEPT, Direct, key_of
from tilewright.runtime.kernel import CompiledKernel
from tilewright.runtime.outputs import Shapes, in_shapes
from tilewright.support.content_key import Context, content_key
from tilewright.support.errors import entry, suggest, swap
from tilewright.support.key_rules import at_home

Tuner = Callable[["Jit", dict[str, Any], Mapping[str, int]], Any]
OutIdx = int | Sequence[int] | None
Launch = Callable[["Jit", tuple[Any, ...], dict[str, Any]], Any]
_LAUNCH: ContextVar[Launch | None] = ContextVar("launch", default=None)


@contextmanager
def launching(launch: Launch) -> Iterator[None]:
    """Another library calls the kernels of this context: its values have no memory yet."""
    token = _LAUNCH.set(launch)
    try:
        yield
    finally:
        _LAUNCH.reset(token)


class PassConfigKey(str, Enum):
    """Names that TileLang kernels use in `pass_configs`; `SPELLINGS` says what they mean here.

    >>> @tw.jit(pass_configs={tw.PassConfigKey.TL_ENABLE_FAST_MATH: True})
    ... def main(A):
    ...     A: T.Tensor((8,), "float32")
    ...     B = T.empty((8,), "float32")
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(8):
    ...             B[i] = T.exp(A[i])
    ...     return B
    >>> main(np.zeros(8, np.float32)).tolist()[:2]
    [1.0, 1.0]
    """

    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_DYNAMIC_TAIL_SPLIT = "tl.disable_dynamic_tail_split"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_OUT_OF_BOUND_WARNING = "tl.disable_out_of_bound_warning"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_FORCE_LET_INLINE = "tl.force_let_inline"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_SIMPLIFY = "tl.Simplify"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TIR_DISABLE_VECTORIZE = "tirx.disable_vectorize"
    TIR_DISABLE_CSE = "tirx.disable_cse_tir"
    TIR_USE_ASYNC_COPY = "tirx.use_async_copy"
    TIR_MERGE_STATIC_SMEM = "tirx.merge_static_smem"


# spelling → (our field, whether its truth is turned round)
SPELLINGS: dict[str, tuple[str, bool]] = {
    PassConfigKey.TL_ENABLE_FAST_MATH.value: ("fast_math", False),
    PassConfigKey.TL_DISABLE_FAST_MATH.value: ("fast_math", True),
    PassConfigKey.TL_DISABLE_WARP_SPECIALIZED.value: ("roles", True),
    PassConfigKey.TL_DISABLE_TMA_LOWER.value: ("bulk_copies", True),
}
_warned: set[str] = set()


def options_from(configs: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Fields out of `pass_configs`; what has no meaning here gets one warning."""
    options: dict[str, Any] = {}
    for key, value in (configs or {}).items():
        name = key.value if isinstance(key, Enum) else str(key)
        if name in SPELLINGS:
            name, turned = SPELLINGS[name]
            value = not value if turned else value
        if name in HOME or name == "diagnostic":
            options |= {} if value is None else {name: value}
        elif name not in _warned:
            _warned.add(name)
            known = ", ".join([n for n, home in HOME.items() if home != "internal"])
            warnings.warn(
                f"pass_configs: {name!r} has no meaning in Tilewright and is ignored "
                f"(known: {known}, diagnostic)",
                stacklevel=4,
            )
    return options


@entry
def compile(
    prim_func: PrimFunc | Program,
    out_idx: OutIdx = None,
    target: str | Target = "auto",
    pass_configs: Mapping[Any, Any] | None = None,
    compile_flags: Sequence[str] | None = None,
    verbose: bool = False,
    **others: Any,
) -> CompiledKernel:
    """Compile one `prim_func`, or a program read with `tw.parse_ir`.

    Parameters in `out_idx` are allocated by each call and returned. Targets are "auto" (a GPU if
    there is one, else the CPU), "cpu", "cuda", "interp" and "interp -sanitize".

    >>> @T.prim_func
    ... def double(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             B[i] = A[i] * 2
    >>> kernel = tw.compile(double, out_idx=[-1], target="interp")
    >>> kernel(np.arange(4, dtype=np.float32)).tolist()
    [0.0, 2.0, 4.0, 6.0]
    """
    program = prim_func.program if isinstance(prim_func, PrimFunc) else prim_func
    if not isinstance(program, Program):
        raise CompileError(
            "tw.compile takes a @T.prim_func",
            got=type(prim_func).__name__,
            fix="return the prim_func from the factory, or decorate the factory with @tw.jit",
            code="arguments",
        )
    _ignore("tw.compile", others)
    kernel = CompiledKernel(
        program, target=target, out_idx=out_idx, options=options_from(pass_configs)
    )
    if verbose:
        print(kernel.explain(), file=sys.stderr)
    return kernel


@entry
def par_compile(
    prim_funcs: Iterable[PrimFunc], num_workers: int | None = None, **kwargs: Any
) -> list[CompiledKernel]:
    """Compile many at once; the first failure is raised once all have been tried.

    >>> @T.prim_func
    ... def double(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             B[i] = A[i] * 2
    >>> [kernel.name for kernel in tw.par_compile([double, double], target="interp")]
    ['double', 'double']
    """
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(num_workers) as pool:
        futures = [pool.submit(compile, f, **kwargs) for f in prim_funcs]
    return [future.result() for future in futures]


class Jit:
    """A jitted function: a factory of a `prim_func`, or a kernel written directly."""

    def __init__(
        self,
        fn: Callable[..., Any],
        *,
        out_idx: OutIdx = None,
        target: str | Target = "auto",
        pass_configs: Mapping[Any, Any] | None = None,
        verbose: bool = False,
        debug_root_path: str | None = None,
        tuner: Tuner | None = None,
        choices: Mapping[int, Candidate] | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        # copies: what the caller does to theirs later changes no kernel
        self.out_idx = out_idx if out_idx is None or isinstance(out_idx, int) else [*out_idx]
        self.target = target
        self.pass_configs = pass_configs if pass_configs is None else dict(pass_configs)
        self.verbose = verbose
        self.debug_root_path = debug_root_path
        self.direct = is_direct(fn)
        self.signature = inspect.signature(fn)
        at_home(fn)
        self.context = Context(fn, look_inside=True)
        self.tuner, self.choices = tuner, choices
        tune = None if tuner is None else functools.partial(tuner, self)
        self.calls = Direct(fn, self._compile_direct, self._traced_for, self.context, tune, choices)
        self._kernels: dict[Any, Any] = self.calls.kernels if self.direct else {}
        self._others: dict[Any, Jit] = {}
        self._again: tuple[Any, dict[Any, tuple[Callable[..., Any], list[int]]]] = (None, {})

    def _traced_for(self) -> Target:
        return traced_for(self.target, options_from(self.pass_configs))

    def __repr__(self) -> str:
        kind = "kernel function" if self.direct else "kernel factory"
        return f"<{kind} {self.fn.__name__}{self.signature} for {self.target}>"

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.direct:
            launch = _LAUNCH.get()
            return self.calls(args, kwargs) if launch is None else launch(self, args, kwargs)
        return self.compile(*args, **kwargs)

    def again(self, args: Sequence[Any], inputs: Shapes, results: Shapes, key: Any = None) -> Any:
        """The results of a kernel written directly, whose arrays have the same shapes and types
        each time that `key` is the same: the kernel is looked up once, until settings change. It
        takes arrays in the shapes `inputs`, and gives those in `results`; None: as it is."""
        launch, now = _LAUNCH.get(), settings()
        if launch is not None:
            return in_shapes(launch(self, tuple(in_shapes(args, inputs)), {}), results)
        kept = self._again  # another thread may change settings
        if kept[0] != now or len(kept[1]) >= KEPT:
            kept = self._again = now, {}
        found = kept[1].get(key)
        if found is None:
            bound = self.calls.bind(tuple(in_shapes(args, inputs)), {})
            known, names = self.calls.known(bound), [*bound]
            places = [names.index(n) for n in known.arguments]
            shapes = [inputs[p] for p in places]
            call = known.kernel.in_shapes([args[p] for p in places], shapes, results)
            found = kept[1][key] = call, places
        call, places = found
        made = call(*[args[p] for p in places])
        return [made] if len(results) == 1 else made

    @entry
    def compile(self, *args: Any, **kwargs: Any) -> CompiledKernel:
        """The compiled kernel for these arguments, without running it. Of a kernel written
        directly, arrays may be without data (PyTorch's device "meta"), or left out and `T.const`
        sizes given by name: `rms_norm.compile(M=1024, N=512, blk_m=4)`. Its `.explain()` says what
        was chosen.
        """
        if self.direct:
            return self.calls.known(*self.calls.bind_some(args, kwargs)).kernel
        bound = self.calls.bind(args, kwargs)
        values = (key_of(self.fn, name, value) for name, value in bound.items())
        key = (self._traced_for(), self.context.key(), *values)
        kernel = self._kernels.get(key)
        if kernel is None:
            made = self.prim_func(*args, **kwargs).program
            kernel = self._kernels[key] = self._compile(made, self.out_idx)
        return kernel

    @entry
    def drafted(self, *args: Any, **kwargs: Any) -> tuple[Program, Mapping[str, str]]:
        """The program for these arguments, with the sizes that are chosen for it and, by kernel,
        what they were chosen from; not compiled."""
        if not self.direct:
            return self.prim_func(*args, **kwargs).program, {}
        traced = self.calls.trace(*self.calls.bind_some(args, kwargs))
        return traced.program, traced.why

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """The generated source of the kernel for these arguments."""
        return self.compile(*args, **kwargs).get_kernel_source()

    def on(self, target: str | Target) -> Jit:
        """The same function for another target: `softmax.on("interp -sanitize")(x)`."""
        return self if target == self.target else self._other(target, {})

    def with_schedule(self, schedule: Schedule | None = None, **fields: Any) -> Jit:
        """The same function with the fields of a schedule that are chosen, the others left open:
        `matmul.with_schedule(tiles={"m": 128}, stages=4)`, or those of a file,
        `matmul.with_schedule(Schedule.load("fast.json"))`."""
        told = schedule.told() if schedule is not None else {}
        known = [field.name for field in dataclasses.fields(Schedule)]
        for name in fields:
            if name not in known:
                raise CompileError(
                    f"a schedule has no field {name!r}",
                    expected=" or ".join(known),
                    fix=suggest(name, known)[0],
                    code="target",
                )
        return self.configured(Schedule(**{**told, **fields}).told())

    def configured(self, pass_configs: Mapping[Any, Any]) -> Jit:
        """The same function, compiled with these options besides its own."""
        return self._other(self.target, pass_configs)

    @property
    def compile_target(self) -> Target:
        """What kernels are compiled for, with all that was chosen."""
        return resolve(self.target, **options_from(self.pass_configs))

    def tuned_by(self, tuner: Tuner) -> Jit:
        """The same function, tuned by `tuner` before it is compiled."""
        return self._other(self.target, {}, tuner)

    def with_choices(self, choices: Mapping[int, Candidate]) -> Jit:
        """The same function with tiles, threads and clusters of some of its kernels, by number."""
        return self._other(self.target, {}, choices=choices)

    def _other(
        self,
        target: str | Target,
        pass_configs: Mapping[Any, Any],
        tuner: Tuner | None = None,
        choices: Mapping[int, Candidate] | None = None,
    ) -> Jit:
        key = target, content_key(dict(pass_configs)), tuner, tuple((choices or {}).items())
        if key not in self._others:
            self._others[key] = Jit(
                self.fn,
                out_idx=self.out_idx,
                target=target,
                pass_configs={**(self.pass_configs or {}), **pass_configs},
                verbose=self.verbose,
                debug_root_path=self.debug_root_path,
                tuner=tuner or self.tuner,
                choices=self.choices if choices is None else choices,
            )
        return self._others[key]

    @entry
    def as_torch_op(
        self,
        name: str | None = None,
        *,
        backward: Callable[..., Any] | None = None,
        setup_context: Callable[..., Any] | None = None,
        **arguments: Any,
    ) -> Any:
        """An operator of PyTorch: see `CompiledKernel.as_torch_op`.

        Of a factory, that of the kernel for these `arguments`. Of a kernel written directly, they
        are its compile-time parameters, and the operator takes what is left; it is compiled for
        the sizes that come. Should its text refuse the sizes of 128 with which it is read once,
        give others by name: `rms_norm.as_torch_op("mylib::rms_norm", blk_m=4, M=64, N=64)`.
        """
        formulas = {"backward": backward, "setup_context": setup_context}
        if not self.direct:
            return self.compile(**arguments).as_torch_op(name, **formulas)
        return self.calls.as_torch_op(
            name or self.fn.__name__, arguments, resolve(self.target), formulas
        )

    @entry
    def prim_func(self, *args: Any, **kwargs: Any) -> PrimFunc:
        """What the factory returns for these arguments, traced but not compiled."""
        with compiled_for(self._traced_for()):
            made = self.fn(*args, **kwargs)
        if not isinstance(made, PrimFunc):
            raise CompileError(
                f"{self.fn.__name__} must return a @T.prim_func",
                got=f"it returned {type(made).__name__}",
                fix="add `return <the prim_func>` at the end of the factory",
                code="arguments",
            )
        return made

    get_tir = prim_func

    def __content_parts__(self) -> tuple[Any, ...]:
        return (self.fn, self.out_idx, str(self.target), self.pass_configs)

    def _compile(self, made: Program, out_idx: OutIdx) -> CompiledKernel:
        kernel = compile(
            made,
            out_idx=out_idx,
            target=self.target,
            pass_configs=self.pass_configs,
            verbose=self.verbose,
        )
        if self.debug_root_path:
            folder = Path(self.debug_root_path)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{kernel.name}.tw").write_text(kernel.ir())
            (folder / f"{kernel.name}.source").write_text(kernel.get_kernel_source())
        return kernel

    def _compile_direct(self, traced: DirectTrace) -> CompiledKernel:
        names = [p.name for p in traced.program.params]
        kernel = self._compile(traced.program, [names.index(o) for o in traced.outputs])
        kernel.chosen = traced.why
        return kernel

    def par_compile(self, configs: Iterable[Any], **kwargs: Any) -> list[CompiledKernel]:
        """One kernel per configuration (a mapping, or a tuple of positional arguments)."""
        made = [
            self.prim_func(**c) if isinstance(c, Mapping) else self.prim_func(*c) for c in configs
        ]
        return par_compile(
            made, out_idx=self.out_idx, target=self.target, pass_configs=self.pass_configs
        )


@entry
def jit(
    fn: Callable[..., Any] | None = None,
    *,
    out_idx: OutIdx = None,
    target: str | Target = "auto",
    pass_configs: Mapping[Any, Any] | None = None,
    compile_flags: Sequence[str] | None = None,
    verbose: bool = False,
    debug_root_path: str | None = None,
    **others: Any,
) -> Any:
    """Compile a kernel when it is first called, once per distinct values that its text reads.

    Arguments, closures and globals count, by type and content; a value that cannot be compared
    with those of later calls is refused.

    On a factory that returns a `prim_func`, calling it gives the compiled kernel; on a function
    that *is* the kernel (it opens `T.tile` or `T.Kernel` itself), calling it runs it and returns
    what it returns.

    >>> @tw.jit
    ... def double(X):
    ...     N = T.const("N")
    ...     X: T.Tensor((N,), "float32")
    ...     Y = T.empty((N,), "float32")
    ...     for n in T.tile(N):
    ...         Y[n] = X[n] * 2
    ...     return Y
    >>> double(np.arange(3, dtype=np.float32)).tolist()
    [0.0, 2.0, 4.0]
    >>> kernel = double.on("cpu").with_schedule(tiles={"n": 64}).compile(N=1000)
    >>> print(kernel.explain())
    double for cpu
      kernel double: grid 16, 128 threads
    ...

    >>> @tw.jit(out_idx=[-1], target="interp")
    ... def scale(N, by):
    ...     @T.prim_func
    ...     def main(A: T.Tensor((N,), "float32"), B: T.Tensor((N,), "float32")):
    ...         with T.Kernel(T.ceildiv(N, 128)) as bx:
    ...             for i in T.Parallel(128):
    ...                 B[bx * 128 + i] = A[bx * 128 + i] * by
    ...     return main
    >>> kernel = scale(3, by=10)
    >>> kernel(np.arange(3, dtype=np.float32)).tolist()
    [0.0, 10.0, 20.0]
    """
    _ignore("tw.jit", others)

    def decorate(function: Callable[..., Any]) -> Jit:
        if not callable(function):
            raise CompileError(
                "tw.jit takes a function",
                got=type(function).__name__,
                fix="write @tw.jit above the `def` of a factory or a kernel",
                code="arguments",
            )
        return Jit(
            function,
            out_idx=out_idx,
            target=target,
            pass_configs=pass_configs,
            verbose=verbose,
            debug_root_path=debug_root_path,
        )

    return decorate(fn) if fn is not None else decorate


_OPTIONS = (
    "out_idx", "target", "pass_configs", "compile_flags", "verbose", "debug_root_path",
)  # fmt: skip


def _ignore(word: str, others: Mapping[str, Any]) -> None:
    """Options of other dialects get a warning; a misspelt one of ours is an error."""
    for name in others:
        close = difflib.get_close_matches(name, _OPTIONS, 1, 0.75)
        if close:
            raise CompileError(
                f"{word} has no option {name!r}",
                expected=", ".join(_OPTIONS),
                fix=f"did you mean {close[0]!r}?",
                repair=swap(name, close[0]),
                code="arguments",
            )
        warnings.warn(f"{word}: {name!r} has no meaning in Tilewright and is ignored", stacklevel=4)
