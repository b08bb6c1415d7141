// Weight matrices in panels of columns: whole, or in fewer bytes where that loses nothing.
//
// A few rows take as long as their weights take to come from memory. Many fp32 models hold less
// than 32 bits a weight: those trained in bfloat16 have zeros in the lower half, those that came
// from 4 or 8 bits with scales (GGUF) are scale * code + base in groups. Such weights are kept that
// small; a panel is made whole again in a core's cache, every value the same (but the sign of zero).
#pragma once
#include <cmath>
#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "tile.h"

namespace lookahead {

enum Form : int { kWhole = 0, kHalf = 1, kCodes = 2 };

// kLanes small integers as 32 bits each. Compilers make poor code of a conversion of vectors.
static inline Int widen(const uint8_t* from) {
#if defined(__AVX512F__)
  return (Int)_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#elif defined(__AVX2__)
  return (Int)_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)));
#else
  Int wide;
  for (int i = 0; i < kLanes; i++) wide[i] = from[i];
  return wide;
#endif
}

static inline Int widen(const uint16_t* from) {
#if defined(__AVX512F__)
  return (Int)_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from)));
#elif defined(__AVX2__)
  return (Int)_mm256_cvtepu16_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)));
#else
  Int wide;
  for (int i = 0; i < kLanes; i++) wide[i] = from[i];
  return wide;
#endif
}

constexpr int kGroup = 32;  // consecutive weights of a column with one scale and one base

// What a panel has for every group of kCodes.
struct Group {
  float scale[kPanel], base[kPanel];
  uint8_t codes[kGroup][kPanel];

};

// Columns of a group: scale * code + base.
struct Decoded {
  const Group& group;
  Vec step[kVectors], low[kVectors];

  explicit Decoded(const Group& from) : group(from) {
    for (int v = 0; v < kVectors; v++) {
      step[v] = load(from.scale + v * kLanes);
      low[v] = load(from.base + v * kLanes);
    }
  }

  Vec operator()(int64_t k, int v) const {
    const Vec code = __builtin_convertvector(widen(group.codes[k] + v * kLanes), Vec);
    return step[v] * code + low[v];
  }
};

// Columns of halves: the upper 16 of 32 bits.
struct Widened {
  const uint16_t* at;

  Vec operator()(int64_t k, int v) const {
    const Int bits = widen(at + k * kPanel + v * kLanes) << 16;
    return reinterpret_cast<const Vec&>(bits);
  }
};

// Bytes of a panel, or 0 if weights of so many inputs cannot be kept like this.
static inline int64_t panel_bytes(Form form, int64_t inner) {
  if (form == kCodes) return inner % kGroup ? 0 : inner / kGroup * sizeof(Group);
  return inner * kPanel * (form == kHalf ? 2 : 4);
}

struct Weights {
  const char* data;
  int64_t inner;
  Form form;

  int64_t bytes() const { return panel_bytes(form, inner); }

  // Calls body(columns) for the rows from k on of a panel, of one group at most.
  template <class Body>
  __attribute__((always_inline)) void with_columns(int64_t panel, int64_t k, Body&& body) const {
    const char* from = data + panel * bytes();
    if (form == kWhole)
      body(Stored{reinterpret_cast<const float*>(from) + k * kPanel, kPanel});
    else if (form == kHalf)
      body(Widened{reinterpret_cast<const uint16_t*>(from) + k * kPanel});
    else
      body(Decoded(reinterpret_cast<const Group*>(from)[k / kGroup]));
  }

  // Writes `depth` rows [kPanel] of a panel as fp32, from row k.
  void make(int64_t panel, int64_t k, int64_t depth, float* to) const {
    with_columns(panel, k, [&](const auto& columns) {
      for (int64_t i = 0; i < depth; i++)
        for (int v = 0; v < kVectors; v++) store(to + i * kPanel + v * kLanes, columns(i, v));
    });
  }
};

// The largest step of which all values are whole multiples above `low`; 0 if there is none of
// which 255 reach `high`. Euclid's algorithm in double precision; `encode` checks what comes of it.
static inline double common_step(const float* values, double low, double high) {
  double step = 0;
  for (int i = 0; i < kGroup; i++) {
    double above = values[i] - low;
    while (above > 0) {
      const double rest = step > 0 ? above - std::floor(above / step) * step : 0;
      if (step > 0 && rest == 0) break;
      if (step > 0 && !(rest > 0 && rest < step)) return 0;
      const double next = step > 0 ? rest : above;
      above = step;
      step = next;
      if (!(high - low <= 255 * step)) return 0;
    }
  }
  return step;
}

// Writes kGroup values as column `c` of a group; false if they are not of that kind.
static inline bool encode(const float* values, Group& group, int c) {
  float low = values[0], high = values[0];
  for (int i = 0; i < kGroup; i++) {
    if (!std::isfinite(values[i])) return false;
    low = values[i] < low ? values[i] : low;
    high = values[i] > high ? values[i] : high;
  }
  const double step = common_step(values, low, high);
  if ((low < high && step == 0) || static_cast<float>(step) != step) return false;
  group.scale[c] = static_cast<float>(step);
  group.base[c] = low;
  for (int i = 0; i < kGroup; i++) {
    const double code = step > 0 ? std::rint((values[i] - static_cast<double>(low)) / step) : 0;
    const double product = code * step;  // exact in fp32, so that fused and separate sums agree
    if (static_cast<float>(product) != product) return false;
    if (static_cast<float>(product + low) != values[i]) return false;
    group.codes[i][c] = static_cast<uint8_t>(code);
  }
  return true;
}

// Writes one panel; false if its weights are not of that form. column(c) gives the weights of one
// column [inner], or null for a column of zeros.
template <class Column>
static inline bool pack_panel(Form form, int64_t inner, char* to, Column&& column) {
  if (form == kCodes) std::memset(to, 0, panel_bytes(form, inner));
  for (int c = 0; c < kPanel; c++) {
    const float* from = column(c);
    if (form == kCodes) {
      Group* groups = reinterpret_cast<Group*>(to);
      for (int64_t g = 0; from && g < inner / kGroup; g++)
        if (!encode(from + g * kGroup, groups[g], c)) return false;
    } else if (form == kHalf) {
      uint16_t* halves = reinterpret_cast<uint16_t*>(to);
      for (int64_t k = 0; k < inner; k++) {
        uint32_t bits = 0;
        if (from) std::memcpy(&bits, from + k, 4);
        if (bits & 0xffff) return false;
        halves[k * kPanel + c] = static_cast<uint16_t>(bits >> 16);
      }
    } else {
      float* whole = reinterpret_cast<float*>(to);
      for (int64_t k = 0; k < inner; k++) whole[k * kPanel + c] = from ? from[k] : 0.0f;
    }
  }
  return true;
}

}  // namespace lookahead
