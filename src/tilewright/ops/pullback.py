"""Gradients of ops that no formula says: a function gives them, as `tm.vjp` does of formulas."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

# of the arguments that gradients are wanted of, cotangents of float results, and the arguments
Pull: TypeAlias = "Callable[..., Mapping[str, Any]]"


@dataclass(frozen=True)
class Pullback:
    """As `tm.vjp` of a formula: `forward` gives results and what gradients need of them,
    `backward` the gradients by `wrt`."""

    op: Any
    function: Pull
    wrt: tuple[str, ...]

    def pair(self, **given: Any) -> tuple[Recomputed, list[Any]]:
        names = [n for n in self.op.signature.arrays if given[n] is not None]
        return Recomputed(self, given, names), [given[n] for n in names]

    def forward(self, **given: Any) -> tuple[Any, tuple[Recomputed, list[Any]]]:
        pair, arrays = self.pair(**given)
        return self.op.run(**given), (pair, arrays)

    def backward(self, kept: tuple[Recomputed, list[Any]], *cotangents: Any) -> Any:
        pair, arrays = kept
        return pair.backward(arrays, cotangents)


@dataclass(frozen=True)
class Recomputed:
    """An op and its gradients for arguments like these, of which all arrays are kept."""

    back: Pullback
    given: Mapping[str, Any]
    names: Sequence[str]

    @property
    def needs(self) -> frozenset[str]:
        return frozenset(self.names)

    @property
    def outlines(self) -> list[tuple[Any, Any]]:
        found: list[tuple[Any, Any]] = self.back.op.results(self.given)
        return found

    def values_of(self, arrays: Sequence[Any]) -> list[Any]:
        found = self.back.op.run(**self._with(arrays))
        return list(found) if isinstance(found, tuple) else [found]

    def kept_of(self, arrays: Sequence[Any], found: Sequence[Any]) -> tuple[Any, ...]:
        return tuple(arrays)

    def backward(self, kept: Sequence[Any], cotangents: Sequence[Any]) -> Any:
        made = self.back.function(self.back.wrt, *cotangents, **self._with(kept))
        found = tuple(made[n] for n in self.back.wrt)
        return found if len(found) > 1 else found[0]

    def _with(self, arrays: Sequence[Any]) -> dict[str, Any]:
        return {**self.given, **dict(zip(self.names, arrays, strict=True))}


def in_jax(back: Pullback, given: Mapping[str, Any]) -> Any:
    """The op inside a function that JAX traces, with these gradients."""
    import jax

    from tilewright.jax import call

    pair, arrays = back.pair(**given)

    def values(*arrays: Any) -> Any:
        found = call(lambda *arrays: pair.values_of(arrays), *arrays)
        return found[0] if len(found) == 1 else tuple(found)

    def slopes(kept: Sequence[Any], cotangents: Any) -> tuple[Any, ...]:
        several = cotangents if isinstance(cotangents, tuple) else (cotangents,)
        made = call(lambda *several: pair.backward(kept, several), *several)
        named = dict(zip(back.wrt, made if isinstance(made, tuple) else (made,), strict=True))
        return tuple(map(named.get, pair.names))

    run = jax.custom_vjp(values)
    run.defvjp(lambda *arrays: (values(*arrays), arrays), slopes)
    return run(*arrays)
