"""All decoder layers of a pass over trees in one call of the kernels.

Between two small products, Python takes as long as a product does. Where every layer is a native
one of the same shape, the copy's list of layers becomes one ``NativeStack``. Other passes (a
prompt, a window that hides something) go through the layers one by one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lookahead.kv_cache import CACHE_NAME, TreeCache

from .attention import Geometry, describe, fits, geometry
from .build import Kernels
from .layer import NativeLayer
from .layers import Layer, run_layers


class NativeStack(nn.Module):
    """Layers 0, 1, ... of a model; called like one layer."""

    def __init__(self, layers: Sequence[NativeLayer], kernels: Kernels) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)
        self._kernels = kernels
        self._described = (Layer * len(layers))(*(layer.described() for layer in layers))
        # All layers are alike. Looking up a module takes Python as long as a small operation.
        first = layers[0]
        self.window, self._heads = first.window, first.heads
        self._count, self._hidden, self._inner = len(layers), first.hidden, first.inner

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """``hidden_states`` [batch, n, hidden] -> the same shape."""
        assert position_embeddings is not None
        made = self._at_once(hidden_states, attention_mask, position_embeddings, **kwargs)
        if made is not None:
            return made
        for layer in self.layers:
            hidden_states = layer(hidden_states, attention_mask, position_embeddings, **kwargs)
        return hidden_states

    def _at_once(
        self, x: Tensor, mask: Tensor | None, embeddings: tuple[Tensor, Tensor], **kwargs: Any
    ) -> Tensor | None:
        """What the layers compute, or None where the kernel does not apply."""
        batch, n, _ = x.shape
        cache = kwargs.get(CACHE_NAME)
        where = geometry(cache, batch, n, mask, kwargs.get("tree_context"), self.window)
        if where is None or not isinstance(cache, TreeCache) or x.dtype != torch.float32:
            return None
        return self.run(x.clone(memory_format=torch.contiguous_format), cache, where, embeddings)

    def run(
        self, x: Tensor, cache: TreeCache, where: Geometry, embeddings: tuple[Tensor, Tensor]
    ) -> Tensor | None:
        """All layers over ``x`` [batch, n, hidden], contiguous and fp32, in place; None where the
        cache is not of the kernel's kind. ``embeddings``: cosine and sine [batch or 1, n, d]."""
        batch, n, hidden = x.shape
        keys, values = cache.all_layers(self._count)
        if keys is None or values is None:
            return None
        if keys.stride(0) != values.stride(0) or hidden != self._hidden:
            return None
        if not fits(batch, n, embeddings, keys[0], values[0], where, self._heads):
            return None
        turns = embeddings[0].contiguous(), embeddings[1].contiguous()
        described = describe(turns, keys[0], where, self._heads, n)
        run_layers(self._kernels, described, self._described, self._inner, x, keys, values)
        return x


def fuse_layers(model: nn.Module, kernels: Kernels, count: int | None) -> None:
    """Put the decoder layers of a copy into one stack, if all ``count`` are native and alike."""
    for module in list(model.modules()):
        if not isinstance(module, nn.ModuleList) or len(module) == 0:
            continue
        layers = [layer for layer in module if isinstance(layer, NativeLayer)]
        if len(layers) == len(module) == count and _alike(layers):
            stack = NativeStack(layers, kernels)
            del module[:]
            module.append(stack)


def _alike(layers: Sequence[NativeLayer]) -> bool:
    """Whether layers have the same shape and window, and are numbered from 0."""
    shapes = {(layer.heads, layer.inner, layer.window) for layer in layers}
    return len(shapes) == 1 and [layer.index for layer in layers] == list(range(len(layers)))
