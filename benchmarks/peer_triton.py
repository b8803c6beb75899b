"""A persistent matrix product in Triton, written as its users write one: host-made tensor
descriptors, grouped tile order, a handful of configurations of which the fastest is kept."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

import torch
import triton
import triton.language as tl
from triton.tools.tensor_descriptor import TensorDescriptor

CONFIGS = [
    {"BM": 128, "BN": 256, "BK": 64, "warps": 8, "stages": 3},
    {"BM": 128, "BN": 256, "BK": 64, "warps": 8, "stages": 4},
    {"BM": 128, "BN": 128, "BK": 64, "warps": 4, "stages": 4},
    {"BM": 256, "BN": 128, "BK": 64, "warps": 8, "stages": 3},
]


@triton.jit
def _product(
    a, b, c, M, N, K, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, GROUP: tl.constexpr,
    BLOCKS: tl.constexpr, SPLIT: tl.constexpr,
):  # fmt: skip
    rows, cols, steps = tl.cdiv(M, BM), tl.cdiv(N, BN), tl.cdiv(K, BK)
    for tile in tl.range(tl.program_id(0), rows * cols, BLOCKS, flatten=True):
        first = tile // (GROUP * cols) * GROUP
        high = min(rows - first, GROUP)
        row = (first + tile % (GROUP * cols) % high) * BM
        col = tile % (GROUP * cols) // high * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(steps):
            acc = tl.dot(a.load([row, k * BK]), b.load([k * BK, col]), acc)
        if SPLIT:
            halves = tl.permute(tl.reshape(acc, (BM, 2, BN // 2)), (0, 2, 1))
            left, right = tl.split(halves)
            c.store([row, col], left.to(tl.bfloat16))
            c.store([row, col + BN // 2], right.to(tl.bfloat16))
        else:
            c.store([row, col], acc.to(tl.bfloat16))


def _call(a: Any, b: Any, c: Any, config: dict[str, int], split: bool) -> Callable[[], None]:
    (m, k), n = a.shape, b.shape[1]
    bm, bn, bk = config["BM"], config["BN"], config["BK"]
    da = TensorDescriptor.from_tensor(a, [bm, bk])
    db = TensorDescriptor.from_tensor(b, [bk, bn])
    dc = TensorDescriptor.from_tensor(c, [bm, bn // 2 if split else bn])
    blocks = torch.cuda.get_device_properties(0).multi_processor_count
    tiles = triton.cdiv(m, bm) * triton.cdiv(n, bn)

    def run() -> None:
        _product[(min(blocks, tiles),)](
            da, db, dc, m, n, k, bm, bn, bk, 8, blocks, split,
            num_warps=config["warps"], num_stages=config["stages"],
        )  # fmt: skip

    return run


def best_product(sets: Sequence[tuple[Any, Any, Any]]) -> list[Callable[[], None]]:
    """A call for each set of arrays, of the configuration that is the fastest on the first; those
    that do not fit are passed over."""
    found: list[tuple[float, dict[str, int], bool]] = []
    for config in CONFIGS:
        for split in (False, True):
            run = _call(*sets[0], config, split)
            try:
                run()
                times = [triton.testing.do_bench(run, warmup=5, rep=20) for _ in range(2)]
            except (triton.runtime.errors.OutOfResources, RuntimeError):
                continue
            found.append((statistics.median(times), config, split))
    _, config, split = min(found, key=lambda entry: entry[0])
    return [_call(*arrays, config, split) for arrays in sets]
