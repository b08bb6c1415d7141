"""Prompt sets: the project's own, Spec-Bench and HumanEval files, plain text."""

import json
from collections import Counter
from pathlib import Path

import pytest

from lookahead.bench.prompt_sets import Prompt, encode, load_prompts, own_prompts, select

CATEGORIES = {
    "chat",
    "code",
    "code_edit",
    "json",
    "math",
    "qa",
    "summarization",
    "translation",
}


class Words:
    """A tokenizer that gives one id per word, with or without a chat template."""

    def __init__(self, chat_template: str | None = None) -> None:
        self.chat_template = chat_template
        self.seen = ""

    def __call__(self, text: str, add_special_tokens: bool = True) -> dict[str, list[int]]:
        self.seen = text
        return {"input_ids": [len(word) for word in text.split()]}

    def apply_chat_template(self, messages: list, **_: object) -> str:
        return " ".join(f"<{m['role']}> {m['content']}" for m in messages)


def test_own_set_has_eight_or_more_distinct_prompts_in_each_category() -> None:
    prompts = own_prompts()
    counts = Counter(prompt.category for prompt in prompts)
    assert set(counts) == CATEGORIES
    assert min(counts.values()) >= 8
    assert len({prompt.turns for prompt in prompts}) == len(prompts)
    assert len({prompt.question_id for prompt in prompts}) == len(prompts)


@pytest.mark.parametrize("category", ["summarization", "qa"])
def test_texts_to_read_are_of_realistic_length(category: str) -> None:
    for prompt in select(own_prompts(), [category]):
        assert 150 <= len(prompt.turns[0].split()) <= 500, prompt.question_id


def test_code_to_edit_is_of_realistic_length() -> None:
    for prompt in select(own_prompts(), ["code_edit"]):
        code = prompt.turns[0].split("```")[1]
        assert 30 <= len(code.strip().splitlines()) - 1 <= 60, prompt.question_id


def test_spec_bench_file_is_read(tmp_path: Path) -> None:
    file = tmp_path / "question.jsonl"
    rows = [{"question_id": 81, "category": "writing", "turns": ["one", "two"]}]
    file.write_text("\n".join(json.dumps(row) for row in rows) + "\n\n")
    assert load_prompts(file) == [Prompt("81", "writing", ("one", "two"))]


def test_humaneval_file_is_read_as_completions(tmp_path: Path) -> None:
    file = tmp_path / "HumanEval.jsonl"
    file.write_text(json.dumps({"task_id": "HumanEval/0", "prompt": "def f():\n", "test": ""}))
    (prompt,) = load_prompts(file)
    assert prompt == Prompt("HumanEval/0", "humaneval", ("def f():\n",), completion=True)
    tokenizer = Words(chat_template="any")
    encode(tokenizer, prompt)
    assert tokenizer.seen == "def f():\n"


def test_plain_text_is_one_prompt_or_as_many_as_its_separators_say(tmp_path: Path) -> None:
    file = tmp_path / "mine.txt"
    file.write_text("first line\nsecond line\n")
    assert [p.turns for p in load_prompts(file)] == [("first line\nsecond line",)]
    file.write_text("one\n---\ntwo\n---\n\n---\nthree -- and more\n")
    assert [p.turns[0] for p in load_prompts(file)] == ["one", "two", "three -- and more"]
    assert {p.category for p in load_prompts(file)} == {"mine"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"turns": ["a"]}\n{"turns": ', "line 2"),
        ('{"turns": []}', "one or more"),
        ('{"question": "a"}', "HumanEval"),
        ('{"prompt": ""}', "HumanEval"),
        ("[1]\n", "HumanEval"),
        ("\n", "no prompts"),
    ],
)
def test_a_bad_file_is_refused_with_the_reason(tmp_path: Path, text: str, message: str) -> None:
    file = tmp_path / "bad.jsonl"
    file.write_text(text)
    with pytest.raises(ValueError, match=message):
        load_prompts(file)


def test_a_missing_or_binary_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read"):
        load_prompts(tmp_path / "none.jsonl")
    file = tmp_path / "binary.txt"
    file.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ValueError, match="UTF-8"):
        load_prompts(file)


def test_selection_goes_round_the_categories() -> None:
    prompts = [Prompt(f"{c}{i}", c, (c,)) for c in "ab" for i in range(3)]
    assert [p.question_id for p in select(prompts)] == ["a0", "b0", "a1", "b1", "a2", "b2"]
    assert [p.question_id for p in select(prompts, ["b"], 2)] == ["b0", "b1"]
    with pytest.raises(ValueError, match="category c; there are a, b"):
        select(prompts, ["c"])
    with pytest.raises(ValueError, match="at least 1"):
        select(prompts, None, 0)


def test_a_later_turn_is_encoded_after_the_reply_to_the_earlier_one() -> None:
    prompt = Prompt("q", "chat", ("hello there", "and now"))
    tokenizer = Words(chat_template="any")
    encode(tokenizer, prompt, ["hi"])
    assert tokenizer.seen == "<user> hello there <assistant> hi <user> and now"
    encode(tokenizer, prompt)
    assert tokenizer.seen == "<user> hello there"
    plain = Words()
    encode(plain, prompt, ["hi"])
    assert plain.seen == "hello there\n\nhi\n\nand now"


def test_a_prompt_without_tokens_is_refused() -> None:
    with pytest.raises(ValueError, match="no tokens"):
        encode(Words(), Prompt("q", "chat", ("  ",)))
