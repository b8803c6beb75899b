"""A compiled kernel: call it, look at it, time it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload
from weakref import ref

from tilewright.ir.analysis.effects import check_deterministic
from tilewright.ir.buffer import Space
from tilewright.ir.op import Alloc, Program, walk_ops
from tilewright.ir.target import Target
from tilewright.ir.text import print_program, print_signature
from tilewright.runtime.backends import InterpExecutable, build, resolve
from tilewright.runtime.host_caller import Fixable, make_caller
from tilewright.runtime.launch import Launcher, OutputMaker
from tilewright.runtime.outputs import Shapes, in_shapes
from tilewright.support import env
from tilewright.support.errors import CompileError, entry
from tilewright.support.key_rules import Same
from tilewright.targets.arrays import are_on_host

if TYPE_CHECKING:
    from tilewright.inspect.picture import Picture
    from tilewright.inspect.trace import Trace
    from tilewright.runtime.bench import Profiler


class CompiledKernel:
    """What `tw.compile` and a jitted factory return: call it with arrays, look at it, time it.

    >>> @T.prim_func
    ... def double(A: T.Tensor((4,), "float32"), B: T.Tensor((4,), "float32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(4):
    ...             B[i] = A[i] * 2
    >>> kernel = tw.compile(double, target="cpu")
    >>> a, b = np.ones(4, np.float32), np.zeros(4, np.float32)
    >>> kernel(a, b)
    >>> b.tolist()
    [2.0, 2.0, 2.0, 2.0]
    >>> "define" in kernel.get_kernel_source()  # LLVM IR
    True
    >>> print(kernel.ir())
    program double {
      param A: float32[4] global
      ...
    """

    # what a call runs: a slot, so that nothing stands between the caller and a generated launch
    __slots__ = ("__call__", "__dict__", "__weakref__")
    __call__: Callable[..., Any]

    config: Mapping[str, Any] | None = None  # what autotune chose, and how fast it was
    latency: float | None = None
    _stamped: CompiledKernel | None = None  # the traced build
    _traced: Trace | None = None  # what it left last

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
        self.target = resolve(target, **self.options)
        if self.target.numerics.deterministic:
            check_deterministic(program)
        self.chosen: Mapping[str, str] = {}  # by kernel: what its tiles were chosen from
        # nobody asked for a GPU: arrays in host memory are then the CPU's
        self.follows_arrays = target == "auto" and not env.TARGET()
        self._on_cpu: CompiledKernel | None = None
        indices = [out_idx] if isinstance(out_idx, int) else list(out_idx or [])
        self.launcher = Launcher(program, indices)
        self.executable = build(program, self.target)
        if isinstance(self.executable, InterpExecutable):
            self.executable.made = self.launcher.made
        self.__call__ = self._caller()

    def __content_parts__(self) -> tuple[Any, ...]:
        return (Same(self),)

    def __repr__(self) -> str:
        return f"<kernel {print_signature(self.program)} for {self.target}>"

    def _caller(self) -> Callable[..., Any]:
        """What does not hold the kernel, which would live until garbage is collected."""
        launcher, executable, this = self.launcher, self.executable, ref(self)

        def first_launch(*args: Any, **named: Any) -> Any:
            kernel = this()
            assert kernel is not None, "whoever calls a kernel holds it"
            return kernel._first_launch(*args, **named)

        @entry
        def first_call(*args: Any, **named: Any) -> Any:
            """The generated function takes longer to make than code to load: some are never
            called."""
            call = make_caller(launcher, cast("Fixable", executable))
            if (kernel := this()) is not None:
                kernel.__call__ = call
            return call(*args, **named)

        @entry
        def run(*args: Any, **named: Any) -> Any:
            call = launcher.prepare(args, named)
            executable(call.args)
            return call.finish()

        return {"cuda": first_launch, "cpu": first_call}.get(self.target.kind, run)

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
            call = OutputMaker(self.launcher, call).caller()
        self.__call__ = call
        return call(*args, **named)

    def in_shapes(self, like: Sequence[Any], inputs: Shapes, results: Shapes) -> Callable[..., Any]:
        """The kernel as a function of arrays like these, which it takes in the shapes `inputs`, and
        whose results have the shapes `results`."""
        if all(shape is None for shape in (*inputs, *results)):
            return self
        on_gpu = self.target.kind == "cuda" and not (self.follows_arrays and are_on_host(like))
        if on_gpu and not self.launcher.dynamic:
            shapes = {t.name: t.static_shape for t in self.program.tensors}
            launch = self._cuda("a launch").caller(shapes)
            return OutputMaker(self.launcher, launch, results).caller()

        def call(*args: Any) -> Any:
            found = in_shapes(self(*in_shapes(args, inputs)), results)
            return found[0] if len(results) == 1 else found

        return call

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
        known = ", ".join(dict.fromkeys(["tile", *(name for name, _ in self.executable.trace)]))
        raise CompileError(
            f"no stage {stage!r} for {self.target}",
            expected=f"one of {known}",
            fix="name one of these",
        )

    @overload
    def explain(self, as_dict: Literal[False] = False) -> str: ...

    @overload
    def explain(self, as_dict: Literal[True]) -> dict[str, Any]: ...

    def explain(self, as_dict: bool = False) -> str | dict[str, Any]:
        """What was decided for this kernel and why, in words: per op the instruction, the layout,
        what moves at once, sectors and bank conflicts, conversions and their cost; then registers
        and shared memory, and a timeline: modelled, and beside it as `trace` measured it last.
        `as_dict`: the same as plain data."""
        from tilewright.inspect.explain import explanation, in_words

        figures: list[dict[str, Any]] = []
        if self.target.kind == "cuda":
            from tilewright.targets.cuda.kernel import by_kernel

            figures = by_kernel(self._cuda("occupancy"))
        measured = self._traced.timelines if self._traced is not None else None
        told = explanation(
            self.name, self.target, self.executable.trace, figures, measured, self.chosen
        )
        if as_dict:
            return told
        found = ", ".join(f"{key} {value}" for key, value in self.resources.items())
        more = f"a block takes: {found}"
        if missing := getattr(self.executable, "missing", None):
            more += f"; registers are known once it is compiled: {missing.diagnostic.fix}"
        return in_words(told, more)

    @entry
    def picture(self, of: str = "timeline") -> Picture:
        """What a notebook shows: two iterations of the main loop as they are modelled, or the
        layout of a tile by its name in `explain()`. An SVG; `str` is its text.

        >>> @tw.jit
        ... def matmul(A, B):
        ...     M, N, K = T.const("M, N, K")
        ...     A: T.Tensor((M, K), "float16")
        ...     B: T.Tensor((K, N), "float16")
        ...     C = T.empty((M, N), "float32")
        ...     for m, n in T.tile(M, N):
        ...         acc = T.zeros((m, n))
        ...         for k in T.tile(K):
        ...             acc += A[m, k] @ B[k, n]
        ...         C[m, n] = acc
        ...     return C
        >>> kernel = matmul.on("cuda -arch=sm_90a").compile(M=512, N=512, K=512)
        >>> "cycles an iteration" in str(kernel.picture())
        True
        """
        from tilewright.inspect.picture import picture

        return picture(self.executable.trace, self.explain(as_dict=True), of)

    @entry
    def trace(self, *args: Any, **named: Any) -> Trace:
        """Run the kernel on a GPU once in a build whose warps note the clock at their waits and
        ops, and return the measured timeline: `print` draws it beside the modelled one and names
        the largest differences, `save(path)` writes it for Perfetto; `result` is what the call
        returned. Of four blocks, the first 4094 stamps of each warpgroup count.

        >>> trace = kernel.trace(a, b)                                         # doctest: +SKIP
        >>> print(trace)                                                       # doctest: +SKIP
        >>> trace.save("trace.json")                                           # doctest: +SKIP
        """
        from tilewright.inspect.trace import trace_of
        from tilewright.targets.cuda.kernel import by_kernel

        if self.target.kind != "cuda" or self.target.diagnostic:
            raise CompileError(
                f"only an ordinary build for CUDA is traced; this kernel is for {self.target}",
                fix='compile it with target="cuda", not diagnostic, and run it on a GPU',
                code="target",
            )
        if self._stamped is None:
            self._stamped = CompiledKernel(
                self.program,
                target=self.target.choosing(stamps=True),
                out_idx=self.launcher.outputs,
            )
        build: Any = self._stamped.executable
        pair: tuple[Any, ...] = (build, getattr(build, "otherwise", None))
        forms = [form for form in pair if hasattr(form, "module")]
        for form in forms:
            form.module.taken = ()
        result = self._stamped(*args, **named)
        ran = next((form for form in forms if form.module.taken), build)
        self._traced = trace_of(
            self.name, ran.target, ran.trace, ran.module.taken, by_kernel(ran), result
        )
        return self._traced

    @property
    def spills(self) -> bool:
        """Whether registers are known not to be enough."""
        if self.target.kind != "cuda" or getattr(self.executable, "missing", None):
            return False
        return bool(self.resources["spill_bytes"])

    @property
    def resources(self) -> dict[str, Any]:
        """What a block takes, of the most demanding kernel where there are several.

        Everywhere: `threads`, `shared_bytes`. On the CPU and in the interpreter: `fragment_bytes`.
        On CUDA, without a GPU: `registers` of a thread, `spill_bytes`, `local_bytes`, `cluster`,
        `blocks_per_sm` (how many fit a multiprocessor) and `occupancy` (the part of its threads
        that they fill). Without NVRTC `threads`, `shared_bytes` and `cluster` are known; the others
        say what is missing."""
        if self.target.kind == "cuda":
            from tilewright.targets.cuda.kernel import summary

            known = getattr(self.executable, "figures", None)
            return summary(self._cuda("occupancy")) if known is None else known
        found = {"shared_bytes": 0, "fragment_bytes": 0, "threads": 0}
        for kernel in self.program.kernels:
            sums = {Space.SHARED: 0, Space.FRAGMENT: 0}
            for op in walk_ops(kernel, Alloc):
                if op.buffer.space in sums:
                    sums[op.buffer.space] += op.buffer.bytes
            found["shared_bytes"] = max(found["shared_bytes"], sums[Space.SHARED])
            found["fragment_bytes"] = max(found["fragment_bytes"], sums[Space.FRAGMENT])
            found["threads"] = max(found["threads"], kernel.thread_count)
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
                f"{what} exists for CUDA targets only; this kernel is for {self.target}",
                fix='compile it with target="cuda", which needs no GPU',
                code="target",
            )
        return self.executable

    @entry
    def as_torch_op(
        self,
        name: str | None = None,
        *,
        backward: Callable[..., Any] | None = None,
        setup_context: Callable[..., Any] | None = None,
    ) -> Any:
        """The kernel as an operator of PyTorch: `torch.compile` keeps it in its graphs, and
        autograd differentiates it where `backward` says how.

        `name` is "library::name", or a plain name in the library `tilewright`; the operator is
        also `torch.ops.library.name`. Its arguments are the kernel's. Parameters that the kernel
        writes are declared as mutated; those it makes (`out_idx`, `T.empty`) are what it returns.
        `backward(ctx, *grads)` returns one gradient, or None, per argument, and
        `setup_context(ctx, inputs, output)` saves what it needs, as `torch.library` has them.

        >>> n = T.dynamic("n")
        >>> @T.prim_func
        ... def double(A: T.Tensor((n,), "float32"), B: T.Tensor((n,), "float32")):
        ...     with T.Kernel(T.ceildiv(n, 128)) as bx:
        ...         for i in T.Parallel(128):
        ...             B[bx * 128 + i] = A[bx * 128 + i] * 2
        >>> kernel = tw.compile(double, out_idx=[-1], target="cpu")
        >>> import torch                                                       # doctest: +SKIP
        >>> op = kernel.as_torch_op("mylib::double",
        ...                         backward=lambda ctx, grad: grad * 2)      # doctest: +SKIP
        >>> x = torch.ones(3, requires_grad=True)                              # doctest: +SKIP
        >>> torch.compile(op)(x).sum().backward()                              # doctest: +SKIP
        >>> x.grad                                                             # doctest: +SKIP
        tensor([2., 2., 2.])
        """
        from tilewright.runtime.torch_op import define, form_of

        return define(
            name or self.name,
            form_of(self.launcher),
            self,
            device="cuda" if self.target.kind == "cuda" else "cpu",
            backward=backward,
            setup_context=setup_context,
        )

    def get_profiler(self, tensor_supply_type: Any = "auto") -> Profiler:
        from tilewright.runtime.bench import Profiler

        return Profiler(self, tensor_supply_type)


JITKernel = CompiledKernel  # the name that ported programs annotate with
