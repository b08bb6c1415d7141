"""``lookahead generate``: one prompt, streamed."""

from __future__ import annotations

import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Mapping
from io import TextIOWrapper
from typing import Any

import click

from ..model_store import LoadedModel
from ..text import TextStream, decode
from . import decoding
from .common import (
    BadInput,
    Services,
    clear_errors,
    default_of,
    make_engine,
    model_choice,
    model_options,
    note,
    sampling_options,
    warnings_as_notes,
)
from .decoding import DecodingOptions, Output
from .engine_options import SectionedCommand, engine_config, engine_options

COLOURS = {
    "jacobi": "cyan",
    "ngram_pool": "green",
    "prompt_lookup": "yellow",
    "recycling": "magenta",
    "positions": "blue",
}


@click.command(cls=SectionedCommand, short_help="Write text after a prompt.")
@click.argument("prompt", required=False)
@click.option("--file", type=click.File(encoding="utf-8"), help="Read the prompt from a file.")
@click.option("--raw", is_flag=True, help="Continue the prompt; apply no chat template.")
@click.option(
    "--max-new-tokens",
    type=int,
    default=default_of(DecodingOptions, "max_new_tokens"),
    show_default=True,
    help="Stop after this many tokens.",
)
@sampling_options
@click.option("--show-accepted", is_flag=True, help="Colour each token by who guessed it.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object, at the end.")
@click.option("--compare", is_flag=True, help="Also decode plainly; report equality and speedup.")
@model_options
@engine_options
@click.pass_obj
def generate(
    services: Services, prompt: str | None, file: Any, raw: bool, show_accepted: bool, **values: Any
) -> None:
    """Write text after PROMPT, or after standard input if there is no PROMPT.

    The text is that of plain decoding; guesses change how soon it comes. Statistics go to
    standard error.
    """
    as_json, with_plain = values.pop("as_json"), values.pop("compare")
    choice, config = model_choice(values), engine_config(values)
    with clear_errors():
        options = DecodingOptions(**values).with_seed()
    text = read_prompt(prompt, file)
    if not text.strip():
        raise BadInput("The prompt is empty: give some text.")  # before the model is loaded
    loaded = choice.load_with(services)
    with clear_errors():
        inputs = decoding.encode(loaded, text, raw=raw)
        length = inputs["input_ids"].shape[1]
        fitted = decoding.fit_to_context(loaded, length, options)
    if fitted != options:
        note(f"The context leaves room for {fitted.max_new_tokens} new tokens.")
    with clear_errors(), warnings_as_notes():
        engine = make_engine(services, loaded, config)
        output = run(engine, loaded, inputs, fitted, painter(show_accepted, silent=as_json))
        reference = decoding.plain(loaded, inputs, fitted) if with_plain else None
    measuring = engine.stats.seconds_measuring
    comparison = decoding.compare(output, reference, measuring) if reference else None
    if as_json:
        report = as_object(engine, loaded, length, fitted, output, comparison)
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    click.echo()
    note(summary(engine, fitted, output))
    if show_accepted:
        note(legend(Counter(output.sources)))
    if comparison:
        note(verdict(comparison))


def read_prompt(prompt: str | None, file: Any) -> str:
    """The prompt from the argument, the file, or standard input; one of them."""
    if prompt is not None and file is not None:
        raise BadInput("Give the prompt as an argument or with --file, not both.")
    if prompt is not None:
        return prompt
    source: Any = file or click.open_file("-", encoding="utf-8")
    if file is None and source.isatty():
        note("Reading the prompt from standard input; end it with Ctrl-D.")
    try:
        return str(source.read())
    except UnicodeDecodeError as error:
        raise BadInput("The prompt is not UTF-8 text: convert it first.") from error


def painter(show_accepted: bool, *, silent: bool) -> Callable[[str, str], None]:
    """A function that writes a piece of text, coloured by its source if asked, or not at all."""
    if isinstance(sys.stdout, TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # an old terminal may lack the character

    def paint(piece: str, source: str) -> None:
        if silent:
            return
        if show_accepted and source in COLOURS:
            piece = click.style(piece, fg=COLOURS[source])
        click.echo(piece, nl=False)

    return paint


def run(
    engine: Any,
    loaded: LoadedModel,
    inputs: dict[str, Any],
    options: DecodingOptions,
    show: Callable[[str, str], None],
) -> Output:
    """Decode with the engine and show each piece of text with the source of its last token."""
    stream, source = TextStream(loaded.tokenizer), "model"
    ids: list[int] = []
    sources: list[str] = []
    start = time.perf_counter()
    for token, source in decoding.engine_tokens(engine, inputs, options):
        ids.append(token)
        sources.append(source)
        if piece := stream.push(token):
            show(piece, source)
    seconds = time.perf_counter() - start
    if piece := stream.finish():
        show(piece, source)
    return Output(ids, decode(loaded.tokenizer, ids), seconds, tuple(sources))


def as_object(
    engine: Any,
    loaded: LoadedModel,
    prompt_tokens: int,
    options: DecodingOptions,
    output: Output,
    comparison: dict[str, Any] | None,
) -> dict[str, Any]:
    """What --json prints."""
    capability = {"mode": str(engine.capability.mode), "reason": engine.capability.reason}
    return {
        "text": output.text,
        "token_ids": output.ids,
        "sources": output.sources,
        "prompt_tokens": prompt_tokens,
        "model": str(loaded.path),
        "origin": loaded.origin,
        "seed": options.seed,
        "capability": capability,
        "seconds": output.seconds,
        "stats": engine.stats.to_dict(),
        "compare": comparison,
    }


def summary(engine: Any, options: DecodingOptions, output: Output) -> str:
    """One line about what was generated and how fast."""
    stats, count = engine.stats, len(output.ids)
    measuring = stats.seconds_measuring
    line = (
        f"{count} tokens in {stats.passes} passes ({stats.tokens_per_pass:.2f} a pass), "
        f"{count / (output.seconds - measuring):.1f} tokens/s"
    )
    if measuring > 0:
        line += f" after {measuring:.1f} s that measured the passes' cost"
    return line if options.seed is None else f"{line}, seed {options.seed}"


def legend(counts: Mapping[str, int]) -> str:
    """The colours, with how many tokens each source guessed right."""
    parts = [
        f"{click.style(name, fg=colour)} {counts.get(name, 0)}" for name, colour in COLOURS.items()
    ]
    return f"Guessed by: {', '.join(parts)}; uncoloured: the model alone."


def verdict(comparison: dict[str, Any]) -> str:
    """One line about equality and speed."""
    speed = (
        f"{comparison['speedup']:.2f}x the speed of plain decoding "
        f"({comparison['seconds']:.2f} s against {comparison['plain_seconds']:.2f} s, one run each)"
    )
    if comparison["measuring_seconds"] > 0:
        speed += f", after {comparison['measuring_seconds']:.2f} s that measured the passes' cost"
    if comparison["identical"]:
        return f"Identical to plain decoding; {speed}."
    where = comparison["first_difference"] + 1
    return f"DIFFERS from plain decoding from token {where} on; {speed}."
