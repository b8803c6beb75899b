// Copies that threads do not wait for: by the bulk engine, and by `cp.async`.
#pragma once

#include "threads.cuh"

namespace tw {

// ── bulk tensor copies ──────────────────────────────────────────────────────────────────────

// Cache policies as the driver's fractional policies encode them: what `createpolicy` makes on every
// chip that takes them. `no_allocate` is none of the L2 cache's: it passes the L1 cache by.
enum Policy : uint64_t {
  no_allocate = 0,
  normal = 0x1000000000000000ull,
  evict_first = 0x12F0000000000000ull,
  evict_last = 0x14F0000000000000ull
};

TW_EFFECT(prefetch, (const TensorMap* map), "prefetch.tensormap [%0];", "l"(map))
TW_DEVICE void commit_bulk() { asm volatile("cp.async.bulk.commit_group;" ::: "memory"); }
TW_WAIT(wait_bulk, "cp.async.bulk.wait_group %0;")
TW_WAIT(wait_bulk_read, "cp.async.bulk.wait_group.read %0;")
TW_DEVICE void commit_cp_async() { asm volatile("cp.async.commit_group;" ::: "memory"); }
TW_WAIT(wait_cp_async, "cp.async.wait_group %0;")
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
// A run of bytes, of which `amount` are read; the rest are zeros, which the barrier counts, too.
template <int Bytes, Policy Kept = normal>
TW_DEVICE void bulk_row(uint32_t to, const void* from, int amount, uint32_t barrier) {
  const int whole = amount & -16;
  if (whole > 0) {
    if constexpr (Kept == normal)
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
              "r"(to), "l"(from), "r"(whole), "r"(barrier) : "memory");
    else
      asm volatile(
          "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes.L2::cache_hint "
          "[%0], [%1], %2, [%3], %4;" ::"r"(to), "l"(from), "r"(whole), "r"(barrier),
          "l"(uint64_t(Kept)) : "memory");
  }
  if (whole < Bytes) {
    for (int at = whole; at < Bytes; at += 16) {
      uint32_t w[4] = {};
      if (at < amount) {
#pragma unroll
        for (int i = 0; i < 16; ++i)
          if (at + i < amount)
            w[i / 4] |= uint32_t(static_cast<const uint8_t*>(from)[at + i]) << i % 4 * 8;
      }
      asm volatile("st.shared.v4.b32 [%0], {%1, %2, %3, %4};" ::"r"(to + at), "r"(w[0]), "r"(w[1]),
                   "r"(w[2]), "r"(w[3])
                   : "memory");
    }
    asm volatile("fence.acq_rel.cta;" ::: "memory");
    asm volatile("mbarrier.complete_tx.relaxed.cta.shared::cta.b64 [%0], %1;" ::"r"(barrier),
                 "r"(Bytes - whole) : "memory");
  }
}
TW_DEVICE void pdl_wait() { asm volatile("griddepcontrol.wait;" ::: "memory"); }
TW_DEVICE void pdl_launch() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

}  // namespace tw
