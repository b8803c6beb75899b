"""A search with a line on the terminal: how far it is, the best so far, and what that gains."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from tilewright.runtime.jit import Jit
from tilewright.support.errors import PerformanceWarning, TilewrightError
from tilewright.tune.search import Tuned, Watch, tune


@contextmanager
def progress(name: str) -> Iterator[Watch]:
    """What shows a search on stderr, if that is a terminal."""
    if not sys.stderr.isatty():
        yield lambda *_: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("tuning {task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[best]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as shown:
        task = shown.add_task(name, total=None, best="")

        def watch(found: Tuned, done: int, total: int) -> None:
            best = f"best {1e6 * found.best:.1f} µs, {found.gain:.2f} ×" if found.best else ""
            shown.update(task, completed=done, total=total, best=best)

        yield watch


def tune_watched(jit: Jit, bound: dict[str, Any], sizes: Mapping[str, int]) -> None:
    """What `@tw.autotune` does; a kernel that cannot be tuned runs as the model has it."""
    try:
        with progress(jit.fn.__name__) as watch:
            tune(jit, bound, sizes, watch=watch)
    except TilewrightError as error:
        warnings.warn(
            f"{jit.fn.__name__} was not tuned: {error.message}", PerformanceWarning, stacklevel=2
        )
