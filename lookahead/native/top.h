// The likeliest tokens of each row of logits, with their probabilities.
#pragma once
#include <algorithm>
#include <cmath>
#include <functional>
#include <vector>

#include "tile.h"

namespace lookahead {

struct Top {
  const float* logits;  // [rows, size]
  int64_t rows, size, k;
  int64_t* tokens;  // [rows, k], largest logit first, of equal ones the lower token
  float* values;    // [rows, k]; the first is NaN where any logit of the row is
  float* chances;   // [rows, k]

  static constexpr int64_t kBlock = 256;
  static constexpr float kFar = 60;  // e to this, times any vocabulary, is finite

  // The highest logit of each block of a part of a row, and the sum of e^(x - base) over the part;
  // `base` is the first block's highest, so that the logits are read once.
  struct Part {
    float base, sum;
  };

  int64_t blocks() const { return (size + kBlock - 1) / kBlock; }

  Part scan(const float* x, int64_t first, int64_t last, float* highs) const {
    Part part{0, 0};
    for (int64_t b = first; b < last; b++) {
      highs[b] = highest(x + b * kBlock, length(b));
      if (b == first) part.base = highs[b];
      part.sum += total(x + b * kBlock, length(b), part.base);
    }
    return part;
  }

  // Every token with at least the k-th largest of the blocks' largest logits: the k likeliest are
  // among them, and few blocks hold any.
  void row(int64_t r, const float* highs, const Part* parts, int64_t count_of_parts) const {
    const float* x = logits + r * size;
    thread_local std::vector<float> sorted;
    thread_local std::vector<int64_t> found;
    float least = -INFINITY;
    if (blocks() >= k) {
      sorted.assign(highs, highs + blocks());
      std::nth_element(sorted.begin(), sorted.begin() + k - 1, sorted.end(), std::greater<float>());
      least = sorted[k - 1];
    }
    found.clear();
    for (int64_t b = 0; b < blocks(); b++)
      for (int64_t i = b * kBlock; highs[b] >= least && i < b * kBlock + length(b); i++)
        if (x[i] >= least) found.push_back(i);
    const auto likelier = [x](int64_t a, int64_t b) {
      return x[a] > x[b] || (x[a] == x[b] && a < b);
    };
    const int64_t count = std::min<int64_t>(k, found.size());
    std::partial_sort(found.begin(), found.begin() + count, found.end(), likelier);
    const float top = count ? x[found[0]] : NAN;
    float sum = 0;
    for (int64_t p = 0; p < count_of_parts; p++)
      sum += parts[p].sum * std::exp(parts[p].base - top);
    bool near = true;  // else a sum may have overflowed, or lost what counts
    for (int64_t p = 0; p < count_of_parts; p++) near &= std::abs(parts[p].base - top) < kFar;
    if (!near) sum = total(x, size, top);
    for (int64_t i = 0; i < k; i++) {
      const int64_t token = i < count ? found[i] : 0;
      tokens[r * k + i] = token;
      values[r * k + i] = x[token];
      chances[r * k + i] = i < count ? std::exp(x[token] - top) / sum : 0;
    }
    if (std::isnan(sum) && std::any_of(x, x + size, [](float v) { return std::isnan(v); }))
      values[r * k] = NAN;
  }

  int64_t length(int64_t block) const { return std::min(kBlock, size - block * kBlock); }

  // NaN may hide other values of its block: such a row is found out by its sum.
  static float highest(const float* x, int64_t count) {
    float found = -INFINITY;
    int64_t i = 0;
    if (count >= 2 * kLanes) {
      Vec high = load(x), other = load(x + kLanes);
      for (i = 2 * kLanes; i + 2 * kLanes <= count; i += 2 * kLanes) {
        const Vec value = load(x + i), next = load(x + i + kLanes);
        high = value > high ? value : high;
        other = next > other ? next : other;
      }
      high = other > high ? other : high;
      for (int lane = 0; lane < kLanes; lane++) found = std::max(found, high[lane]);
    }
    for (; i < count; i++) found = std::max(found, x[i]);
    return found;
  }

  // Sum of e^(x - base).
  static float total(const float* x, int64_t count, float base) {
    Vec sums = {};
    int64_t i = 0;
    for (; i + kLanes <= count; i += kLanes) sums += rough_exponential(load(x + i) - base);
    float sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += sums[lane];
    for (; i < count; i++) sum += std::exp(x[i] - base);
    return sum;
  }

  // A thread scans the columns that it has written as the last linear layer of a model: they lie in
  // its cache.
  void run(int threads) const {
    const int64_t parts = std::min<int64_t>(threads, blocks());
    static thread_local std::vector<float> highs_held;
    static thread_local std::vector<Part> parts_held;
    highs_held.resize(rows * blocks());
    parts_held.resize(rows * parts);
    float* const highs = highs_held.data();
    Part* const found = parts_held.data();
#pragma omp parallel num_threads(threads)
    {
#pragma omp for schedule(static)
      for (int64_t i = 0; i < rows * parts; i++) {
        const int64_t r = i % rows, p = i / rows;
        const int64_t first = blocks() * p / parts, last = blocks() * (p + 1) / parts;
        found[r * parts + p] = scan(logits + r * size, first, last, highs + r * blocks());
      }
#pragma omp for schedule(static)
      for (int64_t r = 0; r < rows; r++) row(r, highs + r * blocks(), found + r * parts, parts);
    }
  }
};

}  // namespace lookahead
