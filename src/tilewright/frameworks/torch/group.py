"""A group of nodes as a function of tensors."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from functools import cached_property
from typing import Any

from tilewright.formula.function import Made
from tilewright.frameworks.torch.formula import (
    Order,
    Sizes,
    Unsaid,
    formula_of,
    hint,
    symbols,
    times_symbol,
)
from tilewright.frameworks.torch.graph import Facts, has_tensors, tensors
from tilewright.frameworks.torch.lowerings import VIEW
from tilewright.support.errors import PerformanceWarning, TilewrightError

_MADE: dict[Any, Kernels] = {}  # by what groups compute: layers that repeat share kernels


class Kernels:
    """The kernels of groups that compute the same: one for all sizes that calls give, or, where
    the formula does not take them, one for each set of sizes."""

    def __init__(self, nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        self.nodes, self.inputs, self.outputs = nodes, inputs, outputs
        self.name = _name_of(nodes)
        self.why_special = ""  # why there is a kernel for each set of sizes
        self.refused = ""  # why PyTorch computes it after all
        self.by_sizes: dict[tuple[int, ...], Made] = {}
        self.symbols = symbols(x.meta.get("val") for x in (*nodes, *inputs))
        self.made = self._general()

    def _made(self, sizes: Sizes) -> Made:
        formula = formula_of(self.name, self.nodes, self.inputs, self.outputs, sizes)
        made = Made(formula, None, {})
        if made.has_kernel:
            made.program  # noqa: B018 what has no tile program says so here
        return made

    def _general(self) -> Made | None:
        if not self.symbols:
            return self._made(Sizes())
        missing = [name for name in self.symbols if name not in places(self.inputs)]
        if missing:
            self.why_special = f"{missing[0]} is no size of what it reads"
        else:
            try:
                return self._made(Sizes())
            except (Unsaid, TilewrightError) as error:
                self.why_special = _first_line(error)
        example = self._example()
        if example is not None:
            self.by_sizes[tuple(example.values())] = self._made(Sizes(example))
        return None

    def _example(self) -> dict[str, int] | None:
        """The sizes that the graph was made for."""
        found: dict[str, int] = {}
        for x in (*self.nodes, *self.inputs):
            for t in tensors(x.meta.get("val")):
                for n in t.shape:
                    if not isinstance(n, int) and n.node.expr.is_Symbol:
                        found[str(n.node.expr)] = hint(n)
                    elif not isinstance(n, int):
                        for s in n.node.expr.free_symbols:
                            known = n.node.shape_env.backed_var_to_val.get(s)
                            if known is not None:
                                found[str(s)] = int(known)
        return {s: found[s] for s in self.symbols} if found.keys() >= set(self.symbols) else None

    def for_sizes(self, values: tuple[int, ...]) -> Made:
        if self.made is not None:
            return self.made
        if values not in self.by_sizes:
            self.by_sizes[values] = self._made(Sizes(dict(zip(self.symbols, values, strict=True))))
        return self.by_sizes[values]

    @property
    def any_made(self) -> Made | None:
        return self.made or next(iter(self.by_sizes.values()), None)


class Runner:
    """What a graph calls in place of a group's nodes: tensors in, a list of tensors out."""

    def __init__(self, facts: Facts, members: Sequence[Any]) -> None:
        self.members = list(members)
        inside = set(members)
        self.nodes = facts.with_free(members)
        feeds = dict.fromkeys(x for node in members for x in facts.feeds(node))
        self.inputs = [x for x in feeds if x not in inside and has_tensors(x)]
        self._split_sizes(facts)
        self.outputs = [
            node for node in members
            if not isinstance(node.meta["val"], (tuple, list))
            and any(user not in inside for user in facts.readers(node))
        ]  # fmt: skip
        known = places(self.inputs)
        names = symbols(x.meta.get("val") for x in (*self.nodes, *self.inputs))
        self.places = [known.get(name) for name in names]
        numbers = [facts.sizes.get(n) for n, p in zip(names, self.places, strict=True) if p is None]
        if None in numbers:
            raise Unsaid(self.members[0], "its sizes are known to nobody")
        self.numbers = [x for x in numbers if x is not None]
        key = _key(self.nodes, self.inputs, self.outputs)
        if key not in _MADE:
            _MADE[key] = Kernels(self.nodes, self.inputs, self.outputs)
        self.kernels = _MADE[key]
        made = self.kernels.any_made
        if not self.inputs or (made is not None and not made.has_kernel):
            raise Unsaid(self.members[0], "it needs no element of a tensor")
        self._read = [Order.of(x.meta["val"]) for x in self.inputs]
        self._written = [Order.of(x.meta["val"], result=True) for x in self.outputs]
        self._turns = any(not o.is_plain for o in (*self._read, *self._written))

    def _split_sizes(self, facts: Facts) -> None:
        """Read views in place of a tensor whose axes are several of theirs: views have sizes that
        calls give."""
        for x in list(self.inputs):
            if not _is_mixed(x):
                continue
            views = [v for v in self.nodes if x in v.all_input_nodes]
            if all(facts.kinds[v] == VIEW and not _is_mixed(v) for v in views):
                at = self.inputs.index(x)
                self.inputs[at : at + 1] = views
                self.nodes = [n for n in self.nodes if n not in set(views)]

    def __call__(self, *given: Any) -> list[Any]:
        count, last = len(self.inputs), len(self.inputs) + len(self.extra)
        tensors, extra = given[:count], given[count:last]
        if self.kernels.refused:
            return self._eagerly(tensors, extra)
        try:
            return self._run(tensors, given[last:])
        except (TilewrightError, Unsaid) as error:  # also of sizes that this call has
            self.kernels.refused = _first_line(error)
            warnings.warn(
                f"PyTorch computes {', '.join(n.name for n in self.members)[:200]}: "
                f"{self.kernels.refused}",
                PerformanceWarning,
                stacklevel=2,
            )
            return self._eagerly(tensors, extra)

    def _run(self, arrays: tuple[Any, ...], numbers: tuple[int, ...]) -> list[Any]:
        made = self.kernels.made
        if made is None:
            rest = iter(numbers)
            values = [
                next(rest) if p is None else arrays[p[0]].shape[p[1]] // p[2] for p in self.places
            ]
            made = self.kernels.for_sizes(tuple(map(int, values)))
        if not self._turns:
            found = made.run(list(arrays))
            return [found] if len(self.outputs) == 1 else list(found)
        packed = [
            x if order.is_plain else order.packed(x)
            for x, order in zip(arrays, self._read, strict=True)
        ]
        found = made.run(packed)
        results = [found] if len(self.outputs) == 1 else list(found)
        return [
            x if order.is_plain else order.unpacked(x)
            for x, order in zip(results, self._written, strict=True)
        ]

    @cached_property
    def _eager(self) -> Callable[..., Any]:
        """The nodes as PyTorch runs them."""
        import torch

        graph = torch.fx.Graph()
        env: dict[Any, Any] = {}
        for x in (*self.inputs, *self.extra):
            env[x] = graph.placeholder(x.name)
        for node in self.nodes:
            env[node] = graph.node_copy(node, env.__getitem__)
        graph.output([env[x] for x in self.outputs])
        found: Callable[..., Any] = torch.fx.GraphModule({}, graph).forward
        return found

    @cached_property
    def extra(self) -> list[Any]:
        """The nodes that give sizes which views name."""
        known = {*self.nodes, *self.inputs}
        given = dict.fromkeys(x for node in self.nodes for x in node.all_input_nodes)
        return [x for x in given if x not in known and not has_tensors(x)]

    def _eagerly(self, arrays: tuple[Any, ...], extra: tuple[Any, ...]) -> list[Any]:
        return list(self._eager(*arrays, *extra))


def places(inputs: Sequence[Any]) -> dict[str, tuple[int, int, int]]:
    """For sizes that calls give the input and the axis that have them, times a number."""
    found: dict[str, tuple[int, int, int]] = {}
    for i, x in enumerate(inputs):
        for d, n in enumerate(x.meta["val"].shape):
            if not isinstance(n, int) and n.node.expr.is_Symbol:
                found.setdefault(str(n.node.expr), (i, d, 1))
            elif (factor := times_symbol(n)) is not None:
                (symbol,) = n.node.expr.free_symbols
                found.setdefault(str(symbol), (i, d, factor))
    return found


def _is_mixed(x: Any) -> bool:
    """Whether an axis is neither a number, nor a size that calls give, nor a multiple of one."""
    return any(
        not isinstance(n, int) and not n.node.expr.is_Symbol and times_symbol(n) is None
        for t in tensors(x.meta["val"]) for n in t.shape
    )  # fmt: skip


def _first_line(error: Exception) -> str:
    return str(getattr(error, "reason", None) or getattr(error, "message", error)).splitlines()[0]


def _name_of(nodes: Sequence[Any]) -> str:
    words = [
        str(getattr(n.target, "_opname", n.name)).strip("_")
        for n in nodes
        if n.op == "call_function"
    ]
    words = [w for w in dict.fromkeys(words) if w.isidentifier() and w != "getitem"]
    return "_".join(words[-3:]) or "formula"


def _key(nodes: Sequence[Any], inputs: Sequence[Any], outputs: Sequence[Any]) -> Any:
    """All that kernels depend on, with numbers for names."""
    number = {x: i for i, x in enumerate((*inputs, *nodes))}
    wanted = [
        tuple(sorted(str(u.args[1]) for u in n.users if "getitem" in str(u.target))) for n in nodes
    ]

    def said(x: Any) -> Any:
        if isinstance(x, (tuple, list)):
            return tuple(map(said, x))
        if isinstance(x, dict):
            return tuple((k, said(v)) for k, v in x.items())
        if hasattr(x, "all_input_nodes"):
            value = x.meta.get("val")
            return f"%{number[x]}" if x in number else str(value)
        return (type(x).__name__, str(x))

    def looks(x: Any) -> Any:
        return tuple(
            (str(t.dtype), str(t.device), *map(_range, t.shape), "/", *map(_range, t.stride()))
            for t in tensors(x.meta.get("val"))
        )

    parts = [
        (str(n.target), said(n.args), said(n.kwargs), looks(n), w)
        for n, w in zip(nodes, wanted, strict=True)
    ]
    return tuple(map(looks, inputs)), tuple(parts), tuple(number[x] for x in outputs)


def _range(n: Any) -> str:
    """A size or stride, and what is known of it."""
    if isinstance(n, int):
        return str(n)
    known = n.node.shape_env.var_to_range
    names = sorted(n.node.expr.free_symbols, key=str)
    return " ".join([str(n), str(hint(n)), *(f"{s}:{known.get(s)}" for s in names)])
