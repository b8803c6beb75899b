// The words of CUDA C++ that generated sources use, for the host: what NVRTC knows by itself.
#pragma once

#include <math.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <initializer_list>
#include <type_traits>
#include <utility>

#include "threads.h"

// As NVRTC: 64 bits are long long, whatever the host's header says.
#define int64_t tw_int64
#define uint64_t tw_uint64
typedef long long tw_int64;
typedef unsigned long long tw_uint64;

#define __global__
#define __device__
#define __host__
#define __constant__
#define __grid_constant__
#define __forceinline__ inline
#define __launch_bounds__(...)
#define __cluster_dims__(...)

// ── where a thread is ───────────────────────────────────────────────────────────────────────

using dim3 = host::Place;
#define threadIdx host::thread_index
#define blockIdx host::block_index
#define blockDim host::block_size
#define gridDim host::grid_size

inline void __syncthreads() { host::meet_block(0, int(host::block_size.x), true); }
inline void __syncwarp(uint32_t mask = ~0u) { host::meet_warp(mask, nullptr, 0, "__syncwarp"); }
// a number for each place that asks
#define __activemask() host::active_lanes(__COUNTER__ + 1)
inline void __threadfence() {}
inline void __threadfence_block() {}
inline void __threadfence_system() {}
inline void __nanosleep(unsigned) { host::turn(); }
inline void __trap() { host::fail("trap"); }

// ── lanes ───────────────────────────────────────────────────────────────────────────────────

namespace host {
template <class T>
T shuffled(uint32_t mask, T x, int from, const char* kind) {
  static_assert(sizeof(T) == 4 || sizeof(T) == 8, "32 or 64 bits");
  const Exchange& all = meet_warp(mask, &x, sizeof x, kind);
  T r;
  // what a lane that is not there would give is nobody's to say
  if (!(all.lanes >> from & 1)) memset(&r, 0xCD, sizeof r);
  else memcpy(&r, all.data[from], sizeof r);
  return r;
}
}  // namespace host

template <class T>
T __shfl_sync(uint32_t mask, T x, int lane, int width = 32) {
  const int own = host::lane() & ~(width - 1);
  return host::shuffled(mask, x, own | (lane & (width - 1)), "__shfl_sync");
}
template <class T>
T __shfl_xor_sync(uint32_t mask, T x, int bits, int width = 32) {
  const int at = host::lane(), from = at ^ bits, last = at | (width - 1);
  return host::shuffled(mask, x, from <= last ? from & 31 : at, "__shfl_xor_sync");
}
template <class T>
T __shfl_up_sync(uint32_t mask, T x, unsigned by, int width = 32) {
  const int at = host::lane(), from = at - int(by & 31);
  return host::shuffled(mask, x, from >= (at & ~(width - 1)) ? from : at, "__shfl_up_sync");
}
template <class T>
T __shfl_down_sync(uint32_t mask, T x, unsigned by, int width = 32) {
  const int at = host::lane(), from = at + int(by & 31);
  return host::shuffled(mask, x, from <= (at | (width - 1)) ? from : at, "__shfl_down_sync");
}
inline uint32_t __ballot_sync(uint32_t mask, int given) {
  const host::Exchange& all = host::meet_warp(mask, &given, sizeof given, "__ballot_sync");
  uint32_t r = 0;
  for (int i = 0; i < 32; ++i)
    if (mask & all.lanes & 1u << i) {
      int one;
      memcpy(&one, all.data[i], sizeof one);
      r |= uint32_t(one != 0) << i;
    }
  return r;
}
inline int __any_sync(uint32_t mask, int given) { return __ballot_sync(mask, given) != 0; }
inline int __all_sync(uint32_t mask, int given) {
  const uint32_t there = host::meet_warp(mask, nullptr, 0, "__all_sync").lanes & mask;
  return __ballot_sync(mask, given) == there;
}
#define HOST_REDUCE(word, expression)                                                \
  template <class T>                                                                 \
  T __reduce_##word##_sync(uint32_t mask, T x) {                                     \
    static_assert(sizeof(T) == 4, "32 bits");                                        \
    const host::Exchange& all = host::meet_warp(mask, &x, sizeof x, "__reduce_sync"); \
    bool any = false;                                                                \
    T a{}, b;                                                                        \
    for (int i = 0; i < 32; ++i)                                                     \
      if (mask & all.lanes & 1u << i) {                                              \
        memcpy(&b, all.data[i], sizeof b);                                           \
        a = any ? T(expression) : b;                                                 \
        any = true;                                                                  \
      }                                                                              \
    return a;                                                                        \
  }
HOST_REDUCE(add, uint32_t(a) + uint32_t(b))
HOST_REDUCE(min, a < b ? a : b)
HOST_REDUCE(max, a > b ? a : b)
HOST_REDUCE(and, a & b)
HOST_REDUCE(or, a | b)
HOST_REDUCE(xor, a ^ b)
#undef HOST_REDUCE

// ── bits and numbers ────────────────────────────────────────────────────────────────────────

namespace host {
template <class To, class From>
To bits_of(From x) {
  static_assert(sizeof(To) == sizeof(From), "one width");
  To r;
  memcpy(&r, &x, sizeof r);
  return r;
}
}  // namespace host
inline int __float_as_int(float x) { return host::bits_of<int>(x); }
inline unsigned __float_as_uint(float x) { return host::bits_of<unsigned>(x); }
inline float __int_as_float(int x) { return host::bits_of<float>(x); }
inline float __uint_as_float(unsigned x) { return host::bits_of<float>(x); }
inline long long __double_as_longlong(double x) { return host::bits_of<long long>(x); }
inline double __longlong_as_double(long long x) { return host::bits_of<double>(x); }
inline unsigned __funnelshift_r(unsigned low, unsigned high, unsigned by) {
  return unsigned((uint64_t(high) << 32 | low) >> (by & 31));
}
inline int __popc(unsigned x) { return __builtin_popcount(x); }
inline int __popcll(unsigned long long x) { return __builtin_popcountll(x); }
inline int __clz(int x) { return x ? __builtin_clz(unsigned(x)) : 32; }
inline int __clzll(long long x) { return x ? __builtin_clzll((unsigned long long)x) : 64; }
inline float __double2float_rz(double x) {
  const float r = float(x);
  return fabs(double(r)) > fabs(x) ? nextafterf(r, 0.0f) : r;
}
inline double __double2double_rz(double x) { return x; }
inline int __dp4a(int a, int b, int c) {
  unsigned r = unsigned(c);
  for (int i = 0; i < 4; ++i)
    r += unsigned(int(int8_t(unsigned(a) >> 8 * i)) * int(int8_t(unsigned(b) >> 8 * i)));
  return int(r);
}
inline unsigned __dp4a(unsigned a, unsigned b, unsigned c) {
  for (int i = 0; i < 4; ++i) c += (a >> 8 * i & 255) * (b >> 8 * i & 255);
  return c;
}

template <class A, class B>
std::common_type_t<A, B> min(A a, B b) {
  using T = std::common_type_t<A, B>;
  static_assert(std::is_integral_v<T>, "integers");
  return T(a) < T(b) ? T(a) : T(b);
}
template <class A, class B>
std::common_type_t<A, B> max(A a, B b) {
  using T = std::common_type_t<A, B>;
  static_assert(std::is_integral_v<T>, "integers");
  return T(a) > T(b) ? T(a) : T(b);
}

inline float rsqrtf(float x) { return float(1.0 / sqrt(double(x))); }
inline double rsqrt(double x) { return 1.0 / sqrt(x); }
inline float __frcp_rn(float x) { return 1.0f / x; }
// the C library declares some of these names, and has none of them
#define __expf(x) expf(x)
#define __exp10f(x) exp10f(x)
#define __logf(x) logf(x)
#define __log2f(x) log2f(x)
#define __log10f(x) log10f(x)
#define __sinf(x) sinf(x)
#define __cosf(x) cosf(x)
#define __tanf(x) tanf(x)
#define __powf(x, y) powf(x, y)

// ── atomics: nobody comes between ───────────────────────────────────────────────────────────

#define TW_ATOMIC_WORD(name, next)                             \
  template <class T, class V>                                  \
  T name(T* at, V given) {                                     \
    host::require_aligned(at, sizeof(T));                      \
    const T old = *at, value = T(given);                       \
    *at = next;                                                \
    return old;                                                \
  }
namespace host {
template <class T>
T wrapping_sum(T a, T b) {
  if constexpr (std::is_integral_v<T>)
    return T(std::make_unsigned_t<T>(a) + std::make_unsigned_t<T>(b));
  else
    return a + b;
}
}  // namespace host
TW_ATOMIC_WORD(atomicAdd, host::wrapping_sum(old, value))
TW_ATOMIC_WORD(atomicMax, old > value ? old : value)
TW_ATOMIC_WORD(atomicMin, old < value ? old : value)
TW_ATOMIC_WORD(atomicAnd, T(old & value))
TW_ATOMIC_WORD(atomicOr, T(old | value))
TW_ATOMIC_WORD(atomicXor, T(old ^ value))
TW_ATOMIC_WORD(atomicExch, value)
#undef TW_ATOMIC_WORD
template <class T>
T atomicCAS(T* at, T seen, T wanted) {
  host::require_aligned(at, sizeof(T));
  const T old = *at;
  if (old == seen) *at = wanted;
  return old;
}

inline size_t __cvta_generic_to_shared(const void* at) { return host::shared_address(at); }
template <class T>
T* __cvta_generic_to_global(T* at) { return at; }
#define __builtin_assume(sure) ((void)0)
