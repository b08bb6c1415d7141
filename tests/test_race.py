"""Chances given the noise are how often the exponential race is won."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead.race import given_noise

SEEDS = st.integers(0, 10**6)
ESTIMATES = st.floats(0.01, 0.98)


def raced(estimate: float, noise: float, draw: np.random.Generator, times: int = 20_000) -> float:
    """Share of races won by a token with this noise whose probability is spread about an estimate;
    the other tokens race as one of the remaining probability."""
    p = draw.beta(2 * estimate, 2 * (1 - estimate), size=times)
    with np.errstate(divide="ignore"):
        others = draw.exponential(size=times) / (1 - p)
        return float((noise / np.maximum(p, 1e-300) < others).mean())


@given(ESTIMATES, st.floats(0.005, 8.0), SEEDS)
def test_the_chance_is_the_share_of_races_won(estimate: float, noise: float, seed: int) -> None:
    draw = np.random.default_rng(seed)
    found = given_noise({3: estimate}, np.full(5, noise))[3]
    lower, upper = (raced(estimate, noise * by, draw) for by in (1.15, 1 / 1.15))
    assert lower - 0.04 <= found <= upper + 0.04


def test_many_tokens_race_like_one_of_the_remaining_probability() -> None:
    """What ``raced`` takes for granted, against races of whole distributions."""
    draw = np.random.default_rng(5)
    probs = np.array([0.3, 0.4, 0.2, 0.1])
    for noise in (0.05, 0.3, 1.0):
        drawn = draw.exponential(size=(20_000, 4))
        drawn[:, 0] = noise
        won = ((probs / drawn).argmax(1) == 0).mean()
        assert won == pytest.approx(np.exp(-noise * 0.7 / 0.3), abs=0.02)


@given(ESTIMATES, SEEDS)
def test_chances_average_to_the_estimate_and_fall_with_the_noise(
    estimate: float, seed: int
) -> None:
    noise = np.sort(np.random.default_rng(seed).exponential(size=3000))
    found = [given_noise({0: estimate}, noise[i : i + 1])[0] for i in range(len(noise))]
    assert np.mean(found) == pytest.approx(estimate, abs=0.04)
    assert found == sorted(found, reverse=True)


def test_chances_stay_chances_at_the_ends_and_beyond_the_noise() -> None:
    found = given_noise({0: 0.0, 1: 1.0, 2: 0.5, 99: 0.5}, np.array([0.0, 80.0, 0.0]))
    assert list(found) == [0, 1, 2, 99]
    assert all(0.0 < chance <= 1.0 for chance in found.values())
    assert found[2] > 0.9 > found[0]
