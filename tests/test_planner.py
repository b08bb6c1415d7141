"""The planner against enumeration: every node weighed, every budget tried."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead.calibration import Calibration
from lookahead.config import PlannerConfig
from lookahead.cost import CostTable
from lookahead.plan import Plan
from lookahead.planner import _MARGIN, Pace, Planner
from lookahead.sources import Observation
from lookahead.sources.base import Candidate

DEPTH = 3
Path = tuple[int, ...]


class FixedSource:
    """Up to three guesses after any path of up to DEPTH tokens, the same at every asking."""

    buckets = 200

    def __init__(self, name: str, seed: int) -> None:
        self.name = name
        self._seed = seed
        draw = random.Random(seed)
        self._priors = [draw.uniform(0.15, 0.6) for _ in range(self.buckets)]

    def prior(self, bucket: int) -> float:
        return self._priors[bucket]

    def start(self, tokens: Sequence[int]) -> None: ...

    def extend(self, tokens: Sequence[int]) -> None: ...

    def observe(self, seen: Observation) -> None: ...

    def root(self) -> Path:
        return ()

    def advance(self, state: Path, token: int) -> Path:
        return (*state, token)

    def candidates(self, state: Path) -> list[Candidate]:
        draw = random.Random(hash((self._seed, state)))
        tokens = draw.sample(range(5), draw.randint(0, 3))
        return [(token, draw.randrange(self.buckets)) for token in tokens]


def enumerate_weights(sources: Sequence[FixedSource], max_depth: int) -> dict[Path, float]:
    """Path probability of every possible node: products of the largest estimate of each token,
    scaled down where the children of a node would sum to more than 1."""
    weights: dict[Path, float] = {(): 1.0}
    front: list[Path] = [()]
    while front:
        path = front.pop()
        if len(path) == max_depth:
            continue
        chances: dict[int, float] = {}
        for source in sources:
            for token, bucket in source.candidates(path):
                chances[token] = max(chances.get(token, 0.0), source.prior(bucket))
        total = max(1.0, sum(chances.values()))
        for token, chance in chances.items():
            child = (*path, token)
            weights[child] = weights[path] * chance / total
            front.append(child)
    return weights


@dataclass
class Case:
    """A planner, what it is asked, and every node it could take."""

    planner: Planner
    cost: CostTable
    max_depth: int
    weights: dict[Path, float]

    def plan(self, max_nodes: int = 1000, *, chain: bool = False, rate: float = 1.0) -> Plan:
        return self.planner.plan(7, self.cost, max_nodes, self.max_depth, chain=chain, rate=rate)


def staircase(draw: random.Random, widest: int = 130) -> CostTable:
    """A rising cost with flat stretches and jumps."""
    steps = [draw.choice([0.0, 0.0, 0.01, 0.1, 0.5]) for _ in range(widest - 1)]
    return CostTable.of(1.0 + np.cumsum([0.0, 0.0, *steps]))


def make(seed: int, config: PlannerConfig) -> Case:
    draw = random.Random(seed)
    sources = [FixedSource(name, seed + i) for i, name in enumerate("abc"[: draw.randint(1, 3)])]
    max_depth = draw.randint(0, DEPTH)
    planner = Planner(config, sources, Calibration(sources))
    return Case(planner, staircase(draw), max_depth, enumerate_weights(sources, max_depth))


def paths(plan: Plan) -> list[Path]:
    tree = plan.tree
    return [tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(len(tree))]


SEEDS = st.integers(0, 10**6)


@given(SEEDS, st.sampled_from([0.3, 1.0, 2.5]), st.integers(0, 60))
def test_the_budget_is_the_best_of_all_budgets(seed: int, rate: float, max_nodes: int) -> None:
    case = make(seed, PlannerConfig(max_nodes=max_nodes))
    plan = case.plan(rate=rate)
    weights = sorted(case.weights.values(), reverse=True)[: max_nodes + 1]
    gains = np.cumsum(weights)
    worth = gains - rate * _MARGIN * case.cost.relative[1 : len(gains) + 1]
    nodes = len(plan.tree) - 1
    assert nodes <= max_nodes
    assert worth[nodes] == pytest.approx(worth.max())
    assert plan.expected == pytest.approx(gains[nodes])
    assert plan.price == pytest.approx(case.cost.relative[nodes + 1])


class Chain(FixedSource):
    """One guess after any path, always with the same chance."""

    def __init__(self, chance: float) -> None:
        super().__init__("chain", 0)
        self._priors = [chance] * self.buckets

    def candidates(self, state: Path) -> list[Candidate]:
        return [(len(state), 0)]


def test_spending_by_the_rate_reached_comes_near_the_best_of_all_ways_to_spend() -> None:
    """Passes that can gain much and passes that can gain little, in turn; all pairs enumerated."""
    chances = (0.9, 0.3)
    cost = CostTable.of(1.0 + 0.06 * np.arange(-1, 60, dtype=np.float64))

    def long_run(nodes: Sequence[int]) -> float:
        gain = sum(sum(p**k for k in range(n + 1)) for p, n in zip(chances, nodes, strict=True))
        return gain / sum(cost.price(n + 1) for n in nodes)

    chains = [Chain(chance) for chance in chances]
    planners = [Planner(PlannerConfig(), [chain], Calibration([chain])) for chain in chains]
    pace = Pace()
    for _ in range(100):
        plans = [planner.plan(7, cost, 50, 50, rate=pace.rate) for planner in planners]
        for plan in plans:
            pace.saw(plan.expected, plan.price)
    widths = [len(plan.tree) - 1 for plan in plans]
    everything = max(long_run((a, b)) for a in range(50) for b in range(50))
    prices = np.array([cost.price(n + 1) for n in range(50)])
    by_ratio = [int(np.argmax(np.cumsum(p ** np.arange(50)) / prices)) for p in chances]
    assert widths[0] > widths[1]
    assert long_run(widths) > 0.98 * everything
    assert long_run(by_ratio) < 0.985 * long_run(widths)


def test_a_streak_makes_the_likeliest_guess_surer_and_the_others_less_so() -> None:
    source = next(s for s in (FixedSource("a", i) for i in range(99)) if len(s.candidates(())) == 3)
    calibration = Calibration([source])
    planner = Planner(PlannerConfig(fixed_nodes=40), [source], calibration)
    cost = staircase(random.Random(0))
    streaks = calibration.streaks

    def first_level(streak: int) -> tuple[dict[int, float], tuple[int, float, int]]:
        plan = planner.plan(7, cost, 40, 1, rate=1.0, streak=streak)
        tokens = plan.tree.tokens
        found = {tokens[n]: plan.weights[n] for n in range(1, len(tokens))}
        return found, plan.tops[0]

    before, (top, chance, _) = first_level(0)
    cell = streaks.cell(16, chance)
    for _ in range(200):
        streaks.record(cell, chance, True)
    after, (same, _, found) = first_level(16)
    assert (same, found) == (top, cell) and len(before) > 1
    assert after[top] == pytest.approx(streaks.correct(cell, chance)) and after[top] > before[top]
    for token in set(before) - {top}:
        assert after[token] < before[token]
    assert first_level(0)[0] == pytest.approx(before)


def test_a_path_of_likeliest_guesses_goes_on_with_the_streak() -> None:
    chain = Chain(0.9)
    calibration = Calibration([chain])
    planner = Planner(PlannerConfig(fixed_nodes=20), [chain], calibration)
    plan = planner.plan(7, staircase(random.Random(0)), 20, 20, rate=1.0, streak=3)
    cells = [plan.tops[node][2] for node in range(20)]
    assert cells == [calibration.streaks.cell(3 + depth, 0.9) for depth in range(20)]


def test_the_pace_follows_what_decoding_reaches() -> None:
    pace = Pace()
    for _ in range(200):
        pace.saw(3, 1.2)
    assert pace.rate == pytest.approx(2.5, rel=1e-2)
    for _ in range(60):
        pace.saw(1, 1.0)
    assert pace.rate < 1.3


@given(SEEDS, st.integers(0, 40))
def test_a_fixed_budget_takes_the_likeliest_nodes(seed: int, nodes: int) -> None:
    case = make(seed, PlannerConfig(max_nodes=40, fixed_nodes=nodes))
    plan = case.plan()
    expected = sorted(case.weights.values(), reverse=True)[: nodes + 1]
    assert sorted(plan.weights, reverse=True) == pytest.approx(expected)
    assert len(plan.tree) == min(nodes + 1, len(case.weights))


@given(SEEDS, st.integers(0, 30), st.booleans())
def test_no_plan_passes_its_bounds(seed: int, max_nodes: int, chain: bool) -> None:
    case = make(seed, PlannerConfig(max_nodes=30, fixed_nodes=30))
    plan = case.plan(max_nodes, chain=chain)
    assert len(plan.tree) - 1 <= max_nodes
    assert max(plan.tree.depths) <= case.max_depth
    if chain:
        assert plan.tree.is_chain()


@given(SEEDS)
def test_a_plan_knows_its_nodes(seed: int) -> None:
    """Weights are path probabilities; the likeliest chain comes first; proposers proposed."""
    case = make(seed, PlannerConfig(max_nodes=20, fixed_nodes=20))
    plan = case.plan()
    sources = case.planner._sources
    assert len(plan.weights) == len(plan.proposers) == len(plan.tree) == plan.guessed
    assert plan.tree.tokens[0] == 7
    for node, path in enumerate(paths(plan)):
        assert plan.weights[node] == pytest.approx(case.weights[path])
        guessed_by = {
            i
            for i, source in enumerate(sources)
            if path and path[-1] in [token for token, _ in source.candidates(path[:-1])]
        }
        assert set(plan.proposers[node]) == guessed_by
    for node, offer in plan.offered.items():
        path = paths(plan)[node]
        expected = {token for source in sources for token, _ in source.candidates(path)}
        assert set(offer) == expected
        assert all(len(buckets) > 0 for buckets in offer.values())
    best = 0
    while children := [c for c in range(1, len(plan.tree)) if plan.tree.parents[c] == best]:
        assert best + 1 in children
        assert plan.weights[best + 1] == pytest.approx(max(plan.weights[c] for c in children))
        best += 1


def test_no_guess_is_verified_where_none_pays() -> None:
    case = make(3, PlannerConfig())
    case.max_depth = 3
    dear = CostTable.of(np.arange(130, dtype=np.float64))
    plan = case.planner.plan(7, dear, 64, 3, rate=1.0)
    assert len(plan.tree) == 1
    assert (plan.expected, plan.price) == (1.0, 1.0)


def test_without_guesses_the_plan_is_the_root() -> None:
    planner = Planner(PlannerConfig(), [], Calibration([]))
    plan = planner.plan(5, staircase(random.Random(0)), 64, 10, rate=1.0)
    assert plan.tree.tokens == [5]
    assert plan.expected == 1.0
