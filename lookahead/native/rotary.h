// Rotary embedding of queries and keys, and the way of keys and values into the cache.
#pragma once
#include <cstdint>
#include <cstring>

namespace lookahead {

struct Rotary {
  float* qkv;              // [nodes, heads + 2 * key_heads, size]; queries are turned in place
  const float *cos, *sin;  // [nodes, size]
  float *keys, *values;    // first slot of the first head; keys are written turned
  int64_t nodes, heads, key_heads, size;
  int64_t head_stride, slot_stride;  // of the cache, in floats

  void run() const {
    const int64_t all = heads + 2 * key_heads;
    for (int64_t n = 0; n < nodes; n++) {
      float* row = qkv + n * all * size;
      for (int64_t h = 0; h < heads; h++) turn(row + h * size, row + h * size, n);
      for (int64_t h = 0; h < key_heads; h++) {
        const int64_t at = h * head_stride + n * slot_stride;
        turn(row + (heads + h) * size, keys + at, n);
        std::memcpy(values + at, row + (heads + key_heads + h) * size, size * sizeof(float));
      }
    }
  }

  // As `rotate` in lean.py: the first half of a head pairs with the second. `to` may be `from`.
  void turn(const float* from, float* to, int64_t node) const {
    const float *c = cos + node * size, *s = sin + node * size;
    const int64_t half = size / 2;
    for (int64_t i = 0; i < half; i++) {
      const float low = from[i], high = from[i + half];
      to[i] = low * c[i] - high * s[i];
      to[i + half] = high * c[i + half] + low * s[i + half];
    }
  }
};

}  // namespace lookahead
