"""``verify`` passes the engine, finds a fault planted in it, and calls rounding ties ties."""

from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

import lookahead
from lookahead import config as configs
from lookahead.bench.prompt_sets import Prompt
from lookahead.bench.verification import Finding, verify
from lookahead.tree import TokenTree

PROMPTS = [
    Prompt("a", "chat", ("hello hello hello hello", "and again hello")),
    Prompt("b", "code", ("abcabcabcabcabc",)),
]
GREEDY: dict[str, Any] = {"max_new_tokens": 40, "do_sample": False}
SAMPLED: dict[str, Any] = {"max_new_tokens": 40, "do_sample": True, "temperature": 0.9, "top_k": 9}


def findings(bench: Any, generate: Any, kwargs: dict[str, Any] = GREEDY) -> list[Finding]:
    return list(verify(bench.model, bench.tokenizer, generate, PROMPTS, kwargs, seed=1))


def accept_any_guess(monkeypatch: pytest.MonkeyPatch) -> None:
    """Break the engine's accept rule: where the pick was not guessed, walk to another guess."""
    right = TokenTree.child

    def child(self: TokenTree, node: int, token: int) -> int | None:
        found = right(self, node, token)
        return found if found is not None or node not in self.parents else self.parents.index(node)

    monkeypatch.setattr(TokenTree, "child", child)


@pytest.mark.parametrize("kwargs", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_the_engine_is_equal(bench: Any, kwargs: dict[str, Any]) -> None:
    engine = lookahead.wrap(bench.model, configs.suffix_config(8))
    found = findings(bench, engine.generate, kwargs)
    assert [(f.case, f.verdict.outcome) for f in found] == [
        ("a/1", "equal"),
        ("a/2", "equal"),
        ("b", "equal"),
    ]
    assert all(0 < f.noise.level < 1e-4 for f in found)


def test_a_planted_fault_in_the_accept_rule_is_a_bug(
    bench: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    accept_any_guess(monkeypatch)
    engine = lookahead.wrap(bench.model, configs.suffix_config(8))
    outcomes = [f.verdict.outcome for f in findings(bench, engine.generate)]
    assert outcomes == ["BUG"] * 3


def test_a_dropped_seed_is_a_bug(bench: Any) -> None:
    def generate(**kwargs: Any) -> torch.Tensor:
        torch.manual_seed(1000)
        return bench.model.generate(**kwargs)

    assert {f.verdict.outcome for f in findings(bench, generate, SAMPLED)} == {"BUG"}


def test_rounding_in_bf16_is_a_tie_and_not_a_bug(make_model: Any, bench: Any) -> None:
    """Plain decoding, but each token by one pass over everything: another width, other rounding."""
    ties = 0
    for seed in range(3):
        bench.model = make_model(seed, torch.bfloat16)
        outcomes = [f.verdict.outcome for f in findings(bench, without_cache(bench.model))]
        assert "BUG" not in outcomes
        ties += outcomes.count("rounding tie")
    assert ties > 0, "nothing diverged, so the test shows nothing"


def without_cache(model: LlamaForCausalLM) -> Any:
    def generate(**kwargs: Any) -> torch.Tensor:
        out: torch.Tensor = model.generate(**kwargs, use_cache=False)
        return out

    return generate


def test_a_prompt_that_does_not_fit_the_context_is_refused(bench: Any) -> None:
    kwargs = {**GREEDY, "max_new_tokens": 500}
    with pytest.raises(ValueError, match=r"prompt a/1 has 23 tokens.*context of 512"):
        findings(bench, bench.model.generate, kwargs)
