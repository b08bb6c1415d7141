"""Picks after rejected guesses are guesses for their positions."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from lookahead.sources import Observation, PositionSource
from lookahead.tree import TokenTree

POSITION = 1000  # tokens say which position they were picked for


def random_tree(draw: random.Random, position: int) -> TokenTree:
    tree = TokenTree(position * POSITION)
    for _ in range(draw.randint(0, 12)):
        parent = draw.randrange(len(tree))
        tree.add(parent, (position + tree.depths[parent] + 1) * POSITION + draw.randint(0, 9))
    return tree


@given(st.integers(0, 10**6))
def test_guesses_are_the_last_picks_for_their_position_after_any_token(seed: int) -> None:
    draw = random.Random(seed)
    source = PositionSource(follows_noise=False)
    source.start([0])
    position = 0
    picked: dict[int, list[int]] = {}  # by absolute position, the latest last
    for _ in range(8):
        tree = random_tree(draw, position)
        picks = [(position + d + 1) * POSITION + draw.randint(0, 3) for d in tree.depths]
        picks += [-1] * draw.randint(0, 3)  # a wider tree of another row pads them
        emitted = [(position + 1 + i) * POSITION for i in range(draw.randint(1, 4))]
        for node in reversed(range(len(tree))):
            picked.setdefault(position + tree.depths[node] + 1, []).append(picks[node])
        source.observe(Observation(tree, picks, [0], emitted))
        source.extend(emitted)
        position += len(emitted)
        state: int | None = source.root()
        for ahead in range(1, 16):
            found = source.candidates(state)
            expected = list(dict.fromkeys(reversed(picked.get(position + ahead, [])[-16:])))
            assert [token for token, _ in found] == expected
            assert all(0 <= bucket < source.buckets for _, bucket in found)
            state = source.advance(state, 7)  # no token of this text


def test_a_pick_that_is_repeated_is_trusted_more_and_the_likeliest_node_comes_first() -> None:
    source = PositionSource(follows_noise=False)
    source.start([1])
    tree = TokenTree(1)
    nodes = [tree.add(0, token) for token in range(10, 16)]
    picks = [2, 8, 5, 5, 9, 5, 6]
    assert len(picks) == len(nodes) + 1
    source.observe(Observation(tree, picks, [0], [2]))
    source.extend([2])
    found = source.candidates(source.root())
    assert [token for token, _ in found] == [8, 5, 9, 6]
    priors = {token: source.prior(bucket) for token, bucket in found}
    assert 1 > priors[5] > priors[8] > priors[9] == priors[6] > 0


def test_without_picks_nothing_is_learned_and_a_new_text_begins_with_nothing() -> None:
    source = PositionSource(follows_noise=True)
    source.start([1])
    tree = TokenTree(1)
    tree.add(0, 4)
    source.observe(Observation(tree, (), [0], [2]))
    assert source.candidates(source.root()) == []
    source.observe(Observation(tree, [2, 3], [0], [2]))
    source.extend([2])
    assert source.candidates(source.root()) != []
    source.start([1])
    assert source.candidates(source.root()) == []
    assert source.candidates(None) == [] and source.advance(None, 1) is None
