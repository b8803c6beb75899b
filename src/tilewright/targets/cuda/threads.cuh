// What threads, warps and blocks are to each other: votes, shuffles, folds; and atomics.
#pragma once

#include "numbers.cuh"

namespace tw {

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
TW_EFFECT(sync_named, (int id, int threads), "bar.sync %0, %1;", "r"(id), "r"(threads))
TW_EFFECT(arrive_named, (int id, int threads), "bar.arrive %0, %1;", "r"(id), "r"(threads))
TW_DEVICE void sync_cluster() {
  asm volatile("barrier.cluster.arrive.release.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
                   : "memory");
}
// Orders what each block has written in its own shared memory, and no other: the whole fence waits
// for the thread's accesses at the scope of the GPU.
TW_DEVICE void sync_cluster_shared() {
  asm volatile(
      "fence.release.sync_restrict::shared::cta.cluster;\n"
      " barrier.cluster.arrive.relaxed.aligned;\n barrier.cluster.wait.acquire.aligned;" ::
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

// Shuffles of what the built-in ones do not take: narrow types, by their bits.
template <class T>
TW_DEVICE uint32_t narrow_bits(T x) {
  uint32_t r = 0;
  if constexpr (sizeof(T) == 2) {
    r = bits_as<uint16_t>(x);
  } else {
    static_assert(sizeof(T) == 1, "8 or 16 bits");
    r = bits_as<uint8_t>(x);
  }
  return r;
}
template <class T>
TW_DEVICE T from_narrow_bits(uint32_t x) {
  if constexpr (sizeof(T) == 2)
    return bits_as<T>(uint16_t(x));
  else
    return bits_as<T>(uint8_t(x));
}
namespace narrow {
#define TW_SHUFFLE(name)                                                             \
  template <class T>                                                                 \
  TW_DEVICE T name(uint32_t mask, T x, int lane, int width = 32) {                    \
    return from_narrow_bits<T>(::name(mask, narrow_bits(x), lane, width));            \
  }
TW_SHUFFLE(__shfl_sync)
TW_SHUFFLE(__shfl_xor_sync)
TW_SHUFFLE(__shfl_up_sync)
TW_SHUFFLE(__shfl_down_sync)
#undef TW_SHUFFLE
}  // namespace narrow

// Two values as one operation makes of them; narrow floats by way of float.
template <class T>
struct Number {
  using Wide = T;
  static TW_DEVICE T wide(T x) { return x; }
  static TW_DEVICE T narrow(T x) { return x; }
};
template <>
struct Number<float16> {
  using Wide = float;
  static TW_DEVICE float wide(float16 x) { return to_float(x); }
  static TW_DEVICE float16 narrow(float x) { return to_float16(x); }
};
template <>
struct Number<bfloat16> {
  using Wide = float;
  static TW_DEVICE float wide(bfloat16 x) { return to_float(x); }
  static TW_DEVICE bfloat16 narrow(float x) { return to_bfloat16(x); }
};
template <class T>
TW_DEVICE T larger(T a, T b) { return a > b ? a : b; }
template <class T>
TW_DEVICE T smaller(T a, T b) { return a < b ? a : b; }
TW_DEVICE float larger(float a, float b) { return fmaxf(a, b); }
TW_DEVICE float smaller(float a, float b) { return fminf(a, b); }
TW_DEVICE double larger(double a, double b) { return fmax(a, b); }
TW_DEVICE double smaller(double a, double b) { return fmin(a, b); }
// `redux` folds the 32-bit integers of a warp in one instruction.
#define TW_FOLD(name, word, expression)                             \
  struct Fold_##name {                                              \
    template <class T>                                              \
    TW_DEVICE T operator()(T x, T y) const {                        \
      const auto a = Number<T>::wide(x), b = Number<T>::wide(y);    \
      return Number<T>::narrow(expression);                         \
    }                                                               \
    template <class T>                                              \
    static TW_DEVICE T redux(uint32_t lanes, T x) {                 \
      return __reduce_##word##_sync(lanes, x);                      \
    }                                                               \
  };
TW_FOLD(sum, add, a + b)
TW_FOLD(max, max, larger(a, b))
TW_FOLD(min, min, smaller(a, b))
TW_FOLD(and, and, a & b)
TW_FOLD(or, or, a | b)
TW_FOLD(xor, xor, a ^ b)
#undef TW_FOLD
template <class T>
constexpr bool redux_takes = false;
template <>
constexpr bool redux_takes<int32_t> = true;
template <>
constexpr bool redux_takes<uint32_t> = true;
template <class T>
TW_DEVICE T shuffle_xor(T x, int lane) {
  if constexpr (sizeof(T) >= 4)
    return __shfl_xor_sync(~0u, x, lane);
  else
    return narrow::__shfl_xor_sync(~0u, x, lane);
}
template <class T>
TW_DEVICE T shuffle(uint32_t mask, T x, int lane) {
  if constexpr (sizeof(T) >= 4)
    return __shfl_sync(mask, x, lane);
  else
    return narrow::__shfl_sync(mask, x, lane);
}
// Lanes of this thread's warp: the last one of a block may not have all.
TW_DEVICE uint32_t warp_lanes() {
  const int total = blockDim.x * blockDim.y * blockDim.z;
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int left = total - (thread & ~31);
  return left >= 32 ? ~0u : (1u << left) - 1;
}
template <int Width, class T, class F>
TW_DEVICE T warp_reduce(T x, F fold) {
  const uint32_t there = warp_lanes();
  if constexpr (Width == 32 && redux_takes<T>) return F::redux(there, x);
  if (there == ~0u) {
#pragma unroll
    for (int lane = Width / 2; lane > 0; lane /= 2) x = fold(x, shuffle_xor(x, lane));
    return x;
  }
  const int thread = threadIdx.x + blockDim.x * (threadIdx.y + blockDim.y * threadIdx.z);
  const int first = thread & 31 & ~(Width - 1);
  T found = shuffle(there, x, first);
#pragma unroll 1  // unrolled it needs more predicates than there are (C7600)
  for (int lane = first + 1; lane < first + Width; ++lane) {
    const T other = shuffle(there, x, lane);
    if (there >> lane & 1) found = fold(found, other);
  }
  return found;
}

// ── atomics: the old value, order relaxed ───────────────────────────────────────────────────

// What the hardware has no instruction for: compare and swap until nobody came between.
template <class T, class F>
TW_DEVICE T atomic_update(T* at, F next) {
  using Bits = unsigned_of_width<T>;
  Bits* const word = reinterpret_cast<Bits*>(at);
  Bits seen = *const_cast<volatile Bits*>(word);
  while (true) {
    const Bits wanted = bits_as<Bits>(next(bits_as<T>(seen)));
    const Bits found = atomicCAS(word, seen, wanted);
    if (found == seen) return bits_as<T>(seen);
    seen = found;
  }
}
#define TW_ATOMIC(name, fold)                                                       \
  template <class T, class V>                                                       \
  TW_DEVICE T name(T* at, V value) {                                                \
    return atomic_update(at, [=](T old) { return fold(old, static_cast<T>(value)); }); \
  }
TW_ATOMIC(atomic_add, Fold_sum())
TW_ATOMIC(atomic_max, Fold_max())
TW_ATOMIC(atomic_min, Fold_min())
TW_ATOMIC(atomic_and, Fold_and())
TW_ATOMIC(atomic_or, Fold_or())
TW_ATOMIC(atomic_xor, Fold_xor())
#undef TW_ATOMIC
template <class T, class V>
TW_DEVICE T atomic_exch(T* at, V value) {
  return atomic_update(at, [=](T) { return static_cast<T>(value); });
}
#define TW_NATIVE(type, as, name, builtin)                                             \
  template <class V>                                                                   \
  TW_DEVICE type name(type* at, V value) {                                             \
    return type(builtin(reinterpret_cast<as*>(at), static_cast<as>(type(value))));      \
  }
#define TW_INTEGER(type, as, sum)              \
  TW_NATIVE(type, sum, atomic_add, atomicAdd)  \
  TW_NATIVE(type, as, atomic_max, atomicMax)   \
  TW_NATIVE(type, as, atomic_min, atomicMin)   \
  TW_NATIVE(type, sum, atomic_and, atomicAnd)  \
  TW_NATIVE(type, sum, atomic_or, atomicOr)    \
  TW_NATIVE(type, sum, atomic_xor, atomicXor)  \
  TW_NATIVE(type, sum, atomic_exch, atomicExch)
TW_INTEGER(int32_t, int, int)
TW_INTEGER(uint32_t, unsigned int, unsigned int)
TW_INTEGER(int64_t, long long, unsigned long long)
TW_INTEGER(uint64_t, unsigned long long, unsigned long long)
TW_NATIVE(float, float, atomic_add, atomicAdd)
TW_NATIVE(float, float, atomic_exch, atomicExch)
TW_NATIVE(double, double, atomic_add, atomicAdd)
#undef TW_INTEGER
#undef TW_NATIVE
// Neighbours in global memory, each by itself.
TW_DEVICE void atomic_add(float* at, float a, float b) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v2.f32 [%0], {%1, %2};" ::"l"(
                   __cvta_generic_to_global(at)),
               "f"(a), "f"(b)
               : "memory");
#else
  atomicAdd(at, a);
  atomicAdd(at + 1, b);
#endif
}
TW_DEVICE void atomic_add(float* at, float a, float b, float c, float d) {
#if __CUDA_ARCH__ >= 900
  asm volatile("red.relaxed.gpu.global.add.v4.f32 [%0], {%1, %2, %3, %4};" ::"l"(
                   __cvta_generic_to_global(at)),
               "f"(a), "f"(b), "f"(c), "f"(d)
               : "memory");
#else
  atomic_add(at, a, b);
  atomic_add(at + 2, c, d);
#endif
}
// By thread 0 of the block, which goes on until it needs the old value. The assembler gathers what a
// warp's threads add to one element, and hands old values out by a shuffle, which waits for them right
// there; not where the address may differ between threads, as far as it knows.
template <class T, class V>
TW_DEVICE T first_atomic_add(T* at, V value) {
  static_assert(sizeof(T) == 4, "a word");
  unsigned zero;
  asm volatile("mov.u32 %0, %%tid.x;" : "=r"(zero));
  T old;
  asm volatile("atom.add.u32 %0, [%1], %2;" : "=r"(old) : "l"(at + zero), "r"(T(value)) : "memory");
  return old;
}
template <class T>
TW_DEVICE T atomic_load(const T* at) {
  using Bits = unsigned_of_width<T>;
  return bits_as<T>(*reinterpret_cast<const volatile Bits*>(at));
}
template <class T, class V>
TW_DEVICE void atomic_store(T* at, V value) {
  using Bits = unsigned_of_width<T>;
  *reinterpret_cast<volatile Bits*>(at) = bits_as<Bits>(static_cast<T>(value));
}
// What one lane gets, in all lanes of the warp.
template <class F>
TW_DEVICE auto from_lane_0(F get) {
  decltype(get()) r{};
  if ((threadIdx.x & 31) == 0) r = get();
  return __shfl_sync(~0u, r, 0);
}

// ── stamps ──────────────────────────────────────────────────────────────────────────────────

// Of traced builds (`stamp_ops`). A warp of a traced block has a section of `Slots` pairs of words:
// the first is when and where it began, in nanoseconds; from the last two down, two at a time,
// number and clock of each stamp. `at` is the place of the next two, in bytes; 0 in threads that
// note nothing, and the start of a section that is full. Straight code: matrix instructions may be
// under way. Returns how many tiles a block traces; the assembler must see that threads agree on it,
// or it takes no uniform registers in what is traced, and in its plain copy neither.
template <int Slots, int Blocks, int Tiles, int First, int Group, int Solo>
TW_DEVICE int begin_stamps(uint32_t* stamps, uint32_t& at) {
  const uint32_t blocks = gridDim.x * gridDim.y * gridDim.z, step = (blocks + Blocks - 1) / Blocks;
  const uint32_t block = blockIdx.x + gridDim.x * (blockIdx.y + gridDim.y * blockIdx.z);
  const uint32_t warp = threadIdx.x / 32, warps = (blockDim.x + 31) / 32;
  const bool chosen = (Solo || threadIdx.x % 32 == 0) && (warp - First) % Group == 0;
  uint32_t index = Blocks;  // among traced blocks; a division would take longer
#pragma unroll
  for (uint32_t i = 0; i < Blocks; ++i) index = block == i * step ? i : index;
  if (at == 0 && index < Blocks && chosen) {
    const uint32_t section = (index * warps + warp + 1) * Slots;
    uint32_t time, sm;
    asm volatile("mov.u32 %0, %%globaltimer_lo;" : "=r"(time));
    asm volatile("mov.u32 %0, %%smid;" : "=r"(sm));
    asm volatile("st.global.v2.b32 [%0], {%1, %2};" ::"l"(stamps + 2 * section), "r"(time),
                 "r"(sm));
    at = 8 * (section + Slots - 2);
  }
  return index < Blocks ? Tiles : 0;
}
TW_DEVICE uint32_t clock() {
  uint32_t now;
  asm volatile("mov.u32 %0, %%clock;" : "=r"(now));
  return now;
}
constexpr uint32_t unwritten = 0xCDCDCDCD;  // as memory is before
template <int Slots>
TW_DEVICE void stamp(uint32_t* stamps, uint32_t& at, uint32_t site, uint32_t clock,
                     uint32_t next = unwritten, uint32_t then = 0) {
  asm volatile(
      "{\n .reg .pred p;\n setp.ne.b32 p, %6, 0;\n @p st.global.v4.b32 [%1], {%2, %3, %4, %5};\n"
      " @p add.u32 %0, %0, -16;\n}"
      : "+r"(at)
      : "l"(reinterpret_cast<char*>(stamps) + at), "r"(site), "r"(clock), "r"(next), "r"(then),
        "r"(at % (8 * Slots)));
}

}  // namespace tw
