"""An op as a record: its formula and signature, the arguments that have gradients, and how far
results may be off. Everything else follows from it: checks, gradients (`tm.vjp`), the operators of
PyTorch (`for_torch`), the page of all ops.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import numpy as np

from tilewright.formula.arguments import is_array
from tilewright.formula.function import MathFunction, contiguous
from tilewright.formula.gradients.backward import Gradients, gradients
from tilewright.ir.dtype import dtype
from tilewright.ops.pullback import Pull, Pullback
from tilewright.ops.shapes import Signature
from tilewright.support.arguments import bound_arguments
from tilewright.support.errors import CompileError, LaunchError, TilewrightError

OPS: dict[str, Record] = {}


class Record:
    """A function of arrays of NumPy, PyTorch or JAX.

    `wrt` names the arguments that have a gradient. `error` bounds results: they differ from exact
    ones by at most `error` · ε · the largest exact element, where ε is the spacing of numbers of
    the result's type at 1, on arguments like standard normal ones. A `text` is no formula, but a
    function that calls kernels over tile values; `pull` gives its gradients.
    """

    def __init__(
        self,
        function: Callable[..., Any],
        signature: Signature,
        formula: str,
        wrt: tuple[str, ...],
        error: float,
        text: bool = False,
        pull: Pull | None = None,
    ) -> None:
        self.function, self.signature, self.formula = function, signature, formula
        self.wrt, self.error, self.text = wrt, error, text
        self.pull = None if pull is None else of_contiguous(pull)
        self.name = self.__name__ = function.__name__
        self.__signature__ = inspect.signature(function)
        self.__module__ = function.__module__
        self.__doc__ = self._document()
        parameters = self.__signature__.parameters.values()
        self.names = tuple(p.name for p in parameters)
        self.places = sum(p.kind is not p.KEYWORD_ONLY for p in parameters)
        self.defaults = {p.name: p.default for p in parameters if p.default is not p.empty}
        kinds = {p.name: str(p.annotation) for p in parameters}
        # how many numbers they have; 0 for any
        self.tuples = {n: 2 * ("int, int" in kind) for n, kind in kinds.items() if "tuple" in kind}
        self.words = {
            n: kind for n, kind in kinds.items() if {"str", "Function"} & {*kind.split(" | ")}
        }
        self.run = of_contiguous(function) if text else MathFunction(function)
        self._gradients: dict[tuple[str, ...], Gradients | Pullback] = {}
        self._known: set[Any] = set()

    def _document(self) -> str:
        facts = {
            "Formula": self.formula,
            "Arrays": self.signature.text,
            "Gradients": ", ".join(self.wrt) or "none",
            "Error": f"at most {self.error:g} ε of the result's largest element",
        }
        said = inspect.cleandoc(self.function.__doc__ or "")
        return "\n".join([said, "", *(f"{label}: {fact}" for label, fact in facts.items())])

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults included."""
        given = {**self.defaults, **dict(zip(self.names[: self.places], args, strict=False))}
        given.update(kwargs)
        missing = [n for n in self.names if n not in given]
        twice = [n for n in self.names[: len(args)] if n in kwargs]
        if missing or twice or len(given) > len(self.names) or len(args) > self.places:
            bound_arguments(self.name, self.__signature__, args, kwargs)  # which says what is wrong
        for n, kind in self.words.items():
            if not isinstance(given[n], (str, type(None))):
                given[n] = self._word(n, kind, given[n])
        for n, length in self.tuples.items():  # a number stands for as many, a list is a tuple
            many = (given[n],) * (length or 1) if isinstance(given[n], int) else given[n]
            if not isinstance(many, (tuple, list)) or length not in (0, len(many)):
                raise self._unfit(n, given[n], f"a whole number or a tuple of {length or 'them'}")
            given[n] = tuple(many)
        return {n: given[n] for n in self.names}

    def _word(self, name: str, kind: str, value: Any) -> Any:
        """A function, or the name of a type that is given as such."""
        if "Function" in kind:
            if callable(value):
                return value
            raise self._unfit(name, value, "a function, or the name of one")
        try:
            return str(dtype(value))
        except TilewrightError:
            raise self._unfit(name, value, "a string") from None

    def _unfit(self, name: str, value: Any, expected: str) -> CompileError:
        return CompileError(
            f"{self.name}: {name} is {value!r}",
            expected=expected,
            fix=f"pass {name} as its docstring says",
            code="arguments",
        )

    def library(self, given: Mapping[str, Any]) -> str:
        """Whose arrays these are: all are of one library."""
        for n in self.signature.arrays:
            if not is_array(given[n]) and (given[n] is not None or n not in self.defaults):
                raise CompileError(
                    f"{self.name}: {n} is no array",
                    expected="an array of NumPy, PyTorch or JAX",
                    got=type(given[n]).__name__,
                    fix="make it one: np.asarray(x)",
                    code="arguments",
                )
        libraries = {
            n: _library(type(given[n])) for n in self.signature.arrays if given[n] is not None
        }
        if len(set(libraries.values())) > 1:
            shown = ", ".join(f"{n} of {library}" for n, library in libraries.items())
            raise LaunchError(
                f"{self.name} was given arrays of several libraries",
                expected="arrays of one library",
                got=shown,
                fix="convert them: torch.from_numpy(x), x.numpy(), jax.numpy.asarray(x)",
            )
        return next(iter(libraries.values()), "numpy")

    def check(self, given: Mapping[str, Any]) -> None:
        """Whether shapes, types and devices fit, once for all arguments like these."""
        arrays = [(n, given[n]) for n in self.signature.arrays if given[n] is not None]
        listed = [given[n] for n in self.tuples]
        key = (*listed, *((n, a.shape, a.dtype, _device(a)) for n, a in arrays))
        if key not in self._known:
            self.results(given)
            self._known.add(key)

    def results(self, given: Mapping[str, Any]) -> list[tuple[tuple[Any, ...], str]]:
        """Shapes and types of the results for these arguments, which are checked."""
        arrays = {n: given[n] for n in self.signature.arrays if given[n] is not None}
        devices = {n: _device(a) for n, a in arrays.items() if not is_traced(a)}
        if len(set(devices.values())) > 1:
            raise LaunchError(
                f"{self.name} was given arrays on several devices",
                expected="arrays on one device",
                got=", ".join(f"{n} on {device}" for n, device in devices.items()),
                fix="move them to one device before the call",
            )
        try:
            return self.signature.results(given)
        except ZeroDivisionError:
            numbers = ", ".join(f"{n}={given[n]}" for n in self.tuples)
            raise LaunchError(
                f"{self.name}: a size of the result is divided by zero",
                got=numbers,
                fix="pass numbers above zero",
            ) from None
        except LaunchError as error:
            about = error.diagnostic
            raise LaunchError(
                f"{self.name}: {about.message}",
                expected=about.expected, got=about.got, fix=about.fix,
            ) from None  # fmt: skip

    def gradients(self, wrt: tuple[str, ...] = ()) -> Any:
        """`tm.vjp` of the op: its gradients by the arguments `wrt`; all that have one if none."""
        wanted = wrt or self.wrt
        for name in wanted:
            if name not in self.wrt:
                raise CompileError(
                    f"{self.name} has no gradient by {name}",
                    expected=f"some of {', '.join(self.wrt)}" if self.wrt else "no gradients",
                    fix="leave it out, or detach it",
                    code="arguments",
                )
        if wanted not in self._gradients:
            pull = self.pull
            found = (
                gradients(self.function, wanted) if pull is None else Pullback(self, pull, wanted)
            )
            self._gradients[wanted] = found
        return self._gradients[wanted]


def of_contiguous(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same with copies of arrays that do not lie one element after the other."""

    @wraps(function)
    def run(*args: Any, **kwargs: Any) -> Any:
        return function(*map(contiguous, args), **{n: contiguous(x) for n, x in kwargs.items()})

    return run


def _library(kind: type) -> str:
    """Where a type of arrays comes from: numpy, torch, jax, …"""
    library = kind.__module__.partition(".")[0]
    return "jax" if library == "jaxlib" else library


def is_traced(array: Any) -> bool:
    """Whether it is an array of a function that JAX traces: it has no elements yet."""
    jax = sys.modules.get("jax")
    return jax is not None and isinstance(array, jax.core.Tracer)


def _device(array: Any) -> str:
    return "cpu" if type(array) is np.ndarray else str(getattr(array, "device", "cpu"))
