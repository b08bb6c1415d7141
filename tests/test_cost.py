"""Pass costs: what was measured is reproduced, what is learned is followed, files are checked."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead.cost import WIDTHS, CostTable, PassCost, load_cost, save_cost

SECONDS = st.dictionaries(
    st.sampled_from(WIDTHS[:12]), st.floats(1e-4, 1.0), min_size=1, max_size=8
).map(lambda seconds: {1: min(seconds.values()), **seconds})


@given(SECONDS)
def test_measured_widths_cost_what_was_measured(seconds: dict[int, float]) -> None:
    """Relative to the narrowest; where a wider pass costs less, its cost counts."""
    cost = PassCost()
    assert not PassCost().measured
    cost.fit(100, seconds)
    assert cost.measured
    relative = cost.table(100, 64).relative
    for width in seconds:
        least = min(seconds[wider] for wider in seconds if wider >= width)
        assert relative[width] == pytest.approx(least / min(seconds.values()))
    assert relative[1] == pytest.approx(1.0)
    assert (np.diff(relative) >= -1e-12).all()


@given(st.lists(st.floats(0.0, 3.0), min_size=2, max_size=20))
def test_slopes_are_the_least_mean_cost_of_a_further_token(steps: list[float]) -> None:
    relative = np.cumsum(steps)
    table = CostTable.of(relative)
    for n in range(len(relative) - 1):
        wider = range(n + 1, len(relative))
        expected = min((relative[m] - relative[n]) / (m - n) for m in wider)
        assert table.slopes[n] == pytest.approx(expected)
        assert table.floors[n] == min(table.slopes[n:-1])


@given(st.integers(1, 1000), st.integers(1, 100_000))
def test_tables_reach_past_the_widest_pass_that_was_asked_for(widest: int, context: int) -> None:
    table = PassCost({1: 0.1, 8: 0.2}).table(context, widest)
    assert len(table.relative) >= widest + 2
    assert len(table.slopes) == len(table.relative)


def test_beyond_the_last_measured_width_the_last_slope_goes_on() -> None:
    relative = PassCost({1: 1.0, 4: 1.0, 8: 3.0}).table(0, 64).relative
    assert relative[64] == pytest.approx(3.0 + 56 * 0.5)


def test_a_curve_holds_for_its_class_of_context_and_the_nearest_ones() -> None:
    cost = PassCost()
    cost.fit(100, {1: 1.0, 64: 2.0})
    cost.fit(5000, {1: 2.0, 64: 8.0})
    assert cost.table(400, 64).relative[64] == pytest.approx(2.0)
    assert cost.table(600, 64).relative[64] == pytest.approx(2.0)
    assert cost.table(8000, 64).relative[64] == pytest.approx(4.0)
    assert cost.table(200_000, 64).relative[64] == pytest.approx(4.0)


def test_learning_follows_passes_that_have_become_dearer() -> None:
    cost = PassCost({1: 1.0, 16: 1.2, 64: 1.5})
    for _ in range(600):
        cost.learn(1, 100, 1.0)
        for width in (16, 24, 32, 48, 64):
            cost.learn(width, 100, 2.4)
    assert cost.table(100, 64).relative[16] == pytest.approx(2.4, rel=0.15)


def test_the_load_of_the_machine_moves_the_scale_and_not_the_shape() -> None:
    cost = PassCost({1: 1.0, 16: 1.5, 64: 3.0})
    for _ in range(300):
        for width, seconds in ((1, 2.0), (16, 3.0), (64, 6.0)):
            cost.learn(width, 100, seconds)
    assert cost.scale == pytest.approx(2.0, rel=0.1)
    relative = cost.table(100, 64).relative
    assert [relative[n] for n in (1, 16, 64)] == pytest.approx([1.0, 1.5, 3.0], rel=0.1)


def test_one_hiccup_does_not_bend_the_curve() -> None:
    cost = PassCost({1: 1.0, 16: 1.5})
    cost.learn(16, 100, 1000.0)
    assert cost.table(100, 64).relative[16] == pytest.approx(1.5, rel=0.1)
    assert cost.scale < 1.2


@given(SECONDS, st.lists(st.tuples(st.sampled_from(WIDTHS), st.floats(1e-5, 10.0)), max_size=40))
def test_whatever_is_learned_curves_stay_rising_from_1(
    seconds: dict[int, float], passes: list[tuple[int, float]]
) -> None:
    cost = PassCost(seconds)
    for width, took in passes:
        cost.learn(width, 10, took)
    relative = PassCost.from_dict(json.loads(json.dumps(cost.to_dict()))).table(10, 64).relative
    assert relative[1] == pytest.approx(1.0)
    assert np.isfinite(relative).all() and (np.diff(relative) >= -1e-9).all()


def test_a_saved_curve_is_loaded_as_it_was(tmp_path: Path) -> None:
    cost = PassCost({1: 0.5, 8: 0.7, 64: 2.0})
    path = tmp_path / "new" / "cost.json"
    save_cost(path, cost)
    loaded = load_cost(path)
    assert loaded is not None and loaded.measured
    assert loaded.scale == cost.scale
    assert np.array_equal(loaded.table(0, 64).relative, cost.table(0, 64).relative)
    assert [file.name for file in path.parent.iterdir()] == ["cost.json"]  # nothing half-written


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        '{"scale": 1, "shapes": {"0": [1, 2]}}',
        '{"scale": "x", "shapes": {}}',
        '{"scale": 1, "shapes": {"a": ' + str([1.0] * len(WIDTHS)) + "}}",
        '{"scale": 1, "shapes": {"0": ' + str([-1.0] * len(WIDTHS)) + "}}",
    ],
)
def test_a_file_that_is_no_curve_is_ignored(tmp_path: Path, text: str) -> None:
    (tmp_path / "cost.json").write_text(text)
    assert load_cost(tmp_path / "cost.json") is None
    assert load_cost(tmp_path / "missing.json") is None


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    save_cost(tmp_path / "file" / "cost.json", PassCost({1: 1.0}))
    assert (tmp_path / "file").read_text() == ""


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_a_saved_curve_without_a_possible_time_is_not_used(scale: float, tmp_path: Path) -> None:
    (tmp_path / "cost").write_text(
        json.dumps({"scale": scale, "shapes": {"0": [1.0] * len(WIDTHS)}})
    )
    assert load_cost(tmp_path / "cost") is None


def test_a_saved_curve_that_nests_without_end_is_not_used(tmp_path: Path) -> None:
    (tmp_path / "cost").write_text("[" * 100_000)
    assert load_cost(tmp_path / "cost") is None
