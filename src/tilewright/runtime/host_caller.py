"""The function that users call on the CPU, generated for a kernel's parameters.

A checked launch of three arrays costs forty microseconds when each is looked at by general code.
But what the checks look at is a handful of facts: types, shapes, strides, element types, whether
an array may be written. So there are two roads:

1. The facts are those of a call that was checked before: they are the key under which its sizes
   and its launch are kept. PyTorch compares them in one call of its own (`guard_of`). What differs
   from call to call is looked at each time: that addresses are aligned, and that what is written
   lies outside the other arrays.
2. Everything else, and everything that is wrong: `Launcher.prepare`, whatever the library.
"""

from __future__ import annotations

import ctypes
import struct
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from tilewright.ir.buffer import Buffer
from tilewright.ir.expr import Var
from tilewright.runtime.arrays import Array, reach, stored_as, torch_dtype, torch_loaded
from tilewright.runtime.launch import Call, Launcher
from tilewright.support.errors import entry
from tilewright.targets.torch_tensors import guard_of, never, write_counter

KEPT = 1024  # checked calls that are remembered
_MISSING: Any = type("missing", (), {"__repr__": lambda _: "<no argument>"})()

# the types that struct reads as the full check does
_INTS = frozenset((int, bool, np.int64, np.int32, np.int16, np.int8))
_NUMBERS = {
    "float": _INTS | {float, np.float64, np.float32},
    "int": _INTS,
    "uint": _INTS,
    "bool": frozenset((bool,)),
}


class Fixable(Protocol):
    """A compiled program that can be told its sizes once: see `CpuKernel`."""

    codes: Sequence[str]
    pack: Callable[..., bytes]

    def head(self, args: Mapping[str, Any]) -> bytes: ...

    def encode(self, i: int, value: Any) -> bytes: ...

    def fixed(self, sizes: Mapping[Var, int]) -> Callable[[bytes], None]: ...


def make_caller(launcher: Launcher, executable: Fixable) -> Callable[..., Any]:
    """The function for `launcher`'s parameters: it checks, runs, and returns what was made."""
    return _Maker(launcher, executable).make()


class _Maker:
    def __init__(self, launcher: Launcher, executable: Fixable) -> None:
        self.launcher, self.executable = launcher, executable
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
            "missing": _MISSING, "ndarray": np.ndarray, "kept": {}, "recent": (never, None),
            "slow": entry(self.slow), "again": self.again, "pack": executable.pack,
            "wrong": (struct.error, OverflowError), "word": ctypes.c_size_t.from_address,
            "empty": np.empty, "encode": executable.encode,
        }  # fmt: skip

    # ── the second road ──────────────────────────────────────────────────────────────────────

    def slow(self, given: tuple[Any, ...], named: Mapping[str, Any], key: Any) -> Any:
        while given and given[-1] is _MISSING:
            given = given[:-1]
        call = self.launcher.prepare(given, named)
        run = self.executable.fixed(call.sizes)
        run(self.executable.head(call.args))
        if self.plain and not named:
            self.remember(run, call, given, key)
        return call.finish()

    def remember(self, run: Any, call: Call, given: Sequence[Any], key: Any) -> None:
        values = [
            v
            for v, i in zip(given, self.launcher.inputs, strict=True)
            if isinstance(self.params[i], Buffer)
        ]
        kept = self.names["kept"]
        if len(kept) >= KEPT:
            kept.clear()
        arrays = [call.args[p.name] for _, p in self.tensors]
        bounds = [b for i, j in self.pairs for b in _apart(arrays[i], arrays[j])]
        shapes = [call.args[p.name].shape for _, p in self.made]
        if key is not None:
            made = [m for s, (_, p) in zip(shapes, self.made, strict=True) for m in _numpy_of(s, p)]
            kept[key] = (run, *made, *bounds)
        elif values and call.library == "torch":
            facts = self._facts(values)
            if facts is None:
                return
            self.names.update(torch_empty=sys.modules["torch"].empty, count=write_counter())
            made = [m for s, (_, p) in zip(shapes, self.made, strict=True) for m in _torch_of(s, p)]
            found = (run, *made, *bounds)
            written = [v for v, (_, p) in zip(values, self.tensors, strict=True) if self._writes(p)]
            self.names["recent"] = kept[facts] = (guard_of(values, written), found)

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

    # ── the first road, as text ──────────────────────────────────────────────────────────────

    def make(self) -> Callable[..., Any]:
        name = self.launcher.program.name
        # a file of ours as far as errors go: they point to the caller's line
        file = str(Path(__file__).with_name(f"<launch {name}>"))
        exec(compile(self.text(), file, "exec"), self.names)
        call: Callable[..., Any] = self.names["call"]
        call.__name__ = call.__qualname__ = name
        return call

    def text(self) -> str:
        xs = [x for x, _ in self.given]
        values = "".join(f"{x}, " for x in xs)
        # positions only: a parameter of the kernel may be called x0
        takes = "".join(f"{x}=missing, " for x in xs) + ("/, " if xs else "")
        lines = [
            f"def call({takes}*rest, **named):",
            "    if rest or named:",
            f"        return slow(({values}*rest,), named, None)",
        ]
        for x, p in self.scalars:
            self.names[f"types_{x}"] = _NUMBERS[p.dtype.kind]
            lines += [
                f"    if type({x}) not in types_{x}:",
                f"        return slow(({values}), {{}}, None)",
            ]
        lines += (
            self._facts_text(values)
            if self.tensors
            else [
                "    found = kept.get(())",
                "    if found is None:",
                f"        return slow(({values}), {{}}, ())",
                *self._numpy_text("    "),
            ]
        )
        at = [f"a{x[1:]}" for x, _ in self.tensors]
        pairs = [f"low{n} < {at[j]} - {at[i]} < high{n}" for n, (i, j) in enumerate(self.pairs)]
        trouble = [*self._aligned_text(), *pairs]
        if trouble:
            lines += [
                f"    if {' or '.join(trouble)}:",
                f"        return slow(({values}), {{}}, None)",
            ]
        written = [x for x, p in self.tensors if self._writes(p)]
        head = f"pack({', '.join(self._word(i) for i in range(len(self.params)))})"
        if self.scalars:
            lines += [
                "    try:",
                f"        head = {head}",
                "    except wrong:",
                f"        return slow(({values}), {{}}, None)",
                "    run(head)",
            ]
        else:
            lines.append(f"    run({head})")
        if written:
            counted = f"count({', '.join(written)})"
            lines.append(f"    if type({written[0]}) is not ndarray: {counted}")
        results = ", ".join(x for x, _ in self.made)
        if results:
            lines.append(
                f"    return {results}" if len(self.made) == 1 else f"    return [{results}]"
            )
        return "\n".join(lines) + "\n"

    def _facts_text(self, values: str) -> list[str]:
        xs = [x for x, _ in self.tensors]
        facts = [f"{x}.{fact}" for x in xs for fact in ("shape", "strides", "dtype")]
        facts += [f"{x}.flags.writeable" for x, p in self.tensors if self._writes(p)]
        return [
            f"    if {' and '.join(f'type({x}) is ndarray' for x in xs)}:",
            f"        key = ({', '.join(facts)},)",
            "        found = kept.get(key)",
            "        if found is None:",
            f"            return slow(({values}), {{}}, key)",
            *self._numpy_text("        "),
            "    else:",
            "        try:",
            "            guard, found = recent",
            f"            if not guard({', '.join(xs)}):",
            f"                found = again({', '.join(xs)})",
            *(f"            a{x[1:]} = {x}.data_ptr()" for x in xs),
            "        except Exception:  # nothing of PyTorch's, or wrong: the other road says what",
            "            found = None",
            "        if found is None:",
            f"            return slow(({values}), {{}}, None)",
            f"        {self._parts()} = found",
            *(
                line
                for x, _ in self.made
                for line in (
                    f"        {x} = torch_empty(shape{x[1:]}, dtype=kind{x[1:]}, device='cpu')",
                    f"        a{x[1:]} = {x}.data_ptr()",
                )
            ),
        ]  # fmt: skip

    def _numpy_text(self, indent: str) -> list[str]:
        lines = [f"a{x[1:]} = {_address_text(x)}" for x, _ in self.tensors]
        lines.append(f"{self._parts()} = found")
        for x, _ in self.made:
            lines += [f"{x} = empty(shape{x[1:]}, kind{x[1:]})", f"a{x[1:]} = {_address_text(x)}"]
        return [indent + line for line in lines]

    def _parts(self) -> str:
        made = [part for x, _ in self.made for part in (f"shape{x[1:]}", f"kind{x[1:]}")]
        bounds = [b for n in range(len(self.pairs)) for b in (f"low{n}", f"high{n}")]
        return ", ".join(["run", *made, *bounds]) + ","

    def _aligned_text(self) -> list[str]:
        groups: dict[int, list[str]] = {}
        for x, p in self.tensors:
            groups.setdefault(p.dtype.numpy.itemsize, []).append(f"a{x[1:]}")
        return [f"({' | '.join(a)}) & {size - 1}" for size, a in groups.items() if size > 1]

    def _word(self, i: int) -> str:
        if isinstance(self.params[i], Buffer):
            return f"a{i}"
        return f"encode({i}, x{i})" if self.executable.codes[i] == "8s" else f"x{i}"


# ── facts and words ──────────────────────────────────────────────────────────────────────────


def _apart(a: Array, b: Array) -> tuple[int, int]:
    """Between which distances of `b`'s address from `a`'s the two may meet."""
    if not a.size or not b.size:
        return 0, 0
    (low, high), (start, stop) = reach(a), reach(b)
    return low - stop, high - start


def _numpy_of(shape: tuple[int, ...], param: Buffer) -> tuple[Any, Any]:
    return stored_as(shape, param.dtype)[0], param.dtype.numpy


def _torch_of(shape: tuple[int, ...], param: Buffer) -> tuple[Any, Any]:
    return stored_as(shape, param.dtype)[0], torch_dtype(param.dtype)


def _address_text(x: str) -> str:
    if _HEAD and _data_follows_head():
        return f"word(id({x}) + {_HEAD}).value"
    return f'{x}.__array_interface__["data"][0]'


_HEAD = object.__basicsize__ if sys.implementation.name == "cpython" else 0


@cache
def _data_follows_head() -> bool:
    """NumPy's arrays begin with the object's head and the address of their data, which is part of
    its binary interface; reading it there takes a seventh of the time that asking takes."""
    base = np.arange(24, dtype=np.int16).reshape(4, 6)
    tries = [base, base[1:], base[::-1, 2:], base.T, np.array(1.0), np.empty((0, 3))]
    return np.ndarray.__basicsize__ >= _HEAD + 8 and all(
        ctypes.c_size_t.from_address(id(a) + _HEAD).value == a.__array_interface__["data"][0]
        for a in tries
    )
