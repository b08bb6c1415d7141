"""Slow, obvious tree attention: the oracle that every other backend is tested against.

One Python loop per batch row and head, a softmax over the joined keys, no merging, no kernels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .context import TreeContext


def visible_slots(context: TreeContext, row: int, node: int, window: int | None) -> list[int]:
    """Cache slots that `node` of batch row `row` attends to, in increasing order.

    The prefix sits at positions counted by slot, the nodes at `prefix_len + depth`; a sliding
    window of `window` positions counts the node's own.
    """
    tree = context.host_mask[row if context.host_mask.shape[0] > 1 else 0]
    depths = context.node_depths[row if context.node_depths.shape[0] > 1 else 0].tolist()
    start, length = context.row_span(row)
    slots = []
    for slot in range(start, length):
        if window is None or length + depths[node] - slot < window:
            slots.append(slot)
    for other in range(context.width):
        if tree[node, other] and (window is None or depths[node] - depths[other] < window):
            slots.append(length + other)
    return slots


def reference_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    dtype: torch.dtype = torch.float64,
) -> tuple[Tensor, Tensor]:
    """Attention of n tree rows over prefix and tree, computed in `dtype`.

    Arguments as in `lookahead.attention.tree_attention`.
    Returns out [batch, heads, n, value size] and lse [batch, heads, n], both of type `dtype`.
    A node that sees no key at all gets out 0 and lse -inf (or the sink's logit).
    """
    batch, heads, nodes, head_dim = q.shape
    group = heads // k.shape[1]
    scale = head_dim**-0.5 if scale is None else scale
    out = torch.zeros(batch, heads, nodes, v.shape[-1], dtype=dtype, device=q.device)
    lse = torch.full((batch, heads, nodes), -torch.inf, dtype=dtype, device=q.device)
    for row in range(batch):
        for node in range(nodes):
            slots = visible_slots(context, row, node, window)
            for head in range(heads):
                keys = k[row, head // group, slots].to(dtype)
                scores = keys @ q[row, head, node].to(dtype) * scale
                if softcap is not None:
                    scores = softcap * torch.tanh(scores / softcap)
                if sinks is not None:
                    scores = torch.cat([scores, sinks[head : head + 1].to(dtype)])
                if not scores.numel():
                    continue
                lse[row, head, node] = torch.logsumexp(scores, 0)
                weights = torch.softmax(scores, 0)[: len(slots)]
                out[row, head, node] = weights @ v[row, head // group, slots].to(dtype)
    return out, lse
