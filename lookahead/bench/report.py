"""The same figures as a table for the terminal, as Markdown and as JSON."""

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.box import SIMPLE_HEAD
from rich.table import Table

from .measure import POSITION_BIN, Interval, Summary, width_costs
from .rows import Row
from .settings import Settings

COLUMNS = (
    "method",
    "tok/s",
    "speedup",
    "median",
    "decoding",
    "tok/pass",
    "guesses",
    "cost",
    "outside",
    "once",
    "equal",
)

LEGEND = (
    "tok/s: tokens per second, prefill included. speedup: the same over plain decoding's, with a "
    "95% bootstrap interval over cases. median: median of the cases' speedups. decoding: speedup "
    "without prefill. tok/pass, guesses: tokens got and guesses made per pass. cost: time of a "
    "pass in plain passes, host work included. outside: share of decoding time outside the model. "
    "once: seconds that engines spent on measuring the machine, once in their life, left out "
    "elsewhere. equal: cases with plain decoding's tokens; a tie is a difference that rounding "
    "explains."
)


def cells(summary: Summary) -> list[str]:
    """One line of the table, in the order of ``COLUMNS``."""
    return [
        summary.method,
        f"{summary.tokens_per_second:.1f}",
        _interval(summary.speedup),
        _interval(summary.median_speedup),
        f"{summary.decode_speedup:.2f}",
        _number(summary.tokens_per_pass, 2),
        _number(summary.nodes_per_pass, 1),
        _number(summary.pass_cost, 2),
        "-" if summary.share_outside is None else f"{summary.share_outside:.1%}",
        f"{summary.seconds_once:.1f}" if summary.seconds_once else "-",
        _equality(summary),
    ]


def table(summaries: Sequence[Summary], category: str = "all") -> Table:
    """The figures of one category as a rich table."""
    title = "all categories" if category == "all" else category
    out = Table(title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 1, 0, 0))
    for name in COLUMNS:
        first = name == "method"
        out.add_column(name, justify="left" if first else "right", no_wrap=first)
    for summary in summaries:
        if summary.category == category:
            out.add_row(*cells(summary))
    return out


def markdown(
    summaries: Sequence[Summary], settings: Settings, environment: dict[str, Any], command: str
) -> str:
    """A report to paste: what was measured with what, all figures, speedups by category."""
    lines = ["# Benchmark", "", f"`{command}`", ""]
    lines += [f"- {name}: {value}" for name, value in _facts(settings, environment)]
    lines += ["", *_markdown_table(COLUMNS, [cells(s) for s in summaries if s.category == "all"])]
    lines += ["", LEGEND, "", "## Speedup by category", ""]
    names = list(dict.fromkeys(s.category for s in summaries if s.category != "all"))
    methods = list(dict.fromkeys(s.method for s in summaries))
    figures = {(s.method, s.category): f"{s.speedup.value:.2f}" for s in summaries}
    rows = [[m, *(figures.get((m, name), "-") for name in names)] for m in methods]
    lines += _markdown_table(["method", *names], rows)
    lines += ["", *_positions(summaries)]
    lines += ["", "## Accepted guesses by source", ""]
    lines += ["A guess that several sources made counts for each.", ""]
    lines += _markdown_table(
        ["method", "source", "guesses", "accepted", "share"], _sources(summaries)
    )
    return "\n".join(lines) + "\n"


def as_json(
    summaries: Sequence[Summary],
    rows: Sequence[Row],
    settings: Settings,
    environment: dict[str, Any],
    complete: bool,
) -> dict[str, Any]:
    """Everything a program needs to draw its own conclusions, but the rows themselves."""
    methods = list(dict.fromkeys(row.method for row in rows))
    differences = [
        {"case": row.case, "method": row.method, **(row.verdict or {})}
        for row in rows
        if row.equal is False
    ]
    return {
        "settings": asdict(settings),
        "environment": environment,
        "complete": complete,
        "cases": len({row.case for row in rows}),
        "summaries": [asdict(summary) for summary in summaries],
        "seconds_by_width": {m: width_costs(r for r in rows if r.method == m) for m in methods},
        "differences": differences,
    }


def profile(summaries: Sequence[Summary], rows: Sequence[Row]) -> Table:
    """Where the time of the engines goes: shares of the whole, from their statistics."""
    parts = ["measuring", "prefill", "model", "planning", "picking", "other"]
    out = Table(title="where the time goes", title_justify="left")
    for name in ("method", "seconds", *parts):
        out.add_column(name, justify="left" if name == "method" else "right")
    for summary in summaries:
        stats = [r.stats for r in rows if r.method == summary.method and r.stats]
        if summary.category != "all" or not stats:
            continue
        total = sum(s["seconds_total"] for s in stats)
        known = [sum(s[f"seconds_{part}"] for s in stats) for part in parts[:-1]]
        known[1] -= known[0]  # the engine measures during its first prefill
        shares = [*known, total - sum(known)]
        out.add_row(summary.method, f"{total:.1f}", *(f"{share / total:.1%}" for share in shares))
    return out


def _facts(settings: Settings, environment: dict[str, Any]) -> list[tuple[str, Any]]:
    sampling = (
        f"sampled, temperature {settings.temperature}, top-k {settings.top_k or 'off'}, "
        f"top-p {settings.top_p}, seed {settings.seed}"
    )
    return [
        ("model", f"{settings.model}, {settings.dtype} on {settings.device}"),
        ("decoding", sampling if settings.do_sample else "greedy"),
        ("new tokens", f"at most {settings.max_new_tokens} for each prompt"),
        ("prompts", settings.prompts),
        ("engine", {"both": "cold, and warm where named so"}.get(settings.state, settings.state)),
        *((k, ", ".join(v) if isinstance(v, list) else v) for k, v in environment.items()),
    ]


def _positions(summaries: Sequence[Summary]) -> list[str]:
    """Tokens per pass by where in the output they were, and peak CUDA memory where measured."""
    chosen = [s for s in summaries if s.category == "all" and s.tokens_by_position]
    bins = max((len(s.tokens_by_position) for s in chosen), default=0)
    starts = [f"from {i * POSITION_BIN}" for i in range(bins)]
    lines = ["## Tokens per pass by output position", ""]
    cells = [[s.method, *(f"{value:.2f}" for value in s.tokens_by_position)] for s in chosen]
    lines += _markdown_table(
        ["method", *starts], [row + ["-"] * (bins + 1 - len(row)) for row in cells]
    )
    peaks = [[s.method, f"{s.peak_bytes / 2**20:.0f}"] for s in summaries
             if s.category == "all" and s.peak_bytes is not None]  # fmt: skip
    if peaks:
        lines += ["", "## Peak CUDA memory", "", *_markdown_table(["method", "MiB"], peaks)]
    return lines


def _sources(summaries: Sequence[Summary]) -> list[list[str]]:
    return [
        [
            summary.method,
            source,
            str(count),
            str(summary.accepted.get(source, 0)),
            f"{summary.accepted.get(source, 0) / count:.1%}" if count else "-",
        ]
        for summary in summaries
        if summary.category == "all"
        for source, count in summary.proposed.items()
    ]


def _markdown_table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = ["| " + " | ".join(header) + " |", "|" + " --- |" * len(header)]
    return lines + ["| " + " | ".join(row) + " |" for row in rows]


def _interval(value: Interval) -> str:
    return f"{value.value:.2f} [{value.low:.2f}, {value.high:.2f}]"


def _number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:.{digits}f}"


def _equality(summary: Summary) -> str:
    if not summary.compared:
        return "not compared"
    ties = f", {summary.ties} ties" if summary.ties else ""
    return f"{summary.equal}/{summary.compared}{ties}"
