"""Tree attention in one call under a 4-D mask, the "sdpa" backend.

The mask costs rows * keys floats, made once per pass and read by every layer; in exchange there
is one kernel call and no merge. On CPU this is the kernel that
`torch.nn.functional.scaled_dot_product_attention` runs under a float mask, called directly because
the public function returns no lse.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .context import TreeContext
from .flash import efficient_attention, fold_heads, kernel_for, masked_attention
from .masks import additive, visible_range


def one_call_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
) -> tuple[Tensor, Tensor]:
    """(out [batch, heads, n, value size], lse [batch, heads, n]); arguments are valid.

    On CUDA the keys are expanded to all heads, as transformers does; the CPU kernel takes
    head groups as they are; elsewhere they are folded into the query rows.
    """
    batch, heads, nodes, _ = q.shape
    key_heads, group = k.shape[1], heads // k.shape[1]
    spans = context.spans(window)
    low = min(s.fringe_start for s in spans)
    high = max(s.length for s in spans) + context.width
    keys, values = k[:, :, low:high], v[:, :, low:high]
    kernel = kernel_for(q, k, v, softcap)
    efficient = kernel in ("flash", "efficient")
    fold = group if kernel == "dense" else 1
    wide = torch.float64 if q.dtype == torch.float64 else torch.float32
    dtype = q.dtype if efficient else wide  # the CUDA kernel wants the query's dtype
    bias = context.derive(
        ("one call", window, fold, dtype, k.device),
        lambda: additive(visible_range(context, low, high, window), fold, dtype, k.device),
    )
    if efficient:
        keys, values = (x.repeat_interleave(group, 1) for x in (keys, values))
        out, lse = efficient_attention(q, keys, values, bias.bias, scale=scale)
        if bias.dead is not None:
            out = out.masked_fill(bias.dead.unsqueeze(-1), 0.0)
            lse = lse.masked_fill(bias.dead, -torch.inf)
        return out, lse
    rows = fold_heads(q, key_heads) if fold > 1 else q
    out, lse = masked_attention(rows, keys, values, bias, scale=scale, softcap=softcap)
    out = out.to(q.dtype).reshape(batch, heads, nodes, v.shape[-1])
    return out, lse.reshape(batch, heads, nodes)
