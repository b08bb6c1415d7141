"""Tree attention through FlexAttention (arXiv:2412.05496), the "flex" backend.

One fused kernel under a mask modification: blocks of keys that no node sees are skipped, softcap
is a score modification, and nothing of size n by (prefix + n) is stored. Compiling takes seconds.
The whole cache is passed, used or not, so that its shape stays the same as the prefix grows and
nothing is compiled again: its unused slots must hold finite numbers.

On CPU PyTorch's compiled kernel returns no lse ("not supported yet", PyTorch 2.13), so there a
call that needs the lse runs FlexAttention's unfused form: correct, slow, for comparison only.
The compiled CUDA kernel has not been run yet.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention.flex_attention import (
    AuxRequest,
    BlockMask,
    create_block_mask,
    flex_attention,
)

from .context import TreeContext


@functools.cache
def _compiled(device: str) -> Callable[..., Any]:
    # PyTorch 2.13's CPU template emits an undeclared variable under dynamic shapes.
    return torch.compile(flex_attention, dynamic=False if device == "cpu" else None)


def flex_tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    *,
    scale: float,
    softcap: float | None = None,
    window: int | None = None,
    need_lse: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """(out [batch, heads, n, value size], lse [batch, heads, n] or None); arguments are valid."""
    block_mask = context.derive(
        ("flex", window, q.shape[0], k.shape[2], k.device),
        lambda: tree_block_mask(context, q.shape[0], k.shape[2], window, k.device),
    )
    options: dict[str, Any] = {
        "score_mod": None if softcap is None else _softcap(softcap),
        "block_mask": block_mask,
        "scale": scale,
        "enable_gqa": q.shape[1] != k.shape[1],
    }
    compiled = q.is_cuda or not need_lse
    run = _compiled(q.device.type) if compiled else _unfused
    if not need_lse:
        return run(q, k, v, **options), None
    out, aux = run(q, k, v, return_aux=AuxRequest(lse=True), **options)
    return out, aux.lse


def _unfused(q: Tensor, k: Tensor, v: Tensor, **options: Any) -> Any:
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="flex_attention called without torch.compile")
        return flex_attention(q, k, v, **options)


def _softcap(softcap: float) -> Callable[..., Tensor]:
    def cap(score: Tensor, b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        return torch.tanh(score / softcap) * softcap

    return cap


def tree_block_mask(
    context: TreeContext, batch: int, capacity: int, window: int | None, device: torch.device
) -> BlockMask:
    """Block mask [batch, 1, n, capacity] of a pass; its mask modification reads n by n entries."""
    tree = context.host_mask.to(device).expand(batch, -1, -1)
    depths = context.node_depths.to(device).expand(batch, -1)
    lens, starts = (
        torch.tensor(x, device=device).expand(batch) for x in (context.lens, context.starts)
    )
    last = context.width - 1

    def visible(b: Tensor, h: Tensor, q: Tensor, k: Tensor) -> Tensor:
        relative = k - lens[b]
        node = relative.clamp(0, last)
        in_tree = (relative >= 0) & (relative <= last) & tree[b, q, node]
        seen = ((k >= starts[b]) & (relative < 0)) | in_tree
        if window is None:
            return seen
        key_depth = torch.where(relative >= 0, depths[b, node], relative)
        return seen & (depths[b, q] - key_depth < window)

    return create_block_mask(visible, batch, None, context.width, capacity, device=device)
