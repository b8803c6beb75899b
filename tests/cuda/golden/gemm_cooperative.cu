// gemm_cooperative
#include "tilewright.cuh"

TW_DEVICE void bulk_load_2d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1) : "memory");
}

TW_DEVICE void bulk_load_2d_multicast(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1, uint16_t mask) {
  asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster [%0], [%1, {%3, %4}], [%2], %5;" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "h"(mask) : "memory");
}

TW_DEVICE void wgmma_m64n256k16_f32_bf16_bf16_ss_01_x4(float* d, uint64_t a0, uint64_t b0, uint64_t a1, uint64_t b1, uint64_t a2, uint64_t b2, uint64_t a3, uint64_t b3, int accumulate) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %136, 0;\n"
      " .reg .pred q;\n setp.eq.b32 q, 0, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %128, %129, "
      "p, 1, 1, 0, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %130, %131, "
      "q, 1, 1, 0, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %132, %133, "
      "q, 1, 1, 0, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, %134, %135, "
      "q, 1, 1, 0, 1;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63]),
        "+f"(d[64]), "+f"(d[65]), "+f"(d[66]), "+f"(d[67]), "+f"(d[68]), "+f"(d[69]), "+f"(d[70]), "+f"(d[71]),
        "+f"(d[72]), "+f"(d[73]), "+f"(d[74]), "+f"(d[75]), "+f"(d[76]), "+f"(d[77]), "+f"(d[78]), "+f"(d[79]),
        "+f"(d[80]), "+f"(d[81]), "+f"(d[82]), "+f"(d[83]), "+f"(d[84]), "+f"(d[85]), "+f"(d[86]), "+f"(d[87]),
        "+f"(d[88]), "+f"(d[89]), "+f"(d[90]), "+f"(d[91]), "+f"(d[92]), "+f"(d[93]), "+f"(d[94]), "+f"(d[95]),
        "+f"(d[96]), "+f"(d[97]), "+f"(d[98]), "+f"(d[99]), "+f"(d[100]), "+f"(d[101]), "+f"(d[102]), "+f"(d[103]),
        "+f"(d[104]), "+f"(d[105]), "+f"(d[106]), "+f"(d[107]), "+f"(d[108]), "+f"(d[109]), "+f"(d[110]), "+f"(d[111]),
        "+f"(d[112]), "+f"(d[113]), "+f"(d[114]), "+f"(d[115]), "+f"(d[116]), "+f"(d[117]), "+f"(d[118]), "+f"(d[119]),
        "+f"(d[120]), "+f"(d[121]), "+f"(d[122]), "+f"(d[123]), "+f"(d[124]), "+f"(d[125]), "+f"(d[126]), "+f"(d[127])
      : "l"(a0), "l"(b0), "l"(a1), "l"(b1), "l"(a2), "l"(b2), "l"(a3), "l"(b3), "r"(accumulate));
}

TW_DEVICE void stmatrix_x4(uint32_t to, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
               "r"(to), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}

TW_DEVICE void bulk_store_2d(const tw::TensorMap* map, uint32_t from, int c0, int c1) {
  asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group [%0, {%2, %3}], [%1];" ::
               "l"(map), "r"(from), "r"(c0), "r"(c1) : "memory");
}

extern "C" __global__ void __launch_bounds__(384, 1) __cluster_dims__(2, 1, 1)
gemm_cooperative_main(
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
  const int rank = tw::cluster_rank();
#line 16 "gemm_cooperative.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&A_map);
    tw::prefetch(&B_map);
    tw::prefetch(&C_map);
  }
#line 17 "gemm_cooperative.tw"
  tw::bfloat16* const a = reinterpret_cast<tw::bfloat16*>(shared + 0);
#line 18 "gemm_cooperative.tw"
  tw::bfloat16* const b = reinterpret_cast<tw::bfloat16*>(shared + 65536);
#line 19 "gemm_cooperative.tw"
  tw::bfloat16* const out = reinterpret_cast<tw::bfloat16*>(shared + 196608);
#line 20 "gemm_cooperative.tw"
  const uint32_t full = tw::address(shared) + 212992;
#line 21 "gemm_cooperative.tw"
  const uint32_t empty = tw::address(shared) + 213024;
#line 22 "gemm_cooperative.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(full + 8 * i, 1);
  }
#line 23 "gemm_cooperative.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(empty + 8 * i, 4);
  }
#line 24 "gemm_cooperative.tw"
  tw::fence_barrier_init();
#line 25 "gemm_cooperative.tw"
  tw::sync_cluster_shared();
#line 28 "gemm_cooperative.tw"
  const int rows = (m + 255) >> 8;
#line 29 "gemm_cooperative.tw"
  const int cols = (n + 255) >> 8;
#line 30 "gemm_cooperative.tw"
  const int tiles = rows * cols;
#line 31 "gemm_cooperative.tw"
  const int steps = (k + 63) >> 6;
#line 33 "gemm_cooperative.tw"
  if (warp < 4) {  // role producer
    tw::give_registers<24>();
    const bool leader = warp == 0 && tw::elect();
    if (leader) {
#line 34 "gemm_cooperative.tw"
      int it = 0;
      #pragma unroll 1
#line 35 "gemm_cooperative.tw"
      for (int tile = bx >> 1; tile < tiles; tile = tw::advance<int>(tile, blocks >> 1)) {
#line 36 "gemm_cooperative.tw"
        const int first = tw::floor_div(tile, 8 * cols) * 8;
#line 37 "gemm_cooperative.tw"
        const int high = min(rows - first, 8);
#line 38 "gemm_cooperative.tw"
        const int row = (first + tw::floor_mod(tw::floor_mod(tile, 8 * cols), high)) * 256 + rank * 128;
#line 39 "gemm_cooperative.tw"
        const int col = tw::floor_div(tw::floor_mod(tile, 8 * cols), high) * 256;
        #pragma unroll 1
#line 40 "gemm_cooperative.tw"
        for (int ki = 0; ki < steps; ++ki) {
#line 41 "gemm_cooperative.tw"
          const int s = it & 3;
#line 42 "gemm_cooperative.tw"
          tw::wait(empty + 8 * (s), ((it >> 2) + 1) & 1);
#line 43 "gemm_cooperative.tw"
          tw::arrive_expect(full + 8 * (s), 49152);
#line 44 "gemm_cooperative.tw"
          bulk_load_2d(tw::address(a + s * 8192), &A_map, full + 8 * (s), ki * 64, row);
#line 45 "gemm_cooperative.tw"
          bulk_load_2d_multicast(tw::address(b + rank * 8192 + s * 16384), &B_map, full + 8 * (s), col + rank * 128, ki * 64, 3);
          bulk_load_2d_multicast(tw::address(b + rank * 8192 + s * 16384 + 4096), &B_map, full + 8 * (s), col + rank * 128 + 64, ki * 64, 3);
#line 47 "gemm_cooperative.tw"
          it = it + 1;
        }
      }
      #pragma unroll 1
#line 51 "gemm_cooperative.tw"
      for (int d = 0; d < 4; ++d) {
#line 52 "gemm_cooperative.tw"
        tw::wait(empty + 8 * (it & 3), ((it >> 2) + 1) & 1);
#line 53 "gemm_cooperative.tw"
        it = it + 1;
      }
    }
#line 57 "gemm_cooperative.tw"
  } else if (warp >= 4 && warp < 12) {  // role consumer
    tw::take_registers<240>();
    const int wg = (warp - 4) / 4;
    const int thread_1 = tx & 127;
    const bool leader_1 = warp == 4 + wg * 4 && tw::elect();
#line 58 "gemm_cooperative.tw"
    float acc[128];
#line 60 "gemm_cooperative.tw"
    int it_1 = 0;
    #pragma unroll 1
#line 61 "gemm_cooperative.tw"
    for (int tile_1 = bx >> 1; tile_1 < tiles; tile_1 = tw::advance<int>(tile_1, blocks >> 1)) {
#line 62 "gemm_cooperative.tw"
      const int first_1 = tw::floor_div(tile_1, 8 * cols) * 8;
#line 63 "gemm_cooperative.tw"
      const int high_1 = min(rows - first_1, 8);
#line 64 "gemm_cooperative.tw"
      const int row_1 = (first_1 + tw::floor_mod(tw::floor_mod(tile_1, 8 * cols), high_1)) * 256 + rank * 128 + wg * 64;
#line 65 "gemm_cooperative.tw"
      const int col_1 = tw::floor_div(tw::floor_mod(tile_1, 8 * cols), high_1) * 256;
      #pragma unroll 1
#line 66 "gemm_cooperative.tw"
      for (int ki_1 = 0; ki_1 < steps; ++ki_1) {
#line 67 "gemm_cooperative.tw"
        const int s_1 = it_1 & 3;
#line 68 "gemm_cooperative.tw"
        tw::wait(full + 8 * (s_1), (it_1 >> 2) & 1);
#line 69 "gemm_cooperative.tw"
        tw::fence_wgmma();
#line 70 "gemm_cooperative.tw"
        const uint64_t b_desc = tw::descriptor<512, 64, 1>(tw::address(b + s_1 * 16384));
        const uint64_t a_desc = tw::descriptor<1, 64, 1>(tw::address(a + s_1 * 8192 + wg * 4096));
        wgmma_m64n256k16_f32_bf16_bf16_ss_01_x4(acc, a_desc, b_desc, a_desc + 2ull, b_desc + 128ull, a_desc + 4ull, b_desc + 256ull, a_desc + 6ull, b_desc + 384ull, ki_1 == 0 ? 0 : 1);
#line 71 "gemm_cooperative.tw"
        tw::commit_wgmma();
#line 72 "gemm_cooperative.tw"
        if (ki_1 > 0) {
#line 73 "gemm_cooperative.tw"
          tw::wait_wgmma<1>();
#line 74 "gemm_cooperative.tw"
          if (leader_1) {
            tw::arrive_remote(tw::remote(empty + 8 * ((it_1 - 1) & 3), 0));
#line 75 "gemm_cooperative.tw"
            tw::arrive_remote(tw::remote(empty + 8 * ((it_1 - 1) & 3), 1));
          }
        }
#line 77 "gemm_cooperative.tw"
        it_1 = it_1 + 1;
      }
#line 79 "gemm_cooperative.tw"
      tw::wait_wgmma<0>();
      tw::pin<128>(acc);
#line 80 "gemm_cooperative.tw"
      if (leader_1) {
        tw::arrive_remote(tw::remote(empty + 8 * ((it_1 - 1) & 3), 0));
#line 81 "gemm_cooperative.tw"
        tw::arrive_remote(tw::remote(empty + 8 * ((it_1 - 1) & 3), 1));
      }
      #pragma unroll
#line 82 "gemm_cooperative.tw"
      for (int c = 0; c < 4; ++c) {
#line 83 "gemm_cooperative.tw"
        if (leader_1) {
          tw::wait_bulk_read<0>();
        }
#line 84 "gemm_cooperative.tw"
        tw::sync_named(wg + 1, 128);
#line 85 "gemm_cooperative.tw"
        const int at = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
        #pragma unroll
        for (int v = 0; v < 4; ++v) {
          stmatrix_x4(tw::address(out + wg * 4096 + (at ^ (v * 16))), tw::pack_bfloat16(acc[c * 32 + v * 8], acc[c * 32 + v * 8 + 1]), tw::pack_bfloat16(acc[c * 32 + v * 8 + 2], acc[c * 32 + v * 8 + 3]), tw::pack_bfloat16(acc[c * 32 + v * 8 + 4], acc[c * 32 + v * 8 + 5]), tw::pack_bfloat16(acc[c * 32 + v * 8 + 6], acc[c * 32 + v * 8 + 7]));
        }
#line 86 "gemm_cooperative.tw"
        tw::fence_proxy_async();
#line 87 "gemm_cooperative.tw"
        tw::sync_named(wg + 1, 128);
#line 88 "gemm_cooperative.tw"
        if (leader_1) {
          bulk_store_2d(&C_map, tw::address(out + wg * 4096), c * 64 + col_1, row_1);
#line 89 "gemm_cooperative.tw"
          tw::commit_bulk();
        }
      }
    }
#line 92 "gemm_cooperative.tw"
    if (leader_1) {
      tw::wait_bulk<0>();
    }
  }
}
