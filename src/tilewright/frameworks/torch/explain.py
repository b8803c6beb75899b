"""What became of a model: which nodes are kernels, which PyTorch keeps, why, and at what price."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tilewright.frameworks.torch.backend import Compiled, backend
from tilewright.frameworks.torch.formula import hint
from tilewright.frameworks.torch.graph import tensors
from tilewright.frameworks.torch.group import Runner


@dataclass
class Kernel:
    """A group of nodes that kernels compute; `launches` of them, which move `bytes`."""

    nodes: list[str]
    operators: list[str]
    launches: int
    bytes: int
    tile: str
    why_special: str = ""


@dataclass
class Kept:
    """A node that PyTorch computes, why, and the bytes that it reads and writes."""

    node: str
    operator: str
    reason: str
    bytes: int


@dataclass
class Graph:
    name: str
    kernels: list[Kernel] = field(default_factory=list)
    kept: list[Kept] = field(default_factory=list)


@dataclass
class Report:
    graphs: list[Graph]
    breaks: list[str] = field(default_factory=list)  # where Python ends a graph, and why

    def __str__(self) -> str:
        lines: list[str] = []
        for i, graph in enumerate(self.graphs):
            launches = sum(k.launches for k in graph.kernels)
            total = sum(k.bytes for k in graph.kernels)
            lines.append(
                f"graph {i} ({graph.name}): {launches} kernels of ours move {total:,} bytes; "
                f"{len(graph.kept)} operators of PyTorch {sum(k.bytes for k in graph.kept):,}"
            )
            for k in graph.kernels:
                words = " ".join(
                    f"{n}×{w}" if n > 1 else w for w, n in Counter(k.operators).items()
                )
                lines.append(
                    f"  {k.launches} kernel{'s'[: k.launches != 1]}, {k.bytes:,} bytes: {words}"
                )
                if k.why_special:
                    lines.append(f"    one for each set of sizes: {k.why_special}")
            lines += [f"  PyTorch: {k.node} ({k.operator}), {k.bytes:,} bytes: {k.reason}"
                      for k in graph.kept]  # fmt: skip
        lines += [f"graph break: {each}" for each in self.breaks]
        return "\n".join(lines)


def _bytes(nodes: Any) -> int:
    return sum(
        prod(map(hint, t.shape)) * t.element_size()
        for node in nodes for t in tensors(node.meta.get("val"))
    )  # fmt: skip


def _kernel(runner: Runner) -> Kernel:
    made = runner.kernels.any_made
    program = made.program if made is not None and made.has_kernel else None
    return Kernel(
        [n.name for n in runner.members],
        [n.target._opname for n in runner.members if hasattr(n.target, "_opname")],
        0 if program is None else len(program.kernels),
        _bytes([*runner.inputs, *runner.outputs]),
        "" if program is None else program.text,
        runner.kernels.why_special,
    )


def described(compiled: Compiled) -> Graph:
    """What became of one graph."""
    graph = Graph(compiled.name)
    for runner in compiled.runners:
        if not runner.kernels.refused:
            graph.kernels.append(_kernel(runner))
            continue
        graph.kept += [
            Kept(n.name, str(n.target), runner.kernels.refused, _bytes([n, *n.all_input_nodes]))
            for n in runner.members if hasattr(n.target, "_opname")
        ]  # fmt: skip
    graph.kept += [
        Kept(n.name, str(n.target), reason, _bytes([n, *n.all_input_nodes]))
        for n, reason in compiled.facts.stays.items()
    ]
    return graph


def explain(model: Any, *inputs: Any, **more: Any) -> Report:
    """Compile and run `model` for these inputs, forward and, where a result needs gradients,
    backward; say what became of its operators. The model runs twice, and what was compiled
    before is forgotten.

    >>> import torch, tilewright.torch
    >>> report = tilewright.torch.explain(lambda x: torch.softmax(x * 2, -1), torch.randn(4, 8))
    >>> [kernel.operators for graph in report.graphs for kernel in graph.kernels]
    [['mul', '_softmax']]
    """
    import torch

    found: list[Compiled] = []

    def collecting(module: Any, given: Any) -> Any:
        return backend(module, given, found=found)

    reasons = torch._dynamo.explain(model)(*inputs, **more).break_reasons
    torch._dynamo.reset()
    result = torch.compile(model, backend=collecting)(*inputs, **more)
    wanted = [t for t in tensors(result) if t.requires_grad]
    if wanted:
        torch.autograd.grad([t.sum() for t in wanted], _leaves(model, inputs), allow_unused=True)
    torch._dynamo.reset()
    breaks = [str(each.reason).splitlines()[0] for each in reasons]
    return Report([described(each) for each in found], breaks)


def _leaves(model: Any, inputs: Any) -> list[Any]:
    """What gradients are of."""
    parameters = list(model.parameters()) if hasattr(model, "parameters") else []
    return [t for t in (*parameters, *tensors(inputs)) if t.requires_grad]
