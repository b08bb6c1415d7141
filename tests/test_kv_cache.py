"""The cache of the engine against lists of rows that are simply kept or dropped."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer

from lookahead.kv_cache import TreeCache

HEADS, SIZES = 2, (3, 3, 5)  # layers of two shapes: two storages


def pair(batch: int, slots: int, size: int) -> tuple[Tensor, Tensor]:
    return torch.randn(batch, HEADS, slots, size), torch.randn(batch, HEADS, slots, size)


def prompt_cache(batch: int, length: int) -> DynamicCache:
    cache = DynamicCache()
    for layer, size in enumerate(SIZES):
        cache.update(*pair(batch, length, size), layer)
    return cache


class Naive:
    """Committed rows per layer and batch row, as lists of (key, value) slices."""

    def __init__(self, prompt: DynamicCache, batch: int, length: int) -> None:
        self.rows = [
            [
                [
                    (layer.keys[b, :, i].clone(), layer.values[b, :, i].clone())
                    for i in range(length)
                ]
                for b in range(batch)
            ]
            for layer in prompt.layers
        ]

    def commit(self, row: int, path: list[int], written: list[tuple[Tensor, Tensor]]) -> None:
        for layer, (keys, values) in enumerate(written):
            for node in path:
                self.rows[layer][row].append((keys[row, :, node], values[row, :, node]))

    def assert_equal(self, cache: TreeCache) -> None:
        for layer, rows in enumerate(self.rows):
            for b, slots in enumerate(rows):
                assert cache.lengths[b] == len(slots)
                held: Any = cache.layers[layer]
                assert torch.equal(
                    held.keys[b, :, : len(slots)], torch.stack([k for k, _ in slots], 1)
                )
                assert torch.equal(
                    held.values[b, :, : len(slots)], torch.stack([v for _, v in slots], 1)
                )


def random_path(draw: random.Random, n: int) -> list[int]:
    """Rising nodes that begin with the root; contiguous half of the time."""
    if draw.random() < 0.5:
        return list(range(draw.randint(1, n)))
    return [0, *sorted(draw.sample(range(1, n), draw.randint(0, n - 1)))]


@given(st.integers(0, 10**6), st.integers(1, 3))
def test_paths_are_kept_and_the_rest_is_dropped(seed: int, batch: int) -> None:
    """Rows accept different lengths, sit passes out, and the storage grows from nearly nothing."""
    draw = random.Random(seed)
    torch.manual_seed(seed)
    length = draw.randint(1, 5)
    prompt = prompt_cache(batch, length)
    naive = Naive(prompt, batch, length)
    cache = TreeCache(prompt, length, length + draw.randint(0, 4))
    waiting: dict[int, tuple[list[int], list[tuple[Tensor, Tensor]]]] = {}
    for _ in range(draw.randint(1, 8)):
        n = draw.randint(1, 7)
        # A waiting row has rows of an earlier pass behind its committed ones: they must survive.
        starts = [
            cache.lengths[b] + (max(waiting[b][0]) + 1 if b in waiting else 0) for b in range(batch)
        ]
        cache.reserve(starts, n)
        written = [pair(batch, n, size) for size in SIZES]
        for layer, (keys, values) in enumerate(written):
            seen_keys, seen_values = cache.update(keys, values, layer)
            assert seen_keys.shape[2] == max(starts) + n == seen_values.shape[2]
            for b in range(batch):
                rows = slice(starts[b], starts[b] + n)
                assert torch.equal(seen_keys[b, :, rows], keys[b])
                assert torch.equal(seen_values[b, :, rows], values[b])
        for b in range(batch):
            if b not in waiting:
                waiting[b] = (random_path(draw, n), written)
            if draw.random() < 0.7:
                path, rows_written = waiting.pop(b)
                cache.commit(b, path)
                naive.commit(b, path, rows_written)
        naive.assert_equal(cache)


def test_a_path_of_the_first_rows_is_not_copied() -> None:
    prompt = prompt_cache(1, 3)
    cache = TreeCache(prompt, 3, 64)
    cache.reserve([3], 5)
    for layer, size in enumerate(SIZES):
        cache.update(*pair(1, 5, size), layer)
    layer_held: Any = cache.layers[0]
    before = layer_held.keys._version
    cache.commit(0, [0, 1, 2])
    assert layer_held.keys._version == before
    cache.commit(0, [0, 2])
    assert layer_held.keys._version > before


def test_the_callers_cache_is_brought_up_to_date() -> None:
    prompt = prompt_cache(1, 4)
    expected = [layer.keys.clone() for layer in prompt.layers]
    cache = TreeCache(prompt, 4, 5)
    cache.reserve([4], 6)
    written = [pair(1, 6, size) for size in SIZES]
    for layer, (keys, values) in enumerate(written):
        cache.update(keys, values, layer)
    cache.commit(0, [0, 2, 5])
    cache.export(prompt, 4)
    assert prompt.get_seq_length() == 7
    for layer, before in enumerate(expected):
        held: Any = prompt.layers[layer]
        assert torch.equal(held.keys, torch.cat([before, written[layer][0][:, :, [0, 2, 5]]], 2))
    held = prompt.layers[0]
    inside: Any = cache.layers[0]
    inside.keys.zero_()
    assert held.keys.abs().sum() > 0  # a copy, not a view of the engine's storage


def test_an_exported_cache_of_another_length_is_an_error() -> None:
    prompt = prompt_cache(1, 4)
    cache = TreeCache(prompt, 4, 8)
    with pytest.raises(RuntimeError, match="holds 5 positions instead of 4"):
        cache.export(prompt_cache(1, 5), 4)


def test_caches_that_cannot_be_rolled_back_by_a_number_are_refused() -> None:
    class StateLayer(DynamicLayer):
        """Stands for recurrent state."""

    prompt = prompt_cache(1, 3)
    prompt.layers[1] = StateLayer()
    with pytest.raises(ValueError, match=r"StateLayer\) cannot be rolled back"):
        TreeCache(prompt, 3, 8)
    with pytest.raises(ValueError, match="holds no keys and values"):
        TreeCache(DynamicCache(), 0, 8)
