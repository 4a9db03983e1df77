// Arithmetic of kernels: 16-bit floats, and the functions that formulas call (kvemb.optimizers.arithmetic). Each gives
// the bits of the CPU's kernels, so no multiply-add may be fused (--fmad=false).

struct Half { unsigned short bits; };
struct Bfloat { unsigned short bits; };

enum { LANES = 16, LOG_TERMS = 12, EXP_TERMS = 16 };
#define LN2_HIGH 6.93147180369123816490e-01
#define LN2_LOW 1.90821492927058770002e-10

__device__ inline double not_a_number() { return __longlong_as_double(0x7FF8000000000000ll); }

// Converts an element for arithmetic: 16-bit floats to float, integers to u64, whose sums wrap without overflow.
__device__ inline float wide(float value) { return value; }
__device__ inline double wide(double value) { return value; }
__device__ inline u64 wide(signed char value) { return (u64)(i64)value; }
__device__ inline u64 wide(int value) { return (u64)(i64)value; }
__device__ inline u64 wide(i64 value) { return (u64)value; }
__device__ inline float wide(Bfloat value) { return __uint_as_float((u32)value.bits << 16); }
__device__ inline float wide(Half value) {
  const u32 sign = (u32)(value.bits & 0x8000) << 16, exponent = value.bits >> 10 & 31, fraction = value.bits & 1023;
  if (exponent == 0) {
    const float magnitude = (float)fraction * 5.9604644775390625e-08f;  // 2 ** -24
    return sign ? -magnitude : magnitude;
  }
  return __uint_as_float(sign | (exponent == 31 ? 0x7F800000u : (exponent + 112) << 23) | fraction << 13);
}

// The reverse conversion; floats are rounded to nearest even.
__device__ inline void narrow(float value, float* to) { *to = value; }
__device__ inline void narrow(double value, double* to) { *to = value; }
__device__ inline void narrow(double value, float* to) { *to = (float)value; }
__device__ inline void narrow(u64 value, signed char* to) { *to = (signed char)value; }
__device__ inline void narrow(u64 value, int* to) { *to = (int)value; }
__device__ inline void narrow(u64 value, i64* to) { *to = (i64)value; }
__device__ inline void narrow(float value, Bfloat* to) {
  const u32 bits = __float_as_uint(value);
  const bool is_nan = (bits & 0x7FFFFFFF) > 0x7F800000;
  to->bits = (unsigned short)(is_nan ? (bits >> 16 & 0x8000) | 0x7FC0 : (bits + 0x7FFF + (bits >> 16 & 1)) >> 16);
}
__device__ inline void narrow(float value, Half* to) {
  const u32 bits = __float_as_uint(value), sign = bits >> 16 & 0x8000, magnitude = bits & 0x7FFFFFFF;
  u32 rounded;
  if (magnitude > 0x7F800000) rounded = 0x7E00;
  else if (magnitude >= 0x477FF000) rounded = 0x7C00;  // 65520 and above become infinity
  else if (magnitude < 0x38800000) rounded = __float_as_uint(__uint_as_float(magnitude) + 0.5f) - 0x3F000000;
  else rounded = (magnitude + 0xFFF + (magnitude >> 13 & 1) - 0x38000000) >> 13;
  to->bits = (unsigned short)(sign | rounded);
}

__device__ inline void narrow(double value, Bfloat* to) { narrow((float)value, to); }
__device__ inline void narrow(double value, Half* to) { narrow((float)value, to); }

__device__ inline float root(float value) { return sqrtf(value); }
__device__ inline double root(double value) { return sqrt(value); }
__device__ inline float absolute(float value) { return fabsf(value); }
__device__ inline double absolute(double value) { return fabs(value); }
template <class A, class B> __device__ inline auto larger(A a, B b) { return a > b ? a : b; }
template <class A, class B> __device__ inline auto smaller(A a, B b) { return a < b ? a : b; }
template <class A, class B, class C> __device__ inline auto where_positive(A value, B yes, C no) {
  return value > 0 ? yes : no;
}

// Returns a number of a table of `length`: the last one if the index is too large, the first if it is below 0 or NaN.
__device__ inline double entry(const double* table, i64 length, double index) {
  const double last = (double)(length - 1);
  return index >= 0 ? table[(i64)(index < last ? index : last)] : table[0];
}

__device__ inline double power(double base, double exponent) {
  const double most = 4611686018427387904.0;  // 2 ** 62
  i64 left = exponent >= 1 ? (i64)(exponent < most ? exponent : most) : 0;
  double result = 1.0;
  for (; left > 0; left >>= 1) {
    if (left & 1) result *= base;
    base *= base;
  }
  return result;
}

__device__ inline double root_power(double base, double exponent) {
  if (exponent == 0) return 1.0;
  if (!(base > 0 && base <= 1.7976931348623157e308)) return base > 0 ? base : base == 0 ? 0.0 : not_a_number();
  int bits;
  double fraction = frexp(base, &bits);
  if (fraction < 0.7071067811865476) {
    fraction = fraction * 2.0;
    bits = bits - 1;
  }
  const double s = (fraction - 1.0) / (fraction + 1.0), square = s * s;
  double series = 0.0;
  for (int k = LOG_TERMS; k >= 0; k--) series = series * square + 1.0 / (double)(2 * k + 1);
  const double log = bits * LN2_HIGH + (bits * LN2_LOW + 2.0 * s * series), y = exponent * log;
  const double doublings = fmax(fmin(floor(y * 1.4426950408889634 + 0.5), 5000.0), -5000.0);
  const double x = (y - doublings * LN2_HIGH) - doublings * LN2_LOW;
  double result = 1.0;
  for (int k = EXP_TERMS; k > 0; k--) result = result * x / (double)k + 1.0;
  return ldexp(result, (int)doublings);
}

// Elements that are summed: those of one column of an array's rows, by the number of the row.
template <class A> struct Elements {
  const A* rows;
  i64 dim, column;

  __device__ A operator()(i64 row) const { return rows[row * dim + column]; }
  __device__ A add(A total, A next) const { return total + next; }
};

// A warp adds the elements of entries[start] to entries[end - 1], one after the other, in WIDTH columns; returns the
// sum in the lane's column, which is that of lane l % WIDTH. begun: whether `total` is what they are added to, else
// the sum begins with the first element. within: whether the lane has a column. A popular key has thousands of
// entries, and a load takes as long as hundreds of additions, so 32 / WIDTH * TURNS elements are loaded before the
// first of them is added.
template <int WIDTH, int TURNS, class A, class Of>
__device__ inline A sum_of(const Of& of, const i64* entries, i64 start, i64 end, bool within, bool begun, A total) {
  const int groups = 32 / WIDTH;
  for (i64 at = start; at < end; at += groups * TURNS) {
    const int left = (int)(end - at < groups * TURNS ? end - at : groups * TURNS);
    i64 entry[TURNS];
    A each[TURNS];
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
      const int place = turn * groups + (int)lane_number() / WIDTH;
      entry[turn] = within && place < left ? entries[at + place] : -1;
    }
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) each[turn] = entry[turn] < 0 ? A() : of(entry[turn]);
#pragma unroll
    for (int turn = 0; turn < TURNS; turn++) {
#pragma unroll
      for (int group = 0; group < groups; group++) {
        const A next = groups == 1 ? each[turn] : __shfl_sync(ALL, each[turn], group * WIDTH + lane_number() % WIDTH);
        if (turn + group == 0 && !begun) total = next;
        else if (turn * groups + group < left) total = of.add(total, next);
      }
    }
    begun = true;
  }
  return total;
}

// Sums of more entries than MANY are left to a second kernel, which has many warps for each, NARROW columns wide.
// many: their count, then their numbers, in any order.
enum { MANY = 256, NARROW = 4, AHEAD = 8, FAR_AHEAD = 16 };

__device__ inline void leave_for_later(u64* many, i64 number) { many[1 + atomicAdd(many, (u64)1)] = (u64)number; }

// A warp sums the squares of a row's first dim elements, in the order of arithmetic.sum_of_squares: lanes l and l + 16
// have the l-th of 16 sums. Synchronises the lanes before reading the row and after it.
template <class A> __device__ inline double sum_of_squares(const A* row, i64 dim) {
  const i64 whole = dim / LANES * LANES;
  double total = 0.0;
  __syncwarp();
  for (i64 j = lane_number() % LANES; j < whole; j += LANES) total = total + (double)row[j] * (double)row[j];
  for (int half = LANES / 2; half; half >>= 1) total = total + __shfl_xor_sync(ALL, total, half);
  for (i64 j = whole; j < dim; j++) total = total + (double)row[j] * (double)row[j];
  __syncwarp();
  return total;
}
