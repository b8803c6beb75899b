"""The language: `import tilewright.language as T`. Names only; see the rooms they come from."""

# ruff: noqa: F401
from __future__ import annotations

from typing import Any

from tilewright.ir.expr import Expr as PrimExpr
from tilewright.ir.layout.fragment import repeat, spatial
from tilewright.lang.alloc import (
    alloc_barrier,
    alloc_cluster_barrier,
    alloc_fragment,
    alloc_global,
    alloc_local,
    alloc_reducer,
    alloc_shared,
    alloc_var,
)
from tilewright.lang.atomics import (
    atomic_add,
    atomic_addx2,
    atomic_addx4,
    atomic_and,
    atomic_exch,
    atomic_load,
    atomic_max,
    atomic_min,
    atomic_or,
    atomic_store,
    atomic_xor,
    finalize_reducer,
    reducer_init,
    reducer_update,
)
from tilewright.lang.compute import (
    all_of,
    any_of,
    gemm,
    gemm_sp,
    reduce_absmax,
    reduce_abssum,
    reduce_bitand,
    reduce_bitor,
    reduce_bitxor,
    reduce_max,
    reduce_min,
    reduce_sum,
    wait_wgmma,
    warp_reduce_bitand,
    warp_reduce_bitor,
    warp_reduce_max,
    warp_reduce_min,
    warp_reduce_sum,
    warpgroup_wait,
    wgmma_gemm,
)
from tilewright.lang.hints import (
    Fragment,
    Layout,
    annotate_l2_hit_ratio,
    annotate_layout,
    annotate_min_blocks_per_sm,
    annotate_padding,
    annotate_restrict_buffers,
    annotate_safe_value,
    assume,
    device_assert,
    layout,
    make_swizzled_layout,
    print,
)
from tilewright.lang.launch import (
    ClusterKernel,
    Kernel,
    block_rank_in_cluster,
    get_block_binding,
    get_block_bindings,
    get_block_extent,
    get_block_extents,
    get_lane_idx,
    get_thread_binding,
    get_thread_bindings,
    get_thread_extent,
    get_thread_extents,
    get_warp_group_idx,
    get_warp_idx,
    get_warp_idx_sync,
    use_swizzle,
)
from tilewright.lang.loops import (
    Parallel,
    Persistent,
    Pipelined,
    Serial,
    Unroll,
    Vectorized,
    grid,
    loop_break,
    serial,
    thread_binding,
    unroll,
    vectorized,
)
from tilewright.lang.loops import serial as range
from tilewright.lang.math import (
    And,
    Cast,
    Not,
    Or,
    Select,
    abs,
    acos,
    asin,
    atan,
    atan2,
    bitwise_and,
    bitwise_not,
    bitwise_or,
    bitwise_xor,
    cast,
    ceil,
    ceildiv,
    clamp,
    clz,
    copysign,
    cos,
    cosh,
    dp4a,
    erf,
    exp,
    exp2,
    exp10,
    expm1,
    floor,
    floordiv,
    floormod,
    fma,
    fmod,
    if_then_else,
    infinity,
    isfinite,
    isinf,
    isnan,
    log,
    log1p,
    log2,
    log10,
    max_value,
    min_value,
    nearbyint,
    popcount,
    pow,
    reinterpret,
    round,
    rsqrt,
    shift_left,
    shift_right,
    sigmoid,
    sin,
    sinh,
    sqrt,
    tan,
    tanh,
    trunc,
    truncdiv,
    truncmod,
)
from tilewright.lang.math import fast_cos as __cos
from tilewright.lang.math import fast_divide as __divide
from tilewright.lang.math import fast_exp as __exp
from tilewright.lang.math import fast_exp2 as __exp2
from tilewright.lang.math import fast_exp10 as __exp10
from tilewright.lang.math import fast_log as __log
from tilewright.lang.math import fast_log2 as __log2
from tilewright.lang.math import fast_log10 as __log10
from tilewright.lang.math import fast_sigmoid as __sigmoid
from tilewright.lang.math import fast_sin as __sin
from tilewright.lang.math import fast_tan as __tan
from tilewright.lang.math import fast_tanh as __tanh
from tilewright.lang.meanings import DTYPE_NAMES, as_entries, unknown_word
from tilewright.lang.move import (
    async_copy,
    clear,
    copy,
    copy_cluster,
    fill,
    tma_copy,
    tma_store_arrive,
    transpose,
    view,
)
from tilewright.lang.params import chosen, const, empty
from tilewright.lang.reductions import (
    all,
    any,
    argmax,
    argmin,
    max,
    mean,
    min,
    prod,
    sum,
    var,
)
from tilewright.lang.roles import (
    WarpSpecialize,
    barrier_arrive,
    barrier_wait,
    cluster_sync,
    dec_max_nreg,
    disable_warp_group_reg_alloc,
    fence_proxy_async,
    inc_max_nreg,
    mbarrier_arrive,
    mbarrier_arrive_expect_tx,
    mbarrier_expect_tx,
    mbarrier_wait_parity,
    no_set_max_nreg,
    pdl_launch,
    pdl_sync,
    pdl_trigger,
    pdl_wait,
    set_max_nreg,
    tma_store_wait,
    ws,
)
from tilewright.lang.scans import cummax, cumprod, cumsum, reduce, scan
from tilewright.lang.threads import (
    access_ptr,
    address_of,
    all_sync,
    any_sync,
    ballot,
    ballot_sync,
    call_extern,
    import_source,
    named_barrier_arrive,
    ptx,
    shfl_down,
    shfl_sync,
    shfl_up,
    shfl_xor,
    sync_threads,
    sync_warp,
)
from tilewright.lang.tile_words import (
    arange,
    full,
    gelu,
    hardsigmoid,
    inf,
    load,
    maximum,
    minimum,
    mish,
    ones,
    relu,
    reshape,
    silu,
    softplus,
    where,
    zeros,
)
from tilewright.lang.tile_words import elementwise as _elementwise
from tilewright.lang.tiles import each, tile
from tilewright.lang.trace import macro, prim_func
from tilewright.lang.types import (
    Buffer,
    FragmentBuffer,
    GemmWarpPolicy,
    LocalBuffer,
    Ref,
    SharedBuffer,
    StridedTensor,
    Tensor,
    dynamic,
    symbolic,
)
from tilewright.lang.types import ScalarType as dtype
from tilewright.support.errors import entry

globals().update(DTYPE_NAMES)
_ON_TILES = (
    "abs acos asin atan atan2 bitwise_and bitwise_not bitwise_or bitwise_xor ceil clz copysign cos "
    "cosh erf exp exp2 exp10 expm1 floor floordiv floormod fma fmod isfinite isinf isnan log log1p "
    "log2 log10 popcount pow round rsqrt shift_left shift_right sigmoid sin sinh sqrt tan tanh "
    "trunc truncdiv truncmod __exp __exp2 __exp10 __log __log2 __log10 __sin __cos __tan __tanh "
    "__sigmoid __divide"
).split()
_KEEPING = "clamp cast Cast reinterpret if_then_else Select And Or Not".split()
globals().update({n: _elementwise(globals()[n], n in _KEEPING) for n in (*_ON_TILES, *_KEEPING)})
globals().update(as_entries(globals()))


@entry
def __getattr__(name: str) -> Any:
    raise unknown_word(name, [word for word in globals() if not word.startswith("_")])
