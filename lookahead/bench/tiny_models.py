"""A tiny random model of every causal language model class that transformers registers.

A class is shrunk by the names of its configuration's fields, nested configurations included; what
does not fit a class is put right in ``EXCEPTIONS``. Weights are drawn wider than usual, so that
random logits differ clearly and greedy text does not fall into one token at once.
"""

from __future__ import annotations

from typing import Any

import torch
from transformers import CONFIG_MAPPING, AutoModelForCausalLM
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

VOCABULARY = 128
WINDOW = 8
CONTEXT = 128
_LAYERS = 4
_EXPERTS = 4
_HIDDEN = 32
_HEADS = 4
_HEAD = 8

_GROUPS: list[tuple[int, str]] = [
    (
        VOCABULARY,
        "vocab_size vocab_size_per_layer_input unpadded_vocab_size decoder_vocab_size "
        "audio_vocab_size",
    ),
    (
        _HIDDEN,
        "hidden_size d_model n_embd embedding_dim emb_dim embedding_size "
        "attention_hidden_size word_embed_proj_dim lru_width input_embedding_size "
        "output_embedding_size embed_dim hidden_size_global out_hidden_size "
        "backbone_hidden_size",
    ),
    (
        64,
        "intermediate_size ffn_dim d_ff dff dim_ff decoder_ffn_dim encoder_ffn_dim "
        "ffn_hidden_size feed_forward_size d_inner dense_intermediate_size "
        "intermediate_size_mlp shared_intermediate_size",
    ),
    (
        32,
        "moe_intermediate_size shared_expert_intermediate_size expert_ffn_hidden_size "
        "shared_experts_intermediate_size moe_shared_expert_intermediate_size",
    ),
    (
        _LAYERS,
        "num_hidden_layers n_layer n_layers num_layers decoder_layers num_decoder_layers "
        "num_blocks encoder_layers num_encoder_layers",
    ),
    (1, "depth conf_num_hidden_layers num_global_layers"),
    (
        _HEADS,
        "num_attention_heads n_head n_heads num_heads attention_heads "
        "decoder_attention_heads encoder_attention_heads num_encoder_attention_heads "
        "num_decoder_attention_heads swa_num_attention_heads conf_num_attention_heads",
    ),
    (2, "num_key_value_heads swa_num_key_value_heads num_kv_heads kv_n_heads"),
    (
        _HEAD,
        "head_dim kv_channels d_head d_kv attention_head_size dim_head swa_head_dim "
        "global_head_dim linear_head_dim linear_key_head_dim linear_value_head_dim "
        "v_head_dim qk_nope_head_dim mamba_d_head mamba_head_dim index_head_dim",
    ),
    (4, "qk_rope_head_dim rotary_dim laurel_rank d_rel"),
    (16, "kv_lora_rank q_lora_rank o_lora_rank"),
    (
        _EXPERTS,
        "num_experts n_routed_experts num_local_experts moe_num_experts zero_expert_num",
    ),
    (2, "num_experts_per_tok num_experts_per_token moe_topk moe_top_k moe_k"),
    (
        1,
        "n_group topk_group num_expert_group first_k_dense_replace n_groups "
        "mamba_n_groups mamba_ngroups num_dense_layers moe_layer_start_index",
    ),
    (
        2,
        "linear_num_key_heads linear_num_value_heads linear_num_heads index_n_heads",
    ),
    (
        WINDOW,
        "sliding_window sliding_window_size attention_window_size window_size "
        "local_attention attention_chunk_size keep_window_size",
    ),
    (
        CONTEXT,
        "max_position_embeddings n_positions n_ctx max_seq_len max_target_positions "
        "context_length model_max_length",
    ),
    (8, "mamba_d_state state_size ssm_state_size"),
    (4, "chunk_size mamba_chunk_size"),
    (8, "mamba_n_heads mamba_num_heads n_mamba_heads"),
    (_HEAD + 4, "qk_head_dim"),
    (16, "index_topk"),
    (8, "hidden_size_per_layer_input"),
    (_HEAD, "query_pre_attn_scalar"),
    (2, "num_kv_shared_layers"),
    (_LAYERS - 1, "moe_layer_end_index"),
    (28, "image_size"),
    (14, "patch_size"),
    (4, "time_step_rank"),
    (4, "mamba_dt_rank"),
]
_SIZES = {name: size for size, names in _GROUPS for name in names.split()}

_MAMBA2 = {"mamba_n_heads": 8, "mamba_d_head": 8, "mamba_d_ssm": 64}
_HYBRID = ["linear_attention", "hybrid", "linear_attention", "hybrid"]
_MIXED = ["sliding_attention", "full_attention"] * 2
_QSA = {
    "indexer_n_heads": 2,
    "indexer_kv_heads": 1,
    "indexer_head_dim": _HEAD,
    "indexer_budget": 16,
    "indexer_compress_ratio": 4,
}

_PER_LAYER = {
    str(layer): {
        "num_attention_heads": _HEADS,
        "num_key_value_heads": _HEADS,
        "q_lora_rank": 16,
        "kv_lora_rank": 16,
        "head_dim": 12,
        "qk_nope_head_dim": 8,
        "v_head_dim": 8,
        "qk_rope_head_dim": 4,
    }
    for layer in (2, 3)
}

EXCEPTIONS: dict[str, dict[str, Any]] = {
    "bamba": {**_MAMBA2, "attn_layer_indices": [1, 3]},
    "cohere_compass_text": {
        "layer_types": _MIXED,
        "rope_parameters": {
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
            "full_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    },
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "kv_n_heads": 2, "clip_qkv": 8.0}},
    "deepseek_v2": {"num_experts_per_tok": 2},
    "dory": {
        "num_hidden_layers": 8,
        "n_input_layers": 2,
        "n_recurrent_layers": 4,
        "n_output_layers": 2,
    },
    "dots1": {"n_routed_experts": 4, "n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note_text": {"per_layer_config": _PER_LAYER},
    "dots3_note": {
        "text_config": {"per_layer_config": _PER_LAYER},
        "vision_config": {
            "adapter_in_dim": _HIDDEN,
            "adapter_out_dim": _HIDDEN,
            "mlp_layer_types": ["dense"],
            "num_hidden_layers": 1,
        },
        "audio_config": {
            "adapter_input_size": _HIDDEN,
            "adapter_out_dim": _HIDDEN,
            "downsample_hidden_size": 8,
        },
    },
    "falcon_h1": _MAMBA2,
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granitemoehybrid": {
        **_MAMBA2,
        "layer_types": ["linear_attention", "full_attention"] * 2,
    },
    "hunyuan_v1_dense": {"head_dim": _HEAD},
    "hunyuan_v1_moe": {"head_dim": _HEAD},
    "hrm_text": {"num_hidden_layers": 2, "num_layers_per_stack": None, "layer_types": None},
    "jamba": {"attn_layer_period": 2, "attn_layer_offset": 1},
    "lfm2": {"layer_types": ["conv", "full_attention"] * 2, "full_attn_idxs": [1, 3]},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"] * 2},
    "mamba2": {"num_heads": 8},
    "ministral": {"head_dim": _HEAD, "layer_types": _MIXED},
    "nemotron": {"num_key_value_heads": 2},
    "qwen4_exp": {"text_config": _QSA},
    "qwen4_exp_text": _QSA,
    "reformer": {
        "axial_pos_embds": False,
        "attn_layers": ["local", "lsh"],
        "num_buckets": 4,
        "hidden_size": 32,
    },
    "xlstm": {"hidden_size": 128, "embedding_dim": 128},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"layers_block_type": _HYBRID, "attention_hidden_size": 64, "attention_head_dim": 16},
    "zamba2": {"layers_block_type": _HYBRID, "attention_head_dim": 16, "attention_hidden_size": 64},
    "zaya": {"num_experts_per_tok": 1},
}
"""What shrinking by field names gets wrong, by model type."""


def causal_lm_types() -> list[str]:
    """Every model type that AutoModelForCausalLM knows, in alphabetical order."""
    return sorted(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)


def tiny_config(model_type: str) -> Any:
    """A configuration of a few thousand parameters. Raises what the configuration class raises."""
    config_class = CONFIG_MAPPING[model_type]
    changes = {**EXCEPTIONS.get(model_type, {})}
    start = changes.pop("_start", {})
    return config_class(**_shrunk(config_class(**start), changes))


def _shrunk(config: Any, exceptions: dict[str, Any]) -> dict[str, Any]:
    """Keyword arguments that make a small configuration of the same class."""
    nested = {**config.sub_configs}
    renamed = {**config.attribute_map}
    values: dict[str, Any] = {}
    known = config.to_dict()
    for name, value in known.items():
        inner: Any = getattr(config, name, None) if name in nested else None
        if hasattr(inner, "to_dict"):
            changes = exceptions.get(name, {})
            values[name] = _shrunk(inner, changes) | {"model_type": inner.model_type}
        elif name.endswith("token_id") or name.endswith("token_index"):
            values[name] = _token(name, value)
        elif name in _SIZES and _is_size(value):
            values[name] = _SIZES[name]
    for name, original in renamed.items():  # a field under its common name
        if name in _SIZES and original in known and _is_size(known[original]):
            values.setdefault(original, _SIZES[name])
    if "qk_rope_head_dim" in values:  # latent attention: every head has its own keys
        heads = {"num_key_value_heads": _HEADS, "head_dim": values["qk_rope_head_dim"]}
        values.update({name: size for name, size in heads.items() if name in values})
    if "is_decoder" in known:
        values["is_decoder"] = True
    if "initializer_range" in known:
        values["initializer_range"] = 0.2
    layers = exceptions.get("num_hidden_layers", _LAYERS)
    for name in ("layer_types", "mlp_layer_types", "layers_block_type", "indexer_types"):
        kinds = known.get(name)
        if isinstance(kinds, list) and kinds:
            values[name] = _some_of_each(kinds, layers)
    flat = {name: value for name, value in exceptions.items() if name not in nested}
    return {**values, **flat}


def _is_size(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _token(name: str, value: Any) -> Any:
    if value is None or name.startswith(("eos", "forced", "begin")):
        return None
    order = {"pad": 0, "bos": 1, "decoder_start": 2}
    for begin, token in order.items():
        if name.startswith(begin):
            return token
    return VOCABULARY - 1 - sum(map(ord, name)) % 9


def _some_of_each(kinds: list[str], layers: int) -> list[str]:
    """The first kinds of a list, or each kind in turn where some would be missing."""
    first = kinds[:layers]
    if set(first) == set(kinds) and len(first) == layers:
        return first
    distinct = list(dict.fromkeys(kinds))
    return [distinct[i % len(distinct)] for i in range(layers)]


def tiny_model(model_type: str, seed: int = 0, **changes: Any) -> Any:
    """A random fp32 model in evaluation mode, without EOS. Draws from a generator of its own."""
    config = tiny_config(model_type)
    for name, value in changes.items():
        setattr(config, name, value)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        widen(model)
    model.generation_config.eos_token_id = None
    model.generation_config.pad_token_id = 0
    model.generation_config.use_cache = True
    return model.eval()


def widen(model: Any) -> None:
    """Give matrices whose values are all close to zero a spread that shows in the logits."""
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.dim() >= 2 and parameter.std() < 0.1 and not parameter.isnan().any():
                parameter.normal_(0.0, 0.2)
