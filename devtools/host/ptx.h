// PTX instructions as functions of their operands, in order, results first; `asm.py` calls them.
// A name is the instruction's with _ for . and ::, without what caches are told.
#pragma once

#include "cuda.h"

namespace ptx {

using host::bf16;
using host::e4m3;
using host::e5m2;
using host::f16;
using host::f32;
using host::f64;
using host::s32;
using host::s8;
using host::tf32;
using host::u8;

inline void nothing() {}

// ── numbers ─────────────────────────────────────────────────────────────────────────────────

inline void cvt_rn_bf16_f32(uint16_t& r, float x) { r = host::bfloat_bits(double(x)); }
inline void cvt_rn_bf16_f64(uint16_t& r, double x) { r = host::bfloat_bits(x); }
inline void cvt_rn_f16_f32(uint16_t& r, float x) { r = host::half_bits(double(x)); }
inline void cvt_rn_f16_f64(uint16_t& r, double x) { r = host::half_bits(x); }
inline void cvt_rn_bf16x2_f32(uint32_t& r, float high, float low) {
  r = uint32_t(host::bfloat_bits(double(high))) << 16 | host::bfloat_bits(double(low));
}
inline void cvt_rn_f16x2_f32(uint32_t& r, float high, float low) {
  r = uint32_t(host::half_bits(double(high))) << 16 | host::half_bits(double(low));
}
// by the width or more, PTX shifts bit by bit
inline void shl_b32(uint32_t& r, uint32_t x, uint32_t by) { r = by < 32 ? x << by : 0; }
inline void shr_u32(uint32_t& r, uint32_t x, uint32_t by) { r = by < 32 ? x >> by : 0; }
inline void shr_s32(uint32_t& r, int32_t x, uint32_t by) { r = uint32_t(x >> (by < 32 ? by : 31)); }
inline void cvt_f32_f16(float& r, uint16_t x) { r = host::half_value(x); }
inline void mov_b32(float& r, uint16_t low, uint16_t high) {
  r = __uint_as_float(uint32_t(high) << 16 | low);
}
inline void add_rn_f16(uint16_t& r, uint16_t a, uint16_t b) {
  r = host::half_bits(double(host::half_value(a)) + double(host::half_value(b)));
}
inline void sub_rn_f16(uint16_t& r, uint16_t a, uint16_t b) {
  r = host::half_bits(double(host::half_value(a)) - double(host::half_value(b)));
}
inline void mul_rn_f16(uint16_t& r, uint16_t a, uint16_t b) {
  r = host::half_bits(double(host::half_value(a)) * double(host::half_value(b)));
}
inline void cvt_rn_satfinite_e4m3x2_f32(uint16_t& r, float high, float low) {
  r = uint16_t(host::small_bits(double(high), true) << 8 | host::small_bits(double(low), true));
}
inline void cvt_rn_satfinite_e5m2x2_f32(uint16_t& r, float high, float low) {
  r = uint16_t(host::small_bits(double(high), false) << 8 | host::small_bits(double(low), false));
}
inline uint32_t two_halves(uint16_t x, bool e4m3) {
  const uint32_t low = host::half_bits(host::small_value(uint8_t(x), e4m3));
  return low | uint32_t(host::half_bits(host::small_value(uint8_t(x >> 8), e4m3))) << 16;
}
inline void cvt_rn_f16x2_e4m3x2(uint32_t& r, uint16_t x) { r = two_halves(x, true); }
inline void cvt_rn_f16x2_e5m2x2(uint32_t& r, uint16_t x) { r = two_halves(x, false); }

// toward zero, saturating; NaN to 0, of 64 bits to the least
template <class To, class From>
void to_integer(To& r, From x) {
  constexpr bool signs = std::is_signed_v<To>;
  constexpr To most = To(~0ull >> (64 - 8 * sizeof(To) + signs));
  constexpr To least = signs ? To(-most - 1) : To(0);
  if (x != x) {
    r = sizeof(To) == 8 ? To(1ull << 63) : To(0);
    return;
  }
  const From whole = trunc(x);
  const From over = From(2) * From(To(1) << (8 * sizeof(To) - 1 - signs));
  r = whole >= over ? most : whole <= From(least) ? least : To(whole);
}
inline void cvt_rzi_s32_f32(int32_t& r, float x) { to_integer(r, x); }
inline void cvt_rzi_s32_f64(int32_t& r, double x) { to_integer(r, x); }
inline void cvt_rzi_u32_f32(uint32_t& r, float x) { to_integer(r, x); }
inline void cvt_rzi_u32_f64(uint32_t& r, double x) { to_integer(r, x); }
template <class To>
void cvt_rzi_s64_f32(To& r, float x) { to_integer(r, x); }
template <class To>
void cvt_rzi_s64_f64(To& r, double x) { to_integer(r, x); }
template <class To>
void cvt_rzi_u64_f32(To& r, float x) { to_integer(r, x); }
template <class To>
void cvt_rzi_u64_f64(To& r, double x) { to_integer(r, x); }

inline float flushed(float x) { return fabsf(x) < 0x1p-126f ? copysignf(0.0f, x) : x; }
inline void ex2_approx_ftz_f32(float& r, float x) { r = flushed(exp2f(flushed(x))); }
inline void rcp_approx_ftz_f32(float& r, float x) { r = flushed(1.0f / flushed(x)); }
inline void div_full_f32(float& r, float a, float b) { r = a / b; }
inline void tanh_approx_f32(float& r, float x) { r = tanhf(x); }
inline void max_NaN_f32(float& r, float a, float b) {
  r = a != a || b != b ? __uint_as_float(0x7fffffffu) : a > b || (a == b && !signbit(a)) ? a : b;
}
inline void min_NaN_f32(float& r, float a, float b) {
  r = a != a || b != b ? __uint_as_float(0x7fffffffu) : a < b || (a == b && signbit(a)) ? a : b;
}
template <class Fold>
uint32_t two_bfloats(uint32_t a, uint32_t b, Fold fold) {
  float low, high;
  uint32_t r;
  fold(low, __uint_as_float(a << 16), __uint_as_float(b << 16));
  fold(high, __uint_as_float(a & ~65535u), __uint_as_float(b & ~65535u));
  return cvt_rn_bf16x2_f32(r, high, low), r;
}
template <class Fold>
uint32_t two_halves(uint32_t a, uint32_t b, Fold fold) {
  float low, high;
  uint32_t r;
  fold(low, host::half_value(uint16_t(a)), host::half_value(uint16_t(b)));
  fold(high, host::half_value(uint16_t(a >> 16)), host::half_value(uint16_t(b >> 16)));
  return cvt_rn_f16x2_f32(r, high, low), r;
}
inline void max_NaN_bf16x2(uint32_t& r, uint32_t a, uint32_t b) {
  r = two_bfloats(a, b, max_NaN_f32);
}
inline void min_NaN_bf16x2(uint32_t& r, uint32_t a, uint32_t b) {
  r = two_bfloats(a, b, min_NaN_f32);
}
inline void max_NaN_f16x2(uint32_t& r, uint32_t a, uint32_t b) { r = two_halves(a, b, max_NaN_f32); }
inline void min_NaN_f16x2(uint32_t& r, uint32_t a, uint32_t b) { r = two_halves(a, b, min_NaN_f32); }

// ── threads ─────────────────────────────────────────────────────────────────────────────────

inline uint32_t tid_x() { return threadIdx.x; }
inline uint32_t laneid() { return uint32_t(host::lane()); }
inline uint32_t cluster_ctarank() { return uint32_t(host::cluster_rank()); }
inline uint32_t smid() { return 0; }
inline uint32_t globaltimer_lo() { return 0; }
inline uint32_t clock() {  // counts how often it was read
  static uint32_t read = ~0u - 1000;
  return ++read;
}
inline void add_u32(uint32_t& r, uint32_t a, uint32_t b) { r = a + b; }
template <class To, class From>
void mov_u32(To& r, From x) { r = To(x); }
template <class T>
void mov_b64(T*& r, T* x) { r = x; }
inline void setp_ne_b32(bool& p, int a, int b) { p = a != b; }
inline void setp_eq_b32(bool& p, int a, int b) { p = a == b; }
inline void setp_eq_u32(bool& p, uint32_t a, uint32_t b) { p = a == b; }
inline void selp_b32(uint32_t& r, uint32_t a, uint32_t b, bool p) { r = p ? a : b; }
inline void elect_sync(bool& p, uint32_t mask) {
  const uint32_t there = host::meet_warp(mask, nullptr, 0, "elect.sync").lanes;
  p = host::lane() == __builtin_ctz(there & mask);
}
inline void bar_sync(int id, int threads) { host::meet_block(id, threads, true); }
inline void bar_arrive(int id, int threads) { host::meet_block(id, threads, false); }
inline void barrier_cluster_arrive_release_aligned() { host::meet_cluster(true, false); }
inline void barrier_cluster_arrive_relaxed_aligned() { host::meet_cluster(true, false); }
inline void barrier_cluster_wait_acquire_aligned() { host::meet_cluster(false, true); }
inline void mapa_shared_cluster_u32(uint32_t& r, uint32_t address, int rank) {
  r = host::remote(address, rank);
}

// ── barriers ────────────────────────────────────────────────────────────────────────────────

inline void mbarrier_init_shared_cta_b64(uint32_t at, int count) { host::barrier_init(at, count); }
inline void mbarrier_arrive_shared_cta_b64(uint32_t at, int count = 1) {
  host::barrier_arrive(at, count);
}
inline void mbarrier_arrive_shared_cluster_b64(uint32_t at, int count = 1) {
  host::barrier_arrive(at, count);
}
inline void mbarrier_expect_tx_relaxed_cta_shared_cta_b64(uint32_t at, uint32_t bytes) {
  host::barrier_expect(at, int(bytes));
}
inline void mbarrier_expect_tx_relaxed_cluster_shared_cluster_b64(uint32_t at, uint32_t bytes) {
  host::barrier_expect(at, int(bytes));
}
inline void mbarrier_arrive_expect_tx_shared_cta_b64(uint32_t at, uint32_t bytes) {
  host::barrier_expect(at, int(bytes));
  host::barrier_arrive(at, 1);
}
inline void mbarrier_arrive_expect_tx_relaxed_cluster_shared_cluster_b64(uint32_t at,
                                                                         uint32_t bytes) {
  mbarrier_arrive_expect_tx_shared_cta_b64(at, bytes);
}
inline void mbarrier_try_wait_parity_shared_cta_b64(bool& p, uint32_t at, uint32_t parity) {
  host::barrier_wait(at, parity);
  p = true;
}
inline void mbarrier_test_wait_parity_shared_cta_b64(bool& p, uint32_t, uint32_t) {
  p = false;  // what the test is for can be seen then
}
inline void mbarrier_try_wait_parity_acquire_cluster_shared_cta_b64(bool& p, uint32_t at,
                                                                    uint32_t parity) {
  mbarrier_try_wait_parity_shared_cta_b64(p, at, parity);
}
inline void mbarrier_try_wait_parity_relaxed_cluster_shared_cta_b64(bool& p, uint32_t at,
                                                                    uint32_t parity) {
  mbarrier_try_wait_parity_shared_cta_b64(p, at, parity);
}

// ── memory ──────────────────────────────────────────────────────────────────────────────────

template <class... W>
void load_words(const void* from, W&... w) {
  const uint8_t* at = static_cast<const uint8_t*>(from);
  ((memcpy(&w, at, 4), at += 4), ...);
}
template <class... W>
void store_words(void* to, W... w) {
  uint8_t* at = static_cast<uint8_t*>(to);
  ((memcpy(at, &w, 4), at += 4), ...);
}
template <class W>
void ld_shared_v4_b32(W& a, W& b, W& c, W& d, uint32_t from) {
  load_words(host::at_shared(from, 16), a, b, c, d);
}
template <class W>
void ld_shared_v2_b32(W& a, W& b, uint32_t from) { load_words(host::at_shared(from, 8), a, b); }
template <class W>
void ld_shared_b32(W& a, uint32_t from) { load_words(host::at_shared(from, 4), a); }
inline void st_shared_v4_b32(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  store_words(host::at_shared(to, 16), a, b, c, d);
}
inline void st_shared_v2_b32(uint32_t to, uint32_t a, uint32_t b) {
  store_words(host::at_shared(to, 8), a, b);
}
inline void st_shared_b32(uint32_t to, uint32_t a) { store_words(host::at_shared(to, 4), a); }
inline void st_shared_cluster_v4_b32(uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d) {
  st_shared_v4_b32(to, a, b, c, d);
}
inline void st_shared_cluster_v2_b32(uint32_t to, uint32_t a, uint32_t b) {
  st_shared_v2_b32(to, a, b);
}
inline void st_shared_cluster_b32(uint32_t to, uint32_t a) { st_shared_b32(to, a); }
inline void st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_v4_b32(
    uint32_t to, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint32_t barrier) {
  const uint32_t words[] = {a, b, c, d};
  host::store_remote(to, words, 4, barrier);
}
inline void st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_v2_b32(uint32_t to, uint32_t a,
                                                                           uint32_t b,
                                                                           uint32_t barrier) {
  const uint32_t words[] = {a, b};
  host::store_remote(to, words, 2, barrier);
}
inline void st_async_weak_shared_cluster_mbarrier_complete_tx_bytes_b32(uint32_t to, uint32_t a,
                                                                        uint32_t barrier) {
  host::store_remote(to, &a, 1, barrier);
}
template <class T>
const void* whole(const T* at, size_t bytes) {
  host::require_aligned(at, bytes);
  return at;
}
template <class T>
void ld_global_v4_b32(uint32_t& a, uint32_t& b, uint32_t& c, uint32_t& d, const T* from,
                      uint64_t = 0) {
  load_words(whole(from, 16), a, b, c, d);
}
template <class T>
void ld_global_v2_b32(uint32_t& a, uint32_t& b, const T* from, uint64_t = 0) {
  load_words(whole(from, 8), a, b);
}
template <class T>
void ld_global_b32(uint32_t& a, const T* from, uint64_t = 0) { load_words(whole(from, 4), a); }
template <class T>
void ld_global_u16(uint32_t& a, const T* from, uint64_t = 0) {
  uint16_t r;
  memcpy(&r, whole(from, 2), 2);
  a = r;
}
template <class T>
void ld_global_u8(uint32_t& a, const T* from, uint64_t = 0) {
  uint8_t r;
  memcpy(&r, from, 1);
  a = r;
}
template <class T>
void st_global_v4_b32(T* to, uint32_t a, uint32_t b, uint32_t c, uint32_t d, uint64_t = 0) {
  whole(to, 16), store_words(to, a, b, c, d);
}
template <class T>
void st_global_v2_b32(T* to, uint32_t a, uint32_t b, uint64_t = 0) {
  whole(to, 8), store_words(to, a, b);
}
template <class T>
void st_global_b32(T* to, uint32_t a, uint64_t = 0) { whole(to, 4), store_words(to, a); }
template <class T>
void st_global_u16(T* to, uint32_t a, uint64_t = 0) {
  const uint16_t r = uint16_t(a);
  whole(to, 2), memcpy(to, &r, 2);
}
template <class T>
void st_global_u8(T* to, uint32_t a, uint64_t = 0) {
  const uint8_t r = uint8_t(a);
  memcpy(to, &r, 1);
}
template <class T>
void atom_add_u32(T& old, T* at, T value) { old = atomicAdd(at, value); }
inline void red_relaxed_gpu_global_add_v2_f32(float* at, float a, float b) {
  whole(at, 8), at[0] += a, at[1] += b;
}
inline void red_relaxed_gpu_global_add_v4_f32(float* at, float a, float b, float c, float d) {
  whole(at, 16), at[0] += a, at[1] += b, at[2] += c, at[3] += d;
}

// ── asynchronous copies ─────────────────────────────────────────────────────────────────────

inline void cp_async_cg_shared_global(uint32_t to, const void* from, int bytes, int amount,
                                      uint64_t = 0) {
  host::copy_async(to, from, bytes, amount);
}
inline void cp_async_ca_shared_global(uint32_t to, const void* from, int bytes, int amount,
                                      uint64_t = 0) {
  host::copy_async(to, from, bytes, amount);
}
inline void cp_async_commit_group() { host::commit_copies(); }
inline void cp_async_wait_group(int pending) { host::wait_copies(pending); }
inline void cp_async_bulk_commit_group() { host::commit_bulk(); }
inline void cp_async_bulk_wait_group(int pending) { host::wait_bulk(pending); }
inline void cp_async_bulk_wait_group_read(int pending) { host::wait_bulk(pending); }
inline void cp_async_bulk_shared_cluster_global_mbarrier_complete_tx_bytes(
    uint32_t to, const void* from, int bytes, uint32_t barrier, uint64_t = 0) {
  host::bulk_row(to, from, bytes, barrier);
}
inline void mbarrier_complete_tx_relaxed_cta_shared_cta_b64(uint32_t at, int bytes) {
  host::barrier_complete(at, bytes);
}
template <int Rank, bool Several, class... More>
void bulk_load(uint32_t to, const void* map, std::initializer_list<int> corner, uint32_t barrier,
               More... more) {
  int mask = -1;
  if constexpr (Several) {
    const long long all[] = {(long long)(more)...};
    mask = int(all[0]);
  }
  host::bulk_load(to, map, corner.begin(), barrier, mask);
}
inline void bulk_store(const char* reduce, const void* map, std::initializer_list<int> corner,
                       uint32_t from, uint64_t = 0) {
  host::bulk_store(map, corner.begin(), from, reduce);
}

// ── matrices ────────────────────────────────────────────────────────────────────────────────

// A lane's address is that of one row of 16 bytes; lane 4 * r + c gets words c of rows r.
template <bool Turned, class... W>
void ldmatrix(uint32_t from, W&... to) {
  const int count = sizeof...(W), at = host::lane();
  uint8_t row[16] = {};
  if (at < 8 * count) memcpy(row, host::at_shared(from, 16), 16);
  const host::Exchange& all = host::meet_warp(~0u, row, 16, "ldmatrix");
  int number = 0;
  auto one = [&](uint32_t& word) {
    for (int half = 0; half < 2; ++half) {
      const int r = Turned ? 2 * (at % 4) + half : at / 4;
      const int c = Turned ? at / 4 : 2 * (at % 4) + half;
      uint16_t x;
      memcpy(&x, all.data[8 * number + r] + 2 * c, 2);
      word = half ? word | uint32_t(x) << 16 : x;
    }
    ++number;
  };
  (one(to), ...);
}
template <bool Turned, class... W>
void stmatrix(uint32_t to, W... from) {
  const int count = sizeof...(W), at = host::lane();
  const uint32_t words[] = {uint32_t(from)...};
  const host::Exchange& all = host::meet_warp(~0u, words, sizeof words, "stmatrix");
  if (at >= 8 * count) return;
  const int number = at / 8, r = at % 8;
  uint8_t* row = host::at_shared(to, 16);
  for (int c = 0; c < 8; ++c) {
    const int lane = Turned ? 4 * c + r / 2 : 4 * r + c / 2, half = (Turned ? r : c) % 2;
    memcpy(row + 2 * c, all.data[lane] + 4 * number + 2 * half, 2);
  }
}
// The accumulator comes twice: what is written, and what is added to; it is the same registers.
template <int K, host::Type D, host::Type A, host::Type B, class R>
void mma(R& d0, R& d1, R& d2, R& d3, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
         uint32_t b0, uint32_t b1, R, R, R, R) {
  uint32_t d[4];
  const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  memcpy(d, &d0, 4), memcpy(d + 1, &d1, 4), memcpy(d + 2, &d2, 4), memcpy(d + 3, &d3, 4);
  host::mma(K, D, A, B, d, a, b);
  memcpy(&d0, d, 4), memcpy(&d1, d + 1, 4), memcpy(&d2, d + 2, 4), memcpy(&d3, d + 3, 4);
}
template <int K, host::Type D, host::Type A, host::Type B>
void mma(uint32_t& d0, uint32_t& d1, uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
         uint32_t b0, uint32_t b1, uint32_t, uint32_t) {
  const uint32_t a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  uint32_t d[] = {d0, d1};
  host::mma(K, D, A, B, d, a, b);
  d0 = d[0], d1 = d[1];
}
template <int K, host::Type D, host::Type A, host::Type B>
void mma(double& d0, double& d1, double& d2, double& d3, double a0, double a1, double a2,
         double a3, double b0, double b1, double, double, double, double) {
  const double a[] = {a0, a1, a2, a3}, b[] = {b0, b1};
  double d[] = {d0, d1, d2, d3};
  host::mma(d, a, b);
  d0 = d[0], d1 = d[1], d2 = d[2], d3 = d[3];
}
using Registers = std::initializer_list<const void*>;
template <int N, int K, host::Type D, host::Type A, host::Type B>
void wgmma(Registers d, uint64_t a, uint64_t b, bool add, int = 1, int = 1, int ta = 0,
           int tb = 0) {
  host::wgmma(N, K, D, A, B, const_cast<void*>(*d.begin()), nullptr, a, b, add, ta, tb);
}
template <int N, int K, host::Type D, host::Type A, host::Type B>
void wgmma(Registers d, Registers a, uint64_t b, bool add, int = 1, int = 1, int tb = 0) {
  host::wgmma(N, K, D, A, B, const_cast<void*>(*d.begin()),
              static_cast<const uint32_t*>(*a.begin()), 0, b, add, false, tb);
}
inline void wgmma_commit_group_sync_aligned() { host::commit_wgmma(); }
inline void wgmma_wait_group_sync_aligned(int pending) { host::wait_wgmma(pending); }

}  // namespace ptx
