"""The engine against itself: fixed tree sizes, or single sources, in one interleaved run.

    python bench/variants.py controller --out FOLDER   # adaptive or fixed tree, both passes
    python bench/variants.py sources --out FOLDER      # 64 nodes of all sources or of one, warm

Prompts are the project's own, or those of --prompts. Every output is compared with plain
decoding's; a difference that rounding does not explain ends the run.
"""

from __future__ import annotations

import json
import shlex
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import click

import lookahead
from lookahead import (
    Config,
    JacobiConfig,
    LookupConfig,
    PlannerConfig,
    PoolConfig,
    PositionsConfig,
    RecyclingConfig,
)
from lookahead.bench import report
from lookahead.bench.measure import summarise
from lookahead.bench.methods import EngineMethod, Method, Siblings, TransformersMethod
from lookahead.bench.prompt_sets import load_prompts, own_prompts, select
from lookahead.bench.runner import Run, list_cases
from lookahead.bench.settings import Settings, environment
from lookahead.model_store import LoadOptions, ModelStore, load

NODES = (0, 8, 16, 32, 64)


def controller() -> dict[str, Config]:
    """Tree sizes on the engine's cheap passes and on the model's own."""
    found = {}
    for kind, prepack in (("cheap", True), ("default", False)):
        found[f"{kind}-adaptive"] = Config(prepack=prepack)
        for nodes in NODES:
            planner = PlannerConfig(fixed_nodes=nodes)
            jacobi = JacobiConfig(enabled=False)  # a fixed width shall be that width
            found[f"{kind}-{nodes}"] = Config(prepack=prepack, planner=planner, jacobi=jacobi)
    return found


def sources() -> dict[str, Config]:
    """Trees of 64 nodes from all sources and from each alone."""
    planner = PlannerConfig(fixed_nodes=64)
    off = Config(
        jacobi=JacobiConfig(enabled=False),
        ngram_pool=PoolConfig(enabled=False),
        prompt_lookup=LookupConfig(enabled=False),
        recycling=RecyclingConfig(enabled=False),
        positions=PositionsConfig(enabled=False),
        planner=planner,
    )
    window = JacobiConfig(window=5, ngram=5, always=True)
    return {
        "all": Config(jacobi=JacobiConfig(enabled=False), planner=planner),
        "all and window 5/5": Config(jacobi=window, planner=planner),
        "recycling": replace(off, recycling=RecyclingConfig()),
        "suffixes": replace(off, prompt_lookup=LookupConfig()),
        "pool": replace(off, ngram_pool=PoolConfig()),
        "window 5/5 and pool": replace(off, jacobi=window, ngram_pool=PoolConfig()),
        "all but positions": Config(
            jacobi=JacobiConfig(enabled=False), positions=PositionsConfig(enabled=False),
            planner=planner,
        ),
    }  # fmt: skip


def methods(model: Any, configs: dict[str, Config], warm: bool) -> list[Method]:
    """The reference and one engine for each configuration."""
    make = Siblings(lambda config: lookahead.wrap(model, config))
    made: list[Method] = [TransformersMethod("plain", model, seed_equal=True)]
    return made + [EngineMethod(n, model, make, config, warm) for n, config in configs.items()]


@click.command()
@click.argument("what", type=click.Choice(["controller", "sources"]))
@click.option("--model", default=None, help="Model folder or name; the default model if left out.")
@click.option("--prompts", type=Path, default=None, help="Prompt file; the project's own if none.")
@click.option("--per-category", default=2, show_default=True, help="Prompts of each category.")
@click.option("--tokens", default=128, show_default=True, help="New tokens per prompt.")
@click.option("--out", type=Path, required=True, help="Folder for rows and report.")
def main(
    what: str, model: str | None, prompts: Path | None, per_category: int, tokens: int, out: Path
) -> None:
    """Measure and print."""
    loaded = load(ModelStore().resolve(model), LoadOptions())
    chosen = select(load_prompts(prompts) if prompts else own_prompts(), None, per_category or None)
    configs = controller() if what == "controller" else sources()
    settings = Settings(
        model=model or "default",
        prompts=prompts.name if prompts else "own",
        per_category=per_category or None,
        max_new_tokens=tokens,
        methods=tuple(configs),
        state="warm" if what == "sources" else "cold",
    )
    out.mkdir(parents=True, exist_ok=True)
    run = Run(
        loaded.model,
        loaded.tokenizer,
        methods(loaded.model, configs, what == "sources"),
        settings,
        out / "rows.jsonl",
    )
    rows = []
    with click.progressbar(run.rows(chosen), length=len(list_cases(chosen))) as cases:
        for case in cases:
            rows += case
    facts = environment(loaded.model.device)
    command = shlex.join(["python", *sys.argv])
    text = report.markdown(summarise(rows), settings, facts, command)
    (out / "report.md").write_text(text)
    click.echo(text)
    click.echo(json.dumps(report.as_json(summarise(rows), rows, settings, facts, True)))


if __name__ == "__main__":
    main()
