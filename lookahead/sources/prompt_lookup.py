"""Prompt lookup: copy what followed earlier occurrences of the current suffix.

The text (prompt and output) is kept in a suffix automaton (Blumer et al. 1985), built one token at
a time. Its state for the whole text links to the longest suffix that occurred before, that one to
the next shorter suffix with more occurrences, and so on; each state counts the tokens that followed
it. So all match lengths are at hand without a search (compare SuffixDecoding, arXiv:2411.04975, and
SAM-Decoding, arXiv:2411.10666), and a path of guesses is followed by transitions, on and on.

Memory: at most two states per token of text, each with two small dictionaries, dropped with the
call. Time: a few microseconds a token; asking costs the same however long the text is.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from itertools import islice

from lookahead.config import LookupConfig
from lookahead.sources.base import Candidate, Observation

_LENGTHS = (1, 2, 3, 4, 6, 9, 15)  # upper ends of the classes of match length
_MAX_COUNTED = 24  # suffixes counted per appended token: bounds the work on repetitive text
_MAX_FOLLOWERS = 6  # followers considered per suffix
_RANKS = 3
_SHARE_LIMITS = (0.1, 0.3, 0.6, 0.95)  # classes of the share of the followers' count
_SHARES = 5


class SuffixAutomaton:
    """Suffix automaton with, per state, the counts of the tokens that followed it.

    ``followers[state]`` maps token to count, least recently seen first. State 0 is the empty
    suffix.
    """

    __slots__ = ("followers", "last", "length", "link", "occurrences", "transitions")

    def __init__(self) -> None:
        self.transitions: list[dict[int, int]] = [{}]
        self.followers: list[dict[int, int]] = [{}]
        self.occurrences: list[int] = [0]
        self.link: list[int] = [-1]
        self.length: list[int] = [0]
        self.last = 0

    def append(self, token: int) -> None:
        """Append one token to the text."""
        self._count(token)
        transitions, link, length = self.transitions, self.link, self.length
        new = self._state(length[self.last] + 1, {}, {}, 0)
        state = self.last
        while state >= 0 and token not in transitions[state]:
            transitions[state][token] = new
            state = link[state]
        if state < 0:
            link[new] = 0
        else:
            link[new] = self._split(state, token)
        self.last = new

    def _state(self, length: int, moves: dict[int, int], counts: dict[int, int], seen: int) -> int:
        self.transitions.append(moves)
        self.followers.append(counts)
        self.occurrences.append(seen)
        self.link.append(-1)
        self.length.append(length)
        return len(self.length) - 1

    def _split(self, state: int, token: int) -> int:
        """The state for suffix ``state`` + ``token``, split off a longer one if need be."""
        transitions, link, length = self.transitions, self.link, self.length
        target = transitions[state][token]
        if length[target] == length[state] + 1:
            return target
        clone = self._state(
            length[state] + 1,
            dict(transitions[target]),
            dict(self.followers[target]),
            self.occurrences[target],
        )
        link[clone] = link[target]
        link[target] = clone
        while state >= 0 and transitions[state].get(token) == target:
            transitions[state][token] = clone
            state = link[state]
        return clone

    def _count(self, token: int) -> None:
        """Count ``token`` as a follower of the suffixes of the text so far."""
        state = self.last
        for _ in range(_MAX_COUNTED):
            if state < 0:
                break
            counts = self.followers[state]
            counts[token] = counts.pop(token, 0) + 1
            self.occurrences[state] += 1
            state = self.link[state]


class PromptLookup:
    """Prompt lookup for one row. A state is (automaton state, matched length)."""

    name = "prompt_lookup"
    buckets = (len(_LENGTHS) + 1) * _SHARES * _RANKS

    def __init__(self, config: LookupConfig) -> None:
        self._config = config
        self._automaton = SuffixAutomaton()

    def prior(self, bucket: int) -> float:
        length, rest = divmod(bucket, _SHARES * _RANKS)
        share, rank = divmod(rest, _RANKS)
        certain = (0.28, 0.42, 0.55, 0.63, 0.72, 0.8, 0.87, 0.93)[length]
        return certain * (0.12, 0.3, 0.55, 0.8, 1.0)[share] * (1.0, 0.6, 0.4)[rank]

    def start(self, tokens: Sequence[int]) -> None:
        self._automaton = SuffixAutomaton()
        self.extend(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        for token in tokens:
            self._automaton.append(token)

    def observe(self, seen: Observation) -> None:
        """Nothing to learn: the text arrives by ``extend``."""

    def root(self) -> tuple[int, int] | None:
        automaton = self._automaton
        state = automaton.link[automaton.last] if automaton.last else 0
        return (state, automaton.length[state]) if state > 0 else None

    def advance(self, state: tuple[int, int] | None, token: int) -> tuple[int, int] | None:
        if state is None:
            at, matched = 0, 0
        else:
            at, matched = state
        automaton = self._automaton
        while at >= 0:
            target = automaton.transitions[at].get(token)
            if target is not None:
                return target, matched + 1
            at = automaton.link[at]
            matched = automaton.length[at]
        return None

    def candidates(self, state: tuple[int, int] | None) -> list[Candidate]:
        if state is None:
            return []
        at, matched = state
        automaton, config = self._automaton, self._config
        found: list[Candidate] = []
        taken: set[int] = set()
        levels = config.back_off + 1
        while at > 0 and levels and matched >= config.min_match:
            counts = automaton.followers[at]
            if counts:
                self._rank(counts, automaton.occurrences[at], matched, found, taken)
                levels -= 1
            at = automaton.link[at]
            matched = automaton.length[at]
        return found

    @staticmethod
    def _rank(
        counts: dict[int, int], total: int, matched: int, found: list[Candidate], taken: set[int]
    ) -> None:
        """Add the followers of one suffix: frequent first, recent first among equals."""
        length = 0
        while length < len(_LENGTHS) and matched > _LENGTHS[length]:
            length += 1
        base = length * _SHARES * _RANKS
        if len(counts) == 1:
            ranked = list(counts)
        else:
            recent = islice(reversed(counts), 3 * _MAX_FOLLOWERS)
            ranked = sorted(recent, key=lambda token: -counts[token])[:_MAX_FOLLOWERS]
        for token in ranked:
            if token in taken:
                continue
            share = counts[token] / total
            kind = bisect_left(_SHARE_LIMITS, share) if total > 1 else 3
            found.append((token, base + kind * _RANKS + min(len(taken), _RANKS - 1)))
            taken.add(token)
