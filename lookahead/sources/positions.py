"""What the model picked for each position to come, whatever stood before it.

A branch of the tree that turned out wrong has still guessed the tokens behind it, and under
sampling with the noise of their positions. So the picks of all nodes are kept by position, as in
Jacobi decoding (Santilli et al. 2023, arXiv:2305.10427), whose iterate is one token a position.
They cost nothing more: their logits were computed for the guesses.

Memory: 16 picks for each position within the depth of a tree.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from lookahead.sources.base import Candidate, Observation

_KEPT = 16  # picks a position remembers
_VOTES = 3  # classes: picked once, twice, more often
_RANKS = 2  # the latest pick, after the likeliest node of its pass; another one


class PositionSource:
    """Picks by position as seen by one row. A state is the number of guesses since the root."""

    name = "positions"
    buckets = _VOTES * _RANKS

    def __init__(self, *, follows_noise: bool) -> None:
        self.follows_noise = follows_noise
        self._picks: list[list[int]] = []  # for the positions after the root, the latest last
        self._found: dict[int, list[Candidate]] = {}  # by state, until the next pass

    def prior(self, bucket: int) -> float:
        votes, rank = divmod(bucket, _RANKS)
        return (0.08, 0.16, 0.3)[votes] * (1.0, 0.6)[rank]

    def start(self, tokens: Sequence[int]) -> None:
        self._picks, self._found = [], {}

    def extend(self, tokens: Sequence[int]) -> None:
        """Move the root: what was picked for positions that are taken now is dropped."""
        del self._picks[: len(tokens)]
        self._found = {}

    def observe(self, seen: Observation) -> None:
        """Take the picks for positions behind the emitted tokens, the likeliest node's last."""
        if not seen.picks:
            return
        known, depths, picks = self._picks, seen.tree.depths, seen.picks
        known += [[] for _ in range(max(depths) + 1 - len(known))]
        done = len(seen.emitted)
        for node in range(len(depths) - 1, -1, -1):
            if depths[node] >= done:
                known[depths[node]].append(picks[node])
        for kept in known:
            del kept[:-_KEPT]
        self._found = {}

    def root(self) -> int:
        return 0

    def advance(self, state: int | None, token: int) -> int | None:
        return state + 1 if state is not None and state + 1 < len(self._picks) else None

    def candidates(self, state: int | None) -> list[Candidate]:
        if state is None or state >= len(self._picks):
            return []
        found = self._found.get(state)
        if found is None:
            votes = Counter(reversed(self._picks[state]))
            found = self._found[state] = [
                (token, (min(count, _VOTES) - 1) * _RANKS + min(rank, _RANKS - 1))
                for rank, (token, count) in enumerate(votes.items())
            ]
        return found
