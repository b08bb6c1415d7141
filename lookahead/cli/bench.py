"""``lookahead bench``: all methods in one interleaved run."""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import click
import torch
from rich.console import Console

from ..bench import report
from ..bench.measure import summarise
from ..bench.methods import ENTRIES, REFERENCE, EngineMethod, build_methods, default_names
from ..bench.plots import require_matplotlib, save_plots
from ..bench.prompt_sets import Prompt
from ..bench.rows import Row, resume
from ..bench.runner import OutputDiffers, Run, list_cases
from ..bench.settings import Settings, environment, peak_memory
from ..model_store import LoadedModel
from .common import (
    BadInput,
    ModelChoice,
    Services,
    clear_errors,
    default_of,
    make_engine,
    model_choice,
    model_options,
    note,
    warnings_as_notes,
)
from .measuring import (
    chosen_prompts,
    decoding_options,
    decoding_settings,
    output_folder,
    progress_bar,
    prompt_options,
)

ROWS = "rows.jsonl"
METHODS_HELP = "A method to run, may be given several times: " + ", ".join(
    f"{entry.name} ({entry.help})" for entry in ENTRIES
)


@click.command(short_help="Measure speed against plain decoding.")
@prompt_options(per_category=2)
@click.option("--method", "methods", multiple=True, metavar="NAME", help=METHODS_HELP)
@click.option(
    "--state",
    type=click.Choice(["cold", "warm", "both"]),
    default=default_of(Settings, "state"),
    show_default=True,
    help="A fresh engine for every prompt, one for all, or (full engine only) both.",
)
@click.option("--draft-model", metavar="MODEL", help="Draft model of the method assisted.")
@decoding_options
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="Folder for rows, JSON, Markdown and plots.",
)
@click.option("--resume", "resumed", is_flag=True, help="Go on with the interrupted run in --out.")
@click.option("--profile", is_flag=True, help="Also show where the engines' time goes.")
@model_options
@click.pass_obj
def bench(
    services: Services,
    methods: tuple[str, ...],
    state: str,
    draft_model: str | None,
    out: Path | None,
    resumed: bool,
    profile: bool,
    **values: Any,
) -> None:
    """Measure speed and equality of all methods on prompts, interleaved.

    Tables go to standard output, whose last line is one JSON object. A difference from plain
    decoding that rounding does not explain aborts the run with exit code 1.
    """
    prompts, names = chosen_prompts(values)
    decoding = decoding_settings(values)
    choice = model_choice(values)
    if out is not None:
        with clear_errors():
            require_matplotlib()
    if resumed and out is None:
        raise BadInput("--resume needs --out, the folder of the interrupted run.")
    with clear_errors():
        device = choice.load.torch_device()
        settings = Settings(
            model=choice.spec or "default",
            device=str(device),
            dtype=choice.load.dtype,
            methods=methods or default_names(device, draft_model is not None),
            state=state,
            draft_model=draft_model,
            **names,
            **decoding,
        )
    output_folder(out)
    done = earlier_rows(out, settings, resumed)
    if settings.threads is not None:
        torch.set_num_threads(settings.threads)
    loaded = choice.load_with(services)
    run, facts = prepare(services, choice, loaded, settings, out)
    rows, complete = measure(run, prompts, done, len(facts["methods"]))
    publish(rows, settings, facts, out, complete, profile)
    if not complete:
        raise KeyboardInterrupt


def earlier_rows(out: Path | None, settings: Settings, resumed: bool) -> list[Row]:
    """Rows to go on with; `BadInput` where a run would be overwritten or is not there."""
    path = out / ROWS if out is not None else None
    if path is None or not (resumed or path.exists()):
        return []
    if not resumed:
        raise BadInput(f"{out} holds a run already: add --resume or choose another folder.")
    if not path.exists():
        raise BadInput(f"{out} holds no run to resume.")
    with clear_errors():
        return resume(path, settings)


def prepare(
    services: Services,
    choice: ModelChoice,
    loaded: LoadedModel,
    settings: Settings,
    out: Path | None,
) -> tuple[Run, dict[str, Any]]:
    """The run, and facts about it for the report."""
    draft = None
    if settings.draft_model is not None:
        draft_choice = ModelChoice(settings.draft_model, choice.load, choice.cache_dir)
        draft = draft_choice.load_with(services).model
    with clear_errors(), warnings_as_notes():
        methods = build_methods(
            settings.methods,
            loaded.model,
            lambda config: make_engine(services, loaded, config),
            settings.state,
            draft,
        )
    first = next((m for m in methods if isinstance(m, EngineMethod)), None)
    mode = str(first.engine.capability.mode) if first is not None else "no engine"
    chunks = mode in {"tree", "chain"}
    path = out / ROWS if out is not None else None
    facts = {
        **environment(loaded.model.device),
        "origin": loaded.origin,
        "weights": str(loaded.model.dtype).removeprefix("torch."),
        "parameters": loaded.model.num_parameters(),
        "engine mode": mode,
        "methods": [method.name for method in methods],
    }
    return Run(loaded.model, loaded.tokenizer, methods, settings, path, chunks), facts


def measure(
    run: Run, prompts: list[Prompt], done: list[Row], methods: int
) -> tuple[list[Row], bool]:
    """Rows of the run, and whether it came to its end; Ctrl-C ends it early."""
    rows: list[Row] = []
    known = {(row.case, row.method) for row in done}
    with progress_bar() as bar:
        task = bar.add_task("warming up", total=len(list_cases(prompts)) * methods)

        def advance(case: str, method: str) -> None:
            bar.update(task, advance=1, description=f"{case} {method}")

        try:
            with clear_errors(), warnings_as_notes():
                for new in run.rows(prompts, done, advance):
                    rows += new
                    repeated = sum((row.case, row.method) in known for row in new)
                    bar.update(task, advance=repeated)
        except OutputDiffers as error:
            raise click.ClickException(str(error)) from error
        except KeyboardInterrupt:
            return rows, False
    return rows, True


def publish(
    rows: list[Row],
    settings: Settings,
    facts: dict[str, Any],
    out: Path | None,
    complete: bool,
    profile: bool,
) -> None:
    """Print tables and JSON; write the files of --out."""
    if not any(row.method == REFERENCE for row in rows):
        note("No case was finished, so there is nothing to report.")
        return
    summaries = summarise(rows)
    if (peak := peak_memory()) is not None:
        facts = {**facts, "peak main memory": f"{peak / 2**20:.0f} MiB"}
    console = Console(highlight=False)
    if not console.is_terminal:
        console = Console(highlight=False, width=200)
    for category in dict.fromkeys(summary.category for summary in summaries):
        console.print(report.table(summaries, category))
    console.print(report.LEGEND)
    if profile:
        console.print(report.profile(summaries, rows))
    values = report.as_json(summaries, rows, settings, facts, complete)
    if out is not None:
        command = shlex.join(["lookahead", *sys.argv[1:]])
        (out / "report.md").write_text(report.markdown(summaries, settings, facts, command))
        (out / "report.json").write_text(json.dumps(values, indent=1) + "\n")
        save_plots(out, summaries, rows)
        note(f"Rows, report and plots are in {out}.")
    click.echo(json.dumps(values))
