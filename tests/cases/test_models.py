"""Model classes: state that cannot be rolled back, and the sweep over every class."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import lookahead
from lookahead.bench.sweep import main, markdown, summary, sweep_class
from lookahead.bench.tiny_models import causal_lm_types
from tests.cases.comparing import Pair, padded, shared_model, single

RECURRENT = ("lfm2", "mamba", "recurrent_gemma", "qwen3_next", "falcon_h1")


@pytest.mark.parametrize("model_type", RECURRENT)
def test_recurrent_and_convolution_state_never_gives_another_text(model_type: str) -> None:
    pair = Pair(shared_model(model_type))
    assert pair.engine.capability.mode == "plain"
    assert pair.engine.capability.reason
    for arguments in ({**single(6), "do_sample": True}, {**padded(6, 3), "do_sample": False}):
        with warnings.catch_warnings(record=True) as seen:
            warnings.simplefilter("always")
            pair.assert_same(**arguments, max_new_tokens=16, mode="plain")
        assert len(seen) <= 1  # once for each engine


def test_a_flag_that_claims_a_cache_can_be_rolled_back_is_not_believed() -> None:
    model = shared_model("qwen3_next")
    assert lookahead.wrap(model).capability.mode == "plain"
    assert "cannot be rolled back" in lookahead.wrap(model).capability.reason


@pytest.mark.parametrize(
    ("model_type", "mode"),
    [("qwen3_moe", "tree"), ("deepseek_v3", "tree"), ("git", "tree"), ("gpt_neo", "chain")],
)
def test_a_class_of_the_sweep_equals_plain_decoding(model_type: str, mode: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        row = sweep_class(model_type)
    assert row["result"] == "equal", row
    assert row["mode"] == mode
    assert row["tokens_per_pass"] > 1.3


def test_a_class_that_cannot_be_built_is_listed_with_its_reason() -> None:
    row = sweep_class("blt")
    assert row["result"] == "not run"
    assert row["reason"]
    counts = summary([row])
    assert (counts["not_run"], counts["ran"]) == (1, 0)
    assert row["reason"].split()[0] in markdown([row])


def test_the_sweep_refuses_a_type_that_is_none() -> None:
    seen = CliRunner().invoke(main, ["no_such_model"])
    assert seen.exit_code == 2
    assert "no_such_model" in seen.output


def test_the_recorded_sweep_covers_every_class_and_none_differs() -> None:
    path = Path(__file__).parents[2] / "bench" / "results" / "models.json"
    report: dict[str, Any] = json.loads(path.read_text())
    counts = report["summary"]
    assert counts["different"] == counts["failed"] == 0
    assert counts["equal"] == counts["ran"]
    assert all(row["reason"] for row in report["rows"] if row["mode"] != "tree")
    import transformers

    if transformers.__version__ == counts["transformers"]:
        assert [row["type"] for row in report["rows"]] == causal_lm_types()
