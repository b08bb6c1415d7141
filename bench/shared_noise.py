"""What it is worth that guesses use the noise of their positions, under sampling.

    python bench/shared_noise.py [--prompts FILE] [--each 2] [--tokens 128]

Tokens per pass, on the same prompts, greedy and sampling at temperature 1, with and without the
noise: of the Jacobi window with its n-grams and picks by position alone, and of the engine as it
is. Engines keep what they learn from prompt to prompt. Each output is compared with plain decoding
under the same seed. The last line is JSON.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch

import lookahead
from lookahead.bench.prompt_sets import encode, load_prompts, own_prompts, select, to_inputs
from lookahead.model_store import LoadOptions, ModelStore, load


def window_only(*, shared: bool) -> lookahead.Config:
    """A window of 7 with n-grams of 5, what it picks by position, and nothing else."""
    window = lookahead.JacobiConfig(window=7, ngram=5, always=True, shared_noise=shared)
    positions = lookahead.PositionsConfig()
    return lookahead.lookahead_config(5, 7, 7, jacobi=window, positions=positions)


def engine_as_it_is(*, shared: bool) -> lookahead.Config:
    """All sources, spent by cost."""
    return lookahead.Config(jacobi=lookahead.JacobiConfig(shared_noise=shared))


SAMPLED = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
GREEDY = {"do_sample": False}


@dataclass
class Count:
    """Tokens, passes and seconds of plain decoding and of the engine."""

    tokens: int = 0
    passes: int = 0
    plain: float = 0.0
    ours: float = 0.0


@click.command()
@click.option("--model", default=None, help="Model folder or name; the default model if left out.")
@click.option(
    "--prompts", type=Path, default=None, help="Prompt file; the project's own otherwise."
)
@click.option("--each", default=2, show_default=True, help="Prompts per category.")
@click.option("--tokens", default=128, show_default=True, help="New tokens per prompt.")
def main(model: str | None, prompts: Path | None, each: int, tokens: int) -> None:
    """Measure and print."""
    loaded = load(ModelStore().resolve(model), LoadOptions())
    chosen = select(load_prompts(prompts) if prompts else own_prompts(), None, each)
    runs = {
        f"{name}, {kind}": (lookahead.wrap(loaded.model, config(shared=shared)), options)
        for name, config in (("window", window_only), ("engine", engine_as_it_is))
        for kind, shared, options in (
            ("greedy", True, GREEDY), ("shared noise", True, SAMPLED), ("own noise", False, SAMPLED)
        )
    }  # fmt: skip
    counts = {name: Count() for name in runs}
    for number, prompt in enumerate(chosen):
        inputs = to_inputs(encode(loaded.tokenizer, prompt), loaded.model.device)
        inputs = {**inputs, "max_new_tokens": tokens}
        plain = {}
        for options in (GREEDY, SAMPLED):
            plain[str(options)] = timed(loaded.model.generate, number, {**inputs, **options})
        for name, (engine, options) in runs.items():
            expected, spent = plain[str(options)]
            ours, took = timed(engine.generate, number, {**inputs, **options})
            if not torch.equal(expected, ours):
                raise click.ClickException(f"{name}: output differs on {prompt.question_id}")
            count = counts[name]
            count.tokens += engine.stats.tokens
            count.passes += engine.stats.passes
            count.plain += spent
            count.ours += took
    for name, count in counts.items():
        rate, speedup = count.tokens / count.passes, count.plain / count.ours
        click.echo(f"{name:22s} {rate:.3f} tokens per pass, {speedup:.2f} x model.generate")
    found = {name: asdict(count) for name, count in counts.items()}
    click.echo(json.dumps({"prompts": len(chosen), "tokens": tokens, "counts": found}))


def timed(generate: Callable[..., Any], seed: int, arguments: dict[str, Any]) -> tuple[Any, float]:
    """Output and seconds of one call under a seed."""
    torch.manual_seed(seed)
    begin = time.perf_counter()
    made = generate(**arguments)
    return made, time.perf_counter() - begin


if __name__ == "__main__":
    main()
