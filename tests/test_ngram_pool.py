"""The n-gram pool against a plain list of what was added; files; the pool as a source."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from safetensors.numpy import save_file

from lookahead.config import PoolConfig
from lookahead.sources.ngram_pool import TEXT, WINDOW, NgramPool, PoolSource

N = 4
NGRAM = st.tuples(st.integers(0, 2), st.lists(st.integers(0, 1), min_size=1, max_size=N)).map(
    lambda ngram: [ngram[0], *ngram[1]]
)
NGRAMS = st.lists(st.tuples(NGRAM, st.sampled_from([TEXT, WINDOW])), min_size=5, max_size=60)
Added = list[tuple[list[int], int]]
Held = dict[int, list[tuple[tuple[int, ...], int]]]


def naive(added: Added, capacity: int, guesses: int) -> Held:
    """Contents by key, most recent first, keys in order of their last use."""
    keys: list[int] = []
    lists: Held = {}
    for ngram, origin in added:
        key, continuation = ngram[0], tuple(ngram[1:N])
        if key in keys:
            keys.remove(key)
        elif len(keys) == capacity:
            del lists[keys.pop(0)]
        keys.append(key)
        rest = [item for item in lists.get(key, []) if item[0] != continuation]
        lists[key] = [(continuation, origin), *rest][:guesses]
    return {key: lists[key] for key in keys}


def fill(added: Added, capacity: int, guesses: int) -> NgramPool:
    pool = NgramPool(PoolConfig(capacity=capacity, guesses=guesses), N)
    for ngram, origin in added:
        pool.add(ngram, origin)
    return pool


@given(NGRAMS, st.integers(1, 3), st.integers(1, 4))
def test_most_recent_first_and_never_more_than_its_bounds(
    added: Added, capacity: int, guesses: int
) -> None:
    pool, expected = fill(added, capacity, guesses), naive(added, capacity, guesses)
    assert {key: pool.get(key) for key in range(5) if pool.get(key)} == expected
    assert len(pool) == sum(map(len, expected.values())) <= capacity * guesses


@given(NGRAMS, NGRAMS)
def test_a_saved_pool_loads_as_it_was_and_ages_as_it_would_have(
    tmp_path_factory: pytest.TempPathFactory, added: Added, later: Added
) -> None:
    path = tmp_path_factory.mktemp("pool") / "pool.safetensors"
    pool = fill(added, 3, 2)
    pool.save(path)
    loaded = NgramPool(PoolConfig(capacity=3, guesses=2), N)
    loaded.load(path)
    for ngram, origin in [*later, ([9, 9], TEXT)]:  # both forget the same keys
        pool.add(ngram, origin)
        loaded.add(ngram, origin)
        for key in range(10):
            assert loaded.get(key) == pool.get(key)


def test_loading_adds_to_what_is_there_and_keeps_the_bounds(tmp_path: Path) -> None:
    pool = fill([([1, 2, 3], WINDOW), ([2, 3], TEXT)], 8, 8)
    pool.save(tmp_path / "pool")
    other = fill([([1, 7], TEXT), ([5, 6], TEXT)], 2, 8)
    other.load(tmp_path / "pool")
    assert other.get(1) == [((2, 3), WINDOW), ((7,), TEXT)]
    assert other.get(2) == [((3,), TEXT)]
    assert other.get(5) == []


def test_an_empty_pool_is_saved_and_loaded(tmp_path: Path) -> None:
    fill([], 2, 2).save(tmp_path / "pool")
    pool = fill([([1, 2], TEXT)], 2, 2)
    pool.load(tmp_path / "pool")
    assert len(pool) == 1


def test_files_that_are_no_pool_of_this_length_are_refused(tmp_path: Path) -> None:
    pool = fill([], 2, 2)
    with pytest.raises(FileNotFoundError):
        pool.load(tmp_path / "nothing")
    (tmp_path / "text").write_text("no tensors here")
    with pytest.raises(ValueError, match="is not a saved n-gram pool"):
        pool.load(tmp_path / "text")
    save_file({"weights": np.zeros(3)}, tmp_path / "other")
    with pytest.raises(ValueError, match="no n-grams of length 4; use the same ngram"):
        pool.load(tmp_path / "other")
    NgramPool(PoolConfig(), N + 1).save(tmp_path / "longer")
    with pytest.raises(ValueError, match="no n-grams of length 4; use the same ngram"):
        pool.load(tmp_path / "longer")
    assert len(pool) == 0


@given(st.lists(st.integers(0, 3), min_size=1, max_size=20), st.data())
def test_the_source_puts_every_ngram_of_the_text_into_the_pool(
    text: list[int], data: st.DataObject
) -> None:
    """In whatever portions the text arrives; the prompt's last token begins it."""
    pool = NgramPool(PoolConfig(guesses=100), N)
    source = PoolSource(pool)
    source.start([8, text[0]])
    rest = text[1:]
    while rest:
        portion = data.draw(st.integers(1, len(rest)))
        source.extend(rest[:portion])
        rest = rest[portion:]
    for start in range(len(text) - N + 1):
        ngram = text[start : start + N]
        assert (tuple(ngram[1:]), TEXT) in pool.get(ngram[0])
    assert pool.get(8) == []


def test_the_source_follows_continuations_and_starts_anew_where_they_end() -> None:
    pool = NgramPool(PoolConfig(), N)
    for ngram in ([1, 2, 3, 4], [1, 2, 5], [1, 6], [4, 7]):
        pool.add(ngram)
    source = PoolSource(pool)
    source.start([0, 1])
    state = source.root()
    assert [token for token, _ in source.candidates(state)] == [6, 2]
    state = source.advance(state, 2)
    assert [token for token, _ in source.candidates(state)] == [5, 3]
    state = source.advance(state, 3)
    assert [token for token, _ in source.candidates(state)] == [4]
    state = source.advance(state, 4)
    assert [token for token, _ in source.candidates(state)] == [7]
    assert source.candidates(source.advance(state, 9)) == []


def test_every_bucket_is_valid_and_window_buckets_are_known() -> None:
    pool = NgramPool(PoolConfig(), N)
    pool.add([1, 2, 3, 4], TEXT)
    pool.add([1, 5, 3, 4], WINDOW)
    source = PoolSource(pool)
    source.start([1])
    found = dict(source.candidates(source.root()))
    assert source.window_born(found[5]) and not source.window_born(found[2])
    assert all(0 < source.prior(bucket) < 1 for bucket in range(source.buckets))


@pytest.mark.parametrize(
    "table",
    [
        [[5, 97, 6, 7, 0]],
        [[5, -1, -1, -1, 0]],
        [[-1, 5, 6, 7, 0]],
        [[5, -1, 6, 7, 0]],
        [[5, 6, 7, 8, 2]],
        [[5, 6, 7, 8, -1]],
        [[5.0, 6.0, 7.0, 8.0, 0.0]],
    ],
)
def test_a_file_of_anything_but_ngrams_of_this_vocabulary_is_refused(
    table: list[list[float]], tmp_path: Path
) -> None:
    save_file({"ngrams": np.array(table)}, str(tmp_path / "pool"))
    pool = NgramPool(PoolConfig(), 4)
    with pytest.raises(ValueError, match="no n-gram pool of this model"):
        pool.load(tmp_path / "pool", 97)
    assert len(pool) == 0
