"""Additive masks of a tree pass, one per kind of attention layer.

A node attends to the committed slots of its row, its ancestors and itself. Windows and chunks are
measured in positions, and a node's position is that of the root plus its depth: two siblings share
a position whatever slots they sit in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.tree import TokenTree

FULL, SLIDING, CHUNKED = "full_attention", "sliding_attention", "chunked_attention"


@dataclass(frozen=True)
class LayerKinds:
    """The kinds of attention layers of a model: name -> window or chunk size (0: full)."""

    sizes: dict[str, int]

    @classmethod
    def of(cls, config: object) -> LayerKinds:
        """From a text configuration of transformers. ValueError for a kind that is not known."""
        types = getattr(config, "layer_types", None)
        window = getattr(config, "sliding_window", None)
        chunk = getattr(config, "attention_chunk_size", None)
        if types is None:
            types = [SLIDING if window else CHUNKED if chunk else FULL]
        size = {FULL: 0, SLIDING: window, CHUNKED: chunk}
        kinds = set(types)
        if kinds - set(size) or any(size[kind] is None for kind in kinds):
            raise ValueError(f"layers of kind {', '.join(sorted(kinds))} have no tree mask")
        return cls({kind: int(size[kind] or 0) for kind in sorted(kinds)})

    @property
    def all_full(self) -> bool:
        return set(self.sizes) == {FULL}


class MaskBuilder:
    """Builds the masks of a pass. ``valid`` bool [batch, prompt]: slots of the prompt in use."""

    def __init__(self, kinds: LayerKinds, valid: NDArray[np.bool_], dtype: torch.dtype) -> None:
        self._kinds = kinds
        self._valid = valid
        self._first = valid.argmax(1)  # leftmost valid slot of each row
        self._lowest = torch.finfo(dtype).min
        self._dtype = dtype
        self.plain = bool(valid.all()) and kinds.all_full

    def __call__(
        self,
        trees: Sequence[TokenTree | None],
        starts: Sequence[int],
        lengths: Sequence[int],
        n: int,
        device: torch.device,
    ) -> Tensor | dict[str, Tensor]:
        """Additive masks [batch, 1, n, slots]; a dictionary by kind where kinds are mixed.

        Padding nodes and rows without a tree see slot 0 of the prompt, so that they stay finite.
        """
        slots = max(starts) + n
        first = trees[0]
        if self.plain and len(trees) == 1 and first is not None and len(first) == n:
            mask = torch.zeros((1, 1, n, slots), dtype=self._dtype)
            hidden = torch.from_numpy(~first.mask())
            mask[0, 0, :, starts[0] :].masked_fill_(hidden, self._lowest)
            return mask.to(device)
        masks = {}
        for kind, size in self._kinds.sizes.items():
            allowed = np.zeros((len(trees), n, slots), dtype=np.bool_)
            for row, tree in enumerate(trees):
                allowed[row, :, self._first[row]] = True
                if tree is not None:
                    self._fill(allowed[row], tree, starts[row], lengths[row], row, kind, size)
            additive = torch.from_numpy(np.where(allowed, 0.0, self._lowest)[:, None])
            masks[kind] = additive.to(device=device, dtype=self._dtype)
        return masks if len(masks) > 1 else next(iter(masks.values()))

    def _fill(
        self,
        allowed: NDArray[np.bool_],
        tree: TokenTree,
        start: int,
        length: int,
        row: int,
        kind: str,
        size: int,
    ) -> None:
        nodes = len(tree)
        prompt = min(self._valid.shape[1], length)
        allowed[:nodes, :length] = True
        allowed[:nodes, :prompt] &= self._valid[row, :prompt]
        ancestors = tree.mask()
        allowed[:nodes, start : start + nodes] = ancestors
        if not size:
            return
        depths = np.asarray(tree.depths)
        queries = length + depths[:, None]
        keys = np.arange(length)[None]
        if kind == SLIDING:
            allowed[:nodes, :length] &= queries - keys < size
            allowed[:nodes, start : start + nodes] &= depths[:, None] - depths[None] < size
        else:
            offset = self._first[row]
            chunk = (queries - offset) // size
            allowed[:nodes, :length] &= (keys - offset) // size == chunk
            allowed[:nodes, start : start + nodes] &= chunk == chunk.T
