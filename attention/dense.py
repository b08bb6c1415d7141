"""Attention by two matrix products in fp32: for small masked blocks and for features
(softcap, value size other than key size, odd head sizes) that no stock kernel has."""

from __future__ import annotations

import torch
from torch import Tensor


def dense_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    bias: Tensor | None,
    *,
    scale: float,
    softcap: float | None = None,
) -> tuple[Tensor, Tensor]:
    """(out, lse) of q [batch, heads, m, d] over k, v [batch, heads, keys, d or value size].

    bias: None, or additive [batch or 1, heads or 1, m, keys], applied after the softcap.
    Computed in fp32 (fp64 for fp64 inputs) whatever the dtype, because rounding scores to bf16
    would cost more accuracy than the kernels this stands in for; out stays in that dtype, so that
    a merge rounds once, not twice. Rows without a visible key give out 0, lse -inf.
    Memory: batch * heads * m * keys floats, twice.
    """
    compute = torch.float64 if q.dtype == torch.float64 else torch.float32
    scores = torch.matmul(q.to(compute) * scale, k.to(compute).transpose(-1, -2))
    if softcap is not None:
        scores = torch.tanh(scores / softcap) * softcap
    if bias is not None:
        scores = scores + bias
    lse = torch.logsumexp(scores, -1)
    # A row that sees nothing has lse -inf; subtracting 0 instead keeps its weights at exp(-inf).
    weights = torch.exp(scores - torch.where(lse == -torch.inf, 0.0, lse).unsqueeze(-1))
    return torch.matmul(weights, v.to(compute)), lse
