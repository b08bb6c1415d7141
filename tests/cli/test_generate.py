"""``lookahead generate`` prints what plain decoding writes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import pytest
import torch

from lookahead.cli.generate import COLOURS
from lookahead.config import lookahead_config
from tests.cli.conftest import SOURCES, Command

Plain = Callable[..., list[int]]


def object_of(command: Command, *arguments: str, **options: Any) -> dict[str, Any]:
    result = command("generate", *arguments, "--json", **options)
    assert result.exit_code == 0, result.output
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_greedy_text_and_ids_are_the_plain_ones(command: Command, plain_ids: Plain) -> None:
    arguments = ("Hello", "--raw", "--max-new-tokens", "20")
    found = object_of(command, *arguments)
    assert found["token_ids"] == plain_ids("Hello", max_new_tokens=20, do_sample=False)
    assert found["stats"]["passes"] > 0
    assert found["seed"] is None
    assert found["capability"] == {"mode": "tree", "reason": "a test says so"}
    streamed = command("generate", *arguments)
    assert streamed.exit_code == 0
    assert streamed.stdout == found["text"] + "\n"
    assert "20 tokens in" in streamed.stderr


def test_sampled_ids_are_the_plain_ones_of_that_seed(command: Command, plain_ids: Plain) -> None:
    arguments = ("--temperature", "0.9", "--top-p", "0.8", "--top-k", "40", "--seed", "7")
    found = object_of(command, "Hello", "--raw", "--max-new-tokens", "12", *arguments)
    sampling = {"do_sample": True, "temperature": 0.9, "top_p": 0.8, "top_k": 40}
    torch.manual_seed(7)
    assert found["token_ids"] == plain_ids("Hello", max_new_tokens=12, **sampling)
    assert found["seed"] == 7


def test_a_drawn_seed_is_reported_and_reproduces_the_text(command: Command) -> None:
    arguments = ("Hello", "--temperature", "1.5", "--max-new-tokens", "12")
    first = object_of(command, *arguments)
    assert object_of(command, *arguments, "--seed", str(first["seed"]))["text"] == first["text"]
    assert (
        f"seed {first['seed']}"
        in command("generate", *arguments, "--seed", str(first["seed"])).stderr
    )


def test_chat_template_is_applied_unless_raw(command: Command, plain_ids: Plain) -> None:
    chat = object_of(command, "Hi", "--max-new-tokens", "6")
    assert chat["token_ids"] == plain_ids("[Hi]", max_new_tokens=6, do_sample=False)
    assert chat["prompt_tokens"] == 4
    assert object_of(command, "Hi", "--raw", "--max-new-tokens", "6")["prompt_tokens"] == 2


def test_prompt_comes_from_argument_file_or_standard_input(
    command: Command, tmp_path: Path
) -> None:
    (tmp_path / "prompt.txt").write_text("Grüße", encoding="utf-8")
    few = ("--max-new-tokens", "5")
    expected = object_of(command, "Grüße", *few)["token_ids"]
    assert object_of(command, "--file", str(tmp_path / "prompt.txt"), *few)["token_ids"] == expected
    assert object_of(command, *few, stdin="Grüße")["token_ids"] == expected


def test_show_accepted_colours_text_without_changing_it(command: Command) -> None:
    arguments = ("generate", "Hello", "--max-new-tokens", "20", "--show-accepted")
    plain = command(*arguments)
    coloured = command(*arguments, color=True)
    assert click.unstyle(coloured.stdout) == plain.stdout
    for source in SOURCES[1:]:
        assert click.style("", fg=COLOURS[source], reset=False) in coloured.stdout
    found = object_of(command, "Hello", "--max-new-tokens", "20")
    assert found["sources"] == [SOURCES[i % len(SOURCES)] for i in range(20)]
    assert "jacobi 4, ngram_pool 3, prompt_lookup 3, recycling 3, positions 3;" in plain.stderr


def test_compare_reports_equality_and_speedup(command: Command) -> None:
    result = command("generate", "Hello", "--compare", "--max-new-tokens", "8")
    assert "Identical to plain decoding" in result.stderr
    found = object_of(command, "Hello", "--compare", "--max-new-tokens", "8")["compare"]
    assert found["identical"] is True
    assert found["first_difference"] is None
    assert found["speedup"] == pytest.approx(found["plain_seconds"] / found["seconds"])


def test_compare_tells_a_difference_and_where(command: Command) -> None:
    command.engine["spoil"] = True
    found = object_of(command, "Hello", "--compare", "--max-new-tokens", "8")["compare"]
    assert (found["identical"], found["first_difference"]) == (False, 2)
    result = command("generate", "Hello", "--compare", "--max-new-tokens", "8")
    assert "DIFFERS from plain decoding from token 3 on" in result.stderr


def test_compare_samples_both_with_the_same_seed(command: Command) -> None:
    arguments = ("Hello", "--compare", "--temperature", "2", "--max-new-tokens", "20")
    assert object_of(command, *arguments)["compare"]["identical"] is True


def test_engine_options_reach_the_engine(command: Command) -> None:
    object_of(command, "Hi", "--max-new-tokens", "4", "--jacobi-window", "3", "--no-recycling")
    object_of(command, "Hi", "--max-new-tokens", "4", "--preset", "lookahead-5-7-7")
    (_, changed, _), (_, preset, _) = command.wrapped
    assert (changed.jacobi.window, changed.recycling.enabled) == (3, False)
    assert changed.prompt_lookup.enabled
    assert preset == lookahead_config(ngram=5, window=7, guesses=7)


@pytest.mark.parametrize(
    ("flags", "value"), [([], None), (["--static-passes"], True), (["--no-static-passes"], False)]
)
def test_static_passes_are_on_off_or_left_to_the_engine(
    command: Command, flags: list[str], value: bool | None
) -> None:
    object_of(command, "Hi", "--max-new-tokens", "4", *flags)
    assert command.wrapped[0][1].static_passes is value


def test_generation_is_cut_to_the_context(command: Command) -> None:
    result = command("generate", "a" * 60, "--raw", "--max-new-tokens", "100", "--json")
    assert len(json.loads(result.stdout)["token_ids"]) == 4
    assert "room for 4 new tokens" in result.stderr
