"""The closed forms agree with simulation, enumeration and counting by hand."""

import itertools
import random

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from transformers import LlamaConfig, LlamaForCausalLM

from lookahead import theory


def simulate_chain(alpha: float, gamma: int, passes: int, rng: random.Random) -> float:
    tokens = 0
    for _ in range(passes):
        accepted = 0
        while accepted < gamma and rng.random() < alpha:
            accepted += 1
        tokens += accepted + 1
    return tokens / passes


@pytest.mark.parametrize("alpha", [0.0, 0.3, 0.8, 1.0])
@pytest.mark.parametrize("gamma", [0, 1, 5])
def test_expected_tokens_agree_with_simulated_chains(alpha: float, gamma: int) -> None:
    simulated = simulate_chain(alpha, gamma, 20_000, random.Random(7))
    # Standard deviation of a pass is below gamma/2, so four standard errors at 20,000 passes.
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(simulated, abs=0.0142 * gamma)


@given(alpha=st.floats(0, 1), gamma=st.integers(0, 30))
def test_expected_tokens_are_the_sum_of_powers(alpha: float, gamma: int) -> None:
    powers = sum(alpha**i for i in range(gamma + 1))
    assert theory.expected_tokens(alpha, gamma) == pytest.approx(powers, rel=1e-6)


def test_speedup_equals_simulated_time() -> None:
    alpha, gamma, cost = 0.7, 4, 0.1
    tokens = simulate_chain(alpha, gamma, 50_000, random.Random(3))
    assert theory.expected_speedup(alpha, gamma, cost) == pytest.approx(
        tokens / (1 + gamma * cost), rel=0.01
    )


@given(alpha=st.floats(0, 0.99), cost=st.floats(0.01, 1.5))
def test_best_gamma_is_not_beaten_by_any_other_length(alpha: float, cost: float) -> None:
    best = theory.best_gamma(alpha, cost, limit=40)
    peak = theory.expected_speedup(alpha, best, cost)
    assert all(theory.expected_speedup(alpha, g, cost) <= peak for g in range(41))


def test_no_guess_pays_when_it_costs_more_than_it_is_accepted() -> None:
    # Corollary 3.9 of arXiv:2211.17192: there is a gain exactly when alpha > cost.
    assert theory.best_gamma(0.3, 0.31) == 0
    assert theory.best_gamma(0.3, 0.29) == 1


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[float]]:
    size = draw(st.integers(1, 6))
    parents = [draw(st.integers(-1, i - 1)) for i in range(size)]
    shares = [draw(st.floats(0.05, 1.0)) for _ in range(size)]
    siblings = [sum(parents[j] == parents[i] for j in range(size)) for i in range(size)]
    return parents, [share / count for share, count in zip(shares, siblings, strict=True)]


def enumerate_tree(parents: list[int], probabilities: list[float]) -> float:
    """Walk every outcome: at each node one child is picked or the walk ends."""

    def walk(node: int) -> float:
        children = [i for i, parent in enumerate(parents) if parent == node]
        stop = 1.0 - sum(probabilities[i] for i in children)
        return stop * 1.0 + sum(probabilities[i] * (1.0 + walk(i)) for i in children)

    return walk(-1)


@settings(max_examples=60)
@given(trees())
def test_tree_form_equals_enumeration_of_outcomes(tree: tuple[list[int], list[float]]) -> None:
    assert theory.expected_tree_tokens(*tree) == pytest.approx(enumerate_tree(*tree))


def test_a_chain_is_the_tree_without_branches() -> None:
    chain = theory.expected_tree_tokens([-1, 0, 1, 2], [0.6] * 4)
    assert chain == pytest.approx(theory.expected_tokens(0.6, 4))


@settings(max_examples=60)
@given(
    weights=st.lists(st.floats(0, 1), max_size=7),
    steps=st.lists(st.floats(0, 1), min_size=7, max_size=7),
)
def test_best_budget_beats_every_subset(weights: list[float], steps: list[float]) -> None:
    costs = list(itertools.accumulate(steps, initial=1.0))
    _, rate = theory.best_budget(weights, lambda n: costs[n - 1])
    for size in range(len(weights) + 1):
        for subset in itertools.combinations(weights, size):
            assert (1 + sum(subset)) / costs[size] <= rate + 1e-9


def test_best_budget_looks_past_a_step_of_the_staircase() -> None:
    costs = {1: 1.0, 2: 1.6, 3: 1.6, 4: 1.6}
    budget, rate = theory.best_budget([0.5, 0.5, 0.5], costs.__getitem__)
    assert budget == 3
    assert rate == pytest.approx(2.5 / 1.6)


def tiny(tied: bool) -> LlamaForCausalLM:
    return LlamaForCausalLM(
        LlamaConfig(
            vocab_size=50,
            hidden_size=8,
            intermediate_size=12,
            num_hidden_layers=2,
            num_attention_heads=2,
            num_key_value_heads=1,
            tie_word_embeddings=tied,
        )
    )


@pytest.mark.parametrize("tied", [True, False])
def test_weight_bytes_count_tied_weights_once_and_no_untied_embedding(tied: bool) -> None:
    model = tiny(tied)
    layer = 8 * 8 + 2 * 8 * 4 + 8 * 8 + 3 * 8 * 12 + 2 * 8
    unique = {b.data_ptr(): b.numel() * b.element_size() for b in model.buffers()}
    assert theory.weight_bytes(model) == 4 * (50 * 8 + 2 * layer + 8) + sum(unique.values())


def test_kv_bytes_equal_the_size_of_a_real_cache() -> None:
    model = tiny(True)
    cache = model(torch.arange(11)[None], use_cache=True).past_key_values
    real = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert theory.kv_bytes(2, 1, 4, 11, 4) == real


def test_a_step_cannot_be_faster_than_its_bytes() -> None:
    assert theory.step_floor(3_000, 1_000.0) == 3.0


def test_measured_bandwidth_is_reached_by_no_slower_kernel() -> None:
    bandwidth = theory.measure_bandwidth(megabytes=16, repeats=3)
    # Any machine that runs this reads more than 100 MB and less than 100 TB per second.
    assert 1e8 < bandwidth < 1e14


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: theory.expected_tokens(1.2, 3), "alpha"),
        (lambda: theory.expected_tokens(0.2, -1), "gamma"),
        (lambda: theory.expected_speedup(0.2, 1, -0.1), "cost"),
        (lambda: theory.best_gamma(0.2, 0.1, limit=-1), "limit"),
        (lambda: theory.path_probabilities([0], [0.5]), "parent"),
        (lambda: theory.path_probabilities([-1], [1.5]), "probability"),
        (lambda: theory.path_probabilities([-1], []), "probabilities"),
        (lambda: theory.expected_tree_tokens([-1, -1], [0.7, 0.7]), "children"),
        (lambda: theory.step_floor(1, 0.0), "bandwidth"),
        (lambda: theory.pass_speedup(1.0, 0.0), "cost"),
        (lambda: theory.measure_bandwidth(megabytes=0), "megabyte"),
    ],
)
def test_impossible_arguments_are_refused(call, message: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ValueError, match=message):
        call()
