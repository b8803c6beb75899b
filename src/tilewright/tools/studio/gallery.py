"""Kernels to watch first, each with a few sentences and one thing to try.

The files are those of `examples`, which a wheel has beside this one.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parent / "examples"
EXAMPLES = Path(__file__).parents[4] / "examples"  # of a checkout


@dataclass(frozen=True)
class Lesson:
    """What is shown first (a request), what to try, and a request that tries it."""

    title: str
    text: str
    trying: str
    file: str
    request: Mapping[str, Any]
    change: Mapping[str, Any] = field(default_factory=dict)
    race: tuple[str, str] | None = None  # of benchmarks/results, with these sizes: file, name

    @property
    def path(self) -> Path:
        return (SHIPPED if SHIPPED.is_dir() else EXAMPLES) / self.file


def _asked(kernel: str, sizes: str, small: str, **more: Any) -> dict[str, Any]:
    """`'M=4096 N=64'` are sizes."""
    told = (dict(pair.split("=") for pair in text.split()) for text in (sizes, small))
    big, little = ({name: int(size) for name, size in each.items()} for each in told)
    return {"kernel": kernel, "sizes": big, "small": little, **more}


def _step(number: str, title: str, text: str, trying: str, request: Mapping[str, Any]) -> Lesson:
    return Lesson(title, text, trying, f"tutorial/{number}.py", request)


LESSONS: dict[str, Lesson] = {
    "gemm": Lesson(
        "A matrix product",
        "Two warpgroups multiply, and one thread of a third asks the copy engine for the next "
        "tiles of A and B. The tiles wait in a ring of slots in shared memory. A slot is filled, "
        "then read, then free again: two barriers for each slot say which.",
        "Set stages to 2. The tensor core waits for loads that four slots hide.",
        "gallery/gemm.py",
        _asked("matmul", "M=4096 N=4096 K=4096", "M=128 N=128 K=128"),
        {"schedule": {"stages": 2}},
        ("derived_gemm_h200.json", "gemm 4096x4096x4096"),
    ),
    "attention": Lesson(
        "Causal attention",
        "Two products with a softmax between them. While one warpgroup computes exponentials, the "
        "other one multiplies: they take turns with the tensor core.",
        "Set order_warpgroups to off, or causal=False among the arguments.",
        "gallery/attention.py",
        _asked("attention", "B=4 H=16 G=16 S=4096 L=4096 D=128", "B=1 H=1 G=1 S=128 L=128 D=64"),
        {"schedule": {"order_warpgroups": False}},
        ("derived_attention_h200.json", "attention 4x16x4096 head 128 causal"),
    ),
    "mla": Lesson(
        "Latent attention, decoding",
        "All heads of a request share one latent tile of keys, which is the tile of values too. "
        "So a tile that is loaded once serves two products.",
        "Set B to 8. Few requests leave multiprocessors idle, so blocks take runs of keys, and a "
        "second kernel combines what they found.",
        "gallery/mla.py",
        _asked("mla_decode", "B=128 H=128 L=4096 D=512 R=64", "B=1 H=16 L=128 D=64 R=64"),
        {"sizes": {"B": 8, "H": 128, "L": 4096, "D": 512, "R": 64}},
        ("derived_mla_h200.json", "mla 128x128x4096"),
    ),
    "softmax": Lesson(
        "Softmax of long rows, by clusters",
        "A row is read once and written once, so memory limits it. Four blocks of a cluster hold a "
        "quarter of the row each and tell each other its maximum and its sum.",
        "Set cluster to 1 and look at the registers of a thread.",
        "gallery/softmax.py",
        _asked("softmax", "M=4096 N=32768", "M=4 N=256", schedule={"cluster": 4}),
        {"schedule": {"cluster": 1}},
    ),
    "grouped": Lesson(
        "A grouped product (mixture of experts)",
        "Each expert has some of the rows. Where they begin stands in memory, so the grid is made "
        "for the most that there may be, and blocks beyond an expert's rows end at once.",
        "Set most to 512: the grid has room for fewer rows of each expert.",
        "gallery/grouped.py",
        _asked("grouped", "S=4096 E=8 K=4096 N=4096", "S=64 E=2 K=64 N=64", args={"most": 1024}),
        {"args": {"most": 512}},
    ),
    "dequantized": Lesson(
        "A product with 4-bit weights",
        "Weights come as 4 bits. Threads unpack and scale them before the tensor core may read "
        "them, so the threads are busy where a plain product leaves them idle.",
        "Compare with the plain product of the same sizes.",
        "gallery/dequantized.py",
        _asked("dequantized", "M=256 N=4096 K=4096", "M=64 N=64 K=64"),
    ),
    "split_k": Lesson(
        "A product whose K is split",
        "With few tiles most multiprocessors would be idle. So eight blocks share a tile, and add "
        "their parts of K with atomics; a first kernel clears the sums.",
        "Set parts to 1 among the arguments: one block walks over all of K.",
        "gallery/split_k.py",
        _asked("split_k", "M=256 N=512 K=16384", "M=64 N=64 K=256"),
        {"args": {"parts": 1}},
    ),
    "race": Lesson(
        "A planted race",
        "Thread t reads what thread 127 - t has written, and nothing makes it wait. On a GPU the "
        "result is right most of the time. The sanitizer names both accesses every time.",
        "Write T.sync_threads() between the two lines.",
        "gallery/race.py",
        _asked("turned", "N=4096", "N=256"),
    ),
    "tutorial 1": _step(
        "01_vector_add",
        "Vector add",
        "Each block adds one piece of two vectors. Nothing is used twice, so the rate of memory is "
        "all that counts.",
        "Make N smaller than a tile.",
        _asked("add", "N=1048576", "N=300"),
    ),
    "tutorial 2": _step(
        "02_softmax",
        "Softmax",
        "A block holds whole rows in registers.",
        "Make N longer until a row no longer fits.",
        _asked("softmax", "M=4096 N=4096", "M=8 N=100"),
    ),
    "tutorial 3": _step(
        "03_linear",
        "A linear layer",
        "A product with its bias and activation in one kernel.",
        "Choose other tiles for m and n.",
        _asked("linear", "M=4096 N=4096 K=4096", "M=100 N=90 K=70"),
    ),
    "tutorial 4": _step(
        "04_attention",
        "Attention",
        "The loop of the gallery's attention, in its simplest form.",
        "Make S shorter than a tile.",
        _asked("attention", "H=32 S=4096 D=128", "H=1 S=100 D=64"),
    ),
    "tutorial 5": _step(
        "05_where_values_live",
        "Where values live",
        "Values live in registers: each thread has some of them.",
        "Look at the layout of a row's elements.",
        _asked("softmax", "M=4096 N=1024", "M=4 N=100"),
    ),
    "tutorial 6": _step(
        "06_shared_tiles",
        "Shared tiles",
        "A normalised product keeps rows in shared memory.",
        "Look at the banks of the tile.",
        _asked("norm_linear", "M=4096 N=4096 K=1024", "M=64 N=64 K=64"),
    ),
    "tutorial 7": _step(
        "07_pipelines",
        "Pipelines",
        "A ring by hand: the loop says how far its loads run ahead.",
        "Set stages to 1, then to 4.",
        _asked("matmul_by_hand", "M=4096 N=4096 K=4096", "M=64 N=64 K=128"),
    ),
    "tutorial 8": _step(
        "08_threads",
        "Threads",
        "Threads by number, and the barrier between them.",
        "Leave the barrier out: barrier=False.",
        _asked("block_sums", "N=4096", "N=512"),
    ),
    "tutorial 9": _step(
        "09_sanitizer",
        "Bugs that show themselves",
        "All blocks write one element: the sanitizer names the line.",
        "Set how to 'cleared'.",
        _asked("total", "N=4096", "N=200", args={"how": "stored"}),
    ),
    "tutorial 10": _step(
        "10_any_size",
        "Any size",
        "Rows that are known at launch only: one binary for all of them.",
        "Look at how the last tile is guarded.",
        _asked("linear", "N=4096 K=4096", "N=90 K=70"),
    ),
}


def told_of(name: str) -> dict[str, Any]:
    """A lesson as the page has it."""
    lesson = LESSONS[name]
    request = {"gallery": name, **lesson.request}
    change = {**request, **lesson.change} if lesson.change else None
    return {"name": name, "title": lesson.title, "text": lesson.text, "try": lesson.trying,
            "request": request, "change": change}  # fmt: skip
