"""Derived programs to break: products, attention, random pipelines, each for several targets."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import numpy as np

from devtools.schedules.run import scheduled
from devtools.schedules.subjects import Subject, subject
from tests.mutants import Mutant, mutants
from tilewright import machine
from tilewright.ir.op import Program
from tilewright.ir.target import Target
from tilewright.ir.verify import Stage, verify
from tilewright.passes.cuda_passes import LOWER
from tilewright.passes.run import run_pipeline
from tilewright.support.errors import TilewrightError

ZOO = str(Path(__file__).parents[2] / "zoo/schedules.py")
# Rings come round twice and more, so that every slot and phase matters.
PROGRAMS = {
    "gemm": "gemm_relu(M=64, N=64, K=144, block_M=64, block_N=64, block_K=16, stages=3)",
    "gemm_two_warpgroups": "gemm_relu(M=128, N=64, K=112, block_M=128, block_N=64, block_K=16, "
    "threads=256, stages=3)",
    "gemm_dealt": "gemm_relu(M=384, N=64, K=112, block_M=64, block_N=64, block_K=16, "
    "threads=256, stages=3)",
    "gemm_boxes": "gemm_relu(M=64, N=64, K=640, block_M=64, block_N=64, block_K=128, stages=2)",
    "gemm_pairs": "gemm_relu(M=512, N=64, K=112, block_M=128, block_N=64, block_K=16, "
    "threads=256, stages=3)",
    "attention": "flash_attention(batch=1, heads=1, kv_heads=1, seq_q=64, seq_kv=448, dim=64)",
    "attention_causal": "flash_attention(batch=1, heads=1, kv_heads=1, seq_q=256, seq_kv=488, "
    "dim=64, causal=True, block_M=128, block_N=32, threads=256)",
    "mla": "mla_decode(batch=1, heads=64, seq_kv=320, dim=128, rope=64)",
    "ring_1": "rings(seed=69)",
    "ring_2": "rings(seed=85)",
    "ring_3": "rings(seed=116)",
    "ring_4": "rings(seed=137)",
}
TARGETS = {
    "alike": "cuda -roles=off -skew=off -order_warpgroups=off",
    "roles": "cuda -roles=on -skew=off -order_warpgroups=off",
    "all": "cuda -roles=on -skew=on -order_warpgroups=on -persistent=on",
    "pairs": "cuda -roles=on -cluster=2 -persistent=on",
    "boxes": "cuda -roles=on -split_stages=on",
    "dealt": "cuda -roles=on -persistent=on -ping_pong",
    "sm_80": "cuda -arch=sm_80",
}
ORDERED = "by the clocks, all accesses of these launches are ordered without it"
ON_SM_80 = ("gemm",)  # what `cp.async` fills; thread code of it takes its time


@cache
def program_of(name: str) -> Subject:
    return subject(PROGRAMS[name], ZOO)


@cache
def derived(name: str, target: str) -> Program:
    return scheduled(program_of(name).program, Target.parse(TARGETS[target]))


@cache
def cases() -> list[tuple[str, str]]:
    """Programs and targets whose derived programs differ."""
    found: list[tuple[str, str]] = []
    for name in PROGRAMS:
        seen: list[Program] = []
        for target in TARGETS:
            if target == "sm_80" and name not in ON_SM_80:
                continue
            if derived(name, target) not in seen:
                seen.append(derived(name, target))
                found.append((name, target))
    return found


def results(given: Program, of: Subject, number: int, seed: int) -> dict[str, bytes]:
    args = of.launches[number]()
    machine.run(given, args, seed=seed, explicit=True)
    return {n: a.tobytes() for n, a in args.items() if isinstance(a, np.ndarray)}


@cache
def intact(name: str, target: str, number: int) -> dict[str, bytes]:
    return results(derived(name, target), program_of(name), number, 0)


def noticed(name: str, target: str, mutant: Mutant, seeds: range = range(3)) -> str:
    """Who notices that the program is broken, and how, or ''."""
    of = program_of(name)
    try:
        verify(mutant.program, Stage.LAID_OUT)
    except TilewrightError as error:
        return f"verifier: {error.message}"
    try:
        for number in range(len(of.launches)):
            want = intact(name, target, number)
            for seed in seeds:
                if results(mutant.program, of, number, seed) != want:
                    return "numbers"
    except TilewrightError as error:
        return f"machine: {error.message}"
    return "" if mutant.same or mutant.slower else noticed_by_threads(name, target, mutant)


def noticed_by_threads(name: str, target: str, mutant: Mutant, seeds: range = range(2)) -> str:
    """What the thread interpreter says about the lowered mutant; it alone knows which buffers share
    bytes."""
    of = program_of(name)
    try:
        found = Target.parse(TARGETS[target])
        code = run_pipeline(mutant.program, found, LOWER, stage=Stage.LAID_OUT).result
        for number in range(len(of.launches)):
            for seed in seeds:
                args = of.launches[number]()
                machine.run_threads(code, args, seed=seed)
                if of.wrong(number, args):
                    return "numbers"
    except TilewrightError as error:
        return f"threads: {error.message}"
    return ""


@dataclass
class Count:
    """What became of the mutants of one derived program.

    `caught` of `broken` count: `broken` are all mutants but those that are the same program and
    those that are only slower and came to an end. `missed` are harmless where they are: both
    interpreters keep clocks, by which every two accesses of these launches that concern each other
    are ordered without the op, whatever the interleaving. `wronged`: said to be the same program,
    and accused all the same.
    """

    name: str
    target: str
    made: int = 0
    same: int = 0
    slower: int = 0
    caught: int = 0
    reasons: Counter[str] = field(default_factory=Counter)
    missed: list[str] = field(default_factory=list)
    wronged: list[str] = field(default_factory=list)

    @property
    def broken(self) -> int:
        return self.made - self.same - self.slower

    def __str__(self) -> str:
        share = self.caught / max(self.broken, 1)
        return (
            f"{self.name} {self.target}: {self.made} mutants, {self.same} the same program, "
            f"{self.slower} only slower, {self.caught} of the other {self.broken} caught "
            f"({share:.1%})"
        )


def count(name: str, target: str, every: int = 1, first: int = 0) -> Count:
    """Judge the mutants of a derived program, or each `every`-th of them."""
    total = Count(name, target)
    for mutant in list(mutants(derived(name, target)))[first % every :: every]:
        told = noticed(name, target, mutant)
        total.made += 1
        if mutant.same:
            total.same += 1
            total.reasons[mutant.same] += 1
            total.wronged += [f"{mutant} ({mutant.same}): {told}"] if told else []
        elif told:
            total.caught += 1
        elif mutant.slower:
            total.slower += 1
            total.reasons[mutant.slower] += 1
        else:
            total.missed.append(f"{mutant}: {ORDERED}")
    return total
