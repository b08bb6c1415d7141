"""Engine against plain decoding, with guesses that are right on purpose and wrong on purpose."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from torch import Tensor

import lookahead
from lookahead.bench.oracle import Book, OracleSource
from lookahead.bench.tiny_models import VOCABULARY, tiny_model
from lookahead.config import (
    Config,
    JacobiConfig,
    LookupConfig,
    PlannerConfig,
    PoolConfig,
    PositionsConfig,
    RecyclingConfig,
)

SEED = 11


@cache
def shared_model(model_type: str) -> Any:
    """A tiny model made once; tests leave it as it is."""
    return tiny_model(model_type)


def prompt(length: int, seed: int = 1) -> Tensor:
    """A random prompt, int64 [1, length], without special tokens."""
    draw = torch.Generator().manual_seed(seed)
    return torch.randint(3, VOCABULARY - 20, (1, length), generator=draw)


def padded(*lengths: int, seed: int = 1) -> dict[str, Any]:
    """Left-padded prompts of these lengths: ids and mask, int64 [rows, longest]."""
    longest = max(lengths)
    ids = torch.zeros(len(lengths), longest, dtype=torch.int64)
    mask = torch.zeros_like(ids)
    for row, length in enumerate(lengths):
        ids[row, longest - length :] = prompt(length, seed + row)[0]
        mask[row, longest - length :] = 1
    return {"input_ids": ids, "attention_mask": mask}


def single(length: int, seed: int = 1) -> dict[str, Any]:
    """One prompt with its mask."""
    return padded(length, seed=seed)


class Pair:
    """A model and an engine on it whose guesses come from plain decoding's own text.

    ``gap``: at every so many positions the right token is withheld (0: never).
    """

    def __init__(self, model: Any, *, gap: int = 5, nodes: int | None = 12, **config: Any) -> None:
        self.model = model
        self.book = Book()
        planner = PlannerConfig(max_nodes=16, fixed_nodes=nodes)
        self.engine = lookahead.wrap(
            model,
            Config(planner=planner, remember_cost=False, **config),
            sources=[lambda: OracleSource(self.book, VOCABULARY, gap)],
        )

    def plainly(self, **arguments: Any) -> Any:
        """Plain decoding from the seed; its text goes into the book."""
        torch.manual_seed(SEED)
        out = self.model.generate(**arguments)
        ids = out if isinstance(out, Tensor) else out.sequences
        given = arguments["input_ids"]
        mask = arguments.get("attention_mask", torch.ones_like(given)).bool()
        times = ids.shape[0] // given.shape[0]
        for row, text in enumerate(ids):
            tokens = given[row // times][mask[row // times]].tolist()
            self.book.add(tokens, text[given.shape[1] :].tolist())
        return out

    def engines(self, **arguments: Any) -> Any:
        """The engine from the seed."""
        torch.manual_seed(SEED)
        return self.engine.generate(**arguments)

    def assert_same(self, *, mode: str | None = None, **arguments: Any) -> lookahead.Stats:
        """Same tokens and same state of the generator afterwards; returns the engine's counts."""
        expected = self.plainly(**arguments)
        after = torch.get_rng_state()
        seen = self.engines(**arguments)
        assert torch.equal(torch.get_rng_state(), after)
        for name in ("scores", "logits"):
            rows = getattr(expected, name, None)
            assert (rows is None) == (getattr(seen, name, None) is None)
            if rows is not None:
                torch.testing.assert_close(
                    torch.stack(getattr(seen, name)), torch.stack(rows), atol=2e-4, rtol=2e-4
                )
        if not isinstance(expected, Tensor):
            expected, seen = expected.sequences, seen.sequences
        assert seen.tolist() == expected.tolist()
        if mode is not None:
            assert self.engine.stats.mode == mode
        return self.engine.stats


@cache
def shared_pair(model_type: str) -> Pair:
    """One engine for many tests: what earlier calls taught it must not show in any text."""
    return Pair(shared_model(model_type))


ORACLE_ALONE: dict[str, Any] = {
    "jacobi": JacobiConfig(enabled=False),
    "ngram_pool": PoolConfig(enabled=False),
    "prompt_lookup": LookupConfig(enabled=False),
    "recycling": RecyclingConfig(enabled=False),
    "positions": PositionsConfig(enabled=False),
}
"""Options that switch the engine's own sources off."""
