// softmax_cluster_wide
#include "tilewright.cuh"

TW_DEVICE void bulk_load_4d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

extern "C" __global__ void __launch_bounds__(512, 1) __cluster_dims__(2, 1, 1)
softmax_cluster_wide_main(
    const __grid_constant__ tw::TensorMap X_map,
    tw::bfloat16* Y,
    int* counter,
    const float scale,
    const int blocks,
    const int m,
    const int groups) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tx = threadIdx.x;
  const int bx = blockIdx.x;
  const int rank = tw::cluster_rank();
#line 31 "softmax_cluster_wide.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&X_map);
  }
#line 32 "softmax_cluster_wide.tw"
  tw::bfloat16* const tile = reinterpret_cast<tw::bfloat16*>(shared + 0);
#line 33 "softmax_cluster_wide.tw"
  float* const pairs = reinterpret_cast<float*>(shared + 65536);
#line 34 "softmax_cluster_wide.tw"
  int* const next = reinterpret_cast<int*>(shared + 66048);
#line 35 "softmax_cluster_wide.tw"
  const uint32_t full = tw::address(shared) + 66056;
#line 36 "softmax_cluster_wide.tw"
  const uint32_t got = tw::address(shared) + 66184;
#line 37 "softmax_cluster_wide.tw"
  const uint32_t tick = tw::address(shared) + 66200;
#line 38 "softmax_cluster_wide.tw"
  if (tx == 0) {
    for (int i = 0; i < 16; ++i) tw::barrier_init(full + 8 * i, 1);
  }
#line 39 "softmax_cluster_wide.tw"
  if (tx == 0) {
    for (int i = 0; i < 2; ++i) tw::barrier_init(got + 8 * i, 32);
  }
#line 40 "softmax_cluster_wide.tw"
  if (tx == 0) {
    for (int i = 0; i < 2; ++i) tw::barrier_init(tick + 8 * i, 1);
  }
#line 41 "softmax_cluster_wide.tw"
  tw::fence_barrier_init();
#line 42 "softmax_cluster_wide.tw"
  tw::sync_cluster_shared();
#line 44 "softmax_cluster_wide.tw"
  const int clusters = blocks >> 1;
#line 45 "softmax_cluster_wide.tw"
  if (warp < 16) {  // role rows
    const int g = warp / 1;
    const int thread = tx & 31;
    const bool leader = warp == g && tw::elect();
#line 46 "softmax_cluster_wide.tw"
    float x[64];
#line 47 "softmax_cluster_wide.tw"
    float part[8];
#line 48 "softmax_cluster_wide.tw"
    float top[1];
#line 49 "softmax_cluster_wide.tw"
    float sum[1];
#line 50 "softmax_cluster_wide.tw"
    float factor[1];
#line 51 "softmax_cluster_wide.tw"
    float tops[1];
#line 52 "softmax_cluster_wide.tw"
    float sums[1];
#line 53 "softmax_cluster_wide.tw"
    float all_top[1];
#line 54 "softmax_cluster_wide.tw"
    float all_sum[1];
#line 55 "softmax_cluster_wide.tw"
    int id[1];
#line 56 "softmax_cluster_wide.tw"
    int it = 0;
#line 57 "softmax_cluster_wide.tw"
    int row = bx >> 1;
#line 58 "softmax_cluster_wide.tw"
    int after = (bx >> 1) + clusters;
#line 60 "softmax_cluster_wide.tw"
    if (row < m) {
#line 61 "softmax_cluster_wide.tw"
      if (leader) {
        tw::arrive_expect(full + 8 * (g), 4096);
#line 62 "softmax_cluster_wide.tw"
        bulk_load_4d(tw::address(tile + g * 2048), &X_map, full + 8 * (g), 0, 0, g + rank * 16, row);
      }
    }
#line 64 "softmax_cluster_wide.tw"
    while (row < m) {
#line 65 "softmax_cluster_wide.tw"
      const int turn = it & 1;
#line 66 "softmax_cluster_wide.tw"
      tw::wait(full + 8 * (g), it & 1);
#line 67 "softmax_cluster_wide.tw"
      const int at = thread * 8;
      #pragma unroll
      for (int v_1 = 0; v_1 < 8; ++v_1) {
        tw::load_shared<tw::bfloat16, 8>(x + v_1 * 8, tw::address(tile + at + g * 2048 + v_1 * 256));
      }
#line 68 "softmax_cluster_wide.tw"
      if (it > 0) {
#line 69 "softmax_cluster_wide.tw"
        tw::wait_cluster_shared(tick + 8 * (tw::wrap_add(it, 1) & 1), (tw::wrap_sub(it, 1) >> 1) & 1);
#line 70 "softmax_cluster_wide.tw"
        after = next[tw::wrap_add(it, 1) & 1];
      }
#line 72 "softmax_cluster_wide.tw"
      tw::fence_proxy_async();
#line 73 "softmax_cluster_wide.tw"
      __syncwarp();
#line 74 "softmax_cluster_wide.tw"
      if (leader) {
        tw::fence_cluster_shared();
      }
      #pragma unroll
      for (int peer = 0; peer < 2; ++peer) {
        if (leader) {
          tw::arrive_expect_remote(tw::remote(got + 8 * (turn), peer), 8);
        }
      }
#line 75 "softmax_cluster_wide.tw"
      if (after < m) {
#line 76 "softmax_cluster_wide.tw"
        if (leader) {
          tw::arrive_expect(full + 8 * (g), 4096);
#line 77 "softmax_cluster_wide.tw"
          bulk_load_4d(tw::address(tile + g * 2048), &X_map, full + 8 * (g), 0, 0, g + rank * 16, after);
        }
      }
#line 79 "softmax_cluster_wide.tw"
      if (rank * 16 + g >= groups) {
        #pragma unroll
#line 80 "softmax_cluster_wide.tw"
        for (int v_2 = 0; v_2 < 64; ++v_2) {
#line 81 "softmax_cluster_wide.tw"
          x[v_2] = __uint_as_float(0xff800000u);
        }
      }
#line 83 "softmax_cluster_wide.tw"
      float part_part[8];
      #pragma unroll
      for (int d = 0; d < 8; ++d) {
        part_part[d] = x[d];
      }
      #pragma unroll
      for (int k_1 = 1; k_1 < 8; ++k_1) {
        #pragma unroll
        for (int d_1 = 0; d_1 < 8; ++d_1) {
          part_part[d_1] = tw::max_nan(part_part[d_1], x[d_1 + k_1 * 8]);
        }
      }
      #pragma unroll
      for (int d_2 = 0; d_2 < 8; ++d_2) {
        part[d_2] = part_part[d_2];
      }
#line 84 "softmax_cluster_wide.tw"
      float top_part[1];
      #pragma unroll
      for (int d_3 = 0; d_3 < 1; ++d_3) {
        top_part[d_3] = part[0];
      }
      #pragma unroll
      for (int k_3 = 1; k_3 < 8; ++k_3) {
        #pragma unroll
        for (int d_4 = 0; d_4 < 1; ++d_4) {
          top_part[d_4] = tw::max_nan(top_part[d_4], part[k_3]);
        }
      }
      #pragma unroll
      for (int d_5 = 0; d_5 < 1; ++d_5) {
        const float own = top_part[d_5];
        const float other = __shfl_xor_sync(~0u, own, 1);
        const float own_1 = tw::max_nan(own, other);
        const float other_1 = __shfl_xor_sync(~0u, own_1, 2);
        const float own_2 = tw::max_nan(own_1, other_1);
        const float other_2 = __shfl_xor_sync(~0u, own_2, 4);
        const float own_3 = tw::max_nan(own_2, other_2);
        const float other_3 = __shfl_xor_sync(~0u, own_3, 8);
        const float own_4 = tw::max_nan(own_3, other_3);
        const float other_4 = __shfl_xor_sync(~0u, own_4, 16);
        top[d_5] = tw::max_nan(own_4, other_4);
      }
#line 86 "softmax_cluster_wide.tw"
      factor[0] = top[0] > __uint_as_float(0xff800000u) ? top[0] * scale : 0.0f;
      #pragma unroll
#line 88 "softmax_cluster_wide.tw"
      for (int v_6 = 0; v_6 < 64; ++v_6) {
#line 89 "softmax_cluster_wide.tw"
        x[v_6] = tw::exp2(x[v_6] * scale - factor[0]);
      }
#line 91 "softmax_cluster_wide.tw"
      float part_part_1[8];
      #pragma unroll
      for (int d_6 = 0; d_6 < 8; ++d_6) {
        part_part_1[d_6] = x[d_6];
      }
      #pragma unroll
      for (int k_5 = 1; k_5 < 8; ++k_5) {
        #pragma unroll
        for (int d_7 = 0; d_7 < 8; ++d_7) {
          part_part_1[d_7] = part_part_1[d_7] + x[d_7 + k_5 * 8];
        }
      }
      #pragma unroll
      for (int d_8 = 0; d_8 < 8; ++d_8) {
        part[d_8] = part_part_1[d_8];
      }
#line 92 "softmax_cluster_wide.tw"
      float sum_part[1];
      #pragma unroll
      for (int d_9 = 0; d_9 < 1; ++d_9) {
        sum_part[d_9] = part[0];
      }
      #pragma unroll
      for (int k_7 = 1; k_7 < 8; ++k_7) {
        #pragma unroll
        for (int d_10 = 0; d_10 < 1; ++d_10) {
          sum_part[d_10] = sum_part[d_10] + part[k_7];
        }
      }
      #pragma unroll
      for (int d_11 = 0; d_11 < 1; ++d_11) {
        const float own_5 = sum_part[d_11];
        const float other_5 = __shfl_xor_sync(~0u, own_5, 1);
        const float own_6 = own_5 + other_5;
        const float other_6 = __shfl_xor_sync(~0u, own_6, 2);
        const float own_7 = own_6 + other_6;
        const float other_7 = __shfl_xor_sync(~0u, own_7, 4);
        const float own_8 = own_7 + other_7;
        const float other_8 = __shfl_xor_sync(~0u, own_8, 8);
        const float own_9 = own_8 + other_8;
        const float other_9 = __shfl_xor_sync(~0u, own_9, 16);
        sum[d_11] = own_9 + other_9;
      }
      #pragma unroll
#line 93 "softmax_cluster_wide.tw"
      for (int peer_1 = 0; peer_1 < 2; ++peer_1) {
#line 94 "softmax_cluster_wide.tw"
        const int at_1 = 0;
        if (thread == 0) {
          tw::store_remote<1>(tw::remote(tw::address(pairs + at_1 + g + rank * 16 + turn * 64), peer_1), top, tw::remote(got + 8 * (turn), peer_1));
        }
#line 96 "softmax_cluster_wide.tw"
        const int at_2 = 0;
        if (thread == 0) {
          tw::store_remote<1>(tw::remote(tw::address(pairs + at_2 + g + rank * 16 + turn * 64 + 32), peer_1), sum, tw::remote(got + 8 * (turn), peer_1));
        }
      }
#line 100 "softmax_cluster_wide.tw"
      if (rank == 0 && g == 0) {
#line 101 "softmax_cluster_wide.tw"
        const int taken = tw::from_lane_0([&] { return tw::atomic_add(counter, 1); });
#line 102 "softmax_cluster_wide.tw"
        if (taken == m - 1) {
          counter[0] = 0;
        }
#line 103 "softmax_cluster_wide.tw"
        if (after < m) {
#line 104 "softmax_cluster_wide.tw"
          id[0] = tw::wrap_add(taken, 2 * clusters);
#line 105 "softmax_cluster_wide.tw"
          if (leader) {
            tw::fence_cluster_shared();
          }
          #pragma unroll
          for (int peer_2 = 0; peer_2 < 2; ++peer_2) {
#line 106 "softmax_cluster_wide.tw"
            if (leader) {
              tw::arrive_expect_remote(tw::remote(tick + 8 * (it & 1), peer_2), 4);
            }
#line 107 "softmax_cluster_wide.tw"
            const int at_3 = 0;
            if (thread == 0) {
              tw::store_remote<1>(tw::remote(tw::address(next + at_3 + (it & 1)), peer_2), id, tw::remote(tick + 8 * (it & 1), peer_2));
            }
          }
        }
      }
#line 112 "softmax_cluster_wide.tw"
      tw::wait_cluster_shared(got + 8 * (turn), (it >> 1) & 1);
#line 113 "softmax_cluster_wide.tw"
      const int at_4 = thread;
      tops[0] = pairs[at_4 + turn * 64];
#line 114 "softmax_cluster_wide.tw"
      const int at_5 = thread;
      sums[0] = pairs[at_5 + turn * 64 + 32];
#line 115 "softmax_cluster_wide.tw"
      float all_top_part[1];
      #pragma unroll
      for (int d_12 = 0; d_12 < 1; ++d_12) {
        all_top_part[d_12] = tops[0];
      }
      #pragma unroll
      for (int d_14 = 0; d_14 < 1; ++d_14) {
        const float own_10 = all_top_part[d_14];
        const float other_10 = __shfl_xor_sync(~0u, own_10, 1);
        const float own_11 = tw::max_nan(own_10, other_10);
        const float other_11 = __shfl_xor_sync(~0u, own_11, 2);
        const float own_12 = tw::max_nan(own_11, other_11);
        const float other_12 = __shfl_xor_sync(~0u, own_12, 4);
        const float own_13 = tw::max_nan(own_12, other_12);
        const float other_13 = __shfl_xor_sync(~0u, own_13, 8);
        const float own_14 = tw::max_nan(own_13, other_13);
        const float other_14 = __shfl_xor_sync(~0u, own_14, 16);
        all_top[d_14] = tw::max_nan(own_14, other_14);
      }
#line 117 "softmax_cluster_wide.tw"
      sums[0] = sums[0] * tw::exp2((tops[0] - all_top[0]) * scale);
#line 119 "softmax_cluster_wide.tw"
      float all_sum_part[1];
      #pragma unroll
      for (int d_15 = 0; d_15 < 1; ++d_15) {
        all_sum_part[d_15] = sums[0];
      }
      #pragma unroll
      for (int d_17 = 0; d_17 < 1; ++d_17) {
        const float own_15 = all_sum_part[d_17];
        const float other_15 = __shfl_xor_sync(~0u, own_15, 1);
        const float own_16 = own_15 + other_15;
        const float other_16 = __shfl_xor_sync(~0u, own_16, 2);
        const float own_17 = own_16 + other_16;
        const float other_17 = __shfl_xor_sync(~0u, own_17, 4);
        const float own_18 = own_17 + other_17;
        const float other_18 = __shfl_xor_sync(~0u, own_18, 8);
        const float own_19 = own_18 + other_18;
        const float other_19 = __shfl_xor_sync(~0u, own_19, 16);
        all_sum[d_17] = own_19 + other_19;
      }
#line 121 "softmax_cluster_wide.tw"
      factor[0] = tw::exp2((top[0] - all_top[0]) * scale) / all_sum[0];
      #pragma unroll
#line 123 "softmax_cluster_wide.tw"
      for (int v_24 = 0; v_24 < 64; ++v_24) {
#line 124 "softmax_cluster_wide.tw"
        x[v_24] = x[v_24] * factor[0];
      }
#line 126 "softmax_cluster_wide.tw"
      if (rank * 16 + g < groups) {
#line 127 "softmax_cluster_wide.tw"
        const int i1_4_1 = thread * 8;
        #pragma unroll
        for (int v_26 = 0; v_26 < 8; ++v_26) {
          if (row >= 0 && row < m) {
            tw::store_global<tw::bfloat16, 8>(Y + int64_t(row) * (groups * 8 * 256) + int64_t(g + rank * 16) * (8 * 256) + int64_t(v_26) * (256) + i1_4_1, x + v_26 * 8);
          }
        }
      }
#line 129 "softmax_cluster_wide.tw"
      row = after;
#line 130 "softmax_cluster_wide.tw"
      it = tw::wrap_add(it, 1);
    }
  }
}
