"""Graphs of PyTorch: which nodes a formula can say, and why others stay."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import cache
from operator import getitem
from typing import Any

from tilewright.frameworks.torch.lowerings import (
    CONSTANT,
    LOWERINGS,
    POINTWISE,
    VIEW,
    Lowering,
)

_TYPES = "float16 bfloat16 float32 float64 bool int8 int16 int32 int64 uint8".split()
_RANDOM = "its random numbers are those of PyTorch's generator"
_SCATTER = "it writes at places that data say, which no formula does"
_REASONS = {
    "embedding_dense_backward": _SCATTER,
    "index_put": _SCATTER,
    "_unsafe_index_put": _SCATTER,
    "scatter": _SCATTER,
    "scatter_add": _SCATTER,
    "scatter_reduce": _SCATTER,
    "sort": "sorting is no fold",
    "nonzero": "data decide its shape",
}


@cache
def _supported() -> frozenset[Any]:
    import torch

    return frozenset(getattr(torch, name) for name in _TYPES)


def lowering_of(node: Any) -> Lowering | None:
    return LOWERINGS.get(str(node.target)) if node.op == "call_function" else None


def tensors(value: Any) -> Iterator[Any]:
    """The tensors of what a node gives."""
    if isinstance(value, (tuple, list)):
        for each in value:
            yield from tensors(each)
    elif hasattr(value, "stride") and hasattr(value, "dtype"):
        yield value


def has_tensors(node: Any) -> bool:
    """Whether a node gives tensors: sizes are numbers."""
    return any(True for _ in tensors(node.meta.get("val")))


def wanted(node: Any) -> Any:
    """What a node gives: of several, those that somebody reads."""
    value = node.meta.get("val")
    if not isinstance(value, (tuple, list)):
        return value
    read = {user.args[1] for user in node.users if user.target is getitem}
    return [each if i in read else None for i, each in enumerate(value)]


def is_compute(node: Any) -> bool:
    """Whether a node is an operator on tensors: no argument, no size, no part of a tuple."""
    if node.op != "call_function" or node.target is getitem or is_seed(node):
        return False
    return has_tensors(node)


def is_seed(node: Any) -> bool:
    """Whether a node takes a seed of random numbers from PyTorch's generator."""
    return str(node.target) == "tilewright.seed.default"


def _is_widened(node: Any) -> bool:
    """Whether a node has the numbers that it reads in more bytes: whoever reads it reads those."""
    if str(node.target) not in ("aten._to_copy.default", "prims.convert_element_type.default"):
        return False
    value, source = node.meta["val"], node.args[0].meta["val"]
    if not (value.dtype.is_floating_point and source.dtype.is_floating_point):
        return False
    if value.device != source.device or any(user.op == "output" for user in node.users):
        return False
    return bool(value.element_size() > source.element_size())


def is_stateful(node: Any) -> bool:
    """Whether a node's order among others like it is part of what it means."""
    import torch

    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return False
    return target._schema.is_mutable or torch.Tag.nondeterministic_seeded in target.tags


def why_not(node: Any) -> str:
    """Why PyTorch keeps a node; nothing if a formula may say it."""
    import torch

    target = node.target
    if not isinstance(target, torch._ops.OpOverload):
        return "it is no ATen operator"
    if lowering_of(node) is None:
        is_random = torch.Tag.nondeterministic_seeded in target.tags
        known = _RANDOM if is_random else _REASONS.get(target._opname)
        return known or f"{target} has no formula in tilewright.frameworks.torch.lowerings"
    own = [*tensors(wanted(node))]
    given = [t for x in node.all_input_nodes for t in tensors(x.meta.get("val"))]
    for t in (*own, *given):
        if type(t).__name__ not in ("FakeTensor", "Tensor", "Parameter"):
            return f"{type(t).__name__} is a tensor of another kind"
        if t.layout != torch.strided:
            return f"a tensor is {str(t.layout).removeprefix('torch.')}"
        if t.dtype not in _supported():
            return f"no kernel has elements of {str(t.dtype).removeprefix('torch.')}"
        if t.device.type not in ("cpu", "cuda"):
            return f"there are no kernels for {t.device.type}"
        if any(n == 0 for n in t.shape if isinstance(n, int)):
            return "a tensor is empty"
        if any(not isinstance(n, int) and not n.node.has_hint() for n in t.shape):
            return "data decide its shape"
    if len({t.device for t in (*own, *given)}) > 1:
        return "its tensors are on several devices"
    return ""


def place_scalars(module: Any) -> None:
    """Write constants of no axes beside tensors of a GPU where those are: PyTorch keeps them on the
    CPU, and a kernel would have to read them there."""
    import torch
    from torch._subclasses.fake_tensor import unset_fake_temporarily

    aten = torch.ops.aten
    for node in [n for n in module.graph.nodes if n.op == "get_attr"]:
        value = getattr(module, str(node.target), None)
        if not isinstance(value, torch.Tensor) or value.ndim or value.device.type != "cpu":
            continue
        with unset_fake_temporarily():
            known = getattr(value, "constant", None)  # of a tensor that traces have
            number = (value if known is None else known).item()
        same = [node, *(u for u in node.users if u.target is aten.lift_fresh_copy.default)]
        for each in same:
            for user in list(each.users):
                devices = {t.device for t in tensors(user.meta.get("val"))} - {value.device}
                if user in same or len(devices) != 1:
                    continue
                how = {"dtype": value.dtype, "device": devices.pop()}
                with module.graph.inserting_before(user):
                    new = module.graph.call_function(aten.full.default, ([], number), how)
                with user.meta["val"].fake_mode:
                    new.meta["val"] = aten.full.default([], number, **how)
                user.replace_input_with(each, new)
    module.graph.eliminate_dead_code()


class Facts:
    """A graph, and what is known of its nodes: `stays` are those that PyTorch keeps, and why."""

    def __init__(self, graph: Any) -> None:
        self.nodes = list(graph.nodes)
        self.place = {node: i for i, node in enumerate(self.nodes)}
        self.stays = {n: why for n in self.nodes if is_compute(n) and (why := why_not(n))}
        self.before: dict[Any, Any] = {}  # of what PyTorch does in order, the one before
        values = [(n, n.meta.get("val")) for n in self.nodes]  # sizes that calls give
        self.sizes = {str(v.node.expr): n for n, v in values
                      if type(v).__name__ == "SymInt" and v.node.expr.is_Symbol}  # fmt: skip
        self._order()

    def keep(self, node: Any, reason: str) -> None:
        """Leave a node to PyTorch."""
        self.stays[node] = reason
        self._order()

    def _order(self) -> None:
        # of nodes that a formula says, else nothing; parts of tuples are of the kind of the tuple,
        # and what is computed of constants is one
        self.kinds: dict[Any, str] = {}
        for node in self.nodes:
            self.kinds[node] = self._kind(node)
        ordered = [n for n in self.nodes if n.op == "call_function" and is_stateful(n)
                   and not self.is_member(n)]  # fmt: skip
        self.before = dict(zip(ordered[1:], ordered, strict=False))

    def _kind(self, node: Any) -> str:
        if node.op == "call_function" and node.target is getitem:
            return self.kinds[node.args[0]]
        found = lowering_of(node)
        if found is None or node in self.stays or not is_compute(node):
            return ""
        given = [self.kinds[x] for x in inputs_of(node)]
        is_constant = all(kind == CONSTANT for kind in given)
        if found.kind in (VIEW, POINTWISE) and is_constant:
            return CONSTANT
        return VIEW if _is_widened(node) else found.kind

    def is_free(self, node: Any) -> bool:
        """Whether a node costs nothing: each reader says it for itself."""
        return self.kinds[node] in (VIEW, CONSTANT)

    def is_member(self, node: Any) -> bool:
        """Whether a node is computed by a group."""
        return self.kinds[node] not in ("", VIEW, CONSTANT)

    def feeds(self, node: Any) -> list[Any]:
        """What a node reads, through what is free."""
        found: dict[Any, None] = {}
        for x in inputs_of(node):
            found |= dict.fromkeys(self.sources(x))
        if node in self.before:
            found[self.before[node]] = None
        return list(found)

    def sources(self, node: Any) -> list[Any]:
        """The node, or what it is a view of."""
        return self.feeds(node) if self.is_free(node) else [node]

    def with_free(self, members: Iterable[Any]) -> list[Any]:
        """The members, and what is free that they read, in order."""
        found = set(members)
        ahead = list(found)
        while ahead:
            node = ahead.pop()
            for x in inputs_of(node):
                if self.is_free(x) and x not in found:
                    found.add(x)
                    ahead.append(x)
        return sorted(found, key=self.place.__getitem__)

    def readers(self, node: Any) -> Iterator[Any]:
        """Who reads a node, through what is free."""
        for user in node.users:
            if self.kinds[user] == VIEW:
                yield from self.readers(user)
            elif self.kinds[user] != CONSTANT:
                yield user


def inputs_of(node: Any) -> list[Any]:
    """The nodes that a node needs: what is as large as a tensor needs none of its elements."""
    found = lowering_of(node)
    if found is None or found.kind != CONSTANT:
        return list(node.all_input_nodes)
    return [x for x in node.all_input_nodes if not has_tensors(x)]
