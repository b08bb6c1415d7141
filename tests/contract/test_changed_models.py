"""What is done to a model after it was wrapped, and around a call, counts as in plain decoding."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn

from lookahead import Config, wrap
from tests.contract.models import build, prompt
from tests.contract.oracle import assert_same, ran

GREEDY: dict[str, Any] = {"max_new_tokens": 20, "do_sample": False}


def _negate_logits(model: Any) -> None:
    model.lm_head.weight.data.mul_(-1)


def _merge_as_adapters_do(model: Any) -> None:
    layer = model.model.layers[0].mlp.down_proj
    layer.weight.data += torch.randn(layer.weight.shape, generator=torch.Generator().manual_seed(0))


def _one_row(model: Any) -> None:
    model.lm_head.weight.data[40] *= 30


def _hook_a_layer(model: Any) -> None:
    model.model.layers[0].register_forward_hook(lambda module, given, out: out * 3)


def _hook_before_the_head(model: Any) -> None:
    model.lm_head.register_forward_pre_hook(lambda module, given: (-given[0],))


def _replace_a_forward(model: Any) -> None:
    head = model.lm_head.forward
    model.lm_head.forward = lambda x: -head(x)


def _replace_a_module_without_weights(model: Any) -> None:
    model.model.layers[0].mlp.act_fn = nn.Tanh()


def _change_a_number(model: Any) -> None:
    model.model.layers[0].self_attn.scaling = 5.0


CHANGES: list[Callable[[Any], None]] = [
    _negate_logits, _merge_as_adapters_do, _one_row, _hook_a_layer, _hook_before_the_head,
    _replace_a_forward, _replace_a_module_without_weights, _change_a_number,
]  # fmt: skip


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_after_the_first_call_is_seen_by_the_next(change: Callable[[Any], None]) -> None:
    model, ids = build("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    before = ran(engine.generate, ids, **GREEDY)
    change(model)
    plain = ran(model.generate, ids, **GREEDY)
    assert plain.ids.tolist() != before.ids.tolist()
    assert_same(ran(engine.generate, ids, **GREEDY), plain)
    steps = [token for step in engine.stream(ids, **GREEDY) for token in step.tokens]
    assert steps == plain.ids[0, ids.shape[1] :].tolist()


@pytest.mark.filterwarnings("ignore:decoding plainly")
def test_training_mode_draws_the_dropout_of_plain_decoding() -> None:
    model, ids = build("GPT2"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    model.train()
    assert_same(ran(engine.generate, ids, **GREEDY), ran(model.generate, ids, **GREEDY))
    model.eval()
    assert_same(ran(engine.generate, ids, **GREEDY), ran(model.generate, ids, **GREEDY))
    assert engine.stats.mode == "tree"


@pytest.mark.filterwarnings("ignore:decoding plainly")
def test_calls_under_autocast() -> None:
    model, ids = build("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert_same(ran(engine.generate, ids, **GREEDY), ran(model.generate, ids, **GREEDY))


def test_a_model_made_in_inference_mode() -> None:
    with torch.inference_mode():
        model = build("Llama")
    engine, ids = wrap(model, Config(remember_cost=False)), prompt()
    assert_same(ran(engine.generate, ids, **GREEDY), ran(model.generate, ids, **GREEDY))


@contextmanager
def _inference_mode(on: bool) -> Iterator[None]:
    with torch.inference_mode(on), torch.no_grad():
        yield


@pytest.mark.parametrize("static", [False, True])
@pytest.mark.parametrize("first", [False, True])
def test_inference_mode_may_change_between_calls_and_steps(first: bool, static: bool) -> None:
    model, ids = build("Llama", max_position_embeddings=2048), prompt()
    engine = wrap(model, Config(remember_cost=False, static_passes=static))
    for length in (20, 300):  # the second outgrows the storage of the first
        arguments = {"max_new_tokens": length, "do_sample": False}
        expected = model.generate(ids, **arguments)[0, ids.shape[1] :].tolist()
        with _inference_mode(first):
            steps = engine.stream(ids, **arguments)
            tokens = next(steps).tokens
        with _inference_mode(not first):
            for step in steps:
                tokens += step.tokens
        assert tokens == expected
        with _inference_mode(first):
            assert engine.generate(ids, **arguments)[0, ids.shape[1] :].tolist() == expected
        assert engine.generate(ids, **arguments)[0, ids.shape[1] :].tolist() == expected


def test_a_changed_configuration_is_seen_by_the_next_call() -> None:
    model, ids = build("Mistral", sliding_window=64), prompt(12)
    engine = wrap(model, Config(remember_cost=False))
    before = ran(engine.generate, ids, **GREEDY)
    model.config.sliding_window = 4
    plain = ran(model.generate, ids, **GREEDY)
    assert plain.ids.tolist() != before.ids.tolist()
    assert_same(ran(engine.generate, ids, **GREEDY), plain)


def test_a_vocabulary_that_shrinks_leaves_no_guesses_of_lost_tokens() -> None:
    model = build("Llama", tie_word_embeddings=True)
    engine, ids = wrap(model, Config(remember_cost=False)), prompt() % 50
    for size in (97, 50):
        model.resize_token_embeddings(size)
        for _ in range(2):
            assert_same(ran(engine.generate, ids, **GREEDY), ran(model.generate, ids, **GREEDY))
