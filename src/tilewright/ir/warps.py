"""How threads of a block come together."""

WARP = 32  # threads
WARPGROUP = 128  # threads that a `wgmma` takes
GROUP = WARPGROUP // WARP  # warps of a warpgroup
NAMED_BARRIERS = 16  # of a block; 0 is all of its threads'
