"""Bad input ends in one clear sentence and exit code 2, an interrupt in a clean line and 130."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

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


def _shorten(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def _change(path: Path, **values: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def _index(folder: Path, text: str) -> None:
    (folder / "model.safetensors").unlink()
    (folder / "model.safetensors.index.json").write_text(text)


DAMAGE: dict[str, Callable[[Path], object]] = {
    "half of the weights": lambda folder: _shorten(folder / "model.safetensors"),
    "no weights": lambda folder: (folder / "model.safetensors").write_bytes(b""),
    "weights of another shape": lambda folder: _change(folder / "config.json", hidden_size=64),
    "a word as size": lambda folder: _change(folder / "config.json", hidden_size="wide"),
    "no heads": lambda folder: _change(folder / "config.json", num_attention_heads=0),
    "another dtype": lambda folder: _change(folder / "config.json", dtype="float3"),
    "a list as configuration": lambda folder: (folder / "config.json").write_text("[]"),
    "half of the tokenizer": lambda folder: _shorten(folder / "tokenizer.json"),
    "a list as generation settings": lambda folder: (folder / "generation_config.json").write_text(
        "[]"
    ),
    "an index that is no JSON": lambda folder: _index(folder, "{"),
    "an index without a map": lambda folder: _index(folder, "{}"),
    "an index of nothing": lambda folder: _index(folder, '{"weight_map": {}}'),
    "an index that is a list": lambda folder: _index(folder, '{"weight_map": []}'),
    "a template that is no template": lambda folder: (folder / "chat_template.jinja").write_text(
        "{% for %}"
    ),
    "a template that refuses": lambda folder: (folder / "chat_template.jinja").write_text(
        '{{ raise_exception("no") }}'
    ),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_each_damage_to_a_model_is_one_clear_sentence(
    command: Command, model_folder: Path, tmp_path: Path, damage: str
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(model_folder, folder)
    assert command("generate", "Hi", "--max-new-tokens", "2", model=str(folder)).exit_code == 0
    DAMAGE[damage](folder)
    result = command("generate", "Hi", "--max-new-tokens", "2", model=str(folder))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr.strip().split("\n")[-1].startswith("Error: ")


@pytest.mark.parametrize(
    ("arguments", "model", "words"),
    [
        (["\udcff\udcfe"], "", "not UTF-8"),
        (["Hi", "--device", "meta"], "", "not available"),
        (["Hi"], "x" * 5000, "cannot be used"),
    ],
)
def test_other_bad_input_is_one_clear_sentence(
    command: Command, arguments: list[str], model: str, words: str
) -> None:
    result = command("generate", *arguments, model=model)
    assert (result.exit_code, words in result.stderr) == (2, True)


@pytest.mark.parametrize("folder", ["/dev/null/cache", "/proc/cache"])
def test_a_cache_folder_that_cannot_be_made(command: Command, tmp_path: Path, folder: str) -> None:
    (tmp_path / "model.gguf").write_bytes(b"GGUF" + bytes(40))
    result = command("generate", "Hi", "--cache-dir", folder, model=str(tmp_path / "model.gguf"))
    assert (result.exit_code, "another --cache-dir" in result.stderr) == (2, True)
