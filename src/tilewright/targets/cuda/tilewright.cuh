// The instructions that generated kernels use, one thin wrapper each. Nothing here decides
// anything: shared memory is named by 32-bit addresses, barriers likewise.
#pragma once

typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;

namespace tw {

#define TW_DEVICE __device__ __forceinline__

struct alignas(64) TensorMap {
  uint64_t opaque[16];
};

// 16-bit floats are moved and packed as bits; arithmetic on them is done in float.
struct alignas(2) bfloat16 {
  uint16_t bits;
};
struct alignas(2) float16 {
  uint16_t bits;
};
struct float8_e4m3fn {
  uint8_t bits;
};
struct float8_e5m2 {
  uint8_t bits;
};

// ── numbers ─────────────────────────────────────────────────────────────────────────────────

TW_DEVICE uint32_t pack_bfloat16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TW_DEVICE uint32_t pack_float16(float low, float high) {
  uint32_t r;
  asm("cvt.rn.f16x2.f32 %0, %1, %2;" : "=r"(r) : "f"(high), "f"(low));
  return r;
}
TW_DEVICE bfloat16 to_bfloat16(float x) {
  bfloat16 r;
  asm("cvt.rn.bf16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
TW_DEVICE float16 to_float16(float x) {
  float16 r;
  asm("cvt.rn.f16.f32 %0, %1;" : "=h"(r.bits) : "f"(x));
  return r;
}
TW_DEVICE float to_float(bfloat16 x) { return __uint_as_float(uint32_t(x.bits) << 16); }
TW_DEVICE float to_float(float16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
template <class T>
TW_DEVICE T floor_div(T a, T b) {
  T q = a / b;
  return a % b != 0 && (a < 0) != (b < 0) ? q - 1 : q;
}
template <class T>
TW_DEVICE T floor_mod(T a, T b) {
  T r = a % b;
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
TW_DEVICE float exp2_fast(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// Reductions keep NaN, unlike fmaxf and fminf.
TW_DEVICE float max_nan(float a, float b) {
  float r;
  asm("max.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}
TW_DEVICE float min_nan(float a, float b) {
  float r;
  asm("min.NaN.f32 %0, %1, %2;" : "=f"(r) : "f"(a), "f"(b));
  return r;
}

// ── threads ─────────────────────────────────────────────────────────────────────────────────

TW_DEVICE uint32_t address(const void* shared) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(shared));
}
TW_DEVICE int warp_index(int thread) { return __shfl_sync(~0u, thread / 32, 0); }
// True in one thread of the warp; all of its threads call it.
TW_DEVICE bool elect() {
  uint32_t chosen;
  asm volatile(
      "{\n .reg .pred p;\n elect.sync _|p, 0xffffffff;\n selp.b32 %0, 1, 0, p;\n}"
      : "=r"(chosen));
  return chosen != 0;
}
template <int Count>
TW_DEVICE void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;" ::"n"(Count));
}
template <int Count>
TW_DEVICE void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;" ::"n"(Count));
}
TW_DEVICE void sync_named(int id, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TW_DEVICE void arrive_named(int id, int threads) {
  asm volatile("bar.arrive %0, %1;" ::"r"(id), "r"(threads) : "memory");
}
TW_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
TW_DEVICE int cluster_rank() {
  int rank;
  asm volatile("mov.u32 %0, %%cluster_ctarank;" : "=r"(rank));
  return rank;
}
// The same place in the shared memory of another block of the cluster.
TW_DEVICE uint32_t remote(uint32_t address, int rank) {
  uint32_t r;
  asm volatile("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(r) : "r"(address), "r"(rank));
  return r;
}

// ── barriers ────────────────────────────────────────────────────────────────────────────────

TW_DEVICE void barrier_init(uint32_t barrier, int count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
TW_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  asm volatile("fence.proxy.async;" ::: "memory");
}
TW_DEVICE void arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(barrier) : "memory");
}
TW_DEVICE void arrive(uint32_t barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(count) : "memory");
}
TW_DEVICE void arrive_expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(barrier), "r"(bytes)
               : "memory");
}
TW_DEVICE void arrive_remote(uint32_t barrier) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
TW_DEVICE void arrive_remote(uint32_t barrier, int count) {
  asm volatile("mbarrier.arrive.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(count)
               : "memory");
}
TW_DEVICE void arrive_expect_remote(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.release.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(
                   barrier),
               "r"(bytes)
               : "memory");
}
TW_DEVICE bool try_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
      " selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
TW_DEVICE bool try_wait_cluster(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64 p, [%1], %2;\n"
      " selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
TW_DEVICE void wait(uint32_t barrier, uint32_t parity) {
  while (!try_wait(barrier, parity)) {
  }
}
TW_DEVICE void wait_cluster(uint32_t barrier, uint32_t parity) {
  while (!try_wait_cluster(barrier, parity)) {
  }
}

// ── fences ──────────────────────────────────────────────────────────────────────────────────

TW_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TW_DEVICE void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
TW_DEVICE void fence_gpu() { asm volatile("fence.acq_rel.gpu;" ::: "memory"); }

// ── bulk tensor copies ──────────────────────────────────────────────────────────────────────

// Cache policies as the driver's fractional policies encode them.
enum Policy : uint64_t {
  normal = 0x1000000000000000ull,
  evict_first = 0x12F0000000000000ull,
  evict_last = 0x14F0000000000000ull
};

TW_DEVICE void prefetch(const TensorMap* map) {
  asm volatile("prefetch.tensormap [%0];" ::"l"(map) : "memory");
}

#define TW_C1 "{%3}"
#define TW_C2 "{%3, %4}"
#define TW_C3 "{%3, %4, %5}"
#define TW_C4 "{%3, %4, %5, %6}"
#define TW_C5 "{%3, %4, %5, %6, %7}"
#define TW_P1 int a
#define TW_P2 TW_P1, int b
#define TW_P3 TW_P2, int c
#define TW_P4 TW_P3, int d
#define TW_P5 TW_P4, int e
#define TW_A1 "r"(a)
#define TW_A2 TW_A1, "r"(b)
#define TW_A3 TW_A2, "r"(c)
#define TW_A4 TW_A3, "r"(d)
#define TW_A5 TW_A4, "r"(e)

#define TW_BULK_LOAD(N, MASK, HINT)                                                              \
  TW_DEVICE void bulk_load(uint32_t to, const TensorMap* map, uint32_t barrier, TW_P##N) {       \
    asm volatile("cp.async.bulk.tensor." #N                                                      \
                 "d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, " TW_C##N     \
                 "], [%2];" ::"r"(to),                                                           \
                 "l"(map), "r"(barrier), TW_A##N                                                 \
                 : "memory");                                                                    \
  }                                                                                              \
  TW_DEVICE void bulk_load_cached(uint32_t to, const TensorMap* map, uint32_t barrier, TW_P##N,  \
                                  uint64_t policy) {                                             \
    asm volatile("cp.async.bulk.tensor." #N                                                      \
                 "d.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint [%0], "   \
                 "[%1, " TW_C##N "], [%2], %" HINT ";" ::"r"(to),                                \
                 "l"(map), "r"(barrier), TW_A##N, "l"(policy)                                    \
                 : "memory");                                                                    \
  }                                                                                              \
  TW_DEVICE void bulk_load_multicast(uint32_t to, const TensorMap* map, uint32_t barrier,        \
                                     TW_P##N, uint16_t mask) {                                   \
    asm volatile("cp.async.bulk.tensor." #N                                                      \
                 "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster "     \
                 "[%0], [%1, " TW_C##N "], [%2], %" MASK ";" ::"r"(to),                          \
                 "l"(map), "r"(barrier), TW_A##N, "h"(mask)                                      \
                 : "memory");                                                                    \
  }                                                                                              \
  TW_DEVICE void bulk_load_multicast_cached(uint32_t to, const TensorMap* map, uint32_t barrier, \
                                            TW_P##N, uint16_t mask, uint64_t policy) {           \
    asm volatile("cp.async.bulk.tensor." #N                                                      \
                 "d.shared::cluster.global.mbarrier::complete_tx::bytes.multicast::cluster"      \
                 ".L2::cache_hint [%0], [%1, " TW_C##N "], [%2], %" MASK ", %" HINT ";" ::"r"(   \
                     to),                                                                        \
                 "l"(map), "r"(barrier), TW_A##N, "h"(mask), "l"(policy)                         \
                 : "memory");                                                                    \
  }
#define TW_BULK_LOADS(N, THIRD, FOURTH)   \
  TW_BULK_LOAD_PLAIN(N, THIRD)            \
  TW_BULK_LOAD_MULTICAST(N, THIRD, FOURTH)
// The operand after the coordinates is number 3 + rank.
TW_BULK_LOAD(1, "4", "4")
TW_BULK_LOAD(2, "5", "5")
TW_BULK_LOAD(3, "6", "6")
TW_BULK_LOAD(4, "7", "7")
TW_BULK_LOAD(5, "8", "8")
}  // namespace tw
