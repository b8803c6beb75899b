// Blocks of threads as fibers. A thread runs until it waits for others; who is next, and when an
// asynchronous copy is made, is drawn from a seed:
//   0  in order, copies as late as they may be    1  backwards, copies at once    others: drawn
#include "threads.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <ucontext.h>
#include <unistd.h>

#include <algorithm>
#include <deque>
#include <functional>
#include <memory>
#include <unordered_map>
#include <vector>

#include "blocks.h"

namespace host {

Place thread_index, block_index, block_size, grid_size;

namespace {

constexpr size_t stack_bytes = 256 << 10, page = 4096;
constexpr uint32_t window = 1024;  // where a block's shared memory begins; nothing lies at 0
constexpr int rank_bits = 24;
constexpr unsigned most_threads = 2048;  // that are there at a time

uint64_t seed, drawn;
Thread* self;
jmp_buf scheduler;
const char* kernel_name = "";

uint32_t draw() {
  drawn ^= drawn << 13, drawn ^= drawn >> 7, drawn ^= drawn << 17;
  return uint32_t(drawn >> 16);
}

void say(const char* format, va_list given) {
  fflush(stdout);
  fprintf(stderr, "host: ");
  vfprintf(stderr, format, given);
  if (self)
    fprintf(stderr, " (thread %d of block (%u, %u, %u) of %s)", self->id, self->block->index.x,
            self->block->index.y, self->block->index.z, kernel_name);
  fprintf(stderr, "\n");
}

void on_fault(int signal) {
  static char text[160];
  const int size = snprintf(
      text, sizeof text, "host: %s outside of memory (thread %d of %s)\n",
      signal == SIGBUS ? "a bus error" : "an access", self ? self->id : -1, kernel_name);
  if (write(2, text, size_t(size)) < 0) _exit(6);
  _exit(5);
}

}  // namespace

void fail(const char* format, ...) {
  va_list given;
  va_start(given, format);
  say(format, given);
  va_end(given);
  _exit(3);
}
void excluded(const char* instruction) {
  fprintf(stderr, "excluded: %s\n", instruction);
  _exit(4);
}

// ── waiting ─────────────────────────────────────────────────────────────────────────────────

void suspend(bool (*ready)(void*), void* what, const char* label) {
  self->ready = ready, self->what = what, self->label = label;
  if (!_setjmp(self->at)) _longjmp(scheduler, 1);
}
void turn() {
  if (++self->turns % 64 == 0) wait_until("its turn", [] { return true; });
}
int lane() { return self->id % 32; }
Thread& current() { return *self; }
uint64_t schedule_seed() { return seed; }

void meet_block(int id, int count, bool wait) {
  if (id < 0 || id > 15) fail("no barrier is number %d", id);
  Named& barrier = self->block->named[id];
  if (barrier.arrived && barrier.count != count)
    fail("threads come to barrier %d with counts of %d and %d", id, barrier.count, count);
  barrier.count = count;
  const uint64_t generation = barrier.generation;
  if (++barrier.arrived == count) barrier.arrived = 0, ++barrier.generation;
  static const char* names[] = {"barrier 0", "barrier 1", "barrier 2", "barrier 3", "barrier 4",
                                "barrier 5", "barrier 6", "barrier 7", "barrier 8", "barrier 9",
                                "barrier 10", "barrier 11", "barrier 12", "barrier 13",
                                "barrier 14", "barrier 15"};
  if (wait) wait_until(names[id], [&] { return barrier.generation != generation; });
}
void meet_cluster(bool arrive, bool wait) {
  Cluster& cluster = *self->block->cluster;
  if (arrive) {
    self->cluster_phase = cluster.generation;
    if (++cluster.arrived == cluster.threads) cluster.arrived = 0, ++cluster.generation;
  }
  const uint64_t phase = self->cluster_phase;
  if (wait) wait_until("the cluster's barrier", [&] { return cluster.generation != phase; });
}

static void close_meeting(Warp& warp, Meeting& m) {
  if (m.arrived && !(m.mask & warp.alive & ~m.arrived)) {
    memcpy(m.seen.data, m.data, sizeof m.data);
    m.seen.lanes = m.arrived;
    m.arrived = 0;
    ++m.generation;
  }
}
const Exchange& meet_warp(uint32_t mask, const void* data, int bytes, const char* kind) {
  const int at = lane();
  if (!(mask >> at & 1)) fail("%s: the mask %#x has no bit of lane %d", kind, mask, at);
  Warp& warp = self->block->warps[self->id / 32];
  Meeting* found = nullptr;
  for (auto& m : warp.meetings)
    if (m->mask == mask) found = m.get();
  if (!found) {
    warp.meetings.push_back(std::make_unique<Meeting>());
    found = warp.meetings.back().get();
    found->mask = mask;
  }
  if (found->arrived && strcmp(found->kind, kind))
    fail("lanes of a warp meet at %s and at %s", found->kind, kind);
  found->kind = kind;
  if (bytes) memcpy(found->data[at], data, size_t(bytes));
  found->arrived |= 1u << at;
  const uint64_t generation = found->generation;
  close_meeting(warp, *found);
  wait_until(kind, [&] { return found->generation != generation; });
  return found->seen;
}
// Lanes that come to one place before all others of their warp wait, or have ended.
uint32_t active_lanes(int site) {
  self->site = site, self->lanes = 0;
  wait_until("__activemask", [] { return current().lanes != 0; });
  self->site = 0;
  return self->lanes;
}

// ── shared memory ───────────────────────────────────────────────────────────────────────────

uint8_t* shared() { return self->block->shared; }
int cluster_rank() { return self->block->rank; }
uint32_t shared_address(const void* at) {
  const ptrdiff_t offset = static_cast<const uint8_t*>(at) - self->block->shared;
  if (offset < 0 || offset > self->block->shared_bytes)
    fail("no address of shared memory: %td bytes from its start", offset);
  return uint32_t(self->block->rank) << rank_bits | (window + uint32_t(offset));
}
Block& home(uint32_t address) {
  const uint32_t rank = address >> rank_bits;
  auto& blocks = self->block->cluster->blocks;
  if (rank >= blocks.size()) fail("address %#x is of no block of the cluster", address);
  return *blocks[rank];
}
uint8_t* at_shared(uint32_t address, int bytes) {
  Block& block = home(address);
  const int64_t offset = int64_t(address & ((1u << rank_bits) - 1)) - window;
  if (offset < 0 || offset + bytes > block.shared_bytes)
    fail("%d bytes at %lld are outside of %d bytes of shared memory", bytes, (long long)offset,
         block.shared_bytes);
  if ((bytes & (bytes - 1)) == 0 && bytes <= 16 && offset % bytes)
    fail("misaligned: shared memory at %lld is not a multiple of %d bytes", (long long)offset,
         bytes);
  return block.shared + offset;
}
uint32_t remote(uint32_t address, int rank) {
  return (address & ((1u << rank_bits) - 1)) | uint32_t(rank) << rank_bits;
}

// ── the scheduler ───────────────────────────────────────────────────────────────────────────

namespace {

std::vector<uint8_t*> stacks;  // free ones
uint8_t* new_stack() {
  void* got = mmap(nullptr, stack_bytes + page, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (got == MAP_FAILED) fail("no memory for a stack");
  mprotect(got, page, PROT_NONE);
  return static_cast<uint8_t*>(got);
}

struct Launch {
  const Kernel* kernel;
  Place grid, cluster;
  unsigned threads;
  int shared_bytes;
  std::vector<char*> parameters;
};
const Launch* launch;

void fiber() {
  launch->kernel->call(launch->parameters.data());
  Thread& me = *self;
  finish_copies(me);
  me.done = true;
  Warp& warp = me.block->warps[me.id / 32];
  warp.alive &= ~(1u << me.id % 32);
  for (auto& m : warp.meetings) close_meeting(warp, *m);
  _longjmp(scheduler, 1);
}

void resume(Thread& thread) {
  self = &thread;
  thread.ready = nullptr;
  thread_index = {unsigned(thread.id), 0, 0};
  block_index = thread.block->index;
  if (_setjmp(scheduler)) {
    self = nullptr;
    return;
  }
  if (thread.started) _longjmp(thread.at, 1);
  thread.started = true;
  ucontext_t context;
  getcontext(&context);
  context.uc_stack.ss_sp = thread.stack + page;
  context.uc_stack.ss_size = stack_bytes;
  context.uc_link = nullptr;
  makecontext(&context, fiber, 0);
  setcontext(&context);
}

// A block's memory ends where a page does that nobody may touch.
uint8_t* guarded(size_t bytes, size_t align, uint8_t** whole, size_t* all) {
  const size_t room = (bytes + align - 1) / align * align;
  const size_t pages = (room + page - 1) / page * page;
  void* got = mmap(nullptr, pages + 2 * page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS,
                   -1, 0);
  if (got == MAP_FAILED) fail("no memory for %zu bytes", bytes);
  uint8_t* base = static_cast<uint8_t*>(got);
  mprotect(base, page, PROT_NONE);
  mprotect(base + page + pages, page, PROT_NONE);
  memset(base + page, 0xCD, pages);
  if (whole) *whole = base, *all = pages + 2 * page;
  return base + page + pages - room;
}

std::unique_ptr<Cluster> make_cluster(uint64_t number) {
  auto cluster = std::make_unique<Cluster>();
  const Place g = launch->grid, c = launch->cluster;
  const unsigned across = g.x / c.x, down = g.y / c.y;
  const Place first = {unsigned(number % across) * c.x, unsigned(number / across % down) * c.y,
                       unsigned(number / across / down) * c.z};
  for (unsigned rank = 0; rank < c.x * c.y * c.z; ++rank) {
    auto block = std::make_unique<Block>();
    block->index = {first.x + rank % c.x, first.y + rank / c.x % c.y,
                    first.z + rank / (c.x * c.y)};
    block->rank = int(rank);
    block->cluster = cluster.get();
    block->shared_bytes = launch->shared_bytes;
    block->shared = guarded(size_t(launch->shared_bytes), 1024, &block->mapped, &block->mapped_bytes);
    block->warps.resize((launch->threads + 31) / 32);
    block->products.resize((launch->threads + 127) / 128);
    for (unsigned t = 0; t < launch->threads; ++t) {
      auto thread = std::make_unique<Thread>();
      thread->id = int(t);
      thread->block = block.get();
      if (stacks.empty()) stacks.push_back(new_stack());
      thread->stack = stacks.back();
      stacks.pop_back();
      block->warps[t / 32].alive |= 1u << t % 32;
      block->threads.push_back(std::move(thread));
    }
    cluster->blocks.push_back(std::move(block));
  }
  cluster->threads = int(launch->threads * c.x * c.y * c.z);
  return cluster;
}

bool ended(const Cluster& cluster) {
  for (auto& block : cluster.blocks)
    for (auto& thread : block->threads)
      if (!thread->done) return false;
  return true;
}

// Where no thread of a warp can go on, those that ask who is there are.
bool tell_active(Cluster& cluster) {
  bool told = false;
  for (auto& block : cluster.blocks)
    for (size_t w = 0; w < block->warps.size(); ++w) {
      Thread* asking[32];
      int count = 0;
      for (size_t t = 32 * w; t < std::min(block->threads.size(), 32 * w + 32); ++t)
        if (block->threads[t]->site && !block->threads[t]->lanes)
          asking[count++] = block->threads[t].get();
      while (count) {
        const int site = asking[0]->site;
        uint32_t mask = 0;
        for (int i = 0; i < count; ++i)
          if (asking[i]->site == site) mask |= 1u << asking[i]->id % 32;
        for (int i = 0; i < count; ++i)
          if (asking[i]->site == site) asking[i]->lanes = mask;
        count = int(std::remove_if(asking, asking + count, [&](Thread* t) { return t->lanes; }) -
                    asking);
        told = true;
      }
    }
  return told;
}

void deadlock(const std::vector<std::unique_ptr<Cluster>>& here) {
  std::vector<std::pair<const char*, int>> where;
  Thread* first = nullptr;
  for (auto& cluster : here)
    for (auto& block : cluster->blocks)
      for (auto& t : block->threads) {
        if (t->done) continue;
        if (!first) first = t.get();
        auto found = std::find_if(where.begin(), where.end(),
                                  [&](auto& w) { return !strcmp(w.first, t->label); });
        if (found == where.end()) where.push_back({t->label, 1});
        else ++found->second;
      }
  char text[400];
  size_t used = 0;
  for (auto& [label, count] : where)
    if (used < sizeof text - 60)
      used += size_t(snprintf(text + used, sizeof text - used, "%s%d at %s", used ? ", " : "",
                              count, label));
  self = first;
  fail("deadlock: threads wait that nobody can release: %s", text);
}

void run(const Launch& given) {
  launch = &given;
  kernel_name = given.kernel->name;
  block_size = {given.threads, 1, 1};
  grid_size = given.grid;
  const Place g = given.grid, c = given.cluster;
  const uint64_t total = uint64_t(g.x / c.x) * (g.y / c.y) * (g.z / c.z);
  const unsigned each = given.threads * c.x * c.y * c.z;
  const uint64_t together = std::max(1u, most_threads / each);
  std::vector<std::unique_ptr<Cluster>> here;
  uint64_t next = 0;
  std::vector<Thread*> order;
  while (true) {
    bool changed = false;
    for (size_t i = here.size(); i-- > 0;)
      if (ended(*here[i])) {
        for (auto& block : here[i]->blocks) {
          for (auto& thread : block->threads) stacks.push_back(thread->stack);
          munmap(block->mapped, block->mapped_bytes);
        }
        here.erase(here.begin() + ptrdiff_t(i));
        changed = true;
      }
    while (here.size() < together && next < total)
      here.push_back(make_cluster(seed == 1 ? total - 1 - next : next)), ++next, changed = true;
    if (here.empty()) return;
    if (changed) {
      order.clear();
      for (auto& cluster : here)
        for (auto& block : cluster->blocks)
          for (auto& thread : block->threads) order.push_back(thread.get());
      if (seed == 1) std::reverse(order.begin(), order.end());
    }
    if (seed > 1)
      for (size_t i = order.size(); i > 1; --i) std::swap(order[i - 1], order[draw() % i]);
    bool ran = false;
    for (int all = seed <= 1; all < 2 && !ran; ++all)
      for (Thread* thread : order) {
        if (thread->done || (thread->ready && !thread->ready(thread->what))) continue;
        if (!all && draw() % 4 == 0) continue;
        resume(*thread);
        ran = true;
      }
    for (auto& cluster : here) {
      if (seed > 1 && draw() % 4 == 0) ran |= deliver(*cluster, draw());
      if (!ran) ran |= tell_active(*cluster);
      if (!ran) ran |= deliver(*cluster, seed > 1 ? draw() : 0);
    }
    if (!ran) {
      bool over = true;
      for (auto& cluster : here) over &= ended(*cluster);
      if (!over) deadlock(here);
    }
  }
}

// ── a request: tensors, then launches; the answer is the tensors ────────────────────────────

struct Reader {
  FILE* file;
  uint64_t number() {
    uint64_t r;
    bytes(&r, sizeof r);
    return r;
  }
  void bytes(void* to, size_t count) {
    if (count && fread(to, 1, count, file) != count) fail("the request ends early");
  }
};

struct Tensor {
  uint8_t *at, *start;
  size_t bytes, slack;
};

}  // namespace

int main(int count, char** words, const Kernel* kernels) {
  if (count != 4) fail("give a request, an answer and a seed");
  seed = strtoull(words[3], nullptr, 10);
  drawn = 0x9E3779B97F4A7C15ull * (seed + 1);
  static uint8_t alternate[64 << 10];
  stack_t stack = {};
  stack.ss_sp = alternate, stack.ss_size = sizeof alternate;
  sigaltstack(&stack, nullptr);
  struct sigaction action = {};
  action.sa_handler = on_fault, action.sa_flags = SA_ONSTACK;
  sigaction(SIGSEGV, &action, nullptr);
  sigaction(SIGBUS, &action, nullptr);

  Reader in{fopen(words[1], "rb")};
  if (!in.file) fail("no request at %s", words[1]);
  std::vector<Tensor> tensors(in.number());
  for (Tensor& t : tensors) {
    t.bytes = in.number();
    const size_t skew = in.number();
    t.start = guarded(t.bytes + skew, 256, nullptr, nullptr);
    t.at = t.start + skew;
    t.slack = (256 - (t.bytes + skew) % 256) % 256;
    in.bytes(t.at, t.bytes);
  }
  std::vector<std::unique_ptr<uint8_t[]>> held;
  for (uint64_t launches = in.number(); launches; --launches) {
    Launch one;
    one.kernel = kernels + in.number();
    for (Place* p : {&one.grid, &one.cluster})
      p->x = unsigned(in.number()), p->y = unsigned(in.number()), p->z = unsigned(in.number());
    one.threads = unsigned(in.number());
    one.shared_bytes = int(in.number());
    for (uint64_t left = in.number(); left; --left) {
      // the bytes, and a tensor whose address is added to their first word
      const uint64_t tensor = in.number(), bytes = in.number();
      auto room = std::make_unique<uint8_t[]>(bytes + 128);
      uint8_t* at = room.get() + (64 - reinterpret_cast<uintptr_t>(room.get()) % 64) % 64;
      in.bytes(at, bytes);
      if (tensor != ~uint64_t(0)) {
        uint64_t word;
        memcpy(&word, at, 8);
        word += reinterpret_cast<uint64_t>(tensors[tensor].at);
        memcpy(at, &word, 8);
      }
      one.parameters.push_back(reinterpret_cast<char*>(at));
      held.push_back(std::move(room));
    }
    run(one);
  }
  self = nullptr;
  for (size_t i = 0; i < tensors.size(); ++i)
    for (size_t b = 0; b < tensors[i].slack; ++b)
      if (tensors[i].at[tensors[i].bytes + b] != 0xCD)
        fail("something was written %zu bytes behind the end of tensor %zu", b, i);
  FILE* out = fopen(words[2], "wb");
  if (!out) fail("no answer can be written to %s", words[2]);
  for (const Tensor& t : tensors) fwrite(t.at, 1, t.bytes, out);
  fclose(out);
  return 0;
}

}  // namespace host
