"""Running what may hang: in a child process that can be killed."""

from __future__ import annotations

import multiprocessing
import traceback
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from typing import Any, TypeVar

from tilewright.support.errors import RunError

Result = TypeVar("Result")


def _child(pipe: Connection, function: Callable[..., Any], args: tuple[Any, ...]) -> None:
    try:
        answer = (True, function(*args))
    except BaseException as error:  # reported, not swallowed: the parent raises it
        answer = (False, f"{type(error).__name__}: {error}\n{traceback.format_exc()}")
    pipe.send(answer)
    pipe.close()


@contextmanager
def child(target: Callable[..., None], *args: Any) -> Iterator[tuple[Connection, BaseProcess]]:
    """A fresh process that runs `target(pipe, *args)`, and our end of the pipe. An error here ends
    it at once."""
    context = multiprocessing.get_context("spawn")  # a forked child cannot use CUDA
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=target, args=(theirs, *args), daemon=True)
    process.start()
    theirs.close()
    try:
        yield ours, process
        process.join(5)
    finally:
        ours.close()
        if process.is_alive():
            process.kill()
        process.join(5)


def run_guarded(function: Callable[..., Result], *args: Any, timeout: float = 60.0) -> Result:
    """`function(*args)` in a fresh process, killed after `timeout` seconds.

    A kernel that never ends cannot be stopped from the process that launched it; ending that
    process frees the GPU. The function must be importable and its result picklable (no GPU
    arrays). Raises `RunError` on a timeout, an exception or a crash.
    """
    name = getattr(function, "__name__", str(function))
    with child(_child, function, args) as (pipe, process):
        if not pipe.poll(timeout):
            raise RunError(
                f"{name} did not finish within {timeout:g} s and was killed",
                fix="a barrier wait that never ends is the usual reason: TILEWRIGHT_DIAGNOSTIC=1 "
                "names it",
            )
        try:
            good, answer = pipe.recv()
        except EOFError:
            process.join(5)
            raise RunError(f"{name} ended its process, exit code {process.exitcode}") from None
    if not good:
        raise RunError(f"{name} failed in its process", notes=(str(answer),))
    result: Result = answer
    return result
