"""A run is interleaved, compares outputs, keeps what it has, and goes on where it stopped."""

from pathlib import Path
from typing import Any

import pytest

from lookahead.bench.prompt_sets import Prompt
from lookahead.bench.rows import Row, append, read_file, resume, start_file
from lookahead.bench.runner import OutputDiffers, Run, list_cases
from lookahead.bench.settings import Settings

PROMPTS = [
    Prompt("a", "chat", ("hello hello hello", "and again hello")),
    Prompt("b", "code", ("def f def f def",)),
    Prompt("c", "chat", ("one two one two",)),
]
METHODS = ["plain", "hf-lookup", "engine"]
SETTINGS = Settings("tiny", max_new_tokens=12, methods=tuple(METHODS), state="cold")


def collect(run: Run, **kwargs: Any) -> list[Row]:
    return [row for rows in run.rows(PROMPTS, **kwargs) for row in rows]


def test_every_case_is_run_by_every_method_in_rotating_order(bench: Any) -> None:
    order: list[tuple[str, str]] = []
    run = Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS)
    rows = collect(run, on_generation=lambda case, method: order.append((case, method)))
    assert [case.name for case in list_cases(PROMPTS)] == ["a/1", "a/2", "b", "c"]
    assert [(r.case, r.method) for r in rows] == [
        (case, method) for case in ("a/1", "a/2", "b", "c") for method in METHODS
    ]
    assert [method for _, method in order[:9]] == METHODS + METHODS[1:] + METHODS[:1] + [
        "engine",
        "plain",
        "hf-lookup",
    ]
    assert all(row.equal for row in rows)


def test_a_later_turn_continues_plain_decodings_reply_for_all(bench: Any) -> None:
    run = Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS)
    rows = collect(run)
    first = next(r for r in rows if r.case == "a/1" and r.method == "plain")
    text = f"hello hello hello\n\n{bench.tokenizer.decode(first.tokens)}\n\nand again hello"
    expected = bench.tokenizer(text)["input_ids"]
    assert all(r.prompt_ids == expected for r in rows if r.case == "a/2")


def test_every_token_belongs_to_the_prefill_or_to_a_pass(bench: Any) -> None:
    run = Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS)
    for row in collect(run):
        assert row.passes is not None
        assert row.first_tokens + sum(one.emitted for one in row.passes) == len(row.tokens) == 12
        if row.method == "engine":
            assert [(one.width, one.emitted) for one in row.passes] == [(5, 2)] * 5 + [(5, 1)]


def test_a_cold_engine_is_fresh_for_every_prompt_and_a_warm_one_is_kept(bench: Any) -> None:
    collect(Run(bench.model, bench.tokenizer, bench.methods(["engine"]), SETTINGS))
    calls = [engine.seen for engine in bench.engines]
    assert calls.count(1) == 5 and max(calls) == 1  # the warm-up and four cases
    bench.engines.clear()
    collect(Run(bench.model, bench.tokenizer, bench.methods(["engine"], "warm"), SETTINGS))
    assert [engine.seen for engine in bench.engines] == [1, 4]


def test_a_wrong_token_aborts_the_run_and_names_the_place(bench: Any, tmp_path: Path) -> None:
    bench.fault = lambda tokens: [*tokens[:5], (tokens[5] + 1) % 64, *tokens[6:]]
    path = tmp_path / "rows.jsonl"
    run = Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS, path)
    with pytest.raises(OutputDiffers, match="engine differs from plain decoding at token 5 of a/1"):
        collect(run)
    assert read_file(path)[1] == []


def test_sampled_runs_compare_only_methods_that_promise_seed_equality(bench: Any) -> None:
    settings = Settings("tiny", max_new_tokens=12, do_sample=True, temperature=0.7, seed=3)
    run = Run(bench.model, bench.tokenizer, bench.methods(["plain", "hf-lookup"]), settings)
    rows = collect(run)
    assert {r.method: r.equal for r in rows} == {"plain": True, "hf-lookup": None}
    again = collect(Run(bench.model, bench.tokenizer, bench.methods(["plain"]), settings))
    assert [r.tokens for r in again] == [r.tokens for r in rows if r.method == "plain"]


def test_an_interrupted_run_keeps_whole_cases_and_a_resumed_one_does_the_rest(
    bench: Any, tmp_path: Path
) -> None:
    path = tmp_path / "rows.jsonl"
    calls: list[tuple[str, str]] = []

    def interrupt(case: str, method: str) -> None:
        calls.append((case, method))
        if len(calls) == 5:
            raise KeyboardInterrupt

    run = Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS, path)
    with pytest.raises(KeyboardInterrupt):
        collect(run, on_generation=interrupt)
    kept = read_file(path)[1]
    assert [(r.case, r.method) for r in kept] == [("a/1", method) for method in METHODS]

    calls.clear()
    done = resume(path, SETTINGS)
    run = Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS, path)
    rows = collect(run, done=done, on_generation=lambda *names: calls.append(names))
    assert {case for case, _ in calls} == {"a/2", "b", "c"}
    assert rows[:3] == kept
    assert [r.to_json() for r in read_file(path)[1]] == [r.to_json() for r in rows]
    whole = collect(Run(bench.model, bench.tokenizer, bench.methods(METHODS), SETTINGS))
    assert [(r.case, r.method, r.tokens) for r in whole] == [
        (r.case, r.method, r.tokens) for r in rows
    ]


def test_a_cut_off_last_line_is_dropped_and_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    row = Row("a", "chat", "plain", [1], [2, 3], 1.0, 0.5, 1)
    start_file(path, SETTINGS)
    append(path, [row, row])
    whole = path.read_text()
    path.write_text(whole[:-20])
    assert resume(path, SETTINGS) == [row]
    assert read_file(path)[1] == [row]
    lines = whole.splitlines()
    path.write_text("\n".join([lines[0], lines[1][:-20], lines[2]]))
    with pytest.raises(ValueError, match="line 2"):
        read_file(path)


def test_a_file_of_other_settings_is_not_resumed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    start_file(path, SETTINGS)
    with pytest.raises(ValueError, match="other settings \\(max_new_tokens, seed\\)"):
        resume(
            path, Settings("tiny", max_new_tokens=13, seed=1, methods=tuple(METHODS), state="cold")
        )
    path.write_text("hello\n")
    with pytest.raises(ValueError, match="no rows"):
        resume(path, SETTINGS)


@pytest.mark.parametrize(
    ("names", "message"),
    [(["plain", "magic"], "no method magic"), (["assisted"], "draft model")],
)
def test_methods_that_cannot_be_run_are_refused(bench: Any, names: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        bench.methods(names)


def test_both_states_add_a_warm_engine(bench: Any) -> None:
    names = [method.name for method in bench.methods(["engine", "suffix"], "both")]
    assert names == ["plain", "engine", "engine-warm", "suffix"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"max_new_tokens": 1}, "max_new_tokens"),
        ({"temperature": 0.0}, "temperature"),
        ({"top_p": 0.0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"state": "hot"}, "state"),
        ({"threads": 0}, "threads"),
    ],
)
def test_settings_out_of_range_are_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings("tiny", **options)
