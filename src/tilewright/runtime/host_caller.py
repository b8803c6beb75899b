"""The function that users call on the CPU, generated for a kernel's parameters.

A checked launch of three arrays costs forty microseconds when each is looked at by general code.
But what the checks look at is a handful of facts: types, shapes, strides, element types, whether
an array may be written. So there are three roads, each the next one's
fallback:

1. Machine code compares NumPy's arrays with those of a call before (`native.call`).
2. The facts are those of a call that was checked before: they are the key under which its sizes
   and its launch are kept. PyTorch compares them in one call of its own (`guard_of`). What differs
   from call to call is looked at each time: that addresses are aligned, and that what is written
   lies outside the other arrays.
3. Everything else, and everything that is wrong: `Launcher.prepare`, whatever the library.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from operator import attrgetter
from types import CellType
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tilewright.ir.buffer import Buffer
from tilewright.ir.dtype import DType
from tilewright.ir.expr import Var
from tilewright.runtime.launch import Call, Launcher
from tilewright.runtime.outputs import torch_dtype
from tilewright.support.env import ENVIRON, NUM_THREADS
from tilewright.support.errors import entry
from tilewright.targets.arrays import torch_loaded
from tilewright.targets.torch_tensors import (
    MISSING,
    generated,
    guard_of,
    never,
    passed,
    write_counter,
)

KEPT = 1024  # checked calls that are remembered
WRITEABLE = 0x400  # among the flags of NumPy's arrays
DATA = 16  # bytes after which they have the address of their elements

# the types that struct reads as the full check does
_INTS = frozenset((int, bool, np.int64, np.int32, np.int16, np.int8))
_NUMBERS = {
    "float": _INTS | {float, np.float64, np.float32},
    "int": _INTS,
    "uint": _INTS,
    "bool": frozenset((bool,)),
}


if TYPE_CHECKING:
    from tilewright.targets.cpu.kernel import Fixed
    from tilewright.targets.cpu.native import Record


class Fixable(Protocol):
    """A compiled program that can be told its sizes once: see `CpuKernel`."""

    codes: Sequence[str]
    pack: Callable[..., bytes]

    def head(self, args: Mapping[str, Any]) -> bytes: ...

    def encode(self, i: int, value: Any) -> bytes: ...

    def fixed(self, sizes: Mapping[Var, int]) -> Callable[[bytes], None]: ...


def make_caller(launcher: Launcher, executable: Fixable) -> Callable[..., Any]:
    """The function for `launcher`'s parameters: it checks, runs, and returns what was made."""
    from tilewright.targets.cpu.native import python_function, reads_arrays  # and so LLVM

    made = _Maker(launcher, executable, reads_arrays())
    call = generated(made.text(), launcher.program.name, made.names)
    if made.scalars or not made.tensors or len(made.made) > 1 or not made.reads:
        return call
    function = python_function(call)
    made.cell = function.__self__  # type: ignore[attr-defined]
    return function


class _Maker:
    cell: CellType | None = None  # of machine code
    latest: Any = None  # of the calls that led there

    def __init__(self, launcher: Launcher, executable: Fixable, reads: bool) -> None:
        """`reads`: whether arrays have their fields where they are looked for."""
        self.launcher, self.executable, self.reads = launcher, executable, reads
        self.params = launcher.params
        self.given = [(f"x{i}", self.params[i]) for i in launcher.inputs]
        self.tensors = [(x, p) for x, p in self.given if isinstance(p, Buffer)]
        self.scalars = [(x, p) for x, p in self.given if isinstance(p, Var)]
        self.made = [
            (f"x{i}", p) for i in launcher.outputs if isinstance(p := self.params[i], Buffer)
        ]
        # a written array among the given, and another one
        names = [p.name for _, p in self.tensors]
        self.pairs = [
            (i, j)
            for j, other in enumerate(names)
            for i, name in enumerate(names)
            if name in launcher.written and i != j and (i < j or other not in launcher.written)
        ]
        # conversions at each call, and arrays nobody gave, are the second road's
        self.plain = all(not p.dtype.packed for p in launcher.program.tensors)
        self.names: dict[str, Any] = {
            "missing": MISSING, "ndarray": np.ndarray, "kept": {}, "recent": (never, None),
            "slow": entry(self.slow), "again": self.again, "pack": executable.pack,
            "wrong": (struct.error, OverflowError), "word": ctypes.c_size_t.from_address,
            "empty": np.empty, "encode": executable.encode,
        }  # fmt: skip

    # ── the third road ──────────────────────────────────────────────────────────────────────

    def slow(self, given: tuple[Any, ...], named: Mapping[str, Any], key: Any) -> Any:
        given = passed(given)
        call = self.launcher.prepare(given, named)
        run = self.executable.fixed(call.sizes)
        run(self.executable.head(call.args))
        if self.plain and not named:
            self.remember(run, call, given, key)
        return call.finish()

    def remember(self, run: Any, call: Call, given: Sequence[Any], key: Any) -> None:
        """`key`: the facts of NumPy's arrays; without one, those of PyTorch's tensors are found."""
        kept = self.names["kept"]
        kind: Callable[[DType], Any] = attrgetter("numpy")
        values = [v for v, (_, p) in zip(given, self.given, strict=True) if isinstance(p, Buffer)]
        facts = key
        if key is None:
            facts = self._facts(values) if values and call.library == "torch" else None
            if facts is None:
                return
            kind = torch_dtype
            self.names.update(torch_empty=sys.modules["torch"].empty, count=write_counter())
        if len(kept) >= KEPT:
            kept.clear()
        views = [call.views[p.name] for _, p in self.tensors]
        made = [m for _, p in self.made for m in (call.args[p.name].shape, kind(p.dtype))]
        apart = [views[i].apart(views[j]) for i, j in self.pairs]
        if key is not None and self.cell is not None and hasattr(run, "job"):
            run = self._first_road(run, self.cell, values, made, apart)
        found = (run, *made, *(bound for pair in apart for bound in pair))
        if key is None:
            written = [v for v, (_, p) in zip(values, self.tensors, strict=True) if self._writes(p)]
            found = self.names["recent"] = (guard_of(values, written), found)
        kept[facts] = found

    def _first_road(
        self, run: Fixed, cell: CellType, values: Sequence[Any], made: Sequence[Any],
        apart: Sequence[Any],
    ) -> Callable[[bytes], None]:  # fmt: skip
        """`run`, after which machine code knows calls like this one. It does not measure, so there
        has been one such call before."""
        from tilewright.targets.cpu.native import MOST_WORDS, RECORD, record

        places = self.launcher.inputs
        facts: list[int] = []
        for (_, p), place, value in zip(self.tensors, places, values, strict=True):
            low = p.dtype.numpy.itemsize - 1
            facts += [id(value.dtype), value.ndim, WRITEABLE * self._writes(p), low, place]
            facts += [n for pair in zip(value.shape, value.strides, strict=True) for n in pair]
        for (i, j), bounds in zip(self.pairs, apart, strict=True):
            facts += [places[i], places[j], *bounds]
        kinds, outline, empty = [value.dtype for value in values], tuple(made), np.empty
        makes = [id(empty), id(outline), self.launcher.outputs[0]] if made else [0, 0, 0]
        name = NUM_THREADS.key
        alive, count = [kinds, outline, empty, run, name], len(values)
        chunk, slow = RECORD.index("chunk"), self.names["call"]
        known: Record | None = None

        def first(head: bytes) -> None:
            nonlocal known
            run(head)
            setting, block = ENVIRON.get(name), head + run.tail
            # a shared launch may have been slow that time
            if known is None or known[chunk] or known.alive[-1] is not setting:
                job = [id(ENVIRON), id(name), id(setting) if setting else 0]
                job += [len(self.pairs), *run.job(), len(block) // 8, *makes]
                known = record(slow, count, job, block, facts, [*alive, setting])
            if self.latest is first:  # calls that take turns need no other record each time
                cell.cell_contents = known
            self.latest = first

        if 8 * len(self.params) + len(run.tail) > 8 * MOST_WORDS:
            return run
        self.latest = first
        return first

    def again(self, *values: Any) -> Any:
        """The call of PyTorch tensors that look like these, if there was one."""
        near = self.names["kept"].get(self._facts(values))
        if near is None:
            return None
        self.names["recent"] = near
        return near[1]

    def _writes(self, param: Buffer) -> bool:
        return param.name in self.launcher.written

    def _facts(self, tensors: Sequence[Any]) -> Any:
        """All that a launch depends on but the addresses; None where there are no tensors of
        PyTorch's with memory of their own."""
        if not torch_loaded():
            return None
        recording = sys.modules["torch"].is_grad_enabled()
        try:
            return tuple(
                (
                    type(t), t.dtype, t.shape, t.stride(), t.device, t.is_neg(), t.is_conj(),
                    recording and t.requires_grad and self._writes(p),
                )
                for t, (_, p) in zip(tensors, self.tensors, strict=True)
            )  # fmt: skip
        except Exception:  # sparse, fake, or not a tensor
            return None

    # ── the second road, as text ──────────────────────────────────────────────────────────────

    def text(self) -> str:
        """Of tensors `x0` the addresses are `a0`, of those that are made `shape0` and `kind0`."""
        given, tensors = ([x for x, _ in side] for side in (self.given, self.tensors))
        made, at = ([f"a{x[1:]}" for x, _ in side] for side in (self.made, self.tensors))
        written = [x for x, p in self.tensors if self._writes(p)]
        values = "".join(f"{x}, " for x in given)
        # positions only: a parameter of the kernel may be called x0
        takes = "".join(f"{x}=missing, " for x in given) + ("/, " if given else "")
        unlike = []
        for x, p in self.scalars:
            self.names[f"types_{x}"] = _NUMBERS[p.dtype.kind]
            unlike.append(f" or type({x}) not in types_{x}")
        facts = [f"{x}.{fact}" for x in tensors for fact in ("shape", "strides", "dtype")]
        facts += [f"{x}.flags.writeable" for x in written]
        nothing = [f"not ({' and '.join(at)})"] if at else []  # as of storage that was freed
        pairs = [f"low{n} < {at[j]} - {at[i]} < high{n}" for n, (i, j) in enumerate(self.pairs)]
        parts = [part for a in made for part in (f"shape{a[1:]}", f"kind{a[1:]}")]
        parts += [b for n in range(len(pairs)) for b in (f"low{n}", f"high{n}")]
        unpack = f"{', '.join(['run', *parts])}, = found"
        by_numpy = [f"{a} = {self._address(f'x{a[1:]}')}" for a in at] + [unpack]
        by_torch = [unpack]
        for a in made:
            x, shape, kind = (f"{word}{a[1:]}" for word in ("x", "shape", "kind"))
            by_numpy += [f"{x} = empty({shape}, {kind})", f"{a} = {self._address(x)}"]
            by_torch += [f"{x} = torch_empty({shape}, dtype={kind}, device='cpu')"]
            by_torch += [f"{a} = {x}.data_ptr()"]
        results = ", ".join(x for x, _ in self.made)
        words = ", ".join(self._word(i) for i in range(len(self.params)))
        counted = ""
        if written:
            counted = f"if type({written[0]}) is not ndarray: count({', '.join(written)})"
        return f"""\
def call({takes}*rest, **named):
    if rest or named{"".join(unlike)}:
        return slow(({values}*rest,), named, None)
    if {" and ".join(f"type({x}) is ndarray" for x in tensors) or True}:
        key = ({"".join(f"{fact}, " for fact in facts)})
        found = kept.get(key)
        if found is None:
            return slow(({values}), {{}}, key)
        {"; ".join(by_numpy)}
    else:
        try:
            guard, found = recent
            if not guard({", ".join(tensors)}):
                found = again({", ".join(tensors)})
            {"; ".join(f"{a} = x{a[1:]}.data_ptr()" for a in at) or "pass"}
        except Exception:  # nothing of PyTorch's, or wrong: the other road says what
            found = None
        if found is None:
            return slow(({values}), {{}}, None)
        {"; ".join(by_torch)}
    if {" or ".join([*nothing, *self._aligned_text(), *pairs]) or False}:
        return slow(({values}), {{}}, None)
    try:
        head = pack({words})
    except wrong:
        return slow(({values}), {{}}, None)
    run(head)
    {counted or "pass"}
    return {results if len(self.made) == 1 else f"[{results}]" if results else None}
"""

    def _aligned_text(self) -> list[str]:
        groups: dict[int, list[str]] = {}
        for x, p in self.tensors:
            groups.setdefault(p.dtype.numpy.itemsize, []).append(f"a{x[1:]}")
        return [f"({' | '.join(a)}) & {size - 1}" for size, a in groups.items() if size > 1]

    def _word(self, i: int) -> str:
        if isinstance(self.params[i], Buffer):
            return f"a{i}"
        return f"encode({i}, x{i})" if self.executable.codes[i] == "8s" else f"x{i}"

    def _address(self, x: str) -> str:
        """Of NumPy's array: where it has it is read in a seventh of the time that asking takes."""
        if self.reads:
            return f"word(id({x}) + {DATA}).value"
        return f'{x}.__array_interface__["data"][0]'
