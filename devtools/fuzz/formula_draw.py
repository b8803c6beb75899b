"""Random formulas: statements that are drawn one by one, each tried at once as a person would in a
notebook, so that shapes fit and numbers stay small."""

from __future__ import annotations

import random
import re
import warnings
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import prod
from typing import Any

import numpy as np

import tilewright.math as tm
from tilewright.formula.front.values import Trace, Value, input_of, tracing
from tilewright.formula.meaning import Evaluator, computed
from tilewright.ir.core import Var
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import most, tensor
from tilewright.support.errors import CompileError

Data = Any  # a NumPy array
SIZES = [1, 2, 3, 4, 5, 7, 8, 11, 16, 17, 20, 33, 40, 65]
MOST, LARGEST = 6000, 60.0  # elements of an array, and their magnitude
_NAMES = ["x", "y", "z", "w", "u", "v", "q", "k", "b", "g"]
_ODD = ["X", "i", "j", "T", "tw", "n", "out", "top", "total", "exp", "Out", "N", "acc", "fix", "e"]
_OWN = ["s", "t", "p", "r", "m", "h", "c", "d", "o", "l", "f", "a"]


def drawn(shape: tuple[int, ...], dtype: str, seed: int, most: int = 4) -> Data:
    """The array that a formula is tried with; integers are below `most`."""
    rng = np.random.default_rng(seed)
    if dtype == "bool":
        return np.asarray(rng.random(shape) < 0.6)
    if "int" in dtype:
        return np.asarray(rng.integers(0, most, shape), dtype)
    return np.asarray(rng.standard_normal(shape), find_dtype(dtype).numpy)


@dataclass(frozen=True)
class Param:
    shape: tuple[int, ...]
    dtype: str
    seed: int
    most: int = 4

    def __str__(self) -> str:
        most = f", {self.most}" if self.most != 4 else ""
        return f'drawn({self.shape}, "{self.dtype}", {self.seed}{most})'

    @property
    def data(self) -> Data:
        return drawn(self.shape, self.dtype, self.seed, self.most)


@dataclass(frozen=True)
class Formula:
    """Statements over parameters, and what is returned."""

    seed: int
    params: dict[str, Param]
    lines: tuple[tuple[str, str], ...]  # (names, expression)
    outputs: tuple[str, ...]

    @property
    def text(self) -> str:
        body = [f"{name} = {text}" for name, text in self.lines]
        body.append(f"return {', '.join(self.outputs)}")
        return f"def formula({', '.join(self.params)}):\n" + "".join(f"    {b}\n" for b in body)

    @property
    def arrays(self) -> list[Data]:
        return [p.data for p in self.params.values()]

    def __str__(self) -> str:
        arrays = "".join(f"    {p},  # {n}\n" for n, p in self.params.items())
        head = "import tilewright.math as tm\nfrom devtools.fuzz.formula_draw import drawn\n\n\n"
        return f"{head}{self.text}\n\narrays = [\n{arrays}]"

    def only(self, *outputs: str) -> Formula:
        """What is needed for some of its values."""
        needed, kept = set(outputs), []
        for names, text in reversed(self.lines):
            if needed & set(re.findall(r"\w+", names)):
                kept.append((names, text))
                needed |= set(re.findall(r"\b[A-Za-z_]\w*\b", text))
        params = {n: p for n, p in self.params.items() if n in needed}
        return replace(self, params=params, lines=tuple(kept[::-1]), outputs=outputs)


@dataclass
class Crash(Exception):
    """A function of the math level failed with something that is no `CompileError`."""

    said: str
    formula: Formula


@dataclass
class Draw:
    """A formula that grows."""

    seed: int
    rng: random.Random = field(init=False)
    params: dict[str, Param] = field(default_factory=dict)
    lines: list[tuple[str, str]] = field(default_factory=list)
    space: dict[str, Any] = field(default_factory=lambda: {"tm": tm})
    data: dict[str, Data] = field(default_factory=dict)  # what names are, exactly
    buffers: dict[str, Data] = field(default_factory=dict)
    refused: list[str] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.rng = random.Random(self.seed)
        self.trace = Trace()
        self.sizes = self.rng.sample(SIZES, 4)
        if self.rng.random() < 0.1:
            self.sizes.append(self.rng.choice([130, 300, 520, 1030]))
        self.floats = self.rng.choice(
            [["float32"]] * 6 + [["float16"], ["float16"], ["bfloat16"], ["float32", "float16"],
                                 ["bfloat16", "float32"]]
        )  # fmt: skip
        odd = self.rng.random() < 0.3
        self._names = list(dict.fromkeys([*self.rng.sample(_ODD, 5 * odd), *_NAMES]))
        self._own = [n for n in _OWN if n not in self._names]
        if odd:
            self.rng.shuffle(self._names)

    # -- values

    def shape(self, name: str) -> tuple[int, ...]:
        found: tuple[int, ...] = self.space[name].shape
        return found

    def kind(self, name: str) -> str:
        dtype = self.space[name].dtype
        return "f" if dtype.is_float else "b" if dtype.bits == 1 or str(dtype) == "bool" else "i"

    def names(self, kind: str = "f", test: Callable[[tuple[int, ...]], bool] | None = None) -> Any:
        return [n for n in self.data
                if self.kind(n) == kind and (test is None or test(self.shape(n)))]  # fmt: skip

    def size(self) -> int:
        return self.rng.choice(self.sizes)

    def some_shape(self, rank: int | None = None) -> tuple[int, ...]:
        rank = self.rng.choice([0, 1, 1, 2, 2, 2, 3, 3, 4]) if rank is None else rank
        while True:
            shape = tuple(self.size() for _ in range(rank))
            if np.prod(shape, dtype=int) <= MOST // 2:
                return shape
            self.sizes.append(self.rng.choice([1, 2, 3, 5]))

    def pick(self, kind: str = "f", rank: int | None = None, least: int = 0) -> str:
        """A value that is there, the later the likelier, or a new parameter."""
        old = self.names(kind, lambda s: len(s) >= least if rank is None else len(s) == rank)
        if old and self.rng.random() < 0.85:
            return str(self.rng.choice([*old, *old[-2:], *old[-2:]]))
        if rank is None:
            rank = self.rng.choice([r for r in (0, 1, 2, 2, 3, 3, 4) if r >= least])
        return self.param(self.some_shape(rank), kind)

    def param(self, shape: tuple[int, ...], kind: str = "f", most: int = 4) -> str:
        rng = self.rng
        integer = rng.choice(["int32"] * 5 + ["int8", "int16", "uint8"]) if most <= 100 else "int32"
        dtype = {"f": rng.choice(self.floats), "b": "bool"}.get(kind, integer)
        name = next(n for n in [*self._names, *(f"x{i}" for i in range(99))] if n not in self.space)
        p = self.params[name] = Param(tuple(shape), dtype, rng.randrange(1000), most)
        self.space[name] = input_of(tensor(name, p.shape, find_dtype(dtype)))
        self.data[name] = p.data
        self.buffers[name] = p.data.astype(np.float64) if kind == "f" else p.data
        return name

    def fresh(self) -> str:
        options = [*self._own, *(f"{a}{n}" for n in range(1, 9) for a in _OWN)]
        return next(n for n in options if n not in self.space)

    def matching(self, name: str, kind: str = "f") -> str:
        """Something that broadcasts with a value."""
        shape = self.shape(name)

        def fits(other: tuple[int, ...]) -> bool:
            try:
                whole = np.broadcast_shapes(shape, other)
            except ValueError:
                return False
            return int(np.prod(whole, dtype=int)) <= MOST

        old = self.names(kind, fits)
        if old and self.rng.random() < 0.6:
            return str(self.rng.choice(old))
        keep = shape[self.rng.choice([0, 0, 0, *range(len(shape) + 1)]) :]
        return self.param(tuple(1 if self.rng.random() < 0.2 else n for n in keep), kind)

    # -- statements

    def add(self, text: str, bounded: bool = True) -> str:
        """The name of a new value, or "" where the statement is no good."""
        names = [n.strip() for n in text.split(" := ")[0].split(",")] if " := " in text else []
        text = text.split(" := ")[-1]
        name = ", ".join(names) or self.fresh()
        before = len(self.trace.arrays)
        try:
            with warnings.catch_warnings(), tracing(self.trace), np.errstate(all="ignore"):
                warnings.simplefilter("ignore")
                found = eval(text, dict(self.space))
                parts = list(found) if names and len(names) > 1 else [found]
                for a in self.trace.arrays[before:]:
                    if prod(most(x.extent) for x in (*a.axes, *a.over)) > 3e6:
                        del self.trace.arrays[before:]
                        return ""
                    self.buffers[a.name] = computed(a, self.buffers, True)
                numbers = [self._numbers(part) for part in parts]
        except CompileError as error:
            self.refused.append(error.message)
            del self.trace.arrays[before:]
            return ""
        except Exception as error:
            lines = (*self.lines, (name, text))
            formula = Formula(self.seed, dict(self.params), lines, (name,)).only(name)
            raise Crash(f"{type(error).__name__}: {error}", formula) from error
        if any(bounded and not self._is_tame(part) for part in numbers):
            finite = all(np.isfinite(part).all() for part in numbers)
            if finite and len(numbers) == 1 and isinstance(parts[0], Value) \
                    and parts[0].dtype.is_float:  # fmt: skip
                large = float(np.max(np.abs(numbers[0])))
                return self.add(f"({text}) * {float(f'{LARGEST / 4 / large:.1g}')}")
            return ""
        if any(part.size > MOST for part in numbers):
            return ""
        self.lines.append((name, text))
        for each, part, value in zip(names or [name], numbers, parts, strict=True):
            self.space[each], self.data[each] = value, part
        return name

    def _numbers(self, value: Value) -> Data:
        axes = [Var(f"#{n}") for n in range(value.ndim)]
        grid = np.ix_(*(np.arange(n) for n in value.shape)) if axes else ()
        env = {v: g.astype(np.int32) for v, g in zip(axes, grid, strict=True)}
        found = Evaluator(env, self.buffers, True)(value.at(tuple(axes)))
        return np.broadcast_to(found, value.shape)

    @staticmethod
    def _is_tame(numbers: Data) -> bool:
        if numbers.dtype == bool or not numbers.size:
            return True
        most = LARGEST if numbers.dtype.kind == "f" else 1e5
        return bool(np.isfinite(numbers).all() and np.max(np.abs(numbers)) <= most)

    def formula(self) -> Formula:
        made = [n.strip() for names, _ in self.lines for n in names.split(",")]
        values = [n for n in made if n in self.data and n != "_"]
        count = self.rng.choice([1, 1, 1, 1, 2, 2, 3])
        outputs = list(
            dict.fromkeys([values[-1], *self.rng.sample(values, min(count - 1, len(values)))])
        )
        if self.rng.random() < 0.03:
            outputs.append(self.rng.choice([*self.params]))  # an input as it is
        self.rng.shuffle(outputs)
        whole = Formula(self.seed, dict(self.params), tuple(self.lines), tuple(outputs))
        short = whole.only(*outputs)
        return replace(short, params=whole.params) if self.rng.random() < 0.05 else short
