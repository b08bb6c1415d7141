// Exact attention of a tree of nodes over a committed prefix and over the tree's own rows.
//
// All query rows that share a key head are worked on together, so that every key and value is
// read once. Scores are kept transposed, [slot][row]: a tile of keys, as they lie in the cache,
// times the transposed queries. So keys need no packing, and the softmax of neighbouring rows
// runs side by side in the lanes of a register.
#pragma once
#include <algorithm>
#include <cmath>
#include <cstring>
#include <omp.h>
#include <vector>

#include "tile.h"

namespace lookahead {

constexpr int64_t kChunk = 128;    // slots whose scores are held at a time
constexpr int64_t kAhead = 32;     // slots by which keys are asked for ahead of their use
constexpr int kFewTerms = 32;      // products added up before they join the total: rounds less
constexpr int kWidest = 3;         // vectors of query rows that a tile of scores holds at most
constexpr float kUnseen = -1e30f;  // score of a slot that a node does not see

struct TreeAttention {
  const float* q;  // [batch, heads, nodes, size], with strides in floats
  int64_t q_batch, q_head, q_node;
  const float* k;  // [batch, key_heads, slots, size]
  int64_t k_batch, k_head, k_slot;
  const float* v;  // [batch, key_heads, slots, size]
  int64_t v_batch, v_head, v_slot;
  const int64_t* starts;   // [batch]: all nodes see the slots from starts to before lengths;
  const int64_t* lengths;  // [batch]: the tree lies in the slots from lengths on
  const uint8_t* mask;     // [mask_rows, nodes, nodes]: whether a node sees one of the tree
  int64_t mask_rows;       // batch, or 1 for a mask that all share
  float* out;              // [batch, nodes, heads, size]
  int64_t batch, heads, key_heads, nodes, size;
  float scale;

  // A unit is one key head of one batch row. Its query rows are numbered node * group + head.
  int64_t group() const { return heads / key_heads; }
  int64_t rows() const { return nodes * group(); }
  int64_t row_vectors() const { return (rows() + kLanes - 1) / kLanes; }
  int64_t width() const { return (size + kLanes - 1) / kLanes * kLanes; }
  int64_t keys(int64_t unit) const {
    const int64_t b = unit / key_heads;
    return lengths[b] - starts[b] + nodes;
  }

  // What a thread finds out about its share of a unit: for every row the highest score, the sum
  // of e^(score - highest), and the values summed with those weights.
  struct Part {
    float *high, *sum, *total;
  };
  int64_t part_floats() const { return row_vectors() * kLanes * (2 + width()); }
  Part part(float* memory) const {
    const int64_t padded = row_vectors() * kLanes;
    return {memory, memory + padded, memory + 2 * padded};
  }

  // Some slots of a unit; `begin` and `tree` count from the unit's first key.
  struct Chunk {
    const float *keys, *values;
    int64_t v_slot;      // stride of values
    int64_t begin, count;
    int64_t tree;        // where the tree's own rows begin
    const uint8_t* mask;
  };

  // Scores of `Vectors` vectors of rows, from row `first` on, against a chunk; then their softmax
  // and the values. The first to see a chunk asks for memory that is soon needed.
  template <int Vectors>
  void panel(const Chunk& chunk, int64_t first, const float* queries, float* scores,
             const Part& part) const {
    constexpr int kKeys = kMaxRows * kVectors / Vectors, kRows = Vectors * kLanes;
    const auto score = [&](auto n, int64_t slot) {
      constexpr int some = decltype(n)::value;
      if (first == 0)
        for (int m = 0; m < some; m++)
          for (int64_t d = 0; d < size; d += 16) {
            __builtin_prefetch(chunk.keys + (slot + m + kAhead) * k_slot + d, 0, 2);
            __builtin_prefetch(chunk.values + (slot + m) * chunk.v_slot + d, 0, 2);
          }
      Vec total[some][Vectors];
      tile<some, Vectors, kFewTerms>(chunk.keys + slot * k_slot, k_slot, 1, queries, kRows, size,
                                     {}, total);
      for (int m = 0; m < some; m++)
        for (int v = 0; v < Vectors; v++)
          store(scores + (slot + m) * kRows + v * kLanes, total[m][v]);
    };
    // The last tile overlaps the one before rather than be narrower.
    if (chunk.count >= kKeys)
      for (int64_t slot = 0; slot < chunk.count; slot += kKeys)
        score(Count<kKeys>(), std::min(slot, chunk.count - kKeys));
    else
      for (int64_t slot = 0; slot < chunk.count; slot++) score(Count<1>(), slot);

    const int64_t last = std::min<int64_t>(first + kRows, rows());
    const int64_t tree = chunk.tree - chunk.begin;
    for (int64_t slot = std::max<int64_t>(tree, 0); slot < chunk.count; slot++) {
      const uint8_t* seen = chunk.mask + slot - tree;
      for (int64_t row = first; row < last; row++)
        if (!seen[row / group() * nodes]) scores[slot * kRows + row - first] = kUnseen;
    }

    float rescale[kWidest * kLanes];
    for (int v = 0; v < Vectors; v++) {
      float* column = scores + v * kLanes;
      const Vec before = load(part.high + first + v * kLanes);
      Vec high = before, sum = {};
      for (int64_t slot = 0; slot < chunk.count; slot++) {
        const Vec value = load(column + slot * kRows);
        high = value > high ? value : high;
      }
      for (int64_t slot = 0; slot < chunk.count; slot++) {
        const Vec value = load(column + slot * kRows);
        const Vec weight = value <= kUnseen ? Vec{} : exponential(value - high);
        sum += weight;
        store(column + slot * kRows, weight);
      }
      const Vec factor = exponential(before - high);
      store(rescale + v * kLanes, factor);
      store(part.high + first + v * kLanes, high);
      store(part.sum + first + v * kLanes, load(part.sum + first + v * kLanes) * factor + sum);
    }

    for (int64_t begin = 0; begin < width(); begin += kPanel)
      for_blocks(last - first, [&](int64_t row, int64_t some) {
        with_rows<std::min(kMaxRows, kRows)>(some, [&](auto n) {
          constexpr int count = decltype(n)::value;
          float* to = part.total + (first + row) * width() + begin;
          if (width() - begin >= kPanel)
            values<count, kVectors>(chunk, begin, scores + row, kRows, rescale + row, to);
          else
            values<count, 1>(chunk, begin, scores + row, kRows, rescale + row, to);
        });
      });
  }

  // Columns of the values from `begin` on, weighted for some rows and added to what they have.
  template <int Rows, int Vectors>
  void values(const Chunk& chunk, int64_t begin, const float* weights, int64_t stride,
              const float* rescale, float* to) const {
    Vec total[Rows][Vectors];
    tile<Rows, Vectors, kFewTerms>(weights, 1, stride, chunk.values + begin, chunk.v_slot,
                                   chunk.count, {}, total);
    for (int m = 0; m < Rows; m++)
      for (int v = 0; v < Vectors; v++) {
        float* at = to + m * width() + v * kLanes;
        store(at, load(at) * rescale[m] + total[m][v]);
      }
  }

  // Panels of rows: calls body(first vector, vectors) with 1 to kWidest vectors.
  template <class Body>
  void for_panels(Body&& body) const {
    const int64_t vectors = row_vectors(), count = (vectors + kWidest - 1) / kWidest;
    for (int64_t p = 0; p < count; p++) {
      const int64_t first = vectors * p / count;
      body(first, vectors * (p + 1) / count - first);
    }
  }

  // Keys `from` to before `to` of a unit.
  void segment(int64_t unit, int64_t from, int64_t to, const Part& part) const {
    static thread_local Scratch scratch;
    const int64_t padded = row_vectors() * kLanes;
    float* queries = scratch.floats(padded * size + kChunk * (kWidest * kLanes + width()));
    float* scores = queries + padded * size;
    float* copy = scores + kChunk * kWidest * kLanes;

    const int64_t b = unit / key_heads, h = unit % key_heads;
    for_panels([&](int64_t first, int64_t some) {
      float* panel = queries + first * kLanes * size;
      const int64_t stride = some * kLanes;
      for (int64_t lane = 0; lane < stride; lane++) {
        const int64_t row = first * kLanes + lane;
        const float* from = q + b * q_batch + (h * group() + row % group()) * q_head +
                            row / group() * q_node;
        for (int64_t d = 0; d < size; d++)
          panel[d * stride + lane] = row < rows() ? from[d] * scale : 0;
      }
    });
    std::fill_n(part.high, padded, kUnseen);
    std::fill_n(part.sum, padded, 0.0f);
    std::fill_n(part.total, padded * width(), 0.0f);

    const int64_t all = to - from, count = (all + kChunk - 1) / kChunk;
    for (int64_t c = 0; c < count; c++) {
      const int64_t begin = from + all * c / count, end = from + all * (c + 1) / count;
      Chunk chunk = {k + b * k_batch + h * k_head + (starts[b] + begin) * k_slot,
                     v + b * v_batch + h * v_head + (starts[b] + begin) * v_slot,
                     v_slot, begin, end - begin, lengths[b] - starts[b],
                     mask + (mask_rows > 1 ? b : 0) * nodes * nodes};
      if (width() > size) {  // whole vectors would reach past the last slot
        for (int64_t slot = 0; slot < chunk.count; slot++)
          std::memcpy(copy + slot * width(), chunk.values + slot * v_slot, size * 4);
        chunk.values = copy;
        chunk.v_slot = width();
      }
      for_panels([&](int64_t first, int64_t some) {
        const float* w = queries + first * kLanes * size;
        if (some == 1) panel<1>(chunk, first * kLanes, w, scores, part);
        if (some == 2) panel<2>(chunk, first * kLanes, w, scores, part);
        if (some == 3) panel<3>(chunk, first * kLanes, w, scores, part);
      });
    }
  }

  // One row of the result from the parts that the threads found.
  void merge(int64_t unit, int64_t row, float* memory, int64_t parts) const {
    const int64_t step = part_floats();
    float high = kUnseen, sum = 0;
    for (int64_t p = 0; p < parts; p++) high = std::max(high, part(memory + p * step).high[row]);
    float* total = part(memory).total + row * width();
    for (int64_t p = 0; p < parts; p++) {
      const Part other = part(memory + p * step);
      const float weight = std::exp(other.high[row] - high);
      sum += weight * other.sum[row];
      for (int64_t d = 0; d < width(); d += kLanes) {
        const Vec value = weight * load(other.total + row * width() + d);
        store(total + d, p ? load(total + d) + value : value);
      }
    }
    const float factor = sum > 0 ? 1 / sum : 0;
    const int64_t b = unit / key_heads, head = unit % key_heads * group() + row % group();
    float* to = out + ((b * nodes + row / group()) * heads + head) * size;
    for (int64_t d = 0; d < size; d++) to[d] = total[d] * factor;
  }

  // The keys of all units, in a row, are cut into one share for each thread. The part that thread
  // t finds of unit u is number t + u: of two that follow each other, t or u has grown. The last
  // thread to finish its part of a unit merges them, so that nobody waits.
  void run(int threads) const {
    static thread_local Scratch scratch;
    static thread_local std::vector<int64_t> finished;
    const int64_t units = batch * key_heads, step = part_floats();
    float* memory = scratch.floats((units + threads) * step);
    finished.assign(units, 0);
    int64_t* done = finished.data();
    int64_t all = 0;
    for (int64_t unit = 0; unit < units; unit++) all += keys(unit);
#pragma omp parallel num_threads(threads)
    {
      const int64_t shares = std::min<int64_t>(omp_get_num_threads(), all);  // none is empty
      const int64_t thread = std::min<int64_t>(omp_get_thread_num(), shares);
      const int64_t low = all * thread / shares, high = all * std::min(thread + 1, shares) / shares;
      const auto owner = [&](int64_t key) { return ((key + 1) * shares - 1) / all; };
      for (int64_t unit = 0, begin = 0; unit < units; begin += keys(unit++)) {
        const int64_t from = std::max<int64_t>(low - begin, 0);
        const int64_t to = std::min(high - begin, keys(unit));
        if (from >= to) continue;
        segment(unit, from, to, part(memory + (thread + unit) * step));
        const int64_t first = owner(begin), parts = owner(begin + keys(unit) - 1) - first + 1;
        if (__atomic_add_fetch(done + unit, 1, __ATOMIC_ACQ_REL) == parts)
          for (int64_t row = 0; row < rows(); row++)
            merge(unit, row, memory + (first + unit) * step, parts);
      }
    }
  }
};

}  // namespace lookahead
