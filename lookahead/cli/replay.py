"""``lookahead replay``: what would sources of guesses have earned on recorded text?"""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from ..bench.replay import DEFAULT_SLOPE, Score, load_streams, sloped_cost
from ..bench.replay import replay as replay_streams
from .common import clear_errors
from .engine_options import SectionedCommand, engine_config, engine_options


@click.command(cls=SectionedCommand, short_help="Score sources on recorded text, without a model.")
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--slope",
    type=float,
    default=DEFAULT_SLOPE,
    show_default=True,
    help="Cost of one more token in a pass, in plain passes.",
)
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@engine_options
def replay(file: Path, slope: float, as_json: bool, **values: Any) -> None:
    """Score sources of guesses on the recorded text of FILE, without a model.

    FILE is the rows.jsonl of `lookahead bench --out`, or streams written by
    `lookahead.bench.replay`. The Jacobi window needs a model and takes no part; recycling does
    where the streams hold the model's likeliest tokens. The state is warm.
    """
    config = engine_config(values)
    with clear_errors():
        cost = sloped_cost(slope, config.planner.max_nodes)
        scores = replay_streams(load_streams(file), config, cost)
    if as_json:
        click.echo(json.dumps({name: as_object(score) for name, score in scores.items()}))
        return
    out = Table(title=f"replay of {file.name}", title_justify="left")
    columns = ("text", "tok/pass", "guesses", "speedup", "µs/pass", "accepted")
    for name in columns:
        left = name in {"text", "accepted"}
        out.add_column(name, justify="left" if left else "right", no_wrap=left)
    for name, score in scores.items():
        accepted = "\n".join(
            f"{source} {score.accepted.get(source, 0)}/{count}"
            for source, count in score.proposed.items()
        )
        out.add_row(
            name, f"{score.tokens_per_pass:.2f}", f"{score.nodes_per_pass:.1f}",
            f"{score.speedup:.2f}", f"{1e6 * score.seconds_planning:.0f}", accepted or "-",
        )  # fmt: skip
    Console(highlight=False).print(out)


def as_object(score: Score) -> dict[str, Any]:
    """A score as plain values, derived figures included."""
    derived = {
        "tokens_per_pass": score.tokens_per_pass,
        "nodes_per_pass": score.nodes_per_pass,
    }
    return {**asdict(score), **derived}
