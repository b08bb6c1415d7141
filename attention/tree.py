"""Tree attention in two parts, the "flash" backend.

    1. prefix: every node attends to the whole committed prefix, so no mask is needed and a
       FlashAttention kernel does it with the head groups folded into the rows      (flash.py)
    2. block:  the n tree rows, and under a sliding window the few prefix slots that only the
       shallower nodes still see, under a small dense mask                          (flash.py)
    3. merge:  both by log-sum-exp, exactly                                         (merge.py)

No n by (prefix + n) mask and no expanded keys are ever made.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .context import Spans, TreeContext
from .dense import dense_attention
from .flash import (
    Partial,
    fold_heads,
    kvcache_attention,
    kvcache_fits,
    kvcache_kernel,
    masked_attention,
    unmasked_attention,
)
from .masks import Bias, additive, visible, visible_range
from .merge import merge


def split_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    need_lse: bool = True,
    kernel: Callable[..., Any] | None = None,
) -> tuple[Tensor, Tensor | None]:
    """(out [batch, heads, n, value size], lse [batch, heads, n] or None); arguments are valid.

    kernel: a function with the signature of `flash_attn.flash_attn_with_kvcache`, to use for the
    prefix instead of looking for the package.
    """
    batch, heads, nodes, _ = q.shape
    rows = fold_heads(q, k.shape[1])
    spans = context.spans(window)
    if kernel is None and kvcache_fits(q, v):
        kernel = kvcache_kernel()
    lse: Tensor | None
    if context.single and len(spans) == 1:
        keep = slice(spans[0].fringe_start, spans[0].length + 1)
        out, lse = unmasked_attention(
            rows, k[:, :, keep], v[:, :, keep], scale=scale, softcap=softcap
        )
    else:
        out, tree_lse = block_attention(rows, k, v, context, window, scale=scale, softcap=softcap)
        lse = tree_lse
        if any(s.dense_start < s.length for s in spans):
            prefix = prefix_attention(
                rows, k, v, context, window, kernel, scale=scale, softcap=softcap
            )
            out, lse = merge(*prefix, out, tree_lse, need_lse=need_lse)
    out = out.to(q.dtype).reshape(batch, heads, nodes, v.shape[-1])
    return out, None if lse is None else lse.reshape(batch, heads, nodes)


def prefix_attention(
    rows: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    window: int | None,
    kernel: Callable[..., Any] | None,
    *,
    scale: float,
    softcap: float | None,
) -> Partial:
    """Attention over the slots that every node sees; lse -inf for rows that have none."""
    spans = context.spans(window)
    if kernel is not None:
        starts, ends = context.derive(
            ("span tensors", window, rows.shape[0], rows.device),
            lambda: _span_tensors(spans, rows.shape[0], rows.device),
        )
        return kvcache_attention(kernel, rows, k, v, starts, ends, scale=scale, softcap=softcap)
    if len(spans) == 1:
        keep = slice(spans[0].dense_start, spans[0].length)
        return _unrounded(rows, k[:, :, keep], v[:, :, keep], scale=scale, softcap=softcap)
    parts = []
    for b, span in enumerate(spans):
        keep = slice(span.dense_start, span.length)
        q, keys, values = rows[b : b + 1], k[b : b + 1, :, keep], v[b : b + 1, :, keep]
        if span.dense_start < span.length:
            parts.append(_unrounded(q, keys, values, scale=scale, softcap=softcap))
        else:
            wide = torch.float64 if q.dtype == torch.float64 else torch.float32
            nothing = q.new_zeros(*q.shape[:-1], v.shape[-1])
            parts.append((nothing, q.new_full(q.shape[:-1], -torch.inf, dtype=wide)))
    return torch.cat([out for out, _ in parts]), torch.cat([lse for _, lse in parts])


def _unrounded(q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float | None) -> Partial:
    """Unmasked attention whose result is not rounded to 16 bits before the merge.

    Kernels return the dtype of their inputs, and a part can be larger than the whole, so that
    rounding it alone can cost more than all of plain SDPA. On a CPU fp32 inputs avoid that, for a
    copy of the prefix; on a GPU the copy would undo what FlashAttention saves.
    """
    if q.device.type == "cpu" and q.dtype in (torch.float16, torch.bfloat16):
        q, k, v = q.float(), k.float(), v.float()
    return unmasked_attention(q, k, v, scale=scale, softcap=softcap)


def _span_tensors(spans: list[Spans], batch: int, device: torch.device) -> tuple[Tensor, Tensor]:
    every = spans * batch if len(spans) == 1 else spans
    pairs = torch.tensor([(s.dense_start, s.length) for s in every], dtype=torch.int32)
    starts, ends = pairs.to(device).unbind(1)
    return starts.contiguous(), ends.contiguous()


def block_attention(
    rows: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    window: int | None,
    *,
    scale: float,
    softcap: float | None,
) -> Partial:
    """Attention over the tree rows and the window's fringe, masked."""
    group = rows.shape[2] // context.width
    wide = torch.float64 if rows.dtype == torch.float64 else torch.float32
    slots, bias = context.derive(
        ("block", window, group, wide, k.device),
        lambda: _block(context, window, group, wide, k.device),
    )
    keys, values = (_rows_at(x, context, window, slots) for x in (k, v))
    if rows.dtype in (torch.float16, torch.bfloat16):
        # Small, so fp32 costs little, and the prefix's rounding is then the only extra one.
        return dense_attention(rows, keys, values, bias.bias, scale=scale, softcap=softcap)
    return masked_attention(rows, keys, values, bias, scale=scale, softcap=softcap)


def _block(
    context: TreeContext, window: int | None, group: int, dtype: torch.dtype, device: torch.device
) -> tuple[Tensor, Bias]:
    """Cache slots of the block, [batch or 1, m] (unused without a fringe), and its mask."""
    spans = context.spans(window)
    if len(spans) == 1 and spans[0].fringe_start == spans[0].dense_start:
        length = spans[0].length
        seen = visible_range(context, length, length + context.width, window)
        return torch.empty(0), additive(seen, group, dtype, device)
    fringe = max(s.dense_start - s.fringe_start for s in spans)
    slots = torch.full((len(spans), fringe + context.width), -1, dtype=torch.int64)
    for row, span in zip(slots, spans, strict=True):
        width = span.dense_start - span.fringe_start
        row[:width] = torch.arange(span.fringe_start, span.dense_start)
        row[fringe:] = torch.arange(span.length, span.length + context.width)
    bias = additive(visible(context, slots, window), group, dtype, device)
    # Masked or not, what is gathered is multiplied: point padding at a slot that was written.
    written = torch.tensor([span.length for span in spans])[:, None]
    return torch.where(slots < 0, written, slots).to(device), bias


def _rows_at(x: Tensor, context: TreeContext, window: int | None, slots: Tensor) -> Tensor:
    """Rows of the cache [batch, key heads, capacity, d] at `slots`; a view where possible."""
    spans = context.spans(window)
    if len(spans) > 1:
        index = slots[:, None, :, None]
        return x.gather(2, index.expand(-1, x.shape[1], -1, x.shape[3]))
    fringe, dense, length = spans[0]
    if fringe == dense:
        return x[:, :, length : length + context.width]
    if dense == length:
        return x[:, :, fringe : length + context.width]
    return torch.cat([x[:, :, fringe:dense], x[:, :, length : length + context.width]], 2)
