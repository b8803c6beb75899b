"""`@tw.jit`, `tw.compile`, `tw.par_compile`."""

from __future__ import annotations

import difflib
import functools
import inspect
import sys
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import Any

from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.lang import PrimFunc, is_direct, trace_direct
from tilewright.runtime.configs import options_from
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import CompileError, entry

OutIdx = int | Sequence[int] | None


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

    >>> kernel = tw.compile(main, out_idx=[-1], target="cpu")   # doctest: +SKIP
    """
    program = prim_func.program if isinstance(prim_func, PrimFunc) else prim_func
    if not isinstance(program, Program):
        raise CompileError(
            "tw.compile takes a @T.prim_func",
            got=type(prim_func).__name__,
            fix="return the prim_func from the factory, or decorate the factory with @tw.jit",
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
    """Compile many at once; the first failure is raised once all have been tried."""
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
        compile_flags: Sequence[str] | None = None,
        verbose: bool = False,
        debug_root_path: str | None = None,
    ) -> None:
        functools.update_wrapper(self, fn)
        self.fn = fn
        self.out_idx = out_idx
        self.target = target
        self.pass_configs = pass_configs
        self.compile_flags = compile_flags
        self.verbose = verbose
        self.debug_root_path = debug_root_path
        self.direct = is_direct(fn)
        self.signature = inspect.signature(fn)
        self._kernels: dict[Any, Any] = {}
        self._others: dict[str | Target, Jit] = {}

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if self.direct:
            return self._call_direct(args, kwargs)
        return self.compile(*args, **kwargs)

    @entry
    def compile(self, *args: Any, **kwargs: Any) -> CompiledKernel:
        """The kernel for these arguments, without running it.

        Of a kernel written directly, arrays may be left out and `T.const` sizes given by name:
        `rms_norm.compile(M=1024, N=512, blk_m=4)`.
        """
        if self.direct:
            sizes = {n: v for n, v in kwargs.items() if n not in self.signature.parameters}
            given = {n: v for n, v in kwargs.items() if n not in sizes}
            return self._direct(self._bind(args, given, partial=True), sizes)[0]
        bound = self._bind(args, kwargs)
        key = (_target_key(self.target), _freeze(bound))
        kernel = self._kernels.get(key)
        if kernel is None:
            kernel = self._kernels[key] = self._compile(self.prim_func(*args, **kwargs))
        return kernel

    def get_kernel_source(self, *args: Any, **kwargs: Any) -> str:
        """The generated source of the kernel for these arguments."""
        return self.compile(*args, **kwargs).get_kernel_source()

    def on(self, target: str | Target) -> Jit:
        """The same function for another target.

        >>> softmax.on("interp -sanitize")(64, 128)     # doctest: +SKIP
        """
        if target == self.target:
            return self
        if target not in self._others:
            self._others[target] = Jit(
                self.fn,
                out_idx=self.out_idx,
                target=target,
                pass_configs=self.pass_configs,
                compile_flags=self.compile_flags,
                verbose=self.verbose,
                debug_root_path=self.debug_root_path,
            )
        return self._others[target]

    @entry
    def prim_func(self, *args: Any, **kwargs: Any) -> PrimFunc:
        """What the factory returns for these arguments, traced but not compiled."""
        made = self.fn(*args, **kwargs)
        if not isinstance(made, PrimFunc):
            raise CompileError(
                f"{self.fn.__name__} must return a @T.prim_func",
                got=f"it returned {type(made).__name__}",
                fix="add `return <the prim_func>` at the end of the factory",
            )
        return made

    get_tir = prim_func

    def _compile(self, made: PrimFunc) -> CompiledKernel:
        kernel = compile(
            made,
            out_idx=self.out_idx,
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

    def _bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], partial: bool = False
    ) -> dict[str, Any]:
        bind = self.signature.bind_partial if partial else self.signature.bind
        try:
            bound = bind(*args, **kwargs)
        except TypeError as error:
            raise CompileError(
                f"{self.fn.__name__}: {error}",
                expected=f"{self.fn.__name__}{self.signature}",
                fix="pass the arguments that its signature names",
            ) from None
        bound.apply_defaults()
        return dict(bound.arguments)

    def _direct(
        self, bound: dict[str, Any], sizes: Mapping[str, int] = MappingProxyType({})
    ) -> tuple[CompiledKernel, tuple[str, ...]]:
        outlined = {name: _outline(value) for name, value in bound.items()}
        key = (_target_key(self.target), _freeze(sizes), _freeze(outlined))
        found = self._kernels.get(key)
        if found is None:
            traced = trace_direct(self.fn, (), bound, sizes)
            names = [p.name for p in traced.program.params]
            kernel = CompiledKernel(
                traced.program,
                target=self.target,
                out_idx=[names.index(o) for o in traced.outputs],
                options=options_from(self.pass_configs),
            )
            found = self._kernels[key] = (kernel, tuple(traced.arguments))
        return found

    def _call_direct(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        bound = self._bind(args, kwargs)
        kernel, arguments = self._direct(bound)
        return kernel(*(bound[name] for name in arguments))

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
    """Compile a kernel when it is first called, once per distinct arguments.

    On a factory that returns a `prim_func`, calling it gives the compiled kernel; on a function
    that *is* the kernel (it opens `T.Kernel` itself), calling it runs it and returns what it
    returns.

    >>> @tw.jit(out_idx=[-1])                   # doctest: +SKIP
    ... def matmul(M, N, K): ...
    """
    _ignore("tw.jit", others)

    def decorate(function: Callable[..., Any]) -> Jit:
        return Jit(
            function,
            out_idx=out_idx,
            target=target,
            pass_configs=pass_configs,
            compile_flags=compile_flags,
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
            )
        warnings.warn(f"{word}: {name!r} has no meaning in Tilewright and is ignored", stacklevel=4)


def _is_array(value: Any) -> bool:
    return hasattr(value, "shape") and hasattr(value, "dtype")


def _target_key(target: str | Target) -> Any:
    from tilewright.runtime.backends import resolve

    return resolve(target)


def _outline(value: Any) -> Any:
    """An array's shape and type, which are all that a kernel written directly depends on."""
    return (tuple(value.shape), str(value.dtype)) if _is_array(value) else value


def _freeze(value: Any) -> Any:
    """A hashable stand-in that differs when the value does; types count (1 is not 1.0)."""
    if isinstance(value, Mapping):
        return tuple((k, _freeze(v)) for k, v in value.items())
    if isinstance(value, (list, tuple)):
        return (type(value).__name__, tuple(_freeze(v) for v in value))
    try:
        hash(value)
    except TypeError:
        return repr(value)
    return (type(value).__name__, value)
