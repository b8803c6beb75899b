"""The backend: forward and backward graphs whose groups are kernels; the rest is PyTorch's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import getitem
from typing import Any

from tilewright.frameworks.torch.decompositions import decompositions
from tilewright.frameworks.torch.formula import Unsaid
from tilewright.frameworks.torch.graph import Facts, is_seed, place_scalars
from tilewright.frameworks.torch.group import Runner
from tilewright.frameworks.torch.layouts import lay_out
from tilewright.frameworks.torch.partition import groups_of
from tilewright.support.errors import TilewrightError


class Compiled:
    """A graph of PyTorch, with groups of its nodes as kernels."""

    def __init__(self, module: Any, name: str = "graph") -> None:
        module.graph.eliminate_dead_code()
        place_scalars(module)
        lay_out(module.graph)
        self.name, self.facts = name, Facts(module.graph)
        self.runners = self._made()
        self.call = self._module(module)

    def _made(self) -> list[Runner]:
        """The groups; what no formula says stays, and what is no kernel together is two."""
        while True:
            groups, found = groups_of(self.facts), []
            try:
                for group in groups:
                    found += self._of(group.nodes)
                return found
            except Unsaid as unsaid:
                self.facts.keep(unsaid.node, unsaid.reason)

    def _of(self, nodes: Sequence[Any]) -> list[Runner]:
        try:
            return [Runner(self.facts, nodes)]
        except Unsaid:
            raise
        except Exception as error:
            heads = [n for n in nodes if n.target is not getitem]
            if len(heads) == 1:
                reason = getattr(error, "message", None) or f"{type(error).__name__}: {error}"
                raise Unsaid(heads[0], str(reason).splitlines()[0]) from error
            half = set(heads[: len(heads) // 2])
            first = [n for n in nodes if (n.args[0] if n.target is getitem else n) in half]
            rest = [n for n in nodes if n not in set(first)]
            return [*self._of(first), *self._of(rest)]

    def _module(self, module: Any) -> Any:
        import torch

        facts, graph = self.facts, torch.fx.Graph()
        env: dict[Any, Any] = {}
        runner_of = {node: r for r in self.runners for node in r.members}
        last = {r: max(map(facts.place.__getitem__, r.members)) for r in self.runners}

        def ready(node: Any) -> Any:
            """The node, or what stands for it, after all that it needs."""
            if node in env:
                return env[node]
            runner = runner_of.get(node)
            if runner is None:
                for x in (*node.all_input_nodes, *filter(None, [facts.before.get(node)])):
                    ready(x)
                env[node] = graph.node_copy(node, env.__getitem__)
                return env[node]
            if runner not in done:
                done.add(runner)
                given = [ready(x) for x in (*runner.inputs, *runner.extra, *runner.numbers)]
                call = graph.call_function(_callable(runner, len(done)), tuple(given))
                for i, x in enumerate(runner.outputs):
                    env[x] = graph.call_function(getitem, (call, i))
            return env[node]

        done: set[Runner] = set()
        for node in facts.nodes:
            runner = runner_of.get(node)
            if runner is not None and facts.place[node] == last[runner] and runner.outputs:
                ready(runner.outputs[0])
            elif runner is None and not facts.is_free(node):
                ready(node)
        graph.lint()
        found = torch.fx.GraphModule(module, graph)
        return found.forward


def _callable(runner: Runner, number: int) -> Callable[..., Any]:
    """The runner as a function that the text of a graph can name."""

    def call(*given: Any) -> list[Any]:
        return runner(*given)

    call.__name__ = call.__qualname__ = f"kernels_{number}"
    call.__module__ = "tilewright"
    return call


def compiler(found: list[Compiled], name: str) -> Callable[..., Any]:
    """What AOTAutograd calls with a graph; `found` gets what became of it."""
    from functorch.compile import make_boxed_func

    def compile(module: Any, inputs: Sequence[Any]) -> Any:
        compiled = Compiled(module, name)
        found.append(compiled)
        return make_boxed_func(compiled.call)

    return compile


def _parted(joint: Any, *given: Any, **more: Any) -> Any:
    """Forward and backward; seeds are kept for the second, as drawn again they would be others."""
    from functorch.compile import min_cut_rematerialization_partition
    from torch.utils.checkpoint import CheckpointPolicy

    for node in joint.graph.nodes:
        if is_seed(node):
            node.meta["recompute"] = CheckpointPolicy.MUST_SAVE
    return min_cut_rematerialization_partition(joint, *given, **more)


def backend(
    module: Any,
    inputs: Sequence[Any],
    *,
    options: dict[str, Any] | None = None,
    found: list[Compiled] | None = None,
) -> Any:
    """What `torch.compile(model, backend="tilewright")` calls; `found` gets what became of each
    graph."""
    if options:
        raise TilewrightError(
            f"the backend has no option {next(iter(options))!r}",
            fix="leave options= out: schedules are chosen",
        )
    from torch._dynamo.backends.common import aot_autograd

    kept: list[Compiled] = [] if found is None else found
    made = aot_autograd(
        fw_compiler=compiler(kept, "forward"),
        bw_compiler=compiler(kept, "backward"),
        inference_compiler=compiler(kept, "forward"),
        decompositions=decompositions(),
        partition_fn=_parted,
    )
    return made(module, inputs)
