"""y = silu(rms_norm(x) * w), for any channel count that is a multiple of 32."""

from __future__ import annotations

import numpy as np

from zoo.norm import rms_norm

FAST_CHANNELS = (256, 512, 1024, 2048, 4096)


def rms_norm_silu(M, C, eps=1e-6, dtype="float32", target="auto"):
    """The kernel for this channel count: rows at once where they fit well, pieces otherwise."""
    if C % 32:
        raise ValueError(f"the channel count must be a multiple of 32, got {C}")
    make = rms_norm.rms_norm_whole if C in FAST_CHANNELS else rms_norm.rms_norm_pieces
    return make.on(target)(M, C, eps=eps, dtype=dtype, silu=True)


def reference(x: np.ndarray, w: np.ndarray, eps: float = 1e-6) -> np.ndarray:
    return rms_norm.reference(x, w, eps, silu=True)
