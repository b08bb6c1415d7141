"""A whole pass over trees without the model's own code around the layers.

Around one call that runs all layers, transformers' forward functions take as long as a tenth of a
pass: masks, caches and arguments are looked at again and again. For models that are known by their
exact classes a ``DirectPass`` does what those functions do: embedding, rotary angles, layers, last
norm, readout. Everything else runs through the model.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from lookahead.kv_cache import TreeCache
from lookahead.lean import FAMILIES, own_forward
from lookahead.packed import PackedLinear

from .attention import Geometry
from .matrix import NativeMatrix, Norm
from .stack import NativeStack

_FIXED_ANGLES = ("default", "linear", "llama3", "yarn")  # the others look at the longest position
_ANGLES_AHEAD = 1024  # positions


class Angles:
    """Cosine and sine by position, as the model's own module makes them, for a stretch of
    positions."""

    def __init__(self, rotary: nn.Module) -> None:
        self._rotary = rotary
        self._first, self._end = 0, 0
        self._made: tuple[Tensor, Tensor]

    def at(self, positions: NDArray[np.int64]) -> tuple[Tensor, Tensor]:
        """Factors [batch, n, d] for ``positions`` [batch, n]."""
        low, high = int(positions.min()), int(positions.max())
        if low < self._first or high >= self._end:
            self._first, self._end = low, high + _ANGLES_AHEAD
            stretch = torch.arange(self._first, self._end, device="cpu")[None]
            like = torch.zeros((), dtype=torch.float32, device="cpu")
            cos, sin = self._rotary(like, stretch)
            self._made = cos[0], sin[0]
        at = torch.from_numpy((positions - self._first).reshape(-1))
        cos, sin = (x.index_select(0, at).view(*positions.shape, -1) for x in self._made)
        return cos, sin


class DirectPass:
    """Logits of trees from a copy of a model whose layers are one ``NativeStack``."""

    def __init__(
        self, embedding: Tensor, angles: Angles, stack: NativeStack, norm: Norm, head: NativeMatrix
    ) -> None:
        self._embedding, self._angles = embedding, angles
        self._stack, self._norm, self._head = stack, norm, head

    def __call__(
        self, cache: TreeCache, tokens: NDArray[np.int64], positions: NDArray[np.int64],
        starts: NDArray[np.int64], mask: NDArray[np.bool_],
    ) -> Tensor | None:  # fmt: skip
        """Logits [batch, n, vocabulary], or None where the pass must go through the model.

        ``tokens``, ``positions`` [batch, n]; ``starts`` [batch]: the first slot of a row that is no
        padding; ``mask`` [batch, n, n]: whether a node attends to another one. The trees are
        written behind the slots that the cache holds.
        """
        window = self._stack.window
        if cache.static is not None or cache.starts != cache.lengths:
            return None
        if window is not None and max(cache.lengths) + tokens.shape[1] > window:
            return None
        where = Geometry(starts, np.array(cache.lengths, dtype=np.int64), mask.view(np.uint8))
        x = self._embedding.index_select(0, torch.from_numpy(tokens.reshape(-1)))
        x = x.view(*tokens.shape, -1)
        if self._stack.run(x, cache, where, self._angles.at(positions)) is None:
            return None
        return self._head.forward(x, self._norm)


def direct_pass(model: Any) -> DirectPass | None:
    """A direct pass for a copy of a model whose classes and forward functions are known."""
    for family in FAMILIES:
        name = f"transformers.models.{family.lower()}.modeling_{family.lower()}"
        if own_forward(model, name, f"{family}ForCausalLM"):
            return _of_family(model, name, family)
    return None


def _of_family(model: Any, name: str, family: str) -> DirectPass | None:
    body = model.model
    kinds = [(body, "Model"), (body.norm, "RMSNorm"), (body.rotary_emb, "RotaryEmbedding")]
    if not all(own_forward(part, name, family + kind) for part, kind in kinds):
        return None
    head = model.lm_head.joint if isinstance(model.lm_head, PackedLinear) else None
    stack, embedding = body.layers[0], body.embed_tokens
    if head is None or head.count != 1 or not isinstance(head.matrix, NativeMatrix):
        return None
    if not isinstance(stack, NativeStack) or len(body.layers) != 1 or not _plain(embedding):
        return None
    norm = Norm(body.norm.weight.detach(), body.norm.variance_epsilon)
    if body.rotary_emb.rope_type not in _FIXED_ANGLES or norm.weight.dtype != torch.float32:
        return None
    weight = embedding.weight.detach()
    return DirectPass(weight, Angles(body.rotary_emb), stack, norm, head.matrix)


def _plain(embedding: Any) -> bool:
    """Whether an embedding only looks up rows of fp32 on a CPU."""
    return (
        type(embedding) is nn.Embedding
        and nn.Embedding.forward.__module__ == nn.Embedding.__module__
        and embedding.max_norm is None
        and embedding.weight.dtype == torch.float32
        and embedding.weight.device.type == "cpu"
    )
