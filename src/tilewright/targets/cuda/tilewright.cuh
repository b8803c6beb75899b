// The instructions that generated kernels use, one thin wrapper each. Nothing here decides
// anything: shared memory is named by 32-bit addresses, barriers likewise.
#pragma once

#include "copies.cuh"
#include "numbers.cuh"
#include "threads.cuh"

namespace tw {

// ── barriers ────────────────────────────────────────────────────────────────────────────────

TW_EFFECT(barrier_init, (uint32_t barrier, int count),
          "mbarrier.init.shared::cta.b64 [%0], %1;", "r"(barrier), "r"(count))
TW_DEVICE void fence_barrier_init() {
  asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  // of shared memory alone: the fence of all memory waits for the GPU, half of a short block's time
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
}
TW_EFFECT(arrive, (uint32_t barrier), "mbarrier.arrive.shared::cta.b64 _, [%0];", "r"(barrier))
TW_EFFECT(arrive, (uint32_t barrier, int count),
          "mbarrier.arrive.shared::cta.b64 _, [%0], %1;", "r"(barrier), "r"(count))
TW_EFFECT(arrive_expect, (uint32_t barrier, uint32_t bytes),
          "mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;", "r"(barrier), "r"(bytes))
TW_EFFECT(expect, (uint32_t barrier, uint32_t bytes),
          "mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;", "r"(barrier), "r"(bytes))
TW_EFFECT(arrive_remote, (uint32_t barrier),
          "mbarrier.arrive.shared::cluster.b64 _, [%0];", "r"(barrier))
TW_EFFECT(arrive_remote, (uint32_t barrier, int count),
          "mbarrier.arrive.shared::cluster.b64 _, [%0], %1;", "r"(barrier), "r"(count))
TW_EFFECT(arrive_expect_remote, (uint32_t barrier, uint32_t bytes),
          "mbarrier.arrive.expect_tx.relaxed.cluster.shared::cluster.b64 _, [%0], %1;",
          "r"(barrier), "r"(bytes))
TW_EFFECT(expect_remote, (uint32_t barrier, uint32_t bytes),
          "mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;",
          "r"(barrier), "r"(bytes))
// `relaxed` says nothing of memory: the fence of shared memory comes after it.
#define TW_TRY(name, how)                                                     \
  TW_DEVICE bool name(uint32_t barrier, uint32_t parity) {                    \
    uint32_t done;                                                            \
    asm volatile(                                                             \
        "{\n .reg .pred p;\n"                                                 \
        " mbarrier." how ".shared::cta.b64 p, [%1], %2;\n"                    \
        " selp.b32 %0, 1, 0, p;\n}"                                           \
        : "=r"(done)                                                          \
        : "r"(barrier), "r"(parity)                                           \
        : "memory");                                                          \
    return done != 0;                                                         \
  }
TW_TRY(test_wait, "test_wait.parity")
TW_TRY(try_wait, "try_wait.parity")
TW_TRY(try_wait_cluster, "try_wait.parity.acquire.cluster")
TW_TRY(try_wait_relaxed, "try_wait.parity.relaxed.cluster")
#undef TW_TRY
TW_DEVICE void acquire_shared() {
  asm volatile("fence.acquire.sync_restrict::shared::cluster.cluster;" ::: "memory");
}
TW_DEVICE void wait(uint32_t barrier, uint32_t parity) {
  while (!try_wait(barrier, parity)) {
  }
}
TW_DEVICE void wait_cluster(uint32_t barrier, uint32_t parity) {
  while (!try_wait_cluster(barrier, parity)) {
  }
}
TW_DEVICE void wait_cluster_shared(uint32_t barrier, uint32_t parity) {
  while (!try_wait_relaxed(barrier, parity)) {
  }
  acquire_shared();
}

// Of traced builds: a warp that does not wait stamps nothing.
template <int Slots>
TW_DEVICE void wait(uint32_t* stamps, uint32_t& at, uint32_t site, uint32_t barrier,
                    uint32_t parity) {
  if (test_wait(barrier, parity)) return;
  const uint32_t since = clock();
  wait(barrier, parity);
  stamp<Slots>(stamps, at, site, since, ~0u, clock());
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
TW_EFFECT(clear, (Record* record), "st.volatile.global.b32 [%0], %1;", "l"(record), "r"(0))

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
TW_DEVICE void wait_cluster_shared(uint32_t barrier, uint32_t parity, uint32_t site,
                                   uint32_t first) {
  bounded([=] { return try_wait_relaxed(barrier, parity); }, site, (barrier - first) / 4 | parity);
  acquire_shared();
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

// ── vectors of elements ─────────────────────────────────────────────────────────────────────

using float32 = float;
using tfloat32 = float;
using int32 = int32_t;
using uint32 = uint32_t;
using int8 = int8_t;
using uint8 = uint8_t;
using int16 = int16_t;
using uint16 = uint16_t;
using int64 = int64_t;
using uint64 = uint64_t;
using float64 = double;
using boolean = bool;

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
// Elements that are moved, four or two to a word.
template <class From>
struct Bytes {
  static constexpr int per_word = 4;
  static TW_DEVICE void unpack(From* to, uint32_t word) { *reinterpret_cast<uint32_t*>(to) = word; }
  static TW_DEVICE uint32_t pack(const From* from) {
    return *reinterpret_cast<const uint32_t*>(from);
  }
};
template <class From>
struct Halves : Bytes<From> {
  static constexpr int per_word = 2;
};
template <>
struct Elements<bfloat16> : Halves<bfloat16> {
  using Halves<bfloat16>::pack;
  using Halves<bfloat16>::unpack;
  static TW_DEVICE void unpack(float* to, uint32_t word) {
    to[0] = __uint_as_float(word << 16);
    to[1] = __uint_as_float(word & 0xffff0000u);
  }
  static TW_DEVICE uint32_t pack(const float* from) { return pack_bfloat16(from[0], from[1]); }
};
template <>
struct Elements<float16> : Halves<float16> {
  using Halves<float16>::pack;
  using Halves<float16>::unpack;
  static TW_DEVICE void unpack(float* to, uint32_t word) {
    to[0] = to_float(float16{uint16_t(word)});
    to[1] = to_float(float16{uint16_t(word >> 16)});
  }
  static TW_DEVICE uint32_t pack(const float* from) { return pack_float16(from[0], from[1]); }
};
template <>
struct Elements<int16_t> : Halves<int16_t> {};
template <>
struct Elements<uint16_t> : Halves<uint16_t> {};
template <>
struct Elements<bool> : Bytes<bool> {};
template <>
struct Elements<float8_e4m3fn> : Bytes<float8_e4m3fn> {};
template <>
struct Elements<float8_e5m2> : Bytes<float8_e5m2> {};
template <>
struct Elements<int8_t> : Bytes<int8_t> {};
template <>
struct Elements<uint8_t> : Bytes<uint8_t> {};

// One access of memory, of up to four words; MARK is the letter of its address, HOW says where and
// what caches are told. One operand more, the LAST, may be a policy or the barrier that counts.
#define TW_NO_MORE(last)
#define TW_POLICY(last) ", %" #last
#define TW_BARRIER(last) ", [%" #last "]"
#define TW_LOAD(HOW, MARK, MORE, ...)                                                        \
  if constexpr (Bytes == 16)                                                                 \
    asm volatile("ld." HOW ".v4.b32 {%0, %1, %2, %3}, [%4]" MORE(5) ";"                      \
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])                            \
                 : MARK(from) __VA_ARGS__                                                    \
                 : "memory");                                                                \
  else if constexpr (Bytes == 8)                                                             \
    asm volatile("ld." HOW ".v2.b32 {%0, %1}, [%2]" MORE(3) ";"                              \
                 : "=r"(w[0]), "=r"(w[1])                                                    \
                 : MARK(from) __VA_ARGS__                                                    \
                 : "memory");                                                                \
  else if constexpr (Bytes == 4)                                                             \
    asm volatile("ld." HOW ".b32 %0, [%1]" MORE(2) ";"                                       \
                 : "=r"(w[0]) : MARK(from) __VA_ARGS__ : "memory");                          \
  else if constexpr (Bytes == 2)                                                             \
    asm volatile("ld." HOW ".u16 %0, [%1]" MORE(2) ";"                                       \
                 : "=r"(w[0]) : MARK(from) __VA_ARGS__ : "memory");                          \
  else                                                                                       \
    asm volatile("ld." HOW ".u8 %0, [%1]" MORE(2) ";"                                        \
                 : "=r"(w[0]) : MARK(from) __VA_ARGS__ : "memory")
#define TW_STORE(HOW, MARK, MORE, ...)                                                       \
  if constexpr (Bytes == 16)                                                                 \
    asm volatile("st." HOW ".v4.b32 [%0], {%1, %2, %3, %4}" MORE(5) ";" ::MARK(to),          \
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) __VA_ARGS__                      \
                 : "memory");                                                                \
  else if constexpr (Bytes == 8)                                                             \
    asm volatile("st." HOW ".v2.b32 [%0], {%1, %2}" MORE(3) ";" ::MARK(to), "r"(w[0]),       \
                 "r"(w[1]) __VA_ARGS__                                                       \
                 : "memory");                                                                \
  else if constexpr (Bytes == 4)                                                             \
    asm volatile("st." HOW ".b32 [%0], %1" MORE(2) ";" ::MARK(to), "r"(w[0]) __VA_ARGS__     \
                 : "memory");                                                                \
  else if constexpr (Bytes == 2)                                                             \
    asm volatile("st." HOW ".u16 [%0], %1" MORE(2) ";" ::MARK(to), "r"(w[0]) __VA_ARGS__     \
                 : "memory");                                                                \
  else                                                                                       \
    asm volatile("st." HOW ".u8 [%0], %1" MORE(2) ";" ::MARK(to), "r"(w[0]) __VA_ARGS__      \
                 : "memory")
#define TW_LOAD_GLOBAL(HOW, MORE, ...) TW_LOAD("global" HOW, "l", MORE, __VA_ARGS__)
#define TW_LOAD_FIXED(HOW, MORE, ...) TW_LOAD("global.nc" HOW, "l", MORE, __VA_ARGS__)
#define TW_STORE_GLOBAL(HOW, MORE, ...) TW_STORE("global" HOW, "l", MORE, __VA_ARGS__)
#define TW_KEPT , "l"(uint64_t(Kept))
#define TW_TOLD(ACCESS)                                          \
  if constexpr (Kept == normal) {                                \
    ACCESS("", TW_NO_MORE);                                      \
  } else if constexpr (Kept == no_allocate) {                    \
    ACCESS(".L1::no_allocate", TW_NO_MORE);                      \
  } else {                                                       \
    ACCESS(".L2::cache_hint", TW_POLICY, TW_KEPT);               \
  }

template <class From, int Count, class To>
TW_DEVICE void load_shared(To* to, uint32_t from) {
  if constexpr (sizeof(From) == 8) {
    load_shared<uint32_t, 2 * Count>(reinterpret_cast<uint32_t*>(to), from);
  } else {
    constexpr int Bytes = Count * sizeof(From), per = Elements<From>::per_word;
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "a vector is 4, 8 or 16 bytes");
    uint32_t w[Bytes / 4];
    TW_LOAD("shared", "r", TW_NO_MORE);
#pragma unroll
    for (int i = 0; i < Bytes / 4; ++i) Elements<From>::unpack(to + i * per, w[i]);
  }
}
template <class To, int Count, class From>
TW_DEVICE void store_shared(uint32_t to, const From* from) {
  if constexpr (sizeof(To) == 8) {
    store_shared<uint32_t, 2 * Count>(to, reinterpret_cast<const uint32_t*>(from));
  } else {
    constexpr int Bytes = Count * sizeof(To), per = Elements<To>::per_word;
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "a vector is 4, 8 or 16 bytes");
    uint32_t w[Bytes / 4];
#pragma unroll
    for (int i = 0; i < Bytes / 4; ++i) w[i] = Elements<To>::pack(from + i * per);
    TW_STORE("shared", "r", TW_NO_MORE);
  }
}

// Vectors of whole words, or one element of less as it is. The access is written out here: in a
// function of its own, what several of them have in common is computed for each.
// `Fixed`: of what nobody writes while the kernel runs. The assembler moves such loads before stores.
template <class From, int Count, Policy Kept = normal, bool Fixed = false, class To>
TW_DEVICE void load_global(To* to, const From* from) {
  if constexpr (sizeof(From) == 8) {
    load_global<uint32_t, 2 * Count, Kept, Fixed>(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from));
  } else {
  constexpr int Bytes = Count * sizeof(From), per = Elements<From>::per_word;
  constexpr int words = Count / per + (Count < per);
  uint32_t w[words];
  if constexpr (Fixed) {
    TW_TOLD(TW_LOAD_FIXED)
  } else {
    TW_TOLD(TW_LOAD_GLOBAL)
  }
  if constexpr (Bytes < 4) {
    static_assert(Count == 1 && sizeof(To) == sizeof(From), "an element as it is");
    if constexpr (Bytes == 2) *reinterpret_cast<uint16_t*>(to) = uint16_t(w[0]);
    else *reinterpret_cast<uint8_t*>(to) = uint8_t(w[0]);
  } else {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "a vector is 4, 8 or 16 bytes");
#pragma unroll
    for (int i = 0; i < words; ++i) Elements<From>::unpack(to + i * per, w[i]);
  }
  }
}
// 16 bytes that begin anywhere, of what nobody writes while the kernel runs: they lie in two vectors.
template <class From, class To>
TW_DEVICE void load_across(To* to, const From* from) {
  const uint64_t at = reinterpret_cast<uint64_t>(from);
  const uint32_t* first = reinterpret_cast<const uint32_t*>(at & ~uint64_t(15));
  uint32_t w[8];
  load_global<uint32_t, 4, normal, true>(w, first);
  load_global<uint32_t, 4, normal, true>(w + 4, at & 15 ? first + 4 : first);
#pragma unroll
  for (int i = 0; i < 6; ++i) w[i] = at & 8 ? w[i + 2] : w[i];
#pragma unroll
  for (int i = 0; i < 5; ++i) w[i] = at & 4 ? w[i + 1] : w[i];
  constexpr int per = Elements<From>::per_word;
#pragma unroll
  for (int i = 0; i < 4; ++i)
    Elements<From>::unpack(to + i * per, __funnelshift_r(w[i], w[i + 1], (at & 3) * 8));
}
// Elements of 16 bits in registers, two at a time; NaN stays.
#define TW_PAIR(OP, T, KIND)                                                                      \
  TW_DEVICE void OP##_pair(T* to, const T* from) {                                                \
    uint32_t r;                                                                                   \
    asm(#OP ".NaN." KIND "x2 %0, %1, %2;"                                                         \
        : "=r"(r) : "r"(Elements<T>::pack(to)), "r"(Elements<T>::pack(from)));                    \
    Elements<T>::unpack(to, r);                                                                   \
  }
TW_PAIR(max, bfloat16, "bf16")
TW_PAIR(min, bfloat16, "bf16")
TW_PAIR(max, float16, "f16")
TW_PAIR(min, float16, "f16")
// A place in global memory that is computed here, and not again in each branch that uses it.
template <class T>
TW_DEVICE T* computed(T* at) {
  T* here;
  asm("mov.b64 %0, %1;" : "=l"(here) : "l"(at));
  __builtin_assume(__isGlobal(here));
  return here;
}
// `Renamed`: of sums that a loop keeps in registers. A vector is stored from four registers in a
// row, and the assembler would keep the sums there: FFMAs wait when two of their operands lie in
// the same bank. After an XOR with a zero that it does not know they are other registers.
template <class To, int Count, Policy Kept = normal, bool Renamed = false, class From>
TW_DEVICE void store_global(To* to, const From* from) {
  if constexpr (sizeof(To) == 8) {
    store_global<uint32_t, 2 * Count, Kept, Renamed>(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from));
  } else {
  constexpr int Bytes = Count * sizeof(To), per = Elements<To>::per_word;
  constexpr int words = Count / per + (Count < per);
  uint32_t w[words];
  if constexpr (Bytes < 4) {
    static_assert(Count == 1 && sizeof(To) == sizeof(From), "an element as it is");
    if constexpr (Bytes == 2) w[0] = *reinterpret_cast<const uint16_t*>(from);
    else w[0] = *reinterpret_cast<const uint8_t*>(from);
  } else {
    static_assert(Bytes == 4 || Bytes == 8 || Bytes == 16, "a vector is 4, 8 or 16 bytes");
#pragma unroll
    for (int i = 0; i < words; ++i) w[i] = Elements<To>::pack(from + i * per);
  }
  if constexpr (Renamed) {
#pragma unroll
    for (int i = 0; i < words; ++i) w[i] ^= gridDim.z >> 16;
  }
  TW_TOLD(TW_STORE_GLOBAL)
  }
}
// Into a peer's shared memory.
template <int Words, class From>
TW_DEVICE void store_cluster(uint32_t to, const From* from) {
  constexpr int Bytes = 4 * Words;
  const uint32_t* w = reinterpret_cast<const uint32_t*>(from);
  TW_STORE("shared::cluster", "r", TW_NO_MORE);
}
// Into a peer's shared memory; the bytes count on a barrier there.
template <int Words, class From>
TW_DEVICE void store_remote(uint32_t to, const From* from, uint32_t barrier) {
  constexpr int Bytes = 4 * Words;
  const uint32_t* w = reinterpret_cast<const uint32_t*>(from);
#define TW_COUNTED , "r"(barrier)
  TW_STORE("async.weak.shared::cluster.mbarrier::complete_tx::bytes", "r", TW_BARRIER, TW_COUNTED);
}
#undef TW_COUNTED
#undef TW_TOLD
#undef TW_KEPT
#undef TW_STORE_GLOBAL
#undef TW_LOAD_FIXED
#undef TW_LOAD_GLOBAL
#undef TW_STORE
#undef TW_LOAD
#undef TW_BARRIER
#undef TW_POLICY
#undef TW_NO_MORE

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
TW_WAIT(wait_wgmma, "wgmma.wait_group.sync.aligned %0;")
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
TW_EFFECT(settle, (uint32_t bits),
          "{\n .reg .pred p;\n setp.eq.u32 p, %0, 0x7fc5a3e1;\n @p pmevent 0;\n}", "r"(bits))
template <int Count, class T>
TW_DEVICE void settle(const T* values) {
  const uint32_t* registers = reinterpret_cast<const uint32_t*>(values);
  uint32_t bits = registers[0];
#pragma unroll
  for (int i = 1; i < Count; ++i) bits ^= registers[i];
  settle(bits);
}

}  // namespace tw
