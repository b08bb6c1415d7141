"""How much of decoding is outside the model behind a long prompt, at several widths.

    python bench/long_context.py --prompts mixed.jsonl --tokens 32768

The prompt is the texts of a prompt file one after the other. It is read once; every engine and
plain decoding go on from a copy of its cache. Every output is compared with plain decoding's.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import click
import torch

import lookahead
from lookahead import Config, JacobiConfig, PlannerConfig
from lookahead.bench.prompt_sets import load_prompts
from lookahead.kv_cache import CACHE_NAME
from lookahead.model_store import LoadOptions, ModelStore, load

WIDTHS = (1, 8, 32, 64)


def config(width: int | None) -> Config:
    """Passes of one width, the root included, or the engine's own choice."""
    if width is None:
        return Config()
    planner = PlannerConfig(fixed_nodes=width - 1)
    return Config(planner=planner, jacobi=JacobiConfig(enabled=False))


def generate(engine: Any, ids: torch.Tensor, cache: Any, tokens: int) -> torch.Tensor:
    """Greedy decoding behind a copy of ``cache``, which holds all of ``ids`` but the last."""
    found: torch.Tensor = engine.generate(
        ids, max_new_tokens=tokens, do_sample=False, attention_mask=torch.ones_like(ids),
        pad_token_id=0, eos_token_id=None, **{CACHE_NAME: copy.deepcopy(cache)},
    )  # fmt: skip
    return found


@click.command()
@click.option("--model", default=None, help="Model folder or name; the default model if left out.")
@click.option("--prompts", type=Path, required=True, help="Prompt file.")
@click.option("--tokens", default=32_768, show_default=True, help="Tokens of the prompt.")
@click.option("--new", default=48, show_default=True, help="New tokens.")
def main(model: str | None, prompts: Path, tokens: int, new: int) -> None:
    """Measure and print one line for each width."""
    loaded = load(ModelStore().resolve(model), LoadOptions())
    limit = loaded.model.config.max_position_embeddings
    loaded.model.config.max_position_embeddings = max(limit, tokens + new + 256)
    text = "\n\n".join(turn for prompt in load_prompts(prompts) for turn in prompt.turns)
    found = loaded.tokenizer(text, return_tensors="pt").input_ids
    ids = found.repeat(1, -(-tokens // found.shape[1]))[:, :tokens]
    with click.progressbar(length=1, label="prompt"):
        read = lookahead.wrap(loaded.model).generate(
            ids[:, :-1], max_new_tokens=1, do_sample=False, return_dict_in_generate=True,
            attention_mask=torch.ones_like(ids[:, :-1]), pad_token_id=0, eos_token_id=None,
        )  # fmt: skip
    cache = read[CACHE_NAME]
    plain = generate(loaded.model, ids, cache, new)
    for width in (*WIDTHS, None):
        engine = lookahead.wrap(loaded.model, config(width))
        generate(engine, ids, cache, 8)  # measures costs, starts threads
        same = torch.equal(generate(engine, ids, cache, new), plain)
        stats = engine.stats
        decoding = stats.seconds_total - stats.seconds_prefill
        line: dict[str, Any] = {
            "width": width or "adaptive",
            "equal": same,
            "passes": stats.passes,
            "ms a pass": round(1e3 * decoding / stats.passes, 2),
            "outside": round(1 - stats.seconds_model / decoding, 4),
        }
        click.echo(json.dumps(line))


if __name__ == "__main__":
    main()
