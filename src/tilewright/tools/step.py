"""Running a kernel step by step: under `pdb`, or as states that a program looks at.

Both run the interpreter, which stands still before each op. Where `pdb` stops, it sees a frame at
the op's line of the kernel's text, whose variables are the tiles and scalars by their names there.
"""

from __future__ import annotations

import bdb
import pdb
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import lru_cache
from queue import SimpleQueue
from types import CodeType, FrameType
from typing import Any

from tilewright import machine
from tilewright.ir.op import Program
from tilewright.ir.symbols import symbols_of
from tilewright.lang.trace import PrimFunc
from tilewright.machine import State, Stepper, Stopped
from tilewright.runtime.jit import Jit
from tilewright.runtime.kernel import CompiledKernel
from tilewright.runtime.launch import Call, Launcher
from tilewright.support import env
from tilewright.support.errors import CompileError, Loc, TilewrightError, entry

Block = int | Sequence[int] | None


# ── what is run ──────────────────────────────────────────────────────────────────────────────


class _Subject:
    """A kernel with checked arguments."""

    def __init__(self, kernel: Any, args: Sequence[Any], named: Mapping[str, Any]) -> None:
        if isinstance(kernel, Jit) and kernel.direct:
            bound = kernel.calls.bind(tuple(args), named)
            known = kernel.calls.known(bound)
            kernel, args, named = known.kernel, [bound[name] for name in known.arguments], {}
        if isinstance(kernel, CompiledKernel):
            launcher = kernel.launcher
        elif isinstance(kernel, PrimFunc):
            launcher = Launcher(kernel.program, kernel.out_idx)
        elif isinstance(kernel, Program):
            launcher = Launcher(kernel, [])
        else:
            raise CompileError(
                "only kernels run step by step",
                expected="a compiled kernel, a @T.prim_func, a program, or a kernel under @tw.jit",
                got=type(kernel).__name__,
                fix="call the factory first: tw.debug(factory(M, N), a, b)"
                if isinstance(kernel, Jit)
                else "",
            )
        self.program = launcher.program
        self.made = launcher.made
        self.call: Call = launcher.prepare(args, dict(named))

    def run(self, stepper: Stepper, sanitize: bool, seed: int | None) -> Any:
        number = int(env.SEED()) if seed is None else seed
        given = dict(self.call.args)
        result = machine.run(
            self.program, given, sanitize=sanitize, seed=number, stepper=stepper, made=self.made
        )
        for warning in result.warnings:
            warning.give()
        return self.call.finish()


def _is_wanted(block: Block, state: State) -> bool:
    if block is None:
        return True
    wanted = (block,) if isinstance(block, int) else tuple(block)
    return wanted == state.block[: len(wanted)] and not any(state.block[len(wanted) :])


# ── states ───────────────────────────────────────────────────────────────────────────────────


class _Handover(Stepper):
    """Holds the run, which has a thread of its own, at each state until it is told to go on."""

    def __init__(self, program: Program, block: Block) -> None:
        super().__init__(symbols_of(program))
        self.block = block
        self.reached: SimpleQueue[State | BaseException | None] = SimpleQueue()
        self.go: SimpleQueue[bool] = SimpleQueue()

    def before(self, state: State) -> None:
        if _is_wanted(self.block, state):
            self.reached.put(state)
            if not self.go.get():
                raise Stopped


def trace_run(
    kernel: Any,
    *args: Any,
    block: Block = None,
    sanitize: bool = True,
    seed: int | None = None,
    **named: Any,
) -> Iterator[State]:
    """Run a kernel in the interpreter and give its state before every op.

    `block` gives the states of one block only; the others run too. An error of the kernel's is
    raised where the next state would have come.

    >>> @T.prim_func
    ... def prefix(A: T.Tensor((3,), "int32")):
    ...     with T.Kernel(1, threads=32):
    ...         total = T.alloc_var("int32", init=0)
    ...         for k in T.serial(3):
    ...             total += A[k]
    >>> states = tw.trace_run(prefix, np.array([1, 2, 3], np.int32))
    >>> [int(s.names["total"]) for s in states if "k" in s.names]
    [0, 1, 3]
    """
    subject = _Subject(kernel, args, named)
    stepper = _Handover(subject.program, block)

    def work() -> None:
        end: BaseException | None = None
        try:
            subject.run(stepper, sanitize, seed)
        except Stopped:
            pass
        except BaseException as error:
            end = error
        stepper.reached.put(end)

    thread = threading.Thread(target=work, daemon=True, name="tilewright-step")
    thread.start()
    going = True
    try:
        while isinstance(state := stepper.reached.get(), State):
            going = False
            yield state
            stepper.go.put(True)
            going = True
        if state is not None:
            raise state
    finally:
        if not going:
            stepper.go.put(False)
        thread.join()


# ── pdb ──────────────────────────────────────────────────────────────────────────────────────


@entry
def debug(
    kernel: Any,
    *args: Any,
    block: Block = None,
    breakpoints: Sequence[int | str] = (),
    sanitize: bool = True,
    seed: int | None = None,
    stdin: Any = None,
    stdout: Any = None,
    **named: Any,
) -> Any:
    """Run a kernel in the interpreter under `pdb`, which stops at the kernel's first line.

    `block` stops in one block only. With `breakpoints` (lines, or 'file:line') the run first stops
    there. Returns what the kernel returns, None when it was quit.

    >>> @T.prim_func
    ... def twice(A: T.Tensor((2,), "int32")):
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(2):
    ...             A[i] = A[i] * 2
    >>> import io
    >>> typed, shown = io.StringIO("s\\np i.tolist(), A.tolist()\\nc\\n"), io.StringIO()
    >>> tw.debug(twice, np.array([3, 4], np.int32), stdin=typed, stdout=shown)
    >>> "([0, 1], [3, 4])" in shown.getvalue()
    True
    """
    subject = _Subject(kernel, args, named)
    with _own_breakpoints():
        debugger = Debugger(subject.program, block, stdin, stdout)
        for place in breakpoints:
            debugger.add_breakpoint(place)
        try:
            result = subject.run(debugger, sanitize, seed)
        except Stopped:
            return None
        told = "" if block is None or debugger.met else f"; no op of block {block} ran"
        debugger.message(f"the kernel ran to its end{told}")
    return result


@contextmanager
def _own_breakpoints() -> Iterator[None]:
    """All debuggers of a process share one list of breakpoints: this one's are its own."""
    known = bdb.Breakpoint
    kept = known.next, known.bplist, known.bpbynumber
    known.next, known.bplist, known.bpbynumber = 1, {}, [None]
    try:
        yield
    finally:
        known.next, known.bplist, known.bpbynumber = kept


@lru_cache(256)
def _stop_at(file: str, line: int, name: str) -> CodeType:
    """Code that calls `__stop__` from a line of a file."""
    code = compile("\n" * (line - 1) + "__stop__()", file, "exec")
    return code.replace(co_name=name)


class _Displayed(dict[Any, dict[str, Any]]):
    """Expressions to be shown whenever their values change: pdb keeps them by frame, and a kernel
    has a new one at every stop."""

    def __init__(self) -> None:
        super().__init__()
        self.shared: dict[str, Any] = {}

    def get(self, frame: Any, default: Any = None) -> Any:
        return self.shared

    def setdefault(self, frame: Any, default: Any = None) -> Any:
        return self.shared

    def pop(self, frame: Any, default: Any = None) -> Any:
        self.shared.clear()


class Debugger(Stepper, pdb.Pdb):
    """pdb on the lines of a kernel's text: its commands, deciding where to stop by ops."""

    def __init__(self, program: Program, block: Block, stdin: Any = None, stdout: Any = None):
        Stepper.__init__(self, symbols_of(program))
        pdb.Pdb.__init__(self, stdin=stdin, stdout=stdout, nosigint=True)
        if stdin is not None:
            self.use_rawinput = False
        self.prompt = "(tw) "
        self.program = program
        self.block = block
        self.reset()
        self.wants: Callable[[State], bool] = lambda state: True
        self.state: State | None = None
        self.last: tuple[Any, ...] = ()  # the line that the run is in: file, line, calls, block
        self.met: set[int] = set()  # ops met on that line
        self.shown: tuple[int, ...] | None = None
        self.frames: list[FrameType] = []
        self.displaying: Any = _Displayed()
        self.texts: dict[str, str] = {}  # of what is displayed, when it was last shown

    def add_breakpoint(self, place: int | str) -> None:
        file, _, line = str(place).rpartition(":")
        loc = self.program.kernels[0].loc or self.program.loc
        error: Any = "the line is no number"
        if line.isdecimal():
            error = self.set_break(file or (loc.file if loc else ""), int(line))
        if error:
            raise CompileError(f"no breakpoint at {place}: {error}", code="arguments")
        self.wants = lambda state: False

    # ── the run ──────────────────────────────────────────────────────────────────────────────

    def before(self, state: State) -> None:
        if not _is_wanted(self.block, state):
            return
        # a line of several ops is one stop, until it is come to again
        here = (state.file, state.line, state.loc.callers, state.block, state.role)
        arrives = here != self.last or id(state.op) in self.met
        if arrives:
            self.last, self.met = here, set()
        self.met.add(id(state.op))
        if arrives:
            self.state = state
            self._inside(state, self._consider)

    def failed(self, state: State, error: Exception) -> None:
        self.state = state
        self.message(f"\n{error}\n\nThe run stands at the op that failed.")
        self._inside(state, self._show)

    def _consider(self, frame: FrameType) -> None:
        assert self.state is not None
        here = self.wants(self.state)
        if self.break_here(frame) or here:
            self._stop(frame)

    def _stop(self, frame: FrameType) -> None:
        self._show(frame)
        if self.quitting:
            raise Stopped

    def _show(self, frame: FrameType) -> None:
        assert self.state is not None
        if self.state.block != self.shown:
            self.shown = self.state.block
            role = "" if self.state.role == "all threads" else f", {self.state.role}"
            self.message(f"block {self.shown}{role}")
        self.user_line(frame)

    def _inside(self, state: State, then: Callable[[FrameType], None]) -> None:
        """`then`, called from frames at the state's line and at the calls that led there."""
        calls = [*reversed(state.loc.callers), state.loc]
        self.frames = []

        def enter(depth: int) -> None:
            loc = calls[depth]
            deepest = depth == len(calls) - 1
            names = {**state.closure, **state.live()} if deepest else dict(state.closure)

            def stop() -> None:
                self.frames.append(sys._getframe(1))
                if deepest:
                    names.pop("__stop__", None)
                    then(self.frames[-1])
                else:
                    enter(depth + 1)

            names["__stop__"] = stop
            name = state.kernel.name if depth == 0 else "macro"
            exec(_stop_at(loc.file, loc.line, name), dict(state.scope), names)

        enter(0)

    def get_stack(self, f: FrameType | None, t: Any) -> tuple[list[tuple[FrameType, int]], int]:
        """The kernel's frames; the interpreter's are none of the user's business."""
        return [(frame, frame.f_lineno) for frame in self.frames], len(self.frames) - 1

    def do_display(self, arg: str) -> Any:
        result = super().do_display(arg)
        self.texts |= {name: repr(v) for name, v in self.displaying.shared.items() if name == arg}
        return result

    def preloop(self) -> None:
        """Show what is displayed where it changed; tiles change in place, so texts are compared."""
        for name in self.displaying.shared:
            text = repr(self._getval_except(name))
            if self.texts.get(name) != text:
                self.message(f"display {name}: {text}")
            self.texts[name] = text

    _show_display = preloop

    # ── where to stop next: what pdb's commands ask for ──────────────────────────────────────

    def _depth(self) -> int:
        return len(self.state.loc.callers) if self.state is not None else 0

    def _line(self) -> Loc:
        assert self.state is not None
        return self.state.loc

    def set_step(self) -> None:
        self.wants = lambda state: True

    def set_next(self, frame: FrameType) -> None:
        depth = self._depth()
        self.wants = lambda state: len(state.loc.callers) <= depth

    def set_return(self, frame: FrameType) -> None:
        depth, block = self._depth(), self.state and self.state.block
        self.wants = lambda state: len(state.loc.callers) < depth or state.block != block

    def set_until(self, frame: FrameType, lineno: int | None = None) -> None:
        here, block = self._line(), self.state and self.state.block
        first = here.line + 1 if lineno is None else lineno
        self.wants = lambda state: (
            state.block != block
            or (
                state.file == here.file
                and state.line >= first
                and len(state.loc.callers) <= len(here.callers)
            )
        )

    def set_continue(self) -> None:
        self.wants = lambda state: False

    def set_trace(self, frame: FrameType | None = None, **_: Any) -> None:
        """Tracing of Python is not used: ops are reported by the interpreter."""

    def set_quit(self) -> None:
        self.quitting = True

    def do_jump(self, arg: str) -> None:
        self.error("a kernel runs forward only")

    do_j = do_jump


def run_command(found: Program, args: Mapping[str, Any], block: Block, stops: Sequence[str]) -> int:
    """`tilewright step`: debug a program on arguments made for it. The exit status."""
    try:
        debug(found, block=block, breakpoints=stops, **args)
    except TilewrightError as error:
        if error.diagnostic.code == "arguments":
            raise
        return 1  # shown where it happened
    return 0
