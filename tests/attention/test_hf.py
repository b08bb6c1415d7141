"""Unpatched transformers models under tree attention give what they give under stock attention."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache

from lookahead.attention import TreeContext
from lookahead.attention.hf import (
    QUERY_BLOCK,
    ModelAttention,
    register,
    tree_inputs,
    why_unsupported,
)

from .models import CONFIGS, STOCK, cached, keep_rows, next_logits, tiny_model
from .trees import SHAPES, ancestor_mask, parents_of

NAMES = {b: register(f"tree_{i}", backend=b) for i, b in enumerate(("auto", "flash", "sdpa"))}


def pair(name: str, backend: str = "auto") -> tuple[Any, Any]:
    """The same model under stock attention and under tree attention."""
    return tiny_model(name, STOCK.get(name, "sdpa")), tiny_model(name, NAMES[backend])


def prompt(rows: int, length: int, seed: int = 1) -> torch.Tensor:
    return torch.randint(2, 64, (rows, length), generator=torch.Generator().manual_seed(seed))


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_generate_without_trees_is_as_with_stock_attention(name: str) -> None:
    stock, tree = pair(name)
    ids = prompt(2, 9)
    mask = torch.ones_like(ids)
    ids[1, :4], mask[1, :4] = 0, 0  # left padding
    options: dict[str, Any] = {"attention_mask": mask, "max_new_tokens": 20, "do_sample": False}
    assert torch.equal(tree.generate(ids, **options), stock.generate(ids, **options))


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_without_trees_the_logits_are_exactly_those_of_sdpa(name: str) -> None:
    stock, tree = pair(name)
    expected = stock(prompt(2, 12)).logits
    if name in STOCK:  # eager rounds in another order
        torch.testing.assert_close(tree(prompt(2, 12)).logits, expected, rtol=1e-4, atol=1e-4)
    else:
        assert torch.equal(tree(prompt(2, 12)).logits, expected)


@pytest.mark.parametrize("name", STOCK)
@torch.no_grad()
def test_a_long_prefill_with_softcap_or_sinks_runs_in_blocks(name: str) -> None:
    stock, tree = pair(name)
    ids = prompt(1, 2 * QUERY_BLOCK - 30)
    torch.testing.assert_close(tree(ids).logits, stock(ids).logits, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("backend", NAMES)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_every_node_of_a_tree_pass_equals_its_branch_alone(
    name: str, shape: str, backend: str
) -> None:
    stock, tree = pair(name, backend)
    ids = prompt(1, 10)
    parents = parents_of(shape, 9, torch.Generator().manual_seed(2))
    nodes = prompt(1, 9, seed=3)
    mask = ancestor_mask(parents)
    cache = DynamicCache()
    tree(ids, **cached(cache))
    context = TreeContext(10, mask[None])
    logits = tree(
        nodes,
        position_ids=10 + context.node_depths,
        **cached(cache),
        **tree_inputs(context),
    ).logits[0]
    for node in range(9):
        branch = torch.cat([ids, nodes[:, mask[node]]], 1)
        torch.testing.assert_close(
            logits[node], next_logits(stock, branch)[0], rtol=1e-3, atol=1e-3
        )


@pytest.mark.parametrize("length", [4, 10])  # within and beyond the sliding windows
@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_a_tree_of_one_node_is_plain_decoding_to_the_bit(name: str, length: int) -> None:
    model = tiny_model(name, NAMES["auto"])
    ids = prompt(1, length + 1)
    plain, tree = DynamicCache(), DynamicCache()
    for cache in (plain, tree):
        model(ids[:, :-1], **cached(cache))
    expected = model(ids[:, -1:], **cached(plain)).logits
    context = TreeContext(length, torch.ones(1, 1, 1, dtype=torch.bool))
    position = torch.tensor([[length]])
    arguments = {**cached(tree), **tree_inputs(context)}
    logits = model(ids[:, -1:], position_ids=position, **arguments).logits
    if length < 5:
        assert torch.equal(logits, expected)
    else:  # a window that cuts keys off is a slice here and a mask there
        torch.testing.assert_close(logits, expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_left_padded_rows_of_a_tree_pass_equal_their_branches(name: str) -> None:
    stock, tree = pair(name)
    ids, padded = prompt(2, 10), torch.ones(2, 10, dtype=torch.int64)
    ids[1, :3], padded[1, :3] = 0, 0
    nodes = prompt(2, 7, seed=3)
    generator = torch.Generator().manual_seed(5)
    mask = torch.stack([ancestor_mask(parents_of("bushy", 7, generator)) for _ in range(2)])
    context = TreeContext(10, mask, prefix_starts=(0, 3))
    cache = DynamicCache()
    positions = (padded.cumsum(1) - 1).clamp(min=0)
    tree(ids, attention_mask=padded, position_ids=positions, **cached(cache))
    logits = tree(
        nodes,
        position_ids=torch.tensor([[10], [7]]) + context.node_depths,
        **cached(cache),
        **tree_inputs(context),
    ).logits
    for row, start in enumerate((0, 3)):
        for node in range(7):
            branch = torch.cat([ids[row, start:], nodes[row, mask[row, node]]])[None]
            torch.testing.assert_close(
                logits[row, node], next_logits(stock, branch)[0], rtol=1e-3, atol=1e-3
            )


@pytest.mark.parametrize("name", CONFIGS)
@torch.no_grad()
def test_greedy_decoding_by_trees_gives_the_tokens_of_stock_generate(name: str) -> None:
    """Each tree holds the right continuation on a branch of random depth, and wrong branches."""
    stock, tree = pair(name)
    ids = prompt(1, 8)
    expected = stock.generate(ids, max_new_tokens=40, do_sample=False)[0].tolist()
    generator = torch.Generator().manual_seed(7)
    cache = DynamicCache()
    tokens = ids[0].tolist()
    tree(ids[:, :-1], **cached(cache))
    passes = 0
    while len(tokens) < len(expected):
        nodes = prompt(1, 8, seed=100 + passes)[0].tolist()
        parents = parents_of("bushy", 8, generator)
        nodes[0] = tokens[-1]
        mask = ancestor_mask(parents)
        branch = mask[int(torch.randint(1, 8, (1,), generator=generator))].nonzero()[1:, 0]
        for node, token in zip(branch.tolist(), expected[len(tokens) :], strict=False):
            nodes[node] = token
        context = TreeContext(len(tokens) - 1, mask[None])
        logits = tree(
            torch.tensor([nodes]),
            position_ids=len(tokens) - 1 + context.node_depths,
            **cached(cache),
            **tree_inputs(context),
        ).logits[0]
        path = [0]
        committed = len(tokens) - 1
        while True:
            tokens.append(int(logits[path[-1]].argmax()))
            children = [i for i, p in enumerate(parents) if p == path[-1]]
            match = [i for i in children if nodes[i] == tokens[-1]]
            if not match:
                break
            path.append(match[0])
        keep_rows(cache, committed, path)
        passes += 1
    assert tokens[: len(expected)] == expected
    assert passes < 30  # 40 tokens: branches were accepted


@pytest.mark.parametrize(
    ("features", "module", "message"),
    [
        ({"dropout": 0.1}, {}, "dropout"),
        ({"output_attentions": True}, {}, "output_attentions"),
        ({"position_bias": torch.zeros(1)}, {}, "position_bias"),
        ({"is_causal": False}, {}, "bidirectional"),
        ({}, {"is_cross_attention": True}, "cross attention"),
        ({}, {"kind": "chunked_attention"}, "chunked attention"),
        ({}, {"kind": "sliding_attention"}, "sliding window hidden"),
    ],
)
def test_a_feature_that_would_be_lost_is_refused(
    features: dict[str, Any], module: dict[str, Any], message: str
) -> None:
    layer: Any = torch.nn.Module()
    if "kind" in module:
        layer.config = type("Config", (), {"layer_types": [module["kind"]]})()
        layer.layer_idx = 0
    if "is_cross_attention" in module:
        layer.is_cross_attention = True
    q = torch.zeros(1, 2, 3, 8)
    context = TreeContext(0, torch.eye(3, dtype=torch.bool)[None])
    attention = ModelAttention()
    attention(torch.nn.Module(), q, q, q, None, tree_context=context)  # fine without
    with pytest.raises(ValueError, match=message):
        attention(layer, q, q, q, None, tree_context=context, **features)


def test_registration_refuses_names_and_backends_it_cannot_honour() -> None:
    with pytest.raises(ValueError, match="backend must be one of"):
        register("lookahead_typo", backend="flash3")
    with pytest.raises(ValueError, match="free of 'flash'"):
        register("tree_flash")


def test_models_whose_mask_hides_features_are_named() -> None:
    assert why_unsupported(tiny_model("LlamaConfig", NAMES["auto"])) is None
    assert "full mask" in str(why_unsupported(torch.nn.Linear(1, 1)))
