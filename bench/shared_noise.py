"""What it is worth that guesses share the noise of their positions, under sampling.

    python bench/shared_noise.py [--prompts FILE] [--each 2] [--tokens 128]

Tokens per pass of the Jacobi window and its n-grams alone, on the same prompts: greedy, sampling at
temperature 1 with shared noise, and with noise of its own. Each output is compared with plain
decoding under the same seed. The last line is JSON.
"""

from __future__ import annotations

import json
from pathlib import Path

import click
import torch

import lookahead
from lookahead.bench.prompt_sets import Prompt, encode, load_prompts, own_prompts, to_inputs
from lookahead.model_store import LoadOptions, ModelStore, load


def choose(prompts: list[Prompt], each: int) -> list[Prompt]:
    """The first ``each`` prompts of each category."""
    taken: dict[str, int] = {}
    chosen = []
    for prompt in prompts:
        taken[prompt.category] = taken.get(prompt.category, 0) + 1
        if taken[prompt.category] <= each:
            chosen.append(prompt)
    return chosen


def window_only(*, shared: bool) -> lookahead.Config:
    """Lookahead decoding with window 7, n-gram size 5 and nothing else."""
    window = lookahead.JacobiConfig(window=7, ngram=5, always=True, shared_noise=shared)
    return lookahead.lookahead_config(5, 7, 7, jacobi=window)


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
    chosen = choose(load_prompts(prompts) if prompts else own_prompts(), each)
    sampled = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0}
    runs = {
        "greedy": (lookahead.wrap(loaded.model, window_only(shared=True)), {"do_sample": False}),
        "shared noise": (lookahead.wrap(loaded.model, window_only(shared=True)), sampled),
        "own noise": (lookahead.wrap(loaded.model, window_only(shared=False)), sampled),
    }
    counts = {name: [0, 0] for name in runs}
    for number, prompt in enumerate(chosen):
        inputs = to_inputs(encode(loaded.tokenizer, prompt), loaded.model.device)
        for name, (engine, options) in runs.items():
            torch.manual_seed(number)
            plain = loaded.model.generate(**inputs, max_new_tokens=tokens, **options)
            torch.manual_seed(number)
            ours = engine.generate(**inputs, max_new_tokens=tokens, **options)
            if not torch.equal(plain, ours):
                raise click.ClickException(f"{name}: output differs on {prompt.question_id}")
            counts[name][0] += engine.stats.tokens
            counts[name][1] += engine.stats.passes
    result = {name: round(made / passes, 3) for name, (made, passes) in counts.items()}
    for name, rate in result.items():
        click.echo(f"{name:14s} {rate:.3f} tokens per pass")
    click.echo(json.dumps({"prompts": len(chosen), "tokens": tokens, "tokens_per_pass": result}))


if __name__ == "__main__":
    main()
