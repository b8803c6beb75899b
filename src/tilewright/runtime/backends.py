"""Which code runs a program, by target; backends are imported when first used."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Protocol

from tilewright.ir.analysis.inside import check_inside
from tilewright.ir.core import *
from tilewright.ir.schedule import HOME
from tilewright.ir.target import Target
from tilewright.ir.text import parse_program
from tilewright.ir.verify import Stage, verify
from tilewright.lang.builder import CHOSEN
from tilewright.support import env


class Executable(Protocol):
    """What a backend returns: call it with checked arrays; `source` is what it generated."""

    @property
    def source(self) -> str: ...

    @property
    def trace(self) -> Sequence[tuple[str, Program]]: ...

    def __call__(self, args: Mapping[str, Any]) -> None: ...


class InterpExecutable:
    """The program itself, run by the interpreter."""

    def __init__(self, program: Program, target: Target) -> None:
        from tilewright.ir.text import print_program
        from tilewright.passes.run import Dump

        self.program = program
        self.sanitize = target.sanitize
        self.nan = target.nan or env.SANITIZE_NAN.on()
        self.source = print_program(program)
        self.trace: list[tuple[str, Program]] = [("tile", program)]
        self.made: tuple[str, ...] = ()  # tensors that each call makes
        self.kinds = {t.name: t.dtype for t in program.tensors}
        Dump(program, target).program("tile", program)

    def __call__(self, args: Mapping[str, Any]) -> None:
        from tilewright import machine
        from tilewright.machine.numbers import poison_fill

        for name in self.made if self.sanitize else ():
            if args[name].size:
                poison_fill(args[name], self.kinds[name])
        try:
            result = machine.run(
                self.program,
                dict(args),
                sanitize=self.sanitize,
                nan=self.nan,
                seed=int(env.SEED()),
                made=self.made,
            )
        except RecursionError as error:
            raise _too_large(self.program, "the interpreter", error) from error
        for warning in result.warnings:
            warning.give()


def _cpu(program: Program, target: Target) -> Executable:
    from tilewright.targets.cpu.kernel import compile_program

    return compile_program(program, target)


def _cuda(program: Program, target: Target) -> Executable:
    from tilewright.targets.cuda.kernel import compile_program

    return compile_program(program, target)


BACKENDS: dict[str, Callable[[Program, Target], Executable]] = {
    "interp": InterpExecutable,
    "cpu": _cpu,
    "cuda": _cuda,
}


def resolve(target: str | Target, **chosen: Any) -> Target:
    """'auto' → what TILEWRIGHT_TARGET says, else the GPU if there is one, else the CPU.
    TILEWRIGHT_SANITIZE=1 sends everything to the checking interpreter, TILEWRIGHT_DIAGNOSTIC=1
    makes builds for CUDA diagnostic. 'cuda' without `-arch` is the GPU's own architecture, sm_90a
    where there is none. `chosen`: `diagnostic`, and fields of the target's schedule and numerics.

    >>> tw.resolve("cuda").arch
    'sm_90a'
    """
    if env.SANITIZE.on():
        target = "interp -sanitize"
    elif target == "auto":
        target = env.TARGET() or _gpu() or "cpu"
    if isinstance(target, str) and target.split()[:1] == ["cuda"] and "-arch=" not in target:
        target = (_gpu() or "cuda") + target.strip().removeprefix("cuda")
    target = Target.parse(target)
    if target.kind != "cuda":
        chosen = {name: value for name, value in chosen.items() if HOME.get(name) == "numerics"}
    elif env.DIAGNOSTIC.on():
        chosen["diagnostic"] = True
    return target.choosing(**chosen) if chosen else target


_COMPILED_FOR: ContextVar[str | Target] = ContextVar("compiled_for", default="auto")


@contextmanager
def compiled_for(target: str | Target) -> Iterator[None]:
    """Kernels that are traced inside are compiled for `target`."""
    token = _COMPILED_FOR.set(target)
    chosen = CHOSEN.set(target if isinstance(target, Target) else CHOSEN.get())
    try:
        yield
    finally:
        _COMPILED_FOR.reset(token)
        CHOSEN.reset(chosen)


def traced_for(target: str | Target, options: Mapping[str, Any]) -> Target:
    """What a kernel's text may depend on: the target with all that is chosen, also the sizes of
    tiles on targets that have no schedule."""
    sizes = {n: options[n] for n in ("tiles", "threads", "cluster") if n in options}
    return resolve(target, **options).choosing(**sizes)


def current_target() -> Target:
    """What the kernel that is being traced is compiled for, so that a factory can choose its tiles
    by what the chip has; elsewhere what "auto" means.

    >>> @tw.jit(target="cuda -arch=sm_89")
    ... def scale(N):
    ...     block = 4096 if tw.current_target().chip.shared > 128 * 1024 else 2048
    ...     @T.prim_func
    ...     def main(A: T.Tensor((N,), "float32")):
    ...         with T.Kernel(T.ceildiv(N, block)) as bx:
    ...             for i in T.Parallel(block):
    ...                 A[bx * block + i] = A[bx * block + i] * 2
    ...     return main
    >>> int(scale.prim_func(8192).program.kernels[0].grid[0])
    4
    """
    return resolve(_COMPILED_FOR.get())


def settings() -> tuple[Any, ...]:
    """What of the environment `resolve` depends on, in as little time as it takes."""
    return tuple(map(env.ENVIRON.get, _SETTINGS))


_SETTINGS = [flag.key for flag in (env.SANITIZE, env.TARGET, env.DIAGNOSTIC)]


def _gpu() -> str | None:
    from tilewright.targets.cuda.detect import gpu_target

    return gpu_target()


def build(program: Program, target: Target) -> Executable:
    """The program for a target. What a target cannot do it says at the line that asks for it."""
    try:
        verify(program, Stage.TILE)
        check_inside(program)
        _check_multicast(program)
        return BACKENDS[target.kind](program, target)
    except CompileError as error:
        if not error.diagnostic.fix:
            error.diagnostic = replace(error.diagnostic, fix=f"{target.kind} {_LIMIT}")
        raise
    except (RecursionError, MemoryError) as error:
        raise _too_large(program, str(target), error) from error


def _check_multicast(program: Program) -> None:
    """A tile that comes from another block comes when it comes: its receivers wait on a barrier."""
    for op in walk_ops(program.kernels, Copy):
        if op.multicast is not None and op.barrier is None:
            raise CompileError(
                "a copy to several blocks needs a barrier on which they wait for it",
                loc=op.loc,
                expected="T.tma_copy(src, dst, barrier=bar, multicast=mask) with a "
                "T.alloc_cluster_barrier",
                got="a mask without a barrier",
                fix="leave the mask out: every block copies its own tile, and where blocks of a "
                "cluster copy the same one the compiler sends it to all of them",
            )


def _too_large(program: Program, target: str, error: Exception) -> CompileError:
    return CompileError(
        f"{program.name} is too large to compile for {target}: {type(error).__name__}",
        loc=next((kernel.loc for kernel in program.kernels if kernel.loc), program.loc),
        fix="use smaller tiles, and fewer loops and branches inside each other",
        code="too-large",
    )


_LIMIT = (
    "does not compile this yet: other tile sizes, another number of threads, or going through "
    "shared memory may avoid it; please report the kernel"
)


def parse_ir(text: str, file: str = "<ir>") -> Program:
    """A program from its text form, at any stage; `tw.compile` takes it.

    >>> parse_ir("program p { kernel k grid b in 1 threads t in 32 { } }").name
    'p'
    """
    return parse_program(text, file)
