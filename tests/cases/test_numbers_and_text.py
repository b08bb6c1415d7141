"""Rounding, text without repetition, characters, and the counts of accepted guesses."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lookahead
from lookahead.bench.oracle import WRONG
from lookahead.bench.tiny_models import VOCABULARY, tiny_model
from lookahead.config import Config, PlannerConfig
from lookahead.sources import Candidate, Observation
from tests.cases.comparing import ORACLE_ALONE, Pair, padded, shared_model, single


def _bf16(model_type: str) -> Any:
    return tiny_model(model_type).to(torch.bfloat16)


@pytest.mark.parametrize("model_type", ["llama", "gemma2", "mistral"])
def test_where_bf16_text_first_differs_the_two_best_logits_tie(model_type: str) -> None:
    model = _bf16(model_type)
    pair = Pair(model)
    assert pair.engine.capability.mode != "plain"
    for seed in range(4):
        arguments = {**single(6, seed=seed), "max_new_tokens": 40, "do_sample": False}
        arguments |= {"output_logits": True, "return_dict_in_generate": True}
        expected = pair.plainly(**arguments)
        seen = pair.engines(**arguments).sequences[0, 6:].tolist()
        plain = expected.sequences[0, 6:].tolist()
        at = next((i for i, (a, b) in enumerate(zip(seen, plain, strict=True)) if a != b), None)
        if at is not None:
            logits = expected.logits[at][0].float()
            gap = float(logits.max() - logits[seen[at]])
            spread = float(logits.max() - logits.mean())
            assert gap < 0.05 * spread, (seed, at, gap, spread)


class _AlwaysWrong:
    """Proposes tokens that plain decoding does not pick."""

    name = "wrong"
    buckets = 2

    def __init__(self, text: list[int]) -> None:
        self._text = text
        self._length = 0

    def prior(self, bucket: int) -> float:
        return 0.9

    def start(self, tokens: Any) -> None:
        self._length = len(tokens)

    def extend(self, tokens: Any) -> None:
        self._length += len(tokens)

    def root(self) -> int:
        return self._length

    def advance(self, state: int, token: int) -> int:
        return state + 1

    def candidates(self, state: int) -> list[Candidate]:
        if state >= len(self._text):
            return []
        return [((self._text[state] + step) % VOCABULARY, WRONG) for step in (1, 2, 3)]

    def observe(self, seen: Observation) -> None:
        """Learns nothing, so that it stays wrong."""


@pytest.mark.parametrize("sample", [False, True])
def test_guesses_that_are_all_wrong_are_never_accepted(sample: bool) -> None:
    model = shared_model("llama")
    arguments = {**single(6), "max_new_tokens": 20, "do_sample": sample}
    torch.manual_seed(4)
    expected = model.generate(**arguments)
    engine = lookahead.wrap(
        model,
        Config(planner=PlannerConfig(max_nodes=16, fixed_nodes=9), **ORACLE_ALONE),
        sources=[lambda: _AlwaysWrong(expected[0].tolist())],
    )
    torch.manual_seed(4)
    assert engine.generate(**arguments).tolist() == expected.tolist()
    assert sum(engine.stats.accepted.values()) == 0
    assert engine.stats.passes == 19  # the prefill gave the first token
    assert engine.stats.nodes >= 9 * 15


@pytest.mark.parametrize("accepted", range(1, 8))
def test_so_many_accepted_guesses_give_one_token_more(accepted: int) -> None:
    pair = Pair(shared_model("llama"), gap=0, nodes=accepted, **ORACLE_ALONE)
    arguments = {**single(6), "max_new_tokens": 1 + 2 * (accepted + 1), "do_sample": False}
    expected = pair.plainly(**arguments)
    steps = list(pair.engine.stream(**arguments))
    assert [token for step in steps for token in step.tokens] == expected[0, 6:].tolist()
    for step in steps:
        right = sum(source != "model" for source in step.sources)
        assert len(step.tokens) == right + 1 or step is steps[-1]


def test_rows_that_accept_other_lengths_each_get_their_own_text() -> None:
    pair = Pair(shared_model("llama"), gap=3, **ORACLE_ALONE)
    arguments = {**padded(5, 9, 7), "max_new_tokens": 24, "do_sample": False}
    expected = pair.plainly(**arguments)
    lengths: dict[int, list[int]] = {0: [], 1: [], 2: []}
    texts: dict[int, list[int]] = {0: [], 1: [], 2: []}
    for step in pair.engine.stream(**arguments):
        lengths[step.row].append(len(step.tokens))
        texts[step.row] += step.tokens
    for row in range(3):
        assert texts[row] == expected[row, 9:].tolist()
    assert len({tuple(each) for each in lengths.values()}) > 1


def test_text_without_repetition_is_verified_hardly_wider_than_plainly() -> None:
    """With costs that grow by the token, useless guesses must not be bought for long."""
    model = shared_model("llama")
    engine = lookahead.wrap(model, Config(remember_cost=False))
    engine.memory.cost.fit(0, {n: 1.0 + 0.5 * (n - 1) for n in (1, 2, 4, 8, 16, 32, 64)})
    engine.memory.cost.learn = lambda *_: None  # type: ignore[method-assign]
    nodes, passes = 0, 0
    for seed in range(6):
        torch.manual_seed(seed)
        engine.generate(
            **single(6, seed=seed), max_new_tokens=40, do_sample=True, temperature=5.0, top_k=0
        )
        nodes, passes = nodes + engine.stats.nodes, passes + engine.stats.passes
    assert nodes < 0.25 * passes
