"""Lean decoder layers over the compiled kernels: four calls instead of some twenty operations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.integrations.sdpa_attention import sdpa_attention_forward

from lookahead.attention.hf import ModelAttention
from lookahead.kv_cache import CACHE_NAME
from lookahead.lean import LeanLayer, Rotation

from .attention import Heads, attend, causal, fits, geometry, is_prompt
from .build import Kernels
from .layers import Layer, describe_layer
from .matrix import NativeMatrix


class NativeLayer(LeanLayer):
    """A lean layer whose products take normalisation, activation and residuals with them."""

    def __init__(
        self, layer: Any, attend: Callable[..., Any], rotation: Rotation, kernels: Kernels
    ) -> None:
        super().__init__(layer, attend, rotation)
        mlp = layer.mlp
        self._gate_up = NativeMatrix(
            kernels, mlp.gate_proj.weight.detach(), up=mlp.up_proj.weight.detach()
        )
        self._kernels = kernels
        self.heads = Heads(self._heads, self._key_heads, self._size, self._features["scaling"])
        self.hidden, self.inner, self.index = (
            layer.mlp.gate_proj.in_features,
            self._inner,
            self._index,
        )

    @property
    def window(self) -> int | None:
        """The sliding window, if there is one."""
        return self._features.get("sliding_window")

    def described(self) -> Layer:
        """The layer for the kernels; it must outlive what is returned."""
        heads: list[tuple[Tensor | None, float]] = [norm for norm, _ in self._head_norms] or [
            (None, 0.0),
            (None, 0.0),
        ]
        matrices: Any = (self._qkv, self._out, self._gate_up, self._down)
        return describe_layer(matrices, [self._norm, self._norm_after, *heads])

    def _project(self, x: Tensor) -> Tensor:
        made: Tensor = self._qkv(x, self._norm)
        return made

    def _attended(
        self, qkv: Tensor, embeddings: tuple[Tensor, Tensor], mask: Tensor | None, **kwargs: Any
    ) -> Tensor:
        batch, n, _ = qkv.shape
        cache: Any = kwargs.get(CACHE_NAME)
        context = kwargs.get("tree_context")
        where = geometry(cache, batch, n, mask, context, self.window)
        if where is not None:
            layer = cache.layers[self._index]
            keys: Any = getattr(layer, "keys", None)
            values: Any = getattr(layer, "values", None)
            by_head = qkv.view(batch, n, -1, self._size)
            if qkv.is_contiguous() and fits(batch, n, embeddings, keys, values, where, self.heads):
                mixed = attend(
                    self._kernels, self._normed(by_head), embeddings, keys, values, where,
                    self.heads,
                )  # fmt: skip
                return mixed.view(batch, n, -1)
        return super()._attended(qkv, embeddings, mask, **kwargs)

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> Tensor:
        other = False in (kwargs.get("is_causal"), getattr(self.self_attn, "is_causal", True))
        usual = other or kwargs.get("tree_context") is not None
        if usual or not is_prompt(q, k, v, mask, self.window):
            return super()._attention(q, k, v, mask, **kwargs)
        return causal(self._kernels, q, k, v, self._features["scaling"])

    def _mix(self, mixed: Tensor, residual: Tensor) -> Tensor:
        made: Tensor = self._out(mixed, None, residual)
        return made

    def _feed_forward(self, x: Tensor) -> Tensor:
        made: Tensor = self._down(self._gate_up(x, self._norm_after), None, x)
        return made


def layer_maker(kernels: Kernels) -> Callable[..., LeanLayer]:
    """Makes a native layer where a decoder layer allows it, else a lean one.

    An attention function that is neither transformers' for SDPA nor this project's may compute
    anything, so it is called as ever.
    """

    def make(layer: Any, attend: Callable[..., Any], rotation: Rotation) -> LeanLayer:
        known = attend is sdpa_attention_forward or isinstance(attend, ModelAttention)
        if known and _suits(layer):
            return NativeLayer(layer, attend, rotation, kernels)
        return LeanLayer(layer, attend, rotation)

    return make


def _suits(layer: Any) -> bool:
    """fp32 throughout, gated by SiLU without biases, as the kernels have it."""
    mlp = layer.mlp
    heads = [getattr(layer.self_attn, name, None) for name in ("q_norm", "k_norm")]
    norms = [layer.input_layernorm, layer.post_attention_layernorm, *filter(None, heads)]
    weights = [norm.weight for norm in norms]
    plain = mlp.gate_proj.bias is None and mlp.up_proj.bias is None
    return (
        plain
        and type(mlp.act_fn) in (nn.SiLU, type(ACT2FN["silu"]))
        and all(w.dtype == torch.float32 and w.is_contiguous() for w in weights)
        and all(w.device.type == "cpu" for w in weights)
        and isinstance(mlp.down_proj.joint.matrix, NativeMatrix)
        and isinstance(layer.self_attn.o_proj.joint.matrix, NativeMatrix)
        and isinstance(layer.self_attn.q_proj.joint.matrix, NativeMatrix)
    )
