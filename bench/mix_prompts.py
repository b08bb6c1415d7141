"""One prompt file of several sets, for a run over all of them.

    python bench/mix_prompts.py question.jsonl HumanEval.jsonl --each 8 > mixed.jsonl

Takes the first turns of the first prompts of each category of Spec-Bench (hemingkx/Spec-Bench; its
MT-bench categories count as one, "chat", and take turns), the first tasks of HumanEval
(openai/human-eval), and the project's own code edits.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click

from lookahead.bench.prompt_sets import load_prompts, own_prompts, select

TASKS = ("translation", "summarization", "qa", "math_reasoning", "rag")


@click.command()
@click.argument("spec_bench", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.argument("human_eval", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--each", default=8, show_default=True, help="Prompts of each category.")
def main(spec_bench: Path, human_eval: Path, each: int) -> None:
    """Print the prompts as JSON lines."""
    questions = load_prompts(spec_bench)
    chat = [p for p in questions if p.category not in TASKS]
    groups = {"chat": select(chat)[:each]}
    groups |= {name: [p for p in questions if p.category == name][:each] for name in TASKS}
    rows: list[dict[str, Any]] = [
        {"question_id": f"{name}-{p.question_id}", "category": name, "turns": p.turns[:1]}
        for name, prompts in groups.items()
        for p in prompts
    ]
    tasks = load_prompts(human_eval)[:each]
    rows += [{"task_id": p.question_id, "prompt": p.turns[0]} for p in tasks]
    rows += [
        {"question_id": p.question_id, "category": p.category, "turns": p.turns[:1]}
        for p in select(own_prompts(), ["code_edit"], each)
    ]
    for row in rows:
        click.echo(json.dumps(row))


if __name__ == "__main__":
    main()
