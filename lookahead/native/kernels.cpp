// What Python calls, by ctypes. All tensors are fp32, and contiguous where no strides are given;
// that is checked there.
#include <algorithm>

#include "attention.h"
#include "linear.h"
#include "rotary.h"
#include "top.h"

using namespace lookahead;

constexpr size_t kKept = 1 << 20;  // floats of working memory that a thread keeps between calls

#pragma GCC visibility push(default)
extern "C" {

// Columns of a panel; the packed weight has inner * panel floats for each, zeros at the end.
int lookahead_panel() { return kPanel; }

// weight [outer, inner], or gate and up [outer / 2, inner] each, into panels.
void lookahead_pack(const float* weight, const float* up, float* packed, int64_t outer,
                    int64_t inner, int threads) {
  const int64_t count = panels(outer), half = outer / 2;
#pragma omp parallel for num_threads(threads)
  for (int64_t panel = 0; panel < count; panel++) {
    float* to = packed + panel * inner * kPanel;
    for (int c = 0; c < kPanel; c++) {
      const float* from = nullptr;
      if (!up) {
        const int64_t column = panel * kPanel + c;
        if (column < outer) from = weight + column * inner;
      } else {
        const int64_t column = panel * kLanes + c % kLanes;
        if (column < half) from = (c < kLanes ? weight : up) + column * inner;
      }
      for (int64_t k = 0; k < inner; k++) to[k * kPanel + c] = from ? from[k] : 0.0f;
    }
  }
}

// y = act(norm(x) @ weight.T + bias) + residual; norm, bias and residual may be null.
void lookahead_linear(const float* x, const float* weight, const float* bias, const float* norm,
                      float eps, const float* residual, float* y, int64_t rows, int64_t inner,
                      int64_t outer, int gated, int threads) {
  thread_local std::vector<float> scratch;
  float* normed = nullptr;
  if (norm) {
    if (scratch.size() < static_cast<size_t>(rows * inner)) scratch.resize(rows * inner);
    normed = scratch.data();
  }
  const Linear linear{norm ? normed : x, weight, bias, residual, y, rows, inner, outer, gated != 0};
#pragma omp parallel num_threads(threads)
  {
    if (norm) {
#pragma omp for
      for (int64_t m = 0; m < rows; m++)
        normalise(x + m * inner, norm, eps, inner, normed + m * inner);
    }
    linear.work(omp_get_thread_num(), omp_get_num_threads());
  }
  if (scratch.size() > kKept) std::vector<float>().swap(scratch);  // a long prompt's
}

// One layer's attention of a pass over trees. qkv [batch, nodes, heads + 2 * key_heads, size]; cos
// and sin [batch or 1, nodes, size]; keys and values: the cache [batch, key_heads, slots, size]
// with the given strides, into which the nodes are written at slots lengths[b] and up. Which slots
// a node sees: see TreeAttention. out [batch, nodes, heads, size].
void lookahead_attention(float* qkv, const float* cos, const float* sin, int64_t turns, float* keys,
                         float* values, int64_t row_stride, int64_t head_stride,
                         int64_t slot_stride, const int64_t* starts, const int64_t* lengths,
                         const uint8_t* mask, int64_t masks, float* out, int64_t batch,
                         int64_t nodes, int64_t heads, int64_t key_heads, int64_t size, float scale,
                         int threads) {
  const int64_t all = (heads + 2 * key_heads) * size;
  for (int64_t b = 0; b < batch; b++) {
    const int64_t turn = turns > 1 ? b * nodes * size : 0;
    const int64_t at = b * row_stride + lengths[b] * slot_stride;
    Rotary{qkv + b * nodes * all, cos + turn, sin + turn, keys + at, values + at, nodes, heads,
           key_heads, size, head_stride, slot_stride}
        .run();
  }
  TreeAttention{qkv, nodes * all, size, all, keys, row_stride, head_stride, slot_stride, values,
                row_stride, head_stride, slot_stride, starts, lengths, mask, masks, out, batch,
                heads, key_heads, nodes, size, scale}
      .run(threads);
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
