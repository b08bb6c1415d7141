"""From a prompt to inputs, and the two ways to decode them: the engine and plain `generate`."""

from __future__ import annotations

import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from ..model_store import LoadedModel
from ..text import decode


@dataclass(frozen=True)
class DecodingOptions:
    """What to generate; other settings are those of the model's generation config.

    Sampling is on if any of ``temperature``, ``top_p``, ``top_k`` is given, else decoding is
    greedy. A seed is drawn if sampling is on and none is given.

    Raises:
        ValueError: a value out of its range.
    """

    max_new_tokens: int = 256
    temperature: float | None = None
    top_p: float | None = None
    top_k: int | None = None
    seed: int | None = None

    def __post_init__(self) -> None:
        _require(self.max_new_tokens >= 1, "--max-new-tokens must be at least 1.")
        t, p, k = self.temperature, self.top_p, self.top_k
        positive = t is None or (t > 0 and math.isfinite(t))
        _require(positive, "--temperature must be above 0; leave it out for greedy decoding.")
        _require(p is None or 0 < p <= 1, "--top-p must be above 0 and at most 1.")
        _require(k is None or k >= 1, "--top-k must be at least 1.")
        if self.seed is not None:
            sampling = "--seed needs --temperature, --top-p or --top-k: greedy decoding has none."
            _require(self.sampling, sampling)
            _require(0 <= self.seed < 2**63, "--seed must be at least 0 and below 2**63.")

    @property
    def sampling(self) -> bool:
        """Whether tokens are sampled."""
        return not (self.temperature is None and self.top_p is None and self.top_k is None)

    def with_seed(self) -> DecodingOptions:
        """The same with a seed, if it needs one."""
        if self.sampling and self.seed is None:
            return replace(self, seed=secrets.randbelow(2**31))
        return self

    def arguments(self) -> dict[str, Any]:
        """Keyword arguments for `generate`."""
        given = {"temperature": self.temperature, "top_p": self.top_p, "top_k": self.top_k}
        return {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": self.sampling,
            **{name: value for name, value in given.items() if value is not None},
        }


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


def encode(loaded: LoadedModel, prompt: str, *, raw: bool) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask``, both [1, length] int64, on the model's device.

    The chat template is applied, the prompt being the user's message, unless ``raw`` is true or
    the tokenizer has none.

    Raises:
        ValueError: the prompt is empty or no text, or the chat template fails.
    """
    _require(bool(prompt.strip()), "The prompt is empty: give some text.")
    unicode = not any("\ud800" <= letter <= "\udfff" for letter in prompt)
    _require(unicode, "The prompt is not UTF-8 text: convert it first.")
    tokenizer = loaded.tokenizer
    if tokenizer.chat_template and not raw:
        chat = [{"role": "user", "content": prompt}]
        try:
            encoded = tokenizer.apply_chat_template(
                chat, add_generation_prompt=True, return_dict=True, return_tensors="pt"
            )
        except Exception as error:  # a template is a program of its own
            message = f"The model's chat template fails ({error}): use --raw."
            raise ValueError(message) from error
    else:
        encoded = tokenizer(prompt, return_tensors="pt")
    _require(encoded["input_ids"].shape[1] > 0, "The prompt is empty: give some text.")
    names = ("input_ids", "attention_mask")
    return {name: encoded[name].to(loaded.model.device) for name in names}


def fit_to_context(loaded: LoadedModel, length: int, options: DecodingOptions) -> DecodingOptions:
    """``options`` with ``max_new_tokens`` cut to what the context holds after ``length`` tokens.

    Raises:
        ValueError: the prompt alone fills the context.
    """
    limit = getattr(loaded.model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None or length + options.max_new_tokens <= limit:
        return options
    message = f"The prompt has {length} tokens, but the model's context holds {limit}: shorten it."
    _require(length < limit, message)
    return replace(options, max_new_tokens=limit - length)


@dataclass(frozen=True)
class Output:
    """What one way of decoding gave.

    Attributes:
        ids: new token ids, without the prompt.
        text: their text, without special tokens.
        seconds: wall time, prefill included.
        sources: who guessed each token, "model" for nobody; empty for plain decoding.
    """

    ids: list[int]
    text: str
    seconds: float
    sources: tuple[str, ...] = ()


def seeded(options: DecodingOptions) -> None:
    """Set torch's generator as the options say."""
    if options.seed is not None:
        torch.manual_seed(options.seed)


def engine_tokens(
    engine: Any, inputs: dict[str, torch.Tensor], options: DecodingOptions
) -> Iterator[tuple[int, str]]:
    """Tokens of the engine as they come, each with the source that guessed it."""
    seeded(options)
    for step in engine.stream(**inputs, **options.arguments()):
        yield from zip(step.tokens, step.sources, strict=True)


def plain(loaded: LoadedModel, inputs: dict[str, torch.Tensor], options: DecodingOptions) -> Output:
    """The model's own `generate` with the same arguments and seed."""
    seeded(options)
    start = time.perf_counter()
    out = loaded.model.generate(**inputs, **options.arguments())
    seconds = time.perf_counter() - start
    ids = out[0, inputs["input_ids"].shape[1] :].tolist()
    return Output(ids, decode(loaded.tokenizer, ids), seconds)


def compare(engine: Output, reference: Output, measuring: float) -> dict[str, Any]:
    """Whether both gave the same tokens, where they first differ, and the speedup.

    The ``measuring`` seconds in which an engine times passes of several widths, once, are told
    apart and are not part of ``seconds`` and ``speedup``.
    """
    pairs = zip(engine.ids, reference.ids, strict=False)
    first = next((i for i, (a, b) in enumerate(pairs) if a != b), None)
    if first is None and len(engine.ids) != len(reference.ids):
        first = min(len(engine.ids), len(reference.ids))
    seconds = engine.seconds - measuring
    return {
        "identical": first is None,
        "first_difference": first,
        "seconds": seconds,
        "measuring_seconds": measuring,
        "plain_seconds": reference.seconds,
        "speedup": reference.seconds / seconds,
    }
