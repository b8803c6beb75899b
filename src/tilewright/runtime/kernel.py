"""A compiled kernel: call it, look at it, time it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import TYPE_CHECKING, Any, Literal, overload

from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Program, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import print_program
from tilewright.runtime.arrays import are_on_host
from tilewright.runtime.backends import build, resolve
from tilewright.runtime.configs import choices_from
from tilewright.runtime.launch import Launcher
from tilewright.support import env
from tilewright.support.errors import CompileError, entry

if TYPE_CHECKING:
    from tilewright.runtime.bench import Profiler


class CompiledKernel:
    """What `tw.compile` and a jitted factory return.

    >>> kernel = tw.compile(prim_func)          # doctest: +SKIP
    >>> kernel(a, b, c)                         # doctest: +SKIP
    """

    # what a call runs: a slot, so that nothing stands between the caller and a generated launch
    __slots__ = ("__call__", "__dict__", "__weakref__")
    __call__: Callable[..., Any]

    config: Mapping[str, Any] | None = None  # what autotune chose, and how fast it was
    latency: float | None = None

    def __init__(
        self,
        program: Program,
        *,
        target: str | Target = "auto",
        out_idx: int | Sequence[int] | None = None,
        options: Mapping[str, Any] | None = None,
    ) -> None:
        self.program = program
        self.options = dict(options or {})
        self.target = resolve(
            target,
            diagnostic=bool(self.options.get("diagnostic")),
            choices=choices_from(self.options),
        )
        # nobody asked for a GPU: arrays in host memory are then the CPU's
        self.follows_arrays = target == "auto" and not env.TARGET()
        self._on_cpu: CompiledKernel | None = None
        indices = [out_idx] if isinstance(out_idx, int) else list(out_idx or [])
        self.launcher = Launcher(program, indices)
        self.executable = build(program, self.target)
        self.__call__ = self._first_launch if self.target.kind == "cuda" else self._run

    @entry
    def _run(self, *args: Any, **named: Any) -> Any:
        call = self.launcher.prepare(args, named)
        self.executable(call.args)
        for finish in call.after:
            finish()
        if not call.results:
            return None
        return call.results[0] if len(call.results) == 1 else list(call.results)

    def _first_launch(self, *args: Any, **named: Any) -> Any:
        """On a GPU the executable checks device arrays itself. A kernel for `auto` that has not run
        there yet takes host arrays too, and runs on the CPU for them."""
        if self.follows_arrays and are_on_host((*args, *named.values())):
            if self._on_cpu is None:
                out = self.launcher.outputs
                self._on_cpu = CompiledKernel(
                    self.program, target="cpu", out_idx=out, options=self.options
                )
            return self._on_cpu(*args, **named)
        call = entry(self._cuda("a launch").caller)()
        if self.launcher.outputs:
            from tilewright.runtime.outputs import OutputMaker

            call = entry(OutputMaker(self.launcher, call))
        self.__call__ = call
        return call(*args, **named)

    @property
    def name(self) -> str:
        return self.program.name

    def get_kernel_source(self) -> str:
        """The generated source: LLVM IR for the CPU, CUDA C++ for CUDA, tile IR for interp."""
        return self.executable.source

    def ir(self, stage: str = "tile") -> str:
        """The IR as traced ('tile') or after a pass of that name."""
        if stage == "tile":
            return print_program(self.program)
        for name, program in reversed(self.executable.trace):
            if name == stage:
                return print_program(program)
        known = ", ".join(["tile", *(name for name, _ in self.executable.trace)])
        raise CompileError(f"no stage {stage!r} for {self.target}", expected=f"one of {known}")

    @overload
    def explain(self, as_dict: Literal[False] = False) -> str: ...

    @overload
    def explain(self, as_dict: Literal[True]) -> dict[str, Any]: ...

    def explain(self, as_dict: bool = False) -> str | dict[str, Any]:
        """What was decided for this kernel and why, in words: per op the instruction, the layout,
        what moves at once, sectors and bank conflicts, conversions and their cost; then registers
        and shared memory. `as_dict`: the same as plain data."""
        from tilewright.runtime.explain import explain, explanation

        figures: list[dict[str, Any]] = []
        if self.target.kind == "cuda":
            from tilewright.targets.cuda.occupancy import by_kernel

            figures = by_kernel(self._cuda("occupancy"))
        if as_dict:
            return explanation(self.name, self.target, self.executable.trace, figures)
        found = ", ".join(f"{key} {value}" for key, value in self.resources.items())
        more = f"a block takes: {found}"
        return explain(self.name, self.target, self.executable.trace, figures, more)

    @property
    def resources(self) -> dict[str, Any]:
        """What a block takes, of the most demanding kernel where there are several.

        Everywhere: `threads`, `shared_bytes`. On the CPU and in the interpreter: `fragment_bytes`.
        On CUDA, without a GPU: `registers` of a thread, `spill_bytes`, `local_bytes`, `cluster`,
        `blocks_per_sm` (how many fit a multiprocessor) and `occupancy` (the part of its threads
        that they fill)."""
        if self.target.kind == "cuda":
            from tilewright.targets.cuda.occupancy import summary

            return summary(self._cuda("occupancy"))
        found = {"shared_bytes": 0, "fragment_bytes": 0, "threads": 0}
        for kernel in self.program.kernels:
            sums = {Space.SHARED: 0, Space.FRAGMENT: 0}
            for op in walk_ops(kernel):
                if isinstance(op, Alloc) and op.buffer.space in sums:
                    sums[op.buffer.space] += op.buffer.bytes
            found["shared_bytes"] = max(found["shared_bytes"], sums[Space.SHARED])
            found["fragment_bytes"] = max(found["fragment_bytes"], sums[Space.FRAGMENT])
            found["threads"] = max(found["threads"], prod(kernel.threads))
        return found

    @property
    def ptx(self) -> str:
        """The PTX of a kernel for CUDA."""
        return str(self._cuda("PTX").ptx)

    @property
    def sass(self) -> str:
        """The machine code of a kernel for CUDA, disassembled."""
        from tilewright.targets.cuda.sass import disassemble

        return disassemble(self._cuda("SASS").cubin)

    def _cuda(self, what: str) -> Any:
        if self.target.kind != "cuda":
            raise CompileError(
                f"{what} exists for CUDA targets only; this kernel is for {self.target}"
            )
        return self.executable

    def get_profiler(self, tensor_supply_type: Any = "auto") -> Profiler:
        from tilewright.runtime.bench import Profiler

        return Profiler(self, tensor_supply_type)


JITKernel = CompiledKernel  # the name that ported programs annotate with
