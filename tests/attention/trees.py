"""Trees, caches and inputs for the attention tests; everything follows from a seed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

SHAPES = ("chain", "star", "bushy", "window")


def parents_of(shape: str, nodes: int, generator: torch.Generator) -> list[int]:
    """Parent of each node, -1 for the root; a parent always comes first.

    "window" is the lookahead window (arXiv:2402.02057): level 0 is a chain, node i of every
    further level hangs below node i of the level before.
    """
    if shape == "chain":
        return list(range(-1, nodes - 1))
    if shape == "star":
        return [-1] + [0] * (nodes - 1)
    if shape == "window":
        columns = max(1, nodes // 3)
        return [i - 1 if i < columns else i - columns for i in range(nodes)]
    draws = torch.rand(nodes, generator=generator).tolist()
    return [-1] + [int(draws[i] * i) for i in range(1, nodes)]


def ancestor_mask(parents: list[int]) -> Tensor:
    """bool [n, n]: row i is True at i and at every ancestor of i."""
    mask = torch.zeros(len(parents), len(parents), dtype=torch.bool)
    for node, parent in enumerate(parents):
        if parent >= 0:
            mask[node] = mask[parent]
        mask[node, node] = True
    return mask


@dataclass(frozen=True)
class Case:
    """Inputs of one pass over a batch of trees."""

    q: Tensor = field(repr=False)
    k: Tensor = field(repr=False)
    v: Tensor = field(repr=False)
    prefix_lens: tuple[int, ...]
    tree_mask: Tensor = field(repr=False)
    prefix_starts: tuple[int, ...]

    def arguments(self) -> dict[str, Any]:
        return {
            "prefix_lens": self.prefix_lens,
            "tree_mask": self.tree_mask,
            "prefix_starts": self.prefix_starts,
        }


def make_case(
    *,
    seed: int = 0,
    nodes: int = 6,
    shapes: tuple[str, ...] = ("bushy",),
    prefix_lens: tuple[int, ...] = (20,),
    prefix_starts: tuple[int, ...] = (0,),
    heads: tuple[int, int] = (4, 2),
    head_dim: int = 32,
    dtype: torch.dtype = torch.float32,
    spare: int = 5,
    padding: int = 0,
    device: str = "cpu",
) -> Case:
    """One tree per entry of `shapes` (batch row); the last `padding` nodes are padding rows.

    The cache is laid out as models hand it over: queries transposed from [batch, n, heads, d],
    keys with slots behind the tree that hold huge numbers, so that reading them shows.
    """
    generator = torch.Generator().manual_seed(seed)
    batch = len(prefix_lens)
    trees = []
    for shape in shapes:
        mask = ancestor_mask(parents_of(shape, nodes, generator))
        if padding:
            mask[-padding:] = False
        trees.append(mask)
    used = max(prefix_lens) + nodes
    q = torch.randn(batch, nodes, heads[0], head_dim, generator=generator).transpose(1, 2)
    k, v = (
        torch.randn(batch, heads[1], used + spare, head_dim, generator=generator) for _ in range(2)
    )
    for row, length in enumerate(prefix_lens):
        k[row, :, length + nodes :] = v[row, :, length + nodes :] = 1e4
    q, k, v = (x.to(device=device, dtype=dtype) for x in (q, k, v))
    return Case(q, k, v, prefix_lens, torch.stack(trees).to(device), prefix_starts)


def joined_attention(case: Case, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Plain SDPA over the joined keys under a 4-D bool mask, in two shapes: keys expanded to all
    heads, and heads folded into rows. Equal up to rounding; BLAS picks other code for other shapes
    and the rounding error of the two can differ severalfold."""
    group, key_heads = case.q.shape[1] // case.k.shape[1], case.k.shape[1]
    attention = torch.nn.functional.scaled_dot_product_attention
    k, v = (x[:, :, : mask.shape[-1]] for x in (case.k, case.v))
    wide_k, wide_v = (x.repeat_interleave(group, 1) for x in (k, v))
    expanded = attention(case.q, wide_k, wide_v, attn_mask=mask[:, None])
    rows = case.q.reshape(case.q.shape[0], key_heads, -1, case.q.shape[-1])
    folded = attention(rows, k, v, attn_mask=mask.repeat(1, group, 1)[:, None])
    return expanded, folded.reshape(case.q.shape)
