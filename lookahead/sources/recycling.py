"""Recycled logits: the top-k of every position the engine has already paid for.

Luo et al. 2024 (arXiv:2408.08696) keep, for each token, the k likeliest next tokens as last seen.
Here they keep their probabilities, and a pair of tokens is asked before a single one. Rejected
nodes and window nodes are recycled like accepted ones.

Memory: ``capacity`` rows of k tokens, least recently written dropped first; about 350
bytes a row of 8.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import ArrayLike

from lookahead.config import RecyclingConfig
from lookahead.sources.base import Candidate, Observation

_LIMITS = np.array((0.005, 0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 0.97))
_CLASSES = len(_LIMITS) + 1
_DEPTHS = 4
_CENTRES = (0.002, 0.01, 0.03, 0.07, 0.14, 0.26, 0.42, 0.57, 0.72, 0.85, 0.94, 0.985)

State = tuple[int, int, int]
Row = tuple[tuple[int, ...], tuple[int, ...]]
"""Tokens, and the classes of their probabilities; tuples, which the garbage collector lets go."""

_NOTHING: Row = ((), ())


def classes(probs: ArrayLike) -> list[list[int]]:
    """Class of each probability of ``probs`` [rows, k]."""
    found: list[list[int]] = np.searchsorted(_LIMITS, probs, side="right").tolist()
    return found


class RecyclingStore:
    """Last seen top-k by one token and by two, kept across calls and rows."""

    def __init__(self, config: RecyclingConfig) -> None:
        self.config = config
        self._rows: dict[int | tuple[int, int], Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def put(self, before: int, token: int, row: Row) -> None:
        """Remember the top-k after ``token``, alone and with the token ``before`` it (-1: none)."""
        rows = self._rows
        rows.pop(token, None)
        rows[token] = row
        if before >= 0:
            pair = (before, token)
            rows.pop(pair, None)
            rows[pair] = row
        while len(rows) > self.config.capacity:
            del rows[next(iter(rows))]

    def get(self, before: int, token: int) -> tuple[int, Row]:
        """(1, row) by the pair, else (0, row) by the token, else (0, an empty one)."""
        row = self._rows.get((before, token))
        if row is not None:
            return 1, row
        return 0, self._rows.get(token, _NOTHING)


class RecyclingSource:
    """The store as seen by one row. A state is (token before, token, guesses since the root)."""

    name = "recycling"
    buckets = 2 * _DEPTHS * _CLASSES

    def __init__(self, store: RecyclingStore) -> None:
        self._store = store
        self._tail: list[int] = []

    def prior(self, bucket: int) -> float:
        order, rest = divmod(bucket, _DEPTHS * _CLASSES)
        _, kind = divmod(rest, _CLASSES)
        return _CENTRES[kind] * (0.5, 0.75)[order]

    def start(self, tokens: Sequence[int]) -> None:
        self._tail = list(tokens[-2:])

    def extend(self, tokens: Sequence[int]) -> None:
        self._tail = [*self._tail, *tokens][-2:]

    def observe(self, seen: Observation) -> None:
        """Recycle every node of the tree, the rejected ones too, the walked path last."""
        if not seen.top_tokens:
            return
        tree, put = seen.tree, self._store.put
        tokens, parents = tree.tokens, tree.parents
        on_path = set(seen.path)
        before_root = self._tail[-2] if len(self._tail) > 1 else -1
        kinds = classes(seen.top_probs)
        nodes = [node for node in range(len(tokens)) if node not in on_path]
        for node in [*nodes, *seen.path]:
            parent = parents[node]
            before = tokens[parent] if parent >= 0 else before_root
            put(before, tokens[node], (tuple(seen.top_tokens[node]), tuple(kinds[node])))

    def root(self) -> State | None:
        if not self._tail:
            return None
        return (self._tail[-2] if len(self._tail) > 1 else -1, self._tail[-1], 0)

    def advance(self, state: State | None, token: int) -> State | None:
        return None if state is None else (state[1], token, state[2] + 1)

    def candidates(self, state: State | None) -> Iterable[Candidate]:
        if state is None:
            return ()
        before, token, depth = state
        order, row = self._store.get(before, token)
        base = (order * _DEPTHS + min(depth, _DEPTHS - 1)) * _CLASSES
        tokens, kinds = row
        return zip(tokens, [base + kind for kind in kinds], strict=True)
