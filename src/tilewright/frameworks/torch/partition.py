"""Which nodes become one formula.

Neighbours are joined while nothing is computed twice or read back in between: what is pointwise
with the folds that read it, where they fold the same axes; a product with what is pointwise after
it; two products with a softmax between them. No group waits for itself.
"""

from __future__ import annotations

from collections.abc import Iterable
from operator import getitem
from typing import Any

from tilewright.frameworks.torch.graph import Facts, tensors
from tilewright.frameworks.torch.lowerings import ALONE, FOLD, GATHER, MOVED, POINTWISE, PRODUCT

MOST = 40  # nodes of a group: formulas of more take long to compile


class Group:
    def __init__(self, nodes: Iterable[Any]) -> None:
        self.nodes = list(nodes)
        self.is_closed = False  # nothing joins it
        self.kinds: set[str] = set()
        self.folds: set[Any] = set()  # what its folds go over

    def joined(self, other: Group) -> Group:
        found = Group([*other.nodes, *self.nodes])
        found.kinds, found.folds = self.kinds | other.kinds, self.folds | other.folds
        return found


class _Spans:
    """Before which places groups begin that do not end there: `crossed` counts them."""

    def __init__(self, facts: Facts) -> None:
        self.place, self.crossed = facts.place, [0] * len(facts.place)

    def count(self, group: Group, by: int) -> None:
        places = [self.place[node] for node in group.nodes]
        for i in range(min(places) + 1, max(places) + 1):
            self.crossed[i] += by

    def begin(self, nodes: Iterable[Any]) -> int:
        """A place from which all that waits for one of the nodes lies, each group whole."""
        found = min(self.place[node] for node in nodes)
        while self.crossed[found]:
            found -= 1
        return found


def groups_of(facts: Facts) -> list[Group]:
    """The groups of a graph, each in the graph's order."""
    apart: set[tuple[Any, Any]] = set()  # products, and what is not computed with them
    while True:
        found = _grouped(facts, apart)
        before = len(apart)
        for group in found:
            if PRODUCT in group.kinds:
                apart |= _too_wide(facts, group)
        if len(apart) == before:
            return found


def _too_wide(facts: Facts, group: Group) -> set[tuple[Any, Any]]:
    """What a product leaves to others: with it the product would write several arrays for other
    kernels, which can compute them of one."""

    def written(members: list[Any]) -> int:
        inside = set(members)
        outside = [{r for r in facts.readers(n) if r not in inside and r.op != "output"}
                   for n in members]  # fmt: skip
        return sum(map(bool, outside))

    members = [n for n in group.nodes if n.target is not getitem]
    if len(members) != len(group.nodes) or written(members) < 2:
        return set()
    product = next(n for n in members if facts.kinds[n] == PRODUCT)
    kept = len(members)
    while kept > 1 and (written(members[:kept]) > 1 or product not in members[:kept]):
        kept -= 1
    return {(product, n) for n in members if n not in members[:kept]} - {(product, product)}


def _grouped(facts: Facts, apart: set[tuple[Any, Any]]) -> list[Group]:
    found: dict[Any, Group] = {}
    spans = _Spans(facts)
    for members in _attentions(facts):
        group = Group(members)
        group.is_closed, group.kinds = True, {ALONE}
        found |= dict.fromkeys(members, group)
        spans.count(group, 1)
    for node in facts.nodes:
        if not facts.is_member(node) or node in found:
            continue
        if node.target is getitem:
            group = found[node.args[0]]
            spans.count(group, -1)
            group.nodes.append(node)
            spans.count(group, 1)
            found[node] = group
            continue
        group = Group([node])
        kind = facts.kinds[node]
        group.kinds = {POINTWISE if kind == GATHER else kind}
        if kind == FOLD:
            group.folds = {over for over in [_folded(node)] if over is not None}
        found[node] = group
        table = facts.sources(node.args[0]) if kind in (GATHER, MOVED) else []
        for x in sorted(facts.feeds(node), key=facts.place.__getitem__, reverse=True):
            other = found.get(x)
            if other is None or other is group or x in table or not _fit(group, other):
                continue
            if any((a, b) in apart for a in other.nodes for b in group.nodes):
                continue
            if not _is_circle(facts, found, spans, [*other.nodes, *group.nodes]):
                spans.count(other, -1)
                spans.count(group, -1)
                group = group.joined(other)
                spans.count(group, 1)
                found |= dict.fromkeys(group.nodes, group)
    unique = dict.fromkeys(found.values())
    for group in unique:
        group.nodes.sort(key=facts.place.__getitem__)
    return list(unique)


def _fit(group: Group, other: Group) -> bool:
    """Whether `group` may compute what it reads of `other` itself."""
    kinds = group.kinds | other.kinds
    if group.is_closed or other.is_closed or ALONE in kinds:
        return False
    if len(group.nodes) + len(other.nodes) > MOST or _device(group) != _device(other):
        return False
    if PRODUCT in group.kinds:  # its sides lie in memory
        return False
    if MOVED in other.kinds and FOLD in group.kinds:
        return False
    if PRODUCT in other.kinds:
        return group.kinds == {POINTWISE}
    return len(group.folds | other.folds) < 2


def _device(group: Group) -> Any:
    return next(tensors(group.nodes[0].meta["val"])).device


def _folded(node: Any) -> Any:
    """What a fold goes over, to be compared: the shape and the axes; None for one element."""
    x = node.args[0].meta["val"]
    names = [a.name for a in node.target._schema.arguments]
    given = dict(zip(names, node.args, strict=False)) | node.kwargs
    if "normalized_shape" in given:
        dims: Any = range(x.ndim - len(given["normalized_shape"]), x.ndim)
    elif "group" in given:
        return node
    else:
        dims = given.get("dim", None)
        dims = [dims] if isinstance(dims, int) else dims or range(x.ndim)
    dims = frozenset(d % max(x.ndim, 1) for d in dims)
    if all(x.shape[d] == 1 for d in dims if x.ndim):
        return None
    return tuple(map(str, x.shape)), dims


def _is_circle(facts: Facts, groups: dict[Any, Group], spans: _Spans, nodes: list[Any]) -> bool:
    """Whether one of the nodes waits for something that waits for one of them."""
    inside, begin = set(nodes), spans.begin(nodes)
    seen: set[Any] = set()
    ahead = [x for node in nodes for x in facts.feeds(node) if x not in inside]
    while ahead:
        node = ahead.pop()
        if node in seen or facts.place[node] < begin:
            continue
        group = groups.get(node)
        own = [node] if group is None else group.nodes
        seen.update(own)
        for x in (x for each in own for x in facts.feeds(each)):
            if x in inside:
                return True
            ahead.append(x)
    return False


def _attentions(facts: Facts) -> list[list[Any]]:
    """Products of a softmax of a product, whose parts nobody else reads."""
    found: list[list[Any]] = []
    taken: set[Any] = set()
    for node in facts.nodes:
        if facts.kinds[node] != PRODUCT or "convolution" in str(node.target):
            continue
        if node in taken:
            continue
        inner = _chain(facts, node, taken)
        if inner and not (taken & set(inner)):
            members = [*inner, node]
            found.append(members)
            taken |= set(members)
    return found


def _chain(facts: Facts, node: Any, taken: set[Any]) -> list[Any]:
    """From a product back to the product whose softmax it reads; nothing, if it reads none."""
    members: list[Any] = []
    seen_softmax = False
    reader = node
    while True:
        kinds = (POINTWISE, FOLD) if not seen_softmax else (POINTWISE, PRODUCT)
        ahead = [x for x in facts.feeds(reader) if facts.kinds[x] in kinds
                 and {*facts.readers(x)} == {reader} and x.target is not getitem]  # fmt: skip
        if reader is node:
            ahead = ahead[:1]
        if len(ahead) != 1:
            products = [x for x in ahead if facts.kinds[x] == PRODUCT]
            if not (seen_softmax and len(products) == 1):
                return []
            ahead = products
        (x,) = ahead
        if facts.kinds[x] == FOLD:
            if "softmax" not in str(x.target) or "log" in str(x.target):
                return []
            seen_softmax = True
        members.append(x)
        if facts.kinds[x] == PRODUCT:
            return members[::-1] if x not in taken else []
        reader = x
