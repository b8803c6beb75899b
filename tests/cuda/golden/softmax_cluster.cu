// softmax_cluster
#include "tilewright.cuh"

TW_DEVICE void bulk_load_2d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1) : "memory");
}

TW_DEVICE void bulk_store_2d(const tw::TensorMap* map, uint32_t from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::
               "l"(map), "r"(from), "r"(c0), "r"(c1) : "memory");
}

extern "C" __global__ void __launch_bounds__(128, 1) __cluster_dims__(4, 1, 1)
softmax_cluster_main(
    const __grid_constant__ tw::TensorMap X_map,
    const __grid_constant__ tw::TensorMap Y_map,
    const float scale,
    const int blocks,
    const int m,
    const int n) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tx = threadIdx.x;
  const int bx = blockIdx.x;
  const int rank = tw::cluster_rank();
#line 18 "softmax_cluster.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&X_map);
    tw::prefetch(&Y_map);
  }
#line 19 "softmax_cluster.tw"
  float* const in = reinterpret_cast<float*>(shared + 0);
#line 20 "softmax_cluster.tw"
  float* const out = reinterpret_cast<float*>(shared + 16384);
#line 21 "softmax_cluster.tw"
  float* const slots = reinterpret_cast<float*>(shared + 32768);
#line 22 "softmax_cluster.tw"
  const uint32_t full = tw::address(shared) + 33280;
#line 23 "softmax_cluster.tw"
  const uint32_t got = tw::address(shared) + 33296;
#line 24 "softmax_cluster.tw"
  if (tx == 0) {
    for (int i = 0; i < 2; ++i) tw::barrier_init(full + 8 * i, 1);
  }
#line 25 "softmax_cluster.tw"
  if (tx == 0) {
    for (int i = 0; i < 2; ++i) tw::barrier_init(got + 8 * i, 4);
  }
#line 26 "softmax_cluster.tw"
  tw::fence_barrier_init();
#line 27 "softmax_cluster.tw"
  tw::sync_cluster_shared();
#line 29 "softmax_cluster.tw"
  const int tiles = (m + 7) >> 3;
#line 30 "softmax_cluster.tw"
  const int clusters = blocks >> 2;
#line 31 "softmax_cluster.tw"
  if (warp < 4) {  // role rows
    const int thread = tx;
    const bool leader = warp == 0 && tw::elect();
#line 32 "softmax_cluster.tw"
    float x[16];
#line 34 "softmax_cluster.tw"
    float top[1];
#line 35 "softmax_cluster.tw"
    float sum[1];
#line 36 "softmax_cluster.tw"
    float all_top[1];
#line 37 "softmax_cluster.tw"
    float all_sum[1];
#line 38 "softmax_cluster.tw"
    int it = 0;
    #pragma unroll 1
#line 40 "softmax_cluster.tw"
    for (int j = 0; j < 2; ++j) {
#line 41 "softmax_cluster.tw"
      if ((bx >> 2) + j * clusters < tiles) {
#line 42 "softmax_cluster.tw"
        if (leader) {
          tw::arrive_expect(full + 8 * (j), 8192);
#line 43 "softmax_cluster.tw"
          bulk_load_2d(tw::address(in + j * 2048), &X_map, full + 8 * (j), rank * 256, clusters * j * 8 + (bx >> 2) * 8);
        }
      }
    }
    #pragma unroll 1
#line 47 "softmax_cluster.tw"
    for (int tile = bx >> 2; tile < tiles; tile += clusters) {
#line 48 "softmax_cluster.tw"
      const int s = it & 1;
#line 49 "softmax_cluster.tw"
      const int phase = (it >> 1) & 1;
#line 50 "softmax_cluster.tw"
      tw::wait(full + 8 * (s), phase);
#line 51 "softmax_cluster.tw"
      const int at = (thread & 15) * 4 + (thread >> 4) * 256;
      #pragma unroll
      for (int v_1 = 0; v_1 < 4; ++v_1) {
        tw::load_shared<tw::float32, 4>(x + v_1 * 4, tw::address(in + at + s * 2048 + v_1 * 64));
      }
#line 52 "softmax_cluster.tw"
      const int j_1_1 = (thread & 15) * 4;
#line 53 "softmax_cluster.tw"
      const int limit = n - j_1_1 - rank * 256;
      #pragma unroll
#line 52 "softmax_cluster.tw"
      for (int v_2 = 0; v_2 < 16; ++v_2) {
#line 53 "softmax_cluster.tw"
        x[v_2] = (v_2 & 3) + (v_2 >> 2) * 64 < limit ? x[v_2] : __uint_as_float(0xff800000u);
      }
#line 55 "softmax_cluster.tw"
      float top_part[1];
      #pragma unroll
      for (int d = 0; d < 1; ++d) {
        top_part[d] = x[0];
      }
      #pragma unroll
      for (int k_1 = 1; k_1 < 16; ++k_1) {
        #pragma unroll
        for (int d_1 = 0; d_1 < 1; ++d_1) {
          top_part[d_1] = tw::max_nan(top_part[d_1], x[k_1]);
        }
      }
      #pragma unroll
      for (int d_2 = 0; d_2 < 1; ++d_2) {
        const float own = top_part[d_2];
        const float other = __shfl_xor_sync(~0u, own, 1);
        const float own_1 = tw::max_nan(own, other);
        const float other_1 = __shfl_xor_sync(~0u, own_1, 2);
        const float own_2 = tw::max_nan(own_1, other_1);
        const float other_2 = __shfl_xor_sync(~0u, own_2, 4);
        const float own_3 = tw::max_nan(own_2, other_2);
        const float other_3 = __shfl_xor_sync(~0u, own_3, 8);
        top[d_2] = tw::max_nan(own_3, other_3);
      }
      #pragma unroll
#line 56 "softmax_cluster.tw"
      for (int v_4 = 0; v_4 < 16; ++v_4) {
#line 57 "softmax_cluster.tw"
        x[v_4] = top[0] > __uint_as_float(0xff800000u) ? tw::exp2((x[v_4] - top[0]) * scale) : 0.0f;
      }
#line 59 "softmax_cluster.tw"
      float sum_part[1];
      #pragma unroll
      for (int d_3 = 0; d_3 < 1; ++d_3) {
        sum_part[d_3] = x[0];
      }
      #pragma unroll
      for (int k_3 = 1; k_3 < 16; ++k_3) {
        #pragma unroll
        for (int d_4 = 0; d_4 < 1; ++d_4) {
          sum_part[d_4] = sum_part[d_4] + x[k_3];
        }
      }
      #pragma unroll
      for (int d_5 = 0; d_5 < 1; ++d_5) {
        const float own_4 = sum_part[d_5];
        const float other_4 = __shfl_xor_sync(~0u, own_4, 1);
        const float own_5 = own_4 + other_4;
        const float other_5 = __shfl_xor_sync(~0u, own_5, 2);
        const float own_6 = own_5 + other_5;
        const float other_6 = __shfl_xor_sync(~0u, own_6, 4);
        const float own_7 = own_6 + other_6;
        const float other_7 = __shfl_xor_sync(~0u, own_7, 8);
        sum[d_5] = own_7 + other_7;
      }
#line 61 "softmax_cluster.tw"
      tw::sync_named(15, 128);
      if (leader) {
        tw::fence_cluster_shared();
      }
      #pragma unroll
      for (int peer = 0; peer < 4; ++peer) {
#line 62 "softmax_cluster.tw"
        if (leader) {
          tw::arrive_expect_remote(tw::remote(got + 8 * (s), peer), 64);
        }
#line 63 "softmax_cluster.tw"
        const int at_1 = thread >> 4;
        if ((thread & 15) == 0) {
          tw::store_remote<1>(tw::remote(tw::address(slots + at_1 + rank * 16 + s * 64), peer), top, tw::remote(got + 8 * (s), peer));
        }
#line 64 "softmax_cluster.tw"
        const int at_2 = thread >> 4;
        if ((thread & 15) == 0) {
          tw::store_remote<1>(tw::remote(tw::address(slots + at_2 + rank * 16 + s * 64 + 8), peer), sum, tw::remote(got + 8 * (s), peer));
        }
      }
#line 66 "softmax_cluster.tw"
      if (leader) {
        tw::wait_bulk_read<1>();
      }
#line 67 "softmax_cluster.tw"
      tw::fence_proxy_async();
#line 68 "softmax_cluster.tw"
      tw::sync_named(1, 128);
#line 69 "softmax_cluster.tw"
      if (tile + 2 * clusters < tiles) {
#line 70 "softmax_cluster.tw"
        if (leader) {
          tw::arrive_expect(full + 8 * (s), 8192);
#line 71 "softmax_cluster.tw"
          bulk_load_2d(tw::address(in + s * 2048), &X_map, full + 8 * (s), rank * 256, clusters * 16 + tile * 8);
        }
      }
#line 75 "softmax_cluster.tw"
      tw::wait_cluster_shared(got + 8 * (s), phase);
#line 76 "softmax_cluster.tw"
      const int i_2_1 = thread >> 4;
#line 77 "softmax_cluster.tw"
      all_top[0] = slots[i_2_1 + s * 64];
      #pragma unroll
#line 78 "softmax_cluster.tw"
      for (int peer_1 = 1; peer_1 < 4; ++peer_1) {
#line 79 "softmax_cluster.tw"
        const int i_3_1 = thread >> 4;
#line 81 "softmax_cluster.tw"
        all_top[0] = fmaxf(all_top[0], slots[i_3_1 + peer_1 * 16 + s * 64]);
      }
      #pragma unroll
#line 84 "softmax_cluster.tw"
      for (int v_12 = 0; v_12 < 1; ++v_12) {
        all_sum[v_12] = 0.0f;
      }
      #pragma unroll
#line 85 "softmax_cluster.tw"
      for (int peer_2 = 0; peer_2 < 4; ++peer_2) {
#line 86 "softmax_cluster.tw"
        const int i_4_1 = thread >> 4;
#line 87 "softmax_cluster.tw"
        all_sum[0] = all_sum[0] + slots[i_4_1 + peer_2 * 16 + s * 64 + 8] * tw::exp2((slots[i_4_1 + peer_2 * 16 + s * 64] - all_top[0]) * scale);
      }
      #pragma unroll
#line 91 "softmax_cluster.tw"
      for (int v_14 = 0; v_14 < 16; ++v_14) {
#line 92 "softmax_cluster.tw"
        x[v_14] = x[v_14] * tw::exp2((top[0] - all_top[0]) * scale) / all_sum[0];
      }
#line 94 "softmax_cluster.tw"
      const int at_3 = (thread & 15) * 4 + (thread >> 4) * 256;
      #pragma unroll
      for (int v_16 = 0; v_16 < 4; ++v_16) {
        tw::store_shared<tw::float32, 4>(tw::address(out + at_3 + s * 2048 + v_16 * 64), x + v_16 * 4);
      }
#line 95 "softmax_cluster.tw"
      tw::fence_proxy_async();
#line 96 "softmax_cluster.tw"
      tw::sync_named(1, 128);
#line 97 "softmax_cluster.tw"
      if (leader) {
        bulk_store_2d(&Y_map, tw::address(out + s * 2048), rank * 256, tile * 8);
#line 98 "softmax_cluster.tw"
        tw::commit_bulk();
      }
#line 99 "softmax_cluster.tw"
      it = it + 1;
    }
#line 101 "softmax_cluster.tw"
    if (leader) {
      tw::wait_bulk_read<0>();
    }
  }
}
