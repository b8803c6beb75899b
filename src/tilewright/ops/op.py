"""One mechanism makes an op of a formula: `@op(…)` over a function of arrays."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from tilewright.ops.pullback import Pull, in_jax
from tilewright.ops.record import OPS, Record, is_traced
from tilewright.ops.shapes import Signature
from tilewright.support.errors import CompileError, TilewrightError, current_loc, entry

_OURS = os.path.dirname(__file__) + os.sep  # the formulas of ops

Array: TypeAlias = Any
Function: TypeAlias = Callable[..., Any]


class Op(Record):
    """A record that is called like its formula."""

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        given = self.bind(args, kwargs)
        try:
            library = self.library(given)
            if library == "torch":
                from tilewright.ops import for_torch

                return for_torch.call(self, given)
            if library == "jax":
                return self._by_jax(given)
            self.check(given)
            return self.run(**given)
        except TilewrightError as error:
            if error.loc is not None and error.loc.file.startswith(_OURS):
                error.diagnostic = replace(error.diagnostic, loc=current_loc())
            raise

    def _by_jax(self, given: dict[str, Any]) -> Any:
        import jax

        import tilewright.jax

        if any(map(is_traced, given.values())):
            self.results(given)
            if self.pull is not None:
                return in_jax(self.gradients(), given)
            named = {n: given.pop(n) for n in self.names[self.places :]}
            return tilewright.jax.call(self.run, *given.values(), **named)
        with jax.ensure_compile_time_eval():  # arrays that a traced function closes over
            self.check(given)
            return self.run(**given)


def op(
    signature: str,
    *,
    formula: str,
    error: float,
    wrt: Sequence[str] = (),
    text: bool = False,
    pull: Pull | None = None,
) -> Callable[[Callable[..., Any]], Op]:
    """Make an op of a formula: see `Record`, and `shapes` for what a signature says."""

    def make(function: Callable[..., Any]) -> Op:
        made = Op(function, Signature.read(signature), formula, tuple(wrt), error, text, pull)
        other = OPS.get(made.name)
        if other is not None and _origin(other) != _origin(made):
            raise CompileError(
                f"there is an op called {made.name}",
                got=f"one of {_origin(made)}, where {_origin(other)} has one",
                fix="give the function another name",
            )
        OPS[made.name] = made
        if "tilewright.ops.for_torch" in sys.modules:
            from tilewright.ops import for_torch

            for_torch.define(made)
        return made

    return make


def _origin(op: Record) -> str:
    return f"{op.function.__module__}.{op.function.__qualname__}"
