"""Options and steps that the measuring commands share: prompts, sampling, progress."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)

from ..bench.prompt_sets import Prompt, load_prompts, own_prompts, select
from ..bench.settings import Settings
from .common import BadInput, clear_errors, default_of

F = TypeVar("F", bound=Callable[..., Any])


def prompt_options(per_category: int) -> Callable[[F], F]:
    """Add --prompts, --category and --per-category; read them with `chosen_prompts`."""

    def add(command: F) -> F:
        options = [
            click.option(
                "--prompts",
                metavar="FILE",
                help="JSONL in the form of Spec-Bench or HumanEval, or plain text with prompts "
                "between lines of ---.  [default: the project's own prompts]",
            ),
            click.option(
                "--category",
                "categories",
                multiple=True,
                help="Only prompts of this category; may be given several times.",
            ),
            click.option(
                "--per-category",
                type=int,
                default=per_category,
                show_default=True,
                help="Prompts of each category; 0 for all.",
            ),
        ]
        for option in reversed(options):
            command = option(command)
        return command

    return add


def decoding_options(command: F) -> F:
    """Add --max-new-tokens and sampling; read them with `decoding_settings`."""
    options = [
        click.option(
            "--max-new-tokens",
            type=int,
            default=default_of(Settings, "max_new_tokens"),
            show_default=True,
            help="Stop each text after this many tokens.",
        ),
        click.option("--temperature", type=float, help="Sample with this temperature, above 0."),
        click.option("--top-k", type=int, help="Sample from this many likeliest tokens."),
        click.option("--top-p", type=float, help="Sample from the likeliest tokens of this total."),
        click.option(
            "--seed",
            type=int,
            default=default_of(Settings, "seed"),
            show_default=True,
            help="Seed of the first prompt when sampling.",
        ),
        click.option("--threads", type=int, help="Threads of torch on a CPU.  [default: torch's]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def chosen_prompts(values: dict[str, Any]) -> tuple[list[Prompt], dict[str, Any]]:
    """Take the prompt options out of ``values``: the prompts, and settings that name them."""
    path, categories = values.pop("prompts"), values.pop("categories")
    per_category = values.pop("per_category") or None
    with clear_errors():
        prompts = own_prompts() if path is None else load_prompts(path)
        chosen = select(prompts, categories or None, per_category)
    names = {"prompts": "own" if path is None else Path(path).name}
    return chosen, {**names, "categories": categories, "per_category": per_category}


def decoding_settings(values: dict[str, Any]) -> dict[str, Any]:
    """Take the decoding options out of ``values``; any option of sampling turns it on."""
    kept = {name: values.pop(name) for name in ("max_new_tokens", "seed", "threads")}
    sampling = {name: values.pop(name) for name in ("temperature", "top_k", "top_p")}
    given = {name: value for name, value in sampling.items() if value is not None}
    return {**kept, **given, "do_sample": bool(given)}


def output_folder(out: Path | None) -> None:
    """Make the folder of --out; `BadInput` where that cannot be."""
    if out is None:
        return
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise BadInput(f"cannot write to {out}: {error.strerror}") from error


def progress_bar() -> Progress:
    """A bar with an estimate, on standard error."""
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
        console=Console(stderr=True),
    )
