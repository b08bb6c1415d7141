"""Drafting for one row: what is spent under different costs, and what the window is owed."""

from __future__ import annotations

import itertools
import random

import numpy as np

from lookahead.config import Config, JacobiConfig
from lookahead.cost import CostTable
from lookahead.drafting import Drafter
from lookahead.memory import Memory, WindowValue
from lookahead.plan import Plan
from lookahead.sources import Observation
from lookahead.tree import TokenTree

WIDEST = 130


def curve(slope: float) -> CostTable:
    """A pass over n tokens costs 1 + slope (n - 1)."""
    return CostTable.of(1.0 + slope * (np.arange(WIDEST, dtype=np.float64) - 1.0))


def drafter(config: Config | None = None) -> Drafter:
    """A row whose text repeats itself, over a memory that holds recycled tokens."""
    memory = Memory(config or Config())
    draw = random.Random(0)
    text = [draw.randrange(50) for _ in range(60)]
    for before, token in itertools.pairwise(text):
        memory.recycling.put(before, token, (tuple(draw.sample(range(50), 8)), (4,) * 8))
    return Drafter(memory, text + text[:20], sampling=False, chain=False)


def test_a_flat_cost_curve_buys_a_wide_tree_and_the_window() -> None:
    plan = drafter().draft(7, curve(0.001), 64, 100)
    assert plan.guessed - 1 >= 32
    assert plan.window


def test_a_steep_cost_curve_buys_nothing() -> None:
    plan = drafter().draft(7, curve(1.0), 64, 100)
    assert len(plan.tree) == 1 and not plan.window


def test_the_budget_falls_as_passes_get_dearer() -> None:
    widths = [
        len(drafter().draft(7, curve(slope), 64, 100).tree) for slope in (0.001, 0.03, 0.3, 1)
    ]
    assert widths == sorted(widths, reverse=True) and widths[0] > widths[-1]


def test_the_window_never_passes_the_end_of_the_text() -> None:
    config = Config(jacobi=JacobiConfig(window=5, ngram=4, always=True))
    for room in range(12):
        plan = drafter(config).draft(7, curve(0.001), 64, room)
        assert max(plan.tree.depths) <= room
        assert plan.window == (room >= 5 + 4 - 2)


def test_a_window_that_earns_nothing_is_given_up_and_tried_again_later() -> None:
    value = WindowValue()
    assert value.pays(0.2, 1.5)
    for _ in range(200):
        value.saw(0, active=True)
    assert not value.pays(0.2, 1.5)
    for _ in range(3000):
        value.saw(0, active=False)
    assert value.pays(0.2, 1.5)


def test_a_window_that_earns_is_kept_where_it_costs_more() -> None:
    value = WindowValue()
    for _ in range(200):
        value.saw(1, active=True)
    assert value.pays(0.5, 1.5)


def test_learning_raises_the_estimates_that_came_true_and_lowers_the_others() -> None:
    row = drafter()
    plan = row.draft(7, curve(0.001), 8, 100)
    guess = plan.tree.tokens[1]
    before = list(row.calibration.probabilities)
    seen = Observation(plan.tree, [0] * len(plan.tree), [0], [guess])
    row.learn(plan, seen)
    after = row.calibration.probabilities
    right = set(plan.offered[0][guess])
    wrong = {b for token, known in plan.offered[0].items() if token != guess for b in known}
    assert right and all(after[bucket] > before[bucket] for bucket in right - wrong)
    assert wrong and all(after[bucket] < before[bucket] for bucket in wrong - right)


def test_a_streak_of_likeliest_guesses_is_counted_over_passes_and_ends_at_a_miss() -> None:
    row = drafter()

    def passed(hit: bool) -> int:
        plan = row.draft(7, curve(0.001), 8, 100)
        likeliest = plan.tops[0][0]
        emitted = likeliest if hit else next(t for t in range(50) if t != likeliest)
        row.learn(plan, Observation(plan.tree, [0] * len(plan.tree), [0], [emitted]))
        return row._streak

    assert [passed(hit) for hit in (True, True, True, False, True)] == [1, 2, 3, 0, 1]


def test_only_passes_that_were_run_for_a_row_count_for_the_pace() -> None:
    row = drafter()
    rate = row._memory.pace.rate
    prompt = Plan(TokenTree(7))
    row.learn(prompt, Observation(prompt.tree, [0], [0], [3]))
    assert row._memory.pace.rate == rate
    plan = row.draft(3, curve(0.001), 8, 100)
    row.learn(plan, Observation(plan.tree, [0] * len(plan.tree), [0], [4]))
    assert row._memory.pace.rate < rate


def test_a_leaf_that_was_not_expanded_leaves_the_streak_as_it_was() -> None:
    row = drafter()
    row._streak = 4
    plan = row.draft(7, curve(0.001), 1, 100)
    leaf = plan.tree.tokens[1]
    assert 1 not in plan.tops
    row.learn(plan, Observation(plan.tree, [0] * len(plan.tree), [0, 1], [leaf, 3]))
    assert row._streak == (5 if plan.tops[0][0] == leaf else 0)


def test_the_window_is_credited_for_what_else_only_its_picks_by_position_offer() -> None:
    row = drafter()
    first = {
        source.name: (offset,)
        for source, offset in zip(row.sources, row.calibration.offsets, strict=True)
    }
    window, by_position, copied = first["jacobi"], first["positions"], first["prompt_lookup"]
    assert row._is_owed(()) and row._is_owed(window) and row._is_owed(window + by_position)
    assert not row._is_owed(by_position)
    assert not row._is_owed(window + copied) and not row._is_owed(copied)
