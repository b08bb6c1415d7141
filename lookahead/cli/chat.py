"""``lookahead chat``: a conversation in the terminal."""

from __future__ import annotations

import sys
import time
from collections import Counter
from collections.abc import Callable
from typing import Any, TextIO

import click

from ..text import TextStream, decode
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
from .conversation import Conversation, has_template
from .decoding import DecodingOptions, fit_to_context, seeded
from .engine_options import SectionedCommand, engine_config, engine_options
from .generate import legend, painter

HELP = "Type a message. /new starts over, /quit or Ctrl-D ends, Ctrl-C stops a reply."


@click.command(cls=SectionedCommand, short_help="Talk with the model.")
@click.option("--system", help="A system message before the conversation.")
@click.option(
    "--max-new-tokens",
    type=int,
    default=default_of(DecodingOptions, "max_new_tokens"),
    show_default=True,
    help="Stop each reply after this many tokens.",
)
@sampling_options
@click.option("--show-accepted", is_flag=True, help="Colour each token by who guessed it.")
@model_options
@engine_options
@click.pass_obj
def chat(services: Services, system: str | None, show_accepted: bool, **values: Any) -> None:
    """Talk with the model. The cache is kept between turns; statistics go to standard error."""
    choice, config = model_choice(values), engine_config(values)
    with clear_errors():
        options = DecodingOptions(**values).with_seed()
    loaded = choice.load_with(services)
    if not has_template(loaded):
        raise BadInput("This model has no chat template: use `lookahead generate` with it.")
    with clear_errors(), warnings_as_notes():
        engine = make_engine(services, loaded, config)
    conversation = Conversation(loaded, engine, system)
    show = painter(show_accepted, silent=False)
    seeded(options)
    note(HELP if options.seed is None else f"{HELP} Seed {options.seed}.")
    while (text := read_message(sys.stdin)) is not None:
        if text == "/new":
            conversation.restart()
            note("A new conversation.")
        elif text:
            with clear_errors():
                ids = conversation.prompt(text)
                fitted = fit_to_context(loaded, len(ids), options)
            with clear_errors(), warnings_as_notes():
                seconds, sources = turn(conversation, loaded, ids, text, fitted, show)
            click.echo()
            note(summary(engine, conversation, len(sources), seconds))
            if show_accepted:
                note(legend(Counter(sources)))


def read_message(stdin: TextIO) -> str | None:
    """The next message without surrounding space; None at the end."""
    if stdin.isatty():
        click.echo("> ", nl=False, err=True)
    try:
        line = stdin.readline()
    except UnicodeDecodeError as error:
        raise BadInput("A message is not UTF-8 text: convert it first.") from error
    text = line.strip()
    return None if not line or text == "/quit" else text


def turn(
    conversation: Conversation,
    loaded: Any,
    ids: list[int],
    text: str,
    options: DecodingOptions,
    show: Callable[[str, str], None],
) -> tuple[float, list[str]]:
    """Stream one reply; return its seconds and its tokens' sources. Ctrl-C keeps what was said."""
    stream, source = TextStream(loaded.tokenizer), "model"
    made: list[int] = []
    sources: list[str] = []
    start = time.perf_counter()
    reply = conversation.reply(ids, options.arguments())
    try:
        for token, source in reply:
            made.append(token)
            sources.append(source)
            if piece := stream.push(token):
                show(piece, source)
    except KeyboardInterrupt:
        reply.close()  # type: ignore[attr-defined]
    if piece := stream.finish():
        show(piece, source)
    conversation.end_turn(text, decode(loaded.tokenizer, made))
    return time.perf_counter() - start, sources


def summary(engine: Any, conversation: Conversation, made: int, seconds: float) -> str:
    """One line about a turn."""
    stats = engine.stats
    return (
        f"[{made} tokens in {stats.passes} passes, {stats.tokens_per_pass:.2f} a pass; "
        f"{made / seconds:.1f} tokens/s; {conversation.cached} of {conversation.length} prompt "
        "tokens were cached]"
    )
