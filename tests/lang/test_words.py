"""Every word of the language, and the ops it becomes."""

from __future__ import annotations

import numpy as np
import pytest

import tilewright.language as T
from tests.lang.common import body, refused, same, text
from tilewright.ir.op import Arrive, Role, walk_ops

WORDS = """
    Kernel ceildiv use_swizzle Persistent get_thread_binding get_thread_extent get_block_binding
    alloc_shared alloc_fragment alloc_local alloc_var alloc_barrier alloc_cluster_barrier
    alloc_global alloc_reducer
    copy async_copy tma_copy copy_cluster fill clear transpose reshape view
    gemm GemmWarpPolicy wgmma_gemm wait_wgmma gemm_sp
    Parallel Pipelined serial unroll vectorized grid range
    reduce_max reduce_min reduce_sum reduce_abssum reduce_absmax reduce_bitand reduce_bitor
    reduce_bitxor reduce cumsum cummax any_of all_of warp_reduce_sum warp_reduce_max
    warp_reduce_min warp_reduce_bitand warp_reduce_bitor
    atomic_add atomic_max atomic_min atomic_or atomic_load atomic_store
    floordiv floormod shift_left reinterpret exp exp2 log log2 sqrt rsqrt sin cos tanh sigmoid erf
    pow abs floor ceil round max min clamp if_then_else Select infinity cast isnan isfinite dp4a
    __exp __exp2 __exp10 __log __log2 __log10 __sin __cos __tan __sigmoid __divide
    annotate_layout annotate_padding Layout Fragment annotate_l2_hit_ratio assume layout
    ws set_max_nreg barrier_arrive barrier_wait mbarrier_arrive mbarrier_wait_parity
    mbarrier_expect_tx block_rank_in_cluster pdl_wait pdl_launch sync_threads sync_warp
    fence_proxy_async cluster_sync
    shfl_xor shfl_up shfl_down shfl_sync ballot ptx import_source call_extern address_of
    print device_assert
    prim_func macro Tensor Buffer StridedTensor SharedBuffer FragmentBuffer dynamic symbolic const
    empty
    float64 float32 float tfloat32 float16 bfloat16 float8_e4m3 float8_e4m3fn float8_e5m2 int8
    int16 int32 int64 uint8 uint16 uint32 uint64 bool int4 uint4 int2 float4_e2m1
""".split()


@pytest.mark.parametrize("word", WORDS)
def test_exists(word):
    assert hasattr(T, word)


def test_types():
    assert T.float == "float32" == T.float32
    assert T.float16.bits == 16
    assert T.dtype("float") == T.float32
    assert T.dtype(np.int8) == T.int8 != T.uint8
    assert f"{T.bfloat16}" == "bfloat16"
    assert {T.float16: 1}["float16"] == 1
    assert T.int32(2.7).value == 2


def test_annotations():
    m, n = T.dynamic("m, n", min=1, max=64)
    k = T.symbolic("k")

    @T.prim_func
    def f(
        A: T.Tensor[(m, 4), "float16"],
        B: T.Tensor[n, "int8"],
        C: T.Buffer((k,)),
        D: T.StridedTensor((m, 4), (8, 1), "float32"),
        E: T.Tensor([2, 6], T.int4),
        x: T.float32,
        y: "int64",
        z: T.bool,
    ):
        with T.Kernel(m):
            D[0, 0] = x

    lines = [
        line.strip() for line in text(f.program).split("\n") if "param" in line or "dim" in line
    ]
    assert "param A: float16[m, 4] global" in lines
    assert "param B: int8[n] global" in lines
    assert "param C: float32[k] global" in lines
    assert any(
        line.startswith("param D: float32[m, 4] global") and "8, 1" in line for line in lines
    )
    assert lines[-3:] == ["param x: float32", "param y: int64", "param z: bool"]
    assert {(d.var.name, d.min, d.max) for d in f.program.dims} == {
        ("m", 1, 64),
        ("n", 1, 64),
        ("k", 0, None),
    }


def test_launch():
    @T.prim_func
    def f(A: T.Tensor((8,), "int32")):
        with T.Kernel(2, 3, threads=(32, 4), cluster_dims=(2, 1, 1)) as (bx, by):
            tx, ty = T.get_thread_bindings()
            A[T.get_thread_binding(1)] = T.get_thread_extent(0) + T.get_block_binding(1)
            A[tx] = T.get_lane_idx() + T.get_warp_idx() + T.block_rank_in_cluster()
        with T.Kernel(threads=64):
            T.use_swizzle(8, enable=False)
            A[0] = T.get_block_extent()

    assert "grid (bx, by) in (2, 3) threads (tx, ty) in (32, 4)" in text(f.program)
    assert f.program.kernels[0].cluster == (2,)
    assert "A[ty] = 32 + by" in body(f)
    assert "A[tx] = (tx + ty * 32) % 32 + (tx + ty * 32) // 32 + cluster_rank" in body(f)
    assert "kernel f_1 grid bx_1 in 1 threads tx_1 in 64" in text(f.program)


def test_movement():
    @T.prim_func
    def f(A: T.Tensor((2, 64, 64), "float16"), B: T.Tensor((64, 64), "float32"), n: T.int32):
        with T.Kernel(4) as bx:
            s = T.alloc_shared((16, 64), "float16")
            g = T.alloc_fragment((16, 64), "float32")
            t = T.alloc_shared((64, 16), "float16")
            x = T.alloc_local((4,), "float32")
            T.copy(A[n, bx * 16, 0], s)
            T.copy(A[1, bx * 16 : (bx + 1) * 16, :], s, cache="evict_first", prefer="tma")
            T.copy(A[0, n * bx : n * bx + 16], s, disable_tma=True)
            T.copy(s, g)
            T.copy(s[0, :], B[3, 0:64])
            T.async_copy(B[0:16], g)
            T.tma_copy(s, A[0, 0, 0])
            T.fill(s[2:4, :], 1)
            T.clear(g)
            s[0:2] = 3
            T.transpose(s, t)
            flat = T.reshape(s, (1024,))
            bits = T.view(s, dtype="uint8")
            wide = T.view(s, (-1, 32), "uint32")
            T.copy(B[n, 0:4], x)
            T.clear(x)
            flat[0] = bits[0, 1] + wide[1, 2]

    same(
        body(f),
        """
        copy A[n, bx * 16:+16, :] -> s
        copy A[1, bx * 16:+16, :] -> s cache=evict_first prefer=tma
        copy A[0, n * bx:+16, :] -> s prefer=sync
        copy s -> g
        copy s[0, :] -> B[3, :]
        copy B[0:+16, :] -> g prefer=cp_async
        copy s -> A[0, 0:+16, :] prefer=tma
        fill s[2:+2, :] = 1.0
        fill g = 0.0
        fill s[0:+2, :] = 3.0
        map (i, j) in (16, 64) {
          t[j, i] = s[i, j]
        }
        view flat: float16[1024] shared of s
        view bits: uint8[16, 128] shared of s
        view wide: uint32[16, 32] shared of s
        for e in 0 .. 4 kind=unroll {
          x[e] = B[n, e]
        }
        for e_1 in 0 .. 4 kind=unroll {
          x[e_1] = 0.0
        }
        flat[0] = float16(uint32(bits[0, 1]) + wide[1, 2])
        """,
    )


def test_matrix():
    @T.prim_func
    def f(n: T.int32):
        with T.Kernel(1):
            a = T.alloc_shared((2, 64, 32), "float16")
            b = T.alloc_shared((128, 32), "float16")
            c = T.alloc_fragment((64, 128), "float32")
            x = T.alloc_shared((64, 32), "float32")
            y = T.alloc_shared((32, 128), "float32")
            h = T.alloc_shared((64, 16), "float16")
            e = T.alloc_shared((64, 4), "uint8")
            T.gemm(a[n, :, :], b, c, transpose_B=True, policy=T.GemmWarpPolicy.FullCol)
            T.gemm(x, y, c, precision="tf32", clear_accum=n == 0)
            T.wgmma_gemm(a[0], b, c, transpose_B=True, clear_accum=True)
            T.wait_wgmma(0)
            T.gemm_sp(h, e, b, c, transpose_B=True)

    same(
        body(f),
        """
        gemm a[n, :, :], b -> c transpose_b=true policy=full_col
        gemm x, y -> c clear=n == 0 precision=tf32
        gemm a[0, :, :], b -> c clear=true transpose_b=true atom=wgmma
        commit wgmma
        wait_group wgmma pending 0
        gemm h, b -> c transpose_b=true meta=e
        """,
    )


def test_reductions():
    @T.prim_func
    def f(A: T.Tensor((8,), "bool")):
        with T.Kernel(1):
            s = T.alloc_fragment((16, 32), "float32")
            r = T.alloc_fragment((16,), "float32")
            k = T.alloc_fragment((1, 32), "float32")
            q = T.alloc_fragment((16, 32), "int32")
            p = T.alloc_fragment((32,), "int32")
            h = T.alloc_shared((2, 16, 32), "float32")
            T.reduce_max(s, r, dim=1, clear=False)
            T.reduce_sum(s, r)
            T.reduce_absmax(s, k, dim=0)
            T.reduce(s, r, "min", 1)
            T.reduce_bitxor(q, p, 0)
            T.reduce_max(h[1, :, :], r, dim=1)
            T.cumsum(s, dim=1, reverse=True)
            T.cummax(h[0], s, dim=0)
            A[0] = T.any_of(q)
            tx = T.get_thread_binding()
            A[tx] = T.warp_reduce_max(tx) > 3

    same(
        body(f),
        """
        reduce max s -> r dim 1 clear=false
        reduce sum s -> r dim 1
        reduce absmax s -> k dim 0
        reduce min s -> r dim 1
        reduce xor q -> p dim 0
        reduce max h[1, :, :] -> r dim 1
        scan sum s -> s dim 1 reverse=true
        scan max h[0, :, :] -> s dim 0
        map (i, i_1) in (16, 32) {
          any_of_flags[i * 32 + i_1] = q[i, i_1] != 0
        }
        reduce any any_of_flags -> any_of dim 0
        let any_of_1: bool = any_of[0]
        A[0] = any_of_1
        intrinsic warp_reduce_max tx result=warp_max
        A[tx] = warp_max > 3
        """,
    )


def test_atomics():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float32"), n: T.Tensor((4,), "int32")):
        with T.Kernel(4) as bx:
            s = T.alloc_fragment((16, 64), "float32")
            acc = T.alloc_reducer((16,), "float32")
            out = T.alloc_fragment((16,), "float32")
            T.atomic_add(A[0, 0], 1)
            old = T.atomic_add(n[0], 1, return_prev=True, memory_order="acq_rel")
            T.atomic_add(A[bx * 16, 0], s)
            T.atomic_max(A[bx * 16 : bx * 16 + 16, :], s)
            T.atomic_store(n[1], old)
            n[2] = T.atomic_load(n[3], memory_order="acquire")
            T.reducer_init(acc)
            for i, j in T.Parallel(16, 64):
                T.reducer_update(acc[i], s[i, j])
                acc[i] += 1
                T.atomic_or(n[0], 4)
            T.finalize_reducer(acc, out)

    same(
        body(f),
        """
        atomic add A[0, 0] value=1.0
        atomic add n[0] value=1 result=old order=acq_rel
        atomic add A[bx * 16:+16, :] src=s
        atomic max A[bx * 16:+16, :] src=s
        atomic store n[1] value=old order=seq_cst
        atomic load n[3] result=loaded order=acquire
        n[2] = loaded
        fill acc = 0.0
        map (i, j) in (16, 64) {
          atomic add acc[i] value=s[i, j]
          atomic add acc[i] value=1.0
          atomic or n[0] value=4
        }
        copy acc -> out
        """,
    )


def test_elementwise():
    @T.prim_func
    def f(A: T.Tensor((32,), "float16"), I: T.Tensor((32,), "int32"), x: T.float32):
        with T.Kernel(1):
            A[0] = T.max(A[1], 0, x)
            A[1] = T.clamp(A[1], -1, 1)
            A[2] = T.if_then_else(I[0] > 3, A[3], -T.infinity("float16"))
            A[3] = T.exp2(A[3] * 1.5) + T.__exp(x) + T.sigmoid(I[1])
            A[4] = T.Cast("float16", x) + T.cast(I[0], T.float16) + T.float16(x)
            I[0] = T.floordiv(I[1], 3) + T.floormod(I[2], 4) + T.shift_left(I[3], 2)
            I[1] = T.reinterpret(x, "int32") ^ T.reinterpret("int32", x)
            I[2] = T.dp4a(I[0], I[1], I[2])
            I[3] = T.Select(T.isnan(x), T.ceil(x), T.round(x)) + T.abs(I[4])
            I[4] = T.ceildiv(I[0], 4) + T.max(3, 4) + T.min_value("int8")
            I[5] = ~I[5] & (1 << I[6]) | (I[7] >> 1)
            A[5] = T.pow(x, 2) + x**3 + 2**x

    same(
        body(f),
        """
        A[0] = float16(max(float32(max(A[1], 0.0)), x))
        A[1] = min(max(A[1], -1.0), 1.0)
        A[2] = A[3] if I[0] > 3 else -inf
        A[3] = float16(float32(exp2(A[3] * 1.5)) + __exp(x) + sigmoid(float32(I[1])))
        A[4] = float16(x) + float16(I[0]) + float16(x)
        I[0] = I[1] // 3 + I[2] % 4 + (I[3] << 2)
        I[1] = reinterpret(x, int32) ^ reinterpret(x, int32)
        I[2] = dp4a(I[0], I[1], I[2], int32)
        I[3] = int32((ceil(x) if isnan(x) else round(x)) + float32(abs(I[4])))
        I[4] = (I[0] + 3) // 4 + 4 + -128
        I[5] = ~I[5] & 1 << I[6] | I[7] >> 1
        A[5] = float16(x * x + x * (x * x) + pow(2.0, x))
        """,
    )


def test_hints():
    @T.prim_func
    def f(A: T.Tensor((64,), "float32"), n: T.int32):
        with T.Kernel(1):
            s = T.alloc_shared((64, 64), "float16")
            T.annotate_layout({s: T.layout.make_swizzled_layout(s)})
            T.annotate_padding({s: 8})
            T.annotate_l2_hit_ratio({A: 0.5})
            T.assume(n % 8 == 0)

    lines = body(f).split("\n")
    assert lines[0].startswith("hint layout buffer=s layout=")
    assert lines[1:] == [
        "hint padding buffer=s detail=(8,)",
        "hint l2_hit_ratio buffer=A detail=(0.5,)",
        "hint assume value=n % 8 == 0",
    ]


def test_placement_without_barriers_is_a_hint():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((64, 64), "float16")
            with T.ws(0):
                T.copy(A, s)
            with T.ws(1):
                T.copy(s, A)

    same(
        body(f),
        """
        hint ws detail=(0,)
        copy A -> s
        hint ws
        hint ws detail=(1,)
        copy s -> A
        hint ws
        """,
    )


def test_placement_with_barriers_is_roles():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float16"), C: T.Tensor((64, 64), "float32")):
        with T.Kernel(1, threads=256):
            s = T.alloc_shared((64, 64), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            full = T.alloc_barrier(128)
            free = T.alloc_barrier([128, 64])
            T.clear(c)
            for k in T.serial(4):
                with T.ws(0):
                    T.set_max_nreg(24, 0)
                    T.barrier_wait(free[0], (k + 1) % 2)
                    T.tma_copy(A, s, barrier=full)
                    T.mbarrier_arrive(full)
                with T.ws(1):
                    T.mbarrier_wait_parity(full, k % 2)
                    T.gemm(s, s, c)
                    T.barrier_arrive(free[0])

    same(
        body(f),
        """
        barrier_init full count 128
        barrier_init free[0] count 128
        barrier_init free[1] count 64
        role all warps 0 + 8 {
          fill c = 0.0
        }
        for k in 0 .. 4 {
          role warps0 warps 0 + 4 registers=24 {
            wait free[0] phase (k + 1) % 2
            arrive full bytes=8192 count=0
            copy A -> s barrier=full atom=bulk_load
            arrive full count=128
          }
          role warps4 warps 4 + 4 {
            wait full phase k % 2
            gemm s, s -> c
            arrive free[0] count=128
          }
        }
        """,
    )


def test_branches_on_whole_warps_are_roles():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1, threads=384):
            s = T.alloc_shared((64, 64), "float16")
            full = T.alloc_barrier(128)
            once = T.alloc_barrier(2)
            tx = T.get_thread_binding()
            if tx < 128:
                T.tma_copy(A, s, barrier=full)
                T.barrier_arrive(full)
            elif tx < 256:
                T.barrier_wait(full, 0)
                T.copy(s, A)
            else:
                if tx < 258:
                    T.barrier_arrive(once)
                T.clear(s)

    roles = [op for op in walk_ops(f.program.kernels[0]) if isinstance(op, Role)]
    assert [(r.first, r.warps) for r in roles] == [(0, 4), (4, 4), (8, 4)]
    counts = [op.count.value for op in walk_ops(f.program.kernels[0]) if isinstance(op, Arrive)]
    assert counts == [0, 128, 2]


def test_threads_and_looking():
    @T.prim_func
    def f(A: T.Tensor((64,), "float32")):
        T.import_source("__device__ float twice(float x) { return x + x; }")
        with T.Kernel(1, threads=64):
            tx = T.get_thread_binding()
            s = T.alloc_shared((64,), "float32")
            a = T.shfl_xor(A[tx], 1)
            b = T.shfl_down(a, 2, width=16)
            votes = T.ballot(b > 0)
            T.sync_threads()
            T.sync_threads(3, 64)
            T.sync_warp()
            c = T.call_extern("float32", "twice", b)
            T.call_extern("handle", "touch", T.address_of(A[tx]), s)
            d = T.ptx("ex2.approx.f32 $0, $1;", c, dtype="float32")
            T.print(d, "d")
            T.print(s)
            T.device_assert(votes != 0, "all negative")
            T.pdl_wait()
            T.pdl_launch()
            T.fence_proxy_async()

    assert len(f.program.sources) == 1
    names = [line.split()[1] for line in body(f).split("\n") if line.startswith("intrinsic")]
    assert (
        names
        == (
            "shfl_xor shfl_down ballot call_extern call_extern ptx print print device_assert "
            "pdl_wait pdl_launch"
        ).split()
    )
    syncs = [line for line in body(f).split("\n") if line.startswith(("sync", "fence"))]
    assert syncs == ["sync block", "sync named id=3 threads=64", "sync warp", "fence proxy_async"]


def test_clusters():
    @T.prim_func
    def f(A: T.Tensor((64, 64), "float16")):
        with T.ClusterKernel(2, cluster_dims=2) as bx:
            s = T.alloc_shared((64, 64), "float16")
            bar = T.alloc_cluster_barrier(2)
            T.copy(A, s, multicast=3)
            T.copy_cluster(s, s, dst_block=1 - T.block_rank_in_cluster(), remote_barrier=bar)
            T.mbarrier_expect_tx(bar, 8192)
            T.barrier_arrive(bar, cta_id=0)
            T.barrier_wait(bar, 0)
            T.cluster_sync()

    assert "copy A -> s multicast=3" in body(f)
    assert "sync cluster" in body(f)


# ── refusals ─────────────────────────────────────────────────────────────────────────────────


def test_outside_a_kernel():
    def f(A: T.Tensor((8,), "int32")):
        T.alloc_shared((8,), "int32")

    refused(f, "T.alloc_shared outside a kernel", "with T.Kernel", line="alloc_shared")


def test_no_kernel():
    def f(A: T.Tensor((8,), "int32")):
        pass

    refused(f, "f has no kernel", line="def f")


def test_copy_shapes():
    def f(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((32, 64), "float16")
            T.copy(A[0:48, :], s)

    refused(f, "different shapes", "(48, 64)", "(32, 64)", line="T.copy")


def test_copy_of_a_scalar():
    def f(A: T.Tensor((64,), "float16")):
        with T.Kernel(1):
            s = T.alloc_shared((32,), "float16")
            x = A[0]
            T.copy(x, s)

    refused(f, "T.copy needs a tensor", "write the element itself", line="T.copy")


def test_gemm_shapes_and_types():
    def shapes():
        with T.Kernel(1):
            a = T.alloc_shared((64, 32), "float16")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c)

    def types():
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "float16")
            b = T.alloc_shared((64, 64), "float32")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, b, c)

    def accumulator():
        with T.Kernel(1):
            a = T.alloc_shared((64, 64), "int8")
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(a, a, c)

    def place(A: T.Tensor((64, 64), "float16")):
        with T.Kernel(1):
            c = T.alloc_fragment((64, 64), "float32")
            T.gemm(A, A, c)

    refused(shapes, "do not multiply", "transpose_B", line="T.gemm")
    refused(types, "different types", "a float16, b float32", line="T.gemm")
    refused(accumulator, "C cannot accumulate", "int8", line="T.gemm")
    refused(place, "global memory", "T.copy it into a tile", line="T.gemm")


def test_reduce_dims():
    def dim():
        with T.Kernel(1):
            s = T.alloc_fragment((16, 32), "float32")
            r = T.alloc_fragment((16,), "float32")
            T.reduce_max(s, r, dim=2)

    def shape():
        with T.Kernel(1):
            s = T.alloc_fragment((16, 32), "float32")
            r = T.alloc_fragment((16,), "float32")
            T.reduce_max(s, r, dim=0)

    refused(dim, "no dimension 2", line="reduce_max")
    refused(shape, "does not fit s reduced over 0", "(32,)", "(16,)", line="reduce_max")


def test_indices():
    def rank(A: T.Tensor((8, 8), "float32")):
        with T.Kernel(1):
            A[0, 0, 0] = 1

    def real(A: T.Tensor((8,), "float32")):
        with T.Kernel(3) as bx:
            A[bx / 2] = 1

    def negative():
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            s[-1] = 1

    def beyond():
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            s[8] = 1

    def step(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0:8:2] = 1

    def iterated(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for x in A:
                pass

    refused(rank, "A has 2 dimensions", line="A[0, 0, 0]")
    refused(real, "must be an integer", "//", line="A[bx / 2]")
    refused(negative, "index -1 is outside", "negative indices do not wrap", line="s[-1]")
    refused(beyond, "index 8 is outside dimension 0 of s", "0 … 7", line="s[8]")
    refused(step, "with a step", line="A[0:8:2]")
    refused(iterated, "cannot be iterated", line="for x in A")


def test_negative_indices_of_tensors_are_outside():
    @T.prim_func
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = A[-1]

    same(body(f), "A[0] = A[-1]")


def test_packed_types():
    def odd(A: T.Tensor((8, 3), "int4")):
        with T.Kernel(1):
            A[0, 0] = 1

    def atomic(A: T.Tensor((8, 4), "int4")):
        with T.Kernel(1):
            T.atomic_add(A[0, 0], 1)

    def address(A: T.Tensor((8, 4), "uint4")):
        with T.Kernel(1):
            T.call_extern("void", "f", T.address_of(A[0, 0]))

    refused(odd, "packs 2 int4 elements into a byte", "multiple of 2")
    refused(atomic, "no atomics", line="atomic_add")
    refused(address, "no address", line="address_of")


def test_per_thread_coordinates():
    def f(A: T.Tensor((128, 8), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            tx = T.get_thread_binding()
            T.copy(A[tx, 0], s)

    refused(f, "tx", line="T.copy")


def test_tiles_of_another_kernel():
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            s = T.alloc_shared((8,), "float32")
            T.copy(A, s)
        with T.Kernel(1):
            T.copy(s, A)

    refused(f, "s belongs to another kernel", "T.alloc_global", line="T.copy(s, A)")


def test_errors_in_macros_show_the_call():
    @T.macro
    def inner(s):
        T.gemm(s, s, s)

    def f():
        with T.Kernel(1):
            s = T.alloc_shared((8, 4), "float32")
            inner(s)

    error = refused(f, "do not multiply", "called from")
    assert [c.line for c in error.loc.callers] == [f.__code__.co_firstlineno + 3]


def test_macro_annotations():
    @T.macro
    def inner(s: T.SharedBuffer):
        T.clear(s)

    def f():
        with T.Kernel(1):
            inner(T.alloc_fragment((8,), "float32"))

    refused(f, "'s' of inner must be a shared buffer")


def test_whole_tiles_are_no_numbers():
    def arithmetic(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = A + 1

    def function(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            A[0] = T.exp(A)

    refused(arithmetic, "arithmetic works on its elements", "T.Parallel", line="A + 1")
    refused(function, "T.exp works on elements", line="T.exp(A)")


def test_missing_annotation():
    def f(A):
        with T.Kernel(1):
            A[0] = 1

    refused(f, "parameter 'A' of f has no annotation", line="def f")


def test_iterations_write_different_elements():
    def f(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i, j in T.Parallel(8, 8):
                k = i + 1
                A[k] = j

    @T.prim_func
    def guarded(A: T.Tensor((8,), "float32")):
        with T.Kernel(1):
            for i, j in T.Parallel(8, 8):
                at = i * 8 + j
                if j == 0:
                    A[i] = 1
                A[at] = 2
                own = T.alloc_var("int32", init=j)
                A[own] = 3
                slot = T.atomic_add(A[0], 1, return_prev=True)
                A[T.int32(slot)] = 4

    refused(f, "write the same element of A", "depends on j", line="A[k] = j")
    assert guarded.program


def test_fragments_are_not_indexed_by_thread():
    def f():
        with T.Kernel(1, threads=64):
            s = T.alloc_fragment((64,), "float32")
            lane = T.get_thread_binding() % 32
            s[lane] = 1

    refused(f, "s is a fragment and is indexed by thread", line="s[lane] = 1")
