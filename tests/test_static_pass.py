"""Passes of fixed shape, run eagerly: what a GPU would record and replay."""

from __future__ import annotations

import pytest
import torch

import lookahead
from lookahead.static_pass import WIDTHS, Arena, bucket
from tests.contract.models import build

TYPES = ("Llama", "Qwen3", "GPT2", "Gemma")


def test_bucket_is_the_smallest_size_that_holds_n() -> None:
    for n in range(1, WIDTHS[-1] + 1):
        assert bucket(n, WIDTHS) == min(size for size in WIDTHS if size >= n)
    assert bucket(WIDTHS[-1] + 1, WIDTHS) is None


def test_arena_gives_the_same_storage_until_it_is_too_short() -> None:
    arena, like = Arena(), torch.zeros(1)
    first = arena.take("k", (2, 1, 3, 100, 4), like)
    assert first.shape[3] >= 100
    assert arena.take("k", (2, 1, 3, 90, 4), like) is first
    longer = arena.take("k", (2, 1, 3, first.shape[3] + 1, 4), like)
    assert longer is not first and longer.shape[3] > first.shape[3]


@pytest.mark.parametrize("kind", TYPES)
def test_text_equals_plain_decoding_over_several_calls(kind: str) -> None:
    model = build(kind)
    planner = lookahead.PlannerConfig(fixed_nodes=13)
    engine = lookahead.wrap(model, lookahead.Config(static_passes=True, planner=planner))
    for length in (5, 40, 9):
        ids = torch.randint(3, 90, (1, length), generator=torch.Generator().manual_seed(length))
        plain = model.generate(ids, max_new_tokens=50, do_sample=False)
        assert torch.equal(engine.generate(ids, max_new_tokens=50, do_sample=False), plain)
        torch.manual_seed(length)
        plain = model.generate(ids, max_new_tokens=40, do_sample=True)
        torch.manual_seed(length)
        assert torch.equal(engine.generate(ids, max_new_tokens=40, do_sample=True), plain)
    assert engine.stats.nodes > 0


def test_storage_that_grows_in_mid_call_keeps_the_text() -> None:
    model = build("Llama", max_position_embeddings=1024)
    engine = lookahead.wrap(model, lookahead.Config(static_passes=True))
    ids = torch.randint(3, 90, (1, 30), generator=torch.Generator().manual_seed(0))
    plain = model.generate(ids, max_new_tokens=330, do_sample=False)
    assert torch.equal(engine.generate(ids, max_new_tokens=330, do_sample=False), plain)


def test_an_unfinished_stream_keeps_its_storage_to_itself() -> None:
    model = build("Llama", max_position_embeddings=1024)
    engine = lookahead.wrap(model, lookahead.Config(static_passes=True))
    one = torch.randint(3, 90, (1, 12), generator=torch.Generator().manual_seed(1))
    two = torch.randint(3, 90, (1, 20), generator=torch.Generator().manual_seed(2))
    stream = engine.stream(one, max_new_tokens=40, do_sample=False)
    tokens = list(next(stream).tokens)
    between = engine.generate(two, max_new_tokens=40, do_sample=False)
    assert torch.equal(between, model.generate(two, max_new_tokens=40, do_sample=False))
    tokens += [token for step in stream for token in step.tokens]
    plain = model.generate(one, max_new_tokens=40, do_sample=False)
    assert tokens == plain[0, 12:].tolist()
