"""Whatever is guessed, the text is that of plain decoding: nine types, every accepted length."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lookahead import Config, PlannerConfig, wrap
from lookahead.sources.base import Candidate
from tests.contract.guesses import (
    DEPTH,
    Plan,
    Script,
    ScriptedSource,
    all_right,
    all_wrong,
    every_length,
    scripted,
    scripted_config,
)
from tests.contract.models import TYPES, VOCABULARY, build, prompt, tiny
from tests.contract.oracle import accepted, assert_same, check, lengths_seen, ran

TOKENS = 40
GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": TOKENS}
SAMPLED: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 20,
    "top_p": 0.9,
    "max_new_tokens": TOKENS,
}


@pytest.mark.parametrize("kind", TYPES)
def test_random_models_write_varied_text(kind: str) -> None:
    """The models of these tests would show nothing if they repeated one token."""
    out = tiny(kind).generate(prompt(), **GREEDY)[0, 6:].tolist()
    assert len(set(out)) >= 10


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("decoys", [False, True], ids=["chain", "decoys"])
def test_greedy_text_is_plain_for_every_accepted_length(kind: str, decoys: bool) -> None:
    engine = check(tiny(kind), prompt(), every_length, decoys=decoys, **GREEDY)
    assert engine.capability.mode == "tree"
    assert lengths_seen(engine) >= set(range(1, (5 if decoys else DEPTH) + 1))


@pytest.mark.parametrize("kind", TYPES)
def test_sampled_text_is_plain_for_every_accepted_length(kind: str) -> None:
    engine = check(tiny(kind), prompt(), every_length, decoys=True, **SAMPLED)
    assert lengths_seen(engine) >= set(range(1, 6))


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_wrong_guesses_change_nothing(kind: str, arguments: dict[str, Any]) -> None:
    engine = check(tiny(kind), prompt(), all_wrong, decoys=True, **arguments)
    assert engine.stats.proposed["script"] > 100
    assert accepted(engine) == 0
    assert engine.stats.tokens == engine.stats.passes + 1  # the prefill gave one


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_right_guesses_give_all_of_them_and_one_more(kind: str, arguments: dict[str, Any]) -> None:
    """K accepted guesses give K + 1 tokens."""
    engine = check(tiny(kind), prompt(), all_right, **arguments)
    assert engine.stats.passes == -(-(TOKENS - 1) // (DEPTH + 1))
    assert accepted(engine) == TOKENS - 1 - engine.stats.passes


@pytest.mark.parametrize("length", range(DEPTH + 1))
@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_each_accepted_length_by_itself(length: int, arguments: dict[str, Any]) -> None:
    engine = check(tiny("Qwen2"), prompt(), lambda _: length, decoys=False, **arguments)
    assert lengths_seen(engine) >= ({length} if length else set())
    assert engine.stats.tokens_per_pass >= 1 + length * 0.75


def _mixed(seed: int) -> Plan:
    draw = torch.randint(0, DEPTH + 1, (100,), generator=torch.Generator().manual_seed(seed))
    return lambda number: int(draw[number])


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_mixtures_of_right_and_wrong_guesses(seed: int, arguments: dict[str, Any]) -> None:
    kind = TYPES[seed % len(TYPES)]
    engine = check(
        tiny(kind), prompt(3 + seed, seed), _mixed(seed), decoys=True, seed=seed, **arguments
    )
    assert accepted(engine) > 10


def test_guessed_tokens_outside_the_text_are_never_emitted() -> None:
    """A source may guess anything that is a token."""
    model, ids = tiny("Llama"), prompt()
    plain = ran(model.generate, ids, **GREEDY)
    texts = [[(token + 11) % VOCABULARY for token in text] for text in plain.ids.tolist()]
    texts = [ids[0].tolist() + text[6:] for text in texts]
    engine = scripted(model, Script(every_length, True, texts))
    assert_same(ran(engine.generate, ids, **GREEDY), plain)


class _Outside(ScriptedSource):
    """Guesses that are no tokens, the right ones as their children and siblings."""

    def candidates(self, state: Any) -> list[Candidate]:
        found = super().candidates(state)
        return [*found, *((token, found[0][1]) for token in (10**6, VOCABULARY, -1) if found)]


@pytest.mark.parametrize("sample", [False, True])
def test_guesses_that_are_no_tokens_are_not_fed_to_the_model(sample: bool) -> None:
    model, ids = tiny("Llama"), prompt()
    arguments: dict[str, Any] = {"max_new_tokens": 30, "do_sample": sample}
    plain = ran(model.generate, ids, **arguments)
    script = Script(every_length, False, plain.ids.tolist())
    engine = wrap(model, scripted_config(), sources=[lambda: _Outside(script)])
    assert_same(ran(engine.generate, ids, **arguments), plain)
    assert accepted(engine) > 5


def test_logits_wider_than_the_embeddings() -> None:
    """Tokens without an embedding may be likely, though never the likeliest."""
    model, ids = build("Llama"), prompt()
    head = model.lm_head.weight.data
    model.lm_head = torch.nn.Linear(head.shape[1], VOCABULARY + 31, bias=False)
    model.lm_head.weight.data[:VOCABULARY] = head
    model.lm_head.weight.data[VOCABULARY:] = 0.999 * head[:31]
    engine = wrap(model, Config(remember_cost=False, planner=PlannerConfig(fixed_nodes=32)))
    arguments: dict[str, Any] = {"max_new_tokens": 60, "do_sample": False}
    plain = ran(model.generate, ids, **arguments)
    for _ in range(2):
        assert_same(ran(engine.generate, ids, **arguments), plain)
