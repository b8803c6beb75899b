"""`pass_configs`: our option names, and the spellings that ported kernels bring along."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from enum import Enum
from typing import Any

OPTIONS = {
    "fast_math": "approximate division and functions",
    "warp_specialize": "producer and consumer warps",
    "bulk_copies": "copies by the bulk engine",
    "deterministic": "refuse what may change bits between runs",
    "diagnostic": "bound barrier waits on CUDA and report those that do not end",
    "skew": "statements of several iterations of a pipelined loop side by side",
    "turns": "warpgroups use the tensor core one after the other",
    "consumers": "warpgroups share a tile, or have one each: cooperative, pingpong",
    "boxes": "tiles of products are loaded and used in boxes along K",
    "unswitch_guards": "guards of elements are asked once an iteration where that tells enough",
    "persistent": "blocks that stay, and walk over the grid's tiles",
    "block_order": "of the grid's tiles: plain, grouped, hilbert, longest",
    "cluster": "blocks that share what they load: 1, 2, 4",
    "stage_stores": "accumulators reach memory by way of shared memory",
    "multibuffer": "tiles that threads fill for products have several slots",
    "async_gathers": "nests that move rows from anywhere do so ahead, past the registers",
    "inline_rows": "rows of numbers are loaded by the nests that need them",
    "split_gemms": "products that leave too few registers are made in pieces",
    "product_waits": "for products by warpgroups, at the latest: late, iteration, each",
}
# options that a target is told (`ir.target.CHOICES`)
PINS = {
    "warp_specialize": "roles",
    "skew": "skew",
    "turns": "turns",
    "consumers": "consumers",
    "boxes": "boxes",
    "unswitch_guards": "hoist",
    "persistent": "persistent",
    "block_order": "order",
    "cluster": "cluster",
    "product_waits": "waits",
    "stage_stores": "stage",
    "multibuffer": "turning",
    "async_gathers": "gathers",
    "inline_rows": "inline",
    "split_gemms": "pieces",
    "fast_math": "fast_math",
    "bulk_copies": "bulk",
}


class PassConfigKey(str, Enum):
    """Names that TileLang kernels use in `pass_configs`; `SPELLINGS` says what they mean here.

    >>> @tw.jit(pass_configs={tw.PassConfigKey.TL_ENABLE_FAST_MATH: True})
    ... def main(A):
    ...     A: T.Tensor((8,), "float32")
    ...     B = T.empty((8,), "float32")
    ...     with T.Kernel(1, threads=32):
    ...         for i in T.Parallel(8):
    ...             B[i] = T.exp(A[i])
    ...     return B
    >>> main(np.zeros(8, np.float32)).tolist()[:2]
    [1.0, 1.0]
    """

    TL_ENABLE_FAST_MATH = "tl.enable_fast_math"
    TL_DISABLE_FAST_MATH = "tl.disable_fast_math"
    TL_DISABLE_WARP_SPECIALIZED = "tl.disable_warp_specialized"
    TL_DISABLE_TMA_LOWER = "tl.disable_tma_lower"
    TL_DISABLE_SAFE_MEMORY_ACCESS = "tl.disable_safe_memory_legalize"
    TL_DISABLE_DYNAMIC_TAIL_SPLIT = "tl.disable_dynamic_tail_split"
    TL_DISABLE_THREAD_STORAGE_SYNC = "tl.disable_thread_storage_sync"
    TL_DISABLE_DATA_RACE_CHECK = "tl.disable_data_race_check"
    TL_DISABLE_WGMMA = "tl.disable_wgmma"
    TL_DISABLE_SHUFFLE_ELECT = "tl.disable_shuffle_elect"
    TL_DISABLE_SHARED_MEMORY_REUSE = "tl.disable_shared_memory_reuse"
    TL_DISABLE_OUT_OF_BOUND_WARNING = "tl.disable_out_of_bound_warning"
    TL_ENABLE_AGGRESSIVE_SHARED_MEMORY_MERGE = "tl.enable_aggressive_shared_memory_merge"
    TL_DEBUG_MERGE_SHARED_MEMORY_ALLOCATIONS = "tl.debug_merge_shared_memory_allocations"
    TL_ENABLE_ASYNC_COPY = "tl.enable_async_copy"
    TL_FORCE_LET_INLINE = "tl.force_let_inline"
    TL_CONFIG_INDEX_BITWIDTH = "tl.config_index_bitwidth"
    TL_PTXAS_REGISTER_USAGE_LEVEL = "tl.ptxas_register_usage_level"
    TL_DEVICE_COMPILE_FLAGS = "tl.device_compile_flags"
    TL_SIMPLIFY = "tl.Simplify"
    TL_DISABLE_VECTORIZE_256 = "tl.disable_vectorize_256"
    TL_LAYOUT_VISUALIZATION_ENABLE = "tl.layout_visualization_enable"
    TIR_DISABLE_VECTORIZE = "tirx.disable_vectorize"
    TIR_DISABLE_CSE = "tirx.disable_cse_tir"
    TIR_USE_ASYNC_COPY = "tirx.use_async_copy"
    TIR_MERGE_STATIC_SMEM = "tirx.merge_static_smem"


# spelling → (our option, whether its truth is turned round)
SPELLINGS: dict[str, tuple[str, bool]] = {
    PassConfigKey.TL_ENABLE_FAST_MATH.value: ("fast_math", False),
    PassConfigKey.TL_DISABLE_FAST_MATH.value: ("fast_math", True),
    PassConfigKey.TL_DISABLE_WARP_SPECIALIZED.value: ("warp_specialize", True),
    PassConfigKey.TL_DISABLE_TMA_LOWER.value: ("bulk_copies", True),
}
_warned: set[str] = set()


def options_from(configs: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Our options out of `pass_configs`; what has no meaning here gets one warning."""
    options: dict[str, Any] = {}
    for key, value in (configs or {}).items():
        name = key.value if isinstance(key, Enum) else str(key)
        if name in OPTIONS:
            options[name] = value
        elif name in SPELLINGS:
            ours, turned = SPELLINGS[name]
            options[ours] = not value if turned else value
        elif name not in _warned:
            _warned.add(name)
            warnings.warn(
                f"pass_configs: {name!r} has no meaning in Tilewright and is ignored "
                f"(known: {', '.join(OPTIONS)})",
                stacklevel=4,
            )
    return options


def choices_from(options: Mapping[str, Any]) -> dict[str, str]:
    """What `options` say about schedules, in a target's words.

    >>> choices_from({"warp_specialize": False, "cluster": 2})
    {'roles': 'off', 'cluster': '2'}
    """
    words = {True: "on", False: "off"}
    return {
        PINS[name]: words[value] if isinstance(value, bool) else str(value)
        for name, value in options.items()
        if name in PINS and value is not None
    }
