"""Calls that the engine does not decode itself, and why.

Such a call goes to ``model.generate`` unchanged, after one warning: the same text, at plain speed.
"""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import nullcontext
from typing import Any

import torch
from transformers import Cache
from transformers.generation import GenerationMixin, GenerationMode
from transformers.generation.streamers import BaseStreamer

from lookahead.kv_cache import CACHE_NAME, cache_reason
from lookahead.model import input_device, rotary_switches, text_config

_PREPARED_KEYS = {
    "attention_mask",
    "cache",
    "logits_to_keep",
    "past_key_values",
    "position_ids",
    "token_type_ids",
    "use_cache",
}
_SAMPLING_MODES = (GenerationMode.SAMPLE, GenerationMode.GREEDY_SEARCH)


def without_adapter_wrapper(model: Any) -> Any:
    """The model of transformers inside a PEFT model, whose layers carry the adapters.

    Other models are returned as they are. Raises TypeError for adapters that are no part of the
    layers (prompt tuning and its kin): those act outside the model of transformers.
    """
    adapters = getattr(model, "peft_config", None)
    if not isinstance(adapters, dict) or not hasattr(model, "get_base_model"):
        return model
    if any(getattr(adapter, "is_prompt_learning", False) for adapter in adapters.values()):
        raise TypeError("prompt-learning adapters cannot be wrapped; use adapters such as LoRA")
    return model.get_base_model()


def config_reason(config: Any, assistant_model: Any = None) -> str:
    """Why a generation configuration is decoded plainly, or an empty string."""
    mode = config.get_generation_mode(assistant_model)
    if mode not in _SAMPLING_MODES:
        return f"{mode.value.replace('_', ' ')} is another decoding method"
    if config.use_cache is False:
        return "use_cache=False leaves no cache to verify guesses in"
    if config.output_attentions or config.output_hidden_states:
        return "attentions and hidden states of guessed positions are not kept"
    if config.cache_implementation not in (None, "dynamic", "static", "hybrid"):
        return f"cache_implementation={config.cache_implementation!r} changes what the cache holds"
    if config.token_healing:
        return "token healing rewrites the prompt"
    if config.guidance_scale not in (None, 1, 1.0):
        return "guidance runs the model a second time on each prefix"
    return ""


def autocast_reason(model: Any) -> str:
    """Why a call is decoded plainly inside ``torch.autocast``, or an empty string outside."""
    if torch.is_autocast_enabled(input_device(model).type):
        return "autocast is on, without which the model was tried out"
    return ""


def plain_method(model: Any, config: Any) -> Any:
    """The model's own decoding method for a configuration, where there is one to be called.

    Raises ValueError for those that ``generate`` calls with more than a custom method is given.
    """
    mode = config.get_generation_mode()
    if mode in _SAMPLING_MODES:
        return model._sample
    if mode in (GenerationMode.BEAM_SEARCH, GenerationMode.BEAM_SAMPLE):
        return model._beam_search
    raise ValueError(
        f"{mode.value.replace('_', ' ')} is another decoding method: leave out custom_generate"
    )


def inputs_reason(model_kwargs: dict[str, Any]) -> str:
    """Why prepared model inputs are decoded plainly, or an empty string."""
    if model_kwargs.get("inputs_embeds") is not None:
        return "inputs_embeds are not tokens that can be looked up"
    if model_kwargs.get("synced_gpus"):
        return "synced_gpus keeps all ranks in step pass by pass"
    cache = model_kwargs.get(CACHE_NAME)
    if isinstance(cache, Cache) and (reason := cache_reason(cache)):
        return reason
    extra = {
        name
        for name, value in model_kwargs.items()
        if name not in _PREPARED_KEYS and value is not None
    }
    if extra:
        return f"the model is given {', '.join(sorted(extra))}, whose part in guesses is unknown"
    return ""


def switch_reason(model: Any, rows: int, prompt: int, longest: int) -> str:
    """Why a text that may grow from ``prompt`` to ``longest`` tokens is decoded plainly, or "".

    Scaled rotary embeddings change their factors at a length. Plain decoding then changes them for
    all rows in one step, and some models read the whole text anew in that step.
    """
    reads_anew = (
        type(model).prepare_inputs_for_generation
        is not GenerationMixin.prepare_inputs_for_generation
    )
    for limit, kind in rotary_switches(text_config(model)):
        crosses = prompt <= limit < longest or (kind == "dynamic" and limit < longest)
        if crosses and (rows > 1 or (kind == "longrope" and reads_anew)):
            return (
                f"the text may pass {limit} tokens, where the rotary embedding changes; set a "
                "smaller max_new_tokens to stay below"
            )
    return ""


class _Left(Exception):
    """Ends a generating thread whose reader has left."""


class _QueueStreamer(BaseStreamer):
    """Hands tokens from a generating thread to a reader; the prompt is left out.

    The thread waits until the reader asks for more (``go_on``), so that it is never ahead.
    """

    def __init__(self) -> None:
        self.tokens: queue.Queue[Any] = queue.Queue()
        self._wanted: queue.Queue[bool] = queue.Queue()
        self._prompt = True

    def go_on(self, wanted: bool) -> None:
        """Let the thread go on, or end it."""
        self._wanted.put(wanted)

    def put(self, value: Any) -> None:
        if not self._prompt:
            self.tokens.put(value.reshape(-1).tolist())
            if not self._wanted.get():
                raise _Left
        self._prompt = False

    def end(self) -> None:
        """The thread reports its own end."""


def _autocast_here(device: str) -> Any:
    """A context that repeats the caller's autocast in another thread."""
    if not torch.is_autocast_enabled(device):
        return nullcontext()
    return torch.autocast(device, dtype=torch.get_autocast_dtype(device))


def stream_tokens(generate: Any, device: str) -> Iterator[list[int]]:
    """Tokens of ``generate(streamer=...)`` as they come; its exception, if there is one.

    Leaving early ends the call. ``device``: type of the model's device.
    """
    streamer = _QueueStreamer()
    failed: list[BaseException] = []
    autocast, inference = _autocast_here(device), torch.is_inference_mode_enabled()

    def run() -> None:
        try:
            with torch.inference_mode(inference), autocast:
                generate(streamer)
        except BaseException as error:  # handed to the reader
            failed.append(error)
        finally:
            streamer.tokens.put(None)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    try:
        while (tokens := streamer.tokens.get()) is not None:
            yield tokens
            streamer.go_on(True)
    finally:
        streamer.go_on(False)  # of no effect where the thread has ended
        thread.join()
    if failed:
        raise failed[0]
