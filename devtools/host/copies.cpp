// Copies that are made later than they are asked for, barriers that count them, and products.
#include <math.h>
#include <string.h>

#include <algorithm>

#include "blocks.h"

namespace host {

// ── barriers ────────────────────────────────────────────────────────────────────────────────

static Barrier& barrier_at(uint32_t address) {
  Block& block = home(address);
  auto found = block.barriers.find(address);
  if (found == block.barriers.end())
    fail("the barrier at %#x has not been initialized", address & 0xffffff);
  return found->second;
}
static void settle(Barrier& b) {
  if (b.pending == 0 && b.bytes == 0) b.pending = b.count, b.phase ^= 1;
}
void barrier_init(uint32_t barrier, int count) {
  at_shared(barrier, 8);
  if (count < 1) fail("a barrier of %d arrivals", count);
  Barrier fresh;
  fresh.count = fresh.pending = count;
  home(barrier).barriers[barrier] = fresh;
}
void barrier_arrive(uint32_t barrier, int count) {
  Barrier& b = barrier_at(barrier);
  if (count < 1 || count > b.pending)
    fail("%d arrivals at a barrier that waits for %d of %d", count, b.pending, b.count);
  b.pending -= count;
  settle(b);
}
void barrier_expect(uint32_t barrier, int bytes) { barrier_at(barrier).bytes += bytes; }
void barrier_wait(uint32_t barrier, uint32_t parity) {
  Barrier& b = barrier_at(barrier);
  if (parity > 1) fail("a wait for parity %u", parity);
  if (b.phase == parity) wait_until("a barrier in shared memory", [&] { return b.phase != parity; });
}
static void complete(Block& block, uint32_t barrier, int64_t bytes) {
  Barrier& b = block.barriers.at(barrier);
  b.bytes -= bytes;
  settle(b);
}

// ── copies ──────────────────────────────────────────────────────────────────────────────────

static bool at_once() { return schedule_seed() == 1; }

static void later(Groups& groups, Work work) {
  if (at_once()) work();
  else groups.open.push_back(std::move(work));
}
void copy_async(uint32_t to, const void* from, int bytes, int amount) {
  uint8_t* place = at_shared(to, bytes);
  if (bytes != 4 && bytes != 8 && bytes != 16) fail("an asynchronous copy of %d bytes", bytes);
  if (amount < 0 || amount > bytes) fail("%d of %d bytes are copied", amount, bytes);
  if (amount) require_aligned(from, size_t(bytes));
  later(current().copies, [=] {
    memcpy(place, from, size_t(amount));
    memset(place + amount, 0, size_t(bytes - amount));
  });
}
void commit_copies() { current().copies.commit(); }
void wait_copies(int pending) { current().copies.wait(size_t(pending)); }
void finish_copies(Thread& thread) {
  for (Groups* groups : {&thread.copies, &thread.bulk}) groups->commit(), groups->wait(0);
}

bool deliver(Cluster& cluster, uint32_t which) {
  if (cluster.underway.empty()) return false;
  const size_t at = which % cluster.underway.size();
  Work work = std::move(cluster.underway[at]);
  cluster.underway.erase(cluster.underway.begin() + ptrdiff_t(at));
  work();
  return true;
}
static void launch(Work work) {
  if (at_once()) work();
  else current().block->cluster->underway.push_back(std::move(work));
}
void store_remote(uint32_t to, const uint32_t* words, int count, uint32_t barrier) {
  uint8_t* place = at_shared(to, 4 * count);
  barrier_at(barrier);
  Block& block = home(barrier);
  if (&block != &home(to)) fail("a store into a peer, and a barrier of another block");
  std::vector<uint32_t> kept(words, words + count);
  launch([=, &block] {
    memcpy(place, kept.data(), 4 * kept.size());
    complete(block, barrier, 4 * int64_t(kept.size()));
  });
}

// ── bulk copies ─────────────────────────────────────────────────────────────────────────────

// A tensor map as `judge.py` writes it: 16 words of 64 bits. Dimensions run from the innermost.
struct Map {
  uint64_t base, rank, element, type, swizzle, sizes[5], strides[4], box_low, box_high;
  int box(int d) const { return int((d < 3 ? box_low >> 16 * d : box_high >> 16 * (d - 3)) & 0xffff); }
};
static_assert(sizeof(Map) == 128, "as many bytes as the driver's");

// Every element of a box: its place in the tensor, or null outside of it, and in shared memory.
template <class F>
static void each_element(const Map& map, const int* corner, uint32_t start, F visit) {
  const int rank = int(map.rank), size = int(map.element);
  int64_t total = 1;
  for (int d = 0; d < rank; ++d) total *= map.box(d);
  for (int64_t i = 0; i < total; ++i) {
    int64_t rest = i;
    uint64_t offset = 0;
    bool inside = true;
    for (int d = 0; d < rank; ++d) {
      const int64_t at = corner[d] + rest % map.box(d);
      rest /= map.box(d);
      inside &= at >= 0 && at < int64_t(map.sizes[d]);
      offset += uint64_t(at) * (d ? map.strides[d - 1] : uint64_t(size));
    }
    uint32_t place = start + uint32_t(i * size);
    place ^= (place >> 7 & uint32_t(map.swizzle ? map.swizzle / 16 - 1 : 0)) << 4;
    visit(inside ? reinterpret_cast<uint8_t*>(map.base + offset) : nullptr, place);
  }
}
static void check_box(const Map& map, const int* corner, uint32_t start) {
  if (!map.rank || map.rank > 5) fail("a bulk copy of no tensor map");
  at_shared(start, 16);
  if (!map.swizzle && start % 128) fail("a bulk copy's part of shared memory begins at %u", start);
  if (int64_t(corner[0]) * int64_t(map.element) % 16)
    fail("a bulk copy begins at element %d of a row", corner[0]);
}
void bulk_row(uint32_t to, const void* from, int bytes, uint32_t barrier) {
  at_shared(to, 16);
  if (bytes <= 0 || bytes % 16 || uintptr_t(from) % 16)
    fail("a bulk copy of %d bytes is not of whole units of 16 bytes", bytes);
  barrier_at(barrier);
  Block* block = current().block->cluster->blocks[to >> 24].get();
  const int64_t offset = int64_t(to & ((1u << 24) - 1)) - 1024;
  if (offset < 0 || offset + bytes > block->shared_bytes) fail("a bulk copy leaves shared memory");
  launch([=] {
    memcpy(block->shared + offset, from, size_t(bytes));
    complete(*block, barrier, bytes);
  });
}
void barrier_complete(uint32_t barrier, int bytes) {
  barrier_at(barrier);
  complete(*current().block->cluster->blocks[barrier >> 24], barrier, bytes);
}
void bulk_load(uint32_t to, const void* given, const int* where, uint32_t barrier, int mask) {
  Map map;
  memcpy(&map, given, sizeof map);
  std::vector<int> corner(where, where + map.rank);
  check_box(map, where, to);
  auto& blocks = current().block->cluster->blocks;
  if (mask == 0 || (mask > 0 && mask >> blocks.size())) fail("a multicast mask of %#x", mask);
  const uint32_t low = (1u << 24) - 1;
  for (size_t rank = 0; rank < blocks.size(); ++rank) {
    if (mask < 0 ? rank != to >> 24 : !(mask >> rank & 1)) continue;
    const uint32_t start = (to & low) | uint32_t(rank) << 24;
    const uint32_t counted = (barrier & low) | uint32_t(rank) << 24;
    barrier_at(counted);
    Block* block = blocks[rank].get();
    Thread* asker = &current();
    launch([=] {
      (void)asker;
      int64_t bytes = 0;
      each_element(map, corner.data(), start, [&](uint8_t* from, uint32_t place) {
        const int64_t offset = int64_t(place & low) - 1024;
        if (offset < 0 || offset + int64_t(map.element) > block->shared_bytes)
          fail("a bulk copy's box leaves shared memory");
        if (from) memcpy(block->shared + offset, from, map.element);
        else memset(block->shared + offset, 0, map.element);
        bytes += int64_t(map.element);
      });
      complete(*block, counted, bytes);
    });
  }
}

// Types as the driver numbers them.
template <class T>
static void combine(uint8_t* to, const uint8_t* from, const char* how) {
  T a, b;
  memcpy(&a, to, sizeof a), memcpy(&b, from, sizeof b);
  if (!strcmp(how, "add")) a = T(a + b);
  else if (!strcmp(how, "min")) a = b < a ? b : a;
  else if (!strcmp(how, "max")) a = b > a ? b : a;
  else excluded(how);
  memcpy(to, &a, sizeof a);
}
static void combine_half(uint8_t* to, const uint8_t* from, const char* how, bool brain) {
  uint16_t x, y;
  memcpy(&x, to, 2), memcpy(&y, from, 2);
  auto value = [&](uint16_t bits) {
    if (!brain) return half_value(bits);
    const uint32_t wide = uint32_t(bits) << 16;
    float r;
    memcpy(&r, &wide, 4);
    return r;
  };
  float a = value(x), b = value(y);
  double r = 0;
  if (!strcmp(how, "add")) r = double(a) + double(b);
  else if (!strcmp(how, "min")) r = double(fminf(a, b));
  else if (!strcmp(how, "max")) r = double(fmaxf(a, b));
  else excluded(how);
  x = brain ? bfloat_bits(r) : half_bits(r);
  memcpy(to, &x, 2);
}
static void reduce_element(uint64_t type, uint8_t* to, const uint8_t* from, const char* how) {
  switch (type) {
    case 2: return combine<uint32_t>(to, from, how);
    case 3: return combine<int32_t>(to, from, how);
    case 4: return combine<uint64_t>(to, from, how);
    case 5: return combine<int64_t>(to, from, how);
    case 6: return combine_half(to, from, how, false);
    case 7: return combine<float>(to, from, how);
    case 8: return combine<double>(to, from, how);
    case 9: return combine_half(to, from, how, true);
    default: excluded("cp.reduce of this type");
  }
}
void bulk_store(const void* given, const int* where, uint32_t from, const char* reduce) {
  Map map;
  memcpy(&map, given, sizeof map);
  std::vector<int> corner(where, where + map.rank);
  check_box(map, where, from);
  Block* block = current().block;
  later(current().bulk, [=] {
    each_element(map, corner.data(), from, [&](uint8_t* to, uint32_t place) {
      const int64_t offset = int64_t(place & ((1u << 24) - 1)) - 1024;
      if (offset < 0 || offset + int64_t(map.element) > block->shared_bytes)
        fail("a bulk copy's box leaves shared memory");
      if (!to) return;
      if (reduce) reduce_element(map.type, to, block->shared + offset, reduce);
      else memcpy(to, block->shared + offset, map.element);
    });
  });
}
void commit_bulk() { current().bulk.commit(); }
void wait_bulk(int pending) { current().bulk.wait(size_t(pending)); }

// ── numbers ─────────────────────────────────────────────────────────────────────────────────

// A value as sign, exponent and mantissa of few bits, rounded once to nearest, ties to even.
static uint32_t rounded(double x, int mantissa, int least, uint32_t past) {
  const double size = fabs(x);
  if (size == 0 || size > 0x1p128) return size == 0 ? 0 : past;
  int exponent;
  frexp(size, &exponent);  // 2^(exponent - 1) <= size
  const int unit = std::max(exponent - 1, least) - mantissa;
  const double units = nearbyint(ldexp(size, -unit));  // exact but for the rounding
  const uint32_t base = uint32_t(unit + mantissa - least) << mantissa;
  const double code = units + double(base);  // a carry goes into the exponent
  return code >= double(past) ? past : uint32_t(code);
}
static uint32_t sign_of(double x) { return signbit(x) ? 1 : 0; }
uint16_t half_bits(double x) {
  if (x != x) return 0x7fff;
  return uint16_t(sign_of(x) << 15 | rounded(x, 10, -14, 0x7c00));
}
uint16_t bfloat_bits(double x) {
  if (x != x) return 0x7fff;
  return uint16_t(sign_of(x) << 15 | rounded(x, 7, -126, 0x7f80));
}
uint8_t small_bits(double x, bool e4m3) {
  if (x != x) return 0x7f;
  const uint32_t code = e4m3 ? rounded(x, 3, -6, 0x7e) : rounded(x, 2, -14, 0x7b);
  return uint8_t(sign_of(x) << 7 | code);
}
static double wide_value(uint32_t bits, int mantissa, int exponents, int least) {
  const uint32_t fraction = bits & ((1u << mantissa) - 1);
  const int exponent = int(bits >> mantissa & ((1u << exponents) - 1));
  const double size = exponent ? ldexp(1.0 + ldexp(double(fraction), -mantissa), exponent - 1 + least)
                               : ldexp(double(fraction), least - mantissa);
  return bits >> (mantissa + exponents) & 1 ? -size : size;
}
float half_value(uint16_t bits) {
  if ((bits & 0x7c00) == 0x7c00) {
    const uint32_t wide = uint32_t(bits & 0x8000) << 16 | 0x7f800000u | uint32_t(bits & 0x3ff) << 13;
    float r;
    memcpy(&r, &wide, 4);
    return r;
  }
  return float(wide_value(bits, 10, 5, -14));
}
double small_value(uint8_t bits, bool e4m3) {
  if (e4m3) return (bits & 0x7f) == 0x7f ? double(NAN) : wide_value(bits, 3, 4, -6);
  return double(half_value(uint16_t(bits << 8)));
}

// ── products ────────────────────────────────────────────────────────────────────────────────

static int bits_of_type(Type t) {
  return t == f16 || t == bf16 ? 16 : t == f32 || t == tf32 || t == s32 ? 32 : 8;
}
static double value_of(Type t, const uint8_t* at) {
  uint16_t half;
  uint32_t word;
  float r;
  switch (t) {
    case f16: memcpy(&half, at, 2); return double(half_value(half));
    case bf16:
      memcpy(&half, at, 2);
      word = uint32_t(half) << 16;
      memcpy(&r, &word, 4);
      return double(r);
    case tf32:
      memcpy(&word, at, 4);
      word &= 0xffffe000u;
      memcpy(&r, &word, 4);
      return double(r);
    case f32: memcpy(&r, at, 4); return double(r);
    case e4m3: return small_value(*at, true);
    case e5m2: return small_value(*at, false);
    case s8: return double(int8_t(*at));
    case u8: return double(*at);
    default: excluded("a product of this type");
  }
}
// `sum` and what is in element `i` of an accumulator; integers wrap.
static void add_to(Type type, uint8_t* d, int i, double sum, bool add) {
  if (type == f32) {
    float old;
    memcpy(&old, d + 4 * i, 4);
    old = float(sum + (add ? double(old) : 0.0));
    memcpy(d + 4 * i, &old, 4);
  } else if (type == s32) {
    uint32_t old;
    memcpy(&old, d + 4 * i, 4);
    old = uint32_t(int64_t(sum)) + (add ? old : 0u);
    memcpy(d + 4 * i, &old, 4);
  } else {
    uint16_t old;
    memcpy(&old, d + 2 * i, 2);
    old = half_bits(sum + (add ? double(half_value(old)) : 0.0));
    memcpy(d + 2 * i, &old, 2);
  }
}
void mma(int k, Type d_type, Type a_type, Type b_type, uint32_t* d, const uint32_t* a,
         const uint32_t* b) {
  uint32_t mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const Exchange& all = meet_warp(~0u, mine, sizeof mine, "mma");
  const int at = lane(), size = bits_of_type(a_type) / 8, pack = 4 / size;
  auto element = [&](int lane, int word, int i, Type type) {
    return value_of(type, all.data[lane] + 4 * word + size * i);
  };
  for (int row = 0; row < 2; ++row)
    for (int column = 0; column < 2; ++column) {
      double sum = 0;
      for (int j = 0; j < k; ++j) {
        const int far = j / (4 * pack), quad = j / pack % 4, i = j % pack;
        const double x = element(at / 4 * 4 + quad, row + 2 * far, i, a_type);
        const double y = element((2 * (at % 4) + column) * 4 + quad, 4 + far, i, b_type);
        sum += x * y;
      }
      add_to(d_type, reinterpret_cast<uint8_t*>(d), 2 * row + column, sum, true);
    }
}

void mma(double* d, const double* a, const double* b) {
  const double mine[6] = {a[0], a[1], a[2], a[3], b[0], b[1]};
  const Exchange& all = meet_warp(~0u, mine, sizeof mine, "mma");
  const int at = lane();
  auto element = [&](int lane, int i) {
    double x;
    memcpy(&x, all.data[lane] + sizeof x * size_t(i), sizeof x);
    return x;
  };
  for (int i = 0; i < 4; ++i)
    for (int j = 0; j < 8; ++j)
      d[i] = fma(element(at / 4 * 4 + j % 4, i / 2 + j / 4 * 2),
                 element((2 * (at % 4) + i % 2) * 4 + j % 4, 4 + j / 4), d[i]);
}

// Where element (i, j) of the matrix lies that a descriptor names.
static uint32_t operand(uint64_t code, int i, int j, int size, bool turned) {
  const uint32_t start = uint32_t(code & 0x3fff) << 4, leading = uint32_t(code >> 16 & 0x3fff) << 4;
  const uint32_t stride = uint32_t(code >> 32 & 0x3fff) << 4;
  static const uint32_t spans[] = {0, 128, 64, 32};
  const uint32_t span = spans[code >> 62], x = uint32_t(i), y = uint32_t(j), s = uint32_t(size);
  uint32_t offset;
  if (turned) {
    const uint32_t line = span ? span : 16, row = line / s;
    const uint32_t columns = span ? leading : stride, depth = span ? stride : leading;
    offset = x % row * s + x / row * columns + y % 8 * line + y / 8 * depth;
  } else if (span) {
    offset = x % 8 * span + x / 8 * stride + y * s;
  } else {
    const uint32_t unit = 16 / s;
    offset = x % 8 * 16 + x / 8 * stride + y % unit * s + y / unit * leading;
  }
  const uint32_t at = start + offset;
  return at ^ (at >> 7 & (span ? span / 16 - 1 : 0)) << 4;
}
static void multiply(std::vector<Product>& all, uint64_t upto) {
  for (uint64_t i = 0; i < upto; ++i) {
    if (all[i].done) continue;
    for (auto& part : all[i].parts) part();
    all[i].parts.clear();
    all[i].done = true;
  }
}
void wgmma(int n, int k, Type d_type, Type a_type, Type b_type, void* d, const uint32_t* a,
           uint64_t a_code, uint64_t b_code, bool add, bool a_turned, bool b_turned) {
  const int at = lane(), warp = current().id / 32 % 4, size = bits_of_type(a_type) / 8;
  const int pack = 4 / size;
  Block* block = current().block;
  std::vector<double> rows(a ? size_t(2 * k) : 0);
  if (a) {
    const Exchange& all = meet_warp(~0u, a, 16, "wgmma");
    for (int row = 0; row < 2; ++row)
      for (int j = 0; j < k; ++j) {
        const int word = row + 2 * (j / (4 * pack)), quad = j / pack % 4;
        rows[size_t(row * k + j)] =
            value_of(a_type, all.data[at / 4 * 4 + quad] + 4 * word + size * (j % pack));
      }
  }
  auto read = [=](uint64_t code, int i, int j, bool turned, Type type) {
    const int64_t offset = int64_t(operand(code, i, j, size, turned)) - 1024;
    if (offset < 0 || offset + size > block->shared_bytes)
      fail("a matrix descriptor reaches outside of shared memory");
    return value_of(type, block->shared + offset);
  };
  Thread& me = current();
  auto& all = block->products[size_t(me.id / 128)];
  if (me.products == all.size()) all.emplace_back();
  Product& one = all[me.products++];
  one.parts.push_back([=] {
    std::vector<double> left = rows;
    if (left.empty())
      for (int row = 0; row < 2; ++row)
        for (int j = 0; j < k; ++j)
          left.push_back(read(a_code, 16 * warp + at / 4 + 8 * row, j, a_turned, a_type));
    for (int column = 0; column < n / 4; ++column) {
      const int c = column / 2 * 8 + at % 4 * 2 + column % 2;
      double sum[2] = {0, 0};
      for (int j = 0; j < k; ++j) {
        const double y = read(b_code, c, j, b_turned, b_type);
        sum[0] += left[size_t(j)] * y, sum[1] += left[size_t(k + j)] * y;
      }
      for (int row = 0; row < 2; ++row)
        add_to(d_type, static_cast<uint8_t*>(d), column / 2 * 4 + 2 * row + column % 2, sum[row],
               add);
    }
  });
  if (at_once() && one.parts.size() == 128) multiply(all, me.products);
}
void commit_wgmma() { current().committed.push_back(current().products); }
// Done when the first of its threads waits; others have issued it by then, or are waited for.
void wait_wgmma(int pending) {
  Thread& me = current();
  if (me.committed.size() <= size_t(pending)) return;
  const uint64_t upto = me.committed[me.committed.size() - 1 - size_t(pending)];
  auto& all = me.block->products[size_t(me.id / 128)];
  if (!upto || all[upto - 1].done) return;
  wait_until("a product of its warpgroup", [&] {
    return all[upto - 1].done || all[upto - 1].parts.size() == 128;
  });
  multiply(all, upto);
}

}  // namespace host
