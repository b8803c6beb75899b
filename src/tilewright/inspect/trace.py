"""A measured timeline: what `kernel.trace` returns."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tilewright.inspect.explain_ops import first_line
from tilewright.inspect.measured import Agent, about, longest, read
from tilewright.inspect.timeline import drawing, timeline
from tilewright.ir.core import *
from tilewright.passes.lower.stamp_ops import planned, stamp_ops, waits
from tilewright.passes.overlap.unit_times import CLOCK

if TYPE_CHECKING:
    from tilewright.ir.target import Target
    from tilewright.targets.cuda.stamps import Stamps


@dataclass(frozen=True)
class TraceSpan:
    """A statement of the kernel's text, or a wait, of a warpgroup. Cycles count from the block's
    first stamp; `iteration` says how often the warpgroup had come here before."""

    kernel: str
    block: int
    role: str
    op: str
    loc: Loc | None
    iteration: int
    start: int
    end: int
    waits: bool


@dataclass(frozen=True)
class Trace:
    """The measured timeline of a call: `print` draws it beside the modelled one, `spans` has its
    parts, `save` writes it for `chrome://tracing` or Perfetto. `result`: what the call returned."""

    name: str
    spans: tuple[TraceSpan, ...]
    result: Any = None
    timelines: Mapping[str, Any] = field(default_factory=dict)  # by kernel, as `explain` has them
    began: Mapping[tuple[str, int], int] = field(default_factory=dict, repr=False)

    def __str__(self) -> str:
        lines = [f"{self.name}, measured: {len(self.spans)} spans of {len(self.began)} blocks"]
        for kernel, told in self.timelines.items():
            lines += [f"  kernel {kernel}", *(f"    {line}" for line in drawing(told))]
        return "\n".join(lines)

    def save(self, path: str | Path) -> None:
        """Write it as JSON of Chrome's trace events. Times within a block are cycles, at 1.6 GHz;
        blocks began when the GPU's timer says."""
        first = min(self.began.values(), default=0)  # blocks within four seconds
        events = [
            {
                "name": span.op,
                "cat": "wait" if span.waits else "op",
                "ph": "X",
                "pid": f"{span.kernel}, block {span.block}",
                "tid": span.role,
                "ts": (self.began[span.kernel, span.block] - first) / 1e3
                + span.start / CLOCK * 1e6,
                "dur": (span.end - span.start) / CLOCK * 1e6,
                "args": {
                    "at": str(span.loc or ""),
                    "iteration": span.iteration,
                    "cycles": span.end - span.start,
                },
            }
            for span in self.spans
        ]
        Path(path).write_text(json.dumps({"traceEvents": events}), encoding="utf-8")


def trace_of(
    name: str,
    target: Target,
    steps: Sequence[tuple[str, Program]],
    taken: Sequence[Stamps],
    figures: Sequence[Mapping[str, Any]],
    result: Any = None,
) -> Trace:
    """The trace of a call of a build with stamps, whose passes left `steps`."""
    at = [step for step, _ in steps].index(stamp_ops.__name__)
    program = steps[at - 1][1]
    spans: list[TraceSpan] = []
    timelines: dict[str, Any] = {}
    began: dict[tuple[str, int], int] = {}
    for stamps in taken:
        kernel = program.kernels[stamps.kernel]
        agents = read(kernel, stamps.grid, stamps.words)
        for agent in agents:
            began.setdefault((kernel.name, agent.block), agent.began)
            spans += _spans(kernel.name, planned(kernel)[0].sites, agent)
        if agents:
            blocks = figures[stamps.kernel].get("blocks_per_sm") or 1
            timelines[kernel.name] = timeline(program, kernel, target, blocks, agents)
    return Trace(name, tuple(spans), result, timelines, began)


def _source(op: Op) -> str:
    """The line of the kernel's text, or of the IR."""
    line = op.loc.source.strip() if op.loc is not None else ""
    return line or first_line(op)


def _spans(kernel: str, sites: Sequence[Sequence[Op]], agent: Agent) -> Iterator[TraceSpan]:
    for site, start, end, before in agent.spans():
        op = longest(sites[site - 1])
        text = about(op) if waits(op) else _source(op)
        yield TraceSpan(
            kernel, agent.block, agent.name, text, op.loc, before, start, end, waits(op)
        )
