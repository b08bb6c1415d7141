"""Tokens per second of a batch: engine, plain decoding of the batch, and single calls.

    python bench/batches.py MODEL --batch 4 --new-tokens 64

The project's own prompts are taken in batches of ragged length. Per batch the four ways run one by
one, in turning order; tokens are total tokens over total time, prefill included. Rows of the
engine's batch are compared with plain decoding of the batch. Last line of output is JSON.
"""

from __future__ import annotations

import json
import time
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import click
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

import lookahead
from lookahead.bench.prompt_sets import encode, own_prompts


def _padded(rows: list[list[int]], pad: int) -> dict[str, torch.Tensor]:
    longest = max(map(len, rows))
    ids = torch.full((len(rows), longest), pad)
    mask = torch.zeros_like(ids)
    for at, row in enumerate(rows):
        ids[at, longest - len(row) :] = torch.tensor(row)
        mask[at, longest - len(row) :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def _ways(model: Any, engine: Any, options: dict[str, Any], pad: int) -> dict[str, Callable]:
    def batch(generate: Any) -> Callable[[list[list[int]]], list[list[int]]]:
        def run(rows: list[list[int]]) -> list[list[int]]:
            inputs = _padded(rows, pad)
            out = generate(**inputs, **options)
            texts: list[list[int]] = out[:, inputs["input_ids"].shape[1] :].tolist()
            return texts

        return run

    def singles(generate: Any) -> Callable[[list[list[int]]], list[list[int]]]:
        one = batch(generate)
        return lambda rows: [one([row])[0] for row in rows]

    return {
        "engine, batch": batch(engine.generate),
        "plain, batch": batch(model.generate),
        "engine, single calls": singles(engine.generate),
        "plain, single calls": singles(model.generate),
    }


@click.command()
@click.argument("model")
@click.option("--batch", default=4, show_default=True)
@click.option("--batches", default=3, show_default=True)
@click.option("--new-tokens", default=64, show_default=True)
@click.option("--threads", default=1, show_default=True)
def main(model: str, batch: int, batches: int, new_tokens: int, threads: int) -> None:
    """Measure MODEL (a folder or a Hub id)."""
    torch.set_num_threads(threads)
    tokenizer = AutoTokenizer.from_pretrained(model)
    loaded = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32).eval()
    loaded.generation_config.eos_token_id = None  # every way writes the same number of tokens
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else 0
    options = {"max_new_tokens": new_tokens, "do_sample": False, "pad_token_id": pad}
    engine = lookahead.wrap(loaded)
    ways = _ways(loaded, engine, options, pad)
    prompts = own_prompts()
    step = max(1, len(prompts) // (batch * batches))
    rows = [encode(tokenizer, prompt) for prompt in prompts[::step]][: batch * batches]
    engine.generate(**_padded(rows[:1], pad), **options)  # measures the cost of passes
    seconds: dict[str, float] = defaultdict(float)
    for index in range(batches):
        group, texts = rows[index * batch : (index + 1) * batch], {}
        order = list(ways)[index % len(ways) :] + list(ways)[: index % len(ways)]
        for name in order:
            begin = time.perf_counter()
            texts[name] = ways[name](group)
            seconds[name] += time.perf_counter() - begin
        if texts["engine, batch"] != texts["plain, batch"]:
            raise click.ClickException(f"batch {index}: the engine's text is not the plain text")
    tokens = batch * batches * new_tokens
    rates = {name: round(tokens / spent, 2) for name, spent in seconds.items()}
    for name, rate in rates.items():
        click.echo(f"{name:22} {rate:8.2f} tokens/s")
    versions = {"torch": torch.__version__, "threads": threads, "dtype": "float32"}
    click.echo(json.dumps({"batch": batch, "new_tokens": new_tokens, "rates": rates, **versions}))


if __name__ == "__main__":
    main()
