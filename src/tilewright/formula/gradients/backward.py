"""`tm.vjp`: the gradients of a function of arrays, as one that runs like any other."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from tilewright.formula.arguments import Call, leaves
from tilewright.formula.front.values import tracing_now
from tilewright.formula.function import Kind, Made, MathFunction
from tilewright.formula.gradients.keep import parted
from tilewright.formula.gradients.vjp import vjp
from tilewright.formula.inline import normalize
from tilewright.ir.core import Dim
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Extent, Formula, extents
from tilewright.support.errors import CompileError, entry


class Gradients(MathFunction):
    """The cotangents of a function's float arguments, given these and those of its results; what
    the function has defaults for is given by name.

    >>> import numpy as np, tilewright.math as tm
    >>> slope = tm.vjp(lambda x: x * x)
    >>> slope(np.arange(3, dtype=np.float32), np.ones(3, np.float32)).tolist()
    [0.0, 2.0, 4.0]

    Where the function runs anyway, it keeps what gradients need:

    >>> y, kept = slope.forward(np.arange(3, dtype=np.float32))
    >>> y.tolist(), slope.backward(kept, np.ones(3, np.float32)).tolist()
    ([0.0, 1.0, 4.0], [0.0, 2.0, 4.0])
    """

    def __init__(
        self,
        function: Callable[..., Any],
        wrt: Sequence[str] | None = None,
        target: Any = None,
        schedule: Any = None,
    ) -> None:
        super().__init__(function, target, schedule)
        self.wrt = wrt
        self._pairs: dict[tuple[Any, ...], Pair] = {}
        self.__name__ = f"{getattr(function, '__name__', 'formula')}_vjp"
        self.__doc__ = f"Gradients of {getattr(function, '__name__', 'a formula')}."

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        if tracing_now() is not None:
            raise CompileError(
                f"{self.__name__} is called inside a formula",
                fix="call it with arrays, outside: kernels of gradients are made for these",
                code="arguments",
            )
        return super().__call__(*args, **kwargs)

    def with_schedule(self, **choices: Any) -> Gradients:
        return Gradients(self.function, self.wrt, self.target, {**self.schedule, **choices})

    def forward(self, *args: Any, **kwargs: Any) -> tuple[Any, Kept]:
        """The function's results, and what `backward` needs of them: some of its arguments and
        results, and rows such as the sums of a softmax."""
        pair, arrays = self.pair(*args, **kwargs)
        return pair.forward(arrays)

    def backward(self, kept: Kept, *cotangents: Any) -> Any:
        """The gradients, given what `forward` kept and a cotangent for each float result."""
        return kept.pair.backward(kept.arrays, _arrays(cotangents))

    def pair(self, *args: Any, **kwargs: Any) -> tuple[Pair, list[Any]]:
        """The two formulas for arguments like these, and the arrays among them."""
        self._check_parameters()
        given = super().arguments(args, kwargs)  # all of them: there are no cotangents yet
        key, kinds, call, arrays = self.sorted_out(given)
        if key not in self._pairs:
            formula, _ = super().traced(kinds, call)
            wrt = self._wanted(formula, call)
            self._pairs[key] = Pair(formula, wrt, self.target, self.schedule)
        return self._pairs[key], arrays

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        parameters = self._check_parameters()
        count = sum(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters)
        found = super().arguments(args[:count], kwargs)
        word = "d" + "_" * max(map(len, self.signature.parameters), default=1)  # no parameter's
        return found | {f"{word}{n}": each for n, each in enumerate(_arrays(args[count:]))}

    def _check_parameters(self) -> list[inspect.Parameter]:
        parameters = [*self.signature.parameters.values()]
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise CompileError(
                f"{self.__name__}: gradients are of functions whose parameters are named",
                got=f"parameters {self.signature}",
                fix="write one parameter for each array",
                code="arguments",
            )
        return parameters

    def sorted_out(
        self, given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], list[Kind], Call, list[Any]]:
        """Cotangents come last, as in the formula."""
        key, kinds, call, arrays = super().sorted_out(given)
        ends = given.keys() - self.signature.parameters.keys()
        order = sorted(range(len(kinds)), key=lambda place: kinds[place][0] in ends)
        return key, [kinds[i] for i in order], call, [arrays[i] for i in order]

    def traced(
        self, kinds: list[Kind], call: Call, sizes: tuple[Dim, ...] = ()
    ) -> tuple[Formula, Any]:
        count = len(kinds) - len(call.trees.keys() - self.signature.parameters.keys())
        own, others = kinds[:count], kinds[count:]
        formula = super().traced(own, call, sizes)[0]
        found = vjp(formula, self._wanted(formula, call))
        wanted = [(extents(b), b.dtype) for b in found.inputs[count:]]
        _check(self.__name__, [(shape, dtype) for _, shape, dtype in others], wanted)
        return found, None

    def _wanted(self, formula: Formula, call: Call) -> Sequence[str]:
        """The inputs whose gradients are asked for; all floats, in the order of the parameters."""
        if self.wrt is not None:
            return self.wrt
        floats = [b.name for b in formula.inputs if b.dtype.is_float]
        trees = [call.trees[n] for n in self.signature.parameters if n in call.trees]
        return sorted(floats, key=[leaf.name for leaf in leaves(trees)].index)


Shapes: TypeAlias = "Sequence[tuple[tuple[Extent, ...], Any]]"


def _check(name: str, got: Shapes, wanted: Shapes) -> None:
    if got != wanted:
        raise CompileError(
            f"{name} takes the arguments of the function, or what it kept, then a cotangent for "
            "each float result, of its shape and type",
            expected=_shown(wanted),
            got=_shown(got),
            fix="give such as np.ones_like(result), and arguments that have a default by name",
            code="arguments",
        )


class Kept(NamedTuple):
    """Arrays, and the formulas between which they lie."""

    arrays: tuple[Any, ...]
    pair: Pair


class Pair:
    """A function of known shapes, and its gradients given what it keeps."""

    def __init__(self, formula: Formula, wrt: Sequence[str], target: Any, schedule: Any) -> None:
        self.wrt = wrt
        self.whole = normalize(vjp(formula, wrt, values=True))
        inside = self.whole.formula
        self.own = len(formula.inputs)
        self.ends = [(self.whole.shapes[b.name], b.dtype) for b in inside.inputs[self.own :]]
        names = frozenset(b.name for b in inside.inputs[self.own :])
        self.count = len(formula.outputs)
        first, second = parted(inside, names, self.count)
        kept = [b.name for b in first.outputs[self.count :]]
        self.values, self.rest = (Made(f, target, schedule, kept) for f in (first, second))

    def tile(self) -> str:
        """The two tile programs, as Python text."""
        return f"{self.values.program.text}\n\n{self.rest.program.text}"

    def _outputs(self, made: Made, arrays: list[Any]) -> list[Any]:
        """What `made` gives, in the shapes of the function."""
        pairs = zip(arrays, made.formula.inputs, strict=True)
        found = made.run([a.reshape(b.static_shape) for a, b in pairs])
        several = list(found) if isinstance(found, tuple) else [found]
        return [
            o.reshape(self.whole.shapes.get(b.name, b.static_shape))
            for o, b in zip(several, made.formula.outputs, strict=True)
        ]

    @property
    def needs(self) -> frozenset[str]:
        """What `backward` takes of arguments and `values_of` them, by name."""
        return frozenset(b.name for b in self.rest.formula.inputs)

    @property
    def outlines(self) -> list[tuple[tuple[Extent, ...], Any]]:
        """Shapes and types of what `values_of` gives."""
        outputs, shapes = self.values.formula.outputs, self.whole.shapes
        return [(shapes.get(b.name, b.static_shape), b.dtype) for b in outputs]

    def values_of(self, arrays: list[Any]) -> list[Any]:
        """The function's results, then what else is kept of them."""
        return self._outputs(self.values, arrays)

    def kept_of(self, arrays: list[Any], found: list[Any]) -> tuple[Any, ...]:
        """Of arguments and `values_of` them, those that `backward` takes."""
        formula = self.values.formula
        known = dict(zip((b.name for b in formula.inputs), arrays, strict=True))
        known |= dict(zip((b.name for b in formula.outputs), found, strict=True))
        return tuple(known[b.name] for b in self.rest.formula.inputs[: -len(self.ends)])

    def forward(self, arrays: list[Any]) -> tuple[Any, Kept]:
        found = self.values_of(arrays)
        kept = Kept(self.kept_of(arrays, found), self)
        return found[0] if self.count == 1 else tuple(found[: self.count]), kept

    def backward(self, kept: tuple[Any, ...], cotangents: list[Any]) -> Any:
        given = [(tuple(map(int, a.shape)), find_dtype(a.dtype)) for a in cotangents]
        _check(self.rest.formula.name, given, self.ends)
        found = self._outputs(self.rest, [*kept, *cotangents])
        return found[0] if len(found) == 1 else tuple(found)


def _arrays(given: Iterable[Any]) -> list[Any]:
    return [np.asarray(x) if isinstance(x, np.generic) else x for x in given]


def _shown(arrays: Shapes) -> str:
    return ", ".join(f"{dtype}{list(shape)}" for shape, dtype in arrays) or "none"


def gradients(
    function: Callable[..., Any], wrt: Sequence[str] | None = None, target: Any = None
) -> Gradients:
    """`tm.vjp`"""
    if isinstance(function, Gradients):
        raise CompileError(
            "gradients of gradients are asked for of the function itself",
            fix="write a function that computes them, and give that to tm.vjp",
        )
    if isinstance(function, MathFunction):
        return Gradients(function.function, wrt, target or function.target)
    return Gradients(function, wrt, target)
