"""The words as a table: the names of types, and what to say about a name that is none."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable
from types import FunctionType
from typing import Any

from tilewright.ir.dtype import _ALIASES, DTYPES
from tilewright.lang.types import ScalarType
from tilewright.support.errors import CompileError, entry, swap

DTYPE_NAMES: dict[str, ScalarType] = {
    name: ScalarType(name) for name in (*DTYPES, *_ALIASES) if name != "barrier"
}


# Words of other tile languages that have no counterpart of that name here.
_ELSEWHERE = {
    "alloc_buffer": "T.alloc_global holds what passes between kernels, T.alloc_shared a tile",
    "alloc_tmem": "T.alloc_fragment holds accumulators on every target",
    "arange": "loop over indices: `for i in T.Parallel(n):`",
    "atomicAdd": "did you mean T.atomic_add?",
    "atomicMax": "did you mean T.atomic_max?",
    "blockIdx": "`with T.Kernel(grid) as bx:` names the block's index",
    "cdiv": "did you mean T.ceildiv?",
    "constexpr": "arguments of the factory, around the kernel, are compile-time values",
    "dot": "T.gemm(A, B, C) adds the product of two tiles to the tile C",
    "expand_dims": "index it: `f[i, j] = v[i]` in a T.Parallel loop",
    "full": "allocate a tile, and T.fill(tile, value)",
    "load": "T.copy(A[i, j], tile) reads a tile, A[i, j] an element",
    "make_block_ptr": "T.copy(A[i, j], tile) reads a tile that begins there",
    "matmul": "T.gemm(A, B, C) adds the product of two tiles to the tile C",
    "max_contiguous": "contracts of sizes say this: T.dynamic(name, multiple_of=8)",
    "multiple_of": "contracts of sizes say this: T.dynamic(name, multiple_of=8)",
    "num_programs": "T.get_block_extent(axis)",
    "program_id": "`with T.Kernel(grid) as bx:` names the block's index; T.get_block_binding(axis)",
    "reduce_mean": "T.reduce_sum, and divide by the number of elements",
    "reduce_prod": "T.reduce_sum of logarithms, or a T.serial loop",
    "shared_memory": "T.alloc_shared(shape, dtype)",
    "store": "T.copy(tile, A[i, j]) writes a tile, A[i, j] = value an element",
    "sum": "T.reduce_sum(tile, out, dim)",
    "syncthreads": "did you mean T.sync_threads?",
    "threadIdx": "T.get_thread_binding(0) is the thread's index",
    "trans": "transpose_A=True or transpose_B=True of T.gemm, or T.transpose(src, dst)",
    "where": "did you mean T.if_then_else?",
    "zeros": "allocate a tile, and T.clear(tile)",
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
    said = f"T.{name} is not a word of the language"
    if name in _ELSEWHERE:
        meant = re.fullmatch(r"did you mean T\.(\w+)\?", _ELSEWHERE[name])
        repair = swap(name, meant.group(1)) if meant else None
        return UnknownWord(said, fix=_ELSEWHERE[name], code="unknown-word", repair=repair)
    close = difflib.get_close_matches(name, [k for k in known if k not in _NO_WORDS], 3, 0.6)
    if not close:
        fix = "`dir(T)` lists the words"
        return UnknownWord(said, fix=fix, code="unknown-word")
    # one that is much closer than the others is the one
    ratio = [difflib.SequenceMatcher(None, name, word).ratio() for word in close]
    if len(close) == 1 or ratio[0] > 0.8 or ratio[0] - ratio[1] > 0.1:
        close = close[:1]
    return UnknownWord(
        said,
        fix=f"did you mean {' or '.join(f'T.{c}' for c in close)}?",
        code="unknown-word",
        repair=swap(name, close[0]) if len(close) == 1 else None,
    )


_NO_WORDS = ("entry", "annotations", "Any", "DTYPE_NAMES", "as_entries", "unknown_word")
