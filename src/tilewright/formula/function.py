"""`@tw.math`: a function of arrays that runs as a tile program."""

from __future__ import annotations

import copy
import functools
import inspect
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from itertools import compress
from math import prod
from typing import Any, TypeAlias

import numpy as np

from tilewright.formula.arguments import Call, Leaf, apart, is_array, together
from tilewright.formula.bounds import error_bounds
from tilewright.formula.empty import is_empty, without_empty
from tilewright.formula.explained import at_shape, explained, here, is_quick
from tilewright.formula.fragments import has_tiles, of_tiles
from tilewright.formula.front.trace import trace, with_names
from tilewright.formula.front.values import is_value, tracing_now
from tilewright.formula.inline import normalize
from tilewright.formula.meaning import evaluate
from tilewright.formula.plan import Plan, check_formula, digest, steps
from tilewright.formula.search.decisions import decided
from tilewright.formula.search.find import Found, search, written
from tilewright.formula.search.prices import default_target, rates_of
from tilewright.formula.sizes import Sizes
from tilewright.formula.tiles.program import TileProgram
from tilewright.formula.tiles.source import examples, load
from tilewright.ir.buffer import Buffer
from tilewright.ir.core import Const, Dim, Var
from tilewright.ir.dtype import dtype as find_dtype
from tilewright.ir.formula import Extent, Formula, bound_sizes, extents
from tilewright.ir.target import Target
from tilewright.runtime.backends import resolve
from tilewright.runtime.direct import KEPT
from tilewright.runtime.outputs import in_shapes, torch_dtype
from tilewright.support.arguments import bound_arguments
from tilewright.support.content_key import Context, content_key
from tilewright.support.errors import CompileError, LaunchError, entry

Kind: TypeAlias = "tuple[str, tuple[Extent, ...], Any]"
_Shape: TypeAlias = "tuple[Extent, ...] | None"
Dynamic: TypeAlias = "Mapping[str, Mapping[int, Any]]"


MOST_BYTES = 1 << 40  # of a result


class MathFunction:
    """A formula, called with arrays. Kernels are made for the shapes and types that it meets.

    >>> import numpy as np, tilewright as tw, tilewright.math as tm
    >>> @tw.math
    ... def double(x):
    ...     return x + x
    >>> double(np.arange(3, dtype=np.float32)).tolist()
    [0.0, 2.0, 4.0]
    """

    def __init__(
        self,
        function: Callable[..., Any],
        target: Any = None,
        schedule: Any = None,
        dynamic: Dynamic | None = None,
        plan: Plan | None = None,
    ) -> None:
        self.function, self.target, self.schedule = function, target, schedule or {}
        self.planned = plan
        self.signature = inspect.signature(function)
        self.dynamic = dynamic or {}
        self.sizes = Sizes.of(self.dynamic, self.signature.parameters)
        self._made: dict[tuple[Any, ...], Made] = {}
        self._names = list(self.signature.parameters)
        self._context = Context(function)
        self._calls: dict[tuple[Any, ...], tuple[Made, list[int]]] = {}
        functools.update_wrapper(self, function)

    @entry
    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        trace = tracing_now()
        if trace is not None:  # inside another function
            return with_names(self.function, trace)(*args, **kwargs)
        if has_tiles((*args, *kwargs.values())):  # inside a kernel
            return of_tiles(self.traced, self.signature, self.arguments(args, kwargs))
        given = [*args, *kwargs.values()]
        names = [*self._names[: len(args)], *kwargs]
        key = (self._context.key(), *kwargs, *map(self.sizes.kind, names, given))
        known = self._calls.get(key)
        if known is None:
            made, arrays = self._of(args, kwargs)
            places = [names.index(b.name) for b in made.formula.inputs if b.name in names]
            same = [given[i] for i in places if i < len(given)]
            if None not in key and [*map(id, same)] == [*map(id, arrays)]:
                self._calls[key] = made, places
            return made.run(arrays)
        made, places = known
        return made.run([given[i] for i in places])

    def __get__(self, instance: Any, owner: Any = None) -> Any:
        return self if instance is None else _Method(self, instance)

    def __content_parts__(self) -> tuple[Any, ...]:
        return self.function, self.target, self.schedule, self.planned and self.planned.text()

    def with_schedule(self, **choices: Any) -> MathFunction:
        """The same formula with parts of its schedule given: `tiles={"i": 128}`, by the names of
        the loops in `tile()`, `threads`, `stages`, …; the rest is chosen."""
        return self._like(schedule={**self.schedule, **choices})

    @entry
    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """What is decided for arguments like these: laws, kernels, a schedule for each."""
        return self._of(args, kwargs)[0].plan()

    def with_plan(self, plan: Plan) -> MathFunction:
        """The same formula with what a plan decides, for arguments like those that it was made
        with. Schedules of a plan for another kind of target are left out."""
        return self._like(planned=plan)

    def _like(self, **changed: Any) -> MathFunction:
        """The same function with other attributes, and nothing made yet."""
        other = copy.copy(self)
        other.__dict__ |= {**changed, "_made": {}, "_calls": {}}
        return other

    @entry
    def formula(self, *args: Any, **kwargs: Any) -> Formula:
        """The formula for arguments like these."""
        return self._of(args, kwargs)[0].formula

    @entry
    def tile(self, *args: Any, **kwargs: Any) -> str:
        """The tile program for arguments like these, as Python text."""
        return self._of(args, kwargs)[0].program.text

    @entry
    def explain(self, *args: Any, **kwargs: Any) -> str:
        """What was decided for arguments like these: kernels, loops, rounding, and what each
        kernel's schedule is."""
        made, arrays = self._of(args, kwargs)
        return made.explained(arrays)

    @entry
    def error_bound(self, *args: Any, **kwargs: Any) -> Any:
        """For each element of the results, how far it may be from the formula in exact arithmetic:
        computed in NumPy with the formula, which takes a while. `formula/bounds.py` says how."""
        made, arrays = self._of(args, kwargs)
        return made.bounds(arrays)

    @property
    def formulas(self) -> list[Formula]:
        """Those of the shapes and types that it has met."""
        return [made.formula for made in self._made.values()]

    @property
    def kernels(self) -> list[Any]:
        return self.kernels_for(self.target)

    def kernels_for(self, target: Any) -> list[Any]:
        """The kernels of the shapes and types that it has met, compiled for a target."""
        return [made.kernel_for(target).compile(*made.examples()) for made in self._made.values()
                if made.has_kernel]  # fmt: skip

    def kernel_like(self, target: Any, *args: Any, **kwargs: Any) -> Any:
        """The kernel for arguments like these, compiled for a target; what it leaves open is chosen
        for their sizes."""
        kernel, arrays = self.jit_like(target, *args, **kwargs)
        return kernel.compile(*arrays)

    def jit_like(self, target: Any, *args: Any, **kwargs: Any) -> tuple[Any, list[Any]]:
        """The `tw.jit` function for arguments like these, and the arrays that it takes."""
        made, arrays = self._of(args, kwargs)
        if not made.has_kernel:
            raise CompileError(
                f"{made.formula.name} has no kernel for arguments like these",
                got=f"{made.formula}",
                fix="give arrays with elements, on which its results depend",
                code="arguments",
            )
        return made.kernel_for(target), made.shaped(arrays)

    def made_for(self, *args: Any, **kwargs: Any) -> Made:
        """The formula, program and kernel for arguments like these."""
        return self._of(args, kwargs)[0]

    def try_with(self, arguments: Mapping[str, Any]) -> str:
        """Meet these arguments, if they suffice; what to do if they do not."""
        known = {n: a for n, a in arguments.items() if n in self.signature.parameters}
        try:
            bound = self.signature.bind(**known)
        except TypeError:
            words = ", ".join(f"{n}=…" for n in self.signature.parameters)
            return (
                "" if self._made else f"call it in the file, or pass --args '{words}' with arrays"
            )
        self._of(bound.args, bound.kwargs)
        return ""

    def arguments(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """What is given, by name."""
        name: str = self.__name__  # type: ignore[attr-defined]
        return bound_arguments(name, self.signature, args, kwargs)

    def traced(
        self, kinds: list[Kind], call: Call, sizes: tuple[Dim, ...] = ()
    ) -> tuple[Formula, Any]:
        """The formula for arrays like these, and what is returned: places of its outputs."""
        used = {n for _, shape, _ in kinds for n in shape}
        dims = (*sizes, *(dim for dim in self.sizes.dims.values() if dim.var in used))
        tree: list[Any] = []

        def results(found: Any) -> list[Any]:
            leaves: dict[str, Any] = {}
            tree.append(apart(found, "out", leaves, is_leaf=is_value))
            return list(leaves.values())

        return trace(self.function, kinds, call, dims, results), tree[0]

    def _of(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Made, list[Any]]:
        key, kinds, call, arrays = self.sorted_out(self.arguments(args, kwargs))
        if key not in self._made:
            self._made[key] = self._make(kinds, call)
        return self._made[key], arrays

    def sorted_out(
        self, given: dict[str, Any]
    ) -> tuple[tuple[Any, ...], list[Kind], Call, list[Any]]:
        """Of arguments, a key, what arrays look like, what is none, and the arrays."""
        arrays: dict[str, Any] = {}
        whole = {n: apart(a, n, arrays) for n, a in given.items() if is_array(a)}
        parts = {n: apart(a, n, arrays, whole) for n, a in given.items() if n not in whole}
        arrays = {n: arrays[n] for n in (*whole, *(n for n in arrays if n not in whole))}
        shapes = {n: tuple(map(int, a.shape)) for n, a in arrays.items()}
        named = self.sizes.named(shapes)
        kinds = [(n, named[n], _type_of(n, a)) for n, a in arrays.items()]
        key = (self._context.key(), *kinds, content_key(parts))
        return key, kinds, Call(self.signature, whole | parts), list(arrays.values())

    def _make(self, kinds: list[Kind], call: Call) -> Made:
        if not kinds:
            raise CompileError(
                f"{self.__name__} was given no array",  # type: ignore[attr-defined]
                fix="call it with NumPy, PyTorch or JAX arrays; numbers are constants of a formula",
                code="arguments",
            )
        with _of_some_depth(self.__name__):  # type: ignore[attr-defined]
            formula, tree = self.traced(kinds, call)
            return Made(formula, self.target, self.schedule, tree=tree, plan=self.planned)


@contextmanager
def _of_some_depth(name: str) -> Iterator[None]:
    """A formula that Python's stack can follow."""
    try:
        yield
    except RecursionError as error:
        raise CompileError(
            f"{name} is too deep: hundreds of folds in a row, or it calls itself without end",
            fix="compute it in several functions, the arrays between them as arguments",
            code="too-large",
        ) from error


def _type_of(name: str, array: Any) -> Any:
    try:
        return find_dtype(array.dtype)
    except CompileError:
        raise CompileError(
            f"{name} has elements of {array.dtype}, which no kernel has",
            fix="convert it before the call: x.astype(np.float32)",
            code="arguments",
        ) from None


class _Method:
    """A function in a class, of one of its objects: that is an argument like a number, known by
    what it holds."""

    def __init__(self, function: MathFunction, instance: Any) -> None:
        self._function, self._instance = function, instance

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._function(self._instance, *args, **kwargs)

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._function, name)
        return functools.partial(found, self._instance) if callable(found) else found


class Made:
    """A formula of known shapes, its program, and the kernel when it has been called. `kept` are
    outputs and inputs that another formula keeps or kept; `tree` is what the function returns, with
    places for outputs."""

    def __init__(
        self,
        formula: Formula,
        target: Any,
        schedule: dict[str, Any],
        kept: Collection[str] = (),
        tree: Any = None,
        plan: Plan | None = None,
    ) -> None:
        self.formula, self.target, self.schedule, self.kept = formula, target, schedule, kept
        self.tree, self.planned = tree, plan
        self._by_shapes: dict[Any, Any] = {}  # what calls of these shapes are turned into
        if plan is not None:
            check_formula(plan, formula)
        for b in formula.outputs:
            _check_bytes(formula, b)
        self.normal = normalize(without_empty(formula))
        # arrays without elements are taken and given, but no kernel sees them
        self._used = [not is_empty(b) for b in formula.inputs]
        self.has_kernel = bool(self.normal.formula.inputs and self.normal.formula.outputs)

    @functools.cached_property
    def found(self) -> Found:
        """What was decided, and the program."""
        target, whole = default_target(self.target), without_empty(self.formula)
        with _of_some_depth(self.formula.name):
            if self.planned is None:
                return search(whole, self.normal, self.kept, target)
            at = decided(whole, self.normal, self.planned.decisions)
            return written(at, self.kept, rates_of(target))

    def plan(self) -> Plan:
        target = self._planned_for()
        if not self.has_kernel:
            return Plan(self.formula.name, digest(self.formula), str(target))
        found, program = self.found, self.program
        chosen = self._loaded.on(target).calls.chosen(self._bound())
        computed = [(n, c) for (n, _), c in zip(chosen, program.computes, strict=False)]
        return Plan(
            self.formula.name, digest(self.formula), str(target), found.decided.normal.laws,
            found.decided.decisions, steps(computed, {n: c for n, (_, c) in enumerate(chosen)}),
            program.rounded,
        )  # fmt: skip

    def _planned_for(self) -> Target:
        """The target of a function, or the GPU that prices are for."""
        told = resolve(self.target) if self.target not in (None, "auto") else None
        return told if told is not None else default_target(None)

    def _bound(self) -> dict[str, Any]:
        bound: dict[str, Any] = self._loaded.calls.bind(tuple(self.examples()), {})
        return bound

    @property
    def program(self) -> TileProgram:
        return self.found.program

    @functools.cached_property
    def _loaded(self) -> Any:
        kernel = load(self.program)
        plan = self.planned
        if plan is not None and any(step.is_told for step in plan.kernels):
            there = resolve(self.target if self.target is not None else "auto")
            if there.kind == Target.parse(plan.target).kind:
                numbers = self.program.numbers
                told = {n: s.candidate(numbers) for n, s in enumerate(plan.kernels) if s.is_told}
                kernel = kernel.with_choices(told)
        return kernel.with_schedule(**self.schedule) if self.schedule else kernel

    @functools.cached_property
    def kernel(self) -> Any:
        return self.kernel_for(self.target)

    def kernel_for(self, target: Any) -> Any:
        return self._loaded.on(target) if target is not None else self._loaded

    def examples(self) -> list[Any]:
        """Arrays like those that it takes."""
        return examples(self.normal.formula)

    @functools.cached_property
    def _places(self) -> list[tuple[Var, int, int]]:
        """Where sizes are found: in which argument, along which axis."""
        inputs = enumerate(self.formula.inputs)
        return [(n, i, d) for i, b in inputs for d, n in enumerate(b.shape) if isinstance(n, Var)]

    def _sizes(self, arrays: list[Any]) -> dict[Var, int]:
        found: dict[Var, int] = {}
        for var, place, axis in self._places:
            if found.setdefault(var, n := arrays[place].shape[axis]) != n:
                bound_sizes(self.formula, [a.shape for a in arrays])  # which says what differs
        return found

    @functools.cached_property
    def _shapes(self) -> tuple[list[_Shape], list[_Shape]]:
        """The shapes that kernels take inputs in, and that outputs get, where they are others."""
        normal, outside = self.normal.formula, self.normal.shapes
        pairs = [(outside[b.name], extents(b)) for b in normal.inputs]
        results = [(extents(b), outside[b.name]) for b in normal.outputs]
        inputs, outputs = ([None if a == b else b for a, b in each] for each in (pairs, results))
        return inputs, outputs

    def _turns(self, arrays: list[Any]) -> tuple[Any, Any]:
        """A key for the shapes of a call's arrays, None if all calls have the same; and in which
        shapes kernels take inputs, and outputs are returned."""
        if not self.formula.sizes:
            return None, self._shapes
        key = tuple([a.shape for a in arrays])
        found = self._by_shapes.get(key)
        if found is None:
            if len(self._by_shapes) >= KEPT:
                self._by_shapes.clear()
            sizes = self._sizes(arrays)
            found = self._by_shapes[key] = [
                [None if shape is None else at_shape(shape, sizes) for shape in side]
                for side in self._shapes
            ]
        return key, found

    def shaped(self, arrays: list[Any]) -> list[Any]:
        used = arrays if all(self._used) else [*compress(arrays, self._used)]
        return in_shapes(used, self._turns(arrays)[1][0])

    def run(self, arrays: list[Any]) -> Any:
        if not self.has_kernel:
            return self.returned(self._made_here(arrays))
        given = [*map(contiguous, arrays)]
        try:
            key, shapes = self._turns(given)
            used = given if all(self._used) else [*compress(given, self._used)]
            outputs = self.kernel.again(used, *shapes, key)
        except LaunchError:
            bound_sizes(self.formula, [a.shape for a in arrays])  # in the user's names
            raise
        if len(outputs) < len(self.formula.outputs):
            made = iter(outputs)
            outputs = [_given(arrays[0], b) if is_empty(b) else next(made)
                       for b in self.formula.outputs]  # fmt: skip
        return self.returned(outputs)

    def bounds(self, arrays: list[Any]) -> Any:
        """By element of the results, how far they may be off."""
        known, sizes = self._bounds(arrays), self._sizes(arrays)
        shapes = {b.name: at_shape(extents(b), sizes) for b in self.formula.outputs}
        return self.returned([known.get(n, np.zeros(s)).reshape(s) for n, s in shapes.items()])

    def _bounds(self, arrays: list[Any]) -> dict[str, Any]:
        normal = (self.found.decided.normal if self.has_kernel else self.normal).formula
        found = error_bounds(normal, [_numpy(a) for a in self.shaped(arrays)])
        return {b.name: x for b, x in zip(normal.outputs, found, strict=True)}

    def _made_here(self, arrays: list[Any]) -> list[Any]:
        """What depends on no element of an array."""
        normal = self.normal.formula
        found = evaluate(normal, []) if normal.outputs else ()
        values = {b.name: x for b, x in zip(normal.outputs, found, strict=True)}
        return [_given(arrays[0], b, values.get(b.name)) for b in self.formula.outputs]

    def returned(self, outputs: list[Any]) -> Any:
        if isinstance(self.tree, Leaf) or (self.tree is None and len(outputs) == 1):
            return outputs[0]
        if self.tree is None:
            return tuple(outputs)
        return together(self.tree, dict(zip(self._leaves, outputs, strict=True)))

    @functools.cached_property
    def _leaves(self) -> list[str]:
        leaves: dict[str, Any] = {}
        apart(self.tree, "", leaves, is_leaf=lambda x: isinstance(x, Leaf))
        return [leaf.name for leaf in leaves.values()]

    def explained(self, arrays: list[Any]) -> str:
        if not self.has_kernel:
            return f"{self.formula}\n\nno kernel: no element of an array is needed"
        told = self.kernel.compile(*self.shaped(arrays)).explain()
        rates, sizes = rates_of(default_target(self.target)), self._sizes(arrays)
        lines = [str(self.formula), "", *explained(self.found, rates, sizes)]
        if is_quick(self.found.decided.normal.formula, sizes):
            lines += here(self._bounds(arrays))
        return "\n".join([*lines, "", self.program.text, str(told)])


def _check_bytes(formula: Formula, b: Buffer) -> None:
    count = prod(int(n.value) for n in b.shape if isinstance(n, Const))
    if count * b.dtype.bits > MOST_BYTES * 8:
        a = formula.definition(b)
        raise CompileError(
            f"{b.name} has {count:,} elements, {count * b.dtype.bits / (8 << 40):,.0f} TiB",
            loc=a.loc if a is not None else None,
            expected="at most 1 TiB: no GPU has more memory",
            got=f"shape {list(extents(b))} of {b.dtype}",
            fix="fold it where it is computed, or give it in parts",
            code="too-large",
        )


def _given(like: Any, b: Buffer, values: Any = None) -> Any:
    """An array of few values, or of none, in the library of `like` and where it is."""
    values = np.zeros(b.static_shape, b.dtype.numpy) if values is None else values
    if hasattr(like, "new_tensor"):  # PyTorch's
        kind = float if b.dtype.is_float else bool if b.dtype.is_bool else int
        made = like.new_tensor(values.astype(kind).tolist(), dtype=torch_dtype(b.dtype))
        return made.reshape(b.static_shape)
    space = like.__array_namespace__() if hasattr(like, "__array_namespace__") else np
    return space.asarray(values.reshape(b.static_shape))


def _numpy(array: Any) -> Any:
    if hasattr(array, "detach"):  # PyTorch's, whose bfloat16 NumPy does not have
        array = array.detach().cpu()
        array = array.float() if array.dtype.is_floating_point else array
    return np.asarray(array)


def contiguous(array: Any) -> Any:
    """The array as kernels take it: NumPy's and PyTorch's may have strides."""
    if isinstance(array, np.ndarray):
        return array if array.flags.c_contiguous else np.ascontiguousarray(array)
    ask = getattr(array, "is_contiguous", None)
    return array if ask is None or ask() else array.contiguous()


def math(
    function: Callable[..., Any] | None = None,
    *,
    target: Any = None,
    dynamic: Dynamic | None = None,
) -> Any:
    """Make a tile program of a function of arrays: `@tw.math` or `@tw.math(target="cpu")`.
    `dynamic={"x": {0: "n"}}`: one program serves all sizes of the first axis of `x`; in place of a
    name, `T.dynamic("n", min=…, max=…, multiple_of=…)` is a contract."""
    if function is None:
        return functools.partial(math, target=target, dynamic=dynamic)
    return MathFunction(function, target, dynamic=dynamic)
