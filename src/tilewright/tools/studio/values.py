"""A small run of the kernel's text in the interpreter: the tiles of one block after every op."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping
from typing import Any

import numpy as np

from tilewright import machine
from tilewright.ir.core import *
from tilewright.ir.symbols import symbols_of
from tilewright.machine import State, Stepper, Stopped
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import TilewrightError
from tilewright.tools.inputs import arguments
from tilewright.tools.studio.errors import error_told

STEPS, BYTES = 400, 700_000  # that are kept at most: of a kernel; of frames
SIDE = 64  # of a frame: of a larger tile every n-th row and column is kept
SCALES = 255  # values of a byte; the last says 'not a number'


class _Watcher(Stepper):
    """Keeps what each op of block 0 of every kernel changed."""

    def __init__(self, program: Program) -> None:
        super().__init__(symbols_of(program))
        self.kernel: Kernel | None = None
        self.begun = 0  # steps before those of the kernel
        self.steps: list[dict[str, Any]] = []
        self.frames: list[dict[str, Any]] = []
        self.known: dict[str, Any] = {}  # as they were last kept
        self.initial: dict[str, int] = {}
        self.bytes, self.full, self.truncated = 0, False, False  # of the kernel; of any
        self.failed_at: int | None = None

    def before(self, state: State) -> None:
        if any(state.block):
            return
        if state.kernel is not self.kernel:
            self.kernel, self.begun, self.full = state.kernel, len(self.steps), False
        self.look(state)
        if len(self.steps) - self.begun >= STEPS or self.bytes >= BYTES:
            self.full = self.truncated = True
            return
        self.steps.append(
            {
                "kernel": state.kernel.name,
                "line": state.line,
                "text": state.source,
                "op": state.text,
                "role": "" if state.role == "all threads" else state.role,
                "env": {n: _number(v) for n, v in state.frame.vars.items() if _is_scalar(v)},
                "changed": {},
            }
        )

    def failed(self, state: State, error: Exception) -> None:
        if not any(state.block):
            self.failed_at = max(0, len(self.steps) - 1)

    def look(self, state: State) -> None:
        """Frames of the tiles that the ops before have changed."""
        if self.full:
            return
        into = self.steps[-1]["changed"] if self.steps else self.initial
        for name, tile in self.tiles(state).items():
            before = self.known.get(name)
            if before is None or not _same(before, tile):
                self.known[name] = kept = tile.copy()
                into[name] = len(self.frames)
                self.frames.append(frame(kept))
                self.bytes += len(self.frames[-1]["b64"])

    def tiles(self, state: State) -> dict[str, Any]:
        """Tiles and tensors by their names in the text; others by those of the program."""
        seen = self.symbols.visible(state.loc)
        named = {s.value.name: s.name for s in seen if isinstance(s.value, Buffer)}
        tiles = state.tiles().items()
        return {named.get(n, n): tile for n, tile in tiles if tile.ndim and tile.size > 1}


def _same(a: Any, b: Any) -> bool:
    return bool(a.shape == b.shape and a.tobytes() == b.tobytes())


def _is_scalar(value: Any) -> bool:
    return isinstance(value, (int, float, np.integer, np.floating)) or (
        isinstance(value, np.ndarray) and not value.ndim and value.dtype.kind in "iuf"
    )


def _number(value: Any) -> int | float | None:
    number = np.asarray(value).item()
    return number if number == number and abs(number) != float("inf") else None


def frame(tile: Any) -> dict[str, Any]:
    """A tile as a heat map of 255 values, with exact figures of all of it."""
    numbers = np.asarray(tile).astype(np.float64)
    finite = np.isfinite(numbers)
    low, high = (float(f(numbers[finite])) if finite.any() else 0.0 for f in (np.min, np.max))
    flat = numbers.reshape(-1, numbers.shape[-1]) if numbers.ndim > 1 else numbers.reshape(1, -1)
    steps = [max(1, -(-n // SIDE)) for n in flat.shape]
    seen = flat[:: steps[0], :: steps[1]]
    span = (high - low) or 1.0
    scaled = np.round((np.nan_to_num(seen, nan=low, posinf=high, neginf=low) - low) / span
                      * (SCALES - 1))  # fmt: skip
    data = np.where(np.isfinite(seen), scaled, SCALES).astype(np.uint8)
    return {
        "shape": list(np.shape(tile)),
        "rows": list(seen.shape),
        "dtype": str(np.asarray(tile).dtype),
        "step": steps,
        "low": low,
        "high": high,
        "sum": float(numbers[finite].sum()),
        "nan": int(np.isnan(numbers).sum()),
        "inf": int(np.isinf(numbers).sum()),
        "b64": b64encode(data.tobytes()).decode(),
    }


def values(
    kernel: CompiledKernel, sizes: Mapping[str, int], chosen: Mapping[str, Any], seed: int = 0
) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """What the run left, and the error that ended it."""
    program = kernel.program
    case = {d.var.name: int(sizes.get(d.var.name, max(d.min, d.multiple_of))) for d in program.dims}
    given = arguments(program, case, "floats", seed, chosen)
    made = kernel.launcher.made
    for name in made:
        given[name] = np.zeros_like(given[name])
    watcher = _Watcher(program)
    error = None
    try:
        machine.run(program, given, sanitize=True, seed=seed, stepper=watcher, made=made)
    except TilewrightError as caught:
        error = error_told(caught, "run")
        error["step"] = watcher.failed_at
    except Stopped:
        pass
    written = {b.name for k in program.kernels for op in walk_ops(k) for b in written_buffers(op)
               if b.is_global}  # fmt: skip
    result = {}
    for name in sorted(written & set(given)):
        result[name] = {"sum": frame(given[name])["sum"], "frame": len(watcher.frames)}
        watcher.frames.append(frame(given[name]))
    told = {
        "sizes": {**case, **sizes},
        "seed": seed,
        "steps": watcher.steps,
        "initial": watcher.initial,
        "frames": watcher.frames,
        "truncated": watcher.truncated,
        "result": result,
    }
    return told, error
