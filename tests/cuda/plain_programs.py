"""Laid-out programs without roles, one per thing that all threads of a block do together or each
for itself; each is run as it stands and lowered, and compiled for sm_90a."""

from __future__ import annotations

from math import prod

from tilewright.ir.layout.fragment import (
    Fragment,
    mma_a_operand,
    mma_accumulator,
    mma_b_operand,
    repeat,
    row_of,
    spatial,
    wgmma_a_operand,
    wgmma_accumulator,
)
from tilewright.passes.layout.thread_layouts import coalesced

PROGRAMS: dict[str, str] = {}


def kernel(body: str, params: str = "", threads: int = 128, grid: int = 1) -> str:
    return (
        f"program p {{\n{params}\nkernel main grid bx in {grid} threads tx in {threads} {{\n"
        f"{body}\n}}\n}}\n"
    )


def add(name: str, body: str, params: str, threads: int = 128, grid: int = 1) -> None:
    PROGRAMS[name] = kernel(body, params, threads, grid)


def frag(name: str, kind: str, layout: Fragment) -> str:
    return f'alloc {name}: {kind}{list(layout.tile)} fragment layout="{layout!r}"\n'


def shared(name: str, kind: str, shape: tuple[int, ...], layout: str) -> str:
    return f'alloc {name}: {kind}{list(shape)} shared layout="{layout}"\n'


def rows(shape: tuple[int, ...]) -> str:
    strides = [prod(shape[i + 1 :]) for i in range(len(shape))]
    if len(shape) == 1:
        return f"({shape[0]}):({strides[0]})"
    return f"({','.join(map(str, shape))}):({','.join(map(str, strides))})"


# ── products ─────────────────────────────────────────────────────────────────────────────────

SWIZZLE = {"bfloat16": "S<3,3,3>", "float16": "S<3,3,3>", "float8_e4m3fn": "S<3,4,3>"}


def grouped(m: int, n: int, down: int, across: int, order: str = "rows") -> Fragment:
    """The accumulator of an m×n tile over down×across warpgroups."""
    gm, gn = m // down, n // across
    one = repeat(gm // 64, 1) * wgmma_accumulator(64, gn)
    split = spatial(down, across)
    if order == "columns":
        split = spatial(across, down).permute(1, 0)
    return split * one


def gemm(name: str, m: int, n: int, k: int, down: int, across: int, kind: str = "bfloat16",
         acc: str = "float32", registers: bool = False, order: str = "rows") -> None:  # fmt: skip
    wide = 128 // (2 if kind != "float8_e4m3fn" else 1)
    threads = 128 * down * across
    c = grouped(m, n, down, across, order)
    body = frag("c", acc, c)
    body += "alloc full: barrier[1] barrier\nbarrier_init full[0] count 1\n"
    body += "fence barrier_init\nsync block\n"
    span = f"{SWIZZLE[kind]} o 0 o"
    body += shared("b", kind, (n, k), f"{span} ({n},({wide},{k // wide})):({wide},(1,{n * wide}))")
    size = (n * k) * (1 if wide == 128 else 2)
    if registers:
        part = repeat(m // down // 64, 1) * wgmma_a_operand(64, k, 16)
        layout = spatial(down, 1) * part
        if across > 1:
            layout = Fragment(
                layout.tile,
                _between(layout, across),
            )
        body += frag("a", kind, layout)
    else:
        body += shared(
            "a", kind, (m, k), f"{span} ({m},({wide},{k // wide})):({wide},(1,{m * wide}))"
        )
        size += m * k * (1 if wide == 128 else 2)
        body += "copy A -> a atom=bulk_load barrier=full[0]\n"
    body += "copy B -> b atom=bulk_load barrier=full[0]\n"
    body += f"arrive full[0] bytes={size}\nwait full[0] phase 0\n"
    if registers:
        body += "copy A -> a atom=threads\n"
    body += "fence wgmma\n"
    body += "gemm a, b -> c clear=true transpose_b=true atom=wgmma\n"
    body += "commit wgmma\nwait_group wgmma pending 0\ncopy c -> C atom=threads\n"
    params = f"param A: {kind}[{m}, {k}] global\nparam B: {kind}[{n}, {k}] global\n"
    params += f"param C: {acc}[{m}, {n}] global"
    add(name, body, params, threads)


def _between(layout: Fragment, count: int):
    """Thread modes for `count` warpgroups side by side that hold the same."""
    from tilewright.ir.layout.layout import Layout, make_layout

    thread, value = layout.layout
    inner = Layout((4, 8, 4), tuple(thread(i) for i in (1, 4, 32)))
    groups = layout.threads // 128
    outer = Layout(groups, thread(128) if groups > 1 else 0)
    return make_layout(make_layout(inner, Layout(count, 0), outer), value)


gemm("wgmma_two_down", 128, 64, 64, 2, 1)
gemm("wgmma_two_across", 64, 64, 64, 1, 2)
gemm("wgmma_two_by_two", 128, 128, 64, 2, 2)
gemm("wgmma_columns_first", 128, 128, 64, 2, 2, order="columns")
gemm("wgmma_two_blocks_each", 256, 64, 128, 2, 1)
gemm("wgmma_three", 192, 48, 64, 3, 1)
gemm("wgmma_three_across", 64, 192, 64, 1, 3)
gemm("wgmma_bytes", 128, 64, 128, 2, 1, "float8_e4m3fn")
gemm("wgmma_half", 128, 64, 64, 2, 1, "float16", "float16")
gemm("wgmma_registers", 128, 64, 64, 2, 1, registers=True)
gemm("wgmma_registers_across", 64, 128, 64, 1, 2, registers=True)

_A, _B = mma_a_operand(16, 16), mma_b_operand(16, 8)
add(
    "mma_two_warps",
    frag("a", "float16", spatial(2, 1) * repeat(2, 2) * _A)
    + frag("b", "float16", (repeat(2, 4) * _B).replicate(2))
    + frag("c", "float32", spatial(2, 1) * repeat(2, 4) * mma_accumulator(16, 8))
    + shared("s", "float16", (64, 32), "S<2,3,3> o 0 o (64,32):(32,1)")
    + "copy A -> s atom=threads\nsync block\ncopy s -> a atom=ldmatrix\n"
    + "copy B -> b atom=threads\ngemm a, b -> c clear=true atom=mma\ncopy c -> C atom=threads\n",
    "param A: float16[64, 32] global\nparam B: float16[32, 32] global\n"
    "param C: float32[64, 32] global",
    threads=64,
)
add(
    "fma_threads",
    frag("c", "float32", spatial(16, 8) * repeat(2, 4))
    + shared("a", "float32", (32, 24), "(32,24):(25,1)")
    + shared("b", "float32", (24, 32), rows((24, 32)))
    + "copy A -> a atom=threads\ncopy B -> b atom=threads\nsync block\n"
    + "gemm a, b -> c clear=true atom=fma\ngemm a, b -> c atom=fma\ncopy c -> C atom=threads\n",
    "param A: float32[32, 24] global\nparam B: float32[24, 32] global\n"
    "param C: float32[32, 32] global",
)

# ── copies ───────────────────────────────────────────────────────────────────────────────────

TILE = spatial(16, 8) * repeat(4, 8)
CROPPED = coalesced((24, 40), 128, 8)
REPLICATED = (spatial(16, 4) * repeat(1, 8)).replicate(2)


def through(name: str, kind: str, to: str, layout: Fragment, size=None, memory: str = "") -> None:
    shape = list(layout.tile)
    size = size or shape
    corner = ", ".join(f"0:+{e}" for e in shape)
    body = frag("f", kind, layout)
    if memory:
        body += shared("s", kind, tuple(shape), memory)
        body += f"copy A[{corner}] -> s atom=threads\nsync block\ncopy s -> f atom=threads\n"
    else:
        body += f"copy A[{corner}] -> f atom=threads\n"
    body += f"copy f -> C[{corner}] atom=threads\n"
    params = f"param A: {kind}{list(size)} global\nparam C: {to}{list(size)} global"
    add(name, body, params)


for kind, to in (
    ("float32", "float32"), ("bfloat16", "float32"), ("float32", "bfloat16"),
    ("float16", "bfloat16"), ("float32", "float8_e4m3fn"), ("float8_e4m3fn", "float32"),
    ("float8_e5m2", "float16"), ("int8", "int32"), ("float32", "int8"), ("float32", "uint8"),
    ("int64", "float64"), ("float64", "float16"), ("int16", "uint16"), ("bool", "float32"),
    ("int32", "bool"), ("float64", "int64"), ("uint64", "float32"), ("float32", "int64"),
    ("int64", "int16"), ("uint32", "bfloat16"),
):  # fmt: skip
    through(f"cast_{kind}_{to}", kind, to, TILE)
through("cropped", "float32", "float32", CROPPED)
through("cropped_edge", "float32", "float32", CROPPED, size=(20, 40))
through("odd_edge", "bfloat16", "bfloat16", CROPPED, size=(24, 37))
through("replicated", "float32", "float32", REPLICATED)
through("by_shared", "bfloat16", "bfloat16", TILE, memory="S<3,3,3> o 0 o (64,64):(64,1)")
through("by_shared_columns", "float32", "float32", TILE, memory="(64,64):(1,64)")
through("by_shared_padded", "float16", "float16", TILE, memory="(64,64):(72,1)")
through("line", "float32", "float32", coalesced((100,), 128))
through("cube", "int32", "int32", coalesced((4, 6, 20), 128, 4))

for atom, wait in (
    ("threads", ""),
    ("cp_async", "commit cp_async\nwait_group cp_async pending 0\n"),
):
    for name, shape, size, kind, layout in (
        ("plain", (64, 64), (64, 64), "float32", "(64,64):(64,1)"),
        ("swizzled", (64, 64), (64, 64), "bfloat16", "S<3,3,3> o 0 o (64,64):(64,1)"),
        ("edge", (64, 64), (60, 72), "float32", "(64,64):(64,1)"),
        ("odd", (30, 20), (25, 36), "float32", "(30,20):(20,1)"),
        ("small", (4, 4), (4, 4), "float32", "(4,4):(4,1)"),
        ("large", (128, 192), (128, 192), "float32", "(128,192):(192,1)"),
    ):  # fmt: skip
        a, b = shape
        add(
            f"{atom}_{name}",
            shared("s", kind, shape, layout)
            + f"copy A[bx * {a}:+{a}, 0:+{b}] -> s atom={atom}\n{wait}sync block\n"
            + f"copy s -> C[bx * {a}:+{a}, 0:+{b}] atom=threads\n",
            f"param A: {kind}{list(size)} global\nparam C: {kind}{list(size)} global",
            grid=2,
        )
add(
    "cast_between",
    shared("s", "bfloat16", (32, 64), rows((32, 64)))
    + "copy A -> s atom=threads\nsync block\ncopy s -> C atom=threads\n",
    "param A: float32[32, 64] global\nparam C: float32[32, 64] global",
)
add(
    "units_dropped",
    shared("s", "float32", (2, 16, 32), rows((2, 16, 32)))
    + "copy A[1:+1, 0:+16, 0:+32] -> s[1:+1, :, :] atom=threads\nsync block\n"
    + "copy s[1:+1, :, :] -> C atom=threads\n",
    "param A: float32[3, 16, 32] global\nparam C: float32[16, 32] global",
)
add(
    "parts_of_fragments",
    frag("f", "float32", TILE)
    + "fill f = 7.0\n"
    + "copy A[0:+32, 0:+64] -> f[32:+32, :] atom=threads\n"
    + "copy A[32:+32, 0:+32] -> f[0:+32, 16:+32] atom=threads\n"
    + "fill f[0:+4, 0:+8] = 3.0\n"
    + "copy f[16:+32, :] -> C[16:+32, 0:+64] atom=threads\n"
    + "copy f[0:+16, 0:+24] -> C[0:+16, 0:+24] atom=threads\n",
    "param A: float32[64, 64] global\nparam C: float32[64, 64] global",
)
add(
    "parts_at_run_time",
    frag("f", "float32", TILE)
    + "fill f = 7.0\nfor k in 0 .. 2 {\n"
    + "copy A[k * 32:+32, 0:+64] -> f[k * 32:+32, :] atom=threads\n}\n"
    + "for k in 0 .. 4 {\ncopy f[k * 16:+16, :] -> C[48 - k * 16:+16, 0:+64] atom=threads\n}\n",
    "param A: float32[64, 64] global\nparam C: float32[64, 64] global",
)
add(
    "reduce_parts",
    frag("f", "float32", TILE)
    + frag("r", "float32", row_of(TILE, 1))
    + "copy A -> f atom=threads\nfill r = 0.0\n"
    + "reduce sum f[:, 8:+24] -> r dim 1\ncopy r -> C atom=threads\n"
    + "reduce max f[16:+32, 5:+1] -> D[1:+1] dim 0\n",
    "param A: float32[64, 64] global\nparam C: float32[64] global\nparam D: float32[2] global",
)
add(
    "strided",
    frag("f", "float32", TILE) + "copy A -> f atom=threads\ncopy f -> C atom=threads\n",
    "param A: float32[64, 64] global strides=[96, 1]\nparam C: float32[64, 64] global",
)
add(
    "fragment_to_fragment",
    frag("f", "float32", TILE)
    + frag("g", "bfloat16", TILE)
    + frag("h", "float32", TILE)
    + "copy A -> f atom=threads\ncopy f -> g atom=threads\nfill h = 0.0\n"
    + "copy g[0:+64, 0:+32] -> h[0:+64, 0:+32] atom=threads\ncopy h -> C atom=threads\n",
    "param A: float32[64, 64] global\nparam C: float32[64, 64] global",
)
add(
    "local_copies",
    "alloc mine: float32[4] local\n"
    "copy A[tx:+1, 0:+4] -> mine atom=threads\n"
    "mine[1] = mine[0] + mine[2]\n"
    "copy mine -> C[tx:+1, 0:+4] atom=threads\n",
    "param A: float32[128, 4] global\nparam C: float32[128, 4] global",
)

# ── reductions, scans, relayouts ─────────────────────────────────────────────────────────────


def reduction(name: str, word: str, source: Fragment, dim: int, kind: str = "float32",
              to: str = "", clear: bool = True, target: Fragment | None = None,
              threads: int = 128, meet: str = "") -> None:  # fmt: skip
    """`meet`: a barrier before C is written, where threads that do not write it have read it."""
    to = to or kind
    target = target or row_of(source, dim)
    shape = source.tile[:dim] + source.tile[dim + 1 :]
    body = frag("f", kind, source) + frag("r", to, target)
    body += "copy A -> f atom=threads\ncopy C -> r atom=threads\n"
    body += f"reduce {word} f -> r dim {dim}" + ("" if clear else " clear=false") + "\n"
    body += f"{meet}copy r -> C atom=threads\n"
    add(
        name,
        body,
        f"param A: {kind}{list(source.tile)} global\nparam C: {to}{list(shape)} global",
        threads,
    )


ACROSS = spatial(2, 64) * repeat(4, 2)  # rows over two warps
for word in ("sum", "max", "min", "abssum", "absmax"):
    reduction(f"across_warps_{word}", word, ACROSS, 1)
for word in ("sum", "max", "min", "abssum", "absmax", "and", "or", "xor"):
    reduction(f"integers_{word}", word, ACROSS, 1, "int32", clear=False)
for word in ("any", "all"):
    reduction(f"truths_{word}", word, ACROSS, 1, "bool")
    reduction(f"truths_{word}_int", word, ACROSS, 1, "int32", "bool", clear=False)
reduction("reduce_cropped", "max", CROPPED, 1, clear=False)
reduction("reduce_cropped_rows", "sum", CROPPED, 0)
reduction("reduce_columns", "sum", TILE, 0, clear=False)
reduction("reduce_narrow", "sum", ACROSS, 1, "bfloat16")
reduction("reduce_widened", "sum", ACROSS, 1, "float16", "float32")
reduction("reduce_int8", "max", ACROSS, 1, "int8", "int32")
reduction("reduce_double", "min", ACROSS, 1, "float64", clear=False)
reduction("reduce_replicated", "sum", REPLICATED, 1, meet="sync block\n")
reduction("reduce_all_rows", "sum", (spatial(128) * repeat(3)), 0, target=spatial(1).replicate(128))
reduction("reduce_elsewhere", "max", ACROSS, 1, target=spatial(8).replicate(16))
reduction("reduce_96", "sum", spatial(3, 32) * repeat(2, 2), 0, threads=96)
reduction("reduce_uneven", "sum", spatial(96) * repeat(2), 0,
          target=spatial(1).replicate(96), threads=96)  # fmt: skip
add(
    "reduce_memory",
    shared("s", "float32", (24, 40), rows((24, 40)))
    + shared("r", "float32", (24,), "24:1")
    + "copy A -> s atom=threads\nfill r = 1.0\nsync block\n"
    + "reduce sum s -> r dim 1 clear=false\nsync block\ncopy r -> C atom=threads\n"
    + "reduce max s[0:+8, :] -> D dim 0\n",
    "param A: float32[24, 40] global\nparam C: float32[24] global\nparam D: float32[40] global",
)
add(
    "reduce_in_a_loop",
    frag("f", "float32", ACROSS)
    + frag("r", "float32", row_of(ACROSS, 1))
    + "fill r = 0.0\nfor k in 0 .. 3 {\ncopy A[k * 8:+8, 0:+128] -> f atom=threads\n"
    + "reduce sum f -> r dim 1 clear=false\n}\ncopy r -> C atom=threads\n",
    "param A: float32[24, 128] global\nparam C: float32[8] global",
)
for name, op, kind in (
    ("sum", "sum", "float32"),
    ("max", "max", "int32"),
    ("narrow", "sum", "bfloat16"),
):
    for dim in (0, 1):
        for reverse in ("", " reverse=true"):
            add(
                f"scan_{name}_{dim}{'_reverse' * bool(reverse)}",
                frag("f", kind, CROPPED)
                + frag("g", kind, CROPPED)
                + f"copy A -> f atom=threads\nscan {op} f -> g dim {dim}{reverse}\n"
                + "copy g -> C atom=threads\n",
                f"param A: {kind}[24, 40] global\nparam C: {kind}[24, 40] global",
            )
add(
    "scan_memory",
    shared("s", "float32", (300,), "300:1")
    + "copy A -> s atom=threads\nsync block\nscan sum s -> s dim 0\nsync block\n"
    + "copy s -> C atom=threads\n",
    "param A: float32[300] global\nparam C: float32[300] global",
)


def relayout(name: str, a: Fragment, b: Fragment, kind: str = "float32", via: str = "") -> None:
    shape = list(a.tile)
    add(
        name,
        frag("f", kind, a) + frag("g", kind, b)
        + "copy A -> f atom=threads\n"
        + f"relayout f -> g{' via=' + via if via else ''}\ncopy g -> C atom=threads\n",
        f"param A: {kind}{shape} global\nparam C: {kind}{shape} global",
    )  # fmt: skip


RELAYOUTS = {
    "transposed": (spatial(4, 32) * repeat(8, 1) * repeat(1, 1),
                   spatial(4, 1) * repeat(8, 1) * spatial(1, 32)),
    "quads": (spatial(32, 4) * repeat(1, 4), spatial(32, 1) * repeat(1, 4) * spatial(1, 4)),
    "pairs": (wgmma_accumulator(64, 32), wgmma_a_operand(64, 32, 8)),
    "rows": (wgmma_accumulator(64, 32), coalesced((64, 32), 128, 4)),
    "cropped": (CROPPED, coalesced((24, 40), 128, 1)),
    "replicas": (REPLICATED, coalesced((16, 32), 128, 4)),
    "to_replicas": (coalesced((16, 32), 128, 4), REPLICATED),
    "warp": (spatial(4, 1) * (spatial(16, 2) * repeat(1, 8)),
             spatial(4, 1) * (spatial(8, 4) * repeat(2, 4))),
    "mma": (spatial(4, 1) * mma_accumulator(16, 16),
            spatial(4, 1) * (spatial(16, 2) * repeat(1, 8))),
}  # fmt: skip
RELAYOUTS["registers"] = (
    spatial(64, 2) * repeat(1, 4) * repeat(2, 1),
    spatial(64, 2) * repeat(2, 1) * repeat(1, 4),
)
for name, (one, other) in RELAYOUTS.items():
    relayout(f"relayout_{name}", one, other)
    relayout(f"relayout_{name}_shared", one, other, "bfloat16", "shared")
for name in ("quads", "pairs", "warp", "mma"):
    relayout(f"relayout_{name}_shuffle", *RELAYOUTS[name], "bfloat16", "shuffle")

# ── maps, fills, views ───────────────────────────────────────────────────────────────────────

MAPPED = coalesced((16, 64), 128, 4)
IO = "param A: float32[16, 64] global\nparam C: float32[16, 64] global"
LAYOUT = f'layout="{MAPPED!r}"'
WIDE = coalesced((16, 64), 128, 8)
MAPS = {
    "global": f"map (i, j) in (16, 64) {LAYOUT} {{ C[i, j] = A[i, j] * 2.0 + 1.0 }}",
    "transposed": f"map (i, j) in (16, 64) {LAYOUT} {{ C[i, j] = A[15 - i, (j * 5 + 3) % 64] }}",
    "lets": f"""map (i, j) in (16, 64) {LAYOUT} {{
      let r = (i + j) % 16
      let k = j
      C[i, k] = A[r, j] + A[i, k]
    }}""",
    "outside": f"map (i, j) in (16, 64) {LAYOUT} {{ C[i, j - 3] = A[i + 1, j] + 1.0 }}",
    "locals": f"""map (i, j) in (16, 64) {LAYOUT} {{
      alloc t: float32[3] local
      alloc x: float32[] local init=1.0
      for k in 0 .. 3 {{ t[k] = A[i, j] * 2.0 }}
      for k in 0 .. i {{ x[] = x[] + t[k % 3] }}
      let y = x[] + 1.0
      if y > 5.0 {{ C[i, j] = y }} else {{ C[i, j] = 0.0 - y }}
    }}""",
    "loops": f"""map (i, j) in (16, 64) {LAYOUT} {{
      alloc x: int32[] local init=0
      while x[] < i {{ x[] = x[] + 1; if x[] == 7 {{ break }} }}
      C[i, j] = float32(x[])
    }}""",
    "shared": shared("s", "float32", (16, 64), rows((16, 64)))
    + f"map (i, j) in (16, 64) {LAYOUT} {{ s[i, j] = A[i, j] }}\nsync block\n"
    + f"map (i, j) in (16, 64) {LAYOUT} {{ C[i, j] = s[15 - i, 63 - j] + s[i, j] }}\n",
    "fills": shared("s", "float32", (16, 64), rows((16, 64)))
    + "fill s = 2.0\nsync block\nfill s[3:+5, 8:+9] = 4.0\nsync block\n"
    + "fill C[1:+2, 0:+64] = 5.0\nsync block\ncopy s[4:+8, :] -> C[4:+8, 0:+64] atom=threads\n",
    "views": shared("s", "float32", (16, 64), rows((16, 64)))
    + 'view t: float32[32, 32] shared layout="(32,32):(32,1)" of s\n'
    + 'view w: int32[8, 64] shared layout="(8,64):(64,1)" of s offset=512\n'
    + "copy A -> s atom=threads\nsync block\n"
    + 'map (i, j) in (32, 32) layout="' + repr(coalesced((32, 32), 128, 4)) + '" {'
    + " C[i // 2, i % 2 * 32 + j] = t[i, j] + 1.0 }\nsync block\n"
    + 'map (i, j) in (8, 64) layout="' + repr(coalesced((8, 64), 128, 4)) + '" {'
    + " C[i, j] = C[i, j] if w[i, j] > 0 else 0.0 }\n",
    "fragment_view": frag("f", "float32", WIDE)
    + f'view g: float32[1024] fragment layout="{WIDE.reshape(1024)!r}" of f\n'
    + "copy A -> f atom=threads\n"
    + f'map i in 1024 layout="{WIDE.reshape(1024)!r}" '
    + "{ g[i] = g[i] + 1.0 }\ncopy f -> C atom=threads\n",
    "narrow": frag("h", "bfloat16", MAPPED) + frag("q", "float8_e4m3fn", MAPPED)
    + f"map (i, j) in (16, 64) {LAYOUT} {{\n"
    + "h[i, j] = bfloat16(A[i, j]) * bfloat16(A[i, j])\n"
    + "q[i, j] = float8_e4m3fn(h[i, j])\n"
    + "C[i, j] = float32(h[i, j] + h[i, j]) + float32(q[i, j])\n}",
    "in_loop": "for k in 0 .. 2 {\n" + shared("s", "float32", (16, 64), rows((16, 64)))
    + "copy A -> s atom=threads\nsync block\ncopy s -> C atom=threads\nsync block\n}",
}  # fmt: skip
for name, body in MAPS.items():
    add(f"map_{name}", body, IO)

# ── threads ──────────────────────────────────────────────────────────────────────────────────

THREADS = {
    "stores": "C[tx // 64, tx % 64] = A[tx % 16, tx // 16] + 1.0\n",
    "loops": """alloc x: float32[] local init=0.0
    alloc t: float32[4] local
    for k in 0 .. 4 { t[k] = A[tx % 16, k] }
    for k in 0 .. tx % 5 { x[] = x[] + t[k % 4] }
    let y = x[] * 2.0
    if tx < 64 { C[0, tx] = y } else { C[1, tx - 64] = 0.0 - y }
    """,
    "shared": shared("s", "float32", (128,), "128:1")
    + "s[tx] = A[tx % 16, tx // 16]\nsync block\nC[tx // 64, tx % 64] = s[127 - tx]\n",
    "atomics": shared("s", "int32", (4,), "4:1") + """
    fill s = 0
    sync block
    atomic add s[tx % 4:+1] value=tx
    atomic max s[0:+1] value=7
    sync block
    if tx < 4 { C[0, tx] = float32(s[tx]) }
    atomic add C[1:+1, 0:+1] value=1.0
    atomic add C[1:+1, tx % 8 + 1:+1] value=2.0
    atomic max C[2:+1, tx % 8 + 60:+1] value=float32(tx)
    """,
    "atomic_results": shared("s", "int32", (1,), "1:1") + """
    fill s = 3
    sync block
    atomic add s[0:+1] value=1 result=old: int32
    C[0, tx % 64] = float32(old)
    sync block
    atomic add s[0:+1] value=tx * 0 + 1 result=mine: int32
    if tx == 0 { C[1, 0] = float32(mine) }
    """,
    "atomic_tiles": frag("f", "float32", MAPPED) + "copy A -> f atom=threads\n"
    + "atomic add C src=f\n",
    "lanes": """let v = A[tx % 16, tx % 64]
    intrinsic shfl_xor (v, 3) result=a: float32
    intrinsic shfl_up (v, 1) result=b: float32
    intrinsic shfl_down (v, 2) result=c: float32
    intrinsic shfl_sync (v, 5) result=d: float32
    intrinsic warp_reduce_sum (v) result=e: float32
    intrinsic warp_reduce_max (tx) result=m: int32
    intrinsic ballot (v > 0.0) result=g: uint32
    intrinsic any_sync (v > 2.0) result=h: bool
    intrinsic all_sync (v > -9.0) result=k: bool
    C[tx // 64, tx % 64] = a + b * 2.0 + c + d + e
    C[tx // 64 + 2, tx % 64] = float32(m) + float32(g % 1024)
    C[tx // 64 + 4, tx % 64] = 1.0 if h and k else 0.0
    """,
    "assert": 'intrinsic device_assert (tx < 500) text="too many"\nC[0, tx % 64] = 1.0\n',
}  # fmt: skip
for name, body in THREADS.items():
    add(f"threads_{name}", body, IO)

# ── what only a GPU runs ─────────────────────────────────────────────────────────────────────

FOREIGN: dict[str, str] = {}
_UNARY = (
    "exp exp2 exp10 expm1 log log2 log10 log1p sqrt rsqrt sin cos tan asin acos atan sinh cosh "
    "tanh sigmoid erf floor ceil round trunc __exp __exp2 __exp10 __log __log2 __log10 __sin __cos "
    "__tan __sigmoid neg abs"
).split()
for kind in ("float32", "float64", "float16", "bfloat16", "float8_e4m3fn"):
    lines = [f"C[{i}, tx % 64] = {f}(A[{i}, tx % 64])" for i, f in enumerate(_UNARY)]
    lines += [
        f"C[0, tx % 64] = {e}"
        for e in (
            "pow(A[0, tx], A[1, tx])", "fmod(A[0, tx], A[1, tx])", "atan2(A[0, tx], A[1, tx])",
            "copysign(A[0, tx], A[1, tx])", "fma(A[0, tx], A[1, tx], A[2, tx])",
            "__divide(A[0, tx], A[1, tx])",
            "min_nan(A[0, tx], A[1, tx])", "max_nan(A[0, tx], A[1, tx])",
            "min(A[0, tx], A[1, tx])", "max(A[0, tx], A[1, tx])", "A[0, tx] // A[1, tx]",
            "A[0, tx] % A[1, tx]", "A[0, tx] / A[1, tx]",
            "A[0, tx] if isnan(A[1, tx]) or isinf(A[2, tx]) or isfinite(A[3, tx]) else A[4, tx]",
        )
    ]  # fmt: skip
    PROGRAMS[f"functions_{kind}"] = kernel(
        "\n".join(lines), f"param A: {kind}[40, 64] global\nparam C: {kind}[40, 64] global", 64
    )
for kind in ("int8", "uint8", "int16", "uint16", "int32", "uint32", "int64", "uint64"):
    lines = [
        f"C[{i}, tx % 64] = {e}"
        for i, e in enumerate((
            "A[0, tx] + A[1, tx]", "A[0, tx] - A[1, tx]", "A[0, tx] * A[1, tx]",
            "A[0, tx] // (A[1, tx] * A[1, tx] + A[2, tx] * A[2, tx] + D[0])",
            "A[0, tx] % (A[1, tx] * A[1, tx] + A[2, tx] * A[2, tx] + D[0])",
            "min(A[0, tx], A[1, tx])", "max(A[0, tx], A[1, tx])", "A[0, tx] & A[1, tx]",
            "A[0, tx] | A[1, tx]", "A[0, tx] ^ A[1, tx]", "abs(A[0, tx])", "neg(A[0, tx])",
            "invert(A[0, tx])", "popcount(A[0, tx])", "clz(A[0, tx])", "A[0, tx] << D[0]",
            "A[0, tx] >> D[0]",
        ))
    ]  # fmt: skip
    PROGRAMS[f"functions_{kind}"] = kernel(
        "D[0] = " + f"{kind}(1)\nsync block\n" + "\n".join(lines),
        f"param A: {kind}[20, 64] global\nparam C: {kind}[20, 64] global\n"
        f"param D: {kind}[1] global",
        64,
    )
FOREIGN["ptx"] = kernel(
    """intrinsic ptx (tx, 3) result=s: int32 text="add.s32 $0, $1, $2;"
    intrinsic ptx () result=c: uint32 text="mov.u32 $0, %clock;"
    intrinsic ptx (&C[0:+1, 0:+1], 1.0) text="st.global.f32 [$1], $2;"
    C[1, tx % 64] = float32(s) + float32(c)""",
    IO,
)
FOREIGN["print"] = kernel(
    shared("s", "float32", (4,), "4:1")
    + """fill s = 0.0
    sync block
    intrinsic print (A[0, 0]) text="once 100%"
    intrinsic print (tx) text="each"
    intrinsic print (&s[0:+4]) text="tile"
    intrinsic print () text="hello"
    intrinsic device_assert (A[0, 0] > 0.0) text="must be > 0"
    intrinsic pdl_wait ()
    intrinsic pdl_launch ()
    fence gpu
    sync warp
    C[0, tx % 64] = 1.0""",
    IO,
)
for kind in ("int32", "uint32", "int64", "uint64", "float32", "float64", "float16", "bfloat16"):
    ops = ["add", "max", "min", "exch"] + ["and", "or", "xor"] * ("int" in kind)
    body = "".join(
        f"atomic {op} {where} value=A[tx % 8] result=old_{op}_{where[0]}: {kind}\n"
        f"C[tx % 8] = old_{op}_{where[0]}\n"
        for op in ops
        for where in ("D[tx % 3:+1]", "s[tx % 3:+1]")
    )
    body += f'atomic load D[tx % 3:+1] result=seen: {kind} order="seq_cst"\n'
    body += "atomic store D[tx % 3:+1] value=seen\n"
    FOREIGN[f"atomics_{kind}"] = kernel(
        shared("s", kind, (4,), "4:1") + body,
        f"param A: {kind}[8] global\nparam C: {kind}[8] global\nparam D: {kind}[4] global",
    )
for kind in ("float16", "int8", "bool", "int64", "float64", "float8_e5m2"):
    FOREIGN[f"shuffles_{kind}"] = kernel(
        f"""let v = A[tx % 8]
        intrinsic shfl_xor (v, 3) result=a: {kind} width=8
        intrinsic shfl_up (v, 1) result=b: {kind}
        intrinsic shfl_down (v, 1) result=c: {kind}
        intrinsic shfl_sync (v, 1) result=d: {kind}
        if tx < 5 {{
          intrinsic ballot (tx < 3) result=e: uint32
          C[4] = A[0] if e > uint32(2) else A[1]
        }}
        C[0] = a; C[1] = b; C[2] = c; C[3] = d""",
        f"param A: {kind}[8] global\nparam C: {kind}[8] global",
    )
