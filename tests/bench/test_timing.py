"""The clock counts the same for every method, and counts right."""

import time
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from lookahead.bench.prompt_sets import to_inputs
from lookahead.bench.timing import timed

PROMPT = [5, 9, 2, 33, 17, 5, 9]


def generate(model: LlamaForCausalLM, streamer: Any, **kwargs: Any) -> list[int]:
    inputs = to_inputs(PROMPT, model.device)
    out = model.generate(**inputs, max_new_tokens=20, do_sample=False, streamer=streamer, **kwargs)
    return out[0, len(PROMPT) :].tolist()


def test_plain_decoding_is_one_token_a_pass(model: LlamaForCausalLM) -> None:
    timing = timed(lambda s: generate(model, s), model.device, [model])
    assert timing.passes is not None
    assert [(p.width, p.emitted) for p in timing.passes] == [(1, 1)] * 19
    assert (timing.first_tokens, len(timing.tokens)) == (1, 20)
    decoding = timing.seconds - timing.seconds_prefill
    assert timing.seconds_model is not None
    assert 0 < timing.seconds_model < decoding
    assert sum(p.seconds for p in timing.passes) <= decoding


def test_passes_of_prompt_lookup_add_up_to_its_tokens(model: LlamaForCausalLM) -> None:
    timing = timed(lambda s: generate(model, s, prompt_lookup_num_tokens=5), model.device, [model])
    assert timing.passes is not None
    assert timing.first_tokens + sum(p.emitted for p in timing.passes) == len(timing.tokens) == 20
    assert max(p.width for p in timing.passes) > 1
    assert all(1 <= p.emitted <= p.width for p in timing.passes)


def test_the_prefill_ends_with_the_first_token(model: LlamaForCausalLM) -> None:
    def call(streamer: Any) -> list[int]:
        streamer.put(torch.tensor([PROMPT]))
        time.sleep(0.05)
        streamer.put(torch.tensor([1]))
        time.sleep(0.02)
        streamer.put(torch.tensor([2, 3]))
        return [1, 2, 3]

    timing = timed(call, model.device, [])
    assert 0.05 <= timing.seconds_prefill < timing.seconds - 0.02
    assert timing.passes is None and timing.seconds_model is None
    assert timing.first_tokens == 1


def test_hooks_are_gone_after_a_call_and_after_an_error(model: LlamaForCausalLM) -> None:
    def fail(_: Any) -> list[int]:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        timed(fail, model.device, [model])
    timed(lambda s: generate(model, s), model.device, [model])
    assert not model._forward_hooks and not model._forward_pre_hooks


def test_tokens_that_were_not_streamed_are_an_error(model: LlamaForCausalLM) -> None:
    with pytest.raises(RuntimeError, match="20 tokens were streamed but 19"):
        timed(lambda s: generate(model, s)[:-1], model.device, [model])
    with pytest.raises(RuntimeError, match="no token"):
        timed(lambda s: [], model.device, [])
