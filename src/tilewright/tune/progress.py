"""A search with a line on the terminal: how far it is, the best so far, and what that gains."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

from tilewright.runtime.jit import Jit
from tilewright.support.cache import default_root, default_store
from tilewright.support.errors import PerformanceWarning, TilewrightError
from tilewright.tune.search import Tuned, Watch, tune

WAIT = 600.0  # seconds for another process to tune


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
    """What `@tw.autotune` does, for a processor and for a GPU; one process of a machine at a time.
    A kernel that cannot be tuned runs as the model has it."""
    if jit.compile_target.kind not in ("cpu", "cuda"):
        return
    try:
        with _alone(), progress(jit.fn.__name__) as watch:
            tune(jit, bound, sizes, watch=watch)
    except (TilewrightError, OSError) as error:  # a lock's timeout is an OSError
        said = error.message if isinstance(error, TilewrightError) else str(error)
        warnings.warn(f"{jit.fn.__name__} was not tuned: {said}", PerformanceWarning, stacklevel=2)


def _alone() -> AbstractContextManager[Any]:
    """Others' kernels would be timed with ours."""
    if default_store() is None:
        return nullcontext()
    from filelock import FileLock

    default_root().mkdir(parents=True, exist_ok=True)
    return FileLock(default_root() / "tuning", timeout=WAIT)
