"""One command line option per field of `lookahead.config`, and the published presets.

Options are named after the fields: ``jacobi.window`` is ``--jacobi-window`` and ``jacobi.enabled``
is ``--jacobi/--no-jacobi``. A field added to the configuration is an option without further work.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, fields, is_dataclass
from typing import Any, TypeVar

import click

from .. import config
from ..config import Config
from .common import clear_errors

F = TypeVar("F", bound=Callable[..., Any])

PRESETS: dict[str, Callable[[], Config]] = {
    "default": Config,
    "lookahead-5-7-7": lambda: config.lookahead_config(ngram=5, window=7, guesses=7),
    "lookahead-5-15-15": lambda: config.lookahead_config(ngram=5, window=15, guesses=15),
    "prompt-lookup": config.prompt_lookup_config,
    "suffix": config.suffix_config,
    "recycling": config.recycling_config,
    "plain": config.plain_config,
}


# What `-h` says about the fields of `Config`; the docstrings there say more.
HELP = {
    "jacobi": "Refine future tokens in parallel in a lookahead window.",
    "jacobi.window": "Columns of the window.",
    "jacobi.ngram": "Length of the n-grams that the window makes.",
    "jacobi.always": "Run the window on every pass, not only while it pays.",
    "jacobi.shared_noise": "When sampling, guess with the noise that will pick the token.",
    "ngram_pool": "Guess n-grams seen in windows and in accepted text.",
    "ngram_pool.guesses": "Continuations kept for a token.",
    "ngram_pool.capacity": "Tokens with continuations kept.",
    "prompt_lookup": "Guess what followed the last tokens earlier in the text.",
    "prompt_lookup.min_match": "Fewest last tokens that have to match.",
    "prompt_lookup.back_off": "Shorter matches asked besides the longest.",
    "recycling": "Guess the likeliest tokens of logits computed earlier.",
    "recycling.top_k": "Likeliest tokens kept of each position.",
    "recycling.capacity": "Positions kept.",
    "recycling.prompt_positions": "Last positions of the prompt recycled too.",
    "positions": "Guess what was picked for a position after rejected guesses.",
    "planner.max_nodes": "Most guesses in a pass.",
    "planner.fixed_nodes": "This many guesses in a pass, whatever they cost.",
    "prepack": "Pack weights for the CPU, in one more copy of them.",
    "compiled": "Run fp32 CPU passes on kernels that the machine's C++ compiler makes once.",
    "static_passes": "Passes of fixed shapes, CUDA graphs on a GPU.",
    "remember_cost": "Keep measured costs of passes in the user's cache folder.",
}
UNSET = {"planner.fixed_nodes": "by measured cost", "static_passes": "on a GPU"}


class EngineOption(click.Option):
    """An option of the engine, listed apart because it changes speed and never the text."""


class SectionedCommand(click.Command):
    """Shows engine options in a section of their own in the help text."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        sections: dict[str, list[tuple[str, str]]] = {"Options": [], "Engine (speed only)": []}
        for param in self.get_params(ctx):
            record = param.get_help_record(ctx)
            if record is not None and not isinstance(param, click.Argument):
                sections[list(sections)[isinstance(param, EngineOption)]].append(record)
        for title, records in sections.items():
            if records:
                with formatter.section(title):
                    formatter.write_dl(records)


def engine_options(command: F) -> F:
    """Add --preset and one option per configuration field; read them with `engine_config`."""
    options = [
        click.option(
            "--preset",
            type=click.Choice(list(PRESETS)),
            default="default",
            show_default=True,
            cls=EngineOption,
            help="A set of options to start from; other options change it.",
        )
    ]
    for name, value in _flat(Config()).items():
        options.append(_option(name, value))
    for option in reversed(options):
        command = option(command)
    return command


def engine_config(values: dict[str, Any]) -> Config:
    """Take the values of `engine_options` out of a command's ``values``."""
    nested = asdict(PRESETS[values.pop("preset")]())
    for name in _flat(Config()):
        value = values.pop(name.replace(".", "__"))
        if value is not None:
            group, _, field = name.rpartition(".")
            (nested[group] if group else nested)[field] = value
    with clear_errors():
        return Config.from_dict(nested)


def _flat(options: Any) -> dict[str, Any]:
    """``group.field`` -> value for a dataclass of plain values and of dataclasses of them."""
    flat: dict[str, Any] = {}
    for field in fields(options):
        value = getattr(options, field.name)
        if is_dataclass(value):
            flat.update({f"{field.name}.{f.name}": getattr(value, f.name) for f in fields(value)})
        else:
            flat[field.name] = value
    return flat


def _option(name: str, value: Any) -> Callable[[F], F]:
    field = name.removesuffix(".enabled")
    flag = field.replace(".", "-").replace("_", "-")
    switch = isinstance(value, bool) or name == "static_passes"  # on, off or unset
    default = UNSET.get(name) if value is None else value
    if isinstance(value, bool):
        default = "on" if value else "off"
    text = f"{HELP.get(field, '')}  [default: {default}]".strip()
    return click.option(
        f"--{flag}/--no-{flag}" if switch else f"--{flag}",
        name.replace(".", "__"),
        type=None if switch else int if value is None else type(value),
        default=None,
        help=text,
        cls=EngineOption,
    )
