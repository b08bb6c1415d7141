"""Padding, windows, chunks, learned and scaled positions, slots: the mask and the rotary embedding
of a guess are those that plain decoding would use."""

from __future__ import annotations

import warnings
from typing import Any

import pytest
import torch

import lookahead
from lookahead.bench.tiny_models import tiny_config, tiny_model
from tests.cases.comparing import ORACLE_ALONE, Pair, padded, shared_model, shared_pair, single

WINDOWED = ("mistral", "gemma2", "gemma3_text", "gpt_oss", "cohere2", "llama4_text")


@pytest.mark.parametrize("gap", range(1, 7))
def test_rejecting_at_every_length_across_a_sliding_window_changes_nothing(gap: int) -> None:
    for model_type in ("mistral", "gemma3_text"):
        pair = Pair(shared_model(model_type), gap=gap, **ORACLE_ALONE)
        stats = pair.assert_same(**single(5), max_new_tokens=40, do_sample=False, mode="tree")
        assert stats.passes >= 39 // gap


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("model_type", WINDOWED)
def test_layers_with_windows_and_chunks_are_decoded_in_trees(model_type: str, sample: bool) -> None:
    stats = shared_pair(model_type).assert_same(
        **single(5), max_new_tokens=40, do_sample=sample, mode="tree"
    )
    assert sum(stats.accepted.values()) > 15


@pytest.mark.parametrize("first", ["sliding_attention", "full_attention"])
def test_both_orders_of_alternating_layers_are_exact(first: str) -> None:
    other = {"sliding_attention", "full_attention"} - {first}
    kinds = [first, *other] * 2
    pair = Pair(tiny_model("gemma2", layer_types=kinds))
    pair.assert_same(**padded(5, 12), max_new_tokens=30, do_sample=False, mode="tree")


@pytest.mark.parametrize("model_type", ["mistral", "qwen2", "qwen3"])
def test_a_long_window_is_crossed_too(model_type: str) -> None:
    changes: dict[str, Any] = {"sliding_window": 72}  # longer than the trial crosses as it is
    if model_type != "mistral":
        layers = tiny_config(model_type).num_hidden_layers
        changes["layer_types"] = (["sliding_attention", "full_attention"] * layers)[:layers]
    pair = Pair(tiny_model(model_type, **changes))
    pair.assert_same(**single(60), max_new_tokens=40, do_sample=False, mode="tree")


def test_a_model_whose_long_window_is_wrong_in_trees_is_not_trusted() -> None:
    from tests.cases.strange_models import WindowInTheCode

    model = WindowInTheCode.tiny(sliding_window=72)
    engine = lookahead.wrap(model)
    assert engine.capability.mode != "tree"
    assert "sliding window" in engine.capability.reason
    pair = Pair(model)
    pair.assert_same(**single(60), max_new_tokens=40, do_sample=False)


@pytest.mark.parametrize("length", [1, 2, 7])
@pytest.mark.parametrize("model_type", ["gpt2", "opt", "llama", "bloom"])
def test_prompts_of_one_and_two_tokens(model_type: str, length: int) -> None:
    shared_pair(model_type).assert_same(**single(length), max_new_tokens=12, do_sample=False)


@pytest.mark.parametrize("model_type", ["bloom", "mpt", "falcon"])
def test_position_biases_built_from_slots_run_in_chains_or_plainly(model_type: str) -> None:
    changes = {"alibi": True} if model_type == "falcon" else {}
    pair = Pair(tiny_model(model_type, **changes))
    assert pair.engine.capability.mode in ("chain", "plain")
    stats = pair.assert_same(**single(6), max_new_tokens=30, do_sample=False)
    if stats.mode == "chain":
        assert sum(stats.accepted.values()) > 10
    pair.assert_same(**single(6), max_new_tokens=30, do_sample=True)


def _longrope() -> Any:
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [1.5, 2.0, 3.0, 4.0]}
    scaled = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    scaled["original_max_position_embeddings"] = 24
    return tiny_model("phi3", rope_parameters=scaled, original_max_position_embeddings=24)


def _dynamic() -> Any:
    scaled = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 4.0}
    scaled["original_max_position_embeddings"] = 24
    return tiny_model("llama", rope_parameters=scaled, max_position_embeddings=24)


@pytest.mark.parametrize("length", [5, 23, 24, 25, 30])
@pytest.mark.parametrize("make", [_longrope, _dynamic])
def test_scaled_rotary_embeddings_switch_where_plain_decoding_switches(
    make: Any, length: int
) -> None:
    pair = Pair(make())
    for more in (32, 3):
        expected = pair.plainly(**single(length), max_new_tokens=more, do_sample=False)
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "decoding plainly: the text may pass 24 tokens")
            seen = pair.engines(**single(length), max_new_tokens=more, do_sample=False)
        assert seen.tolist() == expected.tolist()


@pytest.mark.parametrize("make", [_longrope, _dynamic])
def test_batches_across_the_switch_of_scaled_rotary_embeddings(make: Any) -> None:
    pair = Pair(make())
    with pytest.warns(UserWarning, match="rotary"):
        pair.assert_same(**padded(5, 12), max_new_tokens=30, do_sample=False)


@pytest.mark.parametrize("model_type", ["gpt2", "opt"])
@pytest.mark.parametrize("nodes", [12, None])
def test_learned_positions_end_exactly_at_the_context(model_type: str, nodes: int | None) -> None:
    name = "n_positions" if model_type == "gpt2" else "max_position_embeddings"
    pair = Pair(tiny_model(model_type, **{name: 32}), nodes=nodes)
    stats = pair.assert_same(**single(6), max_length=32, do_sample=False)
    assert nodes is None or sum(stats.accepted.values()) > 5


def test_a_model_that_drops_four_dimensional_masks_is_not_trusted() -> None:
    from tests.cases.strange_models import DropsWideMasks

    model = DropsWideMasks.tiny()
    pair = Pair(model)
    assert pair.engine.capability.mode == "chain"
    stats = pair.assert_same(**single(6), max_new_tokens=24, do_sample=False)
    assert sum(stats.accepted.values()) > 8


def test_a_model_that_mistakes_padding_decodes_batches_plainly() -> None:
    from tests.cases.strange_models import ForgetsPadding

    pair = Pair(ForgetsPadding.tiny())
    assert pair.engine.capability.mode == "tree"
    assert "padding" in pair.engine.capability.padding_reason
    with pytest.warns(UserWarning, match="padding"):
        pair.assert_same(**padded(5, 9), max_new_tokens=16, do_sample=False, mode="plain")
    pair.assert_same(**single(9), max_new_tokens=16, do_sample=False, mode="tree")


def test_an_empty_prompt_is_refused_in_one_sentence() -> None:
    pair = shared_pair("llama")
    with pytest.raises(ValueError, match="prompt is empty"):
        pair.engine.generate(torch.zeros(1, 0, dtype=torch.int64), max_new_tokens=3)


def test_the_capability_check_leaves_the_random_generator_alone() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    lookahead.wrap(shared_model("mistral"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("length", [20, 40])
def test_measuring_the_cost_of_passes_does_not_switch_rotary_embeddings(length: int) -> None:
    """Dynamic scaling remembers the longest position of any pass."""
    model = tiny_model(
        "llama",
        max_position_embeddings=32,
        rope_parameters={"rope_type": "dynamic", "factor": 4.0, "rope_theta": 10000.0},
    )
    engine = lookahead.wrap(model, lookahead.Config(remember_cost=False))
    arguments = {**single(length), "max_new_tokens": 40, "do_sample": False}
    expected = model.generate(**arguments)
    assert engine.generate(**arguments).tolist() == expected.tolist()


def test_a_vocabulary_of_special_tokens_alone() -> None:
    model = tiny_model("llama", vocab_size=3)
    model.generation_config.eos_token_id, model.generation_config.bos_token_id = 2, 1
    engine = lookahead.wrap(model, lookahead.Config(remember_cost=False))
    arguments: dict[str, Any] = {"max_new_tokens": 9, "do_sample": False}
    expected = model.generate(torch.ones((1, 4), dtype=torch.int64), **arguments)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        seen = engine.generate(torch.ones((1, 4), dtype=torch.int64), **arguments)
    assert seen.tolist() == expected.tolist()
