"""``lookahead info`` and the help texts."""

from __future__ import annotations

import json

import torch
from click.testing import CliRunner

from lookahead.cli import main
from lookahead.cli.engine_options import EngineOption
from lookahead.cli.generate import generate
from lookahead.config import Config, JacobiConfig
from tests.cli.conftest import Command


def test_info_shows_model_capability_device_and_versions(command: Command) -> None:
    result = command("info", "--json", "--dtype", "bfloat16")
    found = json.loads(result.stdout)
    assert found["model"]["class"] == "LlamaForCausalLM"
    assert found["model"]["dtype"] == "bfloat16"
    assert found["model"]["context"] == 64
    assert found["model"]["folder"] == str(command.folder)
    assert found["capability"] == {"mode": "tree", "reason": "a test says so"}
    assert found["passes"] == {
        "module": "copy",
        "packed weights MB": None,
        "no compiled kernels": "no compiler",
    }
    assert found["device"]["device"] == ("cuda:0" if torch.cuda.is_available() else "cpu")
    assert torch.__version__.startswith(found["versions"]["torch"])
    for word in ("LlamaForCausalLM", "a test says so", "cpu", found["versions"]["torch"]):
        assert word in command("info", "--device", "cpu").stdout


def test_help_names_commands_options_and_the_defaults_of_the_configuration() -> None:
    runner = CliRunner()
    overview = runner.invoke(main, ["--help"]).stdout
    assert "generate" in overview
    assert "info" in overview
    text = runner.invoke(main, ["generate", "-h"]).stdout
    options, engine = text.split("Engine (speed only):")
    assert "--show-accepted" in options
    assert "--jacobi" not in options
    lines = [line for line in engine.split("\n") if "--jacobi-window" in line]
    assert f"[default: {JacobiConfig().window}]" in lines[0]
    for group in ("ngram-pool", "prompt-lookup", "recycling"):
        assert f"--{group} / --no-{group}" in engine
    assert f"[default: {Config().planner.max_nodes}]" in engine


def test_help_says_what_each_engine_option_does() -> None:
    options = [option for option in generate.params if isinstance(option, EngineOption)]
    assert len(options) > 15
    for option in options:
        text, _, default = (option.help or "").partition("[default: ")
        assert text.strip().endswith("."), option.name
        assert default != "None]", option.name
    overview = CliRunner().invoke(main, ["--help"]).stdout
    assert "..." not in overview.split("Commands:")[1]
