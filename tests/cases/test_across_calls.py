"""State that outlives a call: the same text the second time, after errors, and no growth."""

from __future__ import annotations

import copy
import gc
import time
import tracemalloc
from typing import Any

import pytest
import torch
from transformers import LogitsProcessor, LogitsProcessorList, StoppingCriteria
from transformers.generation import StoppingCriteriaList
from transformers.generation.streamers import BaseStreamer

import lookahead
from lookahead.bench.tiny_models import tiny_model
from lookahead.config import Config, JacobiConfig, PlannerConfig
from tests.cases.comparing import Pair, padded, prompt, shared_model, shared_pair, single


@pytest.mark.parametrize("sample", [False, True])
def test_the_same_call_gives_the_same_text_five_times(sample: bool) -> None:
    pair = Pair(shared_model("llama"))
    for _ in range(5):
        pair.assert_same(**single(6), max_new_tokens=20, do_sample=sample, mode="tree")


def test_other_calls_in_between_change_nothing() -> None:
    pair = Pair(shared_model("gemma3_text"))
    calls: list[dict[str, Any]] = [
        {**single(6), "do_sample": False},
        {**single(9, seed=5), "do_sample": True},
        {**padded(3, 8), "do_sample": True},
        {**single(6), "do_sample": True, "repetition_penalty": 1.3},
    ]
    for index in (0, 1, 0, 2, 3, 1, 0, 2):
        pair.assert_same(**calls[index], max_new_tokens=16)


class _Interrupt(Exception):
    """Raised by a user's own code in the middle of a call."""


class _Failing(LogitsProcessor, BaseStreamer):
    """Raises at its n-th use, as processor or as streamer."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self._left, self._error = at, error

    def _use(self) -> None:
        self._left -= 1
        if self._left == 0:
            raise self._error

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self._use()
        return scores

    def put(self, value: Any) -> None:
        self._use()

    def end(self) -> None:
        """Nothing is held back."""


class _FailingCriterion(StoppingCriteria):
    """Raises at its n-th use."""

    def __init__(self, at: int, error: type[BaseException]) -> None:
        self._failing = _Failing(at, error)

    def __call__(self, input_ids: Any, scores: Any, **kwargs: Any) -> Any:
        self._failing(input_ids, scores)
        return torch.zeros(len(input_ids), dtype=torch.bool)


@pytest.mark.parametrize("error", [_Interrupt, KeyboardInterrupt])
@pytest.mark.parametrize("where", ["processor", "criterion", "streamer"])
@pytest.mark.parametrize("at", [1, 5, 9])
def test_an_interruption_leaves_everything_usable(
    where: str, error: type[BaseException], at: int
) -> None:
    pair = shared_pair("llama")
    arguments = {**single(6), "max_new_tokens": 16, "do_sample": True}
    pair.assert_same(**arguments)

    def hooks() -> dict[str, Any]:
        if where == "processor":
            return {"logits_processor": LogitsProcessorList([_Failing(at, error)])}
        if where == "criterion":
            return {"stopping_criteria": StoppingCriteriaList([_FailingCriterion(at, error)])}
        return {"streamer": _Failing(at, error)}

    states = []
    for run in (pair.plainly, pair.engines):
        with pytest.raises(error):
            run(**arguments, **hooks())
        states.append(torch.get_rng_state())
    # Plain decoding has drawn for each token that it picked, the engine too.
    assert torch.equal(states[0], states[1])
    pair.assert_same(**arguments, mode="tree")
    pair.assert_same(**padded(4, 6), max_new_tokens=8, do_sample=False, mode="tree")


def test_a_callers_cache_survives_an_interruption() -> None:
    pair = shared_pair("llama")
    first = pair.engines(
        **single(6), max_new_tokens=8, do_sample=False, return_dict_in_generate=True
    )
    cache, text = first.cache, torch.cat([first.sequences, prompt(3, seed=9)], 1)
    turn = {"input_ids": text, "attention_mask": torch.ones_like(text), "max_new_tokens": 8}
    spoiled = copy.deepcopy(cache)
    with pytest.raises(_Interrupt):
        pair.engines(**turn, cache=spoiled, streamer=_Failing(5, _Interrupt))
    held = spoiled.get_seq_length()
    assert cache.get_seq_length() <= held <= text.shape[1] + 8
    for layer in spoiled.layers:
        assert layer.keys.shape[2] == held
    expected = pair.plainly(**turn, do_sample=False)
    if held > cache.get_seq_length():
        spoiled.crop(cache.get_seq_length() - held)
    seen = pair.engines(**turn, do_sample=False, cache=spoiled)
    assert seen.tolist() == expected.tolist()


def test_a_stream_that_is_left_early_leaves_the_engine_usable() -> None:
    pair = shared_pair("llama")
    for step in pair.engine.stream(**single(6), max_new_tokens=20, do_sample=True):
        assert step.tokens
        break
    pair.assert_same(**single(6), max_new_tokens=20, do_sample=True, mode="tree")


@pytest.mark.parametrize("ngram", [2, 3, 4, 5, 6])
@pytest.mark.parametrize("window", [1, 2, 5, 8])
def test_every_shape_of_the_window_gives_the_same_text(ngram: int, window: int) -> None:
    model = shared_model("llama")
    engine = _window_engine(model, ngram, window)
    for sample in (False, True):
        texts = []
        for run in (model.generate, engine.generate):
            torch.manual_seed(5)
            texts.append(run(**single(6), max_new_tokens=20, do_sample=sample).tolist())
        assert texts[0] == texts[1]
    assert max(engine.stats.widths) > (ngram - 1) * window // 2


def _window_engine(model: Any, ngram: int, window: int) -> lookahead.Engine:
    jacobi = JacobiConfig(window=window, ngram=ngram, always=True)
    planner = PlannerConfig(max_nodes=16, fixed_nodes=8)
    return lookahead.wrap(model, Config(jacobi=jacobi, planner=planner, remember_cost=False))


def _small_memory() -> Config:
    config = Config(planner=PlannerConfig(max_nodes=16, fixed_nodes=8), remember_cost=False)
    return Config.from_dict(
        {
            "planner": config.planner,
            "remember_cost": False,
            "ngram_pool": {"capacity": 40},
            "recycling": {"capacity": 80},
        }
    )


def _tensors() -> int:
    gc.collect()
    return sum(type(thing) is torch.Tensor for thing in gc.get_objects())


@pytest.mark.parametrize("calls", [60, pytest.param(500, marks=pytest.mark.slow)])
def test_many_unrelated_calls_do_not_grow_memory(calls: int) -> None:
    engine = lookahead.wrap(tiny_model("llama", num_hidden_layers=1), _small_memory())

    def run(first: int, count: int) -> None:
        for index in range(first, first + count):
            sample = bool(index % 2)
            engine.generate(**single(5, seed=index), max_new_tokens=6, do_sample=sample)

    run(0, 40)  # bounded stores fill up
    tracemalloc.start()
    run(40, 40)
    tensors, (before, _) = _tensors(), tracemalloc.get_traced_memory()
    run(80, calls)
    assert _tensors() <= tensors + 4
    after, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert after - before < 110_000 + 100 * calls  # far less than the text of a call and its counts
    assert len(engine.pool) <= 40 * 7


def test_proposals_for_a_long_prompt_cost_no_more_than_for_a_short_one() -> None:
    short, long = (_step_seconds(length) for length in (500, 50_000))
    assert long < 5 * short + 2e-3


def _step_seconds(length: int) -> float:
    """Median seconds to plan a step after a prompt of this length, model left out."""
    from lookahead.cost import PassCost
    from lookahead.drafting import Drafter
    from lookahead.memory import Memory
    from lookahead.sources import Observation

    draw = torch.Generator().manual_seed(0)
    ids = torch.randint(3, 400, (length,), generator=draw).tolist()
    memory = Memory(Config(planner=PlannerConfig(fixed_nodes=16), remember_cost=False))
    drafter = Drafter(memory, ids, sampling=False, chain=False)
    table = PassCost().table(length, 65)
    seconds = []
    for token in ids[:60]:
        begin = time.perf_counter()
        plan = drafter.draft(token, table, 64, 32)
        nodes = len(plan.tree)
        drafter.learn(plan, Observation(plan.tree, [token] * nodes, [0], [token]))
        seconds.append(time.perf_counter() - begin)
    return sorted(seconds)[len(seconds) // 2]


@pytest.mark.slow
def test_a_prompt_of_fifty_thousand_tokens_is_decoded_exactly() -> None:
    model = tiny_model("llama", max_position_embeddings=51_000, num_hidden_layers=1)
    engine = lookahead.wrap(model, Config(remember_cost=False))
    ids = torch.randint(3, 100, (1, 50_000), generator=torch.Generator().manual_seed(1))
    arguments: dict[str, Any] = {"attention_mask": torch.ones_like(ids), "do_sample": False}
    arguments["max_new_tokens"] = 24
    expected = model.generate(ids, **arguments)
    seen = engine.generate(ids, **arguments)
    assert seen[0, -24:].tolist() == expected[0, -24:].tolist()
    assert engine.stats.seconds_planning < 0.05 * engine.stats.passes
