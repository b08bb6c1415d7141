"""Tree attention for unpatched transformers models, by registration.

    1. register()                                       once per process
    2. model.set_attn_implementation("lookahead")       or attn_implementation= when loading
    3. model(**inputs), model.generate(...)             as with "sdpa": causal kernel, padding mask
    4. model(input_ids=nodes, position_ids=..., **tree_inputs(context))        one tree pass

A tree pass is an ordinary call that carries a `TreeContext` as the keyword `tree_context`; models
built on transformers' attention interface hand such keywords down to the attention function. The
4-D mask beside it keeps the model from building a causal mask; the attention function never reads
it. The cache must return keys with the n tree rows at each batch row's own prefix length.

What a layer adds to plain attention arrives as keywords too, exactly as for transformers' own
FlashAttention integration, which cannot see masks either: `scaling`, `sliding_window`, `softcap`,
`s_aux` (sinks). What this module cannot honour is refused with a ValueError, never ignored.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers import AttentionInterface, AttentionMaskInterface

from .context import TreeContext
from .dense import dense_attention
from .dispatch import attend
from .flash import fold_heads
from .merge import add_sinks
from .select import BACKENDS

NAME = "lookahead"
QUERY_BLOCK = 256  # rows of scores held at once when a prefill needs softcap or sinks


def register(name: str = NAME, *, backend: str = "auto") -> str:
    """Offer tree attention to transformers as `attn_implementation=name`; returns the name.

    Registering the same name again replaces it, so several backends need several names.
    The name must not contain "flash", which transformers reserves for 2-D masks.
    """
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}.")
    if not name or "flash" in name or "|" in name or "/" in name:
        raise ValueError(f"name must be free of 'flash', '|' and '/'; got {name!r}.")
    AttentionInterface.register(name, ModelAttention(backend))
    AttentionMaskInterface.register(name, AttentionMaskInterface()["sdpa"])
    return name


def tree_inputs(context: TreeContext) -> dict[str, Any]:
    """Keyword arguments that turn a model call into a tree pass over `context`."""
    return {"attention_mask": context.tree_mask[:, None], "tree_context": context}


def why_unsupported(model: nn.Module) -> str | None:
    """Why tree passes on `model` would be wrong, in a sentence, or None when nothing is known.

    A model that transformers runs on FlashAttention states all its layers' features as keywords;
    one that does not may hide some in its mask (chunked attention) or in code of its own (ALiBi).
    """
    if not getattr(model, "_supports_flash_attn", False):
        return f"{type(model).__name__} does not support attention without a full mask."
    config = getattr(model, "config", None)
    text = config.get_text_config(decoder=True) if config is not None else None
    if "chunked_attention" in (getattr(text, "layer_types", None) or ()):
        return f"{type(model).__name__} has chunked attention layers."
    return None


@dataclass(frozen=True)
class ModelAttention:
    """Attention function in transformers' calling convention; tree passes run on `backend`."""

    backend: str = "auto"

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        attention_mask: Tensor | None,
        *,
        dropout: float = 0.0,
        scaling: float | None = None,
        tree_context: TreeContext | None = None,
        **features: Any,
    ) -> tuple[Tensor, None]:
        """query [batch, heads, n, d], key and value [batch, key heads, keys, d] ->
        (out [batch, n, heads, d], None)."""
        softcap, sinks = features.get("softcap"), features.get("s_aux")
        if tree_context is not None:
            refuse_unknown(module, dropout, features)
            if sees_all(tree_context, key.shape[2], features.get("sliding_window")):
                # Plain one-token decoding: the very same call, so the very same bits.
                attention_mask, tree_context = None, None
        if tree_context is not None:
            out, _ = attend(
                query,
                key,
                value,
                tree_context,
                scale=scaling,
                softcap=softcap,
                window=features.get("sliding_window"),
                sinks=sinks,
                backend=self.backend,
                need_lse=False,
            )
        elif softcap is None and sinks is None:
            return AttentionInterface()["sdpa"](
                module,
                query,
                key,
                value,
                attention_mask,
                dropout=dropout,
                scaling=scaling,
                **features,
            )
        else:
            if dropout or features.get("position_bias") is not None:
                raise ValueError(
                    "softcap and sinks are not supported together with dropout or a position "
                    "bias: use attn_implementation='eager'."
                )
            causal = features.get("is_causal")
            causal = getattr(module, "is_causal", True) if causal is None else causal
            out = masked_pass(
                query, key, value, attention_mask, causal, scaling, softcap=softcap, sinks=sinks
            )
        return out.transpose(1, 2).contiguous(), None


def sees_all(context: TreeContext, keys: int, window: int | None) -> bool:
    """True for a tree of one node that attends to every key it is given."""
    return (
        context.single
        and context.uniform
        and context.lens[0] + 1 == keys
        and context.starts[0] == 0
        and context.effective(window) is None
    )


def refuse_unknown(module: nn.Module, dropout: float, features: dict[str, Any]) -> None:
    """Raise ValueError for a tree pass whose layer has a feature that would be lost."""
    config = getattr(module, "config", None)
    layer_types = getattr(config, "layer_types", None) or ()
    index = getattr(module, "layer_idx", None)
    kind = layer_types[index] if index is not None and index < len(layer_types) else None
    window = features.get("sliding_window")
    lost = {
        "dropout": dropout > 0,
        "output_attentions": bool(features.get("output_attentions")),
        "position_bias": features.get("position_bias") is not None,
        "a head mask": features.get("head_mask") is not None,
        "bidirectional attention": features.get("is_causal") is False,
        "cross attention": bool(getattr(module, "is_cross_attention", False)),
        "chunked attention": kind == "chunked_attention",
        "a sliding window hidden in the mask": kind == "sliding_attention" and window is None,
    }
    for name, present in lost.items():
        if present:
            raise ValueError(
                f"tree passes do not support {name}: run this model with attn_implementation="
                "'eager' or 'sdpa' and a 4-D mask instead."
            )


def masked_pass(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    mask: Tensor | None,
    causal: bool,
    scaling: float | None,
    *,
    softcap: float | None,
    sinks: Tensor | None,
) -> Tensor:
    """Prefill or plain decoding with softcap or sinks, which SDPA lacks; [batch, heads, n, d].

    The mask is SDPA's: bool (True = attend), additive, or None for causal with n equal to the
    number of keys. Runs over blocks of queries, so scores for all n never exist at once.
    """
    batch, heads, nodes, head_dim = query.shape
    if mask is None and causal and nodes > 1:
        key, value = key[:, :, :nodes], value[:, :, :nodes]
        mask = torch.ones(1, 1, nodes, nodes, dtype=torch.bool, device=query.device).tril()
    group = heads // key.shape[1]
    scale = head_dim**-0.5 if scaling is None else scaling
    blocks = []
    for first in range(0, nodes, QUERY_BLOCK):
        q = query[:, :, first : first + QUERY_BLOCK]
        bias = None
        if mask is not None:
            bias = mask[:, :, first : first + QUERY_BLOCK, : key.shape[2]].repeat(1, 1, group, 1)
            if bias.dtype == torch.bool:
                bias = torch.zeros_like(bias, dtype=torch.float32).masked_fill_(~bias, -torch.inf)
        rows = fold_heads(q, key.shape[1])
        out, lse = dense_attention(rows, key, value, bias, scale=scale, softcap=softcap)
        out = out.reshape(batch, heads, q.shape[2], value.shape[-1])
        if sinks is not None:
            out, _ = add_sinks(out, lse.reshape(batch, heads, q.shape[2]), sinks)
        blocks.append(out.to(query.dtype))
    return torch.cat(blocks, 2)
