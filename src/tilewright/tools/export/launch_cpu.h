// Calls of machine code for this kind of processor: blocks over threads.
#pragma once

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "contract.h"

namespace TILEWRIGHT_EXPORT {

struct Launch {
  void (*entry)(const void *arguments, void *arena, int64_t first, int64_t last);
  int64_t (*blocks)(const void *arguments);
  int64_t arena;
};

// `order`: of each parameter the tensor, or -1 - the scalar.
struct Kernel {
  Contract contract;
  const char *processor;
  bool (*fits)();
  const int *align, *order;
  int param_count;
  const Launch *launches;
  int launch_count;
  const Scratch *scratch;
  int scratch_count;
};

inline int thread_count() {
  const char *text = std::getenv("TILEWRIGHT_NUM_THREADS");
  int found = text && *text ? std::atoi(text) : int(std::thread::hardware_concurrency());
  return found > 1 ? found : 1;
}

// Memory that vectors may begin in.
struct Room {
  std::unique_ptr<unsigned char[]> memory;
  void *start;
  explicit Room(int64_t bytes) : memory(new unsigned char[size_t(bytes) + 4096]) {
    start = memory.get() + -uintptr_t(memory.get()) % 4096;
  }
};

inline double seconds() {
  auto now = std::chrono::steady_clock::now().time_since_epoch();
  return std::chrono::duration<double>(now).count();
}

inline void run(const Launch &l, const void *arguments) {
  int64_t total = l.blocks(arguments);
  if (total <= 0) return;
  Room own(l.arena);
  double started = seconds();
  l.entry(arguments, own.start, 0, 1);
  double left = (seconds() - started) * double(total - 1);
  int64_t workers = left < 300e-6 ? 1 : std::min<int64_t>(thread_count(), total - 1);
  int64_t chunk = std::max<int64_t>(1, (total - 1) / (workers * 8));
  std::atomic<int64_t> next{1};
  auto work = [&](void *arena) {
    for (int64_t first; (first = next.fetch_add(chunk)) < total;)
      l.entry(arguments, arena, first, std::min(first + chunk, total));
  };
  std::vector<std::thread> threads;
  try {
    for (int64_t i = 1; i < workers; i++)
      threads.emplace_back([&] {
        std::unique_ptr<unsigned char[]> memory(new (std::nothrow) unsigned char[size_t(l.arena) + 4096]);
        if (memory) work(memory.get() + -uintptr_t(memory.get()) % 4096);
      });
  } catch (...) {  // fewer threads than wished: the others do the work
  }
  work(own.start);
  for (std::thread &each : threads) each.join();
}

inline tw_status call(const Kernel &kernel, const tw_tensor *const *tensors, const Word *scalars,
                      tw_stream stream) {
  const Contract &c = kernel.contract;
  if (!kernel.fits())
    return refuse(TW_MACHINE, "%s: exported for %s, which this processor is not", c.name,
                  kernel.processor);
  if (stream) return refuse(TW_CONTRACT, "%s: on the CPU there are no streams: pass 0", c.name);
  Call made = {c, tensors, scalars, {0}};
  TW_TRY(check(made, kernel.align));
  try {
    std::vector<uint64_t> block;
    for (int i = 0; i < kernel.param_count; i++) {
      uint64_t slot = 0;
      int at = kernel.order[i];
      if (at < 0) memcpy(&slot, scalars[-1 - at].raw, 8);
      else if (given(made, at)) slot = uint64_t(uintptr_t(tensors[at]->data));
      block.push_back(slot);
    }
    std::vector<Room> rooms;
    for (int i = 0; i < kernel.scratch_count; i++)
      rooms.emplace_back(most(scratch_bytes(kernel.scratch[i], made.values), 1));
    if (undefined())
      return refuse(TW_CONTRACT, "%s: a size does not follow from the arguments", c.name);
    for (Room &room : rooms) block.push_back(uint64_t(uintptr_t(room.start)));
    for (int v = 0; v < c.dim_count; v++) block.push_back(uint64_t(made.values[v]));
    block.push_back(0);  // no assertion has failed, and nobody is told
    block.push_back(0);
    for (int i = 0; i < kernel.launch_count; i++) run(kernel.launches[i], block.data());
  } catch (const std::bad_alloc &) {
    return refuse(TW_DRIVER, "%s: out of memory", c.name);
  }
  return TW_OK;
}

}  // namespace TILEWRIGHT_EXPORT
