// Threads of CUDA as fibers of the host: what generated code asks of them. See threads.cpp.
#pragma once

#include <stddef.h>
#include <stdint.h>

namespace host {

struct Place {
  unsigned x, y, z;
};
extern Place thread_index, block_index, block_size, grid_size;

// Ends the process with a sentence on stderr.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The same for an instruction that has no meaning here: no fault of the kernel.
[[noreturn]] void excluded(const char* instruction);

int lane();
uint8_t* shared();                              // of the block
uint32_t shared_address(const void* at);        // 32 bits, with the block's rank in the cluster
uint8_t* at_shared(uint32_t address, int bytes);  // may be a peer's; checked
uint32_t remote(uint32_t address, int rank);
int cluster_rank();
void meet_cluster(bool arrive, bool wait);

// Lets others run: for loops that wait for what they write.
void turn();
void meet_block(int id, int count, bool wait);

struct Exchange {
  uint32_t lanes;  // that came
  alignas(16) uint8_t data[32][48];
};
// All lanes of `mask` that are alive come, each with up to 48 bytes, and see all of them.
const Exchange& meet_warp(uint32_t mask, const void* data, int bytes, const char* kind);
uint32_t active_lanes(int site);

inline void require_aligned(const volatile void* at, size_t bytes) {
  if (reinterpret_cast<uintptr_t>(at) % bytes)
    fail("misaligned: %p is not a multiple of %zu bytes", const_cast<const void*>(at), bytes);
}

// ── asynchronous copies ─────────────────────────────────────────────────────────────────────

void barrier_init(uint32_t barrier, int count);
void barrier_arrive(uint32_t barrier, int count);
void barrier_expect(uint32_t barrier, int bytes);
void barrier_wait(uint32_t barrier, uint32_t parity);

void copy_async(uint32_t to, const void* from, int bytes, int amount);
void commit_copies();
void wait_copies(int pending);

struct Map;
void bulk_row(uint32_t to, const void* from, int bytes, uint32_t barrier);
void barrier_complete(uint32_t barrier, int bytes);
void bulk_load(uint32_t to, const void* map, const int* corner, uint32_t barrier, int mask);
void bulk_store(const void* map, const int* corner, uint32_t from, const char* reduce);
void commit_bulk();
void wait_bulk(int pending);
void store_remote(uint32_t to, const uint32_t* words, int count, uint32_t barrier);

// ── matrices ────────────────────────────────────────────────────────────────────────────────

enum Type { f32, f16, bf16, tf32, e4m3, e5m2, s8, u8, s32, f64 };
float half_value(uint16_t bits);
uint16_t half_bits(double x);
uint16_t bfloat_bits(double x);
double small_value(uint8_t bits, bool e4m3);
uint8_t small_bits(double x, bool e4m3);

// A warp's product of 16×8; d is 4 float or int, or 2 words of float16.
void mma(int k, Type d_type, Type a_type, Type b_type, uint32_t* d, const uint32_t* a,
         const uint32_t* b);
void mma(double* d, const double* a, const double* b);  // 16×8×8
// A warpgroup's product of 64×n, done when it is waited for. `a` is of registers, or null.
void wgmma(int n, int k, Type d_type, Type a_type, Type b_type, void* d, const uint32_t* a,
           uint64_t a_code, uint64_t b_code, bool add, bool a_turned, bool b_turned);
void commit_wgmma();
void wait_wgmma(int pending);

// ── launches ────────────────────────────────────────────────────────────────────────────────

using Call = void (*)(char* const* parameters);
struct Kernel {
  const char* name;
  Call call;
};
int main(int count, char** words, const Kernel* kernels);

}  // namespace host
