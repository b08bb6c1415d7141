"""``lookahead chat``: turns continue each other, and the cache is kept."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM, PreTrainedTokenizerFast

import lookahead
from lookahead.cli.conversation import Conversation
from lookahead.model_store import LoadedModel

GREEDY: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}


@pytest.fixture
def loaded(model_folder: Path) -> LoadedModel:
    model = LlamaForCausalLM.from_pretrained(model_folder).eval()
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    return LoadedModel(model, tokenizer, model_folder, "test")


def plain(loaded: LoadedModel, ids: list[int]) -> list[int]:
    out = loaded.model.generate(torch.tensor([ids]), **GREEDY)
    return out[0, len(ids) :].tolist()


def talk(conversation: Conversation, text: str, reply: str) -> tuple[list[int], list[int]]:
    """One turn; the reply that is put into the conversation is given, as the model babbles."""
    ids = conversation.prompt(text)
    tokens = [token for token, _ in conversation.reply(ids, GREEDY)]
    conversation.end_turn(text, reply)
    return ids, tokens


def test_replies_with_a_kept_cache_are_those_of_plain_decoding(loaded: LoadedModel) -> None:
    conversation = Conversation(loaded, lookahead.wrap(loaded.model))
    cached = []
    for text in ("ab", "cd", "ef"):
        ids, tokens = talk(conversation, text, "x")
        assert tokens == plain(loaded, ids)
        cached.append((conversation.cached, conversation.length))
    # The template writes [ab][x][cd]..., so all of the earlier prompt is at the beginning.
    assert cached == [(0, 4), (4, 11), (11, 18)]


def test_a_rewritten_beginning_is_read_again(loaded: LoadedModel) -> None:
    conversation = Conversation(loaded, lookahead.wrap(loaded.model), system="abcdef")
    talk(conversation, "gh", "x")
    loaded.tokenizer.chat_template = "{% for m in messages %}[{{ m.content[:3] }}]{% endfor %}"
    ids, tokens = talk(conversation, "ij", "x")
    assert tokens == plain(loaded, ids)
    assert conversation.cached == len("[abc")


def test_a_reply_that_is_stopped_leaves_the_next_one_right(loaded: LoadedModel) -> None:
    conversation = Conversation(loaded, lookahead.wrap(loaded.model))
    reply = iter(conversation.reply(conversation.prompt("ab"), GREEDY))
    next(reply)
    del reply  # stopped in the middle
    conversation.end_turn("ab", "x")
    ids, tokens = talk(conversation, "cd", "y")
    assert tokens == plain(loaded, ids)
    assert conversation.cached == 0
    ids, tokens = talk(conversation, "ef", "z")
    assert tokens == plain(loaded, ids)
    assert conversation.cached > 0


def test_a_restart_forgets_all_but_the_system_message(loaded: LoadedModel) -> None:
    conversation = Conversation(loaded, lookahead.wrap(loaded.model), system="be kind")
    talk(conversation, "ab", "x")
    conversation.restart()
    ids = conversation.prompt("cd")
    assert loaded.tokenizer.decode(ids) == "[be kind][cd]"
    assert [t for t, _ in conversation.reply(ids, GREEDY)] == plain(loaded, ids)
    assert conversation.cached == 0


def test_the_command_answers_each_line_with_statistics(command: Any) -> None:
    result = command("chat", "--max-new-tokens", "3", stdin="hi\n\nyou\n/new\nhi\n/quit\nno\n")
    assert result.exit_code == 0
    turns = [line for line in result.stderr.splitlines() if "prompt tokens were cached" in line]
    assert len(turns) == 3
    assert "; 0 of 4 prompt tokens" in turns[0]
    assert "; 4 of 1" in turns[1]
    assert "; 0 of 4 prompt tokens" in turns[2]


def test_the_legend_counts_each_token_once_as_it_is_coloured(command: Any) -> None:
    result = command("chat", "--max-new-tokens", "6", "--show-accepted", stdin="hi\n")
    legend = next(line for line in result.stderr.splitlines() if line.startswith("Guessed by"))
    # The reply is one token of "model" and one of "jacobi"; the engine's own count, which has
    # a token once for each source that guessed it, is another.
    assert "2 tokens" in result.stderr
    assert "jacobi 1, ngram_pool 0, prompt_lookup 0, recycling 0, positions 0" in legend


def test_a_conversation_that_outgrows_the_context_ends_with_one_clear_line(command: Any) -> None:
    result = command("chat", "--max-new-tokens", "3", stdin="x" * 70 + "\n")
    assert result.exit_code == 2
    assert "context holds 64: shorten it" in result.stderr
    assert "Traceback" not in result.output


def test_a_model_without_a_template_is_sent_to_generate(
    command: Any, model_folder: Path, tmp_path: Path
) -> None:
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)
    tokenizer.chat_template = None
    tokenizer.save_pretrained(tmp_path)
    LlamaForCausalLM.from_pretrained(model_folder).save_pretrained(tmp_path)
    result = command("chat", model=str(tmp_path), stdin="hi\n")
    assert result.exit_code == 2
    assert "lookahead generate" in result.stderr


def test_a_failing_template_is_one_clear_error(loaded: LoadedModel) -> None:
    loaded.tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(ValueError, match="no such role"):
        Conversation(loaded, lookahead.wrap(loaded.model)).prompt("ab")
