"""Guesses under sampling are weighed by the noise that will pick the token."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from lookahead.calibration import Calibration
from lookahead.config import PlannerConfig
from lookahead.cost import CostTable
from lookahead.planner import Planner
from lookahead.sources import Observation
from lookahead.sources.base import Candidate

FLAT = CostTable.of(np.ones(130))


class Named:
    """Guesses each of its tokens after any path, all with the same chance."""

    buckets = 1

    def __init__(self, tokens: Sequence[int], *, follows_noise: bool = False) -> None:
        self.name = f"named {tokens}"
        self._tokens = tokens
        self.follows_noise = follows_noise

    def prior(self, bucket: int) -> float:
        return 0.3

    def start(self, tokens: Sequence[int]) -> None: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def observe(self, seen: Observation) -> None: ...

    def root(self) -> int:
        return 0

    def advance(self, state: int, token: int) -> int:
        return state

    def candidates(self, state: int) -> list[Candidate]:
        return [(token, 0) for token in self._tokens]


def children_of_root(sources: Sequence[Named], noise: Sequence[float]) -> dict[int, float]:
    planner = Planner(PlannerConfig(fixed_nodes=64), sources, Calibration(sources))
    plan = planner.plan(0, FLAT, 64, 1, rate=1.0, noise=lambda depth: np.array(noise))
    return {plan.tree.tokens[node]: plan.weights[node] for node in range(1, len(plan.tree))}


def test_of_equal_guesses_the_one_with_little_noise_is_likeliest() -> None:
    found = children_of_root([Named([0, 1, 2])], [2.0, 0.01, 0.4])
    assert sorted(found, key=found.__getitem__, reverse=True) == [1, 2, 0]


def test_guesses_made_with_the_noise_are_not_weighed_by_it_again() -> None:
    alone = children_of_root([Named([1], follows_noise=True)], [3.0, 3.0])
    assert alone == children_of_root([Named([1], follows_noise=True)], [0.01, 0.01])
    both = children_of_root([Named([0, 1]), Named([1], follows_noise=True)], [3.0, 3.0])
    assert both[1] == pytest.approx(alone[1]) and both[1] > 3 * both.get(0, 0.0)


def test_tokens_beyond_the_noise_are_guesses_still() -> None:
    assert set(children_of_root([Named([0, 7])], [0.5, 0.5])) == {0, 7}


def test_without_noise_for_a_position_estimates_stay() -> None:
    source = Named([0, 1])
    planner = Planner(PlannerConfig(fixed_nodes=64), [source], Calibration([source]))
    plain = planner.plan(0, FLAT, 64, 2, rate=1.0)
    asked = planner.plan(0, FLAT, 64, 2, rate=1.0, noise=lambda depth: None)
    assert plain.weights == asked.weights and plain.tree.tokens == asked.tree.tokens


def test_each_node_is_weighed_by_the_noise_of_its_own_position() -> None:
    """Of two tokens after any path, the noise of each depth favours another one."""
    source = Named([0, 1])
    planner = Planner(PlannerConfig(fixed_nodes=3), [source], Calibration([source]))
    low, high = 0.01, 3.0
    noise = {0: [low, high], 1: [high, low], 2: [low, high]}
    plan = planner.plan(0, FLAT, 64, 3, rate=1.0, noise=lambda depth: np.array(noise[depth]))
    assert plan.tree.tokens[1:] == [0, 1, 0] and plan.tree.is_chain()
