// What CUDA kernels see in place of CUDA on a CPU: the same text, compiled by g++ behind this header. A CUDA thread is a
// fiber (cuda_on_cpu.cpp). Kernels use no shared memory, so blocks do not matter here: the threads of a launch are warps
// of 32 that run in any order. Only what CUDA says orders memory does so for ThreadSanitizer: __syncwarp, and nothing
// else that is here; not ballot, not shuffle, not relaxed atomics.
#pragma once
#include <stdint.h>
#include <string.h>

// Of math.h, which takes longer to compile than the kernels.
extern "C" {
float sqrtf(float) noexcept;
float fabsf(float) noexcept;
double sqrt(double) noexcept;
double fabs(double) noexcept;
double floor(double) noexcept;
double fmin(double, double) noexcept;
double fmax(double, double) noexcept;
double frexp(double, int*) noexcept;
double ldexp(double, int) noexcept;
}

#define CUDA_ON_CPU
#define __global__ __attribute__((visibility("hidden")))  // the C library has functions of such names too
#define __device__
#define __launch_bounds__(...)
#define ASSUME_GLOBAL(address)

struct alignas(16) uint4 { unsigned x, y, z, w; };

namespace cpu {
struct Size { unsigned x, y, z; };
struct Place { Size thread, block, block_size, grid_size; };
extern const Place* place;  // of the fiber that runs

void meet(unsigned mask, uint64_t value, const char* what);  // waits for the lanes of mask; each then sees their values
uint64_t value_of(unsigned lane);
void leave(unsigned mask);
bool came(unsigned mask, unsigned lane);  // to the meeting of these lanes
unsigned own_lane();
void fail(const char* text);  // ends the launch
void pause();  // lets other fibers run, or not
void synchronize(unsigned mask);
// Pieces of memory that kernels may use, ascending; each goes from its first address to its end.
struct Piece { uint64_t start, end; };
struct Pieces { const Piece* first; uint64_t count; };
const char* launch(
    unsigned blocks, unsigned threads, uint64_t seed, Pieces memory, void (*body)(void*), void* argument);

template <class A> uint64_t bits_of(A value) {
  static_assert(sizeof(A) <= 8, "");
  uint64_t bits = 0;
  memcpy(&bits, &value, sizeof value);
  return bits;
}

template <class A> A value_from(uint64_t bits) {
  A value;
  memcpy(&value, &bits, sizeof value);
  return value;
}

inline unsigned ballot(unsigned mask, bool predicate) {
  meet(mask, predicate, "__ballot_sync");
  unsigned result = 0;
  for (unsigned lane = 0; lane < 32; lane++)
    if (came(mask, lane) && value_of(lane)) result |= 1u << lane;
  leave(mask);
  return result;
}

template <class A> A shuffle(unsigned mask, A value, unsigned from, const char* what) {
  meet(mask, bits_of(value), what);
  if (!came(mask, from & 31)) fail("a shuffle reads a lane that is not there");
  const A result = value_from<A>(value_of(from & 31));
  leave(mask);
  return result;
}

// A kernel of any signature, called with pointers to its arguments.
template <int... I> struct Indexes {};
template <int N, int... I> struct UpTo : UpTo<N - 1, N - 1, I...> {};
template <int... I> struct UpTo<0, I...> { using type = Indexes<I...>; };
// Arguments are in the host's memory, as a GPU's are.
template <class... A, int... I> __attribute__((no_sanitize("kernel-address")))
void apply(void (*kernel)(A...), void** arguments, Indexes<I...>) {
  kernel(*(A*)arguments[I]...);
}
template <class... A> void call(void (*kernel)(A...), void** arguments) {
  apply(kernel, arguments, typename UpTo<sizeof...(A)>::type());
}
}  // namespace cpu

#define threadIdx (cpu::place->thread)
#define blockIdx (cpu::place->block)
#define blockDim (cpu::place->block_size)
#define gridDim (cpu::place->grid_size)

#define __ballot_sync(mask, predicate) cpu::ballot(mask, predicate)
#define __shfl_sync(mask, value, from) cpu::shuffle(mask, value, (unsigned)(from), "__shfl_sync")
#define __shfl_xor_sync(mask, value, other) \
  cpu::shuffle(mask, value, cpu::own_lane() ^ (unsigned)(other), "__shfl_xor_sync")
inline void __syncwarp(unsigned mask = 0xffffffffu) { cpu::synchronize(mask); }

inline int __ffs(unsigned word) { return __builtin_ffs((int)word); }
inline int __popc(unsigned word) { return __builtin_popcount(word); }
inline unsigned __vcmpeq4(unsigned a, unsigned b) {
  unsigned result = 0;
  for (int shift = 0; shift < 32; shift += 8)
    if ((a >> shift & 255) == (b >> shift & 255)) result |= 255u << shift;
  return result;
}
inline unsigned __float_as_uint(float value) { return cpu::value_from<unsigned>(cpu::bits_of(value)); }
inline float __uint_as_float(unsigned bits) { return cpu::value_from<float>(bits); }
inline long long __double_as_longlong(double value) { return cpu::value_from<long long>(cpu::bits_of(value)); }
inline double __longlong_as_double(long long bits) { return cpu::value_from<double>((uint64_t)bits); }

template <class A> A atomicAdd(A* to, A value) {
  cpu::pause();
  return __atomic_fetch_add(to, value, __ATOMIC_RELAXED);
}
inline double atomicAdd(double* to, double value) {
  cpu::pause();
  double seen, sum;
  __atomic_load(to, &seen, __ATOMIC_RELAXED);
  do sum = seen + value;
  while (!__atomic_compare_exchange(to, &seen, &sum, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
  return seen;
}
template <class A> A relaxed_load(const A* at) {
  A value;
  __atomic_load((A*)at, &value, __ATOMIC_RELAXED);
  cpu::pause();
  return value;
}
template <class A> void relaxed_store(A* at, A value) {
  __atomic_store(at, &value, __ATOMIC_RELAXED);
  cpu::pause();
}
