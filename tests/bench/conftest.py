"""Tiny models for the tests of the benchmark."""

from collections.abc import Callable

import pytest
import torch
from transformers import LlamaConfig, LlamaForCausalLM


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
