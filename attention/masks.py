"""Which keys each node sees, as bool and as additive masks; built in host memory once per pass."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .context import TreeContext

ALIGN = 16  # CUDA's masked kernels require rows that start at multiples of 16 bytes


class Bias(NamedTuple):
    """Additive mask of a block of keys.

    `bias`: [batch or 1, 1, rows, keys], 0 where visible, -inf where not.
    `dead`: [batch or 1, 1, rows] bool, rows without a visible key; None when there is none.
    """

    bias: Tensor
    dead: Tensor | None


def visible(context: TreeContext, slots: Tensor, window: int | None) -> Tensor:
    """bool [batch or 1, n, m]: which of the given cache slots each node attends to.

    slots: int64 [batch or 1, m] in host memory; a negative slot is never visible.
    """
    lens, starts = (
        torch.tensor(x[:1] if context.uniform else x)[:, None]
        for x in (context.lens, context.starts)
    )
    mask, depths, width = context.host_mask, context.node_depths, context.width
    rows = max(slots.shape[0], lens.shape[0], mask.shape[0], depths.shape[0])
    relative = (slots - lens).expand(rows, -1)
    in_tree = (relative >= 0) & (relative < width)
    column = relative.clamp(0, width - 1)
    gathered = column[:, None].expand(rows, width, column.shape[1])
    tree = mask.expand(rows, -1, -1).gather(2, gathered)
    in_prefix = (slots >= starts) & (relative < 0)
    seen = in_prefix[:, None] | (in_tree[:, None] & tree)
    if window is not None:
        # A key's depth: the node's own in the tree, negative in the prefix.
        key_depth = torch.where(in_tree, depths.expand(rows, -1).gather(1, column), relative)
        seen = seen & (depths[:, :, None] - key_depth[:, None] < window)
    return seen


def visible_range(context: TreeContext, low: int, high: int, window: int | None) -> Tensor:
    """`visible` for the slots low .. high-1; short where rows are alike and nothing is hidden."""
    if context.uniform and window is None and low >= context.starts[0]:
        mask = context.host_mask
        prefix = context.lens[0] - low
        return torch.cat([mask.new_ones(*mask.shape[:2], prefix), mask], 2)
    return visible(context, torch.arange(low, high)[None], window)


def additive(seen: Tensor, group: int, dtype: torch.dtype, device: torch.device) -> Bias:
    """Additive mask for queries whose head group is folded into the rows, on `device`."""
    seen = seen.repeat(1, group, 1)[:, None] if group > 1 else seen[:, None]
    keys = seen.shape[-1]
    bias = torch.zeros(*seen.shape[:-1], -(-keys // ALIGN) * ALIGN, dtype=dtype)
    bias[..., :keys].masked_fill_(~seen, -torch.inf)
    dead = ~seen.any(-1)
    return Bias(bias.to(device)[..., :keys], dead.to(device) if bool(dead.any()) else None)
