"""TokenTree against a tree of nested dictionaries."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lookahead.tree import TokenTree

Nested = dict[int, Any]
PATHS = st.lists(st.lists(st.integers(0, 3), min_size=1, max_size=5), max_size=12)


def build(paths: list[list[int]]) -> tuple[TokenTree, Nested]:
    tree, nested = TokenTree(9), dict[int, Any]()
    for path in paths:
        node, level = 0, nested
        for token in path:
            node = tree.add(node, token)
            level = level.setdefault(token, {})
    return tree, nested


def all_paths(nested: Nested, above: tuple[int, ...] = ()) -> set[tuple[int, ...]]:
    found = {above}
    for token, below in nested.items():
        found |= all_paths(below, (*above, token))
    return found


def texts(tree: TokenTree) -> list[tuple[int, ...]]:
    """Tokens from below the root down to each node."""
    return [tuple(tree.tokens[i] for i in tree.path(node)[1:]) for node in range(len(tree))]


@given(PATHS)
def test_equal_children_are_one_node_and_nothing_is_lost(paths: list[list[int]]) -> None:
    tree, nested = build(paths)
    expected = all_paths(nested)
    assert len(tree) == len(expected)
    assert set(texts(tree)) == expected


@given(PATHS)
def test_depths_parents_children_and_paths_agree(paths: list[list[int]]) -> None:
    tree, _ = build(paths)
    assert tree.parents[0] == -1 and tree.depths[0] == 0 and tree.tokens[0] == 9
    for node in range(len(tree)):
        path = tree.path(node)
        assert path[0] == 0 and path[-1] == node
        assert tree.depths[node] == len(path) - 1
        if node:
            assert 0 <= tree.parents[node] < node
            assert tree.child(tree.parents[node], tree.tokens[node]) == node
        for token in range(5):
            child = tree.child(node, token)
            assert child is None or tree.parents[child] == node
            assert (child is not None) == ((*texts(tree)[node], token) in set(texts(tree)))


@given(PATHS)
def test_mask_shows_ancestors_and_the_node_itself(paths: list[list[int]]) -> None:
    tree, _ = build(paths)
    expected = np.zeros((len(tree), len(tree)), dtype=bool)
    for node in range(len(tree)):
        expected[node, tree.path(node)] = True
    assert np.array_equal(tree.mask(), expected)


@given(PATHS)
def test_is_chain_means_that_a_causal_mask_would_do(paths: list[list[int]]) -> None:
    tree, _ = build(paths)
    causal = np.tril(np.ones((len(tree), len(tree)), dtype=bool))
    assert tree.is_chain() == np.array_equal(tree.mask(), causal)


@given(PATHS, st.randoms(use_true_random=False))
def test_reordered_with_the_likeliest_chain_first_is_the_same_tree(
    paths: list[list[int]], draw: Any
) -> None:
    tree, _ = build(paths)
    weights = [1.0]
    for node in range(1, len(tree)):
        weights.append(weights[tree.parents[node]] * draw.uniform(0.1, 1.0))
    order = tree.likeliest_first(weights)
    assert sorted(order) == list(range(len(tree)))
    new = tree.reordered(order)
    assert [texts(tree)[old] for old in order] == texts(new)
    node, chain = 0, [0]
    while children := [c for c in range(1, len(tree)) if tree.parents[c] == node]:
        node = max(children, key=lambda child: weights[child])
        chain.append(node)
    assert order[: len(chain)] == chain
    assert new.path(len(chain) - 1) == list(range(len(chain)))
