"""Calls of kernels that are written directly: traced for the arrays of a call, compiled once for
all calls that differ in nothing the kernel's text depends on."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import count
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from tilewright.choose.candidates import Candidate, Opened
from tilewright.choose.pick import Choice, candidate_of, choose, open_choices, ranked_all
from tilewright.choose.ranges import range_end
from tilewright.choose.roughly import Times, roughly
from tilewright.ir.core import *
from tilewright.lang.builder import Builder, Sizes
from tilewright.lang.sizes import Traced, choose_sizes
from tilewright.lang.trace import DirectTrace, Pick, is_array, trace_direct
from tilewright.runtime.backends import compiled_for, settings
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.arguments import bound_arguments
from tilewright.support.content_key import Context, content_key
from tilewright.support.key_rules import LEAVES, Key, Unkeyable

_NO_SIZES: Mapping[str, int] = MappingProxyType({})
KEPT = 1024
_STAND_IN = 128  # for sizes of `T.const`, while only the form of the text matters


class Outline(NamedTuple):
    """An array's shape and type, which are all that a kernel's text depends on."""

    shape: tuple[int, ...]
    dtype: str


@dataclass(frozen=True)
class _Known:
    """A kernel, and the names of the parameters that its arguments are."""

    kernel: CompiledKernel
    arguments: tuple[str, ...]


class Direct:
    """The kernels of one function, by what they depend on."""

    def __init__(
        self,
        fn: Callable[..., Any],
        make: Callable[[DirectTrace], CompiledKernel],
        target: Callable[[], Any],
        context: Context,
        tune: Callable[[dict[str, Any], Mapping[str, int]], Any] | None = None,
        choices: Mapping[int, Candidate] | None = None,
    ) -> None:
        """`tune`: asked before a kernel is compiled, with its arguments and sizes; `choices`: those
        that are made already, by the number of a kernel."""
        self.fn, self.make, self.target = fn, make, target
        self.signature = inspect.signature(fn)
        self.kernels: dict[Any, _Known] = {}
        self._names = list(self.signature.parameters)
        self.context = context
        self._scalars: dict[Any, frozenset[str]] = {}  # run-time scalars, by context once traced
        self._open: dict[Any, dict[str, tuple[bool, ...]]] = {}
        self._chosen: dict[Any, bool] = {}  # whether choices depend on sizes that launches give
        self.tune, self.choices = tune, choices
        self._recent: dict[Any, tuple[CompiledKernel, tuple[Any, ...]]] = {}

    def __call__(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        context = self.context.key()
        try:
            looks = self._looks(args, kwargs, self._scalars.get(context))
            key: Any = (settings(), context, len(args), *kwargs, *looks)
            found = self._recent.get(key)
        except (TypeError, Unkeyable):  # a shape that has no hash, or what `known` refuses
            key = found = None
        if found is None:
            bound = self.bind(args, kwargs)
            known = self.known(bound)
            found = (known.kernel, tuple(map(self._source(args, kwargs), known.arguments)))
            if key is not None:
                if len(self._recent) >= KEPT:
                    self._recent.clear()
                self._recent[key] = found
            return known.kernel(*(bound[name] for name in known.arguments))
        kernel, places = found
        return kernel(*[args[p] if type(p) is int else kwargs[p] for p in places])

    def as_torch_op(
        self, name: str, arguments: Mapping[str, Any], target: Any, formulas: dict[str, Any]
    ) -> Any:
        """See `Jit.as_torch_op`."""
        from tilewright.runtime.torch_op import Form, define

        bound, sizes = self.bind_some((), arguments)

        def form(traced: DirectTrace) -> Form:
            return Form(traced.program, traced.arguments, traced.outputs)

        example = self._example(bound, sizes)
        free = open_axes(example)
        forms: dict[Any, Form] = {}

        def form_for(args: Sequence[Any]) -> Form:
            # sizes of T.const become numbers here, and so part of what torch.compile compiles for
            given = dict(zip(example.arguments, args, strict=True))
            arrays = {
                n: Outline(closed(v.shape, free[n]), str(v.dtype))
                for n, v in given.items()
                if n in free and v is not None
            }
            key = (self.context.key(), content_key(bound), *arrays.items())
            if key not in forms:
                forms[key] = form(self.trace({**bound, **arrays}))
            return forms[key]

        return define(
            name,
            form(example),
            lambda *args: self((), {**bound, **dict(zip(example.arguments, args, strict=True))}),
            device="cuda" if target.kind == "cuda" else "cpu",
            form_for=form_for,
            **formulas,
        )

    def trace(
        self,
        bound: dict[str, Any],
        sizes: Mapping[str, int] | None = None,
        stand_in: int | None = None,
        rank: int = 0,
        given: Mapping[int, Candidate] | None = None,
    ) -> DirectTrace:
        """The text with what is chosen for it. `rank`: of the choices for sizes that it leaves
        open; `given`: these choices."""
        chosen = Choice()

        def pick(builder: Builder, traced: Traced) -> Sizes:
            nonlocal chosen
            chosen = choose(self.target(), builder, traced, rank, given, self.choices)
            return chosen.sizes

        traced = self._first(bound, sizes, pick, stand_in)
        names = [kernel.name for kernel in traced.program.kernels]
        why = {names[number]: text for number, text in chosen.why.items()}
        return replace(
            traced, why=why, has_other=chosen.has_other, is_measured=chosen.is_measured,
            is_ranged=chosen.is_ranged, sizes=chosen.sizes,
        )  # fmt: skip

    def _first(
        self,
        bound: dict[str, Any],
        sizes: Mapping[str, int] | None,
        pick: Pick,
        stand_in: Any = None,
    ) -> DirectTrace:
        with compiled_for(self.target()):
            return trace_direct(self.fn, (), bound, sizes, stand_in, pick)

    def opened(
        self, bound: dict[str, Any], sizes: Mapping[str, int], ranked: bool = False
    ) -> Opened:
        """What the text leaves open; `ranked`: of each kernel the candidates that fit, the best by
        the model first."""
        target, found = self.target(), dict[int, Sequence[Candidate]]()

        def pick(builder: Builder, traced: Traced) -> Sizes:
            default = choose_sizes(builder)
            for number, each in open_choices(target, builder, default).items():
                if ranked and target.kind == "cuda":
                    each = [c for c, _ in ranked_all(target, builder, traced, default, number)]
                found.update({number: each} if each else {})
            return default

        return Opened(self._first(bound, sizes, pick).program, target, found)

    def chosen(self, bound: dict[str, Any]) -> list[tuple[str, Candidate]]:
        """The kernels of the text by name, and what is chosen for each."""
        found = self.trace(bound)
        names = [kernel.name for kernel in found.program.kernels]
        return [(name, candidate_of(found.sizes, number)) for number, name in enumerate(names)]

    def estimated(self, bound: dict[str, Any], sizes: Mapping[str, int]) -> list[Times]:
        """The kernels of the text by name, and how long each takes by the model, with the best of
        a few candidates."""
        found = list[Times]()

        def pick(builder: Builder, traced: Traced) -> Sizes:
            chosen, found[:] = roughly(self.target(), builder, traced)
            return chosen

        self._first(bound, sizes, pick)
        return found

    def _example(self, bound: dict[str, Any], sizes: Mapping[str, int]) -> DirectTrace:
        """A trace without arrays, for what does not depend on their sizes."""
        try:
            return self.trace(bound, sizes, stand_in=_STAND_IN)
        except CompileError as error:
            if sizes or "const" not in self.fn.__code__.co_names:
                raise
            raise CompileError(
                f"{self.fn.__name__} cannot be read with sizes of {_STAND_IN}: {error.message}",
                loc=error.loc,
                expected="sizes of T.const for which it is right",
                got=f"{_STAND_IN} for each",
                fix="give such sizes by name: as_torch_op(name, M=…, N=…); calls may have others",
            ) from error

    def _looks(
        self, args: tuple[Any, ...], kwargs: dict[str, Any], scalars: frozenset[str] | None
    ) -> Iterable[Any]:
        if not scalars:
            return map(_look, (*args, *kwargs.values()))
        names = (*self._names[: len(args)], *kwargs)
        values = (*args, *kwargs.values())
        return (type(v) if n in scalars else _look(v) for n, v in zip(names, values, strict=False))

    def _source(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Callable[[str], Any]:
        """Where a call of this form has the argument of that name."""
        return lambda name: name if name in kwargs else self._names.index(name)

    def bind(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any], partial: bool = False
    ) -> dict[str, Any]:
        """The arguments of a call by name, defaults included."""
        return bound_arguments(self.fn.__name__, self.signature, args, kwargs, partial)

    def bind_some(
        self, args: tuple[Any, ...], kwargs: Mapping[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """Some arguments, and the sizes of `T.const` that are given by name among them."""
        sizes = {n: v for n, v in kwargs.items() if n not in self.signature.parameters}
        given = {n: v for n, v in kwargs.items() if n not in sizes}
        return self.bind(args, given, partial=True), sizes

    def known(self, bound: dict[str, Any], sizes: Mapping[str, int] = _NO_SIZES) -> _Known:
        """The kernel for these arguments; arrays may be left out where `sizes` are given."""
        context = self.context.key()
        about = (self.target(), content_key(dict(sizes)), context)
        found = self.kernels.get((about, self._key(bound, about)))
        if found is None:
            if self.tune is not None:
                self.tune(bound, sizes)
            traced, kernel = self._made(bound, sizes)
            self._scalars[context] = frozenset(s.name for s in traced.program.scalars)
            kinds = self._kinds(bound, context)
            self._open[about, kinds] = open_axes(traced)
            self._chosen[about, kinds] = traced.is_ranged
            found = self.kernels.setdefault(
                (about, self._key(bound, about)), _Known(kernel, tuple(traced.arguments))
            )
        return found

    def _made(
        self, bound: dict[str, Any], sizes: Mapping[str, int]
    ) -> tuple[DirectTrace, CompiledKernel]:
        """The kernel at the best sizes that can be compiled, and that registers hold."""
        best: tuple[DirectTrace, CompiledKernel, list[Any]] | None = None
        wrong: CompileError | None = None
        for rank in count():
            traced = self.trace(bound, sizes, rank=rank)
            try:
                with _kept_back(traced.has_other) as said:
                    kernel = self.make(traced)
            except CompileError as error:
                wrong = wrong or error
            else:
                fine = traced.is_measured or not kernel.spills
                if best is None or fine:
                    best = traced, kernel, said
                if fine:
                    break
            if not traced.has_other:
                break
        if best is None:
            assert wrong is not None
            raise wrong
        traced, kernel, said = best
        for each in said:
            warnings.warn_explicit(each.message, each.category, each.filename, each.lineno)
        return traced, kernel

    def _key(self, bound: Mapping[str, Any], about: Any) -> Any:
        context = about[-1]
        kinds = self._kinds(bound, context)
        free = self._open.get((about, kinds), {})
        scalars = self._scalars.get(context, ())
        arrays = {n: v for n, v in bound.items() if is_array(v) and n not in scalars}
        sizes = [closed(v.shape, free.get(n, ())) for n, v in arrays.items()]
        if self._chosen.get((about, kinds)):
            shapes = zip((v.shape for v in arrays.values()), sizes, strict=True)
            sizes = [tuple(map(_ranged, shape, each)) for shape, each in shapes]
        return kinds, tuple(sizes)

    def _kinds(self, bound: Mapping[str, Any], context: Any) -> Any:
        """All that the kernel's text depends on, but sizes."""
        scalars = self._scalars.get(context, ())
        return tuple(
            (n, ("array", len(v.shape), str(v.dtype)) if is_array(v) else key_of(self.fn, n, v))
            for n, v in bound.items()
            if n not in scalars
        )


@contextmanager
def _kept_back(is_open: bool) -> Iterator[list[warnings.WarningMessage]]:
    """The warnings of what may not be taken, where that is open."""
    if not is_open:
        yield []
        return
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        yield said


def open_axes(traced: DirectTrace) -> dict[str, tuple[bool, ...]]:
    """By tensor: which of its sizes other launches may have otherwise."""

    def is_open(size: Expr) -> bool:
        return any(var.name not in traced.empty for var in variables(size))

    params = (p for p in traced.program.params if isinstance(p, Buffer))
    return {p.name: tuple(map(is_open, p.shape)) for p in params}


def closed(shape: Any, free: tuple[bool, ...]) -> tuple[int, ...]:
    """The sizes that a kernel is compiled for, and -1 in place of the others."""
    free = free if len(free) == len(shape) else (False,) * len(shape)
    return tuple(-1 if is_free else int(s) for s, is_free in zip(shape, free, strict=True))


def _ranged(size: int, known: int) -> int:
    """A size that a kernel is compiled for, or less than 0: the range that it is chosen for."""
    return known if known >= 0 else -range_end(int(size))


def key_of(fn: Callable[..., Any], name: str, value: Any) -> Key:
    """The key of an argument by type and content; one that has none is refused."""
    try:
        return content_key(value)
    except Unkeyable as error:
        raise CompileError(
            f"argument {name!r} of {fn.__name__} decides about the kernel, and has no key: "
            f"{error.why}" + (f" (at {name}{error.path})" if error.path else ""),
            expected="a value that can be compared with those of later calls",
            got=type(value).__qualname__,
            fix=error.fix,
            code="arguments",
        ) from None


def outline(value: Any) -> Any:
    """An array as its outline, anything else as it is."""
    return Outline(tuple(value.shape), str(value.dtype)) if is_array(value) else value


def _look(value: Any) -> Any:
    """What tells calls apart, in as little time as it takes."""
    kind = type(value)
    if kind is np.ndarray:
        return kind, value.shape, value.dtype
    if kind is int or kind is str or value is None:
        return value
    if kind not in LEAVES and is_array(value):
        return kind, value.shape, value.dtype
    return content_key(value)
