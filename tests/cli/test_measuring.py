"""``lookahead bench`` and ``lookahead verify`` from the command line, on a tiny model."""

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

from lookahead.bench.runner import Run
from lookahead.cli import main
from lookahead.tree import TokenTree

METHODS = ["--method", "hf-lookup", "--method", "suffix"]
FILES = ["acceptance.png", "pass_cost.png", "report.json", "report.md", "rows.jsonl"]


@pytest.fixture
def call(model_folder: Path, tmp_path: Path) -> Any:
    """Runs a command with the tiny model, two short prompts and few tokens."""
    prompts = tmp_path / "mine.txt"
    prompts.write_text("abcabcabc\n---\nhello hello\n")

    def run(command: str, *arguments: str, tokens: int = 12) -> Result:
        given = ["--model", str(model_folder), "--prompts", str(prompts), "--per-category", "0"]
        size = ["--max-new-tokens", str(tokens)]
        return CliRunner().invoke(main, [command, *given, *size, *arguments])

    return run


def last_json(result: Result) -> Any:
    return json.loads(result.stdout.splitlines()[-1])


def test_bench_ends_with_json_and_writes_its_files(call: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    result = call("bench", *METHODS, "--out", str(out), "--profile")
    assert result.exit_code == 0, result.output
    values = last_json(result)
    assert values["complete"] is True and values["cases"] == 2
    assert json.loads((out / "report.json").read_text()) == values
    names = [s["method"] for s in values["summaries"] if s["category"] == "all"]
    assert names == ["plain", "hf-lookup", "suffix"]
    assert all(s["equal"] == s["compared"] == 2 for s in values["summaries"] if s["cases"] == 2)
    assert set(FILES) <= {path.name for path in out.iterdir()}
    assert "all categories" in result.stdout and "where the time goes" in result.stdout
    assert "| suffix |" in (out / "report.md").read_text()


def test_bench_runs_assisted_generation_with_a_draft_model(call: Any, model_folder: Path) -> None:
    draft = ["--draft-model", str(model_folder)]
    result = call("bench", "--method", "assisted", *draft)
    assert result.exit_code == 0, result.output
    summary = last_json(result)["summaries"][1]
    assert summary["method"] == "assisted" and summary["equal"] == 2
    assert summary["tokens_per_pass"] >= 2  # the draft is the model itself
    result = call("bench", "--method", "hf-lookup", *draft)
    assert result.exit_code == 2 and "method assisted" in result.stderr


def test_bench_does_not_overwrite_a_run_and_resumes_it(
    call: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    run_case = Run._run_case

    def interrupted(self: Run, case: Any, *arguments: Any) -> Any:
        if case.number == 1:
            raise KeyboardInterrupt
        return run_case(self, case, *arguments)

    monkeypatch.setattr(Run, "_run_case", interrupted)
    result = call("bench", *METHODS, "--out", str(out))
    assert result.exit_code == 130
    partial = last_json(result)
    assert partial["complete"] is False and partial["cases"] == 1

    monkeypatch.undo()
    result = call("bench", *METHODS, "--out", str(out))
    assert result.exit_code == 2 and "--resume" in result.stderr
    result = call("bench", *METHODS, "--out", str(out), "--resume", tokens=13)
    assert result.exit_code == 2 and "max_new_tokens" in result.stderr
    result = call("bench", *METHODS, "--out", str(out), "--resume")
    assert result.exit_code == 0, result.output
    assert last_json(result)["cases"] == 2


def break_the_accept_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    """Where the pick was not guessed, walk on to another guess."""
    right = TokenTree.child

    def child(self: TokenTree, node: int, token: int) -> int | None:
        found = right(self, node, token)
        return found if found is not None or node not in self.parents else self.parents.index(node)

    monkeypatch.setattr(TokenTree, "child", child)


def test_bench_aborts_on_a_bug_without_a_traceback(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_the_accept_rule(monkeypatch)
    result = call("bench", *METHODS)
    assert result.exit_code == 1
    assert "suffix differs from plain decoding at token" in result.stderr
    assert "rounding does not explain it" in result.stderr
    assert "Traceback" not in result.output


def test_verify_is_silent_about_equal_text_and_fails_on_a_bug(
    call: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = call("verify")
    assert result.exit_code == 0, result.output
    assert "2 equal, 0 rounding ties, 0 bugs in 2 texts (float32, mode tree)" in result.stderr
    values = last_json(call("verify", "--json", "--temperature", "0.8", "--seed", "4"))
    assert values["counts"] == {"equal": 2, "rounding tie": 0, "BUG": 0}
    assert values["settings"]["do_sample"] is True
    break_the_accept_rule(monkeypatch)
    result = call("verify", "--preset", "suffix")
    assert result.exit_code == 1
    assert "0 bugs" not in result.stderr and "BUG" in result.stdout


@pytest.mark.parametrize("command", ["bench", "verify"])
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--category", "magic"], "no prompts of category magic"),
        (["--prompts", "nowhere.jsonl"], "cannot read prompts from nowhere.jsonl"),
        (["--per-category", "-1"], "at least 1"),
        (["--temperature", "0"], "temperature"),
        (["--threads", "0"], "threads"),
        (["--max-new-tokens", "60"], "context of 64"),
    ],
)
def test_bad_input_is_one_clear_line(
    call: Any, command: str, arguments: list[str], message: str
) -> None:
    result = call(command, *arguments)
    assert result.exit_code == 2
    assert message in result.stderr
    assert "Traceback" not in result.output


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--method", "magic"], "no method magic"),
        (["--method", "assisted"], "draft model"),
        (["--resume"], "--resume needs --out"),
    ],
)
def test_bad_input_to_bench_is_one_clear_line(
    call: Any, arguments: list[str], message: str
) -> None:
    result = call("bench", *arguments)
    assert result.exit_code == 2
    assert message in result.stderr


def test_info_sets_steps_and_passes_against_the_memory_on_request(
    model_folder: Path, tmp_path: Path
) -> None:
    model = LlamaForCausalLM.from_pretrained(model_folder)
    config = model.config
    config.max_position_embeddings, config.eos_token_id = 1024, None
    roomy = LlamaForCausalLM(config)
    roomy.generation_config.eos_token_id = None
    roomy.save_pretrained(tmp_path)
    PreTrainedTokenizerFast.from_pretrained(model_folder).save_pretrained(tmp_path)
    result = CliRunner().invoke(main, ["info", "--json", "--roofline", "--model", str(tmp_path)])
    assert result.exit_code == 0, result.output
    found = last_json(result)["roofline"]
    assert found["plain step / floor"] == pytest.approx(
        found["plain step ms"] / found["floor ms"], rel=0.5
    )
    assert found["tokens out a pass"] >= 1
    result = CliRunner().invoke(main, ["info", "--roofline", "--model", str(model_folder)])
    assert result.exit_code == 2
    assert "context of 64" in result.stderr


def test_replay_scores_the_rows_of_a_run_in_table_and_json(call: Any, tmp_path: Path) -> None:
    call("bench", "--method", "hf-lookup", "--out", str(tmp_path / "out"))
    rows = str(tmp_path / "out" / "rows.jsonl")
    result = CliRunner().invoke(main, ["replay", rows, "--json", "--preset", "suffix"])
    assert result.exit_code == 0, result.output
    scores = last_json(result)
    assert set(scores) == {"all", "mine"}
    assert scores["all"]["tokens"] == 2 * 11
    assert scores["all"]["passes"] <= 22
    table = CliRunner().invoke(main, ["replay", rows, "--preset", "suffix"]).stdout
    assert f"{scores['all']['tokens_per_pass']:.2f}" in table


def test_replay_refuses_other_files_in_one_line(tmp_path: Path) -> None:
    other = tmp_path / "other.jsonl"
    other.write_text("{}\n")
    for arguments, message in (
        ([str(other)], "line 1"),
        ([str(tmp_path / "none")], "does not exist"),
        ([str(other), "--slope", "-1"], "slope"),
    ):
        result = CliRunner().invoke(main, ["replay", *arguments])
        assert result.exit_code == 2
        assert message in result.stderr
