"""Sampled text follows the model's own distribution, whatever is guessed.

A chi-square test against the enumerated distribution on a tiny vocabulary, at output positions 1, 2
and 3 apart. It knows nothing of seeds or noise, so it holds where equality with plain decoding
under one seed would be a coincidence of both being wrong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor

from lookahead import Config, JacobiConfig, PlannerConfig, wrap
from lookahead.sources import Observation
from lookahead.sources.base import Candidate
from tests.contract.guesses import scripted_config
from tests.contract.models import build, prompt, tiny
from tests.contract.oracle import accepted, assert_same, ran

SIZE = 8
LENGTH = 3
RUNS = 1000
PROMPT = torch.tensor([[3, 5, 2]])
WARP: dict[str, Any] = {"temperature": 1.3, "top_k": 6, "top_p": 0.9}


@cache
def small() -> Any:
    """A model over eight tokens whose distributions are neither flat nor sharp."""
    options = {"vocab_size": SIZE, "initializer_range": 0.14}
    return build("Llama", seed=4, pad_token_id=None, bos_token_id=None, **options)


def warped(logits: Tensor) -> Tensor:
    """Probabilities after temperature, top-k and top-p, from their definitions."""
    scores = logits.double() / WARP["temperature"]
    order = scores.argsort(descending=True)[: WARP["top_k"]]
    probabilities = torch.softmax(scores[order], 0)
    kept = int((probabilities.cumsum(0) - probabilities < WARP["top_p"]).sum())
    out = torch.zeros(SIZE, dtype=torch.float64)
    out[order[:kept]] = torch.softmax(scores[order[:kept]], 0)
    return out


@cache
def tables() -> dict[tuple[int, ...], Tensor]:
    """Distribution of the next token after each continuation of up to two tokens."""
    table = {}
    with torch.no_grad():
        for length in range(LENGTH):
            for path in product(range(SIZE), repeat=length):
                ids = torch.cat([PROMPT, torch.tensor([path], dtype=torch.long)], dim=1)
                table[path] = warped(small()(ids).logits[0, -1])
    return table


def marginal(position: int) -> Tensor:
    """Probability of each token at an output position (0 is the first)."""
    total = torch.zeros(SIZE, dtype=torch.float64)
    for path in product(range(SIZE), repeat=position):
        chance = 1.0
        for i, token in enumerate(path):
            chance *= float(tables()[path[:i]][token])
        total += chance * tables()[path]
    return total


class Ranked:
    """Guesses the ``count`` likeliest tokens, or one that is filtered and the rarest one left."""

    name = "ranked"
    buckets = 1

    def __init__(self, count: int, *, best: bool) -> None:
        self._count, self._best = count, best
        self._path: tuple[int, ...] = ()

    def prior(self, bucket: int) -> float:
        return 0.5

    def start(self, tokens: Sequence[int]) -> None:
        self._path = ()

    def extend(self, tokens: Sequence[int]) -> None:
        self._path += tuple(tokens)

    def root(self) -> tuple[int, ...]:
        return self._path

    def advance(self, state: tuple[int, ...], token: int) -> tuple[int, ...]:
        return (*state, token)

    def candidates(self, state: tuple[int, ...]) -> list[Candidate]:
        if state not in tables():
            return []
        table = tables()[state]
        order = table.argsort(descending=True).tolist()
        last = int((table > 0).sum())
        chosen = order[: self._count] if self._best else [order[last], order[last - 1]]
        return [(token, 0) for token in chosen]

    def observe(self, seen: Observation) -> None:
        """Nothing to learn."""


def engine_with(guesses: str) -> Any:
    """An engine for the small model: "one argmax", "good", "bad" or "built-in" guesses."""
    if guesses == "built-in":
        config = Config(
            jacobi=JacobiConfig(window=2, ngram=2, always=True),
            planner=PlannerConfig(fixed_nodes=6),
            remember_cost=False,
        )
        return wrap(small(), config)
    count = {"one argmax": 1, "good": 3, "bad": 2}[guesses]
    return wrap(small(), scripted_config(), sources=[lambda: Ranked(count, best=guesses != "bad")])


def p_value(counts: Tensor, probabilities: Tensor) -> float:
    """Chi-square test of counts; rare tokens (fewer than five expected) are counted as one."""
    expected = probabilities * counts.sum()
    rare = expected < 5
    observed = torch.cat([counts[~rare], counts[rare].sum()[None]])
    expected = torch.cat([expected[~rare], expected[rare].sum()[None]])
    if float(expected[-1]) < 1:
        observed, expected = observed[:-1], expected[:-1]
    statistic = ((observed - expected) ** 2 / expected).sum()
    freedom = torch.tensor((len(observed) - 1) / 2, dtype=torch.float64)
    return float(torch.special.gammaincc(freedom, statistic / 2))


def sampled(engine: Any, runs: int, rows: int) -> tuple[Tensor, int]:
    """Counts [position, token] over so many texts, written in batches; guesses accepted."""
    counts = torch.zeros((LENGTH, SIZE), dtype=torch.float64)
    hits = 0
    for seed in range(runs // rows):
        torch.manual_seed(100_000 + seed)
        out = engine.generate(
            PROMPT.repeat(rows, 1),
            attention_mask=torch.ones((rows, 3), dtype=torch.long),
            do_sample=True,
            max_new_tokens=LENGTH,
            **WARP,
        )
        for ids in out[:, 3:]:
            counts[torch.arange(LENGTH), ids] += 1
        hits += accepted(engine)
    return counts, hits


@pytest.mark.parametrize(
    ("guesses", "runs", "rows"),
    [
        ("one argmax", RUNS, 40),
        ("good", RUNS, 40),
        ("bad", RUNS, 40),
        ("built-in", RUNS, 40),
        ("one argmax", RUNS // 4, 1),
        ("bad", RUNS // 4, 1),
    ],
)
def test_frequencies_at_positions_1_2_and_3(guesses: str, runs: int, rows: int) -> None:
    counts, hits = sampled(engine_with(guesses), runs, rows)
    assert hits > runs // (4 if guesses in ("one argmax", "good") else 40)
    for position in range(LENGTH):
        chances = marginal(position)
        assert counts[position][chances == 0].sum() == 0  # no filtered token ever appears
        assert p_value(counts[position], chances) > 1e-3
        assert (counts[position][chances > 0.06] > 0).all()  # every likely token is seen


def test_the_chi_square_test_notices_a_wrong_distribution() -> None:
    """Argmax guesses that are accepted once too often in ten, the bias it is there to find."""
    for position in range(LENGTH):
        chances = marginal(position)
        biased = 0.9 * chances
        biased[chances.argmax()] += 0.1
        assert p_value(biased * RUNS, chances) < 1e-3
    assert len(tables()) == 1 + SIZE + SIZE**2
    filtered = [int((table == 0).sum()) for table in tables().values()]
    assert min(filtered) >= 2 and max(filtered) > 2  # top-k and top-p both remove tokens


@pytest.mark.parametrize(
    "arguments", [{"temperature": 1e-4}, {"top_k": 1}, {"top_p": 1e-6}, {"min_p": 1.0}]
)
def test_one_token_left_to_sample_from(arguments: dict[str, Any]) -> None:
    """The residual after a rejection would be zero: no NaN, and the greedy text."""
    model = tiny("Llama")
    greedy = model.generate(prompt(), do_sample=False, max_new_tokens=20)
    for guesses in (2, 5):
        config = Config(planner=PlannerConfig(fixed_nodes=guesses), remember_cost=False)
        engine = wrap(model, config)
        sampled = {"do_sample": True, "max_new_tokens": 20, **arguments}
        plain = ran(model.generate, prompt(), **sampled)
        assert_same(ran(engine.generate, prompt(), **sampled), plain)
        assert plain.ids.tolist() == greedy.tolist()


def test_the_seed_decides_and_the_argmax_does_not() -> None:
    engine = engine_with("good")
    texts = set()
    for seed in range(300):
        torch.manual_seed(seed)
        texts.add(tuple(engine.generate(PROMPT, do_sample=True, max_new_tokens=1)[0].tolist()))
    probabilities = torch.softmax(small()(PROMPT).logits[0, -1].detach(), 0)
    likely = [token for token in range(SIZE) if float(probabilities[token]) > 0.03]
    assert len(likely) > 3
    assert {(*PROMPT[0].tolist(), token) for token in likely} <= texts
    for _ in range(2):
        torch.manual_seed(7)
        again = engine.generate(PROMPT, do_sample=True, max_new_tokens=30)
        torch.manual_seed(7)
        assert torch.equal(again, small().generate(PROMPT, do_sample=True, max_new_tokens=30))
