"""Replay scores sources as decoding would, without a model."""

import random
from pathlib import Path

import numpy as np
import pytest
from transformers import LlamaForCausalLM

from lookahead import config as configs
from lookahead.bench.replay import (
    Replayer,
    Stream,
    load_streams,
    read_streams,
    record,
    replay,
    sloped_cost,
    streams_from_rows,
    write_streams,
)
from lookahead.bench.rows import Row, start_file
from lookahead.bench.settings import Settings
from lookahead.cost import CostTable

LOOKUP = configs.prompt_lookup_config(4)


def by_hand(prompt: list[int], output: list[int], guesses: int) -> int:
    """Passes that a naive prompt lookup needs: the longest earlier match, then copy."""
    done, passes = 1, 0
    while done < len(output):
        text = prompt + output[:done]
        copied: list[int] = []
        for length in range(len(text) - 1, 0, -1):
            ends = [e for e in range(length, len(text)) if text[e - length : e] == text[-length:]]
            if ends:
                copied = text[ends[-1] : ends[-1] + guesses]
                break
        accepted = 0
        limit = len(output) - done - 1
        while accepted < min(len(copied), limit) and copied[accepted] == output[done + accepted]:
            accepted += 1
        done += accepted + 1
        passes += 1
    return passes


def test_a_copied_text_is_copied_in_whole_drafts() -> None:
    text = list(range(10, 40))
    score = Replayer(LOOKUP).score([Stream("s", "copy", text, text[:21])])
    assert score.tokens == 20
    assert score.passes == by_hand(text, text[:21], 4) == 4
    assert score.accepted == {"prompt_lookup": 16}
    assert score.tokens_per_pass == 5.0


def test_a_text_without_repetition_needs_a_pass_for_every_token() -> None:
    stream = Stream("s", "new", list(range(50)), list(range(100, 130)))
    score = Replayer(configs.Config()).score([stream])
    assert score.passes == score.tokens == 29
    assert score.accepted == {}


@pytest.mark.parametrize("seed", range(6))
def test_lookup_agrees_with_a_naive_search_where_suffixes_are_unambiguous(seed: int) -> None:
    rng = random.Random(seed)
    prompt = rng.sample(range(200), 60)
    output: list[int] = [prompt[3]]
    while len(output) < 50:  # pieces of the prompt, so that each token has one successor there
        at = rng.randrange(50)
        output += prompt[at : at + rng.randrange(3, 9)]
    score = Replayer(LOOKUP).score([Stream("s", "c", prompt, output)])
    naive = by_hand(prompt, output, 4)
    assert score.tokens == len(output) - 1
    # They differ only where the text has shown two continuations of one token.
    assert abs(score.passes - naive) <= 0.2 * naive


def test_recorded_top_k_lets_recycling_be_scored(model: LlamaForCausalLM) -> None:
    stream = record(model, "s", "chat", [5, 9, 2, 33], max_new_tokens=60)
    assert len(stream.output) == 60
    assert all(top[0] == token for top, token in zip(stream.top_tokens, stream.output, strict=True))
    config = configs.recycling_config(16)
    with_top = Replayer(config).score([stream, stream])
    bare = Stream("s", "chat", stream.prompt, stream.output)
    without = Replayer(config).score([bare, bare])
    assert without.accepted == {}
    assert with_top.accepted["recycling"] > 0
    assert with_top.passes < without.passes


def test_a_dearer_pass_gives_a_lower_speedup() -> None:
    text = list(range(10, 40))
    streams = [Stream("s", "copy", text, text)]
    cheap = Replayer(LOOKUP, CostTable.of(np.ones(80))).score(streams)
    dear = Replayer(LOOKUP, CostTable.of(1 + 2 * np.maximum(np.arange(80) - 1.0, 0))).score(streams)
    assert cheap.speedup == pytest.approx(cheap.tokens_per_pass)
    assert dear.speedup < 1.0 < cheap.speedup


def test_streams_survive_the_file(tmp_path: Path) -> None:
    streams = [
        Stream("a", "x", [1, 2], [3]),
        Stream("b", "y", [1], [2, 3], [[2], [3]], [[0.5]] * 2),
    ]
    write_streams(tmp_path / "s.jsonl", streams)
    assert read_streams(tmp_path / "s.jsonl") == streams
    assert [p.name for p in tmp_path.iterdir()] == ["s.jsonl"]
    (tmp_path / "bad.jsonl").write_text('{"name": 1}\n')
    with pytest.raises(ValueError, match="line 1"):
        read_streams(tmp_path / "bad.jsonl")


def test_streams_come_from_the_rows_of_plain_decoding() -> None:
    rows = [Row("q", "chat", m, [1, 2], [3, 4], 1.0, 0.5, 1) for m in ("plain", "engine")]
    assert streams_from_rows(rows) == [Stream("q", "chat", [1, 2], [3, 4])]


def test_the_rows_of_a_run_can_be_replayed(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    rows = [Row("q", "chat", m, [1, 2], [3, 4], 1.0, 0.5, 1) for m in ("plain", "engine")]
    start_file(path, Settings("tiny"), rows)
    assert load_streams(path) == [Stream("q", "chat", [1, 2], [3, 4])]
    start_file(path, Settings("tiny"))
    with pytest.raises(ValueError, match="no recorded streams"):
        load_streams(path)


def test_a_slope_is_the_price_of_each_further_token() -> None:
    cost = sloped_cost(0.5, 4).relative
    assert cost[1:6].tolist() == [1.0, 1.5, 2.0, 2.5, 3.0]
    with pytest.raises(ValueError, match="slope"):
        sloped_cost(-0.1, 4)


def test_scores_are_given_by_category() -> None:
    text = list(range(10, 40))
    streams = [
        Stream("a", "copy", text, text),
        Stream("b", "new", list(range(50)), list(range(100, 130))),
    ]
    scores = replay(streams, LOOKUP)
    assert set(scores) == {"all", "copy", "new"}
    assert scores["copy"].tokens_per_pass > scores["all"].tokens_per_pass
    assert scores["new"].tokens_per_pass == 1.0


def test_a_configuration_without_such_sources_is_refused() -> None:
    with pytest.raises(ValueError, match="no source"):
        Replayer(configs.plain_config())
