"""Decoder layers of the Llama family with less around the matrix products, for a packed copy.

A pass of few rows spends almost half its time between the products: dozens of small operations and
module calls per layer. Where a layer is of a kind that is known by its exact class, and its linear
layers are packed, a ``LeanLayer`` over the same weights takes its place in the copy. It computes
the same with fewer operations: queries and keys are rotated together, residuals added in place.
What it has in common with other layers (cache, mask, attention function) is called as transformers
does. A class or function that was patched keeps its layers as they are. The capability check
compares the logits of the copy with the model's, but for windows of more than 64 positions.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from lookahead.kv_cache import CACHE_NAME
from lookahead.packed import PackedLinear, joined

_BLOCK = 256  # rows of a prompt that go through the feed-forward part together
FAMILIES = ("Llama", "Mistral", "Qwen2", "Qwen3")
_PARTS = {
    "self_attn": "Attention",
    "mlp": "MLP",
    "input_layernorm": "RMSNorm",
    "post_attention_layernorm": "RMSNorm",
}


class Rotation:
    """Rotary factors of one pass, made by its first layer and used by all."""

    def __init__(self) -> None:
        self._last: tuple[Any, tuple[Tensor, ...]] | None = None

    def factors(self, embeddings: tuple[Tensor, Tensor]) -> tuple[Tensor, ...]:
        """Cosine, and the sine for either half of a head; [batch, n, 1, head size or half]."""
        last = self._last
        if last is None or last[0] is not embeddings:
            cos, sin = (x.unsqueeze(2) for x in embeddings)
            half = sin.shape[-1] // 2
            last = (embeddings, (cos, -sin[..., :half], sin[..., half:]))
            self._last = last
        return last[1]


def rotate(x: Tensor, factors: tuple[Tensor, ...]) -> Tensor:
    """Rotary embedding of ``x`` [batch, n, heads, d], halves of a head paired."""
    cos, low, high = factors
    half = x.shape[-1] // 2
    out = x * cos
    out[..., :half].addcmul_(x[..., half:], low)
    out[..., half:].addcmul_(x[..., :half], high)
    return out


def normalise(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Root mean square normalisation, in fp32 as the Llama family does it."""
    wide = x.float()
    length = torch.linalg.vector_norm(wide, dim=-1, keepdim=True)
    scale = length.mul_(length).mul_(1 / x.shape[-1]).add_(eps).rsqrt_()
    if x.dtype == torch.float32:
        return (x * scale).mul_(weight)
    return weight * (wide * scale).to(x.dtype)


class LeanLayer(nn.Module):
    """One decoder layer; called like the layer it replaces, for inference."""

    def __init__(self, layer: Any, attend: Callable[..., Any], rotation: Rotation) -> None:
        super().__init__()
        attention = layer.self_attn
        self.self_attn = attention
        self._attend, self._rotation = attend, rotation
        self._size, self._index = attention.head_dim, attention.layer_idx
        self._heads = attention.q_proj.out_features // self._size
        self._key_heads = attention.k_proj.out_features // self._size
        self._features = {"dropout": 0.0, "scaling": attention.scaling, **_window(attention)}
        self._qkv, self._out = _matrix(attention.q_proj), _matrix(attention.o_proj)
        self._gate_up, self._down = _matrix(layer.mlp.gate_proj), _matrix(layer.mlp.down_proj)
        self._inner, self._act = layer.mlp.gate_proj.out_features, layer.mlp.act_fn
        self._norm = _norm(layer.input_layernorm)
        self._norm_after = _norm(layer.post_attention_layernorm)
        self._head_norms = _head_norms(attention)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """``hidden_states`` [batch, n, hidden] -> the same shape."""
        assert position_embeddings is not None
        kwargs.pop("use_cache", None)
        qkv = self._project(hidden_states)
        mixed = self._attended(qkv, position_embeddings, attention_mask, **kwargs)
        return self._feed_forward(self._mix(mixed, hidden_states))

    def _attended(
        self,
        qkv: Tensor,
        embeddings: tuple[Tensor, Tensor],
        mask: Tensor | None,
        **kwargs: Any,
    ) -> Tensor:
        """``qkv`` [batch, n, all heads * d] -> attention's [batch, n, heads * d]."""
        batch, n, _ = qkv.shape
        cache = kwargs.pop(CACHE_NAME, None)
        qkv = qkv.view(batch, n, -1, self._size)
        turned = self._heads + self._key_heads
        qk = rotate(self._normed(qkv)[:, :, :turned], self._rotation.factors(embeddings))
        q, k = qk[:, :, : self._heads].transpose(1, 2), qk[:, :, self._heads :].transpose(1, 2)
        v = qkv[:, :, turned:].transpose(1, 2)
        if cache is not None:
            k, v = cache.update(k, v, self._index)
        return self._attention(q, k, v, mask, **kwargs).reshape(batch, n, -1)

    def _attention(
        self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, **kwargs: Any
    ) -> Tensor:
        """q [batch, heads, n, d], k and v [batch, key heads, keys, d] -> [batch, n, heads, d]."""
        mixed: Tensor
        mixed, _ = self._attend(self.self_attn, q, k, v, mask, **self._features, **kwargs)
        return mixed

    def _normed(self, qkv: Tensor) -> Tensor:
        """Queries and keys normalised by head, in place, where the family does so."""
        for norm, part in self._head_norms:
            qkv[:, :, part] = normalise(qkv[:, :, part], *norm)
        return qkv

    def _project(self, x: Tensor) -> Tensor:
        """Queries, keys and values of all heads, side by side."""
        made: Tensor = self._qkv(normalise(x, *self._norm))
        return made

    def _mix(self, mixed: Tensor, residual: Tensor) -> Tensor:
        made: Tensor = self._out(mixed).add_(residual)
        return made

    def _feed_forward(self, x: Tensor) -> Tensor:
        if x.shape[1] <= _BLOCK:
            return self._feed_forward_block(x)
        # A prompt's inner activations in one piece would be as large as they are new to the caches.
        return torch.cat([self._feed_forward_block(block) for block in x.split(_BLOCK, 1)], 1)

    def _feed_forward_block(self, x: Tensor) -> Tensor:
        gate_up = self._gate_up(normalise(x, *self._norm_after))
        inner = self._act(gate_up[..., : self._inner]) * gate_up[..., self._inner :]
        result: Tensor = self._down(inner).add_(x)
        return result


def _window(attention: Any) -> dict[str, Any]:
    """The sliding window as the layer hands it to the attention function, if it does."""
    name = type(attention).__name__
    if name == "LlamaAttention":
        return {}
    if name == "MistralAttention":
        return {"sliding_window": getattr(attention.config, "sliding_window", None)}
    return {"sliding_window": attention.sliding_window}


def _head_norms(attention: Any) -> list[tuple[tuple[Tensor, float], slice]]:
    if not hasattr(attention, "q_norm"):
        return []
    heads = attention.q_proj.out_features // attention.head_dim
    turned = heads + attention.k_proj.out_features // attention.head_dim
    parts = ((attention.q_norm, slice(0, heads)), (attention.k_norm, slice(heads, turned)))
    return [(_norm(norm), part) for norm, part in parts]


def _norm(norm: Any) -> tuple[Tensor, float]:
    """Weight and epsilon. The alias keeps the weight's memory, whatever becomes of the parameter
    while a pass runs."""
    return norm.weight.detach(), norm.variance_epsilon


def _matrix(linear: PackedLinear) -> nn.Module:
    return linear.joint.matrix


def _known(layer: Any) -> bool:
    """Whether a layer and its parts are of the exact classes of one family, unpatched."""
    for family in FAMILIES:
        name = f"transformers.models.{family.lower()}.modeling_{family.lower()}"
        if (type(layer).__module__, type(layer).__qualname__) == (name, f"{family}DecoderLayer"):
            parts = [(layer, "DecoderLayer")]
            parts += [(getattr(layer, part, None), kind) for part, kind in _PARTS.items()]
            norms = [getattr(layer.self_attn, part, None) for part in ("q_norm", "k_norm")]
            parts += [(norm, "RMSNorm") for norm in norms if norm is not None]
            rotary = getattr(sys.modules[name], "apply_rotary_pos_emb", None)
            unpatched = getattr(rotary, "__module__", None) == name
            return unpatched and all(own_forward(part, name, family + k) for part, k in parts)
    return False


def own_forward(part: Any, module: str, name: str) -> bool:
    """Whether ``part`` is exactly the class of that name, with the forward it came with."""
    forward = getattr(type(part), "forward", None)
    found = (type(part).__module__, type(part).__qualname__)
    source = (getattr(forward, "__module__", None), getattr(forward, "__qualname__", None))
    return found == (module, name) and source == (module, f"{name}.forward")


def _replaceable(layer: Any) -> bool:
    """Whether a layer is of a known kind and its linear layers are packed as needed."""
    if not _known(layer):
        return False
    attention, mlp = layer.self_attn, layer.mlp
    groups = [
        (attention.q_proj, attention.k_proj, attention.v_proj),
        (attention.o_proj,),
        (mlp.gate_proj, mlp.up_proj),
        (mlp.down_proj,),
    ]
    return all(joined(group) for group in groups)


def make_lean(model: Any, make: Callable[..., LeanLayer] = LeanLayer) -> int:
    """Replace decoder layers of a packed copy by what ``make`` makes of them; return how many.

    To be called last: a layer keeps the attention function that is configured now.
    """
    chosen = getattr(model.config, "_attn_implementation", None)
    if chosen is None or chosen not in AttentionInterface():
        return 0
    attend, rotation, count = AttentionInterface()[chosen], Rotation(), 0
    for module in list(model.modules()):
        if not isinstance(module, nn.ModuleList):
            continue
        for index, layer in enumerate(module):
            if _replaceable(layer):
                module[index] = make(layer, attend, rotation)
                count += 1
    return count
