"""The lookahead window: mask and positions of the paper, columns that stay on their positions."""

from __future__ import annotations

import itertools
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lookahead.config import JacobiConfig, PoolConfig
from lookahead.sources import JacobiWindow, NgramPool, Observation
from lookahead.tree import TokenTree

POSITION = 100_000  # tokens are position * POSITION + a number that is new each time


class Text:
    """Makes tokens that know the position they were guessed for."""

    def __init__(self) -> None:
        self._fresh = itertools.count(1)

    def token(self, position: int) -> int:
        return position * POSITION + next(self._fresh)

    def after(self, token: int) -> int:
        return self.token(token // POSITION + 1)


def window_of(text: Text, window: int, ngram: int, pool: NgramPool | None = None) -> JacobiWindow:
    made = JacobiWindow(JacobiConfig(window=window, ngram=ngram), pool, text.after)
    made.start([text.token(0)])
    return made


def one_pass(text: Text, source: JacobiWindow, root: int, accepted: int) -> tuple[TokenTree, int]:
    """Graft, verify with made-up picks, emit ``accepted`` + 1 tokens. Returns tree and new root."""
    tree = TokenTree(root)
    source.graft(tree)
    return tree, finish(text, source, tree, accepted)


def finish(text: Text, source: JacobiWindow, tree: TokenTree, accepted: int) -> int:
    """Show a verified tree to the source and emit; returns the new root."""
    position = tree.tokens[0] // POSITION
    picks = [text.token(position + depth + 1) for depth in tree.depths]
    emitted = [text.token(position + 1 + i) for i in range(accepted + 1)]
    source.observe(Observation(tree, picks, [0], emitted))
    source.extend(emitted)
    return emitted[-1]


SIZES = st.tuples(st.integers(1, 8), st.integers(2, 6))


def paper_branch(window: int, levels: int) -> tuple[list[set[tuple[int, int]]], list[int]]:
    """What each token of the lookahead branch sees, and its relative position, taken from the
    paper's description (arXiv:2402.02057, section 3.1 and figure 2) and not from a tree.

    Tokens are places (level, column), level by level from left to right. A token of level ``l`` in
    column ``i`` stands ``1 + i + l`` behind the current token, which all of them see. It sees level
    0 up to its own column, and its own column up to its own level.
    """
    places = [(level, column) for level in range(levels) for column in range(window)]
    sees = []
    for level, column in places:
        first_level = {(0, left) for left in range(column + 1)}
        sees.append(first_level | {(lower, column) for lower in range(level + 1)})
    return sees, [1 + column + level for level, column in places]


@pytest.mark.parametrize("window", range(1, 9))
@pytest.mark.parametrize("ngram", range(2, 7))
def test_the_tree_has_the_mask_and_positions_of_the_paper(window: int, ngram: int) -> None:
    """At every stage of filling and when full. Equal tokens of two columns may share a node, so
    what is compared is what a token sees: positions and tokens, the same ones and no more."""
    text = Text()
    source = window_of(text, window, ngram)
    root = text.token(0)
    for step in range(ngram + 2):
        tree = TokenTree(root)
        grafted = source.graft(tree)
        columns = source.columns
        levels = min(step + 1, ngram - 1)
        assert [len(column) for column in columns] == [levels] * window
        mask = tree.mask()
        sees, positions = paper_branch(window, levels)
        order = [column * levels + level for level in range(levels) for column in range(window)]
        for node, seen, position in zip(
            [grafted[at] for at in order], sees, positions, strict=True
        ):
            assert tree.depths[node] == tree.depths[0] + position
            found = sorted((tree.depths[i], tree.tokens[i]) for i in np.flatnonzero(mask[node]))
            expected = {(1 + column + level, columns[column][level]) for level, column in seen}
            assert found == [(0, root), *sorted(expected)]
        root = finish(text, source, tree, 0)


@given(SIZES, st.integers(0, 10**6))
def test_columns_stay_on_their_positions_whatever_is_accepted(
    sizes: tuple[int, int], seed: int
) -> None:
    """Level ``l`` of the ``i``-th column behind the root guesses position root + 1 + i + l."""
    window, ngram = sizes
    draw = random.Random(seed)
    text = Text()
    source = window_of(text, window, ngram)
    root = text.token(0)
    for step in range(15):
        tree, following = one_pass(text, source, root, draw.choice([0, 0, 0, 1, 2, 5, 12]))
        position = root // POSITION
        for node in range(len(tree)):
            assert tree.tokens[node] // POSITION == position + tree.depths[node]
        assert window <= len(tree) - 1 <= source.size()
        root = following
        levels = min(step + 2, ngram - 1)
        for i, column in enumerate(source.columns):
            assert len(column) == levels  # also after passes that left all columns behind
            for level, token in enumerate(column):
                assert token // POSITION == root // POSITION + 1 + i + level


@given(SIZES, st.integers(0, 10**6))
def test_ngrams_in_the_pool_are_of_successive_positions(sizes: tuple[int, int], seed: int) -> None:
    window, ngram = sizes
    draw = random.Random(seed)
    text = Text()
    pool = NgramPool(PoolConfig(), ngram)
    source = window_of(text, window, ngram, pool)
    root = text.token(0)
    for _ in range(10):
        _, root = one_pass(text, source, root, draw.choice([0, 0, 1, 3]))
    lengths = set()
    for key, entry in pool._entries.items():
        for continuation in entry:
            ngram_positions = [token // POSITION for token in (key, *continuation)]
            first = ngram_positions[0]
            assert ngram_positions == list(range(first, first + len(ngram_positions)))
            lengths.add(len(ngram_positions))
    assert max(lengths) == ngram


@given(SIZES, st.integers(0, 10**6))
def test_the_window_guesses_its_own_tokens_as_a_source(sizes: tuple[int, int], seed: int) -> None:
    """Exactly the paths of the branch that would be grafted now."""
    window, ngram = sizes
    draw = random.Random(seed)
    text = Text()
    source = window_of(text, window, ngram)
    root = text.token(0)
    for _ in range(6):
        _, root = one_pass(text, source, root, draw.choice([0, 0, 1]))
    columns = source.columns
    expected = set()
    for i, column in enumerate(columns):
        for level in range(len(column)):
            expected.add((*(c[0] for c in columns[:i]), *column[: level + 1]))
    found = set()
    states: list[tuple[tuple[int, ...], object]] = [((), source.root())]
    while states:
        path, state = states.pop()
        for token, bucket in source.candidates(state):
            assert 0 <= bucket < source.buckets
            found.add((*path, token))
            states.append(((*path, token), source.advance(state, token)))
    assert found == expected


def test_missing_columns_start_from_the_best_known_continuation() -> None:
    text = Text()
    source = window_of(text, 4, 3)
    tree = TokenTree(text.token(0))
    start = [text.token(1), text.token(2)]
    source.graft(tree, start)
    assert [column[0] for column in source.columns][:2] == start
    assert [column[0] // POSITION for column in source.columns] == [1, 2, 3, 4]


def test_columns_that_repeat_their_guess_are_trusted_more() -> None:
    source = JacobiWindow(JacobiConfig(window=3, ngram=3), None, lambda token: token + 1)
    source.start([0])
    seen = []
    for root in range(5):
        tree = TokenTree(root)
        source.graft(tree)
        picks = [token + 1 for token in tree.tokens]  # the text counts: every guess is right
        source.observe(Observation(tree, picks, [0], [root + 1]))
        source.extend([root + 1])
        candidates = dict(source.candidates(source.root()))
        seen.append(source.prior(candidates[root + 2]))
    assert seen[-1] > seen[0]
    assert all(0 < source.prior(bucket) < 1 for bucket in range(source.buckets))


def test_a_new_text_begins_with_an_empty_window() -> None:
    text = Text()
    source = window_of(text, 3, 3)
    one_pass(text, source, text.token(0), 0)
    source.start([text.token(50)])
    assert source.columns == []
    assert source.candidates(source.root()) == []
