"""Prompts to measure with: the project's own set, published sets, and plain text.

1. :func:`own_prompts` reads the set written for this project, one JSONL file per category.
2. :func:`load_prompts` reads a user's file: Spec-Bench JSONL (``question_id``, ``category``,
   ``turns``), HumanEval JSONL (``task_id``, ``prompt``), or plain text.
3. :func:`select` picks categories and a number of prompts from each, in a fixed order.
4. :func:`encode` turns the turns of a conversation into token ids, :func:`to_inputs` those into
   tensors.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

import torch

SEPARATOR = "---"


@dataclass(frozen=True)
class Prompt:
    """One conversation to be generated, turn by turn.

    ``completion`` marks text that the model continues as it stands, such as the head of a
    function, instead of a message that goes through the chat template.
    """

    question_id: str
    category: str
    turns: tuple[str, ...]
    completion: bool = False


def own_prompts() -> list[Prompt]:
    """The project's own prompts: at least eight in each category, ordered by category."""
    folder = resources.files("lookahead.bench") / "prompts"
    files = sorted((f for f in folder.iterdir() if f.name.endswith(".jsonl")), key=lambda f: f.name)
    return [prompt for file in files for prompt in _parse_jsonl(file.read_text("utf-8"), file.name)]


def load_prompts(path: str | Path) -> list[Prompt]:
    """Prompts of a file, whose form is told from its content.

    A file of JSON objects is read as Spec-Bench (has ``turns``) or HumanEval (has ``prompt``).
    Any other file is plain text: prompts stand between lines of ``---``, and a file without such
    a line is one prompt. Raises ValueError that names the line for anything else.
    """
    path = Path(path)
    try:
        text = path.read_text("utf-8")
    except OSError as error:
        raise ValueError(f"cannot read prompts from {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is not UTF-8 text") from error
    looks_like_json = path.suffix in {".jsonl", ".json"} or text.lstrip().startswith("{")
    prompts = _parse_jsonl(text, str(path)) if looks_like_json else _parse_text(text, path.stem)
    if not prompts:
        raise ValueError(f"{path} holds no prompts")
    return prompts


def select(
    prompts: Iterable[Prompt],
    categories: Sequence[str] | None = None,
    per_category: int | None = None,
) -> list[Prompt]:
    """Prompts of ``categories`` (all if None), the first ``per_category`` of each.

    The result goes round the categories, so that a run which is interrupted has seen all of them.
    Raises ValueError for a category that is not there.
    """
    groups: dict[str, list[Prompt]] = {}
    for prompt in prompts:
        groups.setdefault(prompt.category, []).append(prompt)
    unknown = [name for name in categories or () if name not in groups]
    if unknown:
        raise ValueError(
            f"no prompts of category {', '.join(unknown)}; there are {', '.join(sorted(groups))}"
        )
    if per_category is not None and per_category < 1:
        raise ValueError(f"{per_category} prompts per category, but at least 1 is needed")
    chosen = [groups[name][:per_category] for name in (categories or groups)]
    rounds = max((len(group) for group in chosen), default=0)
    return [group[i] for i in range(rounds) for group in chosen if i < len(group)]


def encode(tokenizer: Any, prompt: Prompt, replies: Sequence[str] = ()) -> list[int]:
    """Token ids of turn ``len(replies)``, after the earlier turns and the model's ``replies``.

    Uses the tokenizer's chat template where it has one and the prompt is no completion. Without
    a template the turns and replies are joined by blank lines.
    """
    turns = prompt.turns[: len(replies) + 1]
    if prompt.completion or not getattr(tokenizer, "chat_template", None):
        parts = [part for turn in zip(turns, [*replies, ""], strict=True) for part in turn if part]
        ids = tokenizer("\n\n".join(parts))["input_ids"]
    else:
        messages = []
        for turn, reply in zip(turns, [*replies, None], strict=True):
            messages.append({"role": "user", "content": turn})
            if reply is not None:
                messages.append({"role": "assistant", "content": reply})
        text = tokenizer.apply_chat_template(messages, add_generation_prompt=True, tokenize=False)
        ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    if not ids:
        raise ValueError(f"prompt {prompt.question_id} has no tokens")
    return list(ids)


def to_inputs(ids: Sequence[int], device: torch.device) -> dict[str, torch.Tensor]:
    """``input_ids`` and ``attention_mask`` of one prompt, int64 [1, length] on ``device``."""
    tensor = torch.tensor([list(ids)], device=device)
    return {"input_ids": tensor, "attention_mask": torch.ones_like(tensor)}


def check_length(model: Any, name: str, length: int, new_tokens: int) -> None:
    """Raise ValueError where a prompt of ``length`` tokens and new ones outgrow the context."""
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is not None and length + new_tokens > limit:
        raise ValueError(
            f"prompt {name} has {length} tokens, and {new_tokens} new ones do not fit the "
            f"model's context of {limit}: ask for fewer or leave it out"
        )


def _parse_jsonl(text: str, where: str) -> list[Prompt]:
    prompts = []
    for number, line in enumerate(text.splitlines(), start=1):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except json.JSONDecodeError as error:
            raise ValueError(f"{where}, line {number}: not a JSON object ({error.msg})") from error
        prompts.append(_parse_row(row, f"{where}, line {number}"))
    return prompts


def _parse_row(row: Any, where: str) -> Prompt:
    if isinstance(row, dict) and "turns" in row:
        turns = row["turns"]
        if not (isinstance(turns, list) and turns and all(isinstance(t, str) for t in turns)):
            raise ValueError(f'{where}: "turns" must be a list of one or more texts')
        name = str(row.get("question_id", where))
        return Prompt(name, str(row.get("category", "prompts")), tuple(turns))
    if isinstance(row, dict) and isinstance(row.get("prompt"), str) and row["prompt"]:
        return Prompt(str(row.get("task_id", where)), "humaneval", (row["prompt"],), True)
    raise ValueError(f'{where}: needs "turns" (Spec-Bench) or "prompt" (HumanEval)')


def _parse_text(text: str, category: str) -> list[Prompt]:
    parts: list[list[str]] = [[]]
    for line in text.splitlines():
        if line.strip() == SEPARATOR:
            parts.append([])
        else:
            parts[-1].append(line)
    texts = [text for text in ("\n".join(part).strip() for part in parts) if text]
    return [Prompt(f"{category}-{i}", category, (text,)) for i, text in enumerate(texts, start=1)]
