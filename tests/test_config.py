"""Options: checked when made, unknown names refused, published settings as published."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from lookahead import (
    Config,
    JacobiConfig,
    LookupConfig,
    PlannerConfig,
    PoolConfig,
    RecyclingConfig,
    lookahead_config,
    plain_config,
    prompt_lookup_config,
    recycling_config,
    suffix_config,
    wrap,
)


@pytest.mark.parametrize(
    ("kind", "values", "says"),
    [
        (JacobiConfig, {"window": 0}, "jacobi.window must be at least 1, got 0"),
        (JacobiConfig, {"ngram": 1}, "jacobi.ngram must be at least 2, got 1"),
        (PoolConfig, {"guesses": 0}, "ngram_pool.guesses must be at least 1, got 0"),
        (PoolConfig, {"capacity": 0}, "ngram_pool.capacity must be at least 1, got 0"),
        (LookupConfig, {"min_match": 0}, "prompt_lookup.min_match must be >= 1, got 0"),
        (LookupConfig, {"back_off": -1}, "prompt_lookup.back_off must be >= 0, got -1"),
        (RecyclingConfig, {"top_k": 0}, "recycling.top_k must be 1 to 64, got 0"),
        (RecyclingConfig, {"top_k": 65}, "recycling.top_k must be 1 to 64, got 65"),
        (RecyclingConfig, {"capacity": 0}, "recycling.capacity must be at least 1, got 0"),
        (RecyclingConfig, {"prompt_positions": -1}, "prompt_positions must not be negative"),
        (PlannerConfig, {"max_nodes": -1}, "max_nodes must be 0 to 1024, got -1"),
        (PlannerConfig, {"max_nodes": 1025}, "max_nodes must be 0 to 1024, got 1025"),
        (PlannerConfig, {"fixed_nodes": 65}, r"fixed_nodes must be 0 to max_nodes \(64\), got 65"),
        (PlannerConfig, {"fixed_nodes": -1}, r"fixed_nodes must be 0 to max_nodes \(64\), got -1"),
    ],
)
def test_values_out_of_range_are_refused_by_name(
    kind: Any, values: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        kind(**values)


def test_options_are_read_from_nested_dictionaries() -> None:
    config = Config.from_dict(
        {"jacobi": {"window": 3, "ngram": 6}, "planner": {"max_nodes": 9}, "prepack": False}
    )
    assert config.jacobi == JacobiConfig(window=3, ngram=6)
    assert config.planner.max_nodes == 9
    assert config.prepack is False
    assert Config.from_dict({}) == Config()


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ({"jacoby": {}}, "unknown option 'jacoby'; known: jacobi,"),
        ({"jacobi": {"width": 3}}, "unknown option jacobi.width"),
        ({"planner": {"max_nodes": 2, "budget": 3}}, "unknown option planner.budget"),
    ],
)
def test_unknown_options_are_refused(values: dict[str, Any], says: str) -> None:
    with pytest.raises(ValueError, match=says):
        Config.from_dict(values)


def test_options_cannot_be_changed_afterwards() -> None:
    config = Config()
    for part in (config, config.jacobi, config.planner):
        name = dataclasses.fields(part)[0].name
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(part, name, 1)


def enabled(config: Config) -> set[str]:
    names = ("jacobi", "ngram_pool", "prompt_lookup", "recycling", "positions")
    return {name for name in names if getattr(config, name).enabled}


def test_published_settings() -> None:
    config = lookahead_config(5, 15, 15)
    assert enabled(config) == {"jacobi", "ngram_pool"}
    assert (config.jacobi.ngram, config.jacobi.window, config.ngram_pool.guesses) == (5, 15, 15)
    assert config.jacobi.always and config.planner.fixed_nodes == 15 * 4
    assert enabled(plain_config()) == set() and plain_config().planner.fixed_nodes == 0
    assert enabled(prompt_lookup_config(10)) == {"prompt_lookup"}
    assert prompt_lookup_config(10).prompt_lookup.back_off == 0
    assert enabled(suffix_config()) == {"prompt_lookup"}
    assert enabled(recycling_config(80)) == {"recycling"}
    assert recycling_config(80).planner.fixed_nodes == 80
    sources = {"jacobi", "ngram_pool", "prompt_lookup", "recycling", "positions"}
    assert enabled(Config()) == sources


def test_wrap_says_what_it_needs() -> None:
    with pytest.raises(TypeError, match="int is no generative model of transformers; load one"):
        wrap(3)


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"jacobi": 3}, "Config.jacobi must be of type JacobiConfig"),
        ({"planner": None}, "Config.planner must be of type PlannerConfig"),
        ({"prepack": {"a": 1}}, "Config.prepack must be of type bool"),
        ({"prepack": "no"}, "Config.prepack must be of type bool"),
        ({"jacobi": {"window": "5"}}, "JacobiConfig.window must be of type int"),
        ({"jacobi": {"window": 2.5}}, "JacobiConfig.window must be of type int"),
        ({"recycling": {"top_k": True}}, "RecyclingConfig.top_k must be of type int"),
        ({"planner": {"fixed_nodes": 2.5}}, "PlannerConfig.fixed_nodes must be of type int"),
        ([], "must be a dictionary"),
    ],
)
def test_values_of_other_types_are_refused(values: Any, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Config.from_dict(values)
