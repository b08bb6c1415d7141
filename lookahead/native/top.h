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

  // Every token with at least the k-th largest of the blocks' largest logits: the k likeliest are
  // among them, and few blocks hold any.
  void row(int64_t r, std::vector<float>& highs, std::vector<int64_t>& found) const {
    const float* x = logits + r * size;
    const int64_t blocks = (size + kBlock - 1) / kBlock;
    highs.resize(2 * blocks);
    float *high = highs.data(), *sorted = high + blocks;
    for (int64_t b = 0; b < blocks; b++) high[b] = highest(x + b * kBlock, length(b));
    float least = -INFINITY;
    if (blocks >= k) {
      std::copy_n(high, blocks, sorted);
      std::nth_element(sorted, sorted + k - 1, sorted + blocks, std::greater<float>());
      least = sorted[k - 1];
    }
    found.clear();
    for (int64_t b = 0; b < blocks; b++)
      for (int64_t i = b * kBlock; high[b] >= least && i < b * kBlock + length(b); i++)
        if (x[i] >= least) found.push_back(i);
    const auto likelier = [x](int64_t a, int64_t b) {
      return x[a] > x[b] || (x[a] == x[b] && a < b);
    };
    const int64_t count = std::min<int64_t>(k, found.size());
    std::partial_sort(found.begin(), found.begin() + count, found.end(), likelier);
    const float top = count ? x[found[0]] : NAN;
    const float sum = total(x, top);
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
    if (count >= kLanes) {
      Vec high = load(x);
      for (i = kLanes; i + kLanes <= count; i += kLanes) {
        const Vec value = load(x + i);
        high = value > high ? value : high;
      }
      for (int lane = 0; lane < kLanes; lane++) found = std::max(found, high[lane]);
    }
    for (; i < count; i++) found = std::max(found, x[i]);
    return found;
  }

  // Sum of e^(x - top).
  float total(const float* x, float top) const {
    Vec sums = {};
    int64_t i = 0;
    for (; i + kLanes <= size; i += kLanes) sums += exponential(load(x + i) - top);
    float sum = 0;
    for (int lane = 0; lane < kLanes; lane++) sum += sums[lane];
    for (; i < size; i++) sum += std::exp(x[i] - top);
    return sum;
  }

  void run(int threads) const {
#pragma omp parallel num_threads(threads)
    {
      std::vector<float> highs;
      std::vector<int64_t> found;
#pragma omp for schedule(static)
      for (int64_t r = 0; r < rows; r++) row(r, highs, found);
    }
  }
};

}  // namespace lookahead
