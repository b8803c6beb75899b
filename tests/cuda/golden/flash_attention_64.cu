// flash_attention_64
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
flash_attention_64_main(
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
#line 18 "flash_attention_64.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&K_map);
    tw::prefetch(&Q_map);
    tw::prefetch(&V_map);
    tw::prefetch(&O_map);
  }
#line 19 "flash_attention_64.tw"
  tw::bfloat16* const q = reinterpret_cast<tw::bfloat16*>(shared + 0);
#line 20 "flash_attention_64.tw"
  tw::bfloat16* const k = reinterpret_cast<tw::bfloat16*>(shared + 24576);
#line 21 "flash_attention_64.tw"
  tw::bfloat16* const v = reinterpret_cast<tw::bfloat16*>(shared + 90112);
#line 22 "flash_attention_64.tw"
  tw::bfloat16* const out = reinterpret_cast<tw::bfloat16*>(shared + 155648);
#line 23 "flash_attention_64.tw"
  const uint32_t q_full = tw::address(shared) + 180224;
#line 24 "flash_attention_64.tw"
  const uint32_t q_empty = tw::address(shared) + 180232;
#line 25 "flash_attention_64.tw"
  const uint32_t k_full = tw::address(shared) + 180240;
#line 26 "flash_attention_64.tw"
  const uint32_t k_empty = tw::address(shared) + 180272;
#line 27 "flash_attention_64.tw"
  const uint32_t v_full = tw::address(shared) + 180304;
#line 28 "flash_attention_64.tw"
  const uint32_t v_empty = tw::address(shared) + 180336;
#line 29 "flash_attention_64.tw"
  if (tx == 0) {
    tw::barrier_init(q_full, 1);
  }
#line 30 "flash_attention_64.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(k_full + 8 * i, 1);
  }
#line 31 "flash_attention_64.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(v_full + 8 * i, 1);
  }
#line 32 "flash_attention_64.tw"
  if (tx == 0) {
    tw::barrier_init(q_empty, 3);
  }
#line 33 "flash_attention_64.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(k_empty + 8 * i, 3);
  }
#line 34 "flash_attention_64.tw"
  if (tx == 0) {
    for (int i = 0; i < 4; ++i) tw::barrier_init(v_empty + 8 * i, 3);
  }
#line 35 "flash_attention_64.tw"
  tw::fence_barrier_init();
#line 36 "flash_attention_64.tw"
  __syncthreads();
#line 38 "flash_attention_64.tw"
  const int rows = tw::floor_div(sq + 191, 192);
#line 39 "flash_attention_64.tw"
  const int tiles = rows * heads * batch;
#line 40 "flash_attention_64.tw"
  const int n = (sk + 127) >> 7;
#line 42 "flash_attention_64.tw"
  if (warp < 4) {  // role producer
    tw::give_registers<32>();
    const bool leader = warp == 0 && tw::elect();
    if (leader) {
#line 43 "flash_attention_64.tw"
      int tc = 0;
#line 44 "flash_attention_64.tw"
      int kc = 0;
#line 45 "flash_attention_64.tw"
      int vc = 0;
      #pragma unroll 1
#line 46 "flash_attention_64.tw"
      for (int tile = bx; tile < tiles; tile = tw::advance<int>(tile, blocks)) {
#line 47 "flash_attention_64.tw"
        const int row = tw::floor_mod(tile, rows) * 192;
#line 48 "flash_attention_64.tw"
        const int head = tw::floor_mod(tw::floor_div(tile, rows), heads);
#line 49 "flash_attention_64.tw"
        const int item = tw::floor_div(tw::floor_div(tile, rows), heads);
#line 50 "flash_attention_64.tw"
        tw::wait(k_empty + 8 * (kc & 3), ((kc >> 2) + 1) & 1);
#line 51 "flash_attention_64.tw"
        tw::arrive_expect(k_full + 8 * (kc & 3), 16384);
#line 52 "flash_attention_64.tw"
        bulk_load_4d(tw::address(k + (kc & 3) * 8192), &K_map, k_full + 8 * (kc & 3), 0, n * 128 - 128, head, item);
#line 54 "flash_attention_64.tw"
        kc = kc + 1;
#line 55 "flash_attention_64.tw"
        tw::wait(q_empty, (tc + 1) & 1);
#line 56 "flash_attention_64.tw"
        tw::arrive_expect(q_full, 24576);
#line 57 "flash_attention_64.tw"
        bulk_load_4d(tw::address(q), &Q_map, q_full, 0, row, head, item);
#line 58 "flash_attention_64.tw"
        tc = tc + 1;
        #pragma unroll 1
#line 60 "flash_attention_64.tw"
        for (int i = 1; i < n; ++i) {
#line 61 "flash_attention_64.tw"
          tw::wait(k_empty + 8 * (kc & 3), ((kc >> 2) + 1) & 1);
#line 62 "flash_attention_64.tw"
          tw::arrive_expect(k_full + 8 * (kc & 3), 16384);
#line 63 "flash_attention_64.tw"
          bulk_load_4d(tw::address(k + (kc & 3) * 8192), &K_map, k_full + 8 * (kc & 3), 0, n * 128 - i * 128 - 128, head, item);
#line 65 "flash_attention_64.tw"
          kc = kc + 1;
#line 66 "flash_attention_64.tw"
          tw::wait(v_empty + 8 * (vc & 3), ((vc >> 2) + 1) & 1);
#line 67 "flash_attention_64.tw"
          tw::arrive_expect(v_full + 8 * (vc & 3), 16384);
#line 68 "flash_attention_64.tw"
          bulk_load_4d(tw::address(v + (vc & 3) * 8192), &V_map, v_full + 8 * (vc & 3), 0, n * 128 - i * 128, head, item);
#line 70 "flash_attention_64.tw"
          vc = vc + 1;
        }
#line 72 "flash_attention_64.tw"
        tw::wait(v_empty + 8 * (vc & 3), ((vc >> 2) + 1) & 1);
#line 73 "flash_attention_64.tw"
        tw::arrive_expect(v_full + 8 * (vc & 3), 16384);
#line 74 "flash_attention_64.tw"
        bulk_load_4d(tw::address(v + (vc & 3) * 8192), &V_map, v_full + 8 * (vc & 3), 0, 0, head, item);
#line 75 "flash_attention_64.tw"
        vc = vc + 1;
      }
    }
#line 79 "flash_attention_64.tw"
  } else if (warp >= 4 && warp < 16) {  // role consumer
    tw::take_registers<160>();
    const int wg = (warp - 4) / 4;
    const int thread_1 = tx & 127;
    const bool leader_1 = warp == 4 + wg * 4 && tw::elect();
#line 80 "flash_attention_64.tw"
    float s[64];
#line 82 "flash_attention_64.tw"
    alignas(16) tw::bfloat16 p[64];
#line 84 "flash_attention_64.tw"
    float o[32];
#line 86 "flash_attention_64.tw"
    float top[2];
#line 87 "flash_attention_64.tw"
    float old[2];
#line 88 "flash_attention_64.tw"
    float sum[2];
#line 89 "flash_attention_64.tw"
    int tc_1 = 0;
#line 90 "flash_attention_64.tw"
    int kc_1 = 0;
#line 91 "flash_attention_64.tw"
    int vc_1 = 0;
#line 92 "flash_attention_64.tw"
    if (wg == 2) {
      tw::arrive_named(4, 256);
    }
    #pragma unroll 1
#line 93 "flash_attention_64.tw"
    for (int tile_1 = bx; tile_1 < tiles; tile_1 = tw::advance<int>(tile_1, blocks)) {
#line 94 "flash_attention_64.tw"
      const int row_1 = tw::floor_mod(tile_1, rows) * 192 + wg * 64;
#line 95 "flash_attention_64.tw"
      const int head_1 = tw::floor_mod(tw::floor_div(tile_1, rows), heads);
#line 96 "flash_attention_64.tw"
      const int item_1 = tw::floor_div(tw::floor_div(tile_1, rows), heads);
#line 99 "flash_attention_64.tw"
      tw::wait(q_full, tc_1 & 1);
#line 100 "flash_attention_64.tw"
      tc_1 = tc_1 + 1;
#line 101 "flash_attention_64.tw"
      tw::wait(k_full + 8 * (kc_1 & 3), (kc_1 >> 2) & 1);
#line 102 "flash_attention_64.tw"
      tw::sync_named(4 + wg, 256);
#line 103 "flash_attention_64.tw"
      tw::pin<64>(s);
      tw::pin<64>(p);
      tw::pin<32>(o);
      tw::fence_wgmma();
#line 104 "flash_attention_64.tw"
      const uint64_t k_desc = tw::descriptor<1, 64, 1>(tw::address(k + (kc_1 & 3) * 8192));
      const uint64_t q_desc = tw::descriptor<1, 64, 1>(tw::address(q + wg * 4096));
      wgmma_m64n128k16_f32_bf16_bf16_ss_x4(s, q_desc, k_desc, q_desc + 2ull, k_desc + 2ull, q_desc + 4ull, k_desc + 4ull, q_desc + 6ull, k_desc + 6ull, 0);
#line 105 "flash_attention_64.tw"
      tw::commit_wgmma();
#line 106 "flash_attention_64.tw"
      tw::arrive_named(4 + tw::floor_mod(wg + 1, 3), 256);
#line 107 "flash_attention_64.tw"
      tw::wait_wgmma<0>();
      tw::pin<64>(s);
      tw::pin<32>(o);
#line 108 "flash_attention_64.tw"
      if (leader_1) {
        tw::arrive(k_empty + 8 * (kc_1 & 3));
      }
#line 109 "flash_attention_64.tw"
      kc_1 = kc_1 + 1;
#line 110 "flash_attention_64.tw"
      const int j_2 = (thread_1 & 3) * 2;
#line 112 "flash_attention_64.tw"
      const int limit = sk - j_2 - n * 128 + 128;
      #pragma unroll
#line 110 "flash_attention_64.tw"
      for (int v_1 = 0; v_1 < 64; ++v_1) {
#line 112 "flash_attention_64.tw"
        s[v_1] = (v_1 & 1) + (v_1 >> 2) * 8 < limit ? s[v_1] : __uint_as_float(0xff800000u);
      }
#line 114 "flash_attention_64.tw"
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
#line 115 "flash_attention_64.tw"
      for (int v_3 = 0; v_3 < 64; ++v_3) {
#line 117 "flash_attention_64.tw"
        s[v_3] = tw::exp2(s[v_3] * scale - top[(v_3 >> 1) & 1] * scale);
      }
#line 119 "flash_attention_64.tw"
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
#line 120 "flash_attention_64.tw"
      for (int v_6 = 0; v_6 < 32; ++v_6) {
        *reinterpret_cast<uint32_t*>(p + v_6 * 2) = tw::pack_bfloat16(s[v_6 * 2], s[v_6 * 2 + 1]);
      }
      #pragma unroll 1
#line 122 "flash_attention_64.tw"
      for (int i_3 = 1; i_3 < n; ++i_3) {
#line 123 "flash_attention_64.tw"
        tw::wait(k_full + 8 * (kc_1 & 3), (kc_1 >> 2) & 1);
#line 124 "flash_attention_64.tw"
        tw::sync_named(4 + wg, 256);
#line 125 "flash_attention_64.tw"
        tw::pin<64>(s);
        tw::pin<64>(p);
        tw::pin<32>(o);
        tw::fence_wgmma();
#line 126 "flash_attention_64.tw"
        const uint64_t k_desc_1 = tw::descriptor<1, 64, 1>(tw::address(k + (kc_1 & 3) * 8192));
        const uint64_t q_desc_1 = tw::descriptor<1, 64, 1>(tw::address(q + wg * 4096));
        wgmma_m64n128k16_f32_bf16_bf16_ss_x4(s, q_desc_1, k_desc_1, q_desc_1 + 2ull, k_desc_1 + 2ull, q_desc_1 + 4ull, k_desc_1 + 4ull, q_desc_1 + 6ull, k_desc_1 + 6ull, 0);
#line 127 "flash_attention_64.tw"
        tw::commit_wgmma();
#line 128 "flash_attention_64.tw"
        tw::wait(v_full + 8 * (vc_1 & 3), (vc_1 >> 2) & 1);
#line 129 "flash_attention_64.tw"
        const uint64_t v_desc = tw::descriptor<0, 64, 1>(tw::address(v + (vc_1 & 3) * 8192));
        tw::pin<64>(p);
        tw::pin<32>(o);
        tw::fence_wgmma();
        wgmma_m64n64k16_f32_bf16_bf16_rs_01_x8(o, p, v_desc, p + 8, v_desc + 128ull, p + 16, v_desc + 256ull, p + 24, v_desc + 384ull, p + 32, v_desc + 512ull, p + 40, v_desc + 640ull, p + 48, v_desc + 768ull, p + 56, v_desc + 896ull, i_3 == 1 ? 0 : 1);
#line 130 "flash_attention_64.tw"
        tw::commit_wgmma();
#line 131 "flash_attention_64.tw"
        tw::arrive_named(4 + tw::floor_mod(wg + 1, 3), 256);
#line 132 "flash_attention_64.tw"
        tw::wait_wgmma<1>();
        tw::pin<64>(s);
#line 133 "flash_attention_64.tw"
        if (leader_1) {
          tw::arrive(k_empty + 8 * (kc_1 & 3));
        }
#line 134 "flash_attention_64.tw"
        kc_1 = kc_1 + 1;
        #pragma unroll
#line 135 "flash_attention_64.tw"
        for (int v_7 = 0; v_7 < 2; ++v_7) {
          old[v_7] = top[v_7];
        }
#line 136 "flash_attention_64.tw"
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
#line 137 "flash_attention_64.tw"
        for (int v_9 = 0; v_9 < 2; ++v_9) {
#line 138 "flash_attention_64.tw"
          old[v_9] = tw::exp2((old[v_9] - top[v_9]) * scale);
#line 139 "flash_attention_64.tw"
          sum[v_9] = sum[v_9] * old[v_9];
        }
        #pragma unroll
#line 141 "flash_attention_64.tw"
        for (int v_10 = 0; v_10 < 64; ++v_10) {
#line 143 "flash_attention_64.tw"
          s[v_10] = tw::exp2(s[v_10] * scale - top[(v_10 >> 1) & 1] * scale);
        }
#line 145 "flash_attention_64.tw"
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
#line 146 "flash_attention_64.tw"
        tw::settle<2>(sum);
        tw::wait_wgmma<0>();
        tw::pin<64>(s);
        tw::pin<32>(o);
#line 147 "flash_attention_64.tw"
        if (leader_1) {
          tw::arrive(v_empty + 8 * (vc_1 & 3));
        }
#line 148 "flash_attention_64.tw"
        vc_1 = vc_1 + 1;
        #pragma unroll
#line 149 "flash_attention_64.tw"
        for (int v_13 = 0; v_13 < 32; ++v_13) {
          *reinterpret_cast<uint32_t*>(p + v_13 * 2) = tw::pack_bfloat16(s[v_13 * 2], s[v_13 * 2 + 1]);
        }
        #pragma unroll
#line 150 "flash_attention_64.tw"
        for (int v_14 = 0; v_14 < 32; ++v_14) {
#line 152 "flash_attention_64.tw"
          o[v_14] = o[v_14] * old[(v_14 >> 1) & 1];
        }
      }
#line 155 "flash_attention_64.tw"
      if (leader_1) {
        tw::arrive(q_empty);
      }
#line 157 "flash_attention_64.tw"
      tw::wait(v_full + 8 * (vc_1 & 3), (vc_1 >> 2) & 1);
#line 158 "flash_attention_64.tw"
      tw::pin<64>(s);
      tw::pin<64>(p);
      tw::pin<32>(o);
      tw::fence_wgmma();
#line 159 "flash_attention_64.tw"
      const uint64_t v_desc_1 = tw::descriptor<0, 64, 1>(tw::address(v + (vc_1 & 3) * 8192));
      wgmma_m64n64k16_f32_bf16_bf16_rs_01_x8(o, p, v_desc_1, p + 8, v_desc_1 + 128ull, p + 16, v_desc_1 + 256ull, p + 24, v_desc_1 + 384ull, p + 32, v_desc_1 + 512ull, p + 40, v_desc_1 + 640ull, p + 48, v_desc_1 + 768ull, p + 56, v_desc_1 + 896ull, n == 1 ? 0 : 1);
#line 160 "flash_attention_64.tw"
      tw::commit_wgmma();
      #pragma unroll
#line 161 "flash_attention_64.tw"
      for (int v_15 = 0; v_15 < 2; ++v_15) {
        sum[v_15] = 1.0f / sum[v_15];
      }
#line 162 "flash_attention_64.tw"
      tw::settle<2>(sum);
      tw::wait_wgmma<0>();
      tw::pin<64>(s);
      tw::pin<32>(o);
#line 163 "flash_attention_64.tw"
      if (leader_1) {
        tw::arrive(v_empty + 8 * (vc_1 & 3));
      }
#line 164 "flash_attention_64.tw"
      vc_1 = vc_1 + 1;
      #pragma unroll
#line 165 "flash_attention_64.tw"
      for (int v_16 = 0; v_16 < 32; ++v_16) {
#line 167 "flash_attention_64.tw"
        o[v_16] = o[v_16] * sum[(v_16 >> 1) & 1];
      }
#line 169 "flash_attention_64.tw"
      if (leader_1) {
        tw::wait_bulk_read<0>();
      }
#line 170 "flash_attention_64.tw"
      tw::sync_named(wg + 1, 128);
#line 171 "flash_attention_64.tw"
      const int at = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
      #pragma unroll
      for (int v_17 = 0; v_17 < 4; ++v_17) {
        stmatrix_x4(tw::address(out + wg * 4096 + (at ^ (v_17 * 16))), tw::pack_bfloat16(o[v_17 * 8], o[v_17 * 8 + 1]), tw::pack_bfloat16(o[v_17 * 8 + 2], o[v_17 * 8 + 3]), tw::pack_bfloat16(o[v_17 * 8 + 4], o[v_17 * 8 + 5]), tw::pack_bfloat16(o[v_17 * 8 + 6], o[v_17 * 8 + 7]));
      }
#line 172 "flash_attention_64.tw"
      tw::fence_proxy_async();
#line 173 "flash_attention_64.tw"
      tw::sync_named(wg + 1, 128);
#line 174 "flash_attention_64.tw"
      if (leader_1) {
        bulk_store_4d(&O_map, tw::address(out + wg * 4096), 0, row_1, head_1, item_1);
#line 175 "flash_attention_64.tw"
        tw::commit_bulk();
      }
    }
#line 177 "flash_attention_64.tw"
    if (leader_1) {
      tw::wait_bulk<0>();
    }
  }
}
