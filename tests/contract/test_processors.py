"""Processors see what plain decoding shows them, once per emitted token, and count in full."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LogitsProcessor, LogitsProcessorList

from lookahead import Config, wrap
from tests.contract.guesses import DEPTH, Script, all_right, all_wrong, every_length, scripted
from tests.contract.models import TYPES, VOCABULARY, build, continuation, prompt, tiny
from tests.contract.oracle import Ran, accepted, assert_same, check, ran

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 30}
SAMPLED: dict[str, Any] = {"do_sample": True, "max_new_tokens": 30}

OPTIONS: dict[str, dict[str, Any]] = {
    "repetition_penalty": {"repetition_penalty": 1.8},
    "no_repeat_ngram_size": {"no_repeat_ngram_size": 2},
    "bad_words_ids": {"bad_words_ids": [[7], [26, 63], [63], [5, 9, 11]]},
    "min_new_tokens": {"min_new_tokens": 12, "eos_token_id": list(range(2, 30))},
    "suppress_tokens": {"suppress_tokens": [26, 63, 13]},
    "begin_suppress_tokens": {"begin_suppress_tokens": list(range(2, 60))},
    "forced_eos_token_id": {"forced_eos_token_id": 9},
    "sequence_bias": {"sequence_bias": [[[26], -5.0], [[63, 13], 8.0]]},
    "length_penalty_by_decay": {
        "exponential_decay_length_penalty": (5, 1.3),
        "eos_token_id": [4, 40],
    },
}
WARPERS: dict[str, dict[str, Any]] = {
    "temperature": {"temperature": 0.6},
    "top_k": {"top_k": 5},
    "top_p": {"top_p": 0.7},
    "min_p": {"min_p": 0.1},
    "typical_p": {"typical_p": 0.6},
    "epsilon": {"epsilon_cutoff": 0.02},
    "eta": {"eta_cutoff": 0.03},
    "all": {"temperature": 1.4, "top_k": 30, "top_p": 0.95, "min_p": 0.02, "typical_p": 0.9},
}


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("option", OPTIONS)
def test_penalties_and_bans_count_in_full_on_guessed_tokens(option: str, sample: bool) -> None:
    model, ids = tiny("Llama"), prompt()
    arguments = {**(SAMPLED if sample else GREEDY), **OPTIONS[option]}
    engine = check(model, ids, every_length, decoys=True, **arguments)
    assert accepted(engine) > 5 or engine.stats.tokens < 10
    bare = ran(model.generate, ids, **(SAMPLED if sample else GREEDY))
    with_option = ran(model.generate, ids, **arguments)
    assert bare.ids.tolist() != with_option.ids.tolist()  # the option has an effect here


@pytest.mark.parametrize("warper", WARPERS)
def test_warpers_count_in_full_on_guessed_tokens(warper: str) -> None:
    for seed in range(2):
        arguments = {**SAMPLED, **WARPERS[warper], "seed": seed}
        engine = check(tiny("Qwen2"), prompt(), every_length, decoys=True, **arguments)
        assert accepted(engine) > 10


class Logs(LogitsProcessor):
    """Keeps the prefixes and scores it is shown."""

    def __init__(self) -> None:
        self.prefixes: list[list[list[int]]] = []
        self.scores: list[Tensor] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        assert scores.dtype == torch.float32
        self.prefixes.append(input_ids.tolist())
        self.scores.append(scores.clone())
        return scores


@pytest.mark.parametrize("accept", range(DEPTH + 1))
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_the_nth_call_sees_the_prompt_and_the_first_n_minus_1_tokens(
    accept: int, sample: bool
) -> None:
    model, ids = tiny("Llama"), prompt()
    arguments = SAMPLED if sample else GREEDY
    plain_log, log = Logs(), Logs()
    plain = ran(model.generate, ids, logits_processor=[plain_log], **arguments)
    engine = scripted(model, Script(lambda _: accept, True, plain.ids.tolist()))
    assert_same(ran(engine.generate, ids, logits_processor=[log], **arguments), plain)
    text = plain.ids[0].tolist()
    assert log.prefixes == [[text[: 6 + n]] for n in range(30)]
    assert log.prefixes == plain_log.prefixes
    torch.testing.assert_close(
        torch.cat(log.scores), torch.cat(plain_log.scores), atol=1e-4, rtol=1e-4
    )
    assert (accepted(engine) > 0) == (accept > 0)


class Stateful(LogitsProcessor):
    """Bans one token more at each call, and every third call the likeliest one."""

    def __init__(self) -> None:
        self.calls = 0
        self.banned: list[int] = []

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        self.calls += 1
        if self.calls % 3 == 0:
            self.banned.append(int(scores.argmax()))
        self.banned.append((self.calls * 31) % VOCABULARY)
        scores[:, self.banned[-20:]] = float("-inf")  # in place, as many do
        return scores


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_stateful_processors_are_called_on_the_walked_path_only(kind: str, sample: bool) -> None:
    model, ids = tiny(kind), prompt()
    arguments = SAMPLED if sample else GREEDY
    first, second = Stateful(), Stateful()
    plain = ran(model.generate, ids, logits_processor=[first], **arguments)
    engine = scripted(model, Script(every_length, True, plain.ids.tolist()))
    assert_same(ran(engine.generate, ids, logits_processor=[second], **arguments), plain)
    assert (second.calls, second.banned) == (first.calls, first.banned)
    assert accepted(engine) > 5


class Draws(LogitsProcessor):
    """Adds noise of its own, drawn from the generator that sampling uses."""

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores + torch.rand_like(scores)


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_processors_that_draw_random_numbers(sample: bool) -> None:
    model, ids = tiny("Llama"), prompt()
    arguments = {**(SAMPLED if sample else GREEDY), "logits_processor": [Draws()]}
    plain = ran(model.generate, ids, **arguments)
    for plan in (all_right, every_length, all_wrong):
        engine = scripted(model, Script(plan, True, plain.ids.tolist()))
        assert_same(ran(engine.generate, ids, **arguments), plain)
        assert (accepted(engine) > 5) == (plan is not all_wrong)


def _allowed(batch: int, prefix: Tensor) -> list[int]:
    """Depends on every token of the prefix."""
    total = sum((i + 1) * token for i, token in enumerate(prefix.tolist()))
    return [(total + 7 * i) % VOCABULARY for i in range(12)]


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_prefix_allowed_tokens_fn_is_asked_about_the_true_prefix(sample: bool) -> None:
    model, ids = tiny("Llama"), prompt()
    arguments = {**(SAMPLED if sample else GREEDY), "prefix_allowed_tokens_fn": _allowed}
    engine = check(model, ids, every_length, decoys=True, **arguments)
    assert accepted(engine) > 10
    text = ran(engine.generate, ids, **arguments).ids[0]
    for end in range(6, len(text)):
        assert int(text[end]) in _allowed(0, text[:end])


def test_penalties_that_live_only_in_the_models_generation_config() -> None:
    model, ids = build("Llama"), prompt()
    bare = continuation(model, ids, **GREEDY)
    model.generation_config.repetition_penalty = 1.8
    model.generation_config.no_repeat_ngram_size = 2
    engine = check(model, ids, every_length, decoys=True, **GREEDY)
    assert accepted(engine) > 5
    assert continuation(model, ids, **GREEDY) != bare


def test_sampling_that_only_the_models_generation_config_asks_for() -> None:
    model, ids = build("Llama"), prompt()
    model.generation_config.do_sample = True
    model.generation_config.temperature = 0.7
    model.generation_config.top_k = 7
    engine = check(model, ids, every_length, decoys=True, max_new_tokens=30)
    assert accepted(engine) > 5


def _rows(out: Any, name: str) -> Tensor:
    return torch.cat(getattr(out, name))


@pytest.mark.parametrize("decoys", [False, True], ids=["chain", "decoys"])
@pytest.mark.parametrize(
    "arguments",
    [GREEDY, {**GREEDY, "repetition_penalty": 1.5}, {**SAMPLED, "top_k": 9}],
    ids=["greedy", "penalty", "sampled"],
)
@pytest.mark.parametrize("kind", ["Llama", "OPT"])
def test_scores_and_logits_are_the_rows_of_plain_decoding(
    kind: str, arguments: dict[str, Any], decoys: bool
) -> None:
    """Also where the accepted branch is not the first."""
    model, ids = tiny(kind), prompt()
    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    plain = ran(model.generate, ids, **asked, **arguments)
    engine = scripted(model, Script(every_length, decoys, plain.ids.tolist()))
    found = ran(engine.generate, ids, **asked, **arguments)
    assert_same(found, plain)
    assert accepted(engine) > 10
    assert type(found.out) is type(plain.out)
    for name in ("scores", "logits"):
        assert len(getattr(found.out, name)) == 30
        rows, expected = _rows(found.out, name), _rows(plain.out, name)
        assert rows.dtype == expected.dtype
        assert torch.equal(rows.isinf(), expected.isinf())
        torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("asked", ["output_scores", "output_logits", None])
def test_what_was_not_asked_for_is_none(asked: str | None) -> None:
    model, ids = tiny("Llama"), prompt()
    arguments = {**GREEDY, "return_dict_in_generate": True, **({asked: True} if asked else {})}
    plain = ran(model.generate, ids, **arguments)
    engine = scripted(model, Script(every_length, False, plain.ids.tolist()))
    found = ran(engine.generate, ids, **arguments)
    assert_same(found, plain)
    for name in ("scores", "logits", "attentions", "hidden_states"):
        assert (getattr(found.out, name) is None) == (getattr(plain.out, name) is None)


def test_a_criterion_is_shown_the_scores_so_far() -> None:
    model, ids = tiny("Llama"), prompt()

    def seen_by(generate: Callable[..., Any]) -> tuple[Ran, list[int]]:
        counts: list[int] = []

        class Looks:
            def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Tensor:
                counts.append(-1 if scores is None else len(scores))
                return torch.tensor([False])

        asked = {"return_dict_in_generate": True, "output_scores": True}
        return ran(generate, ids, stopping_criteria=[Looks()], **asked, **GREEDY), counts

    plain, expected = seen_by(model.generate)
    engine = scripted(model, Script(every_length, True, plain.ids.tolist()))
    found, counts = seen_by(engine.generate)
    assert_same(found, plain)
    assert counts == expected == list(range(1, 31))


@pytest.mark.parametrize("sample", [False, True])
def test_invalid_values_are_removed_where_that_is_asked_for(sample: bool) -> None:
    model, ids = build("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    with torch.no_grad():
        model.lm_head.weight[5] = float("nan")
    arguments: dict[str, Any] = {
        "max_new_tokens": 12, "do_sample": sample, "remove_invalid_values": True,
    }  # fmt: skip
    assert_same(ran(engine.generate, ids, **arguments), ran(model.generate, ids, **arguments))


class _BanAll(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return torch.full_like(scores, float("-inf"))


def test_scores_that_are_no_distribution_are_refused_as_by_plain_decoding() -> None:
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    arguments: dict[str, Any] = {"max_new_tokens": 4, "do_sample": True}
    with pytest.raises(RuntimeError, match="probability tensor"):
        model.generate(ids, logits_processor=LogitsProcessorList([_BanAll()]), **arguments)
    with pytest.raises(ValueError, match="no token can be sampled"):
        engine.generate(ids, logits_processor=LogitsProcessorList([_BanAll()]), **arguments)


class _Cut(LogitsProcessor):
    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores[:, :60]


class _Cast(LogitsProcessor):
    def __init__(self, dtype: torch.dtype) -> None:
        self._dtype = dtype

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        return scores.to(self._dtype)


@pytest.mark.parametrize(
    "processor", [_Cut(), _Cast(torch.float64), _Cast(torch.float16), _Cast(torch.bfloat16)]
)
@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("rows", [1, 2])
def test_processors_may_change_width_and_dtype_of_the_scores(
    processor: LogitsProcessor, sample: bool, rows: int
) -> None:
    model, ids = tiny("Llama"), torch.cat([prompt(6, seed) for seed in range(rows)])
    engine = wrap(model, Config(remember_cost=False))
    arguments: dict[str, Any] = {
        "max_new_tokens": 60,
        "do_sample": sample,
        "logits_processor": LogitsProcessorList([processor]),
    }
    assert_same(ran(engine.generate, ids, **arguments), ran(model.generate, ids, **arguments))
