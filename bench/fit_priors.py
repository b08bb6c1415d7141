"""Fit the acceptance priors that ship with the package, from runs on the project's own prompts.

    python bench/fit_priors.py [--model FOLDER] [--nodes 32] [--tokens 96]

Every prompt is decoded by an engine that knows nothing but the acceptance counts so far, greedily
and by sampling: first at a fixed width, for the counts by bucket (shrunk to the sources' own
hand-set priors) and by streak; then, with those, as the planner spends on this machine, for the
ratios of path probabilities. All are written to lookahead/priors.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch

import lookahead
from lookahead.bench.prompt_sets import encode, own_prompts, select, to_inputs
from lookahead.calibration import Calibration
from lookahead.model_store import LoadOptions, ModelStore, load
from lookahead.sources import Source

STRENGTH = 6.0
TARGET = Path(__file__).parents[1] / "lookahead" / "priors.json"


def estimates(calibration: Calibration, sources: list[Source]) -> dict[str, list[float]]:
    """Acceptance by bucket for each source, shrunk to the source's hand-set prior."""
    found = {}
    for index, source in enumerate(sources):
        hits, trials = calibration.counts(index, source.buckets)
        found[source.name] = [
            round((h + STRENGTH * source.prior(b)) / (t + STRENGTH), 4)
            for b, (h, t) in enumerate(zip(hits, trials, strict=True))
        ]
    return found


def decode_all(
    model: Any, inputs: list[Any], config: lookahead.Config, label: str,
    priors: dict[str, list[float]], **options: Any,
) -> Calibration:  # fmt: skip
    """Decode every prompt cold, all with the same counts, begun at the priors; return them."""
    first = None
    with click.progressbar(inputs, label=label) as bar:
        for number, each in enumerate(bar):
            engine = lookahead.wrap(model, config)
            if first is None:
                first = engine.memory
                first.begin_with(priors)
                first.calibration(first.sources(), sampling=bool(options.get("do_sample")))
            engine.memory.share_calibrations(first)
            torch.manual_seed(number)
            engine.generate(**each, **options)
    assert first is not None
    return first.calibration(first.sources(), sampling=bool(options.get("do_sample")))


@click.command()
@click.option("--model", default=None, help="Model folder or name; the default model if left out.")
@click.option("--nodes", default=32, show_default=True, help="Guesses verified per pass.")
@click.option("--tokens", default=96, show_default=True, help="New tokens per prompt.")
@click.option("--each", default=8, show_default=True, help="Prompts per category.")
@click.option("--target", type=Path, default=TARGET, help="File to write.")
def main(model: str | None, nodes: int, tokens: int, each: int, target: Path) -> None:
    """Fit and write the priors."""
    loaded = load(ModelStore().resolve(model), LoadOptions())
    chosen = select(own_prompts(), None, each)
    inputs = [to_inputs(encode(loaded.tokenizer, p), loaded.model.device) for p in chosen]
    wide = lookahead.Config(
        jacobi=lookahead.JacobiConfig(window=4, ngram=4, always=True),
        planner=lookahead.PlannerConfig(fixed_nodes=nodes),
    )
    priors: dict[str, Any] = {}
    sampled = {"do_sample": True, "temperature": 0.8}
    for name, options in (("greedy", {}), ("sampling", sampled)):
        calibration = decode_all(
            loaded.model, inputs, wide, f"{name}, fixed", {}, max_new_tokens=tokens, **options
        )
        sources = lookahead.wrap(loaded.model, wide).memory.sources()
        priors[name] = estimates(calibration, sources)
        priors[name]["streaks"] = calibration.streaks.fitted()
    for name, options in (("greedy", {}), ("sampling", sampled)):
        calibration = decode_all(
            loaded.model, inputs, lookahead.Config(), name, priors[name],
            max_new_tokens=tokens, **options,
        )  # fmt: skip
        priors[name]["paths"] = calibration.paths.fitted()
    target.write_text(json.dumps(priors) + "\n")
    click.echo(f"wrote {target}")


if __name__ == "__main__":
    main()
