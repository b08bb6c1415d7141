"""The commands with the real engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.fixture
def real(model_folder: Path) -> Command:
    return Command(model_folder, real=True)


@pytest.mark.parametrize(
    "sampling", [[], ["--temperature", "0.3", "--seed", "5"], ["--top-p", "0.9", "--seed", "1"]]
)
def test_text_is_that_of_plain_decoding_and_guesses_are_accepted(
    real: Command, sampling: list[str]
) -> None:
    arguments = ["generate", "abcabcabcabc", "--max-new-tokens", "40", "--compare", *sampling]
    result = real(*arguments, "--json", "--preset", "suffix")
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["compare"]["identical"] is True
    assert sum(found["stats"]["proposed"].values()) > 0
    if not sampling:  # the greedy text of this model repeats itself
        assert found["stats"]["passes"] < len(found["token_ids"]) - 1
    streamed = real(*arguments, "--show-accepted")
    assert streamed.stdout == found["text"] + "\n"


def test_info_shows_what_the_trials_found(real: Command) -> None:
    assert json.loads(real("info", "--json").stdout)["capability"] == {"mode": "tree", "reason": ""}
    assert "tree" in real("info").stdout
