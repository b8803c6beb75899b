"""The passes of the CUDA target, in order, each with the reason for its place."""

from __future__ import annotations

from tilewright.ir.verify import Stage
from tilewright.passes.canonicalize.fold_accumulator_init import fold_accumulator_init
from tilewright.passes.canonicalize.loops import bound_maps, count_loops, split_loops, unroll_shifts
from tilewright.passes.canonicalize.pack_elements import pack_elements
from tilewright.passes.canonicalize.rules import (
    announce_barriers,
    drop_unused,
    hoist_views,
    label_prints,
    map_stores,
    reduce_by_atomics,
    use_fast_functions,
)
from tilewright.passes.canonicalize.unswitch_guards import unswitch_guards
from tilewright.passes.canonicalize.write_in_place import write_in_place
from tilewright.passes.grid.order_blocks import order_blocks
from tilewright.passes.grid.persist_blocks import cluster_blocks, persist_blocks, spread_clusters
from tilewright.passes.layout.choose_gemms import choose_gemms, split_gemms
from tilewright.passes.layout.hold_windows import hold_windows
from tilewright.passes.layout.infer_layouts import infer_layouts
from tilewright.passes.layout.matrix_tiles import swap_operands
from tilewright.passes.layout.shared_tiles import pin_shared
from tilewright.passes.lower.stamp_ops import stamp_ops
from tilewright.passes.lower.threads import choose_copies, lower_threads
from tilewright.passes.memory.place_shared import place_shared, reuse_shared
from tilewright.passes.memory.registers import (
    fit_registers,
    keep_operands,
    move_large_fragments,
    share_fragments,
    spill_fragments,
)
from tilewright.passes.overlap.count_stores import count_stores
from tilewright.passes.overlap.ping_pong import (
    apply_ping_pong,
    choose_ping_pong,
    order_warpgroups,
)
from tilewright.passes.overlap.pipeline_loops import pipeline_loops
from tilewright.passes.overlap.place_roles import place_roles, split_roles
from tilewright.passes.overlap.prefetch_loads import inline_rows, map_copies, prefetch_loads
from tilewright.passes.overlap.roles import part_roles
from tilewright.passes.overlap.stage_stores import stage_stores
from tilewright.passes.overlap.stages import choose_stages, split_stages, stage_loads
from tilewright.passes.run import Pass
from tilewright.passes.sync.insert_syncs import insert_syncs

FIRST = (
    Pass(count_loops, "first: everything that follows takes steps to be positive"),
    Pass(label_prints, "while indices are the author's, and buffers have their names"),
)
# From tiles to the scheduled form. Kernels with roles have it already, and pass unchanged.
SCHEDULE = (
    Pass(bound_maps, "layouts need constant extents"),
    Pass(drop_unused, "before tiles are counted"),
    Pass(write_in_place, "before registers are counted"),
    Pass(swap_operands, "before anything asks which threads share a product"),
    Pass(unroll_shifts, "copies of parts, and maps over them, are ops from here on"),
    Pass(map_stores, "all that threads compute is maps from here on"),
    Pass(place_roles, "passes that derive a time leave alone what is placed"),
    Pass(announce_barriers, "any time: derived barriers are announced"),
    Pass(use_fast_functions, "any time: it changes expressions only"),
    Pass(move_large_fragments, "before registers and shared memory are counted"),
    Pass(spill_fragments, "before shared memory is counted, and control flow is followed"),
    Pass(keep_operands, "before shared memory is counted, and threads meet for it"),
    Pass(hoist_views, "before the copies of what they show move"),
    Pass(choose_ping_pong, "before anything asks how many threads share a tile"),
    Pass(share_fragments, "after choose_ping_pong: how many warpgroups share a tile"),
    Pass(stage_loads, "before rings are counted, and shared memory"),
    Pass(choose_stages, "before anything asks how deep rings are"),
    Pass(reduce_by_atomics, "the copies that are left only copy"),
    Pass(pack_elements, "threads and memory deal in bytes from here on"),
    Pass(pin_shared, "before copies become asynchronous: TMA supports few layouts"),
    Pass(cluster_blocks, "before order_blocks and persist_blocks, which move whole clusters"),
    Pass(order_blocks, "what follows sees indices only"),
    Pass(persist_blocks, "after order_blocks, whose numbers it counts; before waits in loops"),
    Pass(spread_clusters, "after blocks are ordered and counted: what follows sees blocks"),
    Pass(fold_accumulator_init, "before choose_gemms clears tiles for what cannot begin anew"),
    Pass(split_stages, "before choose_gemms: gemms of boxes are gemms like any other"),
    Pass(split_roles, "before choose_gemms: the threads of a role share a gemm"),
    Pass(choose_gemms, "gemms prescribe layouts, and say which copies are asynchronous"),
    Pass(stage_stores, "before copies become asynchronous: staged stores are among them"),
    Pass(inline_rows, "before prefetch_loads, which makes its loads early"),
    Pass(split_gemms, "before prefetch_loads: what columns share is one number in a piece"),
    Pass(map_copies, "before prefetch_loads, after all that look for copies"),
    Pass(prefetch_loads, "before pipeline_loops, which asks what loops compute"),
    Pass(pipeline_loops, "before layouts: rings have a dimension more"),
    Pass(count_stores, "after pipeline_loops, which leaves kernels with barriers alone"),
    Pass(infer_layouts, "everything below asks for layouts"),
    Pass(hold_windows, "layouts say which elements of a thread lie side by side"),
    Pass(choose_copies, "layouts decide whether whole matrices move"),
    Pass(insert_syncs, "threads with the same layout need no barrier", Stage.LAID_OUT),
    Pass(reuse_shared, "after all waits, which end lives", Stage.LAID_OUT),
    Pass(unswitch_guards, "after all that see a map as one op: some get two", Stage.LAID_OUT),
    Pass(part_roles, "other passes see the consumers' code as the block's", Stage.LAID_OUT),
    Pass(split_loops, "roles part loops as they were planned", Stage.LAID_OUT),
    Pass(apply_ping_pong, "a warpgroup's code is whole, and several get it", Stage.LAID_OUT),
    Pass(order_warpgroups, "every gemm has its place, waits and commits", Stage.LAID_OUT),
    Pass(fit_registers, "last: the roles, and what they hold, are settled", Stage.LAID_OUT),
)
# of a traced build
STAMP = (Pass(stamp_ops, "after all that moves ops: what is stamped stays", Stage.LAID_OUT),)
LOWER = (
    Pass(place_shared, "while buffers have the layouts that align them", Stage.LAID_OUT),
    Pass(lower_threads, "last: every choice is made; the emitter prints this", Stage.THREAD),
)
