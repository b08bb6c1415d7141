"""The cache a caller gets back holds what plain decoding leaves in it, and no token more."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import Cache, DynamicCache
from transformers.cache_utils import DynamicLayer

from lookahead import Config, wrap
from tests.contract.guesses import Plan, Script, all_right, all_wrong, every_length, scripted
from tests.contract.models import CACHE, TYPES, build, continuation, prompt, tiny
from tests.contract.oracle import accepted, assert_same, ran

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 10, "max_new_tokens": 24}


def assert_same_cache(found: Any, expected: Any) -> None:
    """Equal length and, layer by layer, equal keys and values."""
    assert found.get_seq_length() == expected.get_seq_length()
    assert len(found.layers) == len(expected.layers)
    for one, other in zip(found.layers, expected.layers, strict=True):
        assert type(one) is type(other)
        torch.testing.assert_close(one.keys, other.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(one.values, other.values, atol=1e-4, rtol=1e-4)


def second_turn(ids: Tensor) -> Tensor:
    """A text that goes on with a new question."""
    return torch.cat([ids, prompt(4, seed=9)], dim=1)


@pytest.mark.parametrize("plan", [all_right, all_wrong, every_length])
@pytest.mark.parametrize("kind", TYPES)
def test_the_returned_cache_is_plains(kind: str, plan: Plan) -> None:
    model, ids = tiny(kind), prompt()
    arguments = {**GREEDY, "return_dict_in_generate": True}
    plain = ran(model.generate, ids, **arguments)
    engine = scripted(model, Script(plan, True, plain.ids.tolist()))
    found = ran(engine.generate, ids, **arguments)
    assert_same(found, plain)
    assert_same_cache(found.out.cache, plain.out.cache)
    assert (accepted(engine) > 0) == (plan is not all_wrong)


@pytest.mark.parametrize("offset", range(1, 14, 2))
def test_nothing_after_the_end_stays_in_the_returned_cache(offset: int) -> None:
    """And the next turn, which uses the cache, is not spoilt. Right guesses reach past the end."""
    model, ids = tiny("Llama"), prompt()
    full = continuation(model, ids, **GREEDY)
    arguments = {**GREEDY, "eos_token_id": full[offset]}
    asked = {"return_dict_in_generate": True}
    plain = ran(model.generate, ids, **asked, **arguments)
    engine = scripted(model, Script(all_right, True, [ids[0].tolist() + full]))
    found = ran(engine.generate, ids, **asked, **arguments)
    assert_same(found, plain)
    assert_same_cache(found.out.cache, plain.out.cache)
    longer = second_turn(plain.ids)
    next_plain = ran(model.generate, longer, **{CACHE: plain.out.cache}, **asked, **GREEDY)
    next_found = ran(engine.generate, longer, **{CACHE: found.out.cache}, **asked, **GREEDY)
    assert_same(next_found, next_plain)
    assert_same_cache(next_found.out.cache, next_plain.out.cache)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", ["Llama", "GPT2", "Phi"])
def test_a_cache_that_the_caller_passes_is_used_and_filled(kind: str, sample: bool) -> None:
    """Three turns on one cache, with and without return_dict_in_generate."""
    model = tiny(kind)
    arguments = SAMPLED if sample else GREEDY
    theirs, ours = DynamicCache(config=model.config), DynamicCache(config=model.config)
    ids = prompt()
    script = Script(every_length, True, [])
    engine = scripted(model, script)
    for turn in range(3):
        plain = ran(model.generate, ids, seed=turn, **{CACHE: theirs}, **arguments)
        script.texts = plain.ids.tolist()
        found = ran(engine.generate, ids, seed=turn, **{CACHE: ours}, **arguments)
        assert_same(found, plain)
        assert_same_cache(ours, theirs)
        assert accepted(engine) > 5
        ids = second_turn(plain.ids)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_a_cache_that_already_holds_all_but_the_last_token(sample: bool) -> None:
    """The caller has read the prompt; one token is left to feed."""
    model, ids = tiny("Qwen3"), prompt(9)
    arguments = SAMPLED if sample else GREEDY

    def prefilled() -> DynamicCache:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(ids[:, :-1], **{CACHE: cache}, use_cache=True)
        return cache

    theirs, ours = prefilled(), prefilled()
    plain = ran(model.generate, ids, **{CACHE: theirs}, **arguments)
    engine = scripted(model, Script(every_length, True, plain.ids.tolist()))
    assert_same(ran(engine.generate, ids, **{CACHE: ours}, **arguments), plain)
    assert_same_cache(ours, theirs)
    assert plain.ids.tolist() == ran(model.generate, ids, **arguments).ids.tolist()


@pytest.mark.parametrize("filled", [9, 12])
def test_a_cache_as_long_as_the_ids_or_longer_ends_as_in_plain_decoding(filled: int) -> None:
    """Nothing is left to feed: whatever plain decoding does, an error or a text, is done."""
    model, ids = tiny("Llama"), prompt(9)

    def outcome(generate: Any) -> Any:
        cache = DynamicCache(config=model.config)
        with torch.no_grad():
            model(prompt(filled), **{CACHE: cache}, use_cache=True)
        try:
            return ran(generate, ids, **{CACHE: cache}, **GREEDY).ids.tolist()
        except (ValueError, RuntimeError, IndexError) as error:
            return type(error)

    assert outcome(scripted(model, Script()).generate) == outcome(model.generate)


def test_a_one_token_prompt_with_everything_rejected() -> None:
    """Rolling back everything keeps nothing."""
    model, ids = tiny("Llama"), prompt(1)
    arguments = {**GREEDY, "return_dict_in_generate": True}
    plain = ran(model.generate, ids, **arguments)
    engine = scripted(model, Script(all_wrong, True, plain.ids.tolist()))
    found = ran(engine.generate, ids, **arguments)
    assert_same(found, plain)
    assert_same_cache(found.out.cache, plain.out.cache)
    assert accepted(engine) == 0


def test_text_longer_than_what_was_allocated_for_it() -> None:
    """Room is made for 256 tokens of output and the widest tree at first."""
    model, ids = build("Llama", max_position_embeddings=512), prompt(5)
    arguments = {"do_sample": False, "max_new_tokens": 256 + 64 + 30}
    plain = ran(model.generate, ids, **arguments)
    engine = scripted(model, Script(every_length, True, plain.ids.tolist()))
    assert_same(ran(engine.generate, ids, **arguments), plain)
    assert accepted(engine) > 150


class _UnknownLayer(DynamicLayer):
    """A layer of a caller's own class."""


@pytest.mark.filterwarnings("ignore:decoding plainly")
def test_a_cache_of_an_unknown_kind_is_handed_over_untouched() -> None:
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    ends = []
    for generate in (model.generate, engine.generate):
        cache = Cache(layers=[_UnknownLayer(), _UnknownLayer()])
        ends.append((generate(ids, **{CACHE: cache}, **GREEDY).tolist(), cache.get_seq_length()))
    assert ends[0] == ends[1]
