"""``lookahead verify``: is the engine's text that of plain decoding?"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import click
import torch
from rich.console import Console
from rich.table import Table

from ..bench.settings import Settings, environment
from ..bench.verification import Finding
from ..bench.verification import verify as verify_engine
from .common import (
    Services,
    clear_errors,
    make_engine,
    model_choice,
    model_options,
    note,
    warnings_as_notes,
)
from .engine_options import SectionedCommand, engine_config, engine_options
from .measuring import (
    chosen_prompts,
    decoding_options,
    decoding_settings,
    progress_bar,
    prompt_options,
)


@click.command(cls=SectionedCommand, short_help="Check that the text is plain decoding's.")
@prompt_options(per_category=1)
@decoding_options
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@model_options
@engine_options
@click.pass_obj
def verify(services: Services, as_json: bool, **values: Any) -> None:
    """Compare the engine with plain decoding, prompt by prompt.

    Where they first differ, the gap of plain decoding's two best tokens there is set against the
    rounding noise of the model, measured between passes of different widths. The verdict is
    "equal", "rounding tie" (noise of this size makes plain decoding pick the other token) or
    "BUG"; a BUG gives exit code 1.
    """
    prompts, names = chosen_prompts(values)
    decoding = decoding_settings(values)
    choice, config = model_choice(values), engine_config(values)
    with clear_errors():
        settings = Settings(model=choice.spec or "default", **names, **decoding)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    loaded = choice.load_with(services)
    findings: list[Finding] = []
    with clear_errors(), warnings_as_notes():
        engine = make_engine(services, loaded, config)
        chunks = str(engine.capability.mode) != "plain"
        found = verify_engine(
            loaded.model, loaded.tokenizer, engine.generate, prompts,
            settings.generate_kwargs(), settings.seed, chunks,
        )  # fmt: skip
        with progress_bar() as bar:
            total = sum(len(prompt.turns) for prompt in prompts)
            for finding in bar.track(found, total=total, description="verifying"):
                findings.append(finding)
    outcomes = [finding.verdict.outcome for finding in findings]
    dtype = str(loaded.model.dtype).removeprefix("torch.")
    if as_json:
        facts = {
            "settings": asdict(settings),
            "dtype": dtype,
            "mode": str(engine.capability.mode),
            "environment": environment(loaded.model.device),
            "findings": [as_object(finding) for finding in findings],
            "counts": {name: outcomes.count(name) for name in ("equal", "rounding tie", "BUG")},
        }
        click.echo(json.dumps(facts))
    else:
        console = Console(highlight=False)
        console.print(table(findings))
        console.print(noise_table(findings))
    note(
        f"{outcomes.count('equal')} equal, {outcomes.count('rounding tie')} rounding ties, "
        f"{outcomes.count('BUG')} bugs in {len(findings)} texts ({dtype}, "
        f"mode {engine.capability.mode})."
    )
    if "BUG" in outcomes:
        raise SystemExit(1)


def as_object(finding: Finding) -> dict[str, Any]:
    """A finding as plain values."""
    return {
        "case": finding.case,
        "category": finding.category,
        "tokens": finding.tokens,
        "noise_by_width": finding.noise.by_width,
        **finding.verdict.to_dict(),
    }


def table(findings: list[Finding]) -> Table:
    """One line per text."""
    out = Table(title="exactness", title_justify="left")
    for name in ("text", "tokens", "verdict", "first difference", "top-2 gap", "gap", "noise"):
        out.add_column(name, justify="left" if name in {"text", "verdict"} else "right")
    for finding in findings:
        verdict = finding.verdict
        where = "-" if verdict.position is None else f"token {verdict.position}"
        gaps = [verdict.top2_gap, verdict.gap]
        cells = ["-" if gap is None else f"{gap:.3g}" for gap in gaps]
        style = {"BUG": "bold red", "rounding tie": "yellow"}.get(verdict.outcome, "")
        out.add_row(
            finding.case, str(finding.tokens), verdict.outcome, where, *cells,
            f"{finding.noise.level:.2g}", style=style,
        )  # fmt: skip
    return out


def noise_table(findings: list[Finding]) -> Table:
    """Rounding noise of the model by the width of the pass, the largest of all texts."""
    largest: dict[str, float] = {}
    for finding in findings:
        widest = max(finding.noise.by_width)
        for width, noise in sorted(finding.noise.by_width.items()):
            name = "whole text" if width == widest else str(width)
            largest[name] = max(largest.get(name, 0.0), noise)
    out = Table(title="rounding noise against passes of one token", title_justify="left")
    out.add_column("tokens in a pass", justify="right")
    out.add_column("largest change of a likely token's logit", justify="right")
    order = sorted(
        largest, key=lambda name: (name == "whole text", int(name) if name.isdigit() else 0)
    )
    for name in order:
        out.add_row(name, f"{largest[name]:.2g}")
    return out
