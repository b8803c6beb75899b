"""The README's table of speeds, made from the files in benchmarks/results.

python benchmarks/tables.py            # rewrites it
python benchmarks/tables.py --check    # fails where README and files disagree

A row is one race of one file. Ours is compared with the best of the others that took turns with
it in that race, schedules written by hand in our own form not counted: they have a column.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
README = HERE.parent / "README.md"
BEGIN, END = "<!-- speeds: made by benchmarks/tables.py -->", "<!-- end of speeds -->"

NAMES = {
    "cublas": "cuBLAS", "cudnn": "cuDNN", "triton": "Triton", "tilelang": "TileLang",
    "torch": "PyTorch", "quack": "Quack", "triton_tutorial": "Triton's tutorial",
}  # fmt: skip


@dataclass(frozen=True)
class Row:
    """`file` without its _h200.json, the race's name in it, what the README calls it."""

    file: str
    race: str
    label: str

    def record(self) -> dict[str, Any]:
        (found, *_) = (r for r in load(self.file)["races"] if r["race"] == self.race)
        return dict(found)


ROWS = (
    Row("derived_gemm", "gemm 2048x2048x2048", "GEMM 2048³"),
    Row("derived_gemm", "gemm 4096x4096x4096", "GEMM 4096³"),
    Row("derived_gemm", "gemm 8192x8192x8192", "GEMM 8192³"),
    Row("derived_gemm", "gemm 16384x16384x16384", "GEMM 16384³"),
    Row("derived_gemm", "gemm 4096x28672x4096", "GEMM 4096×28672×4096 (Llama-3 8B)"),
    Row("derived_gemm", "gemm 4096x7168x2048", "GEMM 4096×7168×2048 (DeepSeek-V3)"),
    Row("derived_attention", "attention 2x16x8192 head 128", "attention, head 128, 8192"),
    Row("derived_attention", "attention 2x16x8192 head 128 causal",
        "attention causal, head 128, 8192"),
    Row("derived_attention", "attention 1x16x16384 head 128 causal",
        "attention causal, head 128, 16384"),
    Row("derived_attention", "attention 2x16x8192 head 64", "attention, head 64, 8192"),
    Row("derived_attention", "attention 8x16x2048 head 64 causal",
        "attention causal, head 64, 2048"),
    Row("derived_mla", "mla 128x128x8192", "MLA decode, batch 128, 128 heads, 8192 keys"),
    Row("derived_mla", "mla 128x128x1024", "MLA decode, batch 128, 128 heads, 1024 keys"),
    Row("memory_softmax", "softmax 65536x8192", "softmax, rows of 8192"),
    Row("memory_rms_norm", "rms_norm 65536x8192", "RMSNorm, rows of 8192"),
    Row("memory_layer_norm", "layer_norm 65536x8192", "LayerNorm, rows of 8192"),
    Row("memory_layer_norm", "layer_norm 8192x65536", "LayerNorm, rows of 65536"),
    Row("memory_cross_entropy", "cross_entropy 65536x8192", "cross-entropy, rows of 8192"),
    Row("memory_transpose", "transpose 65536x8192", "transpose, rows of 8192"),
)  # fmt: skip


@cache
def load(file: str) -> dict[str, Any]:
    """One file of results."""
    return dict(json.loads((HERE / "results" / f"{file}_h200.json").read_text()))


def speed(contender: dict[str, Any]) -> tuple[float, str]:
    """As it is written, with its unit."""
    if "tflops" in contender:
        return contender["tflops"], f"{contender['tflops']:.0f}"
    return contender["terabytes_per_second"], f"{contender['terabytes_per_second']:.2f}"


def others(contenders: dict[str, Any]) -> dict[str, Any]:
    """Those that ours is compared with, by the name that is shown; of several copies (or sums) the
    best one. Kernels of ours that compute something else are not among them."""
    found: dict[str, Any] = {}
    for name, contender in contenders.items():
        if name in ("derived", "ours", "hand") or name.startswith("by "):
            continue
        plain = re.match(r"copy|sum", name)
        shown = f"a {plain[0]}" if plain else NAMES.get(name, name)
        if shown not in found or speed(contender) > speed(found[shown]):
            found[shown] = contender
    return found


def line(row: Row) -> str:
    """One row of the table."""
    record = row.record()
    assert record["ok"], f"{row.race} failed its check"
    contenders = record["contenders"]
    ours = contenders.get("derived") or contenders["ours"]
    rivals = others(contenders)
    best = max(speed(rival)[0] for rival in rivals.values())
    hand = speed(contenders["hand"])[1] if "hand" in contenders else ""
    told = ", ".join(f"{name} {speed(rival)[1]}" for name, rival in rivals.items())
    unit = "" if "tflops" in ours else " (TB/s)"
    cells = (row.label + unit, speed(ours)[1], hand, told, f"{speed(ours)[0] / best:.2f}")
    return f"| {' | '.join(cells)} |"


def table() -> str:
    """The table and where it comes from."""
    head = ("one H200, bf16, TFLOP/s", "ours", "by hand", "others, in turn", "of the best of these")
    lines = [f"| {' | '.join(head)} |", "|---" * len(head) + "|", *map(line, ROWS)]
    return "\n".join([*lines, "", *provenance()])


def provenance() -> Iterator[str]:
    files = sorted({row.file for row in ROWS})
    days = sorted({load(file)["when"][:10] for file in files})
    yield f"From `benchmarks/results/*_h200.json`, {' and '.join(days)}:"
    versions: dict[str, Any] = {}
    for file in files:
        versions.update(load(file)["versions"])
    shown = {"torch": "PyTorch", "nvidia-cublas": "cuBLAS", "nvidia-cudnn-cu13": "cuDNN",
             "triton": "Triton", "tilelang": "TileLang", "quack-kernels": "Quack"}  # fmt: skip
    yield (
        ", ".join(f"{name} {versions[key]}" for key, name in shown.items() if key in versions) + "."
    )


def with_table(text: str) -> str:
    """A README with the table as the files have it."""
    before, rest = text.split(BEGIN + "\n", 1)
    return f"{before}{BEGIN}\n{table()}\n{END}{rest.split(END, 1)[1]}"


def main() -> int:
    text = README.read_text(encoding="utf-8")
    new = with_table(text)
    if "--check" in sys.argv[1:]:
        print("README and results agree" if new == text else "run: python benchmarks/tables.py")
        return int(new != text)
    README.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
