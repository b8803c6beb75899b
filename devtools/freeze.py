"""The generated CUDA of many kernels as hashes: what a change of the compiler leaves as it was.

    python -m devtools freeze before.json               # on the tree before
    python -m devtools freeze after.json --against before.json

The programs are kernels of the zoo at the sizes that benchmarks race and at sizes drawn at random,
and random tile programs. A hash leaves line numbers out. With `--cubin`, NVRTC compiles each source
and the record has registers, spilled bytes and the number of instructions: how much a source that
differs matters.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Iterator
from multiprocessing import get_context
from pathlib import Path
from random import Random
from typing import Any

from devtools.schedules.subjects import kernels, subject
from tilewright.ir.target import Target
from tilewright.runtime.kernel import CompiledKernel
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.backend import lower
from tilewright.targets.cuda.emit import emit_program

ZOO = "zoo/schedules.py"
TARGETS = ("cuda -arch=sm_90a", "cuda -arch=sm_80")
_LARGE = "dtype='bfloat16'"
RACED = (
    *(
        f"gemm_relu(M={m}, N={n}, K={k}, block_M=128, block_N={wide}, block_K=64, threads=256, "
        f"stages={stages}, {_LARGE})"
        for m, n, k in ((8192, 8192, 8192), (4096, 7168, 2048), (5000, 5000, 5000))
        for wide, stages in ((256, 4), (192, 4), (128, 6))
    ),
    *(
        f"flash_attention(batch=2, heads=16, kv_heads=16, seq_q=8192, seq_kv=8192, dim={dim}, "
        f"causal={causal}, block_M={rows}, block_N=128, threads={2 * rows}, {_LARGE})"
        for dim, rows in ((128, 128), (64, 192))
        for causal in (False, True)
    ),
    f"mla_decode(batch=128, heads=128, seq_kv=8192, {_LARGE})",
    *(
        f"{name}(m=1, variant='rows', N={columns}, {_LARGE})"
        for name in ("softmax", "rms_norm", "layer_norm", "cross_entropy")
        for columns in (768, 4096, 7168)
    ),
    *(
        f"{name}(m=1, variant='held', N={columns}, {_LARGE})"
        for name in ("softmax", "rms_norm", "layer_norm")
        for columns in (8192, 50304)
    ),
)
_MARKS = re.compile(r"^\s*#line .*\n|//.*", re.MULTILINE)


def names(drawn: int, fuzzed: int) -> Iterator[str]:
    """Texts of programs that `subject` makes."""
    yield from RACED
    for kernel, (draw, _) in kernels(ZOO).items():
        for seed in range(drawn):
            given = draw(Random(f"{kernel} {seed}"))
            yield f"{kernel}({', '.join(f'{k}={v!r}' for k, v in given.items())})"
    for seed in range(fuzzed):
        yield f"{'rings' if seed % 2 else 'tiles'}(seed={seed})"


def frozen(task: tuple[str, str, bool]) -> dict[str, Any]:
    """The record of one program on one target."""
    name, target, cubin = task
    try:
        program = subject(name, ZOO).program
        if cubin:
            kernel = CompiledKernel(program, target=target)
            text = kernel.get_kernel_source()
            code = kernel.sass
            found = kernel.resources
            size = [len(re.findall(r"^\s*/\*[0-9a-f]{4,}\*/", code, re.MULTILINE)), str(found)]
        else:
            text, size = emit_program(lower(program, Target.parse(target)).result).text, []
    except CompileError as error:
        return {"name": name, "target": target, "hash": "refused: " + error.message, "size": []}
    hashed = hashlib.sha256(_MARKS.sub("", text).encode()).hexdigest()[:16]
    return {"name": name, "target": target, "hash": hashed, "size": size}


def freeze(
    out: Path, against: Path | None, *, drawn: int, fuzzed: int, cubin: bool, jobs: int
) -> int:
    """Record every program; with `against`, print what differs. The number of differences."""
    tasks = [(n, t, cubin) for n in names(drawn, fuzzed) for t in TARGETS]
    if jobs == 1:
        found = list(map(frozen, tasks))
    else:
        with get_context("spawn").Pool(jobs) as pool:
            found = pool.map(frozen, tasks, chunksize=4)
    out.write_text(json.dumps(found, indent=0) + "\n", encoding="utf-8")
    print(f"{len(found)} sources, {sum(f['hash'].startswith('refused') for f in found)} refused")
    if against is None:
        return 0
    before = {(f["name"], f["target"]): f for f in json.loads(against.read_text(encoding="utf-8"))}
    differ = 0
    for record in found:
        old = before.get((record["name"], record["target"]))
        if old is None or old["hash"] == record["hash"]:
            continue
        differ += 1
        print(f"{record['target']} {record['name']}\n  {old['hash']} {old['size']}\n"
              f"  {record['hash']} {record['size']}")  # fmt: skip
    print(f"{differ} differ")
    return differ
