"""The levels of a GPU's memory, measured by kernels of single threads: latency and bandwidth of
L1, L2, HBM and shared memory.

    python benchmarks/memory_levels.py --out benchmarks/results/memory_levels_h200.json

Latency: one thread follows a chain through a working set; each load gives the next one's index. A
figure is the cycles of a load and of the one instruction that makes its address. Bandwidth: a block
of 1024 threads on each multiprocessor reads a working set again and again, 16 bytes a load; a
figure is bytes of a cycle and multiprocessor. Sets grow from 16 KiB to 1 GiB, so the same kernels
meet L1, L2 and HBM in turn. The kernels read the clock themselves; their results are compared with
NumPy's. `levels` has the median of the sets that lie within a level for sure.
"""

from __future__ import annotations

import argparse
import datetime
import json
import statistics
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import tilewright as tw
import tilewright.language as T
from tilewright.ir.chips import arch_for

LINE = 32  # int32 elements of a cache line: no two links of a chain share one
THREADS, UNROLL = 1024, 8
KIB, MIB = 1 << 10, 1 << 20
WARM = 64 * MIB // (4 * LINE)  # loads before the clock starts, at most
COUNTED = 8192  # loads of a chain that are timed
LOADS = 128  # times UNROLL: a thread's; 16 MiB a block
RUNS = 5
SETS = tuple(16 * KIB << k for k in range(17))
SHARED_SETS = (4 * KIB, 16 * KIB, 64 * KIB)


def stamp(after: Any) -> Any:
    """The clock of the multiprocessor, read once `after` is there; a value of the same goes on."""
    return T.ptx(
        "{ .reg .b32 t; mov.b32 t, $2; mov.b32 $0, t; mov.u32 $1, %clock; }",
        after, dtype=("int32", "int32"),
    )  # fmt: skip


def four(tensor: Any, group: Any, native: bool) -> Any:
    """Four elements by one load of 16 bytes, or one by one."""
    if native:
        load = "ld.global.v4.f32 {$0, $1, $2, $3}, [$4];"
        return T.ptx(load, T.address_of(tensor[group * 4]), dtype=("float32",) * 4)
    return tuple(tensor[group * 4 + j] for j in range(4))


# Not `native`, they run anywhere, without PTX: they read no clock.


@tw.jit
def chase(X, P, shared=False, native=True):
    """P: where the chain begins, loads before the clock starts, loads that count. `shared`: through
    a tile of shared memory, as large as X."""
    N = T.const("N")
    X: T.Tensor((N,), "int32")
    P: T.Tensor((3,), "int32")
    at_end = T.empty((1,), "int32")
    cycles = T.empty((1,), "int32")
    with T.Kernel(1, threads=32):
        t = T.get_thread_binding()
        links = X
        if shared:
            links = T.alloc_shared((N,), "int32")
            T.copy(X, links)
        if t == 0:
            at = T.alloc_var("int32", init=P[0])
            counted = T.alloc_var("int32", init=P[2])
            begin = T.alloc_var("int32", init=0)
            end = T.alloc_var("int32", init=0)
            for k in T.serial(P[1]):
                link = at + 0  # a number that the assumption is about
                T.assume(link >= 0 and link < N)
                at = links[link]
            if native:
                at, begin = stamp(at)
            for k in T.serial(counted):
                link = at + 0
                T.assume(link >= 0 and link < N)
                at = links[link]
            if native:
                at, end = stamp(at)
            at_end[0] = at
            cycles[0] = end - begin
    return at_end, cycles


@tw.jit
def read(X, P, blocks=1, threads=THREADS, shared=False, native=True):
    """P: groups of four elements in the working set, less one; by how many of them a block begins
    later than the one before it; loads of a thread over UNROLL. `shared`: as for `chase`."""
    N = T.const("N")
    X: T.Tensor((N,), "float32")
    P: T.Tensor((3,), "int32")
    sums = T.empty((blocks, threads), "float32")
    cycles = T.empty((blocks,), "int32")
    with T.Kernel(blocks, threads=threads) as b:
        t = T.get_thread_binding()
        source = X
        if shared:
            source = T.alloc_shared((N,), "float32")
            for i in T.Parallel(N):  # not by T.copy, whose wait would come after the clock's start
                source[i] = X[i]
        total = T.alloc_local((4,), "float32")
        for j in T.unroll(4):
            total[j] = 0.0
        first = T.alloc_var("int32", init=b * P[1] + t)
        loads = T.alloc_var("int32", init=P[2])
        begin = T.alloc_var("int32", init=0)
        end = T.alloc_var("int32", init=0)
        T.sync_threads()
        if native:
            first, begin = stamp(first)
        for k in T.serial(loads):
            for u in T.unroll(UNROLL):
                group = (first + u * threads) & P[0]
                T.assume(group >= 0 and group < N // 4)
                x, y, z, w = four(source, group, native and not shared)
                total[0] += x
                total[1] += y
                total[2] += z
                total[3] += w
            first += UNROLL * threads
        T.sync_threads()
        if native:
            first, end = stamp(first)
        sums[b, t] = total[0] + total[1] + total[2] + total[3]
        if t == 0:
            cycles[b] = end - begin
    return sums, cycles


# ── data, and what they give ─────────────────────────────────────────────────────────────────


def chain(size: int) -> tuple[np.ndarray, np.ndarray]:
    """A working set of so many bytes as a chain through all its cache lines, in random order, and
    that order."""
    links = np.zeros(size // 4, np.int32)
    order = LINE * np.random.default_rng(size).permutation(size // 4 // LINE).astype(np.int32)
    links[order] = np.roll(order, -1)
    return links, order


def read_sums(x: np.ndarray, p: np.ndarray, blocks: list[int], threads: int) -> np.ndarray:
    """What `read` gives of these blocks."""
    fours = x.reshape(-1, 4).sum(1)
    first = np.array(blocks)[:, None] * p[1] + np.arange(threads)
    return sum(fours[(first + i * threads) & p[0]] for i in range(p[2] * UNROLL))


Give = Callable[[np.ndarray], Any]


def latency(size: int, shared: bool, give: Give, **options: Any) -> dict[str, Any]:
    """`give` makes an array of NumPy one that the kernel takes; cycles of a load."""
    links, order = chain(size)
    warm = min(len(order), WARM)
    x, took = give(links), []
    for k in range(RUNS):
        # each run goes on where the last one ended: of a set in HBM, no lines are met again
        begin = k * (warm + COUNTED) % len(order)
        p = np.array([order[begin], warm, COUNTED], np.int32)
        at, cycles = chase(x, give(p), shared=shared, **options)
        end = order[(begin + warm + COUNTED) % len(order)]
        assert int(at[0]) == end, "the chain ends elsewhere"
        took.append(int(cycles[0]) / COUNTED)
    return row("latency", size, shared, cycles=round(statistics.median(took), 1))


def bandwidth(
    size: int, shared: bool, give: Give, blocks: int, threads: int = THREADS, **options: Any
) -> dict[str, Any]:
    """Bytes of a cycle and multiprocessor, by blocks that read at once."""
    x = np.random.default_rng(size).integers(0, 8, size // 4).astype(np.float32)
    p = np.array([size // 16 - 1, size // 16 // blocks, LOADS], np.int32)
    array, given, took = give(x), give(p), []
    ends = [0, blocks - 1]
    expected = read_sums(x, p, ends, threads)
    for _ in range(1 + RUNS):
        sums, cycles = read(
            array, given, blocks=blocks, threads=threads, shared=shared, **options
        )  # fmt: skip
        assert (host(sums)[ends] == expected).all(), "the sums are wrong"
        took.append(float(np.median(host(cycles).astype(np.int64))))
    moved = 16 * threads * LOADS * UNROLL
    rate = moved / max(1.0, statistics.median(took[1:]))  # the first run finds cold caches
    return row("bandwidth", size, shared, bytes_per_cycle=round(rate, 1))


def row(what: str, size: int, shared: bool, **figures: float) -> dict[str, Any]:
    return {"what": what, "memory": "shared" if shared else "global", "bytes": size, **figures}


def host(array: Any) -> np.ndarray:
    return np.asarray(array.cpu() if hasattr(array, "cpu") else array)


def levels(rows: list[dict[str, Any]], l2: int) -> dict[str, dict[str, float]]:
    """Of each level, the medians of the working sets that lie in it for sure; the driver says how
    large the L2 cache is, which chips of one compute capability do not have in common."""
    within = {
        "HBM": ("global", 4 * l2, 1 << 40),
        "L2": ("global", MIB, l2 // 2),  # a half is near a multiprocessor
        "L1": ("global", 0, 64 * KIB),
        "shared": ("shared", 0, 1 << 40),
    }
    found: dict[str, dict[str, float]] = {}
    for level, (memory, low, high) in within.items():
        figures: dict[str, list[float]] = {"latency": [], "bytes_per_cycle": []}
        for one in rows:
            if one["memory"] == memory and low <= one["bytes"] <= high:
                kind = "latency" if one["what"] == "latency" else "bytes_per_cycle"
                figures[kind].append(one.get("cycles") or one["bytes_per_cycle"])
        found[level] = {k: round(statistics.median(v), 1) for k, v in figures.items() if v}
    found["L2"]["bytes"] = l2
    return found


def measured(give: Give, blocks: int) -> Iterator[dict[str, Any]]:
    for shared, sets in ((False, SETS), (True, SHARED_SETS)):
        for size in sets:
            yield latency(size, shared, give)
            yield bandwidth(size, shared, give, blocks)


def main() -> None:
    import torch

    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path)
    out = parser.parse_args().out
    about = torch.cuda.get_device_properties(0)
    rows = []
    for one in measured(lambda x: torch.from_numpy(x).cuda(), about.multi_processor_count):
        rows.append(one)
        print(json.dumps(one), flush=True)
    told = {
        "date": datetime.date.today().isoformat(),
        "device": about.name,
        "arch": arch_for(about.major, about.minor),
        "command": "python benchmarks/memory_levels.py",
        "levels": levels(rows, about.L2_cache_size),
        "rows": rows,
    }
    print(json.dumps(told["levels"], indent=1))
    if out:
        out.write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
