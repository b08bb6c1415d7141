"""Bad input ends in one clear sentence and exit code 2, an interrupt in a clean line and 130."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.cli.conftest import Command


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["", "--raw"], "prompt is empty"),
        (["  \n "], "prompt is empty"),
        (["Hi", "--no-such-option"], "No such option"),
        (["Hi", "--temperature", "0"], "above 0"),
        (["Hi", "--temperature", "nan"], "above 0"),
        (["Hi", "--temperature", "inf"], "above 0"),
        (["Hi", "--temperature", "warm"], "not a valid float"),
        (["Hi", "--top-p", "1.5"], "--top-p"),
        (["Hi", "--top-p", "0"], "--top-p"),
        (["Hi", "--top-k", "0"], "--top-k"),
        (["Hi", "--max-new-tokens", "-3"], "--max-new-tokens"),
        (["Hi", "--max-new-tokens", "0"], "--max-new-tokens"),
        (["Hi", "--seed", "1"], "--seed needs"),
        (["Hi", "--seed", "-1", "--top-k", "2"], "--seed must"),
        (["Hi", "--dtype", "float8"], "dtype must be one of"),
        (["Hi", "--device", "abacus"], "not available"),
        (["Hi", "--jacobi-ngram", "1"], "jacobi.ngram"),
        (["Hi", "--file", __file__], "not both"),
        (["--file", "/no/such/file"], "No such file"),
        (["a" * 64, "--raw"], "context holds 64"),
    ],
)
def test_bad_input_is_one_clear_sentence(
    command: Command, arguments: list[str], words: str
) -> None:
    result = command("generate", *arguments, stdin="")
    assert result.exit_code == 2
    assert result.stdout == ""
    assert words in result.stderr
    assert result.stderr.strip().split("\n")[-1].startswith("Error: ")
    assert "Traceback" not in result.output


def test_empty_standard_input_is_an_empty_prompt(command: Command) -> None:
    result = command("generate", stdin="")
    assert (result.exit_code, "prompt is empty" in result.stderr) == (2, True)


def test_prompt_file_that_is_not_text(command: Command, tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    result = command("generate", "--file", str(tmp_path / "binary"))
    assert (result.exit_code, "not UTF-8" in result.stderr) == (2, True)


@pytest.mark.parametrize("subcommand", [["generate", "Hi"], ["info"]])
def test_missing_model(command: Command, tmp_path: Path, subcommand: list[str]) -> None:
    result = command(*subcommand, model=str(tmp_path / "nowhere"))
    assert (result.exit_code, "no model at" in result.stderr) == (2, True)


def test_damaged_model(command: Command, tmp_path: Path) -> None:
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_text("{")
    result = command("generate", "Hi", model=str(tmp_path))
    assert (result.exit_code, "cannot be loaded" in result.stderr) == (2, True)


def test_interrupt_ends_with_a_clean_line_and_130(command: Command) -> None:
    command.engine["fail"] = KeyboardInterrupt()
    result = command("generate", "Hello", "--max-new-tokens", "30")
    assert result.exit_code == 130
    assert result.stdout != ""  # what had come by then
    assert result.stderr.endswith("\nInterrupted.\n")
    assert "Traceback" not in result.output


def test_an_engines_refusal_is_shown_as_a_sentence(command: Command) -> None:
    command.engine["fail"] = ValueError("beam search\nis not supported")
    result = command("generate", "Hello", "--max-new-tokens", "30")
    assert result.exit_code == 2
    assert result.stderr.endswith("Error: beam search is not supported\n")
