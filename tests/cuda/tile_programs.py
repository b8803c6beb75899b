"""Tile kernels that need more than what instructions offer: accumulators and operands they do not
take, elements that share bytes, views, fragments that are printed. Each is run as tiles and as
thread code, compiled, and run on a GPU."""

from __future__ import annotations

import tilewright.language as T
from tilewright.ir.op import Program
from tilewright.ir.text import parse_program

TILES: dict[str, Program] = {}
PACKED = ("int4", "uint4", "float4_e2m1", "int2", "uint2")


# ── products ─────────────────────────────────────────────────────────────────────────────────


def product(
    kind, acc, m=32, n=32, k=32, *, held="", turn=False, turns=2, precision="ieee", clear=False
):
    def tile(name, shape):
        return (T.alloc_fragment if name in held else T.alloc_shared)(shape, kind)

    @T.prim_func
    def main(
        A: T.Tensor((turns * k, m) if turn else (m, turns * k), kind),
        B: T.Tensor((n, turns * k) if turn else (turns * k, n), kind),
        C: T.Tensor((m, n), acc),
    ):
        with T.Kernel(1, threads=128):
            a = tile("a", (k, m) if turn else (m, k))
            b = tile("b", (n, k) if turn else (k, n))
            c = (T.alloc_shared if "c" in held else T.alloc_fragment)((m, n), acc)
            T.copy(C, c)
            for t in T.Pipelined(turns, num_stages=2):
                T.copy(A[t * k, 0] if turn else A[0, t * k], a)
                T.copy(B[0, t * k] if turn else B[t * k, 0], b)
                T.gemm(
                    a, b, c, transpose_A=turn, transpose_B=turn, precision=precision,
                    clear_accum=(t == 0) if clear else False,
                )  # fmt: skip
            T.copy(c, C)

    return main.program


for kind, acc in (
    ("bfloat16", "bfloat16"), ("float16", "float16"), ("bfloat16", "float16"),
    ("float32", "float16"), ("int8", "int8"), ("int8", "int16"), ("uint8", "uint32"),
    ("int16", "int32"), ("int16", "int64"), ("uint8", "uint64"), ("float8_e4m3fn", "float16"),
    ("float8_e5m2", "float8_e5m2"), ("float16", "float64"),
):  # fmt: skip
    TILES[f"product_{kind}_{acc}"] = product(kind, acc)
    TILES[f"product_{kind}_{acc}_odd"] = product(kind, acc, 20, 12, 20)
TILES["product_bfloat16_wide"] = product("bfloat16", "bfloat16", 64, 64, 64)
TILES["product_cleared"] = product("bfloat16", "bfloat16", 64, 64, 32, clear=True)
TILES["product_held_fma"] = product("float32", "float32", held="ab")
TILES["product_held_turned"] = product("float32", "float32", 24, 40, 16, held="ab", turn=True)
TILES["product_held_narrow"] = product("float16", "float16", 20, 12, 20, held="a")
TILES["product_held_right"] = product("int16", "int32", 20, 12, 20, held="b")
TILES["product_into_shared"] = product("float16", "float32", 64, 64, 32, held="c")
TILES["product_into_shared_narrow"] = product("bfloat16", "bfloat16", 64, 64, 32, held="c")
TILES["product_tf32_odd"] = product("float32", "float32", 20, 12, 20, precision="tf32")


def product_of_parts(loop):
    @T.prim_func
    def main(
        A: T.Tensor((2, 64, 64), "float16"),
        B: T.Tensor((64, 64), "float16"),
        C: T.Tensor((2, 64, 64), "float16"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_fragment((2, 64, 64), "float16")
            b = T.alloc_fragment((64, 64), "float16")
            c = T.alloc_fragment((2, 64, 64), "float16")
            T.clear(c)
            T.copy(A, a)
            T.copy(B, b)
            for i in loop(2):
                T.gemm(a[i, :, 0:32], b[32:64, :], c[i, :, :])
            T.copy(c, C)

    return main.program


TILES["product_of_parts"] = product_of_parts(T.unroll)
TILES["product_of_parts_at_run_time"] = product_of_parts(T.serial)


# ── elements that share bytes ────────────────────────────────────────────────────────────────


def dequantized(kind, dtype, m=64, n=64, k=64, block=32):
    """The common case: packed weights, scaled and multiplied."""

    @T.prim_func
    def main(
        A: T.Tensor((m, k), dtype),
        B: T.Tensor((n, k), kind),
        S: T.Tensor((n,), dtype),
        C: T.Tensor((m, n), "float32"),
    ):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((m, block), dtype)
            q = T.alloc_shared((n, block), kind)
            b = T.alloc_shared((n, block), dtype)
            c = T.alloc_fragment((m, n), "float32")
            T.clear(c)
            for t in T.Pipelined(k // block, num_stages=2):
                T.copy(A[0, t * block], a)
                T.copy(B[0, t * block], q)
                for i, j in T.Parallel(n, block):
                    b[i, j] = T.cast(q[i, j], dtype) * S[i]
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    return main.program


def packed_copies(kind):
    @T.prim_func
    def main(
        A: T.Tensor((16, 32), kind),
        B: T.Tensor((16, 32), kind),
        C: T.Tensor((16, 32), "float16"),
        D: T.Tensor((16, 32), kind),
        E: T.Tensor((16, 32), "int32"),
        F: T.Tensor((4, 32), kind),
    ):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 32), kind)
            u = T.alloc_shared((16, 32), kind)
            f = T.alloc_fragment((16, 32), kind)
            h = T.alloc_fragment((16, 32), "float16")
            T.copy(A, s)
            T.copy(s, f)
            T.copy(f, B)
            T.copy(A, h)
            T.copy(h, C)
            T.copy(f, u)
            T.copy(u, D)
            for i, j in T.Parallel(16, 32):
                E[i, j] = T.cast(A[i, j], "int32") + T.cast(u[15 - i, j], "int32")
            T.fill(F, 1)

    return main.program


def quantized(kind):
    @T.prim_func
    def main(
        A: T.Tensor((16, 32), "float32"),
        I: T.Tensor((16, 32), "int32"),
        B: T.Tensor((16, 32), kind),
        C: T.Tensor((16, 32), kind),
        D: T.Tensor((32, 16), kind),
    ):
        with T.Kernel(2, threads=64) as b:
            f = T.alloc_fragment((16, 16), "float32")
            q = T.alloc_fragment((16, 16), kind)
            T.copy(A[0, b * 16], f)
            T.copy(f, B[0, b * 16])
            for i, j in T.Parallel(16, 16):
                q[i, j] = T.cast(f[i, j] * 2.25 - 1.0, kind)
            T.copy(q, C[0, b * 16])
            for i, j in T.Parallel(16, 16):
                D[b * 16 + j, i] = T.cast(I[i, b * 16 + j] * 5, kind)

    return main.program


def packed_arithmetic(kind):
    @T.prim_func
    def main(
        A: T.Tensor((16, 32), kind),
        B: T.Tensor((16, 32), kind),
        C: T.Tensor((16, 32), kind),
        D: T.Tensor((16, 32), kind),
        E: T.Tensor((16, 32), "bool"),
    ):
        with T.Kernel(1, threads=64):
            for i, j in T.Parallel(16, 32):
                C[i, j] = A[i, j] * B[i, j] + A[i, j]
            for i, j in T.Parallel(16, 32):
                D[i, j] = T.max(A[i, j] - B[i, j], -A[i, j])
                E[i, j] = A[i, j] < B[i, j]

    return main.program


def packed_product(kind):
    acc = "float32" if "float" in kind else "int32"

    @T.prim_func
    def main(A: T.Tensor((64, 64), kind), B: T.Tensor((64, 64), kind), C: T.Tensor((64, 64), acc)):
        with T.Kernel(1, threads=128):
            a = T.alloc_shared((64, 32), kind)
            b = T.alloc_shared((64, 32), kind)
            c = T.alloc_fragment((64, 64), acc)
            T.clear(c)
            for t in T.Pipelined(2, num_stages=2):
                T.copy(A[0, t * 32], a)
                T.copy(B[0, t * 32], b)
                T.gemm(a, b, c, transpose_B=True)
            T.copy(c, C)

    return main.program


def packed_reductions(kind):
    acc = "float32" if "float" in kind else "int32"

    @T.prim_func
    def main(
        A: T.Tensor((16, 32), kind),
        C: T.Tensor((16,), acc),
        D: T.Tensor((16,), kind),
        E: T.Tensor((16, 32), kind),
    ):
        with T.Kernel(1, threads=64):
            f = T.alloc_fragment((16, 32), kind)
            g = T.alloc_fragment((16, 32), kind)
            s = T.alloc_fragment((16,), acc)
            m = T.alloc_fragment((16,), kind)
            T.copy(A, f)
            T.reduce_sum(f, s, dim=1)
            T.copy(s, C)
            T.reduce_max(f, m, dim=1)
            T.copy(m, D)
            T.cumsum(f, g, dim=1)
            T.copy(g, E)

    return main.program


def packed_elements(kind):
    """At odd places, backwards, in scalars and thread-local arrays."""

    @T.prim_func
    def main(
        A: T.Tensor((16, 32), kind),
        N: T.Tensor((1,), "int32"),
        C: T.Tensor((16, 8), "int32"),
        E: T.Tensor((64,), "int32"),
    ):
        with T.Kernel(1, threads=64):
            s = T.alloc_shared((16, 8), kind)
            f = T.alloc_fragment((16, 8), "int32")
            T.copy(A[0:16, N[0] + 5 : N[0] + 13], s)
            for i, j in T.Parallel(16, 8):
                f[i, j] = s[i, 7 - j]
            T.copy(f, C)
            t = T.get_thread_binding()
            v = T.alloc_var(kind, init=0)
            v = A[t % 16, 5]
            mine = T.alloc_local((4,), kind)
            for i in T.unroll(4):
                mine[i] = A[1, i]
            E[t] = T.cast(v, "int32") + T.cast(mine[3], "int32")

    return main.program


def packed_scatter(kind):
    """Elements that are written one by one, by different threads."""

    @T.prim_func
    def main(
        A: T.Tensor((4, 64), kind),
        B: T.Tensor((4, 64), kind),
        C: T.Tensor((64,), kind),
        D: T.Tensor((64,), "int32"),
        E: T.Tensor((32,), kind),
    ):
        with T.Kernel(2, threads=64) as b:
            t = T.get_thread_binding()
            A[b, t] = T.cast(t, kind)
            A[b + 2, 63 - t] = T.cast(D[t], kind)
            for i in T.Parallel(64):
                if i < 33 + b:
                    B[b, i] = T.cast(i, kind)
            for i in T.Parallel(32):
                B[b + 2, i * 2 + 1] = T.cast(i, kind)
            for i in T.Parallel(32):
                C[b * 32 + i * 3] = T.cast(D[i], kind)  # some outside
            if b == 1:
                E[3] = T.cast(1, kind)
                for i in T.serial(3):
                    E[i] = T.cast(i, kind)

    return main.program


@T.prim_func
def packed_views(
    A: T.Tensor((8, 32), "int4"), B: T.Tensor((8, 16), "uint8"), C: T.Tensor((16, 16), "int4")
):
    with T.Kernel(1, threads=64):
        s = T.alloc_shared((8, 32), "int4")
        raw = T.view(s, (8, 16), dtype="uint8")
        other = T.reshape(A, (16, 16))
        T.copy(A, s)
        T.copy(raw, B)
        T.copy(other, C)


for kind in PACKED:
    TILES[f"dequantized_{kind}"] = dequantized(kind, "float16")
    for make in (
        packed_copies, quantized, packed_arithmetic, packed_product, packed_reductions,
        packed_elements, packed_scatter,
    ):  # fmt: skip
        TILES[f"{make.__name__}_{kind}"] = make(kind)
TILES["dequantized_bfloat16"] = dequantized("int4", "bfloat16")
TILES["packed_views"] = packed_views.program


# ── views ────────────────────────────────────────────────────────────────────────────────────


@T.prim_func
def reshaped_tensors(
    X: T.Tensor((8, 64), "float16"),
    Y: T.Tensor((4, 2, 64), "float32"),
    Z: T.Tensor((512,), "float16"),
):
    with T.Kernel(4, threads=64) as b:
        x = T.reshape(X, (512,))
        y = T.reshape(Y, (8, 64))
        z = T.reshape(Z, (16, 32))
        s = T.alloc_shared((128,), "float16")
        f = T.alloc_fragment((2, 64), "float32")
        T.copy(x[b * 128 : b * 128 + 128], s)
        for i, j in T.Parallel(2, 64):
            f[i, j] = s[i * 64 + j] * 2
        T.copy(f, y[b * 2 : b * 2 + 2, :])
        for i, j in T.Parallel(4, 32):
            z[b * 4 + i, j] = x[b * 128 + i * 32 + j]


@T.prim_func
def retyped_tensors(
    X: T.Tensor((8, 64), "float32"),
    Y: T.Tensor((8, 64), "uint32"),
    Z: T.Tensor((8, 128), "uint16"),
):
    with T.Kernel(1, threads=64):
        x = T.view(X, (8, 128), dtype="uint16")
        y = T.view(Y, (8, 128), dtype="uint16")
        s = T.alloc_shared((8, 128), "uint16")
        T.copy(x, s)
        T.copy(s, y)
        for i, j in T.Parallel(8, 128):
            Z[i, j] = x[i, j]


@T.prim_func
def product_of_reshaped_tensors(
    A: T.Tensor((2, 32, 64), "float16"),
    B: T.Tensor((64, 64), "float16"),
    C: T.Tensor((2, 32, 64), "float16"),
):
    with T.Kernel(1, threads=128):
        left = T.reshape(A, (64, 64))
        result = T.reshape(C, (64, 64))
        a = T.alloc_shared((64, 32), "float16")
        b = T.alloc_shared((32, 64), "float16")
        c = T.alloc_fragment((64, 64), "float32")
        T.clear(c)
        for k in T.Pipelined(2, num_stages=2):
            T.copy(left[0, k * 32], a)
            T.copy(B[k * 32, 0], b)
            T.gemm(a, b, c)
        T.copy(c, result)


@T.prim_func
def written_under_two_names(A: T.Tensor((8, 64), "float32")):
    with T.Kernel(1, threads=64):
        a = T.reshape(A, (512,))
        s = T.alloc_shared((64,), "float32")
        for i in T.Parallel(64):
            A[1, i] = A[0, i] + 1
        T.copy(a[64:128], s)
        for i in T.Parallel(64):
            a[128 + i] = s[63 - i]
        for i in T.Parallel(64):
            A[3, i] = A[2, 63 - i]


@T.prim_func
def fragment_views(
    A: T.Tensor((32, 32), "float16"),
    B: T.Tensor((32, 32), "float16"),
    C: T.Tensor((32, 32), "float32"),
    D: T.Tensor((64,), "float32"),
):
    with T.Kernel(1, threads=128):
        a = T.alloc_shared((32, 32), "float16")
        b = T.alloc_shared((32, 32), "float16")
        c = T.alloc_fragment((32, 32), "float32")
        row = T.alloc_fragment((64,), "float32")
        v = T.reshape(c, (64, 16))  # no layout of `mma` is one of these rows
        T.clear(c)
        T.copy(A, a)
        T.copy(B, b)
        T.gemm(a, b, c)
        T.reduce_sum(v, row, dim=1)
        T.copy(row, D)
        for i, j in T.Parallel(64, 16):
            v[i, j] = v[i, j] + i
        T.gemm(a, b, c)
        T.copy(c, C)


for view in (
    reshaped_tensors, retyped_tensors, product_of_reshaped_tensors, written_under_two_names,
    fragment_views,
):  # fmt: skip
    TILES[view.name] = view.program


def text(name: str, params: str, body: str, threads: int = 64) -> None:
    source = f"program p {{\n{params}\nkernel main grid bx in 1 threads tx in {threads} {{\n"
    TILES[name] = parse_program(source + body + "\n}\n}\n", f"{name}.tw")


text(
    "views_at_run_time",
    "param A: float16[8, 64] global\nparam B: int32[1] global\nparam C: float16[8, 64] global\n"
    "param D: float32[4, 64] global\nparam E: float32[4, 64] global",
    """alloc s: float16[8, 64] shared
    copy A -> s
    let k = (B[0] + 8) % 3
    view v: float16[4, 64] shared of s offset=k * 64
    alloc f: float32[4, 64] fragment
    copy v -> f
    map (i, j) in (4, 64) { v[i, j] = float16(f[i, j] + 1.0) }
    view w: uint16[64] shared of v offset=64
    map i in 64 { w[i] = w[i] + uint16(1) }
    copy s -> C
    copy f -> D
    view g: float16[4, 64] global of A offset=k * 64
    map (i, j) in (4, 64) { E[i, j] = float32(g[i, j]) }""",
)
text(
    "product_of_a_view_at_run_time",
    "param A: float16[64, 64] global\nparam B: float16[64, 64] global\n"
    "param N: int32[1] global\nparam C: float32[32, 64] global",
    """alloc s: float16[64, 64] shared
    alloc b: float16[64, 64] shared
    copy A -> s
    copy B -> b
    let k = (N[0] + 8) % 3
    view v: float16[32, 64] shared of s offset=k * 64
    alloc c: float32[32, 64] fragment
    gemm v, b -> c clear=true
    copy c -> C""",
    128,
)
text(
    "part_of_a_fragment_retyped",
    "param A: float32[8, 32] global\nparam C: float32[8, 32] global\nparam D: int32[32] global",
    """alloc f: float32[8, 32] fragment
    copy A -> f
    view v: int32[4, 32] fragment of f offset=64
    map (i, j) in (4, 32) { v[i, j] = v[i, j] + 1 }
    copy f -> C
    alloc h: int32[32] fragment
    reduce max v -> h dim 0
    copy h -> D""",
    128,
)


# ── looking ──────────────────────────────────────────────────────────────────────────────────


@T.prim_func
def printed_fragments(A: T.Tensor((4, 8), "float16"), C: T.Tensor((4, 8), "float16")):
    with T.Kernel(1, threads=64):
        f = T.alloc_fragment((4, 8), "float16")
        q = T.alloc_fragment((4,), "int4")
        T.copy(A, f)
        T.print(f, "here")
        for i in T.Parallel(4):
            q[i] = T.cast(i, "int4")
        T.print(q)
        for i in T.serial(2):
            T.print(f[i, :], "row")
        for i, j in T.Parallel(4, 8):
            f[i, j] = f[i, j] + 1
        T.print(f)
        T.copy(f, C)


TILES["printed_fragments"] = printed_fragments.program


# ── tiles turned over ────────────────────────────────────────────────────────────────────────


def turning(kind, m, n, threads=128, staged=False):
    @T.prim_func
    def main(X: T.Tensor((m + 5, n), kind), Y: T.Tensor((n, 2 * m), kind)):
        with T.Kernel(2, threads=threads) as bx:
            x = T.alloc_shared((m, n), kind)
            y = T.alloc_fragment((n, m), kind)
            T.copy(X[bx * m, 0], x)
            T.transpose(x, y)
            if staged:
                z = T.alloc_shared((n, m), kind)
                T.copy(y, z)
                T.copy(z, Y[0, bx * m])
            else:
                T.copy(y, Y[0, bx * m])

    return main.program


for kind, m, n in (
    ("bfloat16", 32, 32), ("float16", 128, 64), ("int16", 64, 128), ("float32", 32, 32),
    ("bfloat16", 24, 40), ("int8", 32, 64), ("float16", 31, 17),
):  # fmt: skip
    TILES[f"turned_{kind}_{m}_{n}"] = turning(kind, m, n)
