// Linear layers over weights packed into panels, with what usually surrounds them.
#pragma once
#include <algorithm>
#include <cmath>
#include <omp.h>
#include <vector>

#include "tile.h"
#include "weights.h"

namespace lookahead {

constexpr int64_t kCacheFloats = 1 << 16;  // of the inputs that stay near a core
constexpr int kTerms = 256;  // products added up before they join the total
constexpr size_t kKept = 1 << 20;  // floats of working memory that a thread keeps between calls
constexpr int kFewRows = 3;  // of whole weights: with fewer, the processor's own prefetching does better

static inline int64_t panels(int64_t columns) { return (columns + kPanel - 1) / kPanel; }

// RMS normalisation of one row, as `normalise` in lean.py: x / sqrt(mean(x^2) + eps) * weight.
static inline void normalise(const float* x, const float* weight, float eps, int64_t size,
                             float* out) {
  float sum = 0;
  int64_t k = 0;
  Vec squares = {};
  for (; k + kLanes <= size; k += kLanes) squares += load(x + k) * load(x + k);
  for (int i = 0; i < kLanes; i++) sum += squares[i];
  for (; k < size; k++) sum += x[k] * x[k];
  const float scale = 1.0f / std::sqrt(sum / size + eps);
  for (k = 0; k < size; k++) out[k] = x[k] * scale * weight[k];
}

// Where a panel of weights is kept whole for the next rows; `at` is null where none follow.
struct Room {
  float* at;
  bool made;
};

struct Linear {
  const float* x;         // [rows, inner]
  Weights weight;
  const float* bias;      // [outer] or null
  const float* residual;  // [rows, outer], added to the result, or null; may be y
  float* y;               // [rows, outer]; gated: [rows, outer / 2]
  int64_t rows, inner, outer;
  bool gated;             // a panel holds gate columns, then the up columns of the same outputs

  // Rows first .. first + Count of panel `panel`. Weights that are not whole are made so in
  // registers, or group by group in `room`, if other rows need them too.
  template <int Rows>
  void block(int64_t first, int64_t panel, Room room, Ahead ahead) const {
    Vec total[Rows][kVectors] = {};
    const int64_t run = weight.form == kWhole ? kTerms : kGroup;
    for (int64_t begin = 0; begin < inner; begin += kTerms) {
      const int64_t end = std::min<int64_t>(begin + kTerms, inner);
      Vec part[Rows][kVectors] = {};
      for (int64_t k = begin; k < end; k += run) {
        const int64_t depth = std::min(run, end - k);
        const auto add_up = [&](const auto& columns) __attribute__((always_inline)) {
          accumulate(x + first * inner + k, inner, 1, columns, depth, ahead, part);
        };
        if (!room.at) {
          weight.with_columns(panel, k, add_up);
        } else {
          if (!room.made) weight.make(panel, k, depth, room.at + k * kPanel);
          add_up(Stored{room.at + k * kPanel, kPanel});
        }
      }
      add(part, total);
    }
    const int64_t width = gated ? outer / 2 : outer;
    const int64_t begin = panel * (gated ? kLanes : kPanel);
    const int vectors = gated ? 1 : kVectors;
    for (int m = 0; m < Rows; m++) {
      if (gated) {
        const Vec gate = total[m][0];
        total[m][0] = gate / (1.0f + exponential(-gate)) * total[m][1];
      }
      float* row = y + (first + m) * width + begin;
      const float* rest = residual ? residual + (first + m) * width + begin : nullptr;
      for (int v = 0; v < vectors; v++)
        finish(total[m][v], row + v * kLanes, rest ? rest + v * kLanes : nullptr,
               bias ? bias + begin + v * kLanes : nullptr, width - begin - v * kLanes);
    }
  }

  static void finish(Vec value, float* to, const float* rest, const float* shift, int64_t left) {
    if (left >= kLanes) {
      if (shift) value += load(shift);
      if (rest) value += load(rest);
      store(to, value);
      return;
    }
    for (int i = 0; i < left; i++) to[i] = value[i] + (shift ? shift[i] : 0) + (rest ? rest[i] : 0);
  }

  // The share of one thread: a range of panels. Rows go by in chunks that stay in its cache; the
  // next panel of the weight is asked for while one is worked on.
  void work(int thread, int threads) const {
    const int64_t count = panels(outer), low = count * thread / threads,
                  high = count * (thread + 1) / threads, bytes = weight.bytes();
    thread_local Scratch held;
    float* room = weight.form == kWhole ? nullptr : held.floats(inner * kPanel);
    const int64_t chunk = std::max<int64_t>(kCacheFloats / inner / kMaxRows, 1) * kMaxRows;
    for (int64_t start = 0; start < rows; start += chunk) {
      const int64_t size = std::min(chunk, rows - start);
      const int64_t blocks = (size + kMaxRows - 1) / kMaxRows;
      const bool few = rows < kFewRows && weight.form == kWhole;
      const int64_t step = few ? 0 : bytes / blocks / inner;
      for (int64_t panel = low; panel < high; panel++) {
        const char* next = weight.data + (panel + 1) * bytes;
        for_blocks(size, [&](int64_t first, int64_t some) {
          with_rows(some, [&](auto n) {
            const Room here{blocks > 1 ? room : nullptr, first > 0};
            block<decltype(n)::value>(start + first, panel, here, {next, step});
          });
          next += step * inner;
        });
      }
    }
  }
};

// y = act(norm(x) @ weight.T + bias) + residual, on all threads; without `norm` x is taken as it is.
static inline void apply(Linear linear, const float* norm, float eps, int threads) {
  thread_local std::vector<float> scratch;
  const float* x = linear.x;
  if (norm) {
    const size_t size = linear.rows * linear.inner;
    if (scratch.size() < size) scratch.resize(size);
    linear.x = scratch.data();
  }
  float* normed = scratch.data();
#pragma omp parallel num_threads(threads)
  {
    if (norm) {
#pragma omp for
      for (int64_t m = 0; m < linear.rows; m++)
        normalise(x + m * linear.inner, norm, eps, linear.inner, normed + m * linear.inner);
    }
    linear.work(omp_get_thread_num(), omp_get_num_threads());
  }
  if (scratch.size() > kKept) std::vector<float>().swap(scratch);  // a long prompt's
}

}  // namespace lookahead
