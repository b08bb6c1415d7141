"""Tiny random models of the types whose attention differs, and an oracle for tree passes."""

from __future__ import annotations

import inspect
from typing import Any

import torch
import transformers
from torch import Tensor

COMMON: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.35,
    "bos_token_id": 1,
    "eos_token_id": None,
    "pad_token_id": 0,
}
CONFIGS: dict[str, dict[str, Any]] = {
    "LlamaConfig": {},
    "Qwen2Config": {"use_sliding_window": True, "sliding_window": 7, "max_window_layers": 1},
    "MistralConfig": {"sliding_window": 6},
    "Gemma2Config": {
        "sliding_window": 5,
        "attn_logit_softcapping": 2.0,
        "final_logit_softcapping": 20.0,
        "query_pre_attn_scalar": 6,
    },
    "GPT2Config": {},
    "GptOssConfig": {"sliding_window": 6, "num_local_experts": 2, "num_experts_per_tok": 1},
}
# The stock implementation that has every feature of the model.
STOCK = {"Gemma2Config": "eager", "GptOssConfig": "eager"}


def tiny_model(name: str, implementation: str, seed: int = 0) -> Any:
    """fp32 model of config class `name` with random weights that follow from the seed."""
    options = {**COMMON, **CONFIGS[name]}
    if name == "GPT2Config":
        options = {
            "vocab_size": 64,
            "n_embd": 32,
            "n_head": 4,
            "n_layer": 3,
            "n_positions": 512,
            "initializer_range": 0.35,
            "bos_token_id": 1,
            "eos_token_id": None,
            "pad_token_id": 0,
        }
    config = getattr(transformers, name)(**options)
    torch.manual_seed(seed)
    model = transformers.AutoModelForCausalLM.from_config(
        config, attn_implementation=implementation, dtype=torch.float32
    )
    for module in model.modules():
        if getattr(module, "sinks", None) is not None:
            torch.nn.init.normal_(module.sinks)
    model.generation_config.eos_token_id = None
    return model.eval()


def cached(cache: Any) -> dict[str, Any]:
    """Keyword arguments that give `cache` to a model; transformers 5.2x renamed the keyword."""
    known = inspect.signature(transformers.LlamaForCausalLM.forward).parameters
    return {"cache" if "cache" in known else "past_key_values": cache, "use_cache": True}


def keep_rows(cache: Any, length: int, path: list[int]) -> None:
    """Keep the first `length` slots and, of the tree rows behind them, those on `path`."""
    index = torch.tensor([*range(length), *(length + node for node in path)])
    for layer in cache.layers:
        layer.keys = layer.keys.index_select(2, index)
        layer.values = layer.values.index_select(2, index)


def next_logits(model: Any, ids: Tensor) -> Tensor:
    """Logits after each row of ids [rows, length], without a cache."""
    return model(ids, use_cache=False).logits[:, -1]
