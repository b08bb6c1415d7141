"""From rows to figures: speedups with intervals, tokens per pass, cost of a pass, acceptance.

The speedup of a method is a ratio of rates, tokens per second over those of plain decoding on the
same cases; where the outputs are equal this is the ratio of the summed seconds. Its interval, and
that of the median of the per-case ratios, is a percentile bootstrap over cases.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median

import numpy as np
from numpy.typing import NDArray

from .methods import REFERENCE
from .rows import Row

RESAMPLES = 2000
POSITION_BIN = 32


@dataclass(frozen=True)
class Interval:
    """A figure with the bounds of its 95% bootstrap interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class Depths:
    """Guesses at each depth of the tree, from depth 1 on, and how many of them were accepted."""

    proposed: list[int] = field(default_factory=list)
    accepted: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Summary:
    """Figures of one method on one category (``"all"`` for everything).

    ``speedup`` and ``median_speedup`` include the prefill, ``decode_speedup`` leaves it out.
    ``seconds_once`` (see :class:`Row`) is in none of the other figures.
    ``pass_cost`` is the mean time of a pass over that of plain decoding's pass, host work
    included. ``tokens_by_position`` gives tokens per pass by ``POSITION_BIN`` output positions.
    ``predicted_speedup`` comes from tokens per pass and the costs of the widths used, see
    :func:`predict`. None stands for what could not be measured.
    """

    method: str
    category: str
    cases: int
    tokens: int
    seconds: float
    seconds_prefill: float
    seconds_once: float
    tokens_per_second: float
    decode_tokens_per_second: float
    speedup: Interval
    median_speedup: Interval
    decode_speedup: float
    tokens_per_pass: float | None
    nodes_per_pass: float | None
    pass_cost: float | None
    predicted_speedup: float | None
    share_outside: float | None
    peak_bytes: int | None
    equal: int
    ties: int
    compared: int
    proposed: dict[str, int]
    accepted: dict[str, int]
    depths: Depths
    tokens_by_position: list[float]


def summarise(rows: Sequence[Row]) -> list[Summary]:
    """Summaries of all methods on all cases, then on each category, in order of appearance."""
    plain = {row.case: row for row in rows if row.method == REFERENCE}
    groups: dict[tuple[str, str], list[Row]] = {}
    for row in rows:
        if row.case in plain:
            groups.setdefault(("all", row.method), []).append(row)
    for row in rows:
        if row.case in plain:
            groups.setdefault((row.category, row.method), []).append(row)
    costs = {
        method: width_costs(group) for (name, method), group in groups.items() if name == "all"
    }
    return [
        _summary(method, category, group, [plain[row.case] for row in group], costs)
        for (category, method), group in groups.items()
    ]


def width_costs(rows: Iterable[Row]) -> dict[int, float]:
    """Median seconds of a pass by its width, over the passes of ``rows``."""
    seconds: dict[int, list[float]] = defaultdict(list)
    for row in rows:
        for one in row.passes or []:
            seconds[one.width].append(one.seconds)
    return {width: median(values) for width, values in sorted(seconds.items())}


def bootstrap(values: NDArray[np.float64], statistic: str, resamples: int = RESAMPLES) -> Interval:
    """95% percentile interval over cases, with a fixed seed.

    ``values`` is float [cases, 4]: a method's tokens and seconds, plain decoding's tokens and
    seconds. ``statistic`` is ``"sums"`` (ratio of the summed rates) or ``"median"``.
    """
    picks = np.random.default_rng(0).integers(0, len(values), (resamples, len(values)))
    draws = np.concatenate([values[None], values[picks]])
    if statistic == "sums":
        tokens, seconds, plain_tokens, plain_seconds = draws.sum(axis=1).T
        figures = tokens / seconds / (plain_tokens / plain_seconds)
    elif statistic == "median":
        tokens, seconds, plain_tokens, plain_seconds = np.moveaxis(draws, 2, 0)
        figures = np.median(tokens / seconds / (plain_tokens / plain_seconds), axis=1)
    else:
        raise ValueError(f"no statistic {statistic!r}; there are sums and median")
    low, high = np.percentile(figures[1:], [2.5, 97.5])
    return Interval(float(figures[0]), float(low), float(high))


def predict(rows: Sequence[Row], costs: dict[int, float], plain_cost: float) -> float | None:
    """Decoding speedup that tokens per pass and typical pass costs give, without the clock.

    Every pass is charged the median cost of its width, in units of plain decoding's median pass.
    A measured speedup below this one shows what the medians hide: stalls and slow passes.
    """
    passes = [one for row in rows for one in row.passes or []]
    if not passes or plain_cost <= 0.0:
        return None
    paid = fmean(costs[one.width] for one in passes) / plain_cost
    return fmean(one.emitted for one in passes) / paid


def tokens_by_position(rows: Iterable[Row]) -> list[float]:
    """Tokens per pass by output position, in bins of ``POSITION_BIN`` tokens."""
    emitted: dict[int, list[int]] = defaultdict(list)
    for row in rows:
        position = row.first_tokens
        for one in row.passes or []:
            emitted[position // POSITION_BIN].append(one.emitted)
            position += one.emitted
    return [fmean(emitted[i]) for i in range(max(emitted, default=-1) + 1) if emitted[i]]


def _summary(
    method: str,
    category: str,
    rows: list[Row],
    plain: list[Row],
    costs: dict[str, dict[int, float]],
) -> Summary:
    tokens, seconds = sum(len(r.tokens) for r in rows), sum(r.seconds for r in rows)
    decode = sum(r.seconds - r.seconds_prefill for r in rows)
    decoded = sum(len(r.tokens) - r.first_tokens for r in rows)
    plain_decode = sum(r.seconds - r.seconds_prefill for r in plain)
    plain_decoded = sum(len(r.tokens) - r.first_tokens for r in plain)
    pairs = np.array(
        [
            [len(r.tokens), r.seconds, len(p.tokens), p.seconds]
            for r, p in zip(rows, plain, strict=True)
        ]
    )
    passes = [one for row in rows for one in row.passes or []]
    plain_passes = sum(len(p.passes or []) for p in plain)
    rate = decoded / decode if decode > 0 else 0.0
    plain_rate = plain_decoded / plain_decode if plain_decode > 0 else 0.0
    peaks = [row.peak_bytes for row in rows if row.peak_bytes is not None]
    compared = [row for row in rows if row.equal is not None]
    plain_pass = costs.get(REFERENCE, {}).get(1, 0.0)
    return Summary(
        method=method,
        category=category,
        cases=len(rows),
        tokens=tokens,
        seconds=seconds,
        seconds_prefill=sum(r.seconds_prefill for r in rows),
        seconds_once=sum(r.seconds_once for r in rows),
        tokens_per_second=tokens / seconds,
        decode_tokens_per_second=rate,
        speedup=bootstrap(pairs, "sums"),
        median_speedup=bootstrap(pairs, "median"),
        decode_speedup=rate / plain_rate if plain_rate > 0 else 0.0,
        tokens_per_pass=sum(p.emitted for p in passes) / len(passes) if passes else None,
        nodes_per_pass=fmean(p.width - 1 for p in passes) if passes else None,
        pass_cost=decode / len(passes) / (plain_decode / plain_passes)
        if passes and plain_passes
        else None,
        predicted_speedup=predict(rows, costs[method], plain_pass),
        share_outside=_share_outside(rows, decode),
        peak_bytes=max(peaks, default=None),
        equal=sum(row.equal is True for row in compared),
        ties=sum(row.equal is False for row in compared),
        compared=len(compared),
        proposed=_total(rows, "proposed"),
        accepted=_total(rows, "accepted"),
        depths=Depths(_columns(rows, "proposed_by_depth"), _columns(rows, "accepted_by_depth")),
        tokens_by_position=tokens_by_position(rows),
    )


def _share_outside(rows: list[Row], decode: float) -> float | None:
    """Share of decoding time outside the model: by the engine's clock, else by the hooks'."""
    if all(row.stats for row in rows):
        total = sum(r.stats["seconds_total"] - r.stats["seconds_prefill"] for r in rows if r.stats)
        outside = sum(r.stats["seconds_outside"] for r in rows if r.stats)
        return outside / total if total > 0 else None
    if decode <= 0 or any(row.seconds_model is None for row in rows):
        return None
    return 1.0 - sum(row.seconds_model or 0.0 for row in rows) / decode


def _total(rows: list[Row], name: str) -> dict[str, int]:
    total: dict[str, int] = {}
    for row in rows:
        for source, count in (row.stats or {}).get(name, {}).items():
            total[source] = total.get(source, 0) + count
    return dict(sorted(total.items()))


def _columns(rows: list[Row], name: str) -> list[int]:
    lists = [(row.stats or {}).get(name, []) for row in rows]
    length = max((len(one) for one in lists), default=0)
    return [sum(one[i] for one in lists if i < len(one)) for i in range(length)]
