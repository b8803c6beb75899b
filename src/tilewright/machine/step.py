"""Running a program op by op: what debuggers stand on.

A `Stepper` is told before each op and when one fails; a `State` is what there is to see then.
Steps are wrapped while a kernel is compiled, so a run without a stepper pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import replace
from typing import Any

import numpy as np

from tilewright.ir.symbols import Symbols
from tilewright.ir.text import print_op
from tilewright.machine.core import *


class State:
    """A run that stands before an op. `names` is what the text's names stand for right now."""

    def __init__(self, kernel: Kernel, symbols: Symbols, frame: Frame, op: Op) -> None:
        self.kernel = kernel
        self.op = op
        self.block: tuple[int, ...] = tuple(frame.agent.block.index)
        self.role = frame.agent.partition.name
        self._symbols = symbols
        self._frame: Frame | None = frame

    @property
    def loc(self) -> Loc:
        assert self.op.loc is not None
        return self.op.loc

    @property
    def file(self) -> str:
        return self.loc.file

    @property
    def line(self) -> int:
        return self.loc.line

    @property
    def source(self) -> str:
        """The line of the kernel's text."""
        return self.loc.source.strip()

    @property
    def text(self) -> str:
        """The op, in the IR's text."""
        return print_op(self.op).splitlines()[0].rstrip(" {")

    @property
    def names(self) -> dict[str, Any]:
        """Copies: tiles and tensors as arrays, scalars as numbers, per-thread values as arrays
        over the threads, values inside a `T.Parallel` as arrays over its iterations."""
        return {n: v.copy() if isinstance(v, np.ndarray) else v for n, v in self.live().items()}

    @property
    def frame(self) -> Frame:
        if self._frame is None:
            raise RunError(
                "the run has gone on since this state", fix="keep what is needed of its names"
            )
        return self._frame

    def tiles(self) -> dict[str, Any]:
        """The memory itself, by the program's names."""
        bufs = self.frame.bufs.items()
        return {n: m.data[()] for n, m in bufs if m.space is not Space.BARRIER}

    def live(self) -> dict[str, Any]:
        """`names` with the memory itself, which may be written to."""
        frame, tiles = self.frame, self.tiles()
        found: dict[str, Any] = {**frame.vars, **tiles}
        evaluate = Evaluator()
        for symbol in self._symbols.visible(self.loc):
            name, value = symbol.name, symbol.value
            if isinstance(value, Buffer):
                found.update({name: tiles[value.name]} if value.name in tiles else {})
            elif isinstance(value, Expr):
                with suppress(KeyError, RunError):  # it does not exist here
                    found[name] = evaluate(value)(frame)
            elif not type(value).__module__.startswith("tilewright.lang."):
                found[name] = value  # others mean something only while a text is traced
        return found

    @property
    def closure(self) -> Mapping[str, Any]:
        return self._symbols.closure

    @property
    def scope(self) -> Mapping[str, Any]:
        """The globals of the kernel's text."""
        return self._symbols.scope

    def close(self) -> None:
        """The run goes on."""
        self._frame = None

    def __repr__(self) -> str:
        return f"<block {self.block} before {self.file}:{self.line}: {self.source or self.text}>"


class Stopped(BaseException):
    """Ends a run that is followed step by step; no error of the program's."""


class Stepper:
    """Told of each op: `before` it runs, and when it `failed`."""

    def __init__(self, symbols: Symbols) -> None:
        self.symbols = symbols
        self._failed: BaseException | None = None

    def before(self, state: State) -> None:
        """A run stands before `state.op`."""

    def failed(self, state: State, error: Exception) -> None:
        """`state.op` raised `error`, which goes on its way after this."""

    def wrap(self, kernel: Kernel) -> Callable[[Step], Step]:
        def wrap(step: Step) -> Step:
            op = step.op
            if op.loc is None or isinstance(op, Hint):
                return step

            def run(frame: Frame) -> Flow:
                state = State(kernel, self.symbols, frame, op)
                self.before(state)
                state.close()
                frame.op = op
                try:
                    if step.waits:
                        yield from step.run(frame)
                    else:
                        step.run(frame)
                except Exception as error:
                    self._tell(State(kernel, self.symbols, frame, op), error)
                    raise

            return replace(step, run=run, waits=True)

        return wrap

    def _tell(self, state: State, error: Exception) -> None:
        """Once, where the error was born."""
        if error is not self._failed:
            self._failed = error
            self.failed(state, error)
        state.close()
