"""Acceptance estimates: counts shrunk to a prior, apart by source, path products corrected."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lookahead.calibration import Calibration, PathCalibration
from lookahead.config import LookupConfig, PoolConfig
from lookahead.sources import NgramPool, PoolSource, PromptLookup, Source


def sources() -> list[Source]:
    return [PromptLookup(LookupConfig()), PoolSource(NgramPool(PoolConfig(), 4))]


def test_before_any_trial_estimates_are_the_priors_of_the_sources() -> None:
    made = sources()
    calibration = Calibration(made)
    for index, source in enumerate(made):
        begin = calibration.offsets[index]
        estimates = calibration.probabilities[begin : begin + source.buckets]
        assert estimates == [source.prior(bucket) for bucket in range(source.buckets)]
        assert set(calibration.owners[begin : begin + source.buckets]) == {index}
    assert len(calibration.owners) == sum(source.buckets for source in made)


def test_shipped_priors_replace_the_sources_own_where_they_fit() -> None:
    made = sources()
    shipped = {"ngram_pool": [0.125] * made[1].buckets, "prompt_lookup": [0.5]}
    calibration = Calibration(made, shipped)
    assert calibration.probabilities[calibration.offsets[1]] == 0.125
    assert calibration.probabilities[0] == made[0].prior(0)  # of another version: left out


@pytest.mark.parametrize("rate", [0.05, 0.5, 0.9])
def test_estimates_come_to_the_rate_at_which_guesses_come_true(rate: float) -> None:
    draw = random.Random(1)
    calibration = Calibration(sources())
    for _ in range(3000):
        calibration.record([3], draw.random() < rate)
    assert calibration.probabilities[3] == pytest.approx(rate, abs=0.04)
    assert calibration.probabilities[4] == sources()[0].prior(4)  # the others know nothing of it


def test_estimates_follow_when_the_text_changes() -> None:
    calibration = Calibration(sources())
    for _ in range(20_000):
        calibration.record([0], True)
    for _ in range(4000):
        calibration.record([0], False)
    assert calibration.probabilities[0] < 0.3
    assert min(calibration.probabilities) > 0 and max(calibration.probabilities) < 1


def test_path_products_that_promise_too_much_are_corrected() -> None:
    draw = random.Random(2)
    paths = PathCalibration()
    weights = np.array([0.8, 0.3, 0.05])
    assert np.array_equal(paths.correct(weights), weights)
    for _ in range(2000):
        accepted = [i for i, weight in enumerate(weights) if draw.random() < weight / 2]
        paths.record(weights, accepted)
    assert paths.correct(weights) == pytest.approx(weights / 2, rel=0.3)
