"""Statistics add up."""

from __future__ import annotations

import json

import pytest

from lookahead import Stats
from tests.contract.guesses import Script, every_length, scripted
from tests.contract.models import prompt, tiny
from tests.contract.oracle import ran


def test_figures_of_nothing_are_zero() -> None:
    stats = Stats()
    assert stats.tokens_per_pass == stats.nodes_per_pass == stats.share_outside == 0.0
    assert stats.predicted_speedup == 1.0


def test_derived_figures() -> None:
    stats = Stats(tokens=12, passes=4, nodes=20, seconds_total=10, seconds_prefill=2)
    stats.seconds_model = 6
    assert (stats.tokens_per_pass, stats.nodes_per_pass) == (3.0, 5.0)
    assert stats.seconds_outside == 2
    assert stats.share_outside == pytest.approx(0.25)


def test_depths_are_counted_one_by_one() -> None:
    stats = Stats()
    stats.count_depth([1, 1, 2, 3], 2)
    stats.count_depth([1], 1)
    stats.count_depth([], 0)
    assert stats.proposed_by_depth == [3, 1, 1]
    assert stats.accepted_by_depth == [2, 1, 0]


def test_the_counts_of_a_call_agree_with_each_other_and_with_the_steps() -> None:
    model, ids = tiny("Llama"), prompt()
    arguments = {"do_sample": False, "max_new_tokens": 40}
    texts = ran(model.generate, ids, **arguments).ids.tolist()
    engine = scripted(model, Script(every_length, True, texts))
    steps = list(engine.stream(ids, **arguments))
    stats = engine.stats
    assert stats.tokens == 40 == sum(len(step.tokens) for step in steps)
    assert stats.passes == len(steps) - 1 == sum(stats.widths.values())
    assert stats.nodes == sum(step.nodes for step in steps) == stats.proposed["script"]
    assert stats.nodes == sum(stats.proposed_by_depth)
    assert stats.nodes + stats.passes == sum(n * count for n, count in stats.widths.items())
    accepted = sum(source == "script" for step in steps for source in step.sources)
    assert stats.accepted == {"script": accepted}
    assert accepted == sum(stats.accepted_by_depth) > 10
    assert stats.accepted_by_depth == sorted(stats.accepted_by_depth, reverse=True)
    assert 0 < stats.seconds_prefill < stats.seconds_total
    assert 0 < stats.seconds_model < stats.seconds_total
    assert all(step.seconds > 0 for step in steps)
    values = json.loads(json.dumps(stats.to_dict()))
    assert values["tokens_per_pass"] == stats.tokens_per_pass
    assert f"script: {accepted} of {stats.nodes} accepted" in str(stats)
