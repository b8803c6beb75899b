"""The words as a table: the names of types, and what to say about a name that is none."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tilewright.ir.dtype import _ALIASES, DTYPES
from tilewright.lang.types import ScalarType
from tilewright.support.errors import CompileError, entry

DTYPE_NAMES: dict[str, ScalarType] = {
    name: ScalarType(name) for name in (*DTYPES, *_ALIASES) if name != "barrier"
}


# Words of other tile languages that have no counterpart of that name here.
_ELSEWHERE = {
    "alloc_buffer": "T.alloc_global holds what passes between kernels, T.alloc_shared a tile",
    "alloc_tmem": "T.alloc_fragment holds accumulators on every target",
    "attr": "T.warp_reduce_sum and its kin, or T.reduce_sum on a tile, reduce across threads",
    "comm_reducer": "T.warp_reduce_sum and its kin, or T.reduce_sum on a tile",
    "im2col": "read the window with T.Parallel: reads outside a tensor give zero",
    "parallel": "did you mean T.Parallel?",
    "ptr": "pass one tensor that holds all groups, and their offsets",
    "ptx_commit_group": "T.copy waits by itself; T.async_copy inside T.Pipelined overlaps",
    "ptx_cp_async": 'T.copy(src, dst, prefer="cp_async"), or T.async_copy',
    "ptx_wait_group": "T.copy waits by itself; T.async_copy inside T.Pipelined overlaps",
    "sync_grid": "blocks cannot wait for each other: open a second T.Kernel, which runs after",
    "tcgen05_gemm": "T.gemm chooses the matrix instruction of the target",
    "tvm_thread_allreduce": "T.warp_reduce_sum(value), or T.reduce_sum on a tile",
    "tvm_warp_shuffle": "T.shfl_sync(value, lane)",
}


class UnknownWord(CompileError, AttributeError):
    """`T.` has no such name."""


def as_entries(names: dict[str, Any]) -> dict[str, Callable[..., Any]]:
    """The words among `names` as functions whose errors show the user's frames only."""
    looking = ("prim_func", "macro")  # they look at the frame of their caller
    return {
        name: entry(word)
        for name, word in names.items()
        if isinstance(word, FunctionType)
        and word.__module__.startswith("tilewright.lang.")
        and word.__name__ not in (*looking, "as_entries", "unknown_word")
    }


def unknown_word(name: str, known: list[str]) -> AttributeError:
    if name.startswith("__"):
        # modules are asked for these all the time
        return AttributeError(f"module 'tilewright.language' has no attribute {name!r}")
    if name in _ELSEWHERE:
        return UnknownWord(f"T.{name} is not a word of the language", fix=_ELSEWHERE[name])
    close = difflib.get_close_matches(name, known, 3, 0.6)
    return UnknownWord(
        f"T.{name} is not a word of the language",
        fix=f"did you mean {' or '.join(f'T.{c}' for c in close)}?" if close else "",
    )
