"""Joining attention over disjoint sets of keys, exactly, from (out, lse) of each set.

With lse_i = log sum_j exp(s_ij) over the keys of set i, attention over the union is
sum_i exp(lse_i - lse) out_i with lse = logsumexp_i lse_i (FlashDecoding; FlashAttention-2,
arXiv:2307.08691, section 3.1). LSE is the natural logarithm throughout. An empty set has
lse -inf and drops out; when all sets are empty the result is out 0, lse -inf.
"""

from __future__ import annotations

import torch
from torch import Tensor


def merge(
    out_a: Tensor, lse_a: Tensor, out_b: Tensor, lse_b: Tensor, *, need_lse: bool = True
) -> tuple[Tensor, Tensor | None]:
    """Attention over the union of two disjoint key sets.

    out_a, out_b: [..., rows, d], finite; lse_a, lse_b: [..., rows] fp32 (fp64 for fp64 inputs),
    -inf where the set is empty, never +inf or NaN.
    Returns (out, lse): computed in lse's dtype; out has the wider of the two outputs' dtypes; lse
    is None unless needed.
    """
    weight = torch.sigmoid(lse_b - lse_a)
    # -inf minus -inf: both sets empty, both outputs 0, any weight will do.
    weight = torch.nan_to_num(weight, nan=0.0).unsqueeze(-1)
    wide = weight.dtype
    out = torch.lerp(out_a.to(wide), out_b.to(wide), weight)
    out = out.to(torch.promote_types(out_a.dtype, out_b.dtype))
    return out, torch.logaddexp(lse_a, lse_b) if need_lse else None


def add_sinks(out: Tensor, lse: Tensor, sinks: Tensor) -> tuple[Tensor, Tensor]:
    """Add one learned logit per head to the softmax's denominator (attention sink).

    A sink is a key whose value is zero, so it can join after the fact. out [batch, heads, n, d],
    lse [batch, heads, n], sinks [heads]. The returned lse includes the sink.
    """
    logits = sinks.to(lse.dtype).view(1, -1, 1)
    weight = torch.sigmoid(lse - logits).unsqueeze(-1)
    return (out.to(lse.dtype) * weight).to(out.dtype), torch.logaddexp(lse, logits.expand_as(lse))
