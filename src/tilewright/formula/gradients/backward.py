"""`tm.vjp`: the gradients of a function of arrays, as one that runs like any other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from tilewright.formula.function import Kind, MathFunction
from tilewright.formula.gradients.vjp import vjp
from tilewright.ir.formula import Formula
from tilewright.support.errors import CompileError


class Gradients(MathFunction):
    """The cotangents of a function's float arguments, given these and those of its results; what
    the function has defaults for is given by name.

    >>> import numpy as np, tilewright.math as tm
    >>> slope = tm.vjp(lambda x: x * x)
    >>> slope(np.arange(3, dtype=np.float32), np.ones(3, np.float32)).tolist()
    [0.0, 2.0, 4.0]
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
        self.__name__ = f"{getattr(function, '__name__', 'formula')}_vjp"
        self.__doc__ = f"Gradients of {getattr(function, '__name__', 'a formula')}."

    def with_schedule(self, **choices: Any) -> Gradients:
        return Gradients(self.function, self.wrt, self.target, {**self.schedule, **choices})

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        parameters = self.signature.parameters.values()
        if any(p.kind in (p.VAR_POSITIONAL, p.VAR_KEYWORD) for p in parameters):
            raise CompileError(
                f"{self.__name__}: gradients are of functions whose parameters are named",
                got=f"parameters {self.signature}",
                fix="write one parameter for each array",
                code="arguments",
            )
        count = sum(p.default is p.empty and p.kind is not p.KEYWORD_ONLY for p in parameters)
        found = super().arguments(args[:count], kwargs)
        rest = [np.asarray(x) if isinstance(x, np.generic) else x for x in args[count:]]
        return found | {f"d_{n}": each for n, each in enumerate(rest)}

    def traced(self, kinds: list[Kind], fixed: dict[str, Any]) -> Formula:
        own = [kind for kind in kinds if kind[0] in self.signature.parameters]
        found = vjp(super().traced(own, fixed), self.wrt)
        wanted = [(b.static_shape, b.dtype) for b in found.inputs[len(own) :]]
        if [(shape, dtype) for _, shape, dtype in kinds[len(own) :]] != wanted:
            raise CompileError(
                f"{self.__name__} takes the arguments of the function, then a cotangent for each "
                "float result, of its shape and type",
                expected=_shown(wanted),
                got=_shown([(shape, dtype) for _, shape, dtype in kinds[len(own) :]]),
                fix="give arguments that have a default by name",
                code="arguments",
            )
        return found


def _shown(arrays: list[tuple[tuple[int, ...], Any]]) -> str:
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
