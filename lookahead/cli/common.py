"""What all commands share: clear errors, the model options, and loading."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, TypeVar

import click

from ..config import Config
from ..model_store import LoadedModel, LoadOptions, ModelStore, load

F = TypeVar("F", bound=Callable[..., Any])


class BadInput(click.ClickException):
    """One sentence for the user; exit code 2."""

    exit_code = 2


@contextmanager
def clear_errors() -> Iterator[None]:
    """Show ValueError, the library's error for bad input, as a sentence instead of a traceback."""
    try:
        yield
    except ValueError as error:
        raise BadInput(" ".join(str(error).split())) from error


@contextmanager
def warnings_as_notes() -> Iterator[None]:
    """Show warnings as one line each on standard error, without their place in the code."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        try:
            yield
        finally:
            for message in dict.fromkeys(str(w.message) for w in caught):
                note(message)


def note(line: str) -> None:
    """One line on standard error, which is kept apart from the command's output."""
    click.echo(line, err=True)


def default_of(options: type, name: str) -> Any:
    """The default of field ``name`` of a dataclass: the command line has none of its own."""
    return {f.name: f.default for f in fields(options)}[name]


def _wrap(model: Any, config: Config | None = None, *, tokenizer: Any = None) -> Any:
    from .. import wrap

    return wrap(model, config, tokenizer=tokenizer)


@dataclass(frozen=True)
class Services:
    """What the commands reach outside themselves through; tests give their own.

    Attributes:
        store: cache folder or None -> the store that resolves model specs.
        load: resolved model, options -> model and tokenizer.
        wrap: model, config, tokenizer= -> engine.
    """

    store: Callable[[Path | None], ModelStore] = lambda root: ModelStore(root, say=note)
    load: Callable[..., LoadedModel] = load
    wrap: Callable[..., Any] = _wrap


def make_engine(services: Services, loaded: LoadedModel, config: Config | None = None) -> Any:
    """The engine for a loaded model; `BadInput` if it is no model that generates."""
    try:
        return services.wrap(loaded.model, config, tokenizer=loaded.tokenizer)
    except TypeError as error:
        raise BadInput(f"{error}.") from error


@dataclass(frozen=True)
class ModelChoice:
    """The values of `model_options`."""

    spec: str | None
    load: LoadOptions
    cache_dir: Path | None

    def load_with(self, services: Services) -> LoadedModel:
        """Resolve and load the model; `BadInput` if it cannot be had."""
        from transformers.utils import logging

        with clear_errors():
            resolved = services.store(self.cache_dir).resolve(self.spec)
            logging.disable_progress_bar()  # loading a local folder is quick
            with warnings_as_notes():
                return services.load(resolved, self.load)


def sampling_options(command: F) -> F:
    """Add --temperature, --top-p, --top-k and --seed."""
    options = [
        click.option("--temperature", type=float, help="Sample with this temperature, above 0."),
        click.option("--top-p", type=float, help="Sample from the likeliest tokens of this total."),
        click.option("--top-k", type=int, help="Sample from this many likeliest tokens."),
        click.option("--seed", type=int, help="Seed for sampling.  [default: drawn and reported]"),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def model_options(command: F) -> F:
    """Add --model, --dtype, --device and --cache-dir; read them with `model_choice`."""
    options = [
        click.option(
            "--model",
            "spec",
            metavar="MODEL",
            help="A local folder, a GGUF file or a Hub id.  [default: SmolLM2-135M-Instruct]",
        ),
        click.option(
            "--dtype",
            default=default_of(LoadOptions, "dtype"),
            show_default=True,
            help="float32, bfloat16, float16, or auto: float32 on a CPU, else the checkpoint's.",
        ),
        click.option(
            "--device",
            default=default_of(LoadOptions, "device"),
            show_default=True,
            help="A torch device, or auto: CUDA if there is any, else the CPU.",
        ),
        click.option(
            "--cache-dir",
            type=click.Path(file_okay=False, path_type=Path),
            help="Where converted models are kept.  [default: the user's cache folder]",
        ),
    ]
    for option in reversed(options):
        command = option(command)
    return command


def model_choice(values: dict[str, Any]) -> ModelChoice:
    """Take the values of `model_options` out of a command's ``values``."""
    with clear_errors():
        options = LoadOptions(values.pop("dtype"), values.pop("device"))
    return ModelChoice(values.pop("spec"), options, values.pop("cache_dir"))
