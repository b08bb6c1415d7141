"""The roofline compares measured passes with the bytes that they must read."""

from typing import Any

import pytest

import lookahead
from lookahead import theory
from lookahead.bench.roofline import cache_bytes, measure_roofline

PROMPT = [5, 9, 2, 33, 17, 5, 9]


def test_figures_follow_from_bytes_bandwidth_and_passes(model: Any) -> None:
    found = measure_roofline(model, lookahead.wrap(model, lookahead.suffix_config(4)), PROMPT, 24)
    assert found.weight_bytes == theory.weight_bytes(model)
    assert found.kv_bytes == 2 * 2 * 2 * 8 * (len(PROMPT) + 12) * 4
    assert found.floor == (found.weight_bytes + found.kv_bytes) / found.bandwidth
    assert found.step_over_floor == found.plain_step / found.floor > 1
    assert found.token_over_floor == pytest.approx(
        found.pass_seconds / found.tokens_per_pass / found.floor
    )
    assert 1 <= found.tokens_per_pass <= found.pass_width <= 5


def test_an_unusual_configuration_counts_no_cache(model: Any) -> None:
    from types import SimpleNamespace

    config = SimpleNamespace(get_text_config=lambda: SimpleNamespace(num_hidden_layers=2))
    assert cache_bytes(SimpleNamespace(config=config, dtype=model.dtype), 100) == 0


def test_a_text_that_ends_at_once_is_refused(model: Any) -> None:
    with pytest.raises(ValueError, match="no step to time"):
        measure_roofline(model, lookahead.wrap(model), PROMPT, 1)
