// gemm_pingpong
#include "tilewright.cuh"

TW_DEVICE void bulk_load_2d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1) : "memory");
}

TW_DEVICE void wgmma_m64n128k16_f32_bf16_bf16_ss_01(float* d, uint64_t a, uint64_t b, int accumulate) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %66, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, "
      "1;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a), "l"(b), "r"(accumulate));
}

TW_DEVICE void stmatrix_x4(uint32_t to, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
               "r"(to), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}

TW_DEVICE void bulk_store_2d(const tw::TensorMap* map, uint32_t from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::
               "l"(map), "r"(from), "r"(c0), "r"(c1) : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1)
gemm_pingpong_main(
    const __grid_constant__ tw::TensorMap A_map,
    const __grid_constant__ tw::TensorMap B_map,
    const __grid_constant__ tw::TensorMap C_map,
    const int blocks,
    const int m,
    const int n,
    const int k) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tx = threadIdx.x;
  const int bx = blockIdx.x;
#line 16 "gemm_pingpong.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&A_map);
    tw::prefetch(&B_map);
    tw::prefetch(&C_map);
  }
#line 17 "gemm_pingpong.tw"
  tw::bfloat16* const a = reinterpret_cast<tw::bfloat16*>(shared + 0);
#line 18 "gemm_pingpong.tw"
  tw::bfloat16* const b = reinterpret_cast<tw::bfloat16*>(shared + 65536);
#line 19 "gemm_pingpong.tw"
  tw::bfloat16* const out = reinterpret_cast<tw::bfloat16*>(shared + 131072);
#line 20 "gemm_pingpong.tw"
  const uint32_t full = tw::address(shared) + 163840;
#line 21 "gemm_pingpong.tw"
  const uint32_t empty = tw::address(shared) + 163872;
#line 22 "gemm_pingpong.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(full + 8 * i, 1);
  }
#line 23 "gemm_pingpong.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(empty + 8 * i, 1);
  }
#line 24 "gemm_pingpong.tw"
  tw::fence_barrier_init();
#line 25 "gemm_pingpong.tw"
  __syncthreads();
#line 28 "gemm_pingpong.tw"
  const int rows = (m + 127) >> 7;
#line 29 "gemm_pingpong.tw"
  const int cols = (n + 127) >> 7;
#line 30 "gemm_pingpong.tw"
  const int tiles = rows * cols;
#line 31 "gemm_pingpong.tw"
  const int steps = (k + 63) >> 6;
#line 32 "gemm_pingpong.tw"
  const int turns = tw::floor_div(tiles - bx + blocks - 1, blocks);
#line 34 "gemm_pingpong.tw"
  if (warp < 4) {  // role producer
    tw::give_registers<40>();
    const bool leader = warp == 0 && tw::elect();
    if (leader) {
#line 35 "gemm_pingpong.tw"
      int it = 0;
      #pragma unroll 1
#line 36 "gemm_pingpong.tw"
      for (int turn = 0; turn < turns; ++turn) {
#line 37 "gemm_pingpong.tw"
        const int tile = bx + turn * blocks;
#line 38 "gemm_pingpong.tw"
        const int first = tw::floor_div(tile, 12 * cols) * 12;
#line 39 "gemm_pingpong.tw"
        const int high = min(rows - first, 12);
#line 40 "gemm_pingpong.tw"
        const int row = (first + tw::floor_mod(tw::floor_mod(tile, 12 * cols), high)) * 128;
#line 41 "gemm_pingpong.tw"
        const int col = tw::floor_div(tw::floor_mod(tile, 12 * cols), high) * 128;
        #pragma unroll 1
#line 42 "gemm_pingpong.tw"
        for (int ki = 0; ki < steps; ++ki) {
#line 43 "gemm_pingpong.tw"
          const int s = it & 3;
#line 44 "gemm_pingpong.tw"
          tw::wait(empty + 8 * (s), ((it >> 2) + 1) & 1);
#line 45 "gemm_pingpong.tw"
          tw::arrive_expect(full + 8 * (s), 32768);
#line 46 "gemm_pingpong.tw"
          bulk_load_2d(tw::address(a + s * 8192), &A_map, full + 8 * (s), ki * 64, row);
#line 47 "gemm_pingpong.tw"
          bulk_load_2d(tw::address(b + s * 8192), &B_map, full + 8 * (s), col, ki * 64);
          bulk_load_2d(tw::address(b + s * 8192 + 4096), &B_map, full + 8 * (s), col + 64, ki * 64);
#line 48 "gemm_pingpong.tw"
          it = it + 1;
        }
      }
    }
#line 53 "gemm_pingpong.tw"
  } else if (warp >= 4 && warp < 12) {  // role consumer
    tw::take_registers<232>();
    const int wg = (warp - 4) / 4;
    const int thread_1 = tx & 127;
    const bool leader_1 = warp == 4 + wg * 4 && tw::elect();
#line 54 "gemm_pingpong.tw"
    float acc[128];
#line 56 "gemm_pingpong.tw"
    int it_1 = wg * steps;
    #pragma unroll 1
#line 57 "gemm_pingpong.tw"
    for (int turn_1 = wg; turn_1 < turns; turn_1 = tw::advance<int>(turn_1, 2)) {
#line 58 "gemm_pingpong.tw"
      const int tile_1 = bx + turn_1 * blocks;
#line 59 "gemm_pingpong.tw"
      const int first_1 = tw::floor_div(tile_1, 12 * cols) * 12;
#line 60 "gemm_pingpong.tw"
      const int high_1 = min(rows - first_1, 12);
#line 61 "gemm_pingpong.tw"
      const int row_1 = (first_1 + tw::floor_mod(tw::floor_mod(tile_1, 12 * cols), high_1)) * 128;
#line 62 "gemm_pingpong.tw"
      const int col_1 = tw::floor_div(tw::floor_mod(tile_1, 12 * cols), high_1) * 128;
#line 64 "gemm_pingpong.tw"
      if (turn_1 > 0) {
        tw::sync_named(1 + wg, 256);
      }
      #pragma unroll 1
#line 65 "gemm_pingpong.tw"
      for (int ki_1 = 0; ki_1 < steps; ++ki_1) {
#line 66 "gemm_pingpong.tw"
        const int s_1 = it_1 & 3;
#line 67 "gemm_pingpong.tw"
        tw::wait(full + 8 * (s_1), (it_1 >> 2) & 1);
#line 68 "gemm_pingpong.tw"
        tw::fence_wgmma();
#line 69 "gemm_pingpong.tw"
        const uint64_t b_desc = tw::descriptor<512, 64, 1>(tw::address(b + s_1 * 8192));
        const uint64_t a_desc = tw::descriptor<1, 64, 1>(tw::address(a + s_1 * 8192));
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc, a_desc, b_desc, ki_1 == 0 ? 0 : 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc + 64, a_desc + 512ull, b_desc, ki_1 == 0 ? 0 : 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc, a_desc + 2ull, b_desc + 128ull, 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc + 64, a_desc + 514ull, b_desc + 128ull, 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc, a_desc + 4ull, b_desc + 256ull, 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc + 64, a_desc + 516ull, b_desc + 256ull, 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc, a_desc + 6ull, b_desc + 384ull, 1);
        wgmma_m64n128k16_f32_bf16_bf16_ss_01(acc + 64, a_desc + 518ull, b_desc + 384ull, 1);
#line 70 "gemm_pingpong.tw"
        tw::commit_wgmma();
#line 71 "gemm_pingpong.tw"
        if (ki_1 > 0) {
#line 72 "gemm_pingpong.tw"
          tw::wait_wgmma<1>();
#line 73 "gemm_pingpong.tw"
          if (leader_1) {
            tw::arrive(empty + 8 * (tw::wrap_sub(it_1, 1) & 3));
          }
        }
#line 75 "gemm_pingpong.tw"
        it_1 = tw::wrap_add(it_1, 1);
      }
#line 77 "gemm_pingpong.tw"
      if (turn_1 + 1 < turns) {
        tw::arrive_named(2 - wg, 256);
      }
#line 78 "gemm_pingpong.tw"
      tw::wait_wgmma<0>();
      tw::pin<128>(acc);
#line 79 "gemm_pingpong.tw"
      if (leader_1) {
        tw::arrive(empty + 8 * (tw::wrap_sub(it_1, 1) & 3));
      }
#line 80 "gemm_pingpong.tw"
      it_1 = tw::wrap_add(it_1, steps);
#line 82 "gemm_pingpong.tw"
      if (turn_1 > 0) {
        tw::sync_named(3 + wg, 256);
      }
      #pragma unroll
#line 83 "gemm_pingpong.tw"
      for (int c = 0; c < 2; ++c) {
#line 84 "gemm_pingpong.tw"
        if (leader_1) {
          tw::wait_bulk_read<0>();
        }
#line 85 "gemm_pingpong.tw"
        tw::sync_named(5 + wg, 128);
#line 86 "gemm_pingpong.tw"
        const int at = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
        #pragma unroll
        for (int v = 0; v < 8; ++v) {
          stmatrix_x4(tw::address(out + wg * 8192 + (at ^ ((v & 3) * 16 + (v >> 2) * 4096))), tw::pack_bfloat16(acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64], acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 1]), tw::pack_bfloat16(acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 2], acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 3]), tw::pack_bfloat16(acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 4], acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 5]), tw::pack_bfloat16(acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 6], acc[c * 32 + (v & 3) * 8 + (v >> 2) * 64 + 7]));
        }
#line 87 "gemm_pingpong.tw"
        tw::fence_proxy_async();
#line 88 "gemm_pingpong.tw"
        tw::sync_named(5 + wg, 128);
#line 89 "gemm_pingpong.tw"
        if (leader_1) {
          bulk_store_2d(&C_map, tw::address(out + wg * 8192), c * 64 + col_1, row_1);
#line 90 "gemm_pingpong.tw"
          tw::commit_bulk();
        }
      }
#line 92 "gemm_pingpong.tw"
      if (turn_1 + 1 < turns) {
        tw::arrive_named(4 - wg, 256);
      }
    }
#line 94 "gemm_pingpong.tw"
    if (leader_1) {
      tw::wait_bulk<0>();
    }
  }
}
