"""Acceptance estimates: counts shrunk to a prior, apart by source, path products corrected."""

from __future__ import annotations

import random

import numpy as np
import pytest

from lookahead.calibration import Calibration, PathCalibration, StreakCalibration
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
    weights = [0.8, 0.3, 0.05]
    assert [paths.correct(weight) for weight in weights] == weights
    for _ in range(2000):
        accepted = [i for i, weight in enumerate(weights) if draw.random() < weight / 2]
        paths.record(weights, accepted)
    for weight in weights:
        assert paths.correct(weight) == pytest.approx(weight / 2, rel=0.3)


def test_ratios_of_paths_begin_at_the_prior_and_leave_it_for_what_is_seen() -> None:
    paths = PathCalibration([0.5] * 16)
    weights = [0.9, 0.2]
    assert paths.correct(0.9) == pytest.approx(0.45)
    for _ in range(300):
        paths.record(weights, [0])
    assert paths.correct(0.9) == pytest.approx(1.0, abs=0.05)
    assert paths.correct(0.2) < 0.05
    assert PathCalibration([0.5]).ratios == [1.0] * 16  # of another version: left out


def test_guesses_after_a_streak_are_believed_as_often_as_they_come_true() -> None:
    draw = random.Random(3)
    streaks = StreakCalibration()
    rates = {0: 0.4, 3: 0.6, 20: 0.95}
    for _ in range(2000):
        for streak, rate in rates.items():
            streaks.record(streaks.cell(streak, 0.6), 0.6, draw.random() < rate)
    for streak, rate in rates.items():
        assert streaks.correct(streaks.cell(streak, 0.6), 0.6) == pytest.approx(rate, abs=0.06)
    assert streaks.correct(streaks.cell(8, 0.6), 0.6) == 0.6  # of this streak nothing was seen


def test_no_guess_is_ever_held_to_be_certain() -> None:
    streaks = StreakCalibration([3.0] * StreakCalibration.cells)
    assert max(streaks.correct(streaks.cell(s, p), p) for s in range(30) for p in (0.4, 1.0)) < 1


def test_cells_tell_streaks_and_chances_apart() -> None:
    cell = StreakCalibration.cell
    assert len({cell(s, p) for s in range(40) for p in np.linspace(0, 1, 101)}) == (
        StreakCalibration.cells
    )
    assert cell(15, 0.5) != cell(16, 0.5) and cell(16, 0.5) == cell(300, 0.5)
