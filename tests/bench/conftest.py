"""Tiny models for the tests of the benchmark."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM

from lookahead.bench.methods import Method, build_methods
from lookahead.config import Config
from lookahead.stats import Stats, Step


def tiny_llama(seed: int = 0, dtype: torch.dtype = torch.float32) -> LlamaForCausalLM:
    """A random Llama with peaked logits: 2 layers, 64 tokens, no end-of-sequence token."""
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        initializer_range=0.2,
        tie_word_embeddings=True,
        eos_token_id=None,
        bos_token_id=None,
        pad_token_id=0,
    )
    return LlamaForCausalLM(config).eval().to(dtype)


@pytest.fixture(scope="session")
def make_model() -> Callable[..., LlamaForCausalLM]:
    """The maker of tiny models, for tests that need a certain seed or dtype."""
    return tiny_llama


@pytest.fixture(scope="session")
def model() -> LlamaForCausalLM:
    """One tiny model that no test changes."""
    return tiny_llama()


class LetterTokenizer:
    """One id per character, modulo the tiny model's vocabulary; ids decode to words."""

    chat_template = None

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        return {"input_ids": [ord(letter) % 64 for letter in text]}

    def decode(self, ids: list[int], skip_special_tokens: bool = True, **_: Any) -> str:
        return " ".join(f"w{i}" for i in ids)


class FakeEngine:
    """Stands in for an engine: transformers' prompt lookup, which needs fewer passes.

    ``fault`` changes the tokens it returns; ``seen`` counts the calls since it was made.
    """

    def __init__(
        self,
        model: LlamaForCausalLM,
        fault: Callable[[list[int]], list[int]],
        made: list[Any],
    ) -> None:
        self._model = model
        self._fault = fault
        self._made = made
        self.seen = 0
        self.stats = Stats()

    def sibling(self, config: Config) -> Any:
        self._made.append(FakeEngine(self._model, self._fault, self._made))
        return self._made[-1]

    def generate(self, **kwargs: Any) -> torch.Tensor:
        self.seen += 1
        length = kwargs["input_ids"].shape[1]
        start = time.perf_counter()
        out = self._model.generate(**kwargs, prompt_lookup_num_tokens=4)
        seconds = time.perf_counter() - start
        self.stats = Stats(
            tokens=out.shape[1] - length,
            proposed={"prompt_lookup": 10},
            accepted={"prompt_lookup": 4},
            proposed_by_depth=[5, 5],
            accepted_by_depth=[3, 1],
            seconds_total=seconds,
            seconds_prefill=0.1 * seconds,
            seconds_model=0.8 * seconds,
        )
        changed = self._fault(out[0, length:].tolist())
        return torch.cat([out[:, :length], torch.tensor([changed])], dim=1)

    def stream(self, **kwargs: Any) -> Iterator[Step]:
        """The tokens in one step for the prefill and steps of up to two from trees of four."""
        length = kwargs["input_ids"].shape[1]
        tokens = self.generate(**kwargs)[0, length:].tolist()
        yield Step(tokens[:1], ["model"], 0, 0.0)
        for at in range(1, len(tokens), 2):
            run = tokens[at : at + 2]
            yield Step(run, ["model"] * len(run), 4, 0.0)


def identity(tokens: list[int]) -> list[int]:
    return tokens


@dataclass
class Bench:
    """A tiny run: model, tokenizer, and methods built around fake engines."""

    model: LlamaForCausalLM
    tokenizer: LetterTokenizer = field(default_factory=LetterTokenizer)
    fault: Callable[[list[int]], list[int]] = identity
    engines: list[FakeEngine] = field(default_factory=list)

    def wrap(self, config: Config) -> FakeEngine:
        return FakeEngine(self.model, self.fault, self.engines)

    def methods(self, names: list[str], state: str = "cold") -> list[Method]:
        return build_methods(names, self.model, self.wrap, state)


@pytest.fixture
def bench(model: LlamaForCausalLM) -> Bench:
    return Bench(model)
