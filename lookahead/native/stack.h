// Decoder layers one after the other: a whole pass over trees but for embedding and readout.
#pragma once
#include <vector>

#include "attention.h"
#include "linear.h"
#include "rotary.h"

namespace lookahead {

// What all layers of a pass have in common. Fields as in `Pass` in attention.py.
struct Pass {
  const float *cos, *sin;  // [turns, nodes, size]
  int64_t turns;           // batch, or 1 for angles that all rows share
  const int64_t* starts;   // [batch]: which slots of the cache a node sees: see TreeAttention;
  const int64_t* lengths;  // [batch]: the nodes are written to the slots from here on
  const uint8_t* mask;     // [masks, nodes, nodes]
  int64_t masks;
  int64_t batch, nodes, heads, key_heads, size;
  int64_t row_stride, head_stride, slot_stride;  // of keys and values, in floats
  float scale;
};

// Rotates queries and keys, writes keys and values [batch, key_heads, slots, size] and attends.
// qkv [batch, nodes, heads + 2 * key_heads, size], changed; out [batch, nodes, heads, size].
static inline void attend(const Pass& p, float* qkv, float* keys, float* values, float* out,
                          int threads) {
  const int64_t all = (p.heads + 2 * p.key_heads) * p.size;
  for (int64_t b = 0; b < p.batch; b++) {
    const int64_t turn = p.turns > 1 ? b * p.nodes * p.size : 0;
    const int64_t at = b * p.row_stride + p.lengths[b] * p.slot_stride;
    Rotary{qkv + b * p.nodes * all, p.cos + turn, p.sin + turn, keys + at, values + at, p.nodes,
           p.heads, p.key_heads, p.size, p.head_stride, p.slot_stride}
        .run();
  }
  TreeAttention{qkv, p.nodes * all, p.size, all, keys, p.row_stride, p.head_stride, p.slot_stride,
                values, p.row_stride, p.head_stride, p.slot_stride, p.starts, p.lengths, p.mask,
                p.masks, out, p.batch, p.heads, p.key_heads, p.nodes, p.size, p.scale}
      .run(threads);
}

struct Packed {
  const char* data;
  const float* bias;  // or null
  int64_t form;

  Weights weights(int64_t inner) const { return {data, inner, static_cast<Form>(form)}; }
};

// Fields as in `Layer` in stack.py.
struct Layer {
  Packed qkv, out, gate_up, down;
  const float *norm, *norm_after;      // [hidden]
  const float *query_norm, *key_norm;  // [size], or null where heads are not normalised
  float eps, eps_after, query_eps, key_eps;
};

struct Stack {
  const Pass& pass;
  const Layer* layers;
  int64_t count, hidden, inner;
  float* x;                // [batch * nodes, hidden], changed in place
  float *keys, *values;    // [layers, batch, key_heads, slots, size]
  int64_t layer_stride;

  void run(int threads) const {
    const int64_t rows = pass.batch * pass.nodes, mixed_size = pass.heads * pass.size,
                  all = mixed_size + 2 * pass.key_heads * pass.size;
    thread_local Scratch held;
    const int64_t needed = rows * (all + mixed_size + inner);
    float* const qkv = held.floats(needed);
    float* const mixed = qkv + rows * all;
    float* const between = mixed + rows * mixed_size;
    for (int64_t i = 0; i < count; i++) {
      const Layer& l = layers[i];
      apply({x, l.qkv.weights(hidden), l.qkv.bias, nullptr, qkv, rows, hidden, all, false}, l.norm,
            l.eps, threads);
      if (l.query_norm) normalise_heads(l, qkv, rows, all);
      attend(pass, qkv, keys + i * layer_stride, values + i * layer_stride, mixed, threads);
      apply({mixed, l.out.weights(mixed_size), l.out.bias, x, x, rows, mixed_size, hidden, false},
            nullptr, 0, threads);
      apply({x, l.gate_up.weights(hidden), nullptr, nullptr, between, rows, hidden, 2 * inner, true},
            l.norm_after, l.eps_after, threads);
      apply({between, l.down.weights(inner), l.down.bias, x, x, rows, inner, hidden, false},
            nullptr, 0, threads);
    }
    if (needed > static_cast<int64_t>(kKept)) std::vector<float>().swap(held.memory);
  }

  void normalise_heads(const Layer& l, float* qkv, int64_t rows, int64_t all) const {
    for (int64_t m = 0; m < rows; m++)
      for (int64_t h = 0; h < pass.heads + pass.key_heads; h++) {
        float* head = qkv + m * all + h * pass.size;
        const bool query = h < pass.heads;
        normalise(head, query ? l.query_norm : l.key_norm, query ? l.query_eps : l.key_eps,
                  pass.size, head);
      }
  }
};

}  // namespace lookahead
