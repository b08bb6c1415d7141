// The inner loop of every product here: a few rows times a panel of columns, held in registers.
#pragma once
#include <cstdint>
#include <vector>

namespace lookahead {

// Floats per vector register, and the rows of the largest tile that the registers hold.
#if defined(__AVX512F__)
constexpr int kLanes = 16, kMaxRows = 12;
#elif defined(__AVX2__)
constexpr int kLanes = 8, kMaxRows = 6;
#else
constexpr int kLanes = 4, kMaxRows = 8;
#endif
constexpr int kVectors = 2;                // vectors side by side in a panel
constexpr int kPanel = kLanes * kVectors;  // columns of a panel

typedef float Vec __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));
typedef int32_t Int __attribute__((vector_size(kLanes * 4), aligned(4), may_alias));

static inline Vec load(const float* from) { return *reinterpret_cast<const Vec*>(from); }
static inline void store(float* to, Vec value) { *reinterpret_cast<Vec*>(to) = value; }

// Keeps the compiler from reading the value from memory again at every use.
static inline Vec in_register(Vec value) {
#if defined(__x86_64__)
  asm("" : "+v"(value));
#endif
  return value;
}

// Floats that a thread keeps from call to call, from the start of a cache line on; they only grow.
struct Scratch {
  std::vector<float> memory;

  float* floats(int64_t count) {
    if (static_cast<int64_t>(memory.size()) < count + 16) memory.resize(count + 16);
    const uintptr_t at = reinterpret_cast<uintptr_t>(memory.data());
    return memory.data() + (64 - at % 64) % 64 / 4;
  }
};

// Memory to be asked for while a tile computes: `step` bytes further with every level of depth.
struct Ahead {
  const char* at;
  int64_t step;
};

// Columns that lie whole in memory, a row of them every `row` floats.
struct Stored {
  const float* at;
  int64_t row;

  Vec operator()(int64_t k, int v) const { return load(at + k * row + v * kLanes); }
};

// part[m][v] += sum over k < depth of x[m * x_row + k * x_step] * columns(k, v).
template <int Rows, int Vectors, class Columns>
static inline void accumulate(const float* x, int64_t x_row, int64_t x_step, const Columns& columns,
                              int64_t depth, Ahead& ahead, Vec (&part)[Rows][Vectors]) {
  for (int64_t k = 0; k < depth; k++) {
    if (ahead.step) {
      __builtin_prefetch(ahead.at, 0, 2);
      if (kPanel * 4 > 64) __builtin_prefetch(ahead.at + 64, 0, 2);
      ahead.at += ahead.step;
    }
    Vec column[Vectors];
    for (int v = 0; v < Vectors; v++) column[v] = in_register(columns(k, v));
    for (int m = 0; m < Rows; m++) {
      const float factor = x[m * x_row + k * x_step];
      for (int v = 0; v < Vectors; v++) part[m][v] += factor * column[v];
    }
  }
}

template <int Rows, int Vectors>
static inline void add(const Vec (&part)[Rows][Vectors], Vec (&total)[Rows][Vectors]) {
  for (int m = 0; m < Rows; m++)
    for (int v = 0; v < Vectors; v++) total[m][v] += part[m][v];
}

// The same over any depth, added up in runs of `Terms`, which round less than one long sum. The
// order does not depend on the rows.
template <int Rows, int Vectors, int Terms>
static inline void tile(const float* x, int64_t x_row, int64_t x_step, const float* w,
                        int64_t w_row, int64_t depth, Ahead ahead, Vec (&total)[Rows][Vectors]) {
  for (int m = 0; m < Rows; m++)
    for (int v = 0; v < Vectors; v++) total[m][v] = Vec{};
  for (int64_t k = 0; k < depth; k += Terms) {
    Vec part[Rows][Vectors] = {};
    accumulate(x + k * x_step, x_row, x_step, Stored{w + k * w_row, w_row},
               Terms < depth - k ? Terms : depth - k, ahead, part);
    add(part, total);
  }
}

// A number of rows known to the compiler.
template <int Rows>
struct Count {
  static constexpr int value = Rows;
};

// Calls body(Count<rows>) for a number of rows from 1 to kMaxRows.
template <int Rows = kMaxRows, class Body>
static inline void with_rows(int64_t rows, Body&& body) {
  if constexpr (Rows == 1) {
    body(Count<1>());
  } else if (rows == Rows) {
    body(Count<Rows>());
  } else {
    with_rows<Rows - 1>(rows, body);
  }
}

// Calls body(first, rows) for the blocks of nearly equal size into which `rows` rows are cut.
template <class Body>
static inline void for_blocks(int64_t rows, Body&& body) {
  const int64_t blocks = (rows + kMaxRows - 1) / kMaxRows;
  for (int64_t b = 0; b < blocks; b++) {
    const int64_t first = rows * b / blocks;
    body(first, rows * (b + 1) / blocks - first);
  }
}

// e^x to about two units in the last place, for x from -87 to 88 and clamped to that.
static inline Vec exponential(Vec x) {
  const Vec low = Vec{} - 87.0f, high = Vec{} + 88.0f;
  x = x < low ? low : x;
  x = x > high ? high : x;
  const float shift = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer
  const Vec whole = (x * 1.44269504f + shift) - shift;
  const Vec r = (x - whole * 0.693359375f) + whole * 2.12194440e-4f;
  Vec series = Vec{} + 1.9875691500e-4f;  // polynomial of Cephes' expf
  series = series * r + 1.3981999507e-3f;
  series = series * r + 8.3334519073e-3f;
  series = series * r + 4.1665795894e-2f;
  series = series * r + 1.6666665459e-1f;
  series = series * r + 5.0000001201e-1f;
  series = (series * r) * r + r + 1.0f;
  const Int exponent = (__builtin_convertvector(whole, Int) + 127) << 23;
  return series * reinterpret_cast<const Vec&>(exponent);
}

// e^x to a relative error of 3e-6, for x up to 88 and clamped from -87 down.
static inline Vec rough_exponential(Vec x) {
  const Vec low = Vec{} - 125.5f;
  const float shift = 12582912.0f;
  x = x * 1.44269504f;
  x = x < low ? low : x;
  const Vec whole = (x + shift) - shift;
  const Vec r = x - whole;
  // 2^r for r from -1/2 to 1/2, fitted by least squares at the nodes of Chebyshev.
  Vec series = Vec{} + 9.5605105e-3f;
  series = series * r + 5.5917040e-2f;
  series = series * r + 2.4024981e-1f;
  series = series * r + 6.9312197e-1f;
  series = series * r + 9.9999917e-1f;
  const Int exponent = (__builtin_convertvector(whole, Int) + 127) << 23;
  return series * reinterpret_cast<const Vec&>(exponent);
}

}  // namespace lookahead
