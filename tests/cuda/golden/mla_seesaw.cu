// mla_seesaw
#include "tilewright.cuh"

TW_DEVICE void bulk_load_4d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5, %6}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

TW_DEVICE void bulk_load_3d(uint32_t to, const tw::TensorMap* map, uint32_t barrier, int c0, int c1, int c2) {
  asm volatile("cp.async.bulk.tensor.3d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %4, %5}], [%2];" ::
               "r"(to), "l"(map), "r"(barrier), "r"(c0), "r"(c1), "r"(c2) : "memory");
}

TW_DEVICE void ldmatrix_x4(void* registers, uint32_t from) {
  uint32_t* to = static_cast<uint32_t*>(registers);
  asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
               : "=r"(to[0]), "=r"(to[1]), "=r"(to[2]), "=r"(to[3])
               : "r"(from)
               : "memory");
}

TW_DEVICE void wgmma_m64n64k16_f32_bf16_bf16_ss_x4(float* d, uint64_t a0, uint64_t b0, uint64_t a1, uint64_t b1, uint64_t a2, uint64_t b2, uint64_t a3, uint64_t b3, int accumulate) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %40, 0;\n"
      " .reg .pred q;\n setp.eq.b32 q, 0, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, p, "
      "1, 1, 0, 0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %34, %35, q, "
      "1, 1, 0, 0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %36, %37, q, "
      "1, 1, 0, 0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %38, %39, q, "
      "1, 1, 0, 0;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "l"(a0), "l"(b0), "l"(a1), "l"(b1), "l"(a2), "l"(b2), "l"(a3), "l"(b3), "r"(accumulate));
}

TW_DEVICE void wgmma_m64n64k16_f32_bf16_bf16_rs_x4(float* d, const void* from0, uint64_t b0, const void* from1, uint64_t b1, const void* from2, uint64_t b2, const void* from3, uint64_t b3, int accumulate) {
  const uint32_t* a0 = static_cast<const uint32_t*>(from0);
  const uint32_t* a1 = static_cast<const uint32_t*>(from1);
  const uint32_t* a2 = static_cast<const uint32_t*>(from2);
  const uint32_t* a3 = static_cast<const uint32_t*>(from3);
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %52, 0;\n"
      " .reg .pred q;\n setp.eq.b32 q, 0, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%32, %33, "
      "%34, %35}, %36, p, 1, 1, 0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%37, %38, "
      "%39, %40}, %41, q, 1, 1, 0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%42, %43, "
      "%44, %45}, %46, q, 1, 1, 0;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, {%47, %48, "
      "%49, %50}, %51, q, 1, 1, 0;"
      "\n}"
      : "+f"(d[0]), "+f"(d[1]), "+f"(d[2]), "+f"(d[3]), "+f"(d[4]), "+f"(d[5]), "+f"(d[6]), "+f"(d[7]),
        "+f"(d[8]), "+f"(d[9]), "+f"(d[10]), "+f"(d[11]), "+f"(d[12]), "+f"(d[13]), "+f"(d[14]), "+f"(d[15]),
        "+f"(d[16]), "+f"(d[17]), "+f"(d[18]), "+f"(d[19]), "+f"(d[20]), "+f"(d[21]), "+f"(d[22]), "+f"(d[23]),
        "+f"(d[24]), "+f"(d[25]), "+f"(d[26]), "+f"(d[27]), "+f"(d[28]), "+f"(d[29]), "+f"(d[30]), "+f"(d[31])
      : "r"(a0[0]), "r"(a0[1]), "r"(a0[2]), "r"(a0[3]), "l"(b0), "r"(a1[0]), "r"(a1[1]), "r"(a1[2]), "r"(a1[3]), "l"(b1), "r"(a2[0]), "r"(a2[1]), "r"(a2[2]), "r"(a2[3]), "l"(b2), "r"(a3[0]), "r"(a3[1]), "r"(a3[2]), "r"(a3[3]), "l"(b3), "r"(accumulate));
}

TW_DEVICE void wgmma_m64n256k16_f32_bf16_bf16_rs_01_x4(float* d, const void* from0, uint64_t b0, const void* from1, uint64_t b1, const void* from2, uint64_t b2, const void* from3, uint64_t b3, int accumulate) {
  const uint32_t* a0 = static_cast<const uint32_t*>(from0);
  const uint32_t* a1 = static_cast<const uint32_t*>(from1);
  const uint32_t* a2 = static_cast<const uint32_t*>(from2);
  const uint32_t* a3 = static_cast<const uint32_t*>(from3);
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %148, 0;\n"
      " .reg .pred q;\n setp.eq.b32 q, 0, 0;\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, {%128, "
      "%129, %130, %131}, %132, p, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, {%133, "
      "%134, %135, %136}, %137, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, {%138, "
      "%139, %140, %141}, %142, q, 1, 1, 1;"
      "\n"
      " wgmma.mma_async.sync.aligned.m64n256k16.f32.bf16.bf16 "
      "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, %16, %17, "
      "%18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, %32, %33, %34, "
      "%35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, %48, %49, %50, %51, "
      "%52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, %64, %65, %66, %67, %68, "
      "%69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, %80, %81, %82, %83, %84, %85, "
      "%86, %87, %88, %89, %90, %91, %92, %93, %94, %95, %96, %97, %98, %99, %100, %101, "
      "%102, %103, %104, %105, %106, %107, %108, %109, %110, %111, %112, %113, %114, %115, "
      "%116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, {%143, "
      "%144, %145, %146}, %147, q, 1, 1, 1;"
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
      : "r"(a0[0]), "r"(a0[1]), "r"(a0[2]), "r"(a0[3]), "l"(b0), "r"(a1[0]), "r"(a1[1]), "r"(a1[2]), "r"(a1[3]), "l"(b1), "r"(a2[0]), "r"(a2[1]), "r"(a2[2]), "r"(a2[3]), "l"(b2), "r"(a3[0]), "r"(a3[1]), "r"(a3[2]), "r"(a3[3]), "l"(b3), "r"(accumulate));
}

TW_DEVICE void stmatrix_x4(uint32_t to, uint32_t w0, uint32_t w1, uint32_t w2, uint32_t w3) {
  asm volatile("stmatrix.sync.aligned.m8n8.x4.shared.b16 [%0], {%1, %2, %3, %4};" ::
               "r"(to), "r"(w0), "r"(w1), "r"(w2), "r"(w3) : "memory");
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

TW_DEVICE void bulk_store_4d(const tw::TensorMap* map, uint32_t from, int c0, int c1, int c2, int c3) {
  asm volatile("cp.async.bulk.tensor.4d.global.shared::cta.tile.bulk_group [%0, {%2, %3, %4, %5}], [%1];" ::
               "l"(map), "r"(from), "r"(c0), "r"(c1), "r"(c2), "r"(c3) : "memory");
}

extern "C" __global__ void __launch_bounds__(256, 1)
mla_seesaw_main(
    const __grid_constant__ tw::TensorMap Q_map,
    const __grid_constant__ tw::TensorMap K_map,
    const __grid_constant__ tw::TensorMap O_map,
    float* __restrict__ LSE,
    const float scale,
    const int batch,
    const int groups,
    const int seq) {
  extern __shared__ __align__(1024) uint8_t shared[];
  const int tx = threadIdx.x;
  const int h = blockIdx.x;
  const int b = blockIdx.y;
#line 31 "mla_seesaw.tw"
  const int warp = tw::warp_index(tx);
  if (tx == 0) {
    tw::prefetch(&Q_map);
    tw::prefetch(&K_map);
    tw::prefetch(&O_map);
  }
#line 32 "mla_seesaw.tw"
  tw::bfloat16* const q = reinterpret_cast<tw::bfloat16*>(shared + 0);
#line 33 "mla_seesaw.tw"
  tw::bfloat16* const k = reinterpret_cast<tw::bfloat16*>(shared + 65536);
#line 34 "mla_seesaw.tw"
  tw::bfloat16* const ps = reinterpret_cast<tw::bfloat16*>(shared + 212992);
#line 35 "mla_seesaw.tw"
  float* const top = reinterpret_cast<float*>(shared + 229376);
#line 36 "mla_seesaw.tw"
  float* const factor = reinterpret_cast<float*>(shared + 229888);
#line 37 "mla_seesaw.tw"
  float* const sums = reinterpret_cast<float*>(shared + 230400);
#line 38 "mla_seesaw.tw"
  const uint32_t q_full = tw::address(shared) + 230912;
#line 39 "mla_seesaw.tw"
  const uint32_t full = tw::address(shared) + 230920;
#line 40 "mla_seesaw.tw"
  if (tx == 0) {
    tw::barrier_init(q_full, 1);
  }
#line 41 "mla_seesaw.tw"
  if (tx == 0) {
    for (int i = 0; i < 18; ++i) tw::barrier_init(full + 8 * i, 1);
  }
#line 42 "mla_seesaw.tw"
  tw::fence_barrier_init();
#line 43 "mla_seesaw.tw"
  __syncthreads();
#line 45 "mla_seesaw.tw"
  const int n = (seq + 63) >> 6;
#line 47 "mla_seesaw.tw"
  if (warp < 4) {  // role wg0
    const int thread = tx & 127;
    const bool leader = warp == 0 && tw::elect();
#line 48 "mla_seesaw.tw"
    float o[128];
#line 50 "mla_seesaw.tw"
    float s[32];
#line 52 "mla_seesaw.tw"
    alignas(16) tw::bfloat16 p[32];
#line 54 "mla_seesaw.tw"
    alignas(16) tw::bfloat16 q_rope[32];
#line 56 "mla_seesaw.tw"
    float m[2];
#line 57 "mla_seesaw.tw"
    float f[2];
#line 58 "mla_seesaw.tw"
    float l[2];
#line 59 "mla_seesaw.tw"
    float r[2];
#line 61 "mla_seesaw.tw"
    if (leader) {
      tw::arrive_expect(q_full, 73728);
#line 62 "mla_seesaw.tw"
      bulk_load_4d(tw::address(q), &Q_map, q_full, 0, 0, h, b);
      bulk_load_4d(tw::address(q + 4096), &Q_map, q_full, 64, 0, h, b);
      bulk_load_4d(tw::address(q + 8192), &Q_map, q_full, 128, 0, h, b);
      bulk_load_4d(tw::address(q + 12288), &Q_map, q_full, 192, 0, h, b);
      bulk_load_4d(tw::address(q + 16384), &Q_map, q_full, 256, 0, h, b);
      bulk_load_4d(tw::address(q + 20480), &Q_map, q_full, 320, 0, h, b);
      bulk_load_4d(tw::address(q + 24576), &Q_map, q_full, 384, 0, h, b);
      bulk_load_4d(tw::address(q + 28672), &Q_map, q_full, 448, 0, h, b);
#line 63 "mla_seesaw.tw"
      bulk_load_4d(tw::address(ps + 4096), &Q_map, q_full, 512, 0, h, b);
    }
    #pragma unroll 1
#line 64 "mla_seesaw.tw"
    for (int j = 0; j < min(n, 2); ++j) {
      #pragma unroll
#line 65 "mla_seesaw.tw"
      for (int c = 0; c < 4; ++c) {
#line 66 "mla_seesaw.tw"
        if (leader) {
          tw::arrive_expect(full + 8 * (int(j) * (9) + c), 8192);
#line 67 "mla_seesaw.tw"
          bulk_load_3d(tw::address(k + c * 4096 + j * 36864), &K_map, full + 8 * (int(j) * (9) + c), c * 64, j * 64, b);
        }
      }
    }
    #pragma unroll
#line 71 "mla_seesaw.tw"
    for (int v = 0; v < 128; ++v) {
      o[v] = 0.0f;
    }
    #pragma unroll
#line 72 "mla_seesaw.tw"
    for (int v_1 = 0; v_1 < 2; ++v_1) {
      m[v_1] = __uint_as_float(0xff800000u);
    }
    #pragma unroll
#line 73 "mla_seesaw.tw"
    for (int v_2 = 0; v_2 < 2; ++v_2) {
      l[v_2] = 0.0f;
    }
#line 74 "mla_seesaw.tw"
    tw::wait(q_full, 0);
#line 75 "mla_seesaw.tw"
    const int at = (((thread & 15) * 8 + ((thread >> 4) & 1) + (thread >> 5) * 128) & 56) ^ ((thread & 15) * 64 + ((thread >> 4) & 1) * 8 + (thread >> 5) * 1024);
    #pragma unroll
    for (int v_3 = 0; v_3 < 4; ++v_3) {
      ldmatrix_x4(q_rope + v_3 * 8, tw::address(ps + (at ^ (v_3 * 16)) + 4096));
    }
#line 76 "mla_seesaw.tw"
    if (n > 0) {
#line 77 "mla_seesaw.tw"
      tw::pin<32>(s);
      tw::pin<32>(q_rope);
      tw::pin<32>(p);
      tw::pin<128>(o);
      tw::fence_wgmma();
      #pragma unroll
#line 78 "mla_seesaw.tw"
      for (int c_1 = 0; c_1 < 8; ++c_1) {
#line 79 "mla_seesaw.tw"
        tw::wait(full + 8 * (c_1), 0);
#line 80 "mla_seesaw.tw"
        const uint64_t k_desc = tw::descriptor<1, 64, 1>(tw::address(k + c_1 * 4096));
        const uint64_t q_desc = tw::descriptor<1, 64, 1>(tw::address(q + c_1 * 4096));
        tw::pin<32>(s);
        tw::fence_wgmma();
        wgmma_m64n64k16_f32_bf16_bf16_ss_x4(s, q_desc, k_desc, q_desc + 2ull, k_desc + 2ull, q_desc + 4ull, k_desc + 4ull, q_desc + 6ull, k_desc + 6ull, c_1 == 0 ? 0 : 1);
      }
#line 82 "mla_seesaw.tw"
      tw::wait(full + 8 * (8), 0);
#line 83 "mla_seesaw.tw"
      const uint64_t k_desc_1 = tw::descriptor<1, 64, 1>(tw::address(k + 32768));
      tw::pin<32>(q_rope);
      tw::fence_wgmma();
      wgmma_m64n64k16_f32_bf16_bf16_rs_x4(s, q_rope, k_desc_1, q_rope + 8, k_desc_1 + 2ull, q_rope + 16, k_desc_1 + 4ull, q_rope + 24, k_desc_1 + 6ull, 1);
#line 84 "mla_seesaw.tw"
      tw::commit_wgmma();
#line 85 "mla_seesaw.tw"
      tw::wait_wgmma<0>();
      tw::pin<32>(s);
      tw::pin<128>(o);
    }
    #pragma unroll 1
#line 88 "mla_seesaw.tw"
    for (int i = 0; i < (n + 1) >> 1; ++i) {
#line 89 "mla_seesaw.tw"
      if ((2 * i + 1) * 64 > seq) {
#line 90 "mla_seesaw.tw"
        const int y_11 = (thread & 3) * 2;
#line 92 "mla_seesaw.tw"
        const int limit = seq - i * 128 - y_11;
        #pragma unroll
#line 90 "mla_seesaw.tw"
        for (int v_4 = 0; v_4 < 32; ++v_4) {
#line 92 "mla_seesaw.tw"
          s[v_4] = (v_4 & 1) + (v_4 >> 2) * 8 < limit ? s[v_4] : __uint_as_float(0xff800000u);
        }
      }
      #pragma unroll
#line 95 "mla_seesaw.tw"
      for (int v_5 = 0; v_5 < 2; ++v_5) {
        r[v_5] = m[v_5];
      }
#line 96 "mla_seesaw.tw"
      float r_part[2];
      #pragma unroll
      for (int d = 0; d < 2; ++d) {
        r_part[d] = tw::max_nan(r[d], s[d * 2]);
      }
      #pragma unroll
      for (int k_2 = 1; k_2 < 16; ++k_2) {
        #pragma unroll
        for (int d_1 = 0; d_1 < 2; ++d_1) {
          r_part[d_1] = tw::max_nan(r_part[d_1], s[d_1 * 2 + (k_2 & 1) + (k_2 >> 1) * 4]);
        }
      }
      #pragma unroll
      for (int d_2 = 0; d_2 < 2; ++d_2) {
        const float own = r_part[d_2];
        const float other = __shfl_xor_sync(~0u, own, 1);
        const float own_1 = tw::max_nan(own, other);
        const float other_1 = __shfl_xor_sync(~0u, own_1, 2);
        r[d_2] = tw::max_nan(own_1, other_1);
      }
      #pragma unroll
#line 97 "mla_seesaw.tw"
      for (int v_7 = 0; v_7 < 2; ++v_7) {
#line 98 "mla_seesaw.tw"
        f[v_7] = tw::exp2((m[v_7] - r[v_7]) * scale);
#line 99 "mla_seesaw.tw"
        m[v_7] = r[v_7];
      }
#line 101 "mla_seesaw.tw"
      const int at_1 = ((thread >> 2) & 7) + (thread >> 5) * 16;
      #pragma unroll
      for (int v_9 = 0; v_9 < 2; ++v_9) {
        if ((thread & 3) == 0) {
          top[at_1 + v_9 * 8] = m[v_9];
        }
      }
#line 102 "mla_seesaw.tw"
      const int at_2 = ((thread >> 2) & 7) + (thread >> 5) * 16;
      #pragma unroll
      for (int v_11 = 0; v_11 < 2; ++v_11) {
        if ((thread & 3) == 0) {
          factor[at_2 + v_11 * 8] = f[v_11];
        }
      }
#line 103 "mla_seesaw.tw"
      tw::arrive_named(1, 256);
      #pragma unroll
#line 104 "mla_seesaw.tw"
      for (int v_12 = 0; v_12 < 32; ++v_12) {
#line 106 "mla_seesaw.tw"
        s[v_12] = tw::exp2(s[v_12] * scale - m[(v_12 >> 1) & 1] * scale);
      }
      #pragma unroll
#line 108 "mla_seesaw.tw"
      for (int v_14 = 0; v_14 < 16; ++v_14) {
        *reinterpret_cast<uint32_t*>(p + v_14 * 2) = tw::pack_bfloat16(s[v_14 * 2], s[v_14 * 2 + 1]);
      }
      #pragma unroll
#line 109 "mla_seesaw.tw"
      for (int v_15 = 0; v_15 < 128; ++v_15) {
#line 111 "mla_seesaw.tw"
        o[v_15] = o[v_15] * f[(v_15 >> 1) & 1];
      }
#line 113 "mla_seesaw.tw"
      tw::pin<32>(s);
      tw::pin<32>(q_rope);
      tw::pin<32>(p);
      tw::pin<128>(o);
      tw::fence_wgmma();
#line 114 "mla_seesaw.tw"
      const uint64_t k_desc_2 = tw::descriptor<512, 64, 1>(tw::address(k));
      wgmma_m64n256k16_f32_bf16_bf16_rs_01_x4(o, p, k_desc_2, p + 8, k_desc_2 + 128ull, p + 16, k_desc_2 + 256ull, p + 24, k_desc_2 + 384ull, 1);
#line 115 "mla_seesaw.tw"
      tw::commit_wgmma();
#line 116 "mla_seesaw.tw"
      float r_part_1[2];
      #pragma unroll
      for (int d_3 = 0; d_3 < 2; ++d_3) {
        r_part_1[d_3] = s[d_3 * 2];
      }
      #pragma unroll
      for (int k_4 = 1; k_4 < 16; ++k_4) {
        #pragma unroll
        for (int d_4 = 0; d_4 < 2; ++d_4) {
          r_part_1[d_4] = r_part_1[d_4] + s[d_4 * 2 + (k_4 & 1) + (k_4 >> 1) * 4];
        }
      }
      #pragma unroll
      for (int d_5 = 0; d_5 < 2; ++d_5) {
        const float own_2 = r_part_1[d_5];
        const float other_2 = __shfl_xor_sync(~0u, own_2, 1);
        const float own_3 = own_2 + other_2;
        const float other_3 = __shfl_xor_sync(~0u, own_3, 2);
        r[d_5] = own_3 + other_3;
      }
      #pragma unroll
#line 117 "mla_seesaw.tw"
      for (int v_17 = 0; v_17 < 2; ++v_17) {
#line 118 "mla_seesaw.tw"
        l[v_17] = l[v_17] * f[v_17] + r[v_17];
      }
#line 120 "mla_seesaw.tw"
      if (2 * i + 1 < n) {
#line 121 "mla_seesaw.tw"
        tw::sync_named(2, 256);
#line 122 "mla_seesaw.tw"
        const int at_3 = ((thread >> 2) & 7) + (thread >> 5) * 16;
        #pragma unroll
        for (int v_19 = 0; v_19 < 2; ++v_19) {
          m[v_19] = top[at_3 + v_19 * 8 + 64];
        }
#line 123 "mla_seesaw.tw"
        const int at_4 = ((thread >> 2) & 7) + (thread >> 5) * 16;
        #pragma unroll
        for (int v_21 = 0; v_21 < 2; ++v_21) {
          f[v_21] = factor[at_4 + v_21 * 8 + 64];
        }
        #pragma unroll
#line 124 "mla_seesaw.tw"
        for (int v_22 = 0; v_22 < 32; ++v_22) {
#line 126 "mla_seesaw.tw"
          s[v_22] = s[v_22] * f[(v_22 >> 1) & 1];
        }
        #pragma unroll
#line 128 "mla_seesaw.tw"
        for (int v_23 = 0; v_23 < 2; ++v_23) {
          l[v_23] = l[v_23] * f[v_23];
        }
      }
#line 130 "mla_seesaw.tw"
      const int at_5 = (((thread & 15) * 8 + ((thread >> 4) & 1) + (thread >> 5) * 128) & 56) ^ ((thread & 15) * 64 + ((thread >> 4) & 1) * 8 + (thread >> 5) * 1024);
      #pragma unroll
      for (int v_24 = 0; v_24 < 4; ++v_24) {
        stmatrix_x4(tw::address(ps + (at_5 ^ (v_24 * 16))), tw::pack_bfloat16(s[v_24 * 8], s[v_24 * 8 + 1]), tw::pack_bfloat16(s[v_24 * 8 + 2], s[v_24 * 8 + 3]), tw::pack_bfloat16(s[v_24 * 8 + 4], s[v_24 * 8 + 5]), tw::pack_bfloat16(s[v_24 * 8 + 6], s[v_24 * 8 + 7]));
      }
#line 131 "mla_seesaw.tw"
      tw::fence_proxy_async();
#line 132 "mla_seesaw.tw"
      tw::arrive_named(3, 256);
#line 134 "mla_seesaw.tw"
      tw::settle<2>(m);
      tw::settle<2>(l);
      tw::wait_wgmma<0>();
      tw::pin<32>(s);
      tw::pin<128>(o);
#line 135 "mla_seesaw.tw"
      if (2 * i + 2 < n) {
#line 136 "mla_seesaw.tw"
        tw::sync_named(15, 128);
        #pragma unroll
        for (int c_2 = 0; c_2 < 4; ++c_2) {
#line 137 "mla_seesaw.tw"
          if (leader) {
            tw::arrive_expect(full + 8 * (c_2), 8192);
#line 138 "mla_seesaw.tw"
            bulk_load_3d(tw::address(k + c_2 * 4096), &K_map, full + 8 * (c_2), c_2 * 64, i * 128 + 128, b);
          }
        }
      }
#line 142 "mla_seesaw.tw"
      if (2 * i + 1 < n) {
        #pragma unroll
#line 143 "mla_seesaw.tw"
        for (int v_25 = 0; v_25 < 128; ++v_25) {
#line 145 "mla_seesaw.tw"
          o[v_25] = o[v_25] * f[(v_25 >> 1) & 1];
        }
#line 147 "mla_seesaw.tw"
        tw::pin<32>(s);
        tw::pin<32>(q_rope);
        tw::pin<32>(p);
        tw::pin<128>(o);
        tw::fence_wgmma();
#line 148 "mla_seesaw.tw"
        tw::sync_named(4, 256);
#line 149 "mla_seesaw.tw"
        const uint64_t k_desc_3 = tw::descriptor<512, 64, 1>(tw::address(k + 36864));
        const uint64_t ps_desc = tw::descriptor<1, 64, 1>(tw::address(ps + 4096));
        wgmma_m64n256k16_f32_bf16_bf16_ss_01_x4(o, ps_desc, k_desc_3, ps_desc + 2ull, k_desc_3 + 128ull, ps_desc + 4ull, k_desc_3 + 256ull, ps_desc + 6ull, k_desc_3 + 384ull, 1);
#line 150 "mla_seesaw.tw"
        tw::commit_wgmma();
#line 151 "mla_seesaw.tw"
        if (2 * i + 2 < n) {
          #pragma unroll
#line 152 "mla_seesaw.tw"
          for (int c_3 = 0; c_3 < 4; ++c_3) {
#line 153 "mla_seesaw.tw"
            tw::wait(full + 8 * (c_3), (i + 1) & 1);
#line 154 "mla_seesaw.tw"
            const uint64_t k_desc_4 = tw::descriptor<1, 64, 1>(tw::address(k + c_3 * 4096));
            const uint64_t q_desc_1 = tw::descriptor<1, 64, 1>(tw::address(q + c_3 * 4096));
            tw::pin<32>(s);
            tw::fence_wgmma();
            wgmma_m64n64k16_f32_bf16_bf16_ss_x4(s, q_desc_1, k_desc_4, q_desc_1 + 2ull, k_desc_4 + 2ull, q_desc_1 + 4ull, k_desc_4 + 4ull, q_desc_1 + 6ull, k_desc_4 + 6ull, c_3 == 0 ? 0 : 1);
          }
#line 156 "mla_seesaw.tw"
          tw::commit_wgmma();
#line 157 "mla_seesaw.tw"
          tw::wait_wgmma<1>();
          tw::pin<128>(o);
#line 158 "mla_seesaw.tw"
          if (2 * i + 3 < n) {
            #pragma unroll
#line 159 "mla_seesaw.tw"
            for (int c_4 = 0; c_4 < 4; ++c_4) {
#line 160 "mla_seesaw.tw"
              if (leader) {
                tw::arrive_expect(full + 8 * (int(1) * (9) + c_4), 8192);
#line 161 "mla_seesaw.tw"
                bulk_load_3d(tw::address(k + c_4 * 4096 + 36864), &K_map, full + 8 * (int(1) * (9) + c_4), c_4 * 64, i * 128 + 192, b);
              }
            }
          }
          #pragma unroll
#line 165 "mla_seesaw.tw"
          for (int c_5 = 4; c_5 < 8; ++c_5) {
#line 166 "mla_seesaw.tw"
            tw::wait(full + 8 * (c_5), (i + 1) & 1);
#line 167 "mla_seesaw.tw"
            const uint64_t k_desc_5 = tw::descriptor<1, 64, 1>(tw::address(k + c_5 * 4096));
            const uint64_t q_desc_2 = tw::descriptor<1, 64, 1>(tw::address(q + c_5 * 4096));
            tw::fence_wgmma();
            wgmma_m64n64k16_f32_bf16_bf16_ss_x4(s, q_desc_2, k_desc_5, q_desc_2 + 2ull, k_desc_5 + 2ull, q_desc_2 + 4ull, k_desc_5 + 4ull, q_desc_2 + 6ull, k_desc_5 + 6ull, 1);
          }
#line 169 "mla_seesaw.tw"
          tw::wait(full + 8 * (8), (i + 1) & 1);
#line 170 "mla_seesaw.tw"
          const uint64_t k_desc_6 = tw::descriptor<1, 64, 1>(tw::address(k + 32768));
          tw::pin<32>(q_rope);
          tw::fence_wgmma();
          wgmma_m64n64k16_f32_bf16_bf16_rs_x4(s, q_rope, k_desc_6, q_rope + 8, k_desc_6 + 2ull, q_rope + 16, k_desc_6 + 4ull, q_rope + 24, k_desc_6 + 6ull, 1);
#line 171 "mla_seesaw.tw"
          tw::commit_wgmma();
#line 172 "mla_seesaw.tw"
          tw::wait_wgmma<0>();
          tw::pin<32>(s);
          tw::pin<128>(o);
        } else {
#line 174 "mla_seesaw.tw"
          tw::wait_wgmma<0>();
          tw::pin<32>(s);
          tw::pin<128>(o);
        }
      }
    }
#line 179 "mla_seesaw.tw"
    const int at_6 = ((thread >> 2) & 7) + (thread >> 5) * 16;
    #pragma unroll
    for (int v_27 = 0; v_27 < 2; ++v_27) {
      if ((thread & 3) == 0) {
        sums[at_6 + v_27 * 8] = l[v_27];
      }
    }
#line 180 "mla_seesaw.tw"
    tw::sync_named(5, 256);
#line 181 "mla_seesaw.tw"
    const int at_7 = ((thread >> 2) & 7) + (thread >> 5) * 16;
    #pragma unroll
    for (int v_29 = 0; v_29 < 2; ++v_29) {
      r[v_29] = sums[at_7 + v_29 * 8 + 64];
    }
    #pragma unroll
#line 182 "mla_seesaw.tw"
    for (int v_30 = 0; v_30 < 2; ++v_30) {
#line 183 "mla_seesaw.tw"
      l[v_30] = l[v_30] + r[v_30];
#line 184 "mla_seesaw.tw"
      r[v_30] = l[v_30] > 0.0f ? 1.0f / l[v_30] : 0.0f;
    }
    #pragma unroll
#line 186 "mla_seesaw.tw"
    for (int v_31 = 0; v_31 < 128; ++v_31) {
#line 188 "mla_seesaw.tw"
      o[v_31] = o[v_31] * r[(v_31 >> 1) & 1];
    }
#line 190 "mla_seesaw.tw"
    const int at_8 = (((thread & 15) * 8 + ((thread >> 4) & 1) + (thread >> 5) * 128) & 56) ^ ((thread & 15) * 64 + ((thread >> 4) & 1) * 8 + (thread >> 5) * 1024);
    #pragma unroll
    for (int v_32 = 0; v_32 < 16; ++v_32) {
      stmatrix_x4(tw::address(k + (at_8 ^ ((v_32 & 3) * 16 + (v_32 >> 2) * 4096))), tw::pack_bfloat16(o[v_32 * 8], o[v_32 * 8 + 1]), tw::pack_bfloat16(o[v_32 * 8 + 2], o[v_32 * 8 + 3]), tw::pack_bfloat16(o[v_32 * 8 + 4], o[v_32 * 8 + 5]), tw::pack_bfloat16(o[v_32 * 8 + 6], o[v_32 * 8 + 7]));
    }
#line 191 "mla_seesaw.tw"
    tw::fence_proxy_async();
#line 192 "mla_seesaw.tw"
    tw::sync_named(6, 128);
#line 193 "mla_seesaw.tw"
    if (leader) {
      bulk_store_4d(&O_map, tw::address(k), 0, 0, h, b);
      bulk_store_4d(&O_map, tw::address(k + 4096), 64, 0, h, b);
      bulk_store_4d(&O_map, tw::address(k + 8192), 128, 0, h, b);
      bulk_store_4d(&O_map, tw::address(k + 12288), 192, 0, h, b);
#line 194 "mla_seesaw.tw"
      tw::commit_bulk();
    }
    #pragma unroll
#line 195 "mla_seesaw.tw"
    for (int v_33 = 0; v_33 < 2; ++v_33) {
#line 196 "mla_seesaw.tw"
      r[v_33] = l[v_33] > 0.0f ? m[v_33] * scale + log2f(l[v_33]) : __uint_as_float(0xff800000u);
    }
#line 198 "mla_seesaw.tw"
    const int i0_10_1 = ((thread >> 2) & 7) + (thread >> 5) * 16;
    #pragma unroll
    for (int v_35 = 0; v_35 < 2; ++v_35) {
      if ((thread & 3) == 0) {
        LSE[int64_t(b) * (int64_t(1) * groups * 64) + int64_t(h) * (64) + i0_10_1 + v_35 * 8] = r[v_35];
      }
    }
#line 199 "mla_seesaw.tw"
    if (leader) {
      tw::wait_bulk_read<0>();
    }
#line 202 "mla_seesaw.tw"
  } else if (warp >= 4 && warp < 8) {  // role wg1
    const int thread_1 = tx & 127;
    const bool leader_1 = warp == 4 && tw::elect();
#line 203 "mla_seesaw.tw"
    float o_1[128];
#line 205 "mla_seesaw.tw"
    float s_1[32];
#line 207 "mla_seesaw.tw"
    alignas(16) tw::bfloat16 p_1[32];
#line 209 "mla_seesaw.tw"
    alignas(16) tw::bfloat16 q_rope_1[32];
#line 211 "mla_seesaw.tw"
    float m_1[2];
#line 212 "mla_seesaw.tw"
    float f_1[2];
#line 213 "mla_seesaw.tw"
    float g[2];
#line 214 "mla_seesaw.tw"
    float l_1[2];
#line 215 "mla_seesaw.tw"
    float r_1[2];
    #pragma unroll 1
#line 217 "mla_seesaw.tw"
    for (int j_1 = 0; j_1 < min(n, 2); ++j_1) {
      #pragma unroll
#line 218 "mla_seesaw.tw"
      for (int c_6 = 4; c_6 < 9; ++c_6) {
#line 219 "mla_seesaw.tw"
        if (leader_1) {
          tw::arrive_expect(full + 8 * (int(j_1) * (9) + c_6), 8192);
#line 220 "mla_seesaw.tw"
          bulk_load_3d(tw::address(k + c_6 * 4096 + j_1 * 36864), &K_map, full + 8 * (int(j_1) * (9) + c_6), c_6 * 64, j_1 * 64, b);
        }
      }
    }
    #pragma unroll
#line 224 "mla_seesaw.tw"
    for (int v_36 = 0; v_36 < 128; ++v_36) {
      o_1[v_36] = 0.0f;
    }
    #pragma unroll
#line 225 "mla_seesaw.tw"
    for (int v_37 = 0; v_37 < 2; ++v_37) {
      l_1[v_37] = 0.0f;
    }
#line 226 "mla_seesaw.tw"
    if (n > 1) {
#line 227 "mla_seesaw.tw"
      tw::wait(q_full, 0);
#line 228 "mla_seesaw.tw"
      const int at_9 = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
      #pragma unroll
      for (int v_38 = 0; v_38 < 4; ++v_38) {
        ldmatrix_x4(q_rope_1 + v_38 * 8, tw::address(ps + (at_9 ^ (v_38 * 16)) + 4096));
      }
#line 229 "mla_seesaw.tw"
      tw::pin<32>(s_1);
      tw::pin<32>(q_rope_1);
      tw::pin<32>(p_1);
      tw::pin<128>(o_1);
      tw::fence_wgmma();
      #pragma unroll
#line 230 "mla_seesaw.tw"
      for (int c_7 = 0; c_7 < 8; ++c_7) {
#line 231 "mla_seesaw.tw"
        tw::wait(full + 8 * (int(1) * (9) + c_7), 0);
#line 232 "mla_seesaw.tw"
        const uint64_t k_desc_7 = tw::descriptor<1, 64, 1>(tw::address(k + c_7 * 4096 + 36864));
        const uint64_t q_desc_3 = tw::descriptor<1, 64, 1>(tw::address(q + c_7 * 4096));
        tw::pin<32>(s_1);
        tw::fence_wgmma();
        wgmma_m64n64k16_f32_bf16_bf16_ss_x4(s_1, q_desc_3, k_desc_7, q_desc_3 + 2ull, k_desc_7 + 2ull, q_desc_3 + 4ull, k_desc_7 + 4ull, q_desc_3 + 6ull, k_desc_7 + 6ull, c_7 == 0 ? 0 : 1);
      }
#line 234 "mla_seesaw.tw"
      tw::wait(full + 8 * (int(1) * (9) + 8), 0);
#line 235 "mla_seesaw.tw"
      const uint64_t k_desc_8 = tw::descriptor<1, 64, 1>(tw::address(k + 69632));
      tw::pin<32>(q_rope_1);
      tw::fence_wgmma();
      wgmma_m64n64k16_f32_bf16_bf16_rs_x4(s_1, q_rope_1, k_desc_8, q_rope_1 + 8, k_desc_8 + 2ull, q_rope_1 + 16, k_desc_8 + 4ull, q_rope_1 + 24, k_desc_8 + 6ull, 1);
#line 236 "mla_seesaw.tw"
      tw::commit_wgmma();
#line 237 "mla_seesaw.tw"
      tw::wait_wgmma<0>();
      tw::pin<32>(s_1);
      tw::pin<128>(o_1);
    }
    #pragma unroll 1
#line 240 "mla_seesaw.tw"
    for (int i_1 = 0; i_1 < (n + 1) >> 1; ++i_1) {
#line 241 "mla_seesaw.tw"
      if (2 * i_1 + 1 < n) {
#line 242 "mla_seesaw.tw"
        if ((2 * i_1 + 2) * 64 > seq) {
#line 243 "mla_seesaw.tw"
          const int y_6_1 = (thread_1 & 3) * 2;
#line 245 "mla_seesaw.tw"
          const int limit_1 = seq - i_1 * 128 - y_6_1 - 64;
          #pragma unroll
#line 243 "mla_seesaw.tw"
          for (int v_39 = 0; v_39 < 32; ++v_39) {
#line 245 "mla_seesaw.tw"
            s_1[v_39] = (v_39 & 1) + (v_39 >> 2) * 8 < limit_1 ? s_1[v_39] : __uint_as_float(0xff800000u);
          }
        }
#line 248 "mla_seesaw.tw"
        float r_1_part[2];
        #pragma unroll
        for (int d_6 = 0; d_6 < 2; ++d_6) {
          r_1_part[d_6] = s_1[d_6 * 2];
        }
        #pragma unroll
        for (int k_6 = 1; k_6 < 16; ++k_6) {
          #pragma unroll
          for (int d_7 = 0; d_7 < 2; ++d_7) {
            r_1_part[d_7] = tw::max_nan(r_1_part[d_7], s_1[d_7 * 2 + (k_6 & 1) + (k_6 >> 1) * 4]);
          }
        }
        #pragma unroll
        for (int d_8 = 0; d_8 < 2; ++d_8) {
          const float own_4 = r_1_part[d_8];
          const float other_4 = __shfl_xor_sync(~0u, own_4, 1);
          const float own_5 = tw::max_nan(own_4, other_4);
          const float other_5 = __shfl_xor_sync(~0u, own_5, 2);
          r_1[d_8] = tw::max_nan(own_5, other_5);
        }
      }
#line 250 "mla_seesaw.tw"
      tw::sync_named(1, 256);
#line 251 "mla_seesaw.tw"
      const int at_10 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
      #pragma unroll
      for (int v_42 = 0; v_42 < 2; ++v_42) {
        m_1[v_42] = top[at_10 + v_42 * 8];
      }
#line 252 "mla_seesaw.tw"
      const int at_11 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
      #pragma unroll
      for (int v_44 = 0; v_44 < 2; ++v_44) {
        f_1[v_44] = factor[at_11 + v_44 * 8];
      }
#line 253 "mla_seesaw.tw"
      if (2 * i_1 + 1 < n) {
        #pragma unroll
#line 254 "mla_seesaw.tw"
        for (int v_45 = 0; v_45 < 2; ++v_45) {
#line 255 "mla_seesaw.tw"
          r_1[v_45] = fmaxf(r_1[v_45], m_1[v_45]);
#line 256 "mla_seesaw.tw"
          g[v_45] = tw::exp2((m_1[v_45] - r_1[v_45]) * scale);
#line 257 "mla_seesaw.tw"
          m_1[v_45] = r_1[v_45];
#line 258 "mla_seesaw.tw"
          f_1[v_45] = f_1[v_45] * g[v_45];
        }
#line 260 "mla_seesaw.tw"
        const int at_12 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
        #pragma unroll
        for (int v_47 = 0; v_47 < 2; ++v_47) {
          if ((thread_1 & 3) == 0) {
            top[at_12 + v_47 * 8 + 64] = m_1[v_47];
          }
        }
#line 261 "mla_seesaw.tw"
        const int at_13 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
        #pragma unroll
        for (int v_49 = 0; v_49 < 2; ++v_49) {
          if ((thread_1 & 3) == 0) {
            factor[at_13 + v_49 * 8 + 64] = g[v_49];
          }
        }
#line 262 "mla_seesaw.tw"
        tw::arrive_named(2, 256);
        #pragma unroll
#line 263 "mla_seesaw.tw"
        for (int v_50 = 0; v_50 < 32; ++v_50) {
#line 265 "mla_seesaw.tw"
          s_1[v_50] = tw::exp2(s_1[v_50] * scale - m_1[(v_50 >> 1) & 1] * scale);
        }
        #pragma unroll
#line 267 "mla_seesaw.tw"
        for (int v_52 = 0; v_52 < 16; ++v_52) {
          *reinterpret_cast<uint32_t*>(p_1 + v_52 * 2) = tw::pack_bfloat16(s_1[v_52 * 2], s_1[v_52 * 2 + 1]);
        }
        #pragma unroll
#line 268 "mla_seesaw.tw"
        for (int v_53 = 0; v_53 < 128; ++v_53) {
#line 270 "mla_seesaw.tw"
          o_1[v_53] = o_1[v_53] * f_1[(v_53 >> 1) & 1];
        }
#line 272 "mla_seesaw.tw"
        tw::pin<32>(s_1);
        tw::pin<32>(q_rope_1);
        tw::pin<32>(p_1);
        tw::pin<128>(o_1);
        tw::fence_wgmma();
#line 273 "mla_seesaw.tw"
        const uint64_t k_desc_9 = tw::descriptor<512, 64, 1>(tw::address(k + 53248));
        wgmma_m64n256k16_f32_bf16_bf16_rs_01_x4(o_1, p_1, k_desc_9, p_1 + 8, k_desc_9 + 128ull, p_1 + 16, k_desc_9 + 256ull, p_1 + 24, k_desc_9 + 384ull, 1);
#line 274 "mla_seesaw.tw"
        tw::commit_wgmma();
#line 275 "mla_seesaw.tw"
        const int at_14 = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
        #pragma unroll
        for (int v_54 = 0; v_54 < 4; ++v_54) {
          stmatrix_x4(tw::address(ps + (at_14 ^ (v_54 * 16)) + 4096), tw::pack_bfloat16(s_1[v_54 * 8], s_1[v_54 * 8 + 1]), tw::pack_bfloat16(s_1[v_54 * 8 + 2], s_1[v_54 * 8 + 3]), tw::pack_bfloat16(s_1[v_54 * 8 + 4], s_1[v_54 * 8 + 5]), tw::pack_bfloat16(s_1[v_54 * 8 + 6], s_1[v_54 * 8 + 7]));
        }
#line 276 "mla_seesaw.tw"
        tw::fence_proxy_async();
#line 277 "mla_seesaw.tw"
        tw::arrive_named(4, 256);
#line 278 "mla_seesaw.tw"
        float r_1_part_1[2];
        #pragma unroll
        for (int d_9 = 0; d_9 < 2; ++d_9) {
          r_1_part_1[d_9] = s_1[d_9 * 2];
        }
        #pragma unroll
        for (int k_8 = 1; k_8 < 16; ++k_8) {
          #pragma unroll
          for (int d_10 = 0; d_10 < 2; ++d_10) {
            r_1_part_1[d_10] = r_1_part_1[d_10] + s_1[d_10 * 2 + (k_8 & 1) + (k_8 >> 1) * 4];
          }
        }
        #pragma unroll
        for (int d_11 = 0; d_11 < 2; ++d_11) {
          const float own_6 = r_1_part_1[d_11];
          const float other_6 = __shfl_xor_sync(~0u, own_6, 1);
          const float own_7 = own_6 + other_6;
          const float other_7 = __shfl_xor_sync(~0u, own_7, 2);
          r_1[d_11] = own_7 + other_7;
        }
        #pragma unroll
#line 279 "mla_seesaw.tw"
        for (int v_56 = 0; v_56 < 2; ++v_56) {
#line 280 "mla_seesaw.tw"
          l_1[v_56] = l_1[v_56] * f_1[v_56] + r_1[v_56];
        }
#line 281 "mla_seesaw.tw"
        tw::settle<2>(l_1);
        tw::wait_wgmma<0>();
        tw::pin<32>(s_1);
        tw::pin<128>(o_1);
#line 282 "mla_seesaw.tw"
        if (2 * i_1 + 3 < n) {
#line 283 "mla_seesaw.tw"
          tw::sync_named(14, 128);
          #pragma unroll
          for (int c_8 = 4; c_8 < 9; ++c_8) {
#line 284 "mla_seesaw.tw"
            if (leader_1) {
              tw::arrive_expect(full + 8 * (int(1) * (9) + c_8), 8192);
#line 285 "mla_seesaw.tw"
              bulk_load_3d(tw::address(k + c_8 * 4096 + 36864), &K_map, full + 8 * (int(1) * (9) + c_8), c_8 * 64, i_1 * 128 + 192, b);
            }
          }
        }
      } else {
        #pragma unroll
#line 290 "mla_seesaw.tw"
        for (int v_57 = 0; v_57 < 128; ++v_57) {
#line 292 "mla_seesaw.tw"
          o_1[v_57] = o_1[v_57] * f_1[(v_57 >> 1) & 1];
        }
        #pragma unroll
#line 294 "mla_seesaw.tw"
        for (int v_58 = 0; v_58 < 2; ++v_58) {
          l_1[v_58] = l_1[v_58] * f_1[v_58];
        }
      }
#line 296 "mla_seesaw.tw"
      tw::pin<32>(s_1);
      tw::pin<32>(q_rope_1);
      tw::pin<32>(p_1);
      tw::pin<128>(o_1);
      tw::fence_wgmma();
#line 297 "mla_seesaw.tw"
      tw::sync_named(3, 256);
#line 298 "mla_seesaw.tw"
      const uint64_t k_desc_10 = tw::descriptor<512, 64, 1>(tw::address(k + 16384));
      const uint64_t ps_desc_1 = tw::descriptor<1, 64, 1>(tw::address(ps));
      wgmma_m64n256k16_f32_bf16_bf16_ss_01_x4(o_1, ps_desc_1, k_desc_10, ps_desc_1 + 2ull, k_desc_10 + 128ull, ps_desc_1 + 4ull, k_desc_10 + 256ull, ps_desc_1 + 6ull, k_desc_10 + 384ull, 1);
#line 299 "mla_seesaw.tw"
      tw::commit_wgmma();
#line 300 "mla_seesaw.tw"
      if (2 * i_1 + 3 < n) {
        #pragma unroll
#line 301 "mla_seesaw.tw"
        for (int c_9 = 4; c_9 < 8; ++c_9) {
#line 302 "mla_seesaw.tw"
          tw::wait(full + 8 * (int(1) * (9) + c_9), (i_1 + 1) & 1);
#line 303 "mla_seesaw.tw"
          const uint64_t k_desc_11 = tw::descriptor<1, 64, 1>(tw::address(k + c_9 * 4096 + 36864));
          const uint64_t q_desc_4 = tw::descriptor<1, 64, 1>(tw::address(q + c_9 * 4096));
          tw::pin<32>(s_1);
          tw::fence_wgmma();
          wgmma_m64n64k16_f32_bf16_bf16_ss_x4(s_1, q_desc_4, k_desc_11, q_desc_4 + 2ull, k_desc_11 + 2ull, q_desc_4 + 4ull, k_desc_11 + 4ull, q_desc_4 + 6ull, k_desc_11 + 6ull, c_9 == 4 ? 0 : 1);
        }
#line 305 "mla_seesaw.tw"
        tw::wait(full + 8 * (int(1) * (9) + 8), (i_1 + 1) & 1);
#line 306 "mla_seesaw.tw"
        const uint64_t k_desc_12 = tw::descriptor<1, 64, 1>(tw::address(k + 69632));
        tw::pin<32>(q_rope_1);
        tw::fence_wgmma();
        wgmma_m64n64k16_f32_bf16_bf16_rs_x4(s_1, q_rope_1, k_desc_12, q_rope_1 + 8, k_desc_12 + 2ull, q_rope_1 + 16, k_desc_12 + 4ull, q_rope_1 + 24, k_desc_12 + 6ull, 1);
#line 307 "mla_seesaw.tw"
        tw::commit_wgmma();
#line 308 "mla_seesaw.tw"
        tw::wait_wgmma<1>();
        tw::pin<128>(o_1);
        #pragma unroll
#line 309 "mla_seesaw.tw"
        for (int c_10 = 4; c_10 < 9; ++c_10) {
#line 310 "mla_seesaw.tw"
          if (leader_1) {
            tw::arrive_expect(full + 8 * (c_10), 8192);
#line 311 "mla_seesaw.tw"
            bulk_load_3d(tw::address(k + c_10 * 4096), &K_map, full + 8 * (c_10), c_10 * 64, i_1 * 128 + 128, b);
          }
        }
        #pragma unroll
#line 314 "mla_seesaw.tw"
        for (int c_11 = 0; c_11 < 4; ++c_11) {
#line 315 "mla_seesaw.tw"
          tw::wait(full + 8 * (int(1) * (9) + c_11), (i_1 + 1) & 1);
#line 316 "mla_seesaw.tw"
          const uint64_t k_desc_13 = tw::descriptor<1, 64, 1>(tw::address(k + c_11 * 4096 + 36864));
          const uint64_t q_desc_5 = tw::descriptor<1, 64, 1>(tw::address(q + c_11 * 4096));
          tw::fence_wgmma();
          wgmma_m64n64k16_f32_bf16_bf16_ss_x4(s_1, q_desc_5, k_desc_13, q_desc_5 + 2ull, k_desc_13 + 2ull, q_desc_5 + 4ull, k_desc_13 + 4ull, q_desc_5 + 6ull, k_desc_13 + 6ull, 1);
        }
#line 318 "mla_seesaw.tw"
        tw::commit_wgmma();
#line 319 "mla_seesaw.tw"
        tw::wait_wgmma<0>();
        tw::pin<32>(s_1);
        tw::pin<128>(o_1);
      } else {
#line 321 "mla_seesaw.tw"
        tw::wait_wgmma<0>();
        tw::pin<32>(s_1);
        tw::pin<128>(o_1);
#line 322 "mla_seesaw.tw"
        if (2 * i_1 + 2 < n) {
          #pragma unroll
#line 323 "mla_seesaw.tw"
          for (int c_12 = 4; c_12 < 9; ++c_12) {
#line 324 "mla_seesaw.tw"
            if (leader_1) {
              tw::arrive_expect(full + 8 * (c_12), 8192);
#line 325 "mla_seesaw.tw"
              bulk_load_3d(tw::address(k + c_12 * 4096), &K_map, full + 8 * (c_12), c_12 * 64, i_1 * 128 + 128, b);
            }
          }
        }
      }
    }
#line 332 "mla_seesaw.tw"
    const int at_15 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
    #pragma unroll
    for (int v_60 = 0; v_60 < 2; ++v_60) {
      if ((thread_1 & 3) == 0) {
        sums[at_15 + v_60 * 8 + 64] = l_1[v_60];
      }
    }
#line 333 "mla_seesaw.tw"
    tw::sync_named(5, 256);
#line 334 "mla_seesaw.tw"
    const int at_16 = ((thread_1 >> 2) & 7) + (thread_1 >> 5) * 16;
    #pragma unroll
    for (int v_62 = 0; v_62 < 2; ++v_62) {
      r_1[v_62] = sums[at_16 + v_62 * 8];
    }
    #pragma unroll
#line 335 "mla_seesaw.tw"
    for (int v_63 = 0; v_63 < 2; ++v_63) {
#line 336 "mla_seesaw.tw"
      l_1[v_63] = r_1[v_63] + l_1[v_63];
#line 337 "mla_seesaw.tw"
      r_1[v_63] = l_1[v_63] > 0.0f ? 1.0f / l_1[v_63] : 0.0f;
    }
    #pragma unroll
#line 339 "mla_seesaw.tw"
    for (int v_64 = 0; v_64 < 128; ++v_64) {
#line 341 "mla_seesaw.tw"
      o_1[v_64] = o_1[v_64] * r_1[(v_64 >> 1) & 1];
    }
#line 343 "mla_seesaw.tw"
    const int at_17 = (((thread_1 & 15) * 8 + ((thread_1 >> 4) & 1) + (thread_1 >> 5) * 128) & 56) ^ ((thread_1 & 15) * 64 + ((thread_1 >> 4) & 1) * 8 + (thread_1 >> 5) * 1024);
    #pragma unroll
    for (int v_65 = 0; v_65 < 16; ++v_65) {
      stmatrix_x4(tw::address(k + (at_17 ^ ((v_65 & 3) * 16 + (v_65 >> 2) * 4096)) + 16384), tw::pack_bfloat16(o_1[v_65 * 8], o_1[v_65 * 8 + 1]), tw::pack_bfloat16(o_1[v_65 * 8 + 2], o_1[v_65 * 8 + 3]), tw::pack_bfloat16(o_1[v_65 * 8 + 4], o_1[v_65 * 8 + 5]), tw::pack_bfloat16(o_1[v_65 * 8 + 6], o_1[v_65 * 8 + 7]));
    }
#line 344 "mla_seesaw.tw"
    tw::fence_proxy_async();
#line 345 "mla_seesaw.tw"
    tw::sync_named(7, 128);
#line 346 "mla_seesaw.tw"
    if (leader_1) {
      bulk_store_4d(&O_map, tw::address(k + 16384), 256, 0, h, b);
      bulk_store_4d(&O_map, tw::address(k + 20480), 320, 0, h, b);
      bulk_store_4d(&O_map, tw::address(k + 24576), 384, 0, h, b);
      bulk_store_4d(&O_map, tw::address(k + 28672), 448, 0, h, b);
#line 347 "mla_seesaw.tw"
      tw::commit_bulk();
#line 348 "mla_seesaw.tw"
      tw::wait_bulk_read<0>();
    }
  }
}
