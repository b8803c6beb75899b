"""Every kernel of the zoo, compiled for every architecture: `python -m devtools chips`.

A cell of the table says `ok`, how many bytes spill, or that a kernel is refused; each of the latter
is then named with its reason. No GPU is needed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import tilewright as tw
from tilewright.ir.chips import CUDA, PTX
from tilewright.support.errors import CompileError
from tilewright.targets.cuda.nvrtc import supported_archs
from zoo.attention import backward, flash, pointwise
from zoo.elementwise import swiglu, vector_add
from zoo.gemm import gemm, scaled
from zoo.loss import cross_entropy
from zoo.mla import decode
from zoo.norm import layer_norm, rms_norm
from zoo.softmax import softmax
from zoo.transpose import transpose

Make = Callable[[str], tw.JITKernel]
ATTENTION = (1, 4, 4, 1024, 1024)
COLUMNS = (1000, 8192, 32768, 131072)


def _on(kernel: Any, *args: Any, **sizes: Any) -> Make:
    return lambda target: kernel.on(target)(*args, **sizes)


def _rows(build: Any, **more: Any) -> dict[str, Make]:
    return {str(n): partial(_row, build, n, more) for n in COLUMNS}


def _row(build: Any, columns: int, more: Mapping[str, Any], target: str) -> tw.JITKernel:
    return build(columns, target=target, **more)  # type: ignore[no-any-return]


# by family, then by what distinguishes them
KERNELS: dict[str, dict[str, Make]] = {
    "gemm": {
        "": _on(gemm.gemm_relu, 4096, 4096, 4096),
        "small": _on(gemm.gemm_relu, 512, 512, 512, 64, 64, 32, stages=2),
        "wide": _on(gemm.gemm_relu, 4096, 4096, 4096, block_N=256, threads=256),
        "bfloat16": _on(gemm.gemm_relu, 1000, 1000, 1000, dtype="bfloat16"),
        "float32": _on(gemm.gemm_relu, 512, 512, 512, 64, 64, 16, dtype="float32"),
        "transposed": _on(gemm.gemm_transposed, 1024, 1024, 1024),
        "both": _on(gemm.gemm_transposed, 1024, 1024, 1024, True, True),
    },
    "scaled": {"": _on(scaled.gemm_scaled, 4096, 4096, 7168)},
    "attention": {
        **{
            f"{dim}{' causal' if causal else ''}": _on(
                flash.flash_attention, *ATTENTION, dim, causal
            )
            for dim in (64, 128)
            for causal in (False, True)
        },
        "wide": _on(flash.flash_attention, *ATTENTION, 128, block_M=128, block_N=128, threads=256),
        "pointwise": _on(pointwise.pointwise_attention, 1, 4, 1024, 1024, 128),
    },
    "gradients": {
        "sums": _on(backward.attention_with_sums, *ATTENTION, 128),
        "rows": _on(backward.row_products, 1, 4, 1024, 128),
        "keys": _on(backward.keys_gradient, *ATTENTION, 128, True, dtype="bfloat16"),
        "queries": _on(backward.queries_gradient, *ATTENTION, 128, True, dtype="bfloat16"),
    },
    "mla": {
        "": _on(decode.mla_decode, 8, 128, 1024),
        "split": _on(decode.mla_decode, 8, 128, 1024, splits=2),
    },
    "softmax": {
        **_rows(softmax.softmax_rows),
        "short": _on(softmax.softmax, 64, 1000),
        "online": _on(softmax.online_softmax, 64, 5000),
    },
    "rms_norm": {**_rows(rms_norm.rms_norm_rows)},
    "rms_norm_silu": {**_rows(rms_norm.rms_norm_rows, silu=True)},
    "layer_norm": {**_rows(layer_norm.layer_norm_rows)},
    "cross_entropy": {**_rows(cross_entropy.cross_entropy_rows)},
    "elementwise": {
        "swiglu": partial(_row, swiglu.swiglu_rows, 1000, {}),
        "swiglu 8192": partial(_row, swiglu.swiglu_rows, 8192, {}),
        "add": _on(vector_add.vector_add, 1000),
    },
    "transpose": {
        "": partial(_row, transpose.transpose_rows, 1000, {}),
        "aligned": partial(_row, transpose.transpose_rows, 1024, {"aligned": True}),
    },
}
ARCHITECTURES = tuple(arch for arch in CUDA if not arch.startswith(PTX) and not arch.endswith("f"))


@dataclass(frozen=True)
class Result:
    """What came of one kernel: `spills` and `local` bytes, or what was `refused`."""

    arch: str
    family: str
    kernel: str
    spills: int = 0
    local: int = 0
    refused: str = ""

    @property
    def problem(self) -> str:
        if self.refused:
            return self.refused
        if self.spills:
            return f"{self.spills} bytes of register spills"
        return f"{self.local} bytes of local memory" if self.local else ""


def compiled(arch: str, family: str, kernel: str) -> Result:
    """One kernel for one architecture."""
    try:
        found = KERNELS[family][kernel](f"cuda -arch={arch}")
        used = found.resources
    except CompileError as error:
        said = str(error).splitlines()
        return Result(arch, family, kernel, refused=" ".join(line.strip() for line in said[:4]))
    return Result(arch, family, kernel, used["spill_bytes"], used["local_bytes"])


def sweep(archs: Iterable[str], families: Iterable[str], jobs: int) -> list[Result]:
    work = [(a, f, k) for a in archs for f in families for k in KERNELS[f]]
    if jobs == 1:
        return [compiled(*one) for one in work]
    with ProcessPoolExecutor(jobs) as pool:
        return list(pool.map(compiled, *zip(*work, strict=True), chunksize=4))


def table(results: list[Result]) -> str:
    """Architectures by families: how many of its kernels compile without spills."""
    archs = list(dict.fromkeys(r.arch for r in results))
    families = list(dict.fromkeys(r.family for r in results))
    lines = [" ".join(["arch".ljust(8), *(f.rjust(13) for f in families)])]
    for arch in archs:
        cells = []
        for family in families:
            here = [r for r in results if (r.arch, r.family) == (arch, family)]
            good = sum(not r.problem for r in here)
            cells.append(("ok" if good == len(here) else f"{good} of {len(here)}").rjust(13))
        lines.append(" ".join([arch.ljust(8), *cells]))
    return "\n".join(lines)


def run_command(archs: Iterable[str], families: Iterable[str], jobs: int) -> int:
    started = time.perf_counter()
    archs, known = list(archs), supported_archs()
    newer = [arch for arch in archs if arch.rstrip("af") not in known]
    if newer:
        print(f"skipped, unknown to this NVRTC: {', '.join(newer)}")
    results = sweep([arch for arch in archs if arch not in newer], families, jobs)
    print(table(results))
    bad = [r for r in results if r.problem]
    for r in bad:
        print(f"{r.arch} {r.family} {r.kernel}: {r.problem}")
    seconds = time.perf_counter() - started
    print(f"{len(results)} kernels, {len(bad)} refused or spilled, {seconds:.0f} s")
    return bool(bad)
