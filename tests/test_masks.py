"""Masks of tree passes against the rule for one pair of query and key at a time."""

from __future__ import annotations

import random
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookahead.masks import CHUNKED, FULL, SLIDING, LayerKinds, MaskBuilder
from lookahead.tree import TokenTree


def random_tree(draw: random.Random, nodes: int) -> TokenTree:
    tree = TokenTree(0)
    while len(tree) < nodes:
        tree.add(draw.randrange(len(tree)), draw.randrange(50))
    return tree


def sees(
    tree: TokenTree | None,
    query: int,
    slot: int,
    start: int,
    length: int,
    valid: list[bool],
    kind: str,
    size: int,
) -> bool:
    """Whether node ``query`` may look at a slot of its row's cache."""
    first = valid.index(True)
    if tree is None or query >= len(tree):
        return slot == first  # padding sees one slot, so that it stays finite
    position = length + tree.depths[query]
    if slot < length:
        if slot < len(valid) and not valid[slot]:
            return False
        key = slot
    elif start <= slot < start + len(tree):
        if slot - start not in tree.path(query):
            return False
        key = length + tree.depths[slot - start]
    else:
        return False
    if kind == SLIDING:
        return position - key < size
    if kind == CHUNKED:
        return (position - first) // size == (key - first) // size
    return True


@given(st.integers(0, 10**6), st.sampled_from([FULL, SLIDING, CHUNKED]), st.integers(1, 9))
def test_masks_follow_the_rule_pair_by_pair(seed: int, kind: str, size: int) -> None:
    draw = random.Random(seed)
    rows, prompt = draw.randint(1, 3), draw.randint(1, 6)
    valid = []
    for _ in range(rows):
        padding = draw.randrange(prompt)
        valid.append([False] * padding + [True] * (prompt - padding))
    lengths = [prompt + draw.randint(0, 5) for _ in range(rows)]
    trees: list[TokenTree | None] = [
        None if rows > 1 and draw.random() < 0.2 else random_tree(draw, draw.randint(1, 8))
        for _ in range(rows)
    ]
    # Rows that sit a pass out keep the rows of their last tree behind what is committed.
    starts = [
        length + (0 if tree is not None else draw.randint(0, 4))
        for length, tree in zip(lengths, trees, strict=True)
    ]
    n = max((len(tree) for tree in trees if tree is not None), default=1)
    kinds = LayerKinds({kind: 0 if kind == FULL else size})
    builder = MaskBuilder(kinds, np.array(valid), torch.float32)
    mask = builder(trees, starts, lengths, n, torch.device("cpu"))
    assert isinstance(mask, torch.Tensor)
    assert mask.shape == (rows, 1, n, max(starts) + n)
    assert mask.dtype == torch.float32
    lowest = torch.finfo(torch.float32).min
    assert set(mask.unique().tolist()) <= {0.0, lowest}
    for row, tree in enumerate(trees):
        for query in range(n):
            for slot in range(max(starts) + n):
                expected = sees(
                    tree, query, slot, starts[row], lengths[row], valid[row], kind, size
                )
                found = bool(mask[row, 0, query, slot] == 0)
                assert found == expected, (row, query, slot)


def test_models_with_layers_of_two_kinds_get_both_masks() -> None:
    kinds = LayerKinds({FULL: 0, SLIDING: 3})
    builder = MaskBuilder(kinds, np.ones((1, 6), bool), torch.float32)
    tree = TokenTree(1)
    tree.add(0, 2)
    masks = builder([tree], [6], [6], 2, torch.device("cpu"))
    assert isinstance(masks, dict)
    assert set(masks) == {FULL, SLIDING}
    assert (masks[FULL][0, 0] == 0).sum(-1).tolist() == [7, 8]
    assert (masks[SLIDING][0, 0] == 0).sum(-1).tolist() == [3, 3]
    assert not builder.plain


def test_kinds_of_layers_are_read_from_the_configuration() -> None:
    def of(**values: object) -> dict[str, int]:
        return LayerKinds.of(SimpleNamespace(**values)).sizes

    assert of() == {FULL: 0}
    assert of(sliding_window=8) == {SLIDING: 8}
    assert of(attention_chunk_size=16) == {CHUNKED: 16}
    assert of(layer_types=[FULL, SLIDING, FULL], sliding_window=4) == {FULL: 0, SLIDING: 4}
    with pytest.raises(ValueError, match="linear_attention have no tree mask"):
        of(layer_types=[FULL, "linear_attention"])
    with pytest.raises(ValueError, match="sliding_attention have no tree mask"):
        of(layer_types=[SLIDING], sliding_window=None)
