// What threads.cpp and copies.cpp know of blocks and their threads.
#pragma once

#include <setjmp.h>

#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "threads.h"

namespace host {

struct Block;
struct Cluster;
using Work = std::function<void()>;

// Work in groups: done when it is waited for, the oldest first.
struct Groups {
  std::deque<std::vector<Work>> closed;
  std::vector<Work> open;
  void commit() {
    closed.push_back(std::move(open));
    open.clear();
  }
  void wait(size_t pending) {
    while (closed.size() > pending) {
      for (auto& work : closed.front()) work();
      closed.pop_front();
    }
  }
};

struct Thread {
  jmp_buf at;
  bool started = false, done = false;
  int id = 0;
  Block* block = nullptr;
  uint8_t* stack = nullptr;
  bool (*ready)(void*) = nullptr;  // what it waits for
  void* what = nullptr;
  const char* label = "";
  uint64_t turns = 0, cluster_phase = 0;
  int site = 0;  // of a question who is there
  uint32_t lanes = 0;
  Groups copies, bulk;
  uint64_t products = 0;             // by warpgroups, that it has issued
  std::vector<uint64_t> committed;  // as many of them, at each commit
};

struct Meeting {
  uint32_t mask = 0, arrived = 0;
  uint64_t generation = 0;
  const char* kind = "";
  alignas(16) uint8_t data[32][48] = {};
  Exchange seen;
};
struct Warp {
  uint32_t alive = 0;
  std::vector<std::unique_ptr<Meeting>> meetings;
};
// One product of a warpgroup: each thread's part, and they are done together.
struct Product {
  std::vector<Work> parts;
  bool done = false;
};
struct Named {
  int arrived = 0, count = 0;
  uint64_t generation = 0;
};
struct Barrier {
  int count = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;
};
struct Block {
  Place index;
  int rank = 0, shared_bytes = 0;
  Cluster* cluster = nullptr;
  uint8_t *shared = nullptr, *mapped = nullptr;
  size_t mapped_bytes = 0;
  std::vector<Warp> warps;
  std::vector<std::vector<Product>> products;  // of each warpgroup, in order
  std::vector<std::unique_ptr<Thread>> threads;
  Named named[16];
  std::unordered_map<uint32_t, Barrier> barriers;  // by where they lie
};
struct Cluster {
  std::vector<std::unique_ptr<Block>> blocks;
  int threads = 0, arrived = 0;
  uint64_t generation = 0;
  std::vector<Work> underway;  // copies that barriers count
};

Thread& current();
uint64_t schedule_seed();
Block& home(uint32_t address);
void suspend(bool (*ready)(void*), void* what, const char* label);
template <class Ready>
void wait_until(const char* label, Ready ready) {
  do {
    suspend([](void* r) { return (*static_cast<Ready*>(r))(); }, &ready, label);
  } while (!ready());
}
// Makes one copy that is underway, if there is one.
bool deliver(Cluster& cluster, uint32_t which);
// What a thread leaves behind.
void finish_copies(Thread& thread);

}  // namespace host
