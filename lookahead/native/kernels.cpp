// What Python calls, by ctypes. All tensors are fp32, and contiguous where no strides are given;
// that is checked there, for a stack when its layers are made.
#include <algorithm>
#include <atomic>

#include "stack.h"
#include "top.h"
#include "weights.h"

using namespace lookahead;

#pragma GCC visibility push(default)
extern "C" {

// Bytes of a panel of packed weights in that form, 0 if it cannot have `inner` rows.
int64_t lookahead_panel_bytes(int form, int64_t inner) {
  return panel_bytes(static_cast<Form>(form), inner);
}

// Columns of a panel.
int lookahead_panel() { return kPanel; }

// weight [outer, inner], or gate and up [outer / 2, inner] each, into panels of that form. Returns
// 1, or 0 if they cannot be kept so without loss.
int lookahead_pack(const float* weight, const float* up, char* packed, int64_t outer, int64_t inner,
                   int form, int threads) {
  const int64_t count = panels(outer), half = outer / 2,
                bytes = panel_bytes(static_cast<Form>(form), inner);
  std::atomic<bool> fits{bytes > 0};
#pragma omp parallel for num_threads(threads) schedule(dynamic, 4)
  for (int64_t panel = 0; panel < count; panel++) {
    if (!fits) continue;
    const auto column = [&](int c) -> const float* {
      const int64_t plain = panel * kPanel + c, gated = panel * kLanes + c % kLanes;
      if (up) return gated < half ? (c < kLanes ? weight : up) + gated * inner : nullptr;
      return plain < outer ? weight + plain * inner : nullptr;
    };
    if (!pack_panel(static_cast<Form>(form), inner, packed + panel * bytes, column)) fits = false;
  }
  return fits;
}

// y = act(norm(x) @ weight.T + bias) + residual; norm, bias and residual may be null.
void lookahead_linear(const float* x, const char* weight, int form, const float* bias,
                      const float* norm, float eps, const float* residual, float* y, int64_t rows,
                      int64_t inner, int64_t outer, int gated, int threads) {
  const Weights packed{weight, inner, static_cast<Form>(form)};
  apply({x, packed, bias, residual, y, rows, inner, outer, gated != 0}, norm, eps, threads);
}

// One layer's attention of a pass over trees. qkv [batch, nodes, heads + 2 * key_heads, size]; keys
// and values: the layer's cache. out [batch, nodes, heads, size].
void lookahead_attention(const Pass* pass, float* qkv, float* keys, float* values, float* out,
                         int threads) {
  attend(*pass, qkv, keys, values, out, threads);
}

// All layers of a pass over trees: see Stack. x [batch * nodes, hidden] is changed in place.
void lookahead_stack(const Pass* pass, const Layer* layers, int64_t count, int64_t hidden,
                     int64_t inner, float* x, float* keys, float* values, int64_t layer_stride,
                     int threads) {
  Stack{*pass, layers, count, hidden, inner, x, keys, values, layer_stride}.run(threads);
}

// Causal attention of a prompt over itself: the nodes see those before them. q [batch, heads,
// nodes, size], k and v [batch, key_heads, nodes, size], with strides; out [batch, nodes, heads,
// size]. In blocks of nodes, each a chain behind the nodes before it.
void lookahead_causal(const float* q, const int64_t* q_strides, const float* k,
                      const int64_t* k_strides, const float* v, const int64_t* v_strides,
                      float* out, int64_t batch, int64_t nodes, int64_t heads, int64_t key_heads,
                      int64_t size, float scale, int threads) {
  constexpr int64_t kBlock = 64;
  const std::vector<int64_t> starts(batch, 0);
  for (int64_t first = 0; first < nodes; first += kBlock) {
    const int64_t some = std::min(kBlock, nodes - first);
    std::vector<uint8_t> sees(some * some);
    for (int64_t i = 0; i < some; i++) std::fill_n(&sees[i * some], i + 1, 1);
    const std::vector<int64_t> lengths(batch, first);
    for (int64_t b = 0; b < batch; b++)  // a row's result is in one piece only within the row
      TreeAttention{q + b * q_strides[0] + first * q_strides[2], q_strides[0], q_strides[1],
                    q_strides[2], k + b * k_strides[0], k_strides[0], k_strides[1], k_strides[2],
                    v + b * v_strides[0], v_strides[0], v_strides[1], v_strides[2], &starts[b],
                    &lengths[b], sees.data(), 1, out + (b * nodes + first) * heads * size, 1, heads,
                    key_heads, some, size, scale}
          .run(threads);
  }
}

// The k likeliest of each row of logits [rows, size]; see Top.
void lookahead_top(const float* logits, int64_t rows, int64_t size, int64_t k, int64_t* tokens,
                   float* values, float* chances, int threads) {
  Top{logits, rows, size, k, tokens, values, chances}.run(threads);
}

}  // extern "C"
#pragma GCC visibility pop
