// flash_attention_64_causal
#include "tilewright.cuh"

TW_DEVICE void bulk_load_4d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

TW_DEVICE void wgmma_m64n128k16_f32_bf16_bf16_ss_x4(float* d, uint64_t a0, uint64_t b0, uint64_t a1, uint64_t b1, uint64_t a2, uint64_t b2, uint64_t a3, uint64_t b3, int accumulate) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %72, 0;\n"
      " .reg .pred q;\n setp.eq.b32 q, 0, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %64, %65, p, 1, 1, 0, "
      "0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %66, %67, q, 1, 1, 0, "
      "0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %68, %69, q, 1, 1, 0, "
      "0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63}, %70, %71, q, 1, 1, 0, "
      "0;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31]),
        "+f"(d[32]), "+f"(d[33]), "+f"(d[34]), "+f"(d[35]), "+f"(d[36]), "+f"(d[37]), "+f"(d[38]), "+f"(d[39]),
        "+f"(d[40]), "+f"(d[41]), "+f"(d[42]), "+f"(d[43]), "+f"(d[44]), "+f"(d[45]), "+f"(d[46]), "+f"(d[47]),
        "+f"(d[48]), "+f"(d[49]), "+f"(d[50]), "+f"(d[51]), "+f"(d[52]), "+f"(d[53]), "+f"(d[54]), "+f"(d[55]),
        "+f"(d[56]), "+f"(d[57]), "+f"(d[58]), "+f"(d[59]), "+f"(d[60]), "+f"(d[61]), "+f"(d[62]), "+f"(d[63])
      : "l"(a0), "l"(b0), "l"(a1), "l"(b1), "l"(a2), "l"(b2), "l"(a3), "l"(b3), "r"(accumulate));
}

TW_DEVICE void wgmma_m64n64k16_f32_bf16_bf16_rs_01_x8(float* d, const void* from0, uint64_t b0, const void* from1, uint64_t b1, const void* from2, uint64_t b2, const void* from3, uint64_t b3, const void* from4, uint64_t b4, const void* from5, uint64_t b5, const void* from6, uint64_t b6, const void* from7, uint64_t b7, int accumulate) {
  const uint32_t* a0 = static_cast<const uint32_t*>(from0);
  const uint32_t* a1 = static_cast<const uint32_t*>(from1);
  const uint32_t* a2 = static_cast<const uint32_t*>(from2);
  const uint32_t* a3 = static_cast<const uint32_t*>(from3);
  const uint32_t* a4 = static_cast<const uint32_t*>(from4);
  const uint32_t* a5 = static_cast<const uint32_t*>(from5);
  const uint32_t* a6 = static_cast<const uint32_t*>(from6);
  const uint32_t* a7 = static_cast<const uint32_t*>(from7);
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %72, 0;\n"
      " .reg .pred q;\n setp.eq.b32 q, 0, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, "
      "%34, %35}, %36, p, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%37, %38, "
      "%39, %40}, %41, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%42, %43, "
      "%44, %45}, %46, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%47, %48, "
      "%49, %50}, %51, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%52, %53, "
      "%54, %55}, %56, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%57, %58, "
      "%59, %60}, %61, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%62, %63, "
      "%64, %65}, %66, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%67, %68, "
      "%69, %70}, %71, q, 1, 1, 1;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a0[0]), "r"(a0[1]), "r"(a0[2]), "r"(a0[3]), "l"(b0), "r"(a1[0]), "r"(a1[1]), "r"(a1[2]), "r"(a1[3]), "l"(b1), "r"(a2[0]), "r"(a2[1]), "r"(a2[2]), "r"(a2[3]), "l"(b2), "r"(a3[0]), "r"(a3[1]), "r"(a3[2]), "r"(a3[3]), "l"(b3), "r"(a4[0]), "r"(a4[1]), "r"(a4[2]), "r"(a4[3]), "l"(b4), "r"(a5[0]), "r"(a5[1]), "r"(a5[2]), "r"(a5[3]), "l"(b5), "r"(a6[0]), "r"(a6[1]), "r"(a6[2]), "r"(a6[3]), "l"(b6), "r"(a7[0]), "r"(a7[1]), "r"(a7[2]), "r"(a7[3]), "l"(b7), "r"(accumulate));
}

TW_DEVICE void stmatrix_x4(uint32_t to, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
               "r"(to), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
}

TW_DEVICE void bulk_store_4d(const tw::TensorMap* map, uint32_t from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
               "l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

extern "C" __global__ void __launch_bounds__(512, 1)
flash_attention_64_causal_main(
    const __grid_constant__ tw::TensorMap K_map,
    const __grid_constant__ tw::TensorMap Q_map,
    const __grid_constant__ tw::TensorMap V_map,
    const __grid_constant__ tw::TensorMap O_map,
    const float scale,
    const int blocks,
    const int batch,
    const int heads,
    const int sq,
    const int sk) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tx = threadIdx.x;
  const int bx = blockIdx.x;
#line 18 "flash_attention_64_causal.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&K_map);
    tw::prefetch(&Q_map);
    tw::prefetch(&V_map);
    tw::prefetch(&O_map);
  }
#line 19 "flash_attention_64_causal.tw"
  tw::bfloat16* const q = reinterpret_cast<tw::bfloat16*>(shared + 0);
#line 20 "flash_attention_64_causal.tw"
  tw::bfloat16* const k = reinterpret_cast<tw::bfloat16*>(shared + 24576);
#line 21 "flash_attention_64_causal.tw"
  tw::bfloat16* const v = reinterpret_cast<tw::bfloat16*>(shared + 90112);
#line 22 "flash_attention_64_causal.tw"
  tw::bfloat16* const out = reinterpret_cast<tw::bfloat16*>(shared + 155648);
#line 23 "flash_attention_64_causal.tw"
  const uint32_t q_full = tw::address(shared) + 180224;
#line 24 "flash_attention_64_causal.tw"
  const uint32_t q_empty = tw::address(shared) + 180232;
#line 25 "flash_attention_64_causal.tw"
  const uint32_t k_full = tw::address(shared) + 180240;
#line 26 "flash_attention_64_causal.tw"
  const uint32_t k_empty = tw::address(shared) + 180272;
#line 27 "flash_attention_64_causal.tw"
  const uint32_t v_full = tw::address(shared) + 180304;
#line 28 "flash_attention_64_causal.tw"
  const uint32_t v_empty = tw::address(shared) + 180336;
#line 29 "flash_attention_64_causal.tw"
  if (tx == 0) {
    tw::barrier_init(q_full, 1);
  }
#line 30 "flash_attention_64_causal.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(k_full + 8 * i, 1);
  }
#line 31 "flash_attention_64_causal.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(v_full + 8 * i, 1);
  }
#line 32 "flash_attention_64_causal.tw"
  if (tx == 0) {
    tw::barrier_init(q_empty, 3);
  }
#line 33 "flash_attention_64_causal.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(k_empty + 8 * i, 3);
  }
#line 34 "flash_attention_64_causal.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(v_empty + 8 * i, 3);
  }
#line 35 "flash_attention_64_causal.tw"
  tw::fence_barrier_init();
#line 36 "flash_attention_64_causal.tw"
  __syncthreads();
#line 38 "flash_attention_64_causal.tw"
  const int rows = tw::floor_div(sq + 191, 192);
#line 39 "flash_attention_64_causal.tw"
  const int pairs = heads * batch;
#line 40 "flash_attention_64_causal.tw"
  const int ahead = sk - sq;
#line 42 "flash_attention_64_causal.tw"
  if (warp < 4) {  // role producer
    tw::give_registers<32>();
    const bool leader = warp == 0 && tw::elect();
    if (leader) {
#line 43 "flash_attention_64_causal.tw"
      int tc = 0;
#line 44 "flash_attention_64_causal.tw"
      int kc = 0;
#line 45 "flash_attention_64_causal.tw"
      int vc = 0;
      #pragma unroll 1
#line 46 "flash_attention_64_causal.tw"
      for (int tile = bx; tile < rows * pairs; tile = tw::advance<int>(tile, blocks)) {
#line 47 "flash_attention_64_causal.tw"
        const int row = (rows - 1 - tw::floor_div(tile, pairs)) * 192;
#line 48 "flash_attention_64_causal.tw"
        const int head = tw::floor_mod(tile, heads);
#line 49 "flash_attention_64_causal.tw"
        const int item = tw::floor_div(tw::floor_mod(tile, pairs), heads);
#line 50 "flash_attention_64_causal.tw"
        const int n = max((min(row + 192 + ahead, sk) + 127) >> 7, 1);
#line 51 "flash_attention_64_causal.tw"
        tw::wait(k_empty + 8 * (kc & 3), ((kc >> 2) + 1) & 1);
#line 52 "flash_attention_64_causal.tw"
        tw::arrive_expect(k_full + 8 * (kc & 3), 16384);
#line 53 "flash_attention_64_causal.tw"
        bulk_load_4d(tw::address(k + (kc & 3) * 8192), &K_map, k_full + 8 * (kc & 3), 0, n * 128 - 128, head, item);
#line 55 "flash_attention_64_causal.tw"
        kc = kc + 1;
#line 56 "flash_attention_64_causal.tw"
        tw::wait(q_empty, (tc + 1) & 1);
#line 57 "flash_attention_64_causal.tw"
        tw::arrive_expect(q_full, 24576);
#line 58 "flash_attention_64_causal.tw"
        bulk_load_4d(tw::address(q), &Q_map, q_full, 0, row, head, item);
#line 59 "flash_attention_64_causal.tw"
        tc = tc + 1;
        #pragma unroll 1
#line 61 "flash_attention_64_causal.tw"
        for (int i = 1; i < n; ++i) {
#line 62 "flash_attention_64_causal.tw"
          tw::wait(k_empty + 8 * (kc & 3), ((kc >> 2) + 1) & 1);
#line 63 "flash_attention_64_causal.tw"
          tw::arrive_expect(k_full + 8 * (kc & 3), 16384);
#line 64 "flash_attention_64_causal.tw"
          bulk_load_4d(tw::address(k + (kc & 3) * 8192), &K_map, k_full + 8 * (kc & 3), 0, n * 128 - i * 128 - 128, head, item);
#line 66 "flash_attention_64_causal.tw"
          kc = kc + 1;
#line 67 "flash_attention_64_causal.tw"
          tw::wait(v_empty + 8 * (vc & 3), ((vc >> 2) + 1) & 1);
#line 68 "flash_attention_64_causal.tw"
          tw::arrive_expect(v_full + 8 * (vc & 3), 16384);
#line 69 "flash_attention_64_causal.tw"
          bulk_load_4d(tw::address(v + (vc & 3) * 8192), &V_map, v_full + 8 * (vc & 3), 0, n * 128 - i * 128, head, item);
#line 71 "flash_attention_64_causal.tw"
          vc = vc + 1;
        }
#line 73 "flash_attention_64_causal.tw"
        tw::wait(v_empty + 8 * (vc & 3), ((vc >> 2) + 1) & 1);
#line 74 "flash_attention_64_causal.tw"
        tw::arrive_expect(v_full + 8 * (vc & 3), 16384);
#line 75 "flash_attention_64_causal.tw"
        bulk_load_4d(tw::address(v + (vc & 3) * 8192), &V_map, v_full + 8 * (vc & 3), 0, 0, head, item);
#line 76 "flash_attention_64_causal.tw"
        vc = vc + 1;
      }
    }
#line 80 "flash_attention_64_causal.tw"
  } else if (warp >= 4 && warp < 16) {  // role consumer
    tw::take_registers<160>();
    const int wg = (warp - 4) / 4;
    const int thread_1 = tx & 127;
    const bool leader_1 = warp == 4 + wg * 4 && tw::elect();
#line 81 "flash_attention_64_causal.tw"
    float s[64];
#line 83 "flash_attention_64_causal.tw"
    alignas(16) tw::bfloat16 p[64];
#line 85 "flash_attention_64_causal.tw"
    float o[32];
#line 87 "flash_attention_64_causal.tw"
    float top[2];
#line 88 "flash_attention_64_causal.tw"
    float base[2];
#line 89 "flash_attention_64_causal.tw"
    float old[2];
#line 90 "flash_attention_64_causal.tw"
    float sum[2];
#line 91 "flash_attention_64_causal.tw"
    int tc_1 = 0;
#line 92 "flash_attention_64_causal.tw"
    int kc_1 = 0;
#line 93 "flash_attention_64_causal.tw"
    int vc_1 = 0;
#line 94 "flash_attention_64_causal.tw"
    if (wg == 2) {
      tw::arrive_named(4, 256);
    }
    #pragma unroll 1
#line 95 "flash_attention_64_causal.tw"
    for (int tile_1 = bx; tile_1 < rows * pairs; tile_1 = tw::advance<int>(tile_1, blocks)) {
#line 96 "flash_attention_64_causal.tw"
      const int first = (rows - 1 - tw::floor_div(tile_1, pairs)) * 192;
#line 97 "flash_attention_64_causal.tw"
      const int row_1 = first + wg * 64;
#line 98 "flash_attention_64_causal.tw"
      const int head_1 = tw::floor_mod(tile_1, heads);
#line 99 "flash_attention_64_causal.tw"
      const int item_1 = tw::floor_div(tw::floor_mod(tile_1, pairs), heads);
#line 100 "flash_attention_64_causal.tw"
      const int n_1 = max((min(first + 192 + ahead, sk) + 127) >> 7, 1);
#line 101 "flash_attention_64_causal.tw"
      const int open = max((first + ahead + 1) >> 7, 0);
#line 104 "flash_attention_64_causal.tw"
      tw::wait(q_full, tc_1 & 1);
#line 105 "flash_attention_64_causal.tw"
      tc_1 = tc_1 + 1;
#line 106 "flash_attention_64_causal.tw"
      tw::wait(k_full + 8 * (kc_1 & 3), (kc_1 >> 2) & 1);
#line 107 "flash_attention_64_causal.tw"
      tw::sync_named(4 + wg, 256);
#line 108 "flash_attention_64_causal.tw"
      tw::pin<64>(s);
      tw::pin<64>(p);
      tw::pin<32>(o);
      tw::fence_wgmma();
#line 109 "flash_attention_64_causal.tw"
      const uint64_t k_desc = tw::descriptor<1, 64, 1>(tw::address(k + (kc_1 & 3) * 8192));
      const uint64_t q_desc = tw::descriptor<1, 64, 1>(tw::address(q + wg * 4096));
      wgmma_m64n128k16_f32_bf16_bf16_ss_x4(s, q_desc, k_desc, q_desc + 2ull, k_desc + 2ull, q_desc + 4ull, k_desc + 4ull, q_desc + 6ull, k_desc + 6ull, 0);
#line 110 "flash_attention_64_causal.tw"
      tw::commit_wgmma();
#line 111 "flash_attention_64_causal.tw"
      tw::arrive_named(4 + tw::floor_mod(wg + 1, 3), 256);
#line 112 "flash_attention_64_causal.tw"
      tw::wait_wgmma<0>();
      tw::pin<64>(s);
      tw::pin<32>(o);
#line 113 "flash_attention_64_causal.tw"
      if (leader_1) {
        tw::arrive(k_empty + 8 * (kc_1 & 3));
      }
#line 114 "flash_attention_64_causal.tw"
      kc_1 = kc_1 + 1;
#line 115 "flash_attention_64_causal.tw"
      const int i_1_1 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
      const int j_2 = (thread_1 & 3) * 2;
#line 117 "flash_attention_64_causal.tw"
      const int limit = ahead + i_1_1 + row_1 - j_2 - n_1 * 128 + 128;
      #pragma unroll
#line 115 "flash_attention_64_causal.tw"
      for (int v_1 = 0; v_1 < 64; ++v_1) {
#line 117 "flash_attention_64_causal.tw"
        s[v_1] = (v_1 & 1) + (v_1 >> 2) * 8 - ((v_1 >> 1) & 1) * 8 <= limit ? s[v_1] : __uint_as_float(0xff800000u);
      }
#line 119 "flash_attention_64_causal.tw"
      float top_part[2];
      #pragma unroll
      for (int d = 0; d < 2; ++d) {
        top_part[d] = s[d * 2];
      }
      #pragma unroll
      for (int k_2 = 1; k_2 < 32; ++k_2) {
        #pragma unroll
        for (int d_1 = 0; d_1 < 2; ++d_1) {
          top_part[d_1] = tw::max_nan(top_part[d_1], s[d_1 * 2 + (k_2 & 1) + (k_2 >> 1) * 4]);
        }
      }
      #pragma unroll
      for (int d_2 = 0; d_2 < 2; ++d_2) {
        const float own = top_part[d_2];
        const float other = __shfl_xor_sync(~0u, own, 1);
        const float own_1 = tw::max_nan(own, other);
        const float other_1 = __shfl_xor_sync(~0u, own_1, 2);
        top[d_2] = tw::max_nan(own_1, other_1);
      }
      #pragma unroll
#line 120 "flash_attention_64_causal.tw"
      for (int v_3 = 0; v_3 < 2; ++v_3) {
#line 121 "flash_attention_64_causal.tw"
        base[v_3] = top[v_3] > __uint_as_float(0xff800000u) ? top[v_3] * scale : 0.0f;
      }
      #pragma unroll
#line 123 "flash_attention_64_causal.tw"
      for (int v_4 = 0; v_4 < 64; ++v_4) {
#line 125 "flash_attention_64_causal.tw"
        s[v_4] = tw::exp2(s[v_4] * scale - base[(v_4 >> 1) & 1]);
      }
#line 127 "flash_attention_64_causal.tw"
      float sum_part[2];
      #pragma unroll
      for (int d_3 = 0; d_3 < 2; ++d_3) {
        sum_part[d_3] = s[d_3 * 2];
      }
      #pragma unroll
      for (int k_4 = 1; k_4 < 32; ++k_4) {
        #pragma unroll
        for (int d_4 = 0; d_4 < 2; ++d_4) {
          sum_part[d_4] = sum_part[d_4] + s[d_4 * 2 + (k_4 & 1) + (k_4 >> 1) * 4];
        }
      }
      #pragma unroll
      for (int d_5 = 0; d_5 < 2; ++d_5) {
        const float own_2 = sum_part[d_5];
        const float other_2 = __shfl_xor_sync(~0u, own_2, 1);
        const float own_3 = own_2 + other_2;
        const float other_3 = __shfl_xor_sync(~0u, own_3, 2);
        sum[d_5] = own_3 + other_3;
      }
      #pragma unroll
#line 128 "flash_attention_64_causal.tw"
      for (int v_7 = 0; v_7 < 32; ++v_7) {
        *reinterpret_cast<uint32_t*>(p + v_7 * 2) = tw::pack_bfloat16(s[v_7 * 2], s[v_7 * 2 + 1]);
      }
      #pragma unroll 1
#line 130 "flash_attention_64_causal.tw"
      for (int i_4 = 1; i_4 < n_1 - open; ++i_4) {
#line 131 "flash_attention_64_causal.tw"
        tw::wait(k_full + 8 * (kc_1 & 3), (kc_1 >> 2) & 1);
#line 132 "flash_attention_64_causal.tw"
        tw::sync_named(4 + wg, 256);
#line 133 "flash_attention_64_causal.tw"
        tw::pin<64>(s);
        tw::pin<64>(p);
        tw::pin<32>(o);
        tw::fence_wgmma();
#line 134 "flash_attention_64_causal.tw"
        const uint64_t k_desc_1 = tw::descriptor<1, 64, 1>(tw::address(k + (kc_1 & 3) * 8192));
        const uint64_t q_desc_1 = tw::descriptor<1, 64, 1>(tw::address(q + wg * 4096));
        wgmma_m64n128k16_f32_bf16_bf16_ss_x4(s, q_desc_1, k_desc_1, q_desc_1 + 2ull, k_desc_1 + 2ull, q_desc_1 + 4ull, k_desc_1 + 4ull, q_desc_1 + 6ull, k_desc_1 + 6ull, 0);
#line 135 "flash_attention_64_causal.tw"
        tw::commit_wgmma();
#line 136 "flash_attention_64_causal.tw"
        tw::wait(v_full + 8 * (vc_1 & 3), (vc_1 >> 2) & 1);
#line 137 "flash_attention_64_causal.tw"
        const uint64_t v_desc = tw::descriptor<0, 64, 1>(tw::address(v + (vc_1 & 3) * 8192));
        tw::pin<64>(p);
        tw::pin<32>(o);
        tw::fence_wgmma();
        wgmma_m64n64k16_f32_bf16_bf16_rs_01_x8(o, p, v_desc, p + 8, v_desc + 128ull, p + 16, v_desc + 256ull, p + 24, v_desc + 384ull, p + 32, v_desc + 512ull, p + 40, v_desc + 640ull, p + 48, v_desc + 768ull, p + 56, v_desc + 896ull, i_4 == 1 ? 0 : 1);
#line 138 "flash_attention_64_causal.tw"
        tw::commit_wgmma();
#line 139 "flash_attention_64_causal.tw"
        tw::arrive_named(4 + tw::floor_mod(wg + 1, 3), 256);
#line 140 "flash_attention_64_causal.tw"
        tw::wait_wgmma<1>();
        tw::pin<64>(s);
#line 141 "flash_attention_64_causal.tw"
        if (leader_1) {
          tw::arrive(k_empty + 8 * (kc_1 & 3));
        }
#line 142 "flash_attention_64_causal.tw"
        kc_1 = kc_1 + 1;
#line 143 "flash_attention_64_causal.tw"
        const int r_11 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
        const int c_6 = (thread_1 & 3) * 2;
#line 145 "flash_attention_64_causal.tw"
        const int limit_1 = ahead + i_4 * 128 + r_11 + row_1 - c_6 - n_1 * 128 + 128;
        #pragma unroll
#line 143 "flash_attention_64_causal.tw"
        for (int v_8 = 0; v_8 < 64; ++v_8) {
#line 145 "flash_attention_64_causal.tw"
          s[v_8] = (v_8 & 1) + (v_8 >> 2) * 8 - ((v_8 >> 1) & 1) * 8 <= limit_1 ? s[v_8] : __uint_as_float(0xff800000u);
        }
        #pragma unroll
#line 147 "flash_attention_64_causal.tw"
        for (int v_9 = 0; v_9 < 2; ++v_9) {
          old[v_9] = top[v_9];
        }
#line 148 "flash_attention_64_causal.tw"
        float top_part_1[2];
        #pragma unroll
        for (int d_6 = 0; d_6 < 2; ++d_6) {
          top_part_1[d_6] = tw::max_nan(top[d_6], s[d_6 * 2]);
        }
        #pragma unroll
        for (int k_6 = 1; k_6 < 32; ++k_6) {
          #pragma unroll
          for (int d_7 = 0; d_7 < 2; ++d_7) {
            top_part_1[d_7] = tw::max_nan(top_part_1[d_7], s[d_7 * 2 + (k_6 & 1) + (k_6 >> 1) * 4]);
          }
        }
        #pragma unroll
        for (int d_8 = 0; d_8 < 2; ++d_8) {
          const float own_4 = top_part_1[d_8];
          const float other_4 = __shfl_xor_sync(~0u, own_4, 1);
          const float own_5 = tw::max_nan(own_4, other_4);
          const float other_5 = __shfl_xor_sync(~0u, own_5, 2);
          top[d_8] = tw::max_nan(own_5, other_5);
        }
        #pragma unroll
#line 149 "flash_attention_64_causal.tw"
        for (int v_11 = 0; v_11 < 2; ++v_11) {
#line 150 "flash_attention_64_causal.tw"
          base[v_11] = top[v_11] > __uint_as_float(0xff800000u) ? top[v_11] * scale : 0.0f;
#line 151 "flash_attention_64_causal.tw"
          old[v_11] = tw::exp2(old[v_11] * scale - base[v_11]);
#line 152 "flash_attention_64_causal.tw"
          sum[v_11] = sum[v_11] * old[v_11];
        }
        #pragma unroll
#line 154 "flash_attention_64_causal.tw"
        for (int v_12 = 0; v_12 < 64; ++v_12) {
#line 156 "flash_attention_64_causal.tw"
          s[v_12] = tw::exp2(s[v_12] * scale - base[(v_12 >> 1) & 1]);
        }
#line 158 "flash_attention_64_causal.tw"
        float sum_part_1[2];
        #pragma unroll
        for (int d_9 = 0; d_9 < 2; ++d_9) {
          sum_part_1[d_9] = s[d_9 * 2];
        }
        #pragma unroll
        for (int k_8 = 1; k_8 < 32; ++k_8) {
          #pragma unroll
          for (int d_10 = 0; d_10 < 2; ++d_10) {
            sum_part_1[d_10] = sum_part_1[d_10] + s[d_10 * 2 + (k_8 & 1) + (k_8 >> 1) * 4];
          }
        }
        #pragma unroll
        for (int d_11 = 0; d_11 < 2; ++d_11) {
          const float own_6 = sum_part_1[d_11];
          const float other_6 = __shfl_xor_sync(~0u, own_6, 1);
          const float own_7 = own_6 + other_6;
          const float other_7 = __shfl_xor_sync(~0u, own_7, 2);
          sum[d_11] = sum[d_11] + (own_7 + other_7);
        }
#line 159 "flash_attention_64_causal.tw"
        tw::settle<2>(sum);
        tw::wait_wgmma<0>();
        tw::pin<64>(s);
        tw::pin<32>(o);
#line 160 "flash_attention_64_causal.tw"
        if (leader_1) {
          tw::arrive(v_empty + 8 * (vc_1 & 3));
        }
#line 161 "flash_attention_64_causal.tw"
        vc_1 = vc_1 + 1;
        #pragma unroll
#line 162 "flash_attention_64_causal.tw"
        for (int v_15 = 0; v_15 < 32; ++v_15) {
          *reinterpret_cast<uint32_t*>(p + v_15 * 2) = tw::pack_bfloat16(s[v_15 * 2], s[v_15 * 2 + 1]);
        }
        #pragma unroll
#line 163 "flash_attention_64_causal.tw"
        for (int v_16 = 0; v_16 < 32; ++v_16) {
#line 165 "flash_attention_64_causal.tw"
          o[v_16] = o[v_16] * old[(v_16 >> 1) & 1];
        }
      }
      #pragma unroll 1
#line 169 "flash_attention_64_causal.tw"
      for (int i_5 = max(n_1 - open, 1); i_5 < n_1; ++i_5) {
#line 170 "flash_attention_64_causal.tw"
        tw::wait(k_full + 8 * (kc_1 & 3), (kc_1 >> 2) & 1);
#line 171 "flash_attention_64_causal.tw"
        tw::sync_named(4 + wg, 256);
#line 172 "flash_attention_64_causal.tw"
        tw::pin<64>(s);
        tw::pin<64>(p);
        tw::pin<32>(o);
        tw::fence_wgmma();
#line 173 "flash_attention_64_causal.tw"
        const uint64_t k_desc_2 = tw::descriptor<1, 64, 1>(tw::address(k + (kc_1 & 3) * 8192));
        const uint64_t q_desc_2 = tw::descriptor<1, 64, 1>(tw::address(q + wg * 4096));
        wgmma_m64n128k16_f32_bf16_bf16_ss_x4(s, q_desc_2, k_desc_2, q_desc_2 + 2ull, k_desc_2 + 2ull, q_desc_2 + 4ull, k_desc_2 + 4ull, q_desc_2 + 6ull, k_desc_2 + 6ull, 0);
#line 174 "flash_attention_64_causal.tw"
        tw::commit_wgmma();
#line 175 "flash_attention_64_causal.tw"
        tw::wait(v_full + 8 * (vc_1 & 3), (vc_1 >> 2) & 1);
#line 176 "flash_attention_64_causal.tw"
        const uint64_t v_desc_1 = tw::descriptor<0, 64, 1>(tw::address(v + (vc_1 & 3) * 8192));
        tw::pin<64>(p);
        tw::pin<32>(o);
        tw::fence_wgmma();
        wgmma_m64n64k16_f32_bf16_bf16_rs_01_x8(o, p, v_desc_1, p + 8, v_desc_1 + 128ull, p + 16, v_desc_1 + 256ull, p + 24, v_desc_1 + 384ull, p + 32, v_desc_1 + 512ull, p + 40, v_desc_1 + 640ull, p + 48, v_desc_1 + 768ull, p + 56, v_desc_1 + 896ull, i_5 == 1 ? 0 : 1);
#line 177 "flash_attention_64_causal.tw"
        tw::commit_wgmma();
#line 178 "flash_attention_64_causal.tw"
        tw::arrive_named(4 + tw::floor_mod(wg + 1, 3), 256);
#line 179 "flash_attention_64_causal.tw"
        tw::wait_wgmma<1>();
        tw::pin<64>(s);
#line 180 "flash_attention_64_causal.tw"
        if (leader_1) {
          tw::arrive(k_empty + 8 * (kc_1 & 3));
        }
#line 181 "flash_attention_64_causal.tw"
        kc_1 = kc_1 + 1;
        #pragma unroll
#line 182 "flash_attention_64_causal.tw"
        for (int v_17 = 0; v_17 < 2; ++v_17) {
          old[v_17] = top[v_17];
        }
#line 183 "flash_attention_64_causal.tw"
        float top_part_2[2];
        #pragma unroll
        for (int d_12 = 0; d_12 < 2; ++d_12) {
          top_part_2[d_12] = tw::max_nan(top[d_12], s[d_12 * 2]);
        }
        #pragma unroll
        for (int k_10 = 1; k_10 < 32; ++k_10) {
          #pragma unroll
          for (int d_13 = 0; d_13 < 2; ++d_13) {
            top_part_2[d_13] = tw::max_nan(top_part_2[d_13], s[d_13 * 2 + (k_10 & 1) + (k_10 >> 1) * 4]);
          }
        }
        #pragma unroll
        for (int d_14 = 0; d_14 < 2; ++d_14) {
          const float own_8 = top_part_2[d_14];
          const float other_8 = __shfl_xor_sync(~0u, own_8, 1);
          const float own_9 = tw::max_nan(own_8, other_8);
          const float other_9 = __shfl_xor_sync(~0u, own_9, 2);
          top[d_14] = tw::max_nan(own_9, other_9);
        }
        #pragma unroll
#line 184 "flash_attention_64_causal.tw"
        for (int v_19 = 0; v_19 < 2; ++v_19) {
#line 185 "flash_attention_64_causal.tw"
          base[v_19] = top[v_19] * scale;
#line 186 "flash_attention_64_causal.tw"
          old[v_19] = tw::exp2(old[v_19] * scale - base[v_19]);
#line 187 "flash_attention_64_causal.tw"
          sum[v_19] = sum[v_19] * old[v_19];
        }
        #pragma unroll
#line 189 "flash_attention_64_causal.tw"
        for (int v_20 = 0; v_20 < 64; ++v_20) {
#line 191 "flash_attention_64_causal.tw"
          s[v_20] = tw::exp2(s[v_20] * scale - base[(v_20 >> 1) & 1]);
        }
#line 193 "flash_attention_64_causal.tw"
        float sum_part_2[2];
        #pragma unroll
        for (int d_15 = 0; d_15 < 2; ++d_15) {
          sum_part_2[d_15] = s[d_15 * 2];
        }
        #pragma unroll
        for (int k_12 = 1; k_12 < 32; ++k_12) {
          #pragma unroll
          for (int d_16 = 0; d_16 < 2; ++d_16) {
            sum_part_2[d_16] = sum_part_2[d_16] + s[d_16 * 2 + (k_12 & 1) + (k_12 >> 1) * 4];
          }
        }
        #pragma unroll
        for (int d_17 = 0; d_17 < 2; ++d_17) {
          const float own_10 = sum_part_2[d_17];
          const float other_10 = __shfl_xor_sync(~0u, own_10, 1);
          const float own_11 = own_10 + other_10;
          const float other_11 = __shfl_xor_sync(~0u, own_11, 2);
          sum[d_17] = sum[d_17] + (own_11 + other_11);
        }
#line 194 "flash_attention_64_causal.tw"
        tw::settle<2>(sum);
        tw::wait_wgmma<0>();
        tw::pin<64>(s);
        tw::pin<32>(o);
#line 195 "flash_attention_64_causal.tw"
        if (leader_1) {
          tw::arrive(v_empty + 8 * (vc_1 & 3));
        }
#line 196 "flash_attention_64_causal.tw"
        vc_1 = vc_1 + 1;
        #pragma unroll
#line 197 "flash_attention_64_causal.tw"
        for (int v_23 = 0; v_23 < 32; ++v_23) {
          *reinterpret_cast<uint32_t*>(p + v_23 * 2) = tw::pack_bfloat16(s[v_23 * 2], s[v_23 * 2 + 1]);
        }
        #pragma unroll
#line 198 "flash_attention_64_causal.tw"
        for (int v_24 = 0; v_24 < 32; ++v_24) {
#line 200 "flash_attention_64_causal.tw"
          o[v_24] = o[v_24] * old[(v_24 >> 1) & 1];
        }
      }
#line 204 "flash_attention_64_causal.tw"
      if (leader_1) {
        tw::arrive(q_empty);
      }
#line 205 "flash_attention_64_causal.tw"
      tw::wait(v_full + 8 * (vc_1 & 3), (vc_1 >> 2) & 1);
#line 206 "flash_attention_64_causal.tw"
      tw::pin<64>(s);
      tw::pin<64>(p);
      tw::pin<32>(o);
      tw::fence_wgmma();
#line 207 "flash_attention_64_causal.tw"
      const uint64_t v_desc_2 = tw::descriptor<0, 64, 1>(tw::address(v + (vc_1 & 3) * 8192));
      wgmma_m64n64k16_f32_bf16_bf16_rs_01_x8(o, p, v_desc_2, p + 8, v_desc_2 + 128ull, p + 16, v_desc_2 + 256ull, p + 24, v_desc_2 + 384ull, p + 32, v_desc_2 + 512ull, p + 40, v_desc_2 + 640ull, p + 48, v_desc_2 + 768ull, p + 56, v_desc_2 + 896ull, n_1 == 1 ? 0 : 1);
#line 208 "flash_attention_64_causal.tw"
      tw::commit_wgmma();
      #pragma unroll
#line 209 "flash_attention_64_causal.tw"
      for (int v_25 = 0; v_25 < 2; ++v_25) {
#line 210 "flash_attention_64_causal.tw"
        sum[v_25] = sum[v_25] > 0.0f ? 1.0f / sum[v_25] : 0.0f;
      }
#line 212 "flash_attention_64_causal.tw"
      tw::settle<2>(sum);
      tw::wait_wgmma<0>();
      tw::pin<64>(s);
      tw::pin<32>(o);
#line 213 "flash_attention_64_causal.tw"
      if (leader_1) {
        tw::arrive(v_empty + 8 * (vc_1 & 3));
      }
#line 214 "flash_attention_64_causal.tw"
      vc_1 = vc_1 + 1;
      #pragma unroll
#line 215 "flash_attention_64_causal.tw"
      for (int v_26 = 0; v_26 < 32; ++v_26) {
#line 217 "flash_attention_64_causal.tw"
        o[v_26] = o[v_26] * sum[(v_26 >> 1) & 1];
      }
#line 219 "flash_attention_64_causal.tw"
      if (leader_1) {
        tw::wait_bulk_read<0>();
      }
#line 220 "flash_attention_64_causal.tw"
      tw::sync_named(wg + 1, 128);
#line 221 "flash_attention_64_causal.tw"
      const int at = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
      #pragma unroll
      for (int v_27 = 0; v_27 < 4; ++v_27) {
        stmatrix_x4(tw::address(out + wg * 4096 + (at ^ (v_27 * 16))), tw::pack_bfloat16(o[v_27 * 8], o[v_27 * 8 + 1]), tw::pack_bfloat16(o[v_27 * 8 + 2], o[v_27 * 8 + 3]), tw::pack_bfloat16(o[v_27 * 8 + 4], o[v_27 * 8 + 5]), tw::pack_bfloat16(o[v_27 * 8 + 6], o[v_27 * 8 + 7]));
      }
#line 222 "flash_attention_64_causal.tw"
      tw::fence_proxy_async();
#line 223 "flash_attention_64_causal.tw"
      tw::sync_named(wg + 1, 128);
#line 224 "flash_attention_64_causal.tw"
      if (leader_1) {
        bulk_store_4d(&O_map, tw::address(out + wg * 4096), 0, row_1, head_1, item_1);
#line 225 "flash_attention_64_causal.tw"
        tw::commit_bulk();
      }
    }
#line 227 "flash_attention_64_causal.tw"
    if (leader_1) {
      tw::wait_bulk<0>();
    }
  }
}
