"""Recycled logits: what was paid for is remembered, pairs before single tokens, within bounds."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lookahead.config import RecyclingConfig
from lookahead.sources import Observation, RecyclingSource, RecyclingStore
from lookahead.sources.recycling import classes
from lookahead.tree import TokenTree

Puts = list[tuple[int, int, list[int]]]
PUTS = st.lists(
    st.tuples(st.integers(-1, 2), st.integers(0, 3), st.lists(st.integers(0, 9), max_size=3)),
    max_size=40,
)


def store_of(capacity: int = 100) -> RecyclingStore:
    return RecyclingStore(RecyclingConfig(capacity=capacity))


@given(PUTS, st.integers(1, 6))
def test_the_last_row_of_each_key_is_kept_and_the_oldest_keys_go(puts: Puts, capacity: int) -> None:
    store = store_of(capacity)
    expected: dict[object, list[int]] = {}
    for before, token, tokens in puts:
        store.put(before, token, (tuple(tokens), (6,) * len(tokens)))
        for key in [token] + ([(before, token)] if before >= 0 else []):
            expected.pop(key, None)
            expected[key] = tokens
            if len(expected) > capacity:
                del expected[next(iter(expected))]
    assert len(store) == len(expected) <= capacity
    for before in range(-1, 3):
        for token in range(4):
            order, row = store.get(before, token)
            if (before, token) in expected:
                assert (order, list(row[0])) == (1, expected[before, token])
            else:
                assert (order, list(row[0])) == (0, expected.get(token, []))


def test_likelier_tokens_are_in_buckets_that_promise_more() -> None:
    store = store_of()
    probabilities = [0.99, 0.6, 0.3, 0.06, 0.001]
    store.put(-1, 1, ((5, 6, 7, 8, 9), tuple(classes([probabilities])[0])))
    source = RecyclingSource(store)
    source.start([1])
    found = list(source.candidates(source.root()))
    assert [token for token, _ in found] == [5, 6, 7, 8, 9]
    priors = [source.prior(bucket) for _, bucket in found]
    assert priors == sorted(priors, reverse=True)
    assert len(set(priors)) == 5
    assert all(0 < source.prior(bucket) < 1 for bucket in range(source.buckets))


def test_every_node_of_a_pass_is_recycled_the_walked_path_last() -> None:
    store = store_of()
    source = RecyclingSource(store)
    source.start([3, 1])
    tree = TokenTree(1)
    accepted = tree.add(0, 2)
    rejected = tree.add(0, 4)
    below = tree.add(rejected, 2)  # the same token as the accepted node, elsewhere
    tops = [[20 + node, 30 + node] for node in range(len(tree))]
    seen = Observation(tree, [0] * 4, [0, accepted], [2, 9], tops, [[0.7, 0.2]] * 4)
    source.observe(seen)
    source.extend([2, 9])

    def known(before: int, token: int) -> list[int]:
        return list(store.get(before, token)[1][0])

    assert known(3, 1) == tops[0]
    assert known(1, 2) == tops[accepted]
    assert known(1, 4) == tops[rejected]
    assert known(4, 2) == tops[below]
    assert known(-1, 2) == tops[accepted]  # alone: the walked path has the last word
    assert source.root() == (2, 9, 0)


def test_paths_of_guesses_are_followed_by_pairs() -> None:
    store = store_of()
    store.put(1, 2, ((3,), (9,)))
    store.put(2, 3, ((4,), (9,)))
    store.put(8, 3, ((5,), (9,)))
    source = RecyclingSource(store)
    source.start([1, 2])
    state = source.root()
    assert [token for token, _ in source.candidates(state)] == [3]
    state = source.advance(state, 3)
    assert [token for token, _ in source.candidates(state)] == [4]  # not 5, which is newer
    assert list(source.candidates(source.advance(state, 7))) == []


def test_a_pass_without_top_tokens_teaches_nothing() -> None:
    store = store_of()
    source = RecyclingSource(store)
    source.start([1])
    source.observe(Observation(TokenTree(1), [2], [0], [2]))
    assert len(store) == 0
