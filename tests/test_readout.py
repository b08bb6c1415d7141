"""What is read of a pass is what the logits say, ties and NaN included."""

from __future__ import annotations

import pytest
import torch
from hypothesis import example, given
from hypothesis import strategies as st

from lookahead.native.load import load_kernels
from lookahead.readout import read_nodes
from tests.native.kernels import kernels_or_skip


@given(
    seed=st.integers(0, 10**6),
    rows=st.integers(1, 3),
    nodes=st.integers(1, 5),
    vocabulary=st.integers(1, 30),
    k=st.integers(0, 9),
    levels=st.sampled_from([2, 5, 10**6]),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
    compiled=st.booleans(),
)
@example(3, 1, 2, 5000, 8, 10**6, torch.float32, True)
@example(3, 1, 2, 5000, 8, 40, torch.float32, True)
def test_picks_are_the_argmax_and_the_likeliest_tokens_have_their_probabilities(
    seed: int, rows: int, nodes: int, vocabulary: int, k: int, levels: int, dtype: torch.dtype,
    compiled: bool,
) -> None:  # fmt: skip
    found = load_kernels()
    kernels = found if compiled and not isinstance(found, str) else None
    draw = torch.Generator().manual_seed(seed)
    # Few levels make many ties.
    logits = torch.randint(levels, (rows, nodes, vocabulary), generator=draw).to(dtype)
    logits = logits * (5 / levels)
    seen = read_nodes(logits, None, k, kernels)
    assert seen.picks == logits.argmax(-1).tolist()
    assert not any(flag for row in seen.broken for flag in row)
    kept = min(k, vocabulary)
    probs = torch.softmax(logits.float(), -1)
    for row in range(rows):
        for node in range(nodes):
            tokens, chances = seen.tokens[row][node], seen.probs[row][node]
            assert len(tokens) == len(chances) == len(set(tokens)) == kept
            expected = probs[row, node].sort(descending=True).values[:kept].tolist()
            assert chances.tolist() == pytest.approx(expected, rel=1e-4)
            assert probs[row, node][tokens].tolist() == pytest.approx(expected, rel=1e-4)


@pytest.mark.parametrize("k", [0, 1, 8])
@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("at", [0, 17, 699])
def test_a_node_with_a_nan_among_its_logits_is_broken(k: int, compiled: bool, at: int) -> None:
    kernels = kernels_or_skip() if compiled else None
    logits = torch.randn(2, 3, 700)
    logits[1, 2, at] = float("nan")
    logits[0, 1] = float("nan")
    logits[0, 0, 5] = float("inf")  # large, not broken
    logits[0, 2, 9] = -float("inf")
    broken = read_nodes(logits, None, k, kernels).broken
    assert broken == [[False, True, False], [False, False, True]]


def test_given_picks_are_kept() -> None:
    logits = torch.zeros(1, 2, 40)
    picks = torch.tensor([[7, 39]])
    assert read_nodes(logits, picks, 8).picks == [[7, 39]]
