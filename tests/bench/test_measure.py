"""Figures follow from rows as their definitions say."""

import io
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from lookahead.bench import report
from lookahead.bench.measure import (
    bootstrap,
    predict,
    summarise,
    tokens_by_position,
    width_costs,
)
from lookahead.bench.plots import effective_alpha, save_plots
from lookahead.bench.rows import Row
from lookahead.bench.settings import Settings
from lookahead.bench.timing import Pass
from lookahead.stats import Stats


def plain(case: str, category: str, tokens: int, per_token: float) -> Row:
    passes = [Pass(1, per_token, 1)] * (tokens - 1)
    seconds = 0.5 + per_token * (tokens - 1)
    return Row(
        case, category, "plain", [1], [0] * tokens, seconds, 0.5, 1, passes, 0.9 * (seconds - 0.5),
        equal=True,
    )  # fmt: skip


def engine(row: Row, width: int, cost: float, emitted: int) -> Row:
    """``row`` done in passes of ``width`` that cost ``cost`` plain passes each."""
    unit = row.passes[0].seconds if row.passes else 0.0
    count = (len(row.tokens) - 1) // emitted
    passes = [Pass(width, cost * unit, emitted)] * count
    stats = Stats(
        proposed={"recycling": 10 * count},
        accepted={"recycling": 5 * count},
        proposed_by_depth=[6, 4],
        accepted_by_depth=[4, 1],
        seconds_total=10.0,
        seconds_prefill=2.0,
        seconds_model=7.6,
    )
    seconds = 0.5 + count * cost * unit
    return replace(
        row, method="engine", seconds=seconds, passes=passes, stats=stats.to_dict(), equal=True
    )


@pytest.fixture
def rows() -> list[Row]:
    cases = [plain("a", "chat", 41, 0.1), plain("b", "chat", 81, 0.1), plain("c", "code", 21, 0.1)]
    return [row for case in cases for row in (case, engine(case, 8, 1.25, 2))]


def summary(rows: list[Row], method: str, category: str = "all") -> Any:
    return next(s for s in summarise(rows) if (s.method, s.category) == (method, category))


def test_speedup_is_the_ratio_of_summed_seconds_where_outputs_are_equal(rows: list[Row]) -> None:
    ours = summary(rows, "engine")
    plain_seconds = sum(r.seconds for r in rows if r.method == "plain")
    seconds = sum(r.seconds for r in rows if r.method == "engine")
    assert ours.speedup.value == pytest.approx(plain_seconds / seconds)
    assert ours.decode_speedup == pytest.approx(2 / 1.25)
    ratios = sorted(p.seconds / e.seconds for p, e in zip(rows[::2], rows[1::2], strict=True))
    assert ours.median_speedup.value == pytest.approx(ratios[1])
    assert ratios[0] <= ours.median_speedup.low <= ours.median_speedup.high <= ratios[2]


def test_plain_decoding_is_1_in_every_figure(rows: list[Row]) -> None:
    reference = summary(rows, "plain")
    assert (reference.speedup.value, reference.speedup.low, reference.speedup.high) == (1, 1, 1)
    assert reference.decode_speedup == reference.pass_cost == 1.0
    assert reference.tokens_per_pass == 1.0 and reference.nodes_per_pass == 0.0
    assert reference.predicted_speedup == pytest.approx(1.0)


def test_passes_and_acceptance_are_counted(rows: list[Row]) -> None:
    ours = summary(rows, "engine")
    assert ours.tokens_per_pass == 2.0 and ours.nodes_per_pass == 7.0
    assert ours.pass_cost == pytest.approx(1.25)
    assert ours.predicted_speedup == pytest.approx(1.6)
    assert ours.proposed == {"recycling": 10 * 70} and ours.accepted == {"recycling": 5 * 70}
    assert ours.depths.proposed == [18, 12] and ours.depths.accepted == [12, 3]
    assert ours.share_outside == pytest.approx(0.4 / 8.0)
    assert summary(rows, "plain").share_outside == pytest.approx(0.1)


def test_categories_are_summarised_apart(rows: list[Row]) -> None:
    assert [(s.category, s.method) for s in summarise(rows)] == [
        (category, method) for category in ("all", "chat", "code") for method in ("plain", "engine")
    ]
    assert summary(rows, "engine", "code").cases == 1


def test_shorter_output_is_not_counted_as_speed(rows: list[Row]) -> None:
    half = [
        replace(r, tokens=r.tokens[: len(r.tokens) // 2], seconds=r.seconds / 2)
        if r.method == "engine"
        else r
        for r in rows
    ]
    whole, cut = summary(rows, "engine"), summary(half, "engine")
    assert cut.speedup.value == pytest.approx(whole.speedup.value, rel=0.05)


def test_the_interval_covers_the_truth_as_often_as_it_says() -> None:
    rng = np.random.default_rng(5)
    covered = 0
    for _ in range(100):
        plain_seconds = rng.uniform(1, 3, 40)
        seconds = plain_seconds / rng.lognormal(np.log(1.5), 0.2, 40)
        ones = np.full(40, 100.0)
        values = np.stack([ones, seconds, ones, plain_seconds], axis=1)
        interval = bootstrap(values, "median", resamples=400)
        covered += interval.low <= 1.5 <= interval.high
    assert 88 <= covered <= 100
    with pytest.raises(ValueError, match="statistic"):
        bootstrap(values, "mode")


def test_costs_are_medians_by_width_and_a_stall_shows_against_the_prediction() -> None:
    case = plain("a", "chat", 41, 0.1)
    row = engine(case, 8, 1.25, 2)
    stalled = replace(row, passes=[*(row.passes or [])[:-1], Pass(8, 3.0, 2)])
    assert width_costs([stalled]) == {8: pytest.approx(0.125)}
    assert predict([stalled], width_costs([stalled]), 0.1) == pytest.approx(1.6)
    assert predict([replace(row, passes=None)], {}, 0.1) is None


def test_tokens_per_pass_are_binned_by_output_position() -> None:
    passes = [Pass(4, 1.0, 1)] * 31 + [Pass(4, 1.0, 4)] * 8
    row = Row("a", "chat", "engine", [1], [0] * 64, 1.0, 0.1, 1, passes)
    assert tokens_by_position([row]) == [1.0, 4.0]


def test_the_equivalent_chain_gives_the_same_tokens_per_pass(rows: list[Row]) -> None:
    from lookahead.theory import expected_tokens

    ours = summary(rows, "engine")
    assert expected_tokens(effective_alpha(ours), 7) == pytest.approx(2.0)


def test_reports_say_the_same_in_table_markdown_and_json(rows: list[Row]) -> None:
    summaries = summarise(rows)
    settings = Settings("tiny", methods=("engine",))
    console = Console(width=200, record=True, file=io.StringIO())
    console.print(report.table(summaries))
    console.print(report.profile(summaries, rows))
    text = console.export_text()
    ours = summary(rows, "engine")
    figure = f"{ours.speedup.value:.2f} [{ours.speedup.low:.2f}, {ours.speedup.high:.2f}]"
    markdown = report.markdown(summaries, settings, {"torch": "1"}, "lookahead bench")
    values = json.loads(json.dumps(report.as_json(summaries, rows, settings, {}, True)))
    assert figure in text and figure in markdown
    assert "76.0%" in text  # the model's share of the engine's ten seconds
    assert "| engine | recycling | 700 | 350 | 50.0% |" in markdown
    kept = next(s for s in values["summaries"] if s["method"] == "engine")
    assert kept["speedup"]["value"] == pytest.approx(ours.speedup.value)
    assert values["seconds_by_width"]["engine"] == {"8": pytest.approx(0.125)}
    assert values["cases"] == 3 and values["differences"] == []


def test_differences_are_reported(rows: list[Row]) -> None:
    verdict = {"outcome": "rounding tie", "position": 3, "gap": 0.01}
    rows[1] = replace(rows[1], equal=False, verdict=verdict)
    summaries = summarise(rows)
    assert "2/3, 1 ties" in report.cells(summary(rows, "engine"))
    values = report.as_json(summaries, rows, Settings("tiny"), {}, True)
    assert values["differences"] == [{"case": "a", "method": "engine", **verdict}]


def test_plots_are_written_and_not_blank(rows: list[Row], tmp_path: Path) -> None:
    image = pytest.importorskip("matplotlib.image")
    paths = save_plots(tmp_path, summarise(rows), rows)
    names = ["speedup.png", "pass_cost.png", "acceptance.png", "theory.png"]
    assert [path.name for path in paths] == names
    for path in paths:
        pixels = image.imread(path)[..., :3]
        assert min(pixels.shape[:2]) > 400
        assert 0.01 < float((pixels < 0.9).any(axis=-1).mean()) < 0.9


def test_plots_that_need_passes_are_left_out_without_them(rows: list[Row], tmp_path: Path) -> None:
    pytest.importorskip("matplotlib")
    bare = [replace(row, passes=None, stats=None) for row in rows]
    paths = save_plots(tmp_path, summarise(bare), bare)
    assert [path.name for path in paths] == ["speedup.png"]
