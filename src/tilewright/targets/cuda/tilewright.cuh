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
// One instruction for either half of a word; a shift of the upper half takes two.
TW_DEVICE float to_float(bfloat16 x) {
  float r;
  asm("mov.b32 %0, {%1, %2};" : "=f"(r) : "h"(uint16_t(0)), "h"(x.bits));
  return r;
}
TW_DEVICE float to_float(float16 x) {
  float r;
  asm("cvt.f32.f16 %0, %1;" : "=f"(r) : "h"(x.bits));
  return r;
}
// Not fused: each is rounded.
TW_DEVICE float16 add(float16 x, float16 y) {
  float16 r;
  asm("add.rn.f16 %0, %1, %2;" : "=h"(r.bits) : "h"(x.bits), "h"(y.bits));
  return r;
}
TW_DEVICE float16 sub(float16 x, float16 y) {
  float16 r;
  asm("sub.rn.f16 %0, %1, %2;" : "=h"(r.bits) : "h"(x.bits), "h"(y.bits));
  return r;
}
TW_DEVICE float16 mul(float16 x, float16 y) {
  float16 r;
  asm("mul.rn.f16 %0, %1, %2;" : "=h"(r.bits) : "h"(x.bits), "h"(y.bits));
  return r;
}
// Integers of up to 22 bits: 1.5 * 2^23 has them as its last digits; of up to 9 bits: 1536.
TW_DEVICE float small_float(int x) { return __int_as_float(0x4b400000 + x) - 12582912.0f; }
TW_DEVICE float16 small_float16(int x) {
  return sub(float16{uint16_t(0x6600 + x)}, float16{0x6600});
}
TW_DEVICE bfloat16 to_bfloat16(double x) {
#if __CUDA_ARCH__ >= 900
  bfloat16 r;
  asm("cvt.rn.bf16.f64 %0, %1;" : "=h"(r.bits) : "d"(x));
  return r;
#else
  // rounded to odd first, so that rounding twice is rounding once
  const float near = __double2float_rz(x);
  return to_bfloat16(__uint_as_float(__float_as_uint(near) | uint32_t(double(near) != x)));
#endif
}
TW_DEVICE float16 to_float16(double x) {
  float16 r;
  asm("cvt.rn.f16.f64 %0, %1;" : "=h"(r.bits) : "d"(x));
  return r;
}
// Saturating: what is too large becomes the largest finite value; NaN stays NaN.
#if __CUDA_ARCH__ >= 890
TW_DEVICE float8_e4m3fn to_float8_e4m3fn(float x) {
  uint16_t r;
  asm("cvt.rn.satfinite.e4m3x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
  return float8_e4m3fn{uint8_t(r)};
}
TW_DEVICE float8_e5m2 to_float8_e5m2(float x) {
  uint16_t r;
  asm("cvt.rn.satfinite.e5m2x2.f32 %0, %1, %2;" : "=h"(r) : "f"(0.0f), "f"(x));
  return float8_e5m2{uint8_t(r)};
}
TW_DEVICE float to_float(float8_e4m3fn x) {
  uint32_t r;
  asm("cvt.rn.f16x2.e4m3x2 %0, %1;" : "=r"(r) : "h"(uint16_t(x.bits)));
  return to_float(float16{uint16_t(r)});
}
TW_DEVICE float to_float(float8_e5m2 x) {
  uint32_t r;
  asm("cvt.rn.f16x2.e5m2x2 %0, %1;" : "=r"(r) : "h"(uint16_t(x.bits)));
  return to_float(float16{uint16_t(r)});
}
#else
// The bits of a float of `Mantissa` bits whose least normal value is 2^Least; `Most`: the largest.
template <int Mantissa, int Least, uint32_t Most>
TW_DEVICE uint8_t narrow_float(float x) {
  const uint32_t bits = __float_as_uint(x), sign = bits >> 24 & 0x80u;
  const float size = fabsf(x);
  if (x != x) return uint8_t(0x7f);
  uint32_t code;
  if (size < __uint_as_float(uint32_t(Least + 127) << 23)) {
    code = uint32_t(rintf(size * __uint_as_float(uint32_t(127 + Mantissa - Least) << 23)));
  } else {
    constexpr int drop = 23 - Mantissa;
    const uint32_t near = (bits & 0x7fffffffu) + ((1u << (drop - 1)) - 1) + (bits >> drop & 1u);
    code = (near >> drop) - (uint32_t(Least + 126) << Mantissa);
  }
  return uint8_t(sign | min(code, Most));
}
TW_DEVICE float8_e4m3fn to_float8_e4m3fn(float x) {
  return float8_e4m3fn{narrow_float<3, -6, 0x7e>(x)};
}
TW_DEVICE float8_e5m2 to_float8_e5m2(float x) {
  return float8_e5m2{narrow_float<2, -14, 0x7b>(x)};
}
TW_DEVICE float to_float(float8_e4m3fn x) {
  if ((x.bits & 0x7f) == 0x7f) return __uint_as_float(0x7fffffffu);
  // the same bits are a float16, 8 powers of two smaller
  return 256.0f * to_float(float16{uint16_t((x.bits & 0x80) << 8 | (x.bits & 0x7f) << 7)});
}
TW_DEVICE float to_float(float8_e5m2 x) { return to_float(float16{uint16_t(x.bits << 8)}); }
#endif
TW_DEVICE float to_tfloat32(float x) {
  const uint32_t bits = __float_as_uint(x);
  if ((bits & 0x7f800000u) == 0x7f800000u) return x;
  return __uint_as_float((bits + 0xfffu + (bits >> 13 & 1u)) & 0xffffe000u);
}
template <class To, class From>
TW_DEVICE To bits_as(From from) {
  static_assert(sizeof(To) == sizeof(From), "one width");
  union {
    From from;
    To to;
  } u{from};
  return u.to;
}
// Toward zero, saturating, NaN to 0.
TW_DEVICE int32_t integer_of(float x) {
  int32_t r;
  asm("cvt.rzi.s32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
TW_DEVICE int32_t integer_of(double x) {
  int32_t r;
  asm("cvt.rzi.s32.f64 %0, %1;" : "=r"(r) : "d"(x));
  return r;
}
TW_DEVICE uint32_t unsigned_of(float x) {
  uint32_t r;
  asm("cvt.rzi.u32.f32 %0, %1;" : "=r"(r) : "f"(x));
  return r;
}
TW_DEVICE uint32_t unsigned_of(double x) {
  uint32_t r;
  asm("cvt.rzi.u32.f64 %0, %1;" : "=r"(r) : "d"(x));
  return r;
}
template <class To, class From>
TW_DEVICE To to_integer(From x) {
  if constexpr (sizeof(To) == 8) {
    if (x != x) return To(0);
    To r;
    if constexpr (To(-1) < To(0)) {
      if constexpr (sizeof(From) == 8)
        asm("cvt.rzi.s64.f64 %0, %1;" : "=l"(r) : "d"(x));
      else
        asm("cvt.rzi.s64.f32 %0, %1;" : "=l"(r) : "f"(x));
    } else {
      if constexpr (sizeof(From) == 8)
        asm("cvt.rzi.u64.f64 %0, %1;" : "=l"(r) : "d"(x));
      else
        asm("cvt.rzi.u64.f32 %0, %1;" : "=l"(r) : "f"(x));
    }
    return r;
  } else if constexpr (To(-1) < To(0)) {
    const int32_t r = x == x ? integer_of(x) : 0;
    if constexpr (sizeof(To) == 4) {
      return r;
    } else {
      constexpr int32_t most = (1 << (8 * sizeof(To) - 1)) - 1;
      return To(min(max(r, -most - 1), most));
    }
  } else {
    const uint32_t r = x == x ? unsigned_of(x) : 0;
    if constexpr (sizeof(To) == 4) {
      return r;
    } else {
      return To(min(r, (1u << (8 * sizeof(To))) - 1u));
    }
  }
}
template <class T>
TW_DEVICE T popcount(T x) {
  if constexpr (sizeof(T) == 8) return T(__popcll(uint64_t(x)));
  constexpr uint32_t mask = 0xffffffffu >> (32 - 8 * sizeof(T) % 64) % 32;
  return T(__popc(uint32_t(x) & mask));
}
template <class T>
TW_DEVICE T clz(T x) {
  if constexpr (sizeof(T) == 8) return T(__clzll(int64_t(x)));
  constexpr uint32_t mask = 0xffffffffu >> (32 - 8 * sizeof(T) % 64) % 32;
  return T(__clz(int32_t(uint32_t(x) & mask)) - (32 - 8 * int(sizeof(T))));
}
template <class T>
TW_DEVICE T int_pow(T a, T b) {
  if (b < 0) return T(a == 1 ? 1 : a == T(-1) ? (b % 2 == 0 ? 1 : -1) : 0);
  T r = 1;
  for (; b > 0; b >>= 1, a = T(a * a))
    if (b & 1) r = T(r * a);
  return r;
}
template <class T>
TW_DEVICE T int_rem(T a, T b) {
  return T(a % b);
}
TW_DEVICE float floor_mod(float a, float b) {
  const float r = fmodf(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
}
TW_DEVICE double floor_mod(double a, double b) {
  const double r = fmod(a, b);
  return r != 0 && (r < 0) != (b < 0) ? r + b : r;
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
// The library's exp2f takes three more instructions for results below 2^-126, which are 0 here; all
// others are the same. In attention those three are a twentieth of the time and more.
TW_DEVICE float exp2(float x) {
  float r;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
TW_DEVICE float exp_fast(float x) { return tw::exp2(x * 1.4426950408889634f); }
TW_DEVICE float tanh_fast(float x) {
  float r;
  asm("tanh.approx.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
TW_DEVICE float reciprocal(float x) {
  float r;
  asm("rcp.approx.ftz.f32 %0, %1;" : "=f"(r) : "f"(x));
  return r;
}
// x / c, rounded once as a division is (below 2^-100 it may be the next float), without a
// division's branch: 4 instructions instead of 14. See emit_expr.py for the constants it takes.
TW_DEVICE float divide_by(float x, float c) {
  float near = x * (1.0f / c), left = fmaf(-c, near, x);
  // nothing left: a zero keeps its sign; infinities leave no number
  return fabsf(left) > 0.0f ? fmaf(left, 1.0f / c, near) : near;
}
// The divisor is 1 or more: a division's branch for very small and very large ones is not needed.
TW_DEVICE float sigmoid(float x) { return reciprocal(1.0f + expf(-x)); }
TW_DEVICE float sigmoid_fast(float x) { return reciprocal(1.0f + exp_fast(-x)); }
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
TW_DEVICE double max_nan(double a, double b) { return a != a || b != b ? a + b : fmax(a, b); }
TW_DEVICE double min_nan(double a, double b) { return a != a || b != b ? a + b : fmin(a, b); }

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
#define TW_FOLD(name, expression)                               \
  struct Fold_##name {                                          \
    template <class T>                                          \
    TW_DEVICE T operator()(T x, T y) const {                    \
      const auto a = Number<T>::wide(x), b = Number<T>::wide(y); \
      return Number<T>::narrow(expression);                     \
    }                                                           \
  };
TW_FOLD(sum, a + b)
TW_FOLD(max, larger(a, b))
TW_FOLD(min, smaller(a, b))
TW_FOLD(and, a & b)
TW_FOLD(or, a | b)
TW_FOLD(xor, a ^ b)
#undef TW_FOLD
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

template <int Bytes>
struct Word;
template <>
struct Word<2> {
  using Bits = unsigned short;
};
template <>
struct Word<4> {
  using Bits = unsigned int;
};
template <>
struct Word<8> {
  using Bits = unsigned long long;
};
// What the hardware has no instruction for: compare and swap until nobody came between.
template <class T, class F>
TW_DEVICE T atomic_update(T* at, F next) {
  using Bits = typename Word<sizeof(T)>::Bits;
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
  using Bits = typename Word<sizeof(T)>::Bits;
  return bits_as<T>(*reinterpret_cast<const volatile Bits*>(at));
}
template <class T, class V>
TW_DEVICE void atomic_store(T* at, V value) {
  using Bits = typename Word<sizeof(T)>::Bits;
  *reinterpret_cast<volatile Bits*>(at) = bits_as<Bits>(static_cast<T>(value));
}
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
  // of shared memory alone: the fence of all memory waits for the GPU, half of a short block's time
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");
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
TW_DEVICE void expect(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier), "r"(bytes)
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
TW_DEVICE void expect_remote(uint32_t barrier, uint32_t bytes) {
  asm volatile("mbarrier.expect_tx.relaxed.cluster.shared::cluster.b64 [%0], %1;" ::"r"(barrier),
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
// Says nothing of memory: the fence of shared memory comes behind it.
TW_DEVICE bool try_wait_relaxed(uint32_t barrier, uint32_t parity) {
  uint32_t done;
  asm volatile(
      "{\n .reg .pred p;\n"
      " mbarrier.try_wait.parity.relaxed.cluster.shared::cta.b64 p, [%1], %2;\n"
      " selp.b32 %0, 1, 0, p;\n}"
      : "=r"(done)
      : "r"(barrier), "r"(parity)
      : "memory");
  return done != 0;
}
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

// ── bulk tensor copies ──────────────────────────────────────────────────────────────────────

// Cache policies as the driver's fractional policies encode them: what `createpolicy` makes on every
// chip that takes them. `no_allocate` is none of the L2 cache's: it passes the L1 cache by.
enum Policy : uint64_t {
  no_allocate = 0,
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
// `amount` of the bytes are read, the rest are zeros.
template <int Bytes, Policy Kept = normal>
TW_DEVICE void cp_async(uint32_t to, const void* from, int amount) {
  if constexpr (Bytes == 16 && Kept == normal)
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;" ::"r"(to), "l"(from), "r"(amount)
                 : "memory");
  else if constexpr (Bytes == 16)
    asm volatile("cp.async.cg.shared.global.L2::cache_hint [%0], [%1], 16, %2, %3;" ::"r"(to),
                 "l"(from), "r"(amount), "l"(uint64_t(Kept))
                 : "memory");
  else if constexpr (Kept == normal)
    asm volatile("cp.async.ca.shared.global [%0], [%1], %2, %3;" ::"r"(to), "l"(from), "n"(Bytes),
                 "r"(amount)
                 : "memory");
  else
    asm volatile("cp.async.ca.shared.global.L2::cache_hint [%0], [%1], %2, %3, %4;" ::"r"(to),
                 "l"(from), "n"(Bytes), "r"(amount), "l"(uint64_t(Kept))
                 : "memory");
}
TW_DEVICE void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
TW_DEVICE void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }
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
template <class From>
struct Halves : Bytes<From> {
  static constexpr int per_word = 2;
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

template <class From, int Count, class To>
TW_DEVICE void load_shared(To* to, uint32_t from) {
  if constexpr (sizeof(From) == 8) {
    load_shared<uint32_t, 2 * Count>(reinterpret_cast<uint32_t*>(to), from);
    return;
  } else {
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
}
template <class To, int Count, class From>
TW_DEVICE void store_shared(uint32_t to, const From* from) {
  if constexpr (sizeof(To) == 8) {
    store_shared<uint32_t, 2 * Count>(to, reinterpret_cast<const uint32_t*>(from));
    return;
  } else {
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
}

// One access of global memory, of up to four words. HOW says what caches are told; a policy is one
// operand more, the LAST of them.
#define TW_NO_POLICY(last)
#define TW_POLICY(last) ", %" #last
#define TW_LOAD_GLOBAL(HOW, POLICY, ...)                                                          \
  if constexpr (Bytes == 16)                                                                      \
    asm volatile("ld.global" HOW ".v4.b32 {%0, %1, %2, %3}, [%4]" POLICY(5) ";"                   \
                 : "=r"(w[0]), "=r"(w[1]), "=r"(w[2]), "=r"(w[3])                                 \
                 : "l"(from) __VA_ARGS__                                                          \
                 : "memory");                                                                     \
  else if constexpr (Bytes == 8)                                                                  \
    asm volatile("ld.global" HOW ".v2.b32 {%0, %1}, [%2]" POLICY(3) ";"                           \
                 : "=r"(w[0]), "=r"(w[1])                                                         \
                 : "l"(from) __VA_ARGS__                                                          \
                 : "memory");                                                                     \
  else if constexpr (Bytes == 4)                                                                  \
    asm volatile("ld.global" HOW ".b32 %0, [%1]" POLICY(2) ";"                                    \
                 : "=r"(w[0]) : "l"(from) __VA_ARGS__ : "memory");                                \
  else if constexpr (Bytes == 2)                                                                  \
    asm volatile("ld.global" HOW ".u16 %0, [%1]" POLICY(2) ";"                                    \
                 : "=r"(w[0]) : "l"(from) __VA_ARGS__ : "memory");                                \
  else                                                                                            \
    asm volatile("ld.global" HOW ".u8 %0, [%1]" POLICY(2) ";"                                     \
                 : "=r"(w[0]) : "l"(from) __VA_ARGS__ : "memory")
#define TW_STORE_GLOBAL(HOW, POLICY, ...)                                                         \
  if constexpr (Bytes == 16)                                                                      \
    asm volatile("st.global" HOW ".v4.b32 [%0], {%1, %2, %3, %4}" POLICY(5) ";" ::"l"(to),        \
                 "r"(w[0]), "r"(w[1]), "r"(w[2]), "r"(w[3]) __VA_ARGS__                           \
                 : "memory");                                                                     \
  else if constexpr (Bytes == 8)                                                                  \
    asm volatile("st.global" HOW ".v2.b32 [%0], {%1, %2}" POLICY(3) ";" ::"l"(to), "r"(w[0]),     \
                 "r"(w[1]) __VA_ARGS__                                                            \
                 : "memory");                                                                     \
  else if constexpr (Bytes == 4)                                                                  \
    asm volatile("st.global" HOW ".b32 [%0], %1" POLICY(2) ";" ::"l"(to), "r"(w[0]) __VA_ARGS__   \
                 : "memory");                                                                     \
  else if constexpr (Bytes == 2)                                                                  \
    asm volatile("st.global" HOW ".u16 [%0], %1" POLICY(2) ";" ::"l"(to), "r"(w[0]) __VA_ARGS__   \
                 : "memory");                                                                     \
  else                                                                                            \
    asm volatile("st.global" HOW ".u8 [%0], %1" POLICY(2) ";" ::"l"(to), "r"(w[0]) __VA_ARGS__    \
                 : "memory")
#define TW_KEPT , "l"(uint64_t(Kept))
#define TW_TOLD(ACCESS)                                          \
  if constexpr (Kept == normal) {                                \
    ACCESS("", TW_NO_POLICY);                                    \
  } else if constexpr (Kept == no_allocate) {                    \
    ACCESS(".L1::no_allocate", TW_NO_POLICY);                    \
  } else {                                                       \
    ACCESS(".L2::cache_hint", TW_POLICY, TW_KEPT);               \
  }

// Vectors of whole words, or one element of less as it is. The access is written out here: in a
// function of its own, what several of them have in common is computed for each.
template <class From, int Count, Policy Kept = normal, class To>
TW_DEVICE void load_global(To* to, const From* from) {
  if constexpr (sizeof(From) == 8) {
    load_global<uint32_t, 2 * Count, Kept>(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from));
    return;
  } else {
  constexpr int Bytes = Count * sizeof(From), per = Elements<From>::per_word;
  constexpr int words = Count / per + (Count < per);
  uint32_t w[words];
  TW_TOLD(TW_LOAD_GLOBAL)
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
template <class To, int Count, Policy Kept = normal, class From>
TW_DEVICE void store_global(To* to, const From* from) {
  if constexpr (sizeof(To) == 8) {
    store_global<uint32_t, 2 * Count, Kept>(reinterpret_cast<uint32_t*>(to), reinterpret_cast<const uint32_t*>(from));
    return;
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
  TW_TOLD(TW_STORE_GLOBAL)
  }
}
#undef TW_TOLD
#undef TW_KEPT
#undef TW_STORE_GLOBAL
#undef TW_LOAD_GLOBAL
#undef TW_POLICY
#undef TW_NO_POLICY
// Into a peer's shared memory.
template <int Words, class From>
TW_DEVICE void store_cluster(uint32_t to, const From* from) {
  const uint32_t* w = reinterpret_cast<const uint32_t*>(from);
  if constexpr (Words == 4) {
    asm volatile("st.shared::cluster.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to), "r"(w[0]),
                 "r"(w[1]), "r"(w[2]), "r"(w[3])
                 : "memory");
  } else if constexpr (Words == 2) {
    asm volatile("st.shared::cluster.v2.b32 [%0], {%1, %2};" ::"r"(to), "r"(w[0]), "r"(w[1])
                 : "memory");
  } else {
    static_assert(Words == 1, "a vector is 4, 8 or 16 bytes");
    asm volatile("st.shared::cluster.b32 [%0], %1;" ::"r"(to), "r"(w[0]) : "memory");
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
