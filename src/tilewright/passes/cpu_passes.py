"""The passes of the CPU target, in order, each with the reason for its place."""

from __future__ import annotations

from tilewright.passes.canonicalize.fold_rows import fold_rows
from tilewright.passes.canonicalize.fuse_maps import (
    absorb_loops,
    forward_copies,
    fuse_maps,
    promote_tiles,
    split_edges,
    write_products,
)
from tilewright.passes.canonicalize.loops import count_loops, simplify_indices, unroll_single
from tilewright.passes.canonicalize.rules import expand_copies, label_prints
from tilewright.passes.lower.split_at_barriers import split_at_barriers
from tilewright.passes.run import Pass

PIPELINE = (
    Pass(count_loops, "first: everything that follows takes steps to be positive"),
    Pass(split_edges, "before forward_copies: most blocks then read what is there"),
    Pass(forward_copies, "while copies are statements: gemms then read tensors in place"),
    Pass(unroll_single, "before write_products, which looks for one product"),
    Pass(write_products, "while fills and copies are statements"),
    Pass(label_prints, "while indices are the author's, and buffers have their names"),
    Pass(expand_copies, "copies become maps, which everything below understands"),
    Pass(split_at_barriers, "threads become maps too: what follows sees all there are"),
    Pass(simplify_indices, "on the indices that maps will really have"),
    Pass(absorb_loops, "before fusing, which compares boxes"),
    Pass(fuse_maps, "when boxes are known: fewer trips through memory"),
    Pass(promote_tiles, "what one map writes and reads at one point stays in registers"),
    Pass(fold_rows, "last: by now, one map stands on either side of a fold"),
)
