// Runs CUDA kernels on a CPU: every CUDA thread is a fiber, and all run on the OS thread that launches. Which one runs is
// random (seeded), and changes at atomics and collectives, so that interleavings that a GPU shows once a week are met in
// a second. It checks that all lanes of a mask meet in the same collective, that somebody can go on, and every address
// that kernels read or write. Under ThreadSanitizer each fiber is a thread. Not thread-safe: one launch at a time.
#include "cuda_on_cpu.h"

#include <algorithm>
#include <csetjmp>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>
#include <sys/mman.h>
#include <ucontext.h>

#ifdef UNDER_TSAN
#include <sanitizer/tsan_interface.h>
#define TSAN(x) x
#else
#define TSAN(x)
#endif

namespace cpu {
namespace {
constexpr size_t STACK_BYTES = 64 << 10;
constexpr unsigned SAME_ORDER = 1;  // a switch of fibers that orders nothing, __tsan_switch_to_fiber_no_sync

struct Meeting {  // a collective under way: who must come, who has come, who has yet to leave
  unsigned mask = 0, arrived = 0, leaving = 0;
  const char* what = nullptr;
};

struct Warp {
  Meeting meetings[32];
  uint64_t values[32];
  unsigned exited = 0;
};

struct Fiber {
  Place place;
  unsigned lane;
  Warp* warp;
  bool waiting = false, done = false, begun = false;
  Meeting* meeting = nullptr;  // what it waits for
  const char* where = "its start";
  jmp_buf at;
  ucontext_t first;
  char* stack;
  void* tsan = nullptr;

  Fiber() : stack((char*)mmap(nullptr, STACK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0)) {
    TSAN(tsan = __tsan_create_fiber(0));
  }
  ~Fiber() {
    munmap(stack, STACK_BYTES);
    TSAN(__tsan_destroy_fiber(tsan));
  }
};

std::vector<std::unique_ptr<Fiber>> fibers;  // kept from launch to launch: each runs one body after the other
std::vector<Warp> warps;
Fiber* self = nullptr;
jmp_buf scheduler;
void* scheduler_tsan = nullptr;
uint64_t state = 1, progress = 0;
std::string error;
void (*body)(void*);
void* argument;
Pieces memory;
const Piece nowhere = {};
const Piece* used_last = &nowhere;

uint64_t next_random() {
  state ^= state << 13;
  state ^= state >> 7;
  return state ^= state << 17;
}

void to_scheduler(unsigned flags = SAME_ORDER) {
  if (_setjmp(self->at)) return;
  (void)flags;
  TSAN(__tsan_switch_to_fiber(scheduler_tsan, flags));
  _longjmp(scheduler, 1);
}

void run_bodies() {
  for (;;) {
    body(argument);
    self->done = true;
    self->warp->exited |= 1u << self->lane;
    progress++;
    to_scheduler(0);
  }
}

void resume(Fiber& fiber, bool first) {
  self = &fiber;
  place = &fiber.place;
  if (_setjmp(scheduler)) return;
  (void)first;
  TSAN(__tsan_switch_to_fiber(fiber.tsan, first ? 0 : SAME_ORDER));
  if (fiber.begun) _longjmp(fiber.at, 1);
  fiber.begun = true;
  getcontext(&fiber.first);
  fiber.first.uc_stack.ss_sp = fiber.stack;
  fiber.first.uc_stack.ss_size = STACK_BYTES;
  fiber.first.uc_link = nullptr;
  makecontext(&fiber.first, run_bodies, 0);
  setcontext(&fiber.first);
}

// What -fsanitize=kernel-address calls before each access. A GPU has its own memory alone, and ends the process.
void access(uintptr_t at, size_t size, size_t unit) {
  if (at - (uintptr_t)self->stack < STACK_BYTES || at - (uintptr_t)&self->place < sizeof(Place)) return;
  if (at % unit) fail("an address is not a multiple of what is read or written there");
  if (at - used_last->start >= used_last->end - used_last->start)
    used_last = std::upper_bound(memory.first, memory.first + memory.count, at,
                                 [](uintptr_t at, const Piece& piece) { return at < piece.end; });
  const Piece* last = memory.first + memory.count;
  if (used_last == last || at < used_last->start || at + size > used_last->end) {
    used_last = &nowhere;
    fail("what is read or written is not in the device's memory");
  }
}

bool is_complete(const Meeting& meeting, const Warp& warp) {
  return meeting.leaving || ((meeting.arrived | warp.exited) & meeting.mask) == meeting.mask;
}
}  // namespace

const Place* place = nullptr;

void fail(const char* text) {
  if (error.empty()) {
    char where[128];
    snprintf(where, sizeof where, ", block %u thread %u", place->block.x, place->thread.x);
    error = text + std::string(where);
  }
  to_scheduler();  // and never comes back
}

void pause() {
  if ((next_random() & 3) == 0) to_scheduler();
}

uint64_t value_of(unsigned lane) { return self->warp->values[lane]; }
bool came(unsigned mask, unsigned lane) { return self->warp->meetings[__builtin_ctz(mask)].arrived >> lane & 1; }
unsigned own_lane() { return self->lane; }

void meet(unsigned mask, uint64_t value, const char* what) {
  Warp& warp = *self->warp;
  if (!(mask >> self->lane & 1)) fail("a lane is not in its own mask");
  Meeting& meeting = warp.meetings[__builtin_ctz(mask)];
  self->where = what;
  while (meeting.leaving) to_scheduler();  // those of the meeting before
  if (meeting.arrived && (meeting.mask != mask || strcmp(meeting.what, what)))
    fail((std::string("lanes meet in ") + meeting.what + " and in " + what).c_str());
  meeting.mask = mask;
  meeting.what = what;
  meeting.arrived |= 1u << self->lane;
  warp.values[self->lane] = value;
  progress++;
  while (!is_complete(meeting, warp)) {
    self->meeting = &meeting;
    self->waiting = true;
    to_scheduler();
    self->waiting = false;
  }
  if (!meeting.leaving) meeting.leaving = meeting.arrived;
}

void leave(unsigned mask) {
  Meeting& meeting = self->warp->meetings[__builtin_ctz(mask)];
  meeting.leaving &= ~(1u << self->lane);
  progress++;
  if (!meeting.leaving) meeting = Meeting();
}

void synchronize(unsigned mask) {
  TSAN(__tsan_release(self->warp));
  meet(mask, 0, "__syncwarp");
  leave(mask);
  TSAN(__tsan_acquire(self->warp));
}

// Returns null, or what went wrong; the text lives until the next launch.
const char* launch(
    unsigned blocks, unsigned threads, uint64_t seed, Pieces pieces, void (*of)(void*), void* given) {
  const unsigned count = blocks * threads;
  error.clear();
  body = of;
  argument = given;
  memory = pieces;
  used_last = &nowhere;
  state = seed * 0x9E3779B97F4A7C15ull | 1;
  TSAN(scheduler_tsan = __tsan_get_current_fiber());
  while (fibers.size() < count) fibers.emplace_back(new Fiber);
  warps.assign(count / 32, Warp());
  for (unsigned number = 0; number < count; number++) {
    Fiber& fiber = *fibers[number];
    fiber.place = {{number % threads, 0, 0}, {number / threads, 0, 0}, {threads, 1, 1}, {blocks, 1, 1}};
    fiber.lane = number % 32;
    fiber.warp = &warps[number / 32];
    fiber.waiting = fiber.done = false;
    fiber.where = "its start";
  }
  std::vector<bool> started(count);
  std::vector<unsigned> live;
  for (unsigned warp = 0; warp < warps.size(); warp++) live.push_back(warp);
  for (unsigned idle = 0; !live.empty() && error.empty();) {
    const uint64_t before = progress;
    const unsigned chosen = next_random() % live.size(), warp = live[chosen];
    // A warp for a while, or for a moment, so that others come between.
    for (unsigned passes = next_random() & 1 ? 1 : 1 + next_random() % 16; passes && error.empty(); passes--) {
      const unsigned start = next_random() % 32;
      uint64_t skipped = next_random() & next_random() & next_random();  // one lane in eight is left behind
      for (unsigned k = 0; k < 32 && error.empty(); k++, skipped >>= 1) {
        const unsigned number = warp * 32 + (start + k) % 32;
        Fiber& fiber = *fibers[number];
        if (fiber.done || (fiber.waiting && !is_complete(*fiber.meeting, *fiber.warp))) continue;
        if (skipped & 1) continue;
        const bool first = !started[number];
        started[number] = true;
        resume(fiber, first);
      }
    }
    if (warps[warp].exited == 0xffffffffu) {
      live[chosen] = live.back();
      live.pop_back();
    }
    idle = progress != before ? 0 : idle + 1;
    if (idle > 1024 * warps.size()) {
      for (unsigned lane = 0; lane < 32; lane++) {
        const Fiber& fiber = *fibers[live[0] * 32 + lane];
        if (!fiber.done) error = std::string("deadlock: a lane waits in ") + fiber.where;
      }
    }
  }
  if (!error.empty()) fibers.clear();  // some are in the middle of a body
  return error.empty() ? nullptr : error.c_str();
}
}  // namespace cpu

#define ACCESSES(size) \
  void __asan_load##size##_noabort(uintptr_t at) { cpu::access(at, size, size); } \
  void __asan_store##size##_noabort(uintptr_t at) { cpu::access(at, size, size); }
extern "C" {
ACCESSES(1)
ACCESSES(2)
ACCESSES(4)
ACCESSES(8)
ACCESSES(16)
void __asan_loadN_noabort(uintptr_t at, size_t size) { cpu::access(at, size, 1); }
void __asan_storeN_noabort(uintptr_t at, size_t size) { cpu::access(at, size, 1); }
}
