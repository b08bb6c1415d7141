"""Fit the acceptance priors that ship with the package, from runs on the project's own prompts.

    python bench/fit_priors.py [--model FOLDER] [--nodes 32] [--tokens 96]

Every prompt is decoded by an engine that knows nothing but the acceptance counts so far, at a fixed
width, greedily and by sampling. The counts by bucket, shrunk to the sources' own hand-set priors,
are written to lookahead/priors.json.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import torch

import lookahead
from lookahead.bench.prompt_sets import encode, own_prompts, to_inputs
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


@click.command()
@click.option("--model", default=None, help="Model folder or name; the default model if left out.")
@click.option("--nodes", default=32, show_default=True, help="Guesses verified per pass.")
@click.option("--tokens", default=96, show_default=True, help="New tokens per prompt.")
@click.option("--each", default=8, show_default=True, help="Prompts per category.")
def main(model: str | None, nodes: int, tokens: int, each: int) -> None:
    """Fit and write the priors."""
    loaded = load(ModelStore().resolve(model), LoadOptions())
    config = lookahead.Config(
        jacobi=lookahead.JacobiConfig(window=4, ngram=4, always=True),
        planner=lookahead.PlannerConfig(fixed_nodes=nodes),
    )
    seen: dict[str, int] = {}
    prompts = []
    for prompt in own_prompts():
        seen[prompt.category] = seen.get(prompt.category, 0) + 1
        if seen[prompt.category] <= each:
            prompts.append(prompt)
    priors: dict[str, Any] = {}
    for name, options in (("greedy", {}), ("sampling", {"do_sample": True, "temperature": 0.8})):
        first = None
        with click.progressbar(prompts, label=name) as bar:
            for number, prompt in enumerate(bar):
                engine = lookahead.wrap(loaded.model, config)
                first = first or engine.memory
                engine.memory.share_calibrations(first)
                torch.manual_seed(number)
                inputs = to_inputs(encode(loaded.tokenizer, prompt), loaded.model.device)
                engine.generate(**inputs, max_new_tokens=tokens, **options)
        assert first is not None
        sources = first.sources()
        calibration = first.calibration(sources, sampling=name == "sampling")
        priors[name] = estimates(calibration, sources)
    TARGET.write_text(json.dumps(priors) + "\n")
    click.echo(f"wrote {TARGET}")


if __name__ == "__main__":
    main()
