"""Lets transformers prepare a call, and takes it over just before decoding would start."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor
from transformers.generation import StopStringCriteria
from transformers.generation.stopping_criteria import StoppingCriteriaList

from lookahead.handover import config_reason, inputs_reason

_NOT_CONFIG = frozenset(
    {
        "assistant_model",
        "custom_generate",
        "generation_config",
        "inputs",
        "logits_processor",
        "negative_prompt_attention_mask",
        "negative_prompt_ids",
        "prefix_allowed_tokens_fn",
        "stopping_criteria",
        "streamer",
        "synced_gpus",
        "tokenizer",
        "trust_remote_code",
    }
)


@dataclass
class Prepared:
    """A call as transformers prepared it for a decoding method."""

    input_ids: Tensor
    logits_processor: Any
    stopping_criteria: Any
    generation_config: Any
    model_kwargs: dict[str, Any]


def capture(
    model: Any, input_ids: Tensor, logits_processor: Any, stopping_criteria: Any,
    generation_config: Any, **model_kwargs: Any,
) -> Prepared:  # fmt: skip
    """A decoding method for ``custom_generate`` that decodes nothing and returns what it got."""
    return Prepared(input_ids, logits_processor, stopping_criteria, generation_config, model_kwargs)


def early_reason(model: Any, kwargs: dict[str, Any]) -> str:
    """Why a call is decoded plainly, as far as its arguments tell; else an empty string."""
    if kwargs.get("custom_generate") is not None:
        return "custom_generate is another decoding method"
    known = {name: kwargs[name] for name in kwargs if name not in _NOT_CONFIG}
    config, _ = model._prepare_generation_config(kwargs.get("generation_config"), **known)
    return config_reason(config, kwargs.get("assistant_model")) or inputs_reason(
        {name: kwargs.get(name) for name in ("inputs_embeds", "synced_gpus")}
    )


def prepare(model: Any, inputs: Tensor | None, kwargs: dict[str, Any], tokenizer: Any) -> Prepared:
    """Run the preparation of ``model.generate`` on its arguments.

    Stop strings are made a criterion here, because transformers keeps the tokenizer from a custom
    decoding method. Raises ValueError for an empty prompt and for stop strings without tokenizer.
    """
    kwargs = dict(kwargs)
    kwargs.pop("streamer", None)  # shown the prompt when it is certain who decodes
    tokenizer = kwargs.pop("tokenizer", None) or tokenizer
    stops = stop_strings(model, kwargs)
    kwargs.pop("stop_strings", None)
    if stops:
        if tokenizer is None:
            raise ValueError("stop_strings need a tokenizer: pass tokenizer= to wrap or generate")
        given = StoppingCriteriaList(kwargs.pop("stopping_criteria", None) or [])
        given.append(StopStringCriteria(stop_strings=stops, tokenizer=tokenizer))
        kwargs["stopping_criteria"] = given
        kwargs["stop_strings"] = None
    check_prompt(inputs if inputs is not None else kwargs.get("input_ids"))
    prepared: Prepared = model.generate(inputs, custom_generate=capture, **kwargs)
    return prepared


def stop_strings(model: Any, kwargs: dict[str, Any]) -> Any:
    """Stop strings of a call, from its arguments or its configuration."""
    config = kwargs.get("generation_config") or model.generation_config
    return kwargs.get("stop_strings") or getattr(config, "stop_strings", None)


def needs_tokenizer(model: Any, kwargs: dict[str, Any]) -> bool:
    """Whether ``model.generate`` needs the tokenizer for such a call."""
    config = kwargs.get("generation_config") or model.generation_config
    healing = kwargs.get("token_healing") or getattr(config, "token_healing", False)
    return bool(healing or stop_strings(model, kwargs))


def check_prompt(ids: Any) -> None:
    """Raise ValueError for a prompt without tokens."""
    if isinstance(ids, Tensor) and ids.dim() == 2 and ids.shape[1] == 0:
        raise ValueError("the prompt is empty: give at least one token (the BOS token, say)")
