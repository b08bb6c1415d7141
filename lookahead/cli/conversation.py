"""A conversation whose cache is kept between turns.

A turn's prompt is the whole conversation. Its beginning was read in the turn before, so the cache
is cut back to what both have in common and only the rest is read. A template that rewrites earlier
turns, or text that tokenizes otherwise than it was generated, only shortens what they share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from transformers import DynamicCache

from ..bench.exactness import cache_argument
from ..bench.prompt_sets import to_inputs
from ..model_store import LoadedModel


class Conversation:
    """Turns so far, and the model's cache of them.

    ``cached`` and ``length`` are, after a turn has begun, the tokens of its prompt that were in the
    cache and all of them.
    """

    def __init__(self, loaded: LoadedModel, engine: Any, system: str | None = None) -> None:
        self._loaded = loaded
        self._engine = engine
        self._system = system
        self.cached = self.length = 0
        self.restart()

    def restart(self) -> None:
        """Forget all turns; keep the system message."""
        self._messages = []
        if self._system is not None:
            self._messages.append({"role": "system", "content": self._system})
        self._forget()

    def _forget(self) -> None:
        self._ids: list[int] = []  # what the cache was made of, and the reply after it
        self._cache: Any = None

    def prompt(self, text: str) -> list[int]:
        """Token ids of the conversation with ``text`` as the user's next message.

        Raises ValueError where the model's chat template fails or the text is no text.
        """
        messages = [*self._messages, {"role": "user", "content": text}]
        tokenizer = self._loaded.tokenizer
        try:
            rendered = tokenizer.apply_chat_template(
                messages, add_generation_prompt=True, tokenize=False
            )
            ids: list[int] = tokenizer(rendered, add_special_tokens=False)["input_ids"]
        except Exception as error:  # a template is a program of its own
            raise ValueError(f"The message cannot be encoded for this model: {error}") from error
        return ids

    def reply(self, ids: Sequence[int], arguments: dict[str, Any]) -> Iterator[tuple[int, str]]:
        """Tokens of the reply to the prompt ``ids``, each with the source that guessed it.

        When it is stopped early the cache is dropped; the next turn reads everything again.
        """
        self.cached, self.length = self._reuse(ids), len(ids)
        model = self._loaded.model
        self._cache = self._cache or DynamicCache(config=model.config)
        inputs = to_inputs(ids, model.device)
        made: list[int] = []
        finished = False
        try:
            for step in self._engine.stream(
                **inputs, **arguments, **{cache_argument(model): self._cache}
            ):
                made += step.tokens
                yield from zip(step.tokens, step.sources, strict=True)
            finished = True
        finally:
            if finished:
                self._ids = [*ids, *made]
            else:
                self._forget()

    def end_turn(self, text: str, reply: str) -> None:
        """Add the user's message and the reply to the conversation."""
        self._messages.append({"role": "user", "content": text})
        self._messages.append({"role": "assistant", "content": reply})

    def _reuse(self, ids: Sequence[int]) -> int:
        """Cut the cache back to the common beginning with ``ids``; return its length."""
        if self._cache is None:
            return 0
        held = self._cache.get_seq_length()
        pairs = zip(self._ids[:held], ids[:-1], strict=False)
        common = next((i for i, (a, b) in enumerate(pairs) if a != b), min(held, len(ids) - 1))
        if common < held:
            if common == 0 or not getattr(self._cache, "is_croppable", False):
                self._forget()
                return 0
            self._cache.crop(common - held)
        return common


def has_template(loaded: LoadedModel) -> bool:
    """Whether the tokenizer knows how conversations are written for the model."""
    return bool(getattr(loaded.tokenizer, "chat_template", None))
