"""`pass_configs`: fields of a target's schedule and numerics (`ir.schedule`) and `diagnostic`, and
the spellings that ported kernels bring along."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from enum import Enum
from typing import Any

from tilewright.ir.schedule import HOME


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


# spelling → (our field, whether its truth is turned round)
SPELLINGS: dict[str, tuple[str, bool]] = {
    PassConfigKey.TL_ENABLE_FAST_MATH.value: ("fast_math", False),
    PassConfigKey.TL_DISABLE_FAST_MATH.value: ("fast_math", True),
    PassConfigKey.TL_DISABLE_WARP_SPECIALIZED.value: ("roles", True),
    PassConfigKey.TL_DISABLE_TMA_LOWER.value: ("bulk_copies", True),
}
_warned: set[str] = set()


def options_from(configs: Mapping[Any, Any] | None) -> dict[str, Any]:
    """Fields out of `pass_configs`; what has no meaning here gets one warning."""
    options: dict[str, Any] = {}
    for key, value in (configs or {}).items():
        name = key.value if isinstance(key, Enum) else str(key)
        if name in SPELLINGS:
            name, turned = SPELLINGS[name]
            value = not value if turned else value
        if name in HOME or name == "diagnostic":
            options |= {} if value is None else {name: value}
        elif name not in _warned:
            _warned.add(name)
            known = ", ".join([n for n, home in HOME.items() if home != "internal"])
            warnings.warn(
                f"pass_configs: {name!r} has no meaning in Tilewright and is ignored "
                f"(known: {known}, diagnostic)",
                stacklevel=4,
            )
    return options
