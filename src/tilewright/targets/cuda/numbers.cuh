// Types of elements, conversions and arithmetic of one thread. Nothing here decides anything.
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

// A function that is one instruction.
#define TW_ASM(To, name, params, code, to, ...) \
  TW_DEVICE To name params {                    \
    To r;                                       \
    asm(code : to : __VA_ARGS__);               \
    return r;                                   \
  }
// One that has an effect, and the wait for all but so many of a unit's groups.
#define TW_EFFECT(name, params, code, ...)           \
  TW_DEVICE void name params {                       \
    asm volatile(code ::__VA_ARGS__ : "memory");     \
  }
#define TW_WAIT(name, code) \
  template <int Pending>    \
  TW_EFFECT(name, (), code, "n"(Pending))
TW_ASM(uint32_t, pack_bfloat16, (float low, float high), "cvt.rn.bf16x2.f32 %0, %1, %2;",
       "=r"(r), "f"(high), "f"(low))
TW_ASM(uint32_t, pack_float16, (float low, float high), "cvt.rn.f16x2.f32 %0, %1, %2;",
       "=r"(r), "f"(high), "f"(low))
TW_ASM(bfloat16, to_bfloat16, (float x), "cvt.rn.bf16.f32 %0, %1;", "=h"(r.bits), "f"(x))
TW_ASM(float16, to_float16, (float x), "cvt.rn.f16.f32 %0, %1;", "=h"(r.bits), "f"(x))
// One instruction for either half of a word; a shift of the upper half takes two.
TW_ASM(float, to_float, (bfloat16 x), "mov.b32 %0, {%1, %2};",
       "=f"(r), "h"(uint16_t(0)), "h"(x.bits))
TW_ASM(float, to_float, (float16 x), "cvt.f32.f16 %0, %1;", "=f"(r), "h"(x.bits))
// Not fused: each is rounded.
TW_ASM(float16, add, (float16 x, float16 y), "add.rn.f16 %0, %1, %2;",
       "=h"(r.bits), "h"(x.bits), "h"(y.bits))
TW_ASM(float16, sub, (float16 x, float16 y), "sub.rn.f16 %0, %1, %2;",
       "=h"(r.bits), "h"(x.bits), "h"(y.bits))
TW_ASM(float16, mul, (float16 x, float16 y), "mul.rn.f16 %0, %1, %2;",
       "=h"(r.bits), "h"(x.bits), "h"(y.bits))
// Integers of up to 22 bits: 1.5 * 2^23 has them as its last digits; of up to 9 bits: 1536.
TW_DEVICE float small_float(int x) { return __int_as_float(0x4b400000 + x) - 12582912.0f; }
TW_DEVICE float16 small_float16(int x) {
  return sub(float16{uint16_t(0x6600 + x)}, float16{0x6600});
}
// Rounded to odd, so that rounding to fewer bits is rounding once. NaN stays one.
TW_DEVICE float odd_float(double x) {
  const float near = __double2float_rz(x);
  return __uint_as_float(__float_as_uint(near) | uint32_t(double(near) != x));
}
TW_DEVICE bfloat16 to_bfloat16(double x) {
#if __CUDA_ARCH__ >= 900
  bfloat16 r;
  asm("cvt.rn.bf16.f64 %0, %1;" : "=h"(r.bits) : "d"(x));
  return r;
#else
  return to_bfloat16(odd_float(x));
#endif
}
// A 64-bit integer that double holds and bfloat16 rounds as it does x: of a large one the last
// twelve bits only count as whether there are any.
template <class T>
TW_DEVICE double sticky(T x) {
  const bool small = x >> 40 == (x < T(0) ? T(-1) : T(0));
  return double(small ? x : T((x & ~T(0xfff)) | ((x & T(0xfff)) != 0 ? T(0x800) : T(0))));
}
TW_DEVICE bfloat16 to_bfloat16(int64_t x) { return to_bfloat16(sticky(x)); }
TW_DEVICE bfloat16 to_bfloat16(uint64_t x) { return to_bfloat16(sticky(x)); }
TW_ASM(float16, to_float16, (double x), "cvt.rn.f16.f64 %0, %1;", "=h"(r.bits), "d"(x))
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
TW_DEVICE float8_e4m3fn to_float8_e4m3fn(double x) { return to_float8_e4m3fn(odd_float(x)); }
TW_DEVICE float8_e5m2 to_float8_e5m2(double x) { return to_float8_e5m2(odd_float(x)); }
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
#define TW_TRUNCATED(To, word, to)                                                        \
  TW_ASM(To, truncated, (To, float x), "cvt.rzi." word ".f32 %0, %1;", to(r), "f"(x))     \
  TW_ASM(To, truncated, (To, double x), "cvt.rzi." word ".f64 %0, %1;", to(r), "d"(x))
TW_TRUNCATED(int32_t, "s32", "=r")
TW_TRUNCATED(uint32_t, "u32", "=r")
TW_TRUNCATED(int64_t, "s64", "=l")
TW_TRUNCATED(uint64_t, "u64", "=l")
#undef TW_TRUNCATED
template <class To, class From>
TW_DEVICE To to_integer(From x) {
  if constexpr (sizeof(To) == 8) {
    return x != x ? To(0) : truncated(To(), x);
  } else if constexpr (To(-1) < To(0)) {
    constexpr int32_t most = int32_t((1u << (8 * sizeof(To) - 1)) - 1);
    const int32_t r = x == x ? truncated(int32_t(), x) : 0;
    return sizeof(To) == 4 ? To(r) : To(min(max(r, -most - 1), most));
  } else {
    const uint32_t r = x == x ? truncated(uint32_t(), x) : 0;
    return sizeof(To) == 4 ? To(r) : To(min(r, uint32_t(To(-1))));
  }
}
// Signed integers wrap; C++ leaves their overflow undefined, and compilers use that.
template <int Bytes>
struct Unsigned;
template <>
struct Unsigned<1> {
  using type = uint8_t;
};
template <>
struct Unsigned<2> {
  using type = uint16_t;
};
template <>
struct Unsigned<4> {
  using type = uint32_t;
};
template <>
struct Unsigned<8> {
  using type = unsigned long long;  // as atomics call it
};
template <class T>
using unsigned_of_width = typename Unsigned<sizeof(T)>::type;
// At least 32 bits: what C++ computes narrower numbers in is int.
template <class T>
using wide_unsigned = unsigned_of_width<decltype(T(0) + 0)>;

template <class T>
TW_DEVICE T wrap_add(T a, T b) {
  return T(wide_unsigned<T>(a) + wide_unsigned<T>(b));
}
template <class T>
TW_DEVICE T wrap_sub(T a, T b) {
  return T(wide_unsigned<T>(a) - wide_unsigned<T>(b));
}
template <class T>
TW_DEVICE T wrap_mul(T a, T b) {
  return T(wide_unsigned<T>(a) * wide_unsigned<T>(b));
}
template <class T>
TW_DEVICE T wrap_neg(T a) {
  return T(wide_unsigned<T>(0) - wide_unsigned<T>(a));
}
template <class T>
TW_DEVICE T wrap_abs(T a) {
  return a < 0 ? wrap_neg(a) : a;
}
// Shifts by a count of any size, read as unsigned: bit by bit. The machine's do this, of 32 bits.
template <class T>
TW_DEVICE T shift_left(T x, T count) {
  const unsigned_of_width<T> by = unsigned_of_width<T>(count);
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) <= 4) {
    uint32_t r;
    asm("shl.b32 %0, %1, %2;" : "=r"(r) : "r"(uint32_t(x)), "r"(uint32_t(by)));
    return T(r);
  }
#endif
  return by < 8 * sizeof(T) ? T(wide_unsigned<T>(x) << by) : T(0);
}
template <class T>
TW_DEVICE T shift_right(T x, T count) {
  constexpr unsigned_of_width<T> last = 8 * sizeof(T) - 1;
  const unsigned_of_width<T> by = unsigned_of_width<T>(count);
#ifdef __CUDA_ARCH__
  if constexpr (sizeof(T) <= 4) {
    uint32_t r;
    if constexpr (T(-1) < T(0))
      asm("shr.s32 %0, %1, %2;" : "=r"(r) : "r"(int32_t(x)), "r"(uint32_t(by)));
    else
      asm("shr.u32 %0, %1, %2;" : "=r"(r) : "r"(uint32_t(x)), "r"(uint32_t(by)));
    return T(r);
  }
#endif
  if constexpr (T(-1) < T(0)) return T(x >> (by < last ? by : last));
  return by <= last ? T(x >> by) : T(0);
}
// What follows `at` in a loop to `stop`, or the largest number, which is no less than any stop.
template <class T>
TW_DEVICE T advance(T at, T step) {
  constexpr T most = T(unsigned_of_width<T>(-1) >> (T(-1) < T(0)));
  return at > T(most - step) ? most : T(at + step);
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
  for (; b > 0; b = T(b >> 1), a = wrap_mul(a, a))
    if (b & 1) r = wrap_mul(r, a);
  return r;
}
// The remainder by -1 is 0, also where the quotient overflows.
template <class T>
TW_DEVICE T int_rem(T a, T b) {
  return T(-1) < T(0) && b == T(-1) ? T(0) : T(a % b);
}
TW_DEVICE float floor_mod(float a, float b) {
  const float r = fmodf(a, b);
  return r == 0 ? copysignf(0.0f, b) : (r < 0) != (b < 0) ? r + b : r;
}
TW_DEVICE double floor_mod(double a, double b) {
  const double r = fmod(a, b);
  return r == 0 ? copysign(0.0, b) : (r < 0) != (b < 0) ? r + b : r;
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
// Of numbers that may be the least one and -1.
template <class T>
TW_DEVICE T wrap_floor_div(T a, T b) {
  return b == T(-1) ? wrap_neg(a) : floor_div(a, b);
}
template <class T>
TW_DEVICE T wrap_floor_mod(T a, T b) {
  return b == T(-1) ? T(0) : floor_mod(a, b);
}
// The library's exp2f takes three more instructions for results below 2^-126, which are 0 here; all
// others are the same. In attention those three are a twentieth of the time and more.
TW_ASM(float, exp2, (float x), "ex2.approx.ftz.f32 %0, %1;", "=f"(r), "f"(x))
TW_DEVICE float exp_fast(float x) { return tw::exp2(x * 1.4426950408889634f); }
TW_ASM(float, tanh_fast, (float x), "tanh.approx.f32 %0, %1;", "=f"(r), "f"(x))
TW_ASM(float, reciprocal, (float x), "rcp.approx.ftz.f32 %0, %1;", "=f"(r), "f"(x))
// 2 ulp for all divisors, where __fdividef gives 0 beyond 2^126.
TW_ASM(float, divide_fast, (float a, float b), "div.full.f32 %0, %1, %2;",
       "=f"(r), "f"(a), "f"(b))
TW_DEVICE double divide_fast(double a, double b) { return a / b; }
// x / c, rounded once as a division is (below 2^-100 it may be the next float), without a
// division's branch: 4 instructions instead of 14. See emit_expr.py for the constants it takes.
TW_DEVICE float divide_by(float x, float c) {
  float near = x * (1.0f / c), left = fmaf(-c, near, x);
  // nothing left: a zero keeps its sign; infinities leave no number
  return fabsf(left) > 0.0f ? fmaf(left, 1.0f / c, near) : near;
}
// The divisor is 1 or more: a division's branch for very small and very large ones is not needed.
TW_DEVICE double sigmoid(double x) {
  const double small = exp(-fabs(x));
  return (x < 0 ? small : 1.0) / (1.0 + small);
}
TW_DEVICE float sigmoid(float x) { return reciprocal(1.0f + expf(-x)); }
TW_DEVICE float sigmoid_fast(float x) { return reciprocal(1.0f + exp_fast(-x)); }
// Reductions keep NaN, unlike fmaxf and fminf.
TW_ASM(float, max_nan, (float a, float b), "max.NaN.f32 %0, %1, %2;", "=f"(r), "f"(a), "f"(b))
TW_ASM(float, min_nan, (float a, float b), "min.NaN.f32 %0, %1, %2;", "=f"(r), "f"(a), "f"(b))
TW_DEVICE double max_nan(double a, double b) { return a != a || b != b ? a + b : fmax(a, b); }
TW_DEVICE double min_nan(double a, double b) { return a != a || b != b ? a + b : fmin(a, b); }

}  // namespace tw
