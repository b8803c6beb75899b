// The instructions that generated kernels use, one thin wrapper each. Nothing here decides
// anything: shared memory is named by 32-bit addresses, barriers likewise.
#pragma once

#ifdef __CUDACC_RTC__
typedef signed char int8_t;
typedef short int16_t;
typedef int int32_t;
typedef long long int64_t;
typedef unsigned char uint8_t;
typedef unsigned short uint16_t;
typedef unsigned int uint32_t;
typedef unsigned long long uint64_t;
#else
#include <stdint.h>
#endif

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

// ── atomics: the old value, order relaxed ───────────────────────────────────────────────────

#define TW_ATOMIC(name, builtin)              \
  template <class T, class V>                 \
  TW_DEVICE T name(T* at, V value) {          \
    return builtin(at, static_cast<T>(value)); \
  }
TW_ATOMIC(atomic_add, atomicAdd)
TW_ATOMIC(atomic_max, atomicMax)
TW_ATOMIC(atomic_min, atomicMin)
TW_ATOMIC(atomic_and, atomicAnd)
TW_ATOMIC(atomic_or, atomicOr)
TW_ATOMIC(atomic_xor, atomicXor)
TW_ATOMIC(atomic_exch, atomicExch)
#undef TW_ATOMIC
// What one lane gets, in all lanes of the warp.
template <class F>
TW_DEVICE auto from_lane_0(F get) {
  decltype(get()) r{};
  if ((threadIdx.x & 31) == 0) r = get();
  return __shfl_sync(~0u, r, 0);
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
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0];" ::"r"(barrier)
               : "memory");
}
TW_DEVICE void arrive_remote(uint32_t barrier, int count) {
  asm volatile("mbarrier.arrive.shared::cluster.b64 _, [%0], %1;" ::"r"(barrier),
               "r"(count)
               : "memory");
}
TW_DEVICE void arrive_expect_remote(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;" ::"r"(
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

#ifdef TW_DIAGNOSTIC
// Where warps stand, one record per warp slot of the GPU, in memory of the host: a trap takes the
// device's with it, and the host looks while threads stand where nothing can be bounded. Times are
// in nanoseconds; `detail` is a slot and a parity, or the number of a named barrier.
enum Standing : uint32_t { nowhere, waiting, expired, meeting };
struct alignas(32) Record {
  uint32_t standing, site, block_x, block_yz, thread, detail, since_low, since_high;
};
struct Report {
  Record* records;
  uint64_t count, limit;
};
extern "C" {
__constant__ Report tw_report;
}

TW_DEVICE uint64_t now() {
  uint64_t nanoseconds;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(nanoseconds));
  return nanoseconds;
}
TW_DEVICE Record* own_record() {
  uint32_t sm, warp;
  asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
  asm volatile("mov.u32 %0, %%warpid;" : "=r"(warp));
  return tw_report.records + min(sm * 64 + warp, uint32_t(tw_report.count) - 1);
}
TW_DEVICE void note(Record* to, Standing standing, uint32_t site, uint32_t detail, uint64_t since) {
  asm volatile("st.volatile.global.v4.b32 [%0 + 16], {%1, %2, %3, %4};" ::"l"(to),
               "r"(threadIdx.x), "r"(detail), "r"(uint32_t(since)), "r"(uint32_t(since >> 32))
               : "memory");
  asm volatile("st.volatile.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to),
               "r"(uint32_t(standing)), "r"(site), "r"(blockIdx.x),
               "r"(blockIdx.y | blockIdx.z << 16)
               : "memory");
}
TW_DEVICE void clear(Record* record) {
  asm volatile("st.volatile.global.b32 [%0], %1;" ::"l"(record), "r"(0) : "memory");
}

// A wait that lasts half its limit is noted, so that the first to expire does not stand alone.
template <class Try>
TW_DEVICE void bounded(Try done, uint32_t site, uint32_t detail) {
  if (done()) return;
  const uint64_t since = now();
  bool noted = false;
  while (!done()) {
    const uint64_t waited = now() - since;
    if (!noted && waited > tw_report.limit / 2) {
      note(own_record(), waiting, site, detail, since);
      noted = true;
    }
    if (waited > tw_report.limit) {
      note(own_record(), expired, site, detail, since);
      __threadfence_system();
      __trap();
    }
  }
  if (noted) clear(own_record());
}
TW_DEVICE void wait(uint32_t barrier, uint32_t parity, uint32_t site, uint32_t first) {
  bounded([=] { return try_wait(barrier, parity); }, site, (barrier - first) / 4 | parity);
}
TW_DEVICE void wait_cluster(uint32_t barrier, uint32_t parity, uint32_t site, uint32_t first) {
  bounded([=] { return try_wait_cluster(barrier, parity); }, site, (barrier - first) / 4 | parity);
}

// Threads that meet cannot look at a clock meanwhile; the host can, at what is noted here.
template <class Meet>
TW_DEVICE void watched(Meet meet, uint32_t site, uint32_t id) {
  if (threadIdx.x % 32 == 0) note(own_record(), meeting, site, id, now());
  __syncwarp();
  meet();
  if (threadIdx.x % 32 == 0) clear(own_record());
  __syncwarp();
}
TW_DEVICE void sync_named(int id, int threads, uint32_t site) {
  watched([=] { sync_named(id, threads); }, site, id);
}
TW_DEVICE void sync_block(uint32_t site) {
  watched([] { __syncthreads(); }, site, 0);
}
TW_DEVICE void sync_cluster(uint32_t site) {
  watched([] { sync_cluster(); }, site, 0);
}
#endif

// ── fences ──────────────────────────────────────────────────────────────────────────────────

TW_DEVICE void fence_proxy_async() { asm volatile("fence.proxy.async.shared::cta;" ::: "memory"); }
TW_DEVICE void fence_cluster() { asm volatile("fence.acq_rel.cluster;" ::: "memory"); }
TW_DEVICE void fence_cluster_shared() {
  asm volatile("fence.release.sync_restrict::shared::cta.cluster;" ::: "memory");
}
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
TW_DEVICE void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
template <int Pending>
TW_DEVICE void wait_bulk() {
  asm volatile("cp.async.bulk.wait_group %0;" ::"n"(Pending) : "memory");
}
template <int Pending>
TW_DEVICE void wait_bulk_read() {
  asm volatile("cp.async.bulk.wait_group.read %0;" ::"n"(Pending) : "memory");
}
TW_DEVICE void commit_cp_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int Pending>
TW_DEVICE void wait_cp_async() {
  asm volatile("cp.async.wait_group %0;" ::"n"(Pending) : "memory");
}
// ── vectors of elements ─────────────────────────────────────────────────────────────────────

using float32 = float;
using tfloat32 = float;
using int32 = int32_t;
using uint32 = uint32_t;
using int8 = int8_t;
using uint8 = uint8_t;

// Elements of type From in words, as registers of another type or the same. Registers are arrays of
// constants' indices, so nothing of this is left but conversions.
template <class From>
struct Elements {
  static constexpr int per_word = 1;
  template <class To>
  static TW_DEVICE void unpack(To* to, uint32_t word) {
    static_assert(sizeof(From) == 4 && sizeof(To) == 4, "words");
    *reinterpret_cast<uint32_t*>(to) = word;
  }
  static TW_DEVICE uint32_t pack(const float* from) { return __float_as_uint(*from); }
  static TW_DEVICE uint32_t pack(const int32_t* from) { return uint32_t(*from); }
  static TW_DEVICE uint32_t pack(const uint32_t* from) { return *from; }
};
template <>
struct Elements<bfloat16> {
  static constexpr int per_word = 2;
  static TW_DEVICE void unpack(float* to, uint32_t word) {
    to[0] = __uint_as_float(word << 16);
    to[1] = __uint_as_float(word & 0xffff0000u);
  }
  static TW_DEVICE void unpack(bfloat16* to, uint32_t word) {
    *reinterpret_cast<uint32_t*>(to) = word;
  }
  static TW_DEVICE uint32_t pack(const float* from) { return pack_bfloat16(from[0], from[1]); }
  static TW_DEVICE uint32_t pack(const bfloat16* from) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
};
template <>
struct Elements<float16> {
  static constexpr int per_word = 2;
  static TW_DEVICE void unpack(float* to, uint32_t word) {
    to[0] = to_float(float16{uint16_t(word)});
    to[1] = to_float(float16{uint16_t(word >> 16)});
  }
  static TW_DEVICE void unpack(float16* to, uint32_t word) {
    *reinterpret_cast<uint32_t*>(to) = word;
  }
  static TW_DEVICE uint32_t pack(const float* from) { return pack_float16(from[0], from[1]); }
  static TW_DEVICE uint32_t pack(const float16* from) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
};
// Bytes are moved, four to a word, never converted.
template <class From>
struct Bytes {
  static constexpr int per_word = 4;
  static TW_DEVICE void unpack(From* to, uint32_t word) { *reinterpret_cast<uint32_t*>(to) = word; }
  static TW_DEVICE uint32_t pack(const From* from) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
};
template <>
struct Elements<float8_e4m3fn> : Bytes<float8_e4m3fn> {};
template <>
struct Elements<float8_e5m2> : Bytes<float8_e5m2> {};
template <>
struct Elements<int8_t> : Bytes<int8_t> {};
template <>
struct Elements<uint8_t> : Bytes<uint8_t> {};

template <class From, int Count, class To>
TW_DEVICE void load_shared(To* to, uint32_t from) {
  constexpr int per = Elements<From>::per_word, words = Count / per;
  uint32_t w[words];
  if constexpr (words == 4) {
    asm volatile("ld.shared.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "r"(from)
                 : "memory");
  } else if constexpr (words == 2) {
    asm volatile("ld.shared.v2.b32 {%0, %1}, [%2];"
                 : "=r"(w[0]), "=r"(w[1])
                 : "r"(from)
                 : "memory");
  } else {
    static_assert(words == 1, "a vector is 4, 8 or 16 bytes");
    asm volatile("ld.shared.b32 %0, [%1];" : "=r"(w[0]) : "r"(from) : "memory");
  }
#pragma unroll
  for (int i = 0; i < words; ++i) Elements<From>::unpack(to + i * per, w[i]);
}
template <class To, int Count, class From>
TW_DEVICE void store_shared(uint32_t to, const From* from) {
  constexpr int per = Elements<To>::per_word, words = Count / per;
  uint32_t w[words];
#pragma unroll
  for (int i = 0; i < words; ++i) w[i] = Elements<To>::pack(from + i * per);
  if constexpr (words == 4) {
    asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
  } else if constexpr (words == 2) {
    asm volatile("st.shared.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    static_assert(words == 1, "a vector is 4, 8 or 16 bytes");
    asm volatile("st.shared.b32 [%0], %1;" ::"r"(to), "r"(w[0]) : "memory");
  }
}
template <class From, int Count, class To>
TW_DEVICE void load_global(To* to, const From* from) {
  constexpr int per = Elements<From>::per_word, words = Count / per;
  uint32_t w[words];
  if constexpr (words == 4) {
    asm volatile("ld.global.v4.b32 {%0, %1, %2, %3}, [%4];"
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])
                 : "l"(from)
                 : "memory");
  } else if constexpr (words == 2) {
    asm volatile("ld.global.v2.b32 {%0, %1}, [%2];"
                 : "=r"(w[0]), "=r"(w[1])
                 : "l"(from)
                 : "memory");
  } else {
    static_assert(words == 1, "a vector is 4, 8 or 16 bytes");
    asm volatile("ld.global.b32 %0, [%1];" : "=r"(w[0]) : "l"(from) : "memory");
  }
#pragma unroll
  for (int i = 0; i < words; ++i) Elements<From>::unpack(to + i * per, w[i]);
}
template <class To, int Count, class From>
TW_DEVICE void store_global(To* to, const From* from) {
  constexpr int per = Elements<To>::per_word, words = Count / per;
  uint32_t w[words];
#pragma unroll
  for (int i = 0; i < words; ++i) w[i] = Elements<To>::pack(from + i * per);
  if constexpr (words == 4) {
    asm volatile("st.global.v4.b32 [%0], {%1, %2, %3, %4};" ::"l"(to), "r"(w[0]), "r"(w[1]),
                 "r"(w[2]), "r"(w[3])
                 : "memory");
  } else if constexpr (words == 2) {
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(to), "r"(w[0]), "r"(w[1]) : "memory");
  } else {
    static_assert(words == 1, "a vector is 4, 8 or 16 bytes");
    asm volatile("st.global.b32 [%0], %1;" ::"l"(to), "r"(w[0]) : "memory");
  }
}
// Into a peer's shared memory; the bytes count on a barrier there.
template <int Words, class From>
TW_DEVICE void store_remote(uint32_t to, const From* from, uint32_t barrier) {
  const uint32_t* w = reinterpret_cast<const uint32_t*>(from);
  if constexpr (Words == 4) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v4.b32 [%0], {%1, %2, %3, %4}, "
        "[%5];" ::"r"(to),
        "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]), "r"(barrier)
        : "memory");
  } else if constexpr (Words == 2) {
    asm volatile(
        "st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.v2.b32 [%0], {%1, %2}, "
        "[%3];" ::"r"(to),
        "r"(w[0]), "r"(w[1]), "r"(barrier)
        : "memory");
  } else {
    static_assert(Words == 1, "a vector is 4, 8 or 16 bytes");
    asm volatile("st.async.weak.shared::cluster.mbarrier::complete_tx::bytes.b32 [%0], %1, [%2];" ::"r"(
                     to),
                 "r"(w[0]), "r"(barrier)
                 : "memory");
  }
}

// ── matrices ────────────────────────────────────────────────────────────────────────────────

// Offsets and address in units of 16 bytes; swizzle 0 none, 1 of 128, 2 of 64, 3 of 32 bytes.
// In a cluster an address carries the block's rank above bit 17; the field has no room for it.
template <int Leading, int Stride, int Swizzle>
TW_DEVICE uint64_t descriptor(uint32_t address) {
  return (uint64_t(uint32_t(Stride) | uint32_t(Swizzle) << 30) << 32) | (uint32_t(Leading) << 16) |
         ((address & 0x3FFFFu) >> 4);
}
TW_DEVICE void fence_wgmma() { asm volatile("wgmma.fence.sync.aligned;" ::: "memory"); }
TW_DEVICE void commit_wgmma() { asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory"); }
template <int Pending>
TW_DEVICE void wait_wgmma() {
  asm volatile("wgmma.wait_group.sync.aligned %0;" ::"n"(Pending) : "memory");
}
// Keeps the compiler from moving accesses of these registers across a fence or a wait.
template <int Count>
TW_DEVICE void pin(float* registers) {
#pragma unroll
  for (int i = 0; i < Count; ++i) asm volatile("" : "+f"(registers[i])::"memory");
}
template <int Count, class T>
TW_DEVICE void pin(T* registers) {
  constexpr int words = Count * int(sizeof(T)) / 4;
#pragma unroll
  for (int i = 0; i < words; ++i)
    asm volatile("" : "+r"(reinterpret_cast<uint32_t*>(registers)[i])::"memory");
}
// These values have been computed before what follows is issued. `pin` holds the compiler, but is
// gone before the assembler, which sinks arithmetic below waits; it keeps the order of
// instructions with side effects, so one that is never executed depends on the values here.
TW_DEVICE void settle(uint32_t bits) {
  asm volatile("{\n .reg .pred p;\n setp.eq.u32 p, %0, 0x7fc5a3e1;\n @p pmevent 0;\n}" ::"r"(bits)
               : "memory");
}
template <int Count>
TW_DEVICE void settle(const uint32_t* registers) {
  uint32_t bits = registers[0];
#pragma unroll
  for (int i = 1; i < Count; ++i) bits ^= registers[i];
  settle(bits);
}
template <int Count>
TW_DEVICE void settle(const float* registers) {
  settle<Count>(reinterpret_cast<const uint32_t*>(registers));
}
template <int Count>
TW_DEVICE void settle(const int32_t* registers) {
  settle<Count>(reinterpret_cast<const uint32_t*>(registers));
}

}  // namespace tw
