"""Sources of one's own see the picks of every node, under sampling too."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import lookahead
from lookahead.bench.tiny_models import VOCABULARY
from lookahead.sources import Observation
from lookahead.sources.base import Candidate
from tests.cases.comparing import shared_model


class Watching:
    """Guesses two tokens after any path and keeps what it is shown."""

    name = "watching"
    buckets = 1

    def __init__(self) -> None:
        self.seen: list[Observation] = []

    def prior(self, bucket: int) -> float:
        return 0.4

    def start(self, tokens: Any) -> None: ...

    def extend(self, tokens: Any) -> None: ...

    def root(self) -> int:
        return 0

    def advance(self, state: int, token: int) -> int:
        return state + 1

    def candidates(self, state: int) -> list[Candidate]:
        return [(3, 0), (5, 0)] if state < 2 else []

    def observe(self, seen: Observation) -> None:
        self.seen.append(seen)


@pytest.mark.parametrize("do_sample", [False, True])
def test_each_node_comes_with_a_pick_and_its_likeliest_tokens(do_sample: bool) -> None:
    made: list[Watching] = []

    def make() -> Watching:
        made.append(Watching())
        return made[-1]

    planner = lookahead.PlannerConfig(fixed_nodes=4)
    engine = lookahead.wrap(
        shared_model("llama"), lookahead.Config(planner=planner), sources=[make]
    )
    torch.manual_seed(0)
    engine.generate(torch.tensor([[1, 2, 3]]), max_new_tokens=12, do_sample=do_sample)
    passes = made[-1].seen[1:]  # the first is the prompt's
    assert passes
    for seen in passes:
        assert len(seen.picks) == len(seen.tree)
        assert all(0 <= pick < VOCABULARY for pick in seen.picks)
        assert len(seen.top_tokens) == len(seen.tree)


@pytest.mark.parametrize(("nodes", "asked"), [(4, False), (20, True)])
def test_under_sampling_picks_are_made_where_trees_are_wide(
    nodes: int, asked: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    lengths: list[tuple[int, int]] = []
    observe = lookahead.sources.PositionSource.observe

    def watch(self: Any, seen: Observation) -> None:
        lengths.append((len(seen.tree), len(seen.picks)))
        observe(self, seen)

    monkeypatch.setattr(lookahead.sources.PositionSource, "observe", watch)
    config = lookahead.Config(
        planner=lookahead.PlannerConfig(fixed_nodes=nodes),
        jacobi=lookahead.JacobiConfig(enabled=False),
    )
    engine = lookahead.wrap(shared_model("llama"), config)
    torch.manual_seed(0)
    engine.generate(torch.tensor([[1, 2, 3] * 8]), max_new_tokens=40, do_sample=True)
    wide = [picks for tree, picks in lengths if tree == nodes + 1]
    assert wide and all((picks > 0) == asked for picks in wide)
