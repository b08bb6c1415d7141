"""Noise by position against ``torch.multinomial``: same tokens, same generator afterwards."""

from __future__ import annotations

import random

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookahead.sampling import GuessPicks, Noise, default_generator, pick_sampled, top_tokens

CPU = torch.device("cpu")
SIZE = 40


def random_scores(seed: int, steps: int, batch: int) -> torch.Tensor:
    """Scores [steps, batch, vocabulary], some tokens filtered out."""
    draw = torch.Generator().manual_seed(seed)
    scores = torch.randn(steps, batch, SIZE, generator=draw) * 3
    filtered = torch.rand(steps, batch, SIZE, generator=draw) < 0.4
    filtered[..., 0] = False
    return scores.masked_fill(filtered, float("-inf"))


def drawn_between(seed: int, step: int) -> int:
    """How many numbers a processor draws before a step; mostly none."""
    return random.Random(seed * 1000 + step).choice([0, 0, 0, 1, 7])


@given(st.integers(0, 10**6), st.integers(1, 4), st.booleans())
def test_tokens_and_final_state_are_those_of_multinomial(
    seed: int, batch: int, processors_draw: bool
) -> None:
    """Also when noise was looked at far ahead, and when processors draw numbers in between."""
    steps = 12
    scores = random_scores(seed, steps, batch)
    torch.manual_seed(seed)
    expected = []
    for step in range(steps):
        if processors_draw:
            torch.rand(drawn_between(seed, step))
        probs = torch.softmax(scores[step], -1)
        expected.append(torch.multinomial(probs, 1).squeeze(1).tolist())
    state = torch.get_rng_state()

    draw = random.Random(seed)
    torch.manual_seed(seed)
    noise = Noise(batch, SIZE, CPU)
    found = []
    for step in range(steps):
        for ahead in range(draw.randint(0, 4)):
            noise.at(step + ahead)  # guesses for later positions
        if processors_draw:
            torch.rand(drawn_between(seed, step))
        found.append(pick_sampled(scores[step], noise.due(step)).tolist())
        noise.emitted(step)
    assert found == expected
    assert torch.equal(torch.get_rng_state(), state)


@given(st.integers(0, 10**6), st.integers(1, 20))
def test_looking_ahead_leaves_the_generator_alone(seed: int, ahead: int) -> None:
    torch.manual_seed(seed)
    before = torch.get_rng_state()
    noise = Noise(1, SIZE, CPU)
    first = noise.at(0).clone()
    noise.at(ahead)
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(noise.due(0), first)
    assert torch.equal(noise.at(0), first)


def test_a_position_keeps_its_noise_until_it_is_emitted() -> None:
    """What was drawn for a position as a guess is what its token is picked with."""
    torch.manual_seed(3)
    noise = Noise(2, SIZE, CPU)
    guessed = [noise.at(position).clone() for position in range(6)]
    for position in range(6):
        assert torch.equal(noise.due(position), guessed[position])
        noise.emitted(position)
    assert len({tuple(draw.flatten().tolist()) for draw in guessed}) == 6


def test_the_generator_is_the_one_multinomial_draws_from() -> None:
    assert default_generator(CPU) is torch.default_generator


@given(st.integers(0, 10**6))
def test_rejected_tokens_of_probability_zero_are_never_picked(seed: int) -> None:
    torch.manual_seed(seed)
    scores = torch.full((3, SIZE), float("-inf"))
    scores[:, [4, 9]] = torch.tensor([0.0, -30.0])
    noise = Noise(3, SIZE, CPU)
    for position in range(5):
        assert set(pick_sampled(scores, noise.due(position)).tolist()) <= {4, 9}
        noise.emitted(position)


@pytest.mark.parametrize(
    ("temperature", "top_k", "top_p"),
    [(1.0, 0, 1.0), (0.7, 0, 1.0), (1.0, 5, 1.0), (1.3, 0, 0.6), (0.8, 12, 0.8)],
)
def test_guessed_picks_are_the_picks_of_the_call(
    temperature: float, top_k: int, top_p: float
) -> None:
    """With the same noise, after the same temperature, top-k and top-p."""
    torch.manual_seed(1)
    logits = torch.randn(500, SIZE) * 2
    noise = torch.empty(500, SIZE).exponential_()
    scores = logits / temperature
    if top_k:
        scores = scores.masked_fill(scores < scores.topk(top_k).values[:, -1:], float("-inf"))
    if top_p < 1:
        probs, order = torch.softmax(scores, -1).sort(descending=True)
        gone = probs.cumsum(-1) - probs >= top_p
        scores = scores.scatter(-1, order, scores.gather(-1, order).masked_fill(gone, -torch.inf))
    expected = pick_sampled(scores, noise)
    guessed = GuessPicks(temperature, top_k, top_p)(logits, noise.log())
    assert (guessed == expected).float().mean() > 0.98  # ties at the edge of top-p


def test_top_tokens_are_the_likeliest_with_their_probabilities() -> None:
    torch.manual_seed(0)
    logits = torch.randn(7, SIZE)
    values, tokens, probs = top_tokens(logits, 5)
    assert torch.equal(values, logits.gather(-1, tokens))
    expected = torch.softmax(logits, -1).sort(descending=True)
    assert torch.equal(tokens, expected.indices[:, :5])
    torch.testing.assert_close(probs, expected.values[:, :5])
    assert top_tokens(logits, 100)[1].shape == (7, SIZE)
