"""The engine's own sources, every size of the window, one call after the other: the same text."""

from __future__ import annotations

from typing import Any

import pytest

from lookahead import (
    Config,
    JacobiConfig,
    PlannerConfig,
    PoolConfig,
    lookahead_config,
    plain_config,
    prompt_lookup_config,
    recycling_config,
    suffix_config,
    wrap,
)
from tests.contract.guesses import all_wrong, every_length
from tests.contract.models import TYPES, prompt, tiny
from tests.contract.oracle import Ran, accepted, assert_same, check, ran

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "top_k": 9, "max_new_tokens": 24}
BOTH = (GREEDY, SAMPLED)
PROMPT = prompt(5, seed=0)  # its text repeats itself here and there


@pytest.fixture(scope="module")
def plain() -> list[tuple[dict[str, Any], Ran]]:
    model = tiny("Llama")
    return [(arguments, ran(model.generate, PROMPT, **arguments)) for arguments in BOTH]


@pytest.mark.parametrize("ngram", range(2, 7))
@pytest.mark.parametrize("window", range(1, 9))
def test_every_window_and_ngram_size_gives_the_same_text(
    ngram: int, window: int, plain: list[tuple[dict[str, Any], Ran]]
) -> None:
    config = Config(
        jacobi=JacobiConfig(ngram=ngram, window=window, always=True),
        ngram_pool=PoolConfig(guesses=4),
        planner=PlannerConfig(fixed_nodes=12),
        remember_cost=False,
    )
    engine = wrap(tiny("Llama"), config)
    for arguments, expected in plain:
        assert_same(ran(engine.generate, PROMPT, **arguments), expected)
        assert engine.stats.proposed["jacobi"] > 0
        assert accepted(engine) > 0


_PUBLISHED = {
    "plain": plain_config(),
    "5/7/7": lookahead_config(5, 7, 7),
    "5/15/15": lookahead_config(5, 15, 15),
    "prompt lookup": prompt_lookup_config(),
    "suffix": suffix_config(),
    "recycling": recycling_config(),
}


@pytest.mark.parametrize("name", _PUBLISHED)
def test_published_settings_give_the_same_text(
    name: str, plain: list[tuple[dict[str, Any], Ran]]
) -> None:
    engine = wrap(tiny("Llama"), _PUBLISHED[name])
    for arguments, expected in plain:
        assert_same(ran(engine.generate, PROMPT, **arguments), expected)
        assert (accepted(engine) > 0) == (name != "plain")


@pytest.mark.parametrize("kind", TYPES)
def test_one_call_after_another(kind: str) -> None:
    """What earlier calls left behind changes speed only: A, B, A."""
    model = tiny(kind)
    engine = wrap(model, Config(planner=PlannerConfig(fixed_nodes=16), remember_cost=False))
    found = 0
    for seed in (0, 1, 0):
        arguments = {**BOTH[seed], "seed": seed}
        expected = ran(model.generate, prompt(5, seed), **arguments)
        assert_same(ran(engine.generate, prompt(5, seed), **arguments), expected)
        found = accepted(engine)
    assert found > 10  # the third call has been seen before


@pytest.mark.parametrize("kind", ["Llama", "OPT"])
def test_the_default_engine_five_times_the_same_call(kind: str) -> None:
    """Planned by measured cost: how many guesses are verified is a matter of luck."""
    model = tiny(kind)
    engine = wrap(model, Config(remember_cost=False))
    for arguments in BOTH:
        expected = ran(model.generate, PROMPT, **arguments)
        for _ in range(5):
            assert_same(ran(engine.generate, PROMPT, **arguments), expected)
    assert engine.stats.seconds_measuring == 0  # once in the life of an engine


@pytest.mark.parametrize("length", [1, 2, 3])
@pytest.mark.parametrize("kind", ["Llama", "GPT2", "OPT"])
def test_the_shortest_prompts(length: int, kind: str) -> None:
    for plan in (all_wrong, every_length):
        check(tiny(kind), prompt(length), plan, decoys=True, **GREEDY)


def test_an_empty_prompt_is_refused_in_one_sentence() -> None:
    engine = wrap(tiny("Llama"), Config(remember_cost=False))
    with pytest.raises(ValueError, match="the prompt is empty: give at least one token"):
        engine.generate(PROMPT[:, :0], **GREEDY)


def test_after_an_exception_midway_the_engine_is_as_good_as_new() -> None:
    model = tiny("Llama")
    engine = wrap(model, Config(remember_cost=False))

    class Breaks:
        def __call__(self, ids: Any, scores: Any) -> Any:
            if ids.shape[1] == 15:
                raise RuntimeError("midway")
            return scores

    with pytest.raises(RuntimeError, match="midway"):
        engine.generate(PROMPT, logits_processor=[Breaks()], **GREEDY)
    for arguments in (GREEDY, SAMPLED):
        expected = ran(model.generate, PROMPT, **arguments)
        assert_same(ran(engine.generate, PROMPT, **arguments), expected)
