"""Plots of a benchmark run, readable in print: few colours, marks that differ in shape too.

Needs matplotlib (``pip install lookahead-decoding[plots]``). Figures are made without pyplot, so
that no window system and no global state are involved.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from lookahead import theory

from .measure import Summary, width_costs
from .methods import REFERENCE
from .rows import Row

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# Okabe and Ito's palette, which stays apart for colour-blind readers and in grey.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000", "#999999")
MARKS = "osD^vP*X"
DRAWN_GAMMAS = (1, 2, 4, 8, 16)


def require_matplotlib() -> None:
    """Raise ValueError with what to install where matplotlib is missing."""
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise ValueError(
            "plots need matplotlib: pip install 'lookahead-decoding[plots]'"
        ) from error


def save_plots(folder: Path, summaries: Sequence[Summary], rows: Sequence[Row]) -> list[Path]:
    """Draw all plots that the figures allow into ``folder``; return the files written."""
    require_matplotlib()
    drawings = {
        "speedup.png": draw_speedup(summaries),
        "pass_cost.png": draw_pass_cost(rows),
        "acceptance.png": draw_acceptance(summaries),
        "theory.png": draw_theory(summaries, rows),
    }
    paths = []
    for name, figure in drawings.items():
        if figure is not None:
            figure.savefig(folder / name, dpi=150)
            paths.append(folder / name)
    return paths


def draw_speedup(summaries: Sequence[Summary]) -> Figure:
    """Speedup by category and method, with 95% intervals; the line at 1 is plain decoding."""
    categories = list(dict.fromkeys(s.category for s in summaries))
    order = _order(summaries)
    methods = [method for method in order if method != REFERENCE]
    figures = {(s.category, s.method): s.speedup for s in summaries}
    figure = _figure(max(7.0, 1.0 + 0.22 * (len(methods) + 1) * len(categories)), 4.2)
    axes = figure.subplots()
    width = 0.8 / max(1, len(methods))
    for index, method in enumerate(methods):
        points = [
            (i, figures[c, method]) for i, c in enumerate(categories) if (c, method) in figures
        ]
        values = [p.value for _, p in points]
        # The interval of a skewed sample need not contain the value itself.
        bars = [
            [max(0.0, p.value - p.low) for _, p in points],
            [max(0.0, p.high - p.value) for _, p in points],
        ]
        x = [i - 0.4 + width * (index + 0.5) for i, _ in points]
        axes.bar(
            x, values, width, yerr=bars, label=method, color=_colour(order.index(method)),
            hatch=_hatch(order.index(method)),
            edgecolor="white", linewidth=0.4, error_kw={"linewidth": 0.8},
        )  # fmt: skip
    axes.axhline(1.0, color="black", linewidth=0.8)
    axes.set_xticks(range(len(categories)), categories, rotation=20, ha="right")
    axes.set_ylabel("speedup over plain decoding")
    _legend(axes, outside=True)
    return figure


def draw_pass_cost(rows: Sequence[Row]) -> Figure | None:
    """Cost of a pass against its width (lines) and how often each width was chosen (bars)."""
    methods = list(dict.fromkeys(row.method for row in rows if row.passes))
    unit = width_costs(r for r in rows if r.method == REFERENCE).get(1)
    if not methods or not unit:
        return None
    figure = _figure(7.0, 5.6)
    top, bottom = figure.subplots(2, 1, sharex=True, height_ratios=[2, 1])
    for index, method in enumerate(methods):
        mine = [row for row in rows if row.method == method]
        costs = width_costs(mine)
        style = {"color": _colour(index), "marker": MARKS[index % len(MARKS)], "markersize": 4}
        top.plot(list(costs), [c / unit for c in costs.values()], label=method, lw=0.9, **style)
        widths = [one.width for row in mine for one in row.passes or []]
        chosen, counts = np.unique(widths, return_counts=True)
        bottom.plot(chosen, counts / len(widths), lw=0.7, **style)
    top.axhline(1.0, color="black", linewidth=0.8)
    top.set_ylabel("cost of a pass\n(plain passes)")
    bottom.set_ylabel("share of passes")
    bottom.set_xlabel("tokens in a pass")
    bottom.set_xscale("log", base=2)
    bottom.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
    _legend(top)
    return figure


def draw_acceptance(summaries: Sequence[Summary]) -> Figure | None:
    """Acceptance by depth in the tree, and accepted guesses by source, of the engines."""
    engines = [s for s in summaries if s.category == "all" and s.proposed]
    if not engines:
        return None
    figure = _figure(9.0, 4.2)
    left, right = figure.subplots(1, 2)
    order = _order(summaries)
    for summary in engines:
        index = order.index(summary.method)
        pairs = zip(summary.depths.accepted, summary.depths.proposed, strict=True)
        shares = [a / p if p else float("nan") for a, p in pairs][:16]
        left.plot(
            range(1, len(shares) + 1), shares, label=summary.method, lw=0.9, markersize=4,
            color=_colour(index), marker=MARKS[index % len(MARKS)],
        )  # fmt: skip
    left.set_xlabel("depth of the guess")
    left.set_ylabel("accepted share of guesses")
    sources = sorted({source for s in engines for source in s.proposed})
    bottoms = np.zeros(len(engines))
    for index, source in enumerate(sources):
        values = np.array([s.accepted.get(source, 0) / max(1, s.tokens) for s in engines])
        right.bar(
            [s.method for s in engines], values, bottom=bottoms, label=source,
            color=_colour(index), hatch=_hatch(index), edgecolor="white", linewidth=0.4,
        )  # fmt: skip
        bottoms += values
    right.set_ylim(top=max(0.1, 1.3 * bottoms.max()))  # room for the legend
    right.set_ylabel("accepted guesses per token\n(shared guesses count for each source)")
    right.tick_params(axis="x", rotation=30)
    for label in right.get_xticklabels():
        label.set_ha("right")
    _legend(left)
    _legend(right)
    return figure


def draw_theory(summaries: Sequence[Summary], rows: Sequence[Row]) -> Figure | None:
    """Left: curves of theorem 3.8 (arXiv:2211.17192) with the measured points on them.
    Right: decoding speedup predicted from tokens per pass and pass costs, against the measured."""
    points = [
        s for s in summaries if s.category == "all" and s.predicted_speedup and s.tokens_per_pass
    ]
    if not points:
        return None
    figure = _figure(9.0, 4.4)
    left, right = figure.subplots(1, 2)
    cost = _slope(rows)
    alphas = np.linspace(0.0, 0.98, 99)
    for shade, gamma in zip(np.linspace(0.75, 0.3, len(DRAWN_GAMMAS)), DRAWN_GAMMAS, strict=True):
        curve = [theory.expected_speedup(float(alpha), gamma, cost) for alpha in alphas]
        left.plot(alphas, curve, color=str(shade), lw=0.9)
        left.annotate(f"γ = {gamma}", (alphas[-1], curve[-1]), fontsize=7, color=str(shade))
    order = _order(summaries)
    for summary in points:
        index = order.index(summary.method)
        style: dict[str, Any] = {
            "color": _colour(index), "marker": MARKS[index % len(MARKS)], "label": summary.method
        }  # fmt: skip
        left.scatter(effective_alpha(summary), summary.decode_speedup, zorder=3, **style)
        right.scatter(summary.predicted_speedup, summary.decode_speedup, zorder=3, **style)
    left.set_xlabel("acceptance α of the equivalent chain")
    left.set_ylabel("speedup without prefill")
    left.set_title(f"theorem 3.8, c = {cost:.3f} passes per guess", fontsize=9)
    top = 1.05 * max(max(s.predicted_speedup or 0.0, s.decode_speedup) for s in points)
    right.plot([0, top], [0, top], color="black", lw=0.8)
    right.set_xlabel("predicted from tokens per pass and pass cost")
    right.set_ylabel("measured")
    _legend(right)
    return figure


def effective_alpha(summary: Summary) -> float:
    """Acceptance at which a chain of the same mean length gives the same tokens per pass.

    A tree of as many guesses does better than a chain, so this is the α a chain would need. Found
    by bisection, as equation 1 rises in alpha; 1 where no chain of this length gives as much.
    """
    gamma = max(1, round(summary.nodes_per_pass or 0.0))
    wanted = summary.tokens_per_pass or 1.0
    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        if theory.expected_tokens(middle, gamma) < wanted:
            low = middle
        else:
            high = middle
    return high


def _slope(rows: Sequence[Row]) -> float:
    """Cost of one more token in a pass, in plain passes: a line through the median costs.

    Weighted by the number of passes, and never below 0.
    """
    unit = width_costs(r for r in rows if r.method == REFERENCE).get(1)
    passes = [one for row in rows if row.stats for one in row.passes or []]
    if not passes or not unit:
        return 0.0
    widths = np.array([one.width for one in passes], dtype=np.float64)
    costs = width_costs(row for row in rows if row.stats)
    values = np.array([costs[one.width] for one in passes]) / unit
    if np.ptp(widths) == 0:
        return 0.0
    return max(0.0, float(np.polyfit(widths - 1.0, values, 1)[0]))


def _figure(width: float, height: float) -> Figure:
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout="constrained")


def _order(summaries: Sequence[Summary]) -> list[str]:
    """Methods in their order of appearance, so that each has one colour in all plots."""
    return list(dict.fromkeys(summary.method for summary in summaries))


def _colour(index: int) -> str:
    return COLOURS[index % len(COLOURS)]


def _hatch(index: int) -> str:
    return ("", "//", "..", "xx", "\\\\", "++", "oo", "--")[index % 8]


def _legend(axes: Axes, outside: bool = False) -> None:
    place: dict[str, Any] = {"loc": "best"}
    if outside:
        place = {"loc": "center left", "bbox_to_anchor": (1.0, 0.5)}
    axes.legend(fontsize=7, frameon=False, **place)
