"""The suffix automaton and prompt lookup against a search through the whole text."""

from __future__ import annotations

import random
import statistics
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead.config import LookupConfig
from lookahead.sources.prompt_lookup import PromptLookup, SuffixAutomaton

TEXT = st.lists(st.integers(0, 2), max_size=20)  # as long as every suffix is counted


def followers(text: list[int], part: list[int]) -> list[tuple[int, int]]:
    """Tokens after each occurrence with their counts, least recently seen first."""
    last: dict[int, int] = {}
    count: dict[int, int] = {}
    for end in range(len(part), len(text)):
        if text[end - len(part) : end] == part:
            token = text[end]
            last[token], count[token] = end, count.get(token, 0) + 1
    return [(token, count[token]) for token in sorted(last, key=lambda token: last[token])]


def ends(text: list[int], part: list[int]) -> list[int]:
    size = len(part)
    return [end for end in range(size, len(text) + 1) if text[end - size : end] == part]


def build(text: list[int]) -> SuffixAutomaton:
    automaton = SuffixAutomaton()
    for token in text:
        automaton.append(token)
    return automaton


@given(TEXT)
def test_every_part_of_the_text_has_its_followers_counted(text: list[int]) -> None:
    automaton = build(text)
    assert len(automaton.length) <= max(1, 2 * len(text))
    for start in range(len(text) + 1):
        state = 0
        for end in range(start, len(text) + 1):
            if end > start:
                state = automaton.transitions[state][text[end - 1]]
            expected = followers(text, text[start:end])
            assert list(automaton.followers[state].items()) == expected
            assert automaton.occurrences[state] == sum(count for _, count in expected)


@given(TEXT, st.lists(st.integers(0, 3), max_size=6))
def test_only_parts_of_the_text_have_a_path(text: list[int], part: list[int]) -> None:
    automaton = build(text)
    state: int | None = 0
    for token in part:
        state = None if state is None else automaton.transitions[state].get(token)
    assert (state is not None) == bool(ends(text, part))


def longest_suffix(text: list[int], of: list[int], occurrences: int) -> list[int]:
    """The longest suffix of ``of`` that occurs so often in the text; empty if there is none."""
    for start in range(len(of)):
        if len(ends(text, of[start:])) >= occurrences:
            return of[start:]
    return []


def guesses(text: list[int], match: list[int], config: LookupConfig) -> list[int]:
    """Tokens that followed a match and its shorter suffixes, each kind of suffix once."""
    found: list[int] = []
    levels = config.back_off + 1
    seen: list[list[int]] = []
    for start in range(len(match)):
        part = match[start:]
        if len(part) < config.min_match or not levels:
            break
        if ends(text, part) in seen:
            continue  # it occurs exactly where a longer one does
        seen.append(ends(text, part))
        counted = followers(text, part)
        levels -= bool(counted)
        recent = counted[::-1]
        ranked = sorted(recent, key=lambda item: -item[1])
        found += [token for token, _ in ranked if token not in found]
    return found


@given(
    TEXT.filter(bool),
    st.lists(st.integers(0, 3), max_size=5),
    st.integers(1, 3),
    st.integers(0, 3),
)
def test_lookup_copies_what_followed_the_longest_matches(
    text: list[int], path: list[int], min_match: int, back_off: int
) -> None:
    """At the end of the text, and along a path of guesses below it."""
    config = LookupConfig(min_match=min_match, back_off=back_off)
    source = PromptLookup(config)
    middle = len(text) // 2
    source.start(text[:middle])
    source.extend(text[middle:])
    state = source.root()
    match = longest_suffix(text, text[:], 2)
    assert (state[1] if state else 0) == len(match)
    for token in [None, *path]:
        if token is not None:
            state = source.advance(state, token)
            match = longest_suffix(text, [*match, token], 1)
        assert (state[1] if state else 0) == len(match)
        found = source.candidates(state)
        assert [token for token, _ in found] == guesses(text, match, config)
        assert all(0 <= bucket < source.buckets for _, bucket in found)


def test_longer_matches_and_larger_shares_are_trusted_more() -> None:
    def best(text: list[int]) -> float:
        source = PromptLookup(LookupConfig())
        source.start(text)
        return max(source.prior(bucket) for _, bucket in source.candidates(source.root()))

    short = best([7, 1, 2, 8, 7])
    longer = best([5, 6, 7, 1, 2, 8, 5, 6, 7])
    divided = best([7, 1, 8, 7, 2, 9, 7, 3, 4, 7])
    agreed = best([7, 1, 8, 7, 1, 9, 7, 1, 4, 7])
    assert longer > short
    assert agreed > divided


def test_every_prior_is_a_probability() -> None:
    source = PromptLookup(LookupConfig())
    assert all(0 < source.prior(bucket) < 1 for bucket in range(source.buckets))


@pytest.mark.parametrize("alphabet", [2, 50, 5000])
def test_asking_costs_no_more_in_a_text_a_hundred_times_longer(alphabet: int) -> None:
    draw = random.Random(0)
    source = PromptLookup(LookupConfig())
    source.start([draw.randrange(alphabet) for _ in range(500)])

    def seconds() -> float:
        times = []
        for _ in range(60):
            begin = time.perf_counter()
            state = source.root()
            for _ in range(10):
                found = source.candidates(state)
                state = source.advance(state, found[0][0] if found else 0)
            times.append(time.perf_counter() - begin)
            source.extend([draw.randrange(alphabet)])
        return statistics.median(times)

    short = seconds()
    source.extend([draw.randrange(alphabet) for _ in range(50_000)])
    assert seconds() < 15 * short
