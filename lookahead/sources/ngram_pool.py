"""The n-gram pool: continuations of a token that the target itself has produced.

Trajectories of the Jacobi window and accepted text go in; each token maps to the continuations seen
after it, most recent first, at most G of them (Fu et al. 2024, arXiv:2402.02057, section 3.2). The
pool outlives the call and is bounded: ``capacity`` keys of ``guesses`` continuations each, oldest
keys dropped first.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError
from safetensors.numpy import load_file, save_file

from lookahead.config import PoolConfig
from lookahead.sources.base import Candidate, Observation

Continuation = tuple[int, ...]
State = tuple[tuple[Continuation, int, int], ...]

TEXT, WINDOW = 0, 1
_RANKS = 4
_OFFSETS = 3


class NgramPool:
    """Bounded map from a token to its recent continuations, kept across calls.

    ``length`` is N: one key token and up to N-1 continuation tokens.
    """

    def __init__(self, config: PoolConfig, length: int) -> None:
        self.config = config
        self.length = length
        self._entries: dict[int, dict[Continuation, int]] = {}

    def __len__(self) -> int:
        return sum(len(entry) for entry in self._entries.values())

    def add(self, ngram: Sequence[int], origin: int = TEXT) -> None:
        """Add an n-gram of two tokens or more; again makes it the most recent of its key."""
        key, continuation = ngram[0], tuple(ngram[1 : self.length])
        entry = self._entries.pop(key, None)
        if entry is None:
            entry = {}
            if len(self._entries) >= self.config.capacity:
                self._entries.pop(next(iter(self._entries)))
        self._entries[key] = entry
        entry.pop(continuation, None)
        if len(entry) >= self.config.guesses:
            entry.pop(next(iter(entry)))
        entry[continuation] = origin

    def get(self, key: int) -> list[tuple[Continuation, int]]:
        """Continuations of ``key`` with their origin (TEXT or WINDOW), most recent first."""
        return list(reversed(self._entries.get(key, {}).items()))

    def save(self, path: str | Path) -> None:
        """Write the pool to a safetensors file: int64 [n-grams, N], -1 where shorter."""
        rows = [
            [key, *continuation] + [-1] * (self.length - 1 - len(continuation)) + [origin]
            for key, entry in self._entries.items()
            for continuation, origin in entry.items()
        ]
        table = np.array(rows, dtype=np.int64).reshape(len(rows), self.length + 1)
        save_file({"ngrams": table}, str(path))

    def load(self, path: str | Path, vocabulary: int | None = None) -> None:
        """Add the n-grams of a saved pool, oldest first.

        ``vocabulary``: ids from it on are refused; None knows no bound. Raises ValueError if the
        file is no pool of this N and vocabulary, FileNotFoundError if it is not there.
        """
        try:
            table = load_file(str(path)).get("ngrams")
        except SafetensorError as error:
            raise ValueError(f"{path} is not a saved n-gram pool: {error}") from error
        if table is None or table.ndim != 2 or table.shape[1] != self.length + 1:
            raise ValueError(f"{path} holds no n-grams of length {self.length}; use the same ngram")
        if not _is_pool(table, vocabulary):
            raise ValueError(f"{path} is no n-gram pool of this model; save a new one")
        for *ngram, origin in table.tolist():
            self.add([token for token in ngram if token >= 0], origin)


def _is_pool(table: NDArray[Any], vocabulary: int | None) -> bool:
    """Whether a table holds two ids or more a row, then -1, then an origin."""
    if table.dtype != np.int64:
        return False
    ids, origins = table[:, :-1], table[:, -1]
    there = ids >= 0
    return bool(
        there[:, :2].all()
        and (there[:, 1:] <= there[:, :-1]).all()
        and np.isin(origins, (TEXT, WINDOW)).all()
        and (vocabulary is None or (ids < vocabulary).all())
    )


class PoolSource:
    """The pool as seen by one row. A state holds the continuations that fit, each with the
    offset of its next token and its origin."""

    name = "ngram_pool"
    buckets = 2 * _OFFSETS * _RANKS

    def __init__(self, pool: NgramPool) -> None:
        self._pool = pool
        self._tail: list[int] = []

    def prior(self, bucket: int) -> float:
        origin, rest = divmod(bucket, _OFFSETS * _RANKS)
        offset, rank = divmod(rest, _RANKS)
        return (0.25, 0.3)[origin] * (1.0, 1.5, 1.8)[offset] * (1.0, 0.5, 0.3, 0.2)[rank]

    def start(self, tokens: Sequence[int]) -> None:
        self._tail = list(tokens[-1:])

    def extend(self, tokens: Sequence[int]) -> None:
        """Put the n-grams that end in the new tokens into the pool."""
        length = self._pool.length
        text = self._tail + list(tokens)
        for end in range(max(len(self._tail) + 1, 2), len(text) + 1):
            self._pool.add(text[max(0, end - length) : end])
        self._tail = text[-(length - 1) :] if length > 1 else []

    def observe(self, seen: Observation) -> None:
        """Nothing to learn: n-grams arrive by ``extend`` and from the window."""

    def root(self) -> State:
        return self._fresh(self._tail[-1]) if self._tail else ()

    def _fresh(self, token: int) -> State:
        return tuple([(ngram, 0, origin) for ngram, origin in self._pool.get(token)])

    def advance(self, state: State, token: int) -> State:
        deeper = tuple(
            [
                (ngram, offset + 1, origin)
                for ngram, offset, origin in state
                if ngram[offset] == token and offset + 1 < len(ngram)
            ]
        )
        return deeper or self._fresh(token)

    def candidates(self, state: State) -> list[Candidate]:
        found: list[Candidate] = []
        taken: set[int] = set()
        for ngram, offset, origin in state:
            token = ngram[offset]
            if token in taken:
                continue
            kind = origin * _OFFSETS + min(offset, _OFFSETS - 1)
            found.append((token, kind * _RANKS + min(len(taken), _RANKS - 1)))
            taken.add(token)
        return found

    def window_born(self, bucket: int) -> bool:
        """Whether guesses of this bucket are owed to the Jacobi window."""
        return bucket >= _OFFSETS * _RANKS
