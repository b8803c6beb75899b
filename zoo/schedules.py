"""Sizes at random for every kernel of the zoo: small and odd ones, tails, few turns of a loop.

    python -m devtools schedules zoo/schedules.py

`schedules` maps a name to two functions: `draw(rng)` gives arguments, all literals, and
`make(**arguments)` the kernel, the sizes that only a launch knows, and whether its results are
exact on small integers however its sums are added.
"""

from __future__ import annotations

from random import Random

from zoo import rows
from zoo.attention import backward, flash
from zoo.elementwise import swiglu, vector_add
from zoo.gemm import gemm, scaled
from zoo.loss import cross_entropy
from zoo.mla import decode
from zoo.norm import layer_norm, rms_norm
from zoo.softmax import softmax
from zoo.transpose import transpose


def _sizes(r: Random, block: int, most: int = 3) -> int:
    """Up to `most` blocks: whole ones, a tail of one, odd ones, or less than one."""
    whole = r.randint(1, most) * block
    return max(1, r.choice([whole, whole, whole - block + 1, whole - r.randint(1, block - 1)]))


def _product(r: Random) -> dict[str, object]:
    dtype = r.choice(["float16", "float16", "float16", "bfloat16", "float32"])
    if dtype == "float32":
        block = {"block_M": r.choice([16, 32, 64]), "block_N": r.choice([16, 32, 48])}
        block["block_K"] = r.choice([8, 16])
    else:
        block = {"block_M": r.choice([64, 64, 128, 48]), "block_N": r.choice([32, 64, 64, 128, 72])}
        block["block_K"] = r.choice([16, 32, 64, 64, 48])
    unit = r.choice([1, 8, 8, 8])  # of 8: rows that the bulk engine takes
    return {
        "M": _sizes(r, block["block_M"], 2),
        "N": -(-_sizes(r, block["block_N"], 2) // unit) * unit,
        "K": -(-_sizes(r, block["block_K"], 5) // unit) * unit,
        **block,
        "dtype": dtype,
    }


def gemm_relu(r: Random) -> dict[str, object]:
    more = {"threads": r.choice([128, 128, 256]), "stages": r.randint(0, 5)}
    return {**_product(r), **more, "panel": r.choice([1, 2, 3, 8])}


def gemm_transposed(r: Random) -> dict[str, object]:
    return {**_product(r), "transpose_A": r.random() < 0.4, "transpose_B": r.random() < 0.6}


def gemm_scaled(r: Random) -> dict[str, object]:
    group, threads = r.choice([32, 64]), r.choice([128, 256, 256])
    block_M = r.choice([64, 128]) * (threads // 128)
    block_N = r.choice([64, 128, 128, 256])
    return {
        "M": _sizes(r, block_M, 2),
        "N": -(-_sizes(r, block_N, 2) // 8) * 8,
        "K": group * r.randint(1, 6) - r.choice([0, 0, 0, 16]),
        **{"block_M": block_M, "block_N": block_N, "group": group, "threads": threads},
        **{"stages": r.randint(1, 4), "dtype": "float16", "out": "float32"},
    }


def attention(r: Random) -> dict[str, object]:
    block_M, block_N = r.choice([64, 64, 128]), r.choice([32, 64, 64, 96, 128])
    heads = r.choice([1, 1, 2])
    return {
        "batch": 1,
        "heads": heads,
        "kv_heads": r.choice([1, heads]),
        "seq_q": _sizes(r, block_M, 2),
        "seq_kv": _sizes(r, block_N, 4),
        "dim": r.choice([32, 64, 64, 128]),
        "causal": r.random() < 0.5,
        "block_M": block_M,
        "block_N": block_N,
        "threads": 2 * block_M if r.random() < 0.8 else 128,
        "stages": r.randint(0, 4),
        "dtype": r.choice(["float16", "bfloat16"]),
    }


def gradient(r: Random, along: str) -> dict[str, object]:
    """Of keys or queries: threads divide the tile of `along`."""
    found = attention(r)
    found |= {along: r.choice([64, 64, 128]), "dim": r.choice([32, 64]), "dtype": "bfloat16"}
    found["seq_kv"] = max(int(found["seq_kv"]), int(found["seq_q"]))
    return {**found, "threads": 2 * int(found[along])}


def mla(r: Random) -> dict[str, object]:
    block_N = r.choice([32, 64])
    return {
        "batch": r.choice([1, 1, 2]),
        "heads": r.choice([16, 64, 64, 40]),
        "seq_kv": _sizes(r, block_N, 4),
        "dim": r.choice([64, 128, 128, 256]),
        "rope": r.choice([16, 64]),
        "splits": r.choice([1, 1, 2, 3]),
        "block_N": block_N,
        "dtype": r.choice(["float16", "bfloat16"]),
    }


def _rows(r: Random, pieces: str, widths: list[int], held: str = "held") -> dict[str, object]:
    """A variant of a kernel that works row by row, and its sizes."""
    variant = r.choice(["rows", held, pieces])
    columns = r.choice([r.randint(1, 70), r.randint(200, 900), r.choice([256, 512])])
    block_M, threads = r.choice([1, 2, 3, 4]), r.choice([32, 64, 128, 256])
    found: dict[str, object] = {"N": columns, "m": r.randint(1, 9), "variant": variant}
    found |= {"block_M": block_M, "threads": threads, "dtype": r.choice(["bfloat16", "float32"])}
    if variant == "held":
        found |= {"block_M": r.choice([1, 2, 4]), "cluster": r.choice([1, 1, 2, 4])}
    elif variant == "pieces":
        found |= {"block_N": r.choice(widths), "staged": r.random() < 0.4}
    return found


def normed(r: Random) -> dict[str, object]:
    return _rows(r, "pieces", [64, 128, 200, 256])


def weighted(r: Random) -> dict[str, object]:
    found = normed(r)
    if found["variant"] == "held":
        found["vectors"] = r.choice([1, 1, 2])
        if r.random() < 0.5:
            del found["block_M"]
            found |= {"variant": "kept", "clusters": r.randint(1, 4)}
    return found


def silu_weighted(r: Random) -> dict[str, object]:
    return {**weighted(r), "silu": r.random() < 0.5}


def lost(r: Random) -> dict[str, object]:
    return _rows(r, "walked", [], "walked")


def tiled(r: Random) -> dict[str, object]:
    return {
        "N": r.choice([r.randint(1, 70), r.randint(100, 700)]),
        "m": r.randint(1, 9),
        "block_M": r.choice([1, 2, 4]),
        "block_N": r.choice([64, 96, 256]),
        "threads": r.choice([32, 64, 128]),
        "dtype": r.choice(["bfloat16", "float32"]),
    }


def turned(r: Random) -> dict[str, object]:
    return {
        "M": r.randint(1, 150),
        "N": r.randint(1, 150),
        "dtype": r.choice(["float16", "float32"]),
        "padding": r.choice([0, 2]),
        "staged": r.random() < 0.5,
        "moved": r.choice([None, "sync"]),
    }


def added(r: Random) -> dict[str, object]:
    return {"N": r.choice([r.randint(1, 3000), 1024, 2048])}


def _still(factory, exact=False):
    """A kernel whose sizes are all arguments."""
    return lambda **given: (factory.prim_func(**given), {}, exact)


def _per_row(variants):
    """A variant of a family for any number of rows, here `m`."""

    def make(m, variant, **given):
        return variants[variant].prim_func(rows.ROWS, **given), {"m": m}, False

    return make


def _any_rows(factory):
    return lambda m, **given: (factory.prim_func(rows.ROWS, **given), {"m": m}, False)


schedules = {
    "gemm_relu": (gemm_relu, _still(gemm.gemm_relu, True)),
    "gemm_transposed": (gemm_transposed, _still(gemm.gemm_transposed, True)),
    "gemm_scaled": (gemm_scaled, _still(scaled.gemm_scaled, True)),
    "flash_attention": (attention, _still(flash.flash_attention)),
    "keys_gradient": (lambda r: gradient(r, "block_N"), _still(backward.keys_gradient)),
    "queries_gradient": (lambda r: gradient(r, "block_M"), _still(backward.queries_gradient)),
    "mla_decode": (mla, _still(decode.mla_decode)),
    "softmax": (normed, _per_row(softmax.VARIANTS)),
    "rms_norm": (silu_weighted, _per_row(rms_norm.VARIANTS)),
    "layer_norm": (weighted, _per_row(layer_norm.VARIANTS)),
    "cross_entropy": (lost, _per_row(cross_entropy.VARIANTS)),
    "swiglu": (tiled, _any_rows(swiglu.swiglu)),
    "transpose": (turned, _still(transpose.transpose, True)),
    "vector_add": (added, _still(vector_add.vector_add, True)),
}
