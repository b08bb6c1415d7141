"""Tiny random models of the named types, whose greedy text varies and never ends by itself."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import torch
import transformers
from torch import Tensor

VOCABULARY = 97
# transformers 5.24 has renamed the keyword and warns about the old name.
_KNOWN = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
CACHE = "cache" if "cache" in _KNOWN else "past_key_values"

_ROPE: dict[str, Any] = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
_TYPES: dict[str, dict[str, Any]] = {
    "Llama": _ROPE,
    "Mistral": {**_ROPE, "sliding_window": None},
    "Qwen2": _ROPE,
    "Qwen3": _ROPE,
    "Gemma": _ROPE,
    "Phi": {**{k: v for k, v in _ROPE.items() if k != "head_dim"}, "num_key_value_heads": 4},
    "GPT2": {"n_embd": 32, "n_head": 4, "n_layer": 2},
    "GPTNeoX": {k: v for k, v in _ROPE.items() if k not in ("head_dim", "num_key_value_heads")},
    "OPT": {
        "hidden_size": 32,
        "word_embed_proj_dim": 32,
        "ffn_dim": 48,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
    },
}
TYPES = tuple(_TYPES)


def build(kind: str, seed: int = 0, **options: Any) -> Any:
    """A new fp32 model of a type, its weights from the seed. ``options`` go to its config."""
    length = "n_positions" if kind == "GPT2" else "max_position_embeddings"
    scale = "init_std" if kind == "OPT" else "initializer_range"
    config = getattr(transformers, kind + "Config")(
        **{
            "vocab_size": VOCABULARY,
            length: 256,
            scale: 0.3,
            "tie_word_embeddings": False,
            "bos_token_id": 1,
            "eos_token_id": None,
            "pad_token_id": 0,
            **_TYPES.get(kind, {}),
            **options,
        }
    )
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32).eval()
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    return model


@cache
def tiny(kind: str = "Llama", seed: int = 0) -> Any:
    """`build`, made once; tests leave it as it is."""
    return build(kind, seed)


def prompt(length: int = 6, seed: int = 1) -> Tensor:
    """A random prompt without special tokens, int64 [1, length]."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(2, VOCABULARY, (1, length), generator=draw)


def continuation(model: Any, ids: Tensor, **arguments: Any) -> list[int]:
    """The tokens plain decoding writes after one prompt."""
    out = model.generate(ids, **arguments)
    tokens: list[int] = out[0, ids.shape[1] :].tolist()
    return tokens
