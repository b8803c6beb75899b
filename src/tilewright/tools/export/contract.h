// The contract of a kernel, and a call against it: nothing runs until everything fits.
// TILEWRIGHT_EXPORT is a namespace of each export's own, so that several link into one program.
#pragma once

#include <cstdarg>
#include <cstdint>
#include <cstdio>
#include <cstring>
#include <type_traits>

#include "tilewright.h"

namespace TILEWRIGHT_EXPORT {

inline char *message() {
  static thread_local char text[1024] = "";
  return text;
}

[[gnu::format(printf, 2, 3)]] inline tw_status refuse(tw_status status, const char *text, ...) {
  va_list values;
  va_start(values, text);
  vsnprintf(message(), 1024, text, values);
  va_end(values);
  return status;
}

// ── sizes ───────────────────────────────────────────────────────────────────────────────────

// A size that does not follow from the arguments: an overflow, a division by zero.
inline bool &undefined() {
  static thread_local bool found = false;
  return found;
}

inline int64_t lost() { return undefined() = true, 0; }
inline int64_t add(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_add_overflow(a, b, &r) ? lost() : r;
}
inline int64_t sub(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_sub_overflow(a, b, &r) ? lost() : r;
}
inline int64_t mul(int64_t a, int64_t b) {
  int64_t r;
  return __builtin_mul_overflow(a, b, &r) ? lost() : r;
}
inline int64_t floordiv(int64_t a, int64_t b) {
  if (b == 0 || (b == -1 && a == INT64_MIN)) return lost();
  return a / b - (a % b != 0 && (a < 0) != (b < 0));
}
inline int64_t floormod(int64_t a, int64_t b) { return sub(a, mul(floordiv(a, b), b)); }
inline int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }
inline int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }
inline int64_t shl(int64_t a, int64_t b) { return b < 0 || b > 62 ? lost() : mul(a, int64_t(1) << b); }
inline int64_t shr(int64_t a, int64_t b) { return b < 0 || b > 63 ? lost() : a >> b; }

// A number over the values of a call: dynamic sizes, scalars, and last the multiprocessors.
typedef int64_t (*Number)(const int64_t *v);

constexpr int MAX_VALUES = 64;
constexpr int MAX_TENSORS = 64;

struct Type {
  const char *name;
  int bits;
};
inline Type type(int dtype) {
  static const Type types[] = {
      {"float64", 64}, {"float32", 32}, {"float16", 16}, {"bfloat16", 16},
      {"float8_e4m3fn", 8}, {"float8_e5m2", 8}, {"float8_e4m3fnuz", 8}, {"float8_e5m2fnuz", 8},
      {"float8_e8m0fnu", 8}, {"int64", 64}, {"int32", 32}, {"int16", 16}, {"int8", 8},
      {"uint64", 64}, {"uint32", 32}, {"uint16", 16}, {"uint8", 8}, {"bool", 8}};
  return dtype >= 0 && dtype <= TW_BOOL ? types[dtype] : Type{"an unknown type", 8};
}

// ── what is declared ────────────────────────────────────────────────────────────────────────

// `per`: elements in one that is passed, of types that share bytes. Without `strides` it is
// contiguous. Nothing reads an `optional` one: null may stand for it.
struct Tensor {
  const char *name;
  tw_dtype dtype;
  int per, rank;
  const Number *shape, *strides;
  const char *declared;
  bool written, optional;
};

struct Scalar {
  const char *name, *dtype;
  int64_t low, high;
  bool integer, wide;  // wide: uint64, whose numbers are not int64's
};

struct Dim {
  const char *name;
  int64_t low, high, multiple;
};

// A size that a shape or a stride gives: `var` itself, or (var < 0) the expression at that place,
// linear in each of `vars`.
struct Binding {
  int tensor, axis;
  bool stride;
  int var;
  const int *used, *solvable;  // lists that end with -1
};

struct Contract {
  const char *name;
  const Tensor *tensors;
  int tensor_count;
  const Scalar *scalars;
  int scalar_count;
  const Dim *dims;
  int dim_count;
  const Binding *bindings;
  int binding_count;
};

// A scalar as the kernel reads it, and as a number where it is an integer.
struct Word {
  unsigned char raw[8];
  int64_t number;
};

template <typename T>
Word word(T value) {
  Word made = {{0}, 0};
  memcpy(made.raw, &value, sizeof value);
  if constexpr (std::is_integral<T>::value) made.number = int64_t(value);
  return made;
}

// A call: its arguments, the values of sizes once they are known.
struct Call {
  const Contract &contract;
  const tw_tensor *const *tensors;
  const Word *scalars;
  int64_t values[MAX_VALUES];
};

inline bool given(const Call &call, int i) {
  return call.tensors[i] && (call.tensors[i]->data || !call.contract.tensors[i].optional);
}

inline int64_t extent(const Call &call, int i, int axis) {
  const Tensor &t = call.contract.tensors[i];
  return mul(call.tensors[i]->shape[axis], axis == t.rank - 1 ? t.per : 1);
}

inline bool is_empty(const tw_tensor &t) {
  for (int d = 0; d < t.rank; d++)
    if (t.shape[d] == 0) return true;
  return false;
}

// ── checks ──────────────────────────────────────────────────────────────────────────────────

#define TW_TRY(what) \
  do {               \
    if (tw_status status_ = (what)) return status_; \
  } while (0)

inline tw_status check_element(const Call &call, int i, int align) {
  const Tensor &t = call.contract.tensors[i];
  const char *kernel = call.contract.name;
  const tw_tensor *a = call.tensors[i];
  if (!given(call, i)) {
    if (t.optional) return TW_OK;
    return refuse(TW_CONTRACT, "%s: %s is null; expected an array %s", kernel, t.name, t.declared);
  }
  bool bytes = t.per > 1 && (a->dtype == TW_UINT8 || a->dtype == TW_INT8);
  if (a->dtype != t.dtype && !bytes)
    return refuse(TW_CONTRACT, "%s: %s has the wrong dtype: expected %s, got %s", kernel, t.name,
                  type(t.dtype).name, type(a->dtype).name);
  if (a->rank != t.rank)
    return refuse(TW_CONTRACT, "%s: %s must have %d dimensions, %s; got %d", kernel, t.name, t.rank,
                  t.declared, a->rank);
  for (int d = 0; d < t.rank; d++)
    if (a->shape[d] < 0 || a->shape[d] > int64_t(1) << 48)
      return refuse(TW_CONTRACT, "%s: %s has %lld elements in dimension %d", kernel, t.name,
                    (long long)a->shape[d], d);
  if (!a->data && !is_empty(*a))
    return refuse(TW_CONTRACT, "%s: %s has no memory: its data is null", kernel, t.name);
  int unit = align ? align : type(t.dtype).bits / 8;
  if (uintptr_t(a->data) % unit)
    return refuse(TW_CONTRACT, "%s: %s is misaligned: expected an address that is a multiple of %d, "
                  "got %p", kernel, t.name, unit, a->data);
  return TW_OK;
}

inline bool has(const int *list, int item) {
  for (; *list >= 0; list++)
    if (*list == item) return true;
  return false;
}

// The value of each dynamic size, from the shapes and strides that have it.
inline tw_status bind(Call &call) {
  const Contract &c = call.contract;
  int from[MAX_VALUES];  // the binding that gave a size
  for (int v = 0; v < c.dim_count; v++) from[v] = -1;
  auto got = [&](const Binding &b) {
    return b.stride ? call.tensors[b.tensor]->strides[b.axis] : extent(call, b.tensor, b.axis);
  };
  auto where = [&](const Binding &b) { return b.stride ? "stride" : "dimension"; };
  // the stride of a dimension of one element is arbitrary: it binds what nothing else does
  for (int pass = 0; pass < 2; pass++)
    for (int i = 0; i < c.binding_count; i++) {
      const Binding &b = c.bindings[i];
      if (!given(call, b.tensor) || b.var < 0) continue;
      bool loose = b.stride && extent(call, b.tensor, b.axis) < 2;
      if (loose != (pass == 1)) continue;
      if (from[b.var] < 0) {
        from[b.var] = i;
        call.values[b.var] = got(b);
      } else if (!loose && call.values[b.var] != got(b)) {
        const Binding &o = c.bindings[from[b.var]];
        return refuse(TW_CONTRACT, "%s: %s %d of %s and %s %d of %s are both %s but differ: "
                      "%lld and %lld", c.name, where(b), b.axis, c.tensors[b.tensor].name, where(o),
                      o.axis, c.tensors[o.tensor].name, c.dims[b.var].name, (long long)got(b),
                      (long long)call.values[b.var]);
      }
    }
  for (bool solving = true; solving;) {
    solving = false;
    for (int i = 0; i < c.binding_count; i++) {
      const Binding &b = c.bindings[i];
      if (!given(call, b.tensor) || b.var >= 0) continue;
      if (b.stride && extent(call, b.tensor, b.axis) < 2) continue;
      int open = -1, count = 0;
      for (const int *u = b.used; *u >= 0; u++)
        if (from[*u] < 0) open = *u, count++;
      if (count != 1 || !has(b.solvable, open)) continue;
      const Tensor &t = c.tensors[b.tensor];
      Number size = (b.stride ? t.strides : t.shape)[b.axis];
      call.values[open] = 0;
      int64_t offset = size(call.values);
      call.values[open] = 1;
      int64_t step = sub(size(call.values), offset);
      if (!step) continue;
      int64_t left = sub(got(b), offset);
      if (floormod(left, step))
        return refuse(TW_CONTRACT, "%s: no %s gives %s %d of %s its size: %s, got %lld", c.name,
                      c.dims[open].name, where(b), b.axis, t.name, t.declared, (long long)got(b));
      call.values[open] = floordiv(left, step);
      from[open] = i;
      solving = true;
    }
  }
  for (int v = 0; v < c.dim_count; v++) {
    const Dim &d = c.dims[v];
    if (from[v] < 0)
      return refuse(TW_CONTRACT, "%s: no array's shape gives %s", c.name, d.name);
    int64_t value = call.values[v];
    if (value < d.low || (d.high >= 0 && value > d.high) || value % d.multiple) {
      char high[32] = "";
      if (d.high >= 0) snprintf(high, sizeof high, ", at most %lld", (long long)d.high);
      return refuse(TW_CONTRACT, "%s: the contract of %s is broken: expected at least %lld%s, a "
                    "multiple of %lld; got %lld", c.name, d.name, (long long)d.low, high,
                    (long long)d.multiple, (long long)value);
    }
  }
  return TW_OK;
}

inline tw_status check_shape(const Call &call, int i) {
  const Tensor &t = call.contract.tensors[i];
  const char *kernel = call.contract.name;
  const tw_tensor *a = call.tensors[i];
  if (!given(call, i)) return TW_OK;
  for (int d = 0; d < t.rank; d++) {
    int64_t want = t.shape[d](call.values), got = extent(call, i, d);
    if (want != got)
      return refuse(TW_CONTRACT, "%s: %s has the wrong size in dimension %d: expected %lld of %s, "
                    "got %lld", kernel, t.name, d, (long long)want, t.declared, (long long)got);
  }
  int64_t step = 1;
  bool empty = is_empty(*a);
  for (int d = t.rank - 1; d >= 0; d--) {
    int64_t want = t.strides ? t.strides[d](call.values) : step;
    bool single = t.strides ? extent(call, i, d) < 2 : a->shape[d] < 2 || empty;
    if (!single && a->strides[d] != want)
      return refuse(TW_CONTRACT, "%s: %s has the wrong stride in dimension %d: expected %lld "
                    "elements%s, got %lld", kernel, t.name, d, (long long)want,
                    t.strides ? "" : " (it must be contiguous)", (long long)a->strides[d]);
    step = mul(step, a->shape[d]);
  }
  if (step >= int64_t(1) << 56) lost();
  return TW_OK;
}

// ── arrays that overlap ─────────────────────────────────────────────────────────────────────

__extension__ typedef __int128 Int128;  // no warning with -Wpedantic

struct Axis {
  int64_t step, low, high;  // adds step · k, k from low to high
};

// Whether Σ step · k reaches `target`, of axes from long steps to short ones. Gives up, with true,
// after as many tries as no array that people make takes.
inline bool reaches(const Axis *axes, int count, Int128 target, int &tries) {
  if (count == 0) return target == 0;
  if (--tries < 0) return true;
  Int128 low = 0, high = 0;
  for (int i = 1; i < count; i++) {
    low += Int128(axes[i].step) * axes[i].low;
    high += Int128(axes[i].step) * axes[i].high;
  }
  // step · k must lie within target - high … target - low
  Int128 s = axes[0].step, first = target - high, last = target - low;
  Int128 k = first / s + (first % s > 0), end = last / s - (last % s < 0);
  if (k < axes[0].low) k = axes[0].low;
  if (end > axes[0].high) end = axes[0].high;
  for (; k <= end; k++)
    if (reaches(axes + 1, count - 1, target - s * k, tries)) return true;
  return false;
}

inline int sorted(Axis *axes, int count) {
  for (int i = 1; i < count; i++)
    for (int j = i; j > 0 && axes[j].step > axes[j - 1].step; j--) {
      Axis held = axes[j];
      axes[j] = axes[j - 1], axes[j - 1] = held;
    }
  return count;
}

constexpr int TRIES = 4096;

inline int put(Axis *axes, int at, const tw_tensor &t, int item, int sign) {
  for (int d = 0; d < t.rank; d++) {
    int64_t step = t.strides[d] * item, reach = t.shape[d] - 1;
    if (reach < 1 || step == 0) continue;
    if (step < 0) step = -step, sign = -sign;
    axes[at++] = sign > 0 ? Axis{step, 0, reach} : Axis{step, -reach, 0};
    if (t.strides[d] < 0) sign = -sign;
  }
  return at;
}

inline bool share(const tw_tensor &a, const tw_tensor &b, int item_a, int item_b) {
  Axis axes[2 * TW_MAX_RANK + 2];
  int count = put(axes, 0, a, item_a, 1);
  count = put(axes, count, b, item_b, -1);
  axes[count++] = Axis{1, -(item_b - 1), item_a - 1};
  int tries = TRIES;
  sorted(axes, count);
  return reaches(axes, count, Int128(uintptr_t(b.data)) - Int128(uintptr_t(a.data)), tries);
}

// Whether two indices of an array are one place in memory.
inline bool meets_itself(const tw_tensor &t) {
  Axis axes[TW_MAX_RANK];
  int count = 0, tries = TRIES;
  for (int d = 0; d < t.rank; d++) {
    if (t.shape[d] < 2) continue;
    if (t.strides[d] == 0) return true;
    int64_t step = t.strides[d] < 0 ? -t.strides[d] : t.strides[d];
    axes[count++] = Axis{step, 1 - t.shape[d], t.shape[d] - 1};
  }
  sorted(axes, count);
  for (int i = 0; i < count; i++) {  // of two such indices, the first that differs
    for (int64_t k = 1; k <= axes[i].high; k++) {
      Int128 rest = 0;
      for (int j = i + 1; j < count; j++) rest += Int128(axes[j].step) * axes[j].high;
      if (Int128(axes[i].step) * k > rest) break;
      if (reaches(axes + i + 1, count - i - 1, -Int128(axes[i].step) * k, tries)) return true;
    }
  }
  return false;
}

inline void span(const tw_tensor &t, int item, Int128 &low, Int128 &high) {
  low = high = Int128(uintptr_t(t.data));
  for (int d = 0; d < t.rank; d++) {
    Int128 reach = Int128(t.strides[d]) * item * (t.shape[d] - 1);
    (reach < 0 ? low : high) += reach;
  }
  high += item;
}

inline tw_status check_apart(const Call &call) {
  const Contract &c = call.contract;
  for (int i = 0; i < c.tensor_count; i++) {
    if (!c.tensors[i].written || !given(call, i) || is_empty(*call.tensors[i])) continue;
    const tw_tensor &a = *call.tensors[i];
    int item = type(a.dtype).bits / 8;
    Int128 low, high, start, stop;
    if (meets_itself(a))
      return refuse(TW_CONTRACT, "%s: %s is written, and several of its indices are one place in "
                    "memory", c.name, c.tensors[i].name);
    span(a, item, low, high);
    for (int j = 0; j < c.tensor_count; j++) {
      if (j == i || !given(call, j) || is_empty(*call.tensors[j])) continue;
      const tw_tensor &b = *call.tensors[j];
      int other = type(b.dtype).bits / 8;
      span(b, other, start, stop);
      if (start < high && low < stop && share(a, b, item, other))
        return refuse(TW_CONTRACT, "%s: %s is written and overlaps %s", c.name, c.tensors[i].name,
                      c.tensors[j].name);
    }
  }
  return TW_OK;
}

inline tw_status check_scalars(const Call &call) {
  const Contract &c = call.contract;
  for (int i = 0; i < c.scalar_count; i++) {
    const Scalar &s = c.scalars[i];
    int64_t n = call.scalars[i].number;
    if (s.integer && !s.wide && (n < s.low || n > s.high))
      return refuse(TW_CONTRACT, "%s: %s = %lld does not fit %s", c.name, s.name, (long long)n,
                    s.dtype);
  }
  return TW_OK;
}

// Everything about a call but the machine. `align`: of each tensor the bytes it must begin on, 0
// for those of an element.
inline tw_status check(Call &call, const int *align) {
  const Contract &c = call.contract;
  undefined() = false;
  for (int i = 0; i < c.tensor_count; i++) TW_TRY(check_element(call, i, align[i]));
  TW_TRY(check_scalars(call));
  for (int i = 0; i < c.scalar_count; i++)
    if (c.scalars[i].integer) call.values[c.dim_count + i] = call.scalars[i].number;
  TW_TRY(bind(call));
  for (int i = 0; i < c.tensor_count; i++) TW_TRY(check_shape(call, i));
  if (undefined())
    return refuse(TW_CONTRACT, "%s: a size does not follow from the arguments", c.name);
  return check_apart(call);
}

// A buffer that lives for one call.
struct Scratch {
  Number elements;
  const Number *shape;
  int rank, bits;
};

inline int64_t scratch_bytes(const Scratch &s, const int64_t *values) {
  return floordiv(add(mul(s.elements(values), s.bits), 7), 8);
}

}  // namespace TILEWRIGHT_EXPORT
