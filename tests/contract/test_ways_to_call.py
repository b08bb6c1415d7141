"""`custom_generate`, `stream` and `generate` are one loop."""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import pytest
import torch
from transformers import GenerationConfig

from lookahead import Config, wrap
from tests.contract.guesses import Script, every_length, scripted
from tests.contract.models import prompt, tiny
from tests.contract.oracle import accepted, assert_same, ran

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 40}
SAMPLED: dict[str, Any] = {
    "do_sample": True,
    "temperature": 0.9,
    "top_k": 20,
    "top_p": 0.9,
    "max_new_tokens": 40,
}


def test_custom_generate_hook_equals_plain_decoding() -> None:
    model, ids = tiny("Qwen3"), prompt()
    for arguments in (GREEDY, SAMPLED):
        plain = ran(model.generate, ids, **arguments)
        engine = scripted(model, Script(every_length, True, plain.ids.tolist()))
        torch.manual_seed(0)
        hooked = model.generate(ids, custom_generate=engine.custom_generate, **arguments)
        assert torch.equal(hooked, plain.ids)
        assert torch.equal(torch.get_rng_state(), plain.state)
        assert accepted(engine) > 10


def test_custom_generate_refuses_another_model() -> None:
    engine = wrap(tiny("Llama"), Config(remember_cost=False))
    with pytest.raises(ValueError, match="wraps another model"):
        tiny("GPT2").generate(
            prompt(), custom_generate=engine.custom_generate, max_new_tokens=2, do_sample=False
        )


@pytest.mark.parametrize("arguments", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_streamed_steps_join_to_the_plain_text(arguments: dict[str, Any]) -> None:
    model, ids = tiny("Llama"), prompt()
    plain = ran(model.generate, ids, **arguments)
    engine = scripted(model, Script(every_length, True, plain.ids.tolist()))
    torch.manual_seed(0)
    steps = list(engine.stream(ids, **arguments))
    assert [token for step in steps for token in step.tokens] == plain.ids[0, 6:].tolist()
    assert torch.equal(torch.get_rng_state(), plain.state)
    for step in steps:
        assert len(step.sources) == len(step.tokens)
        assert set(step.sources[:-1]) <= {"script"}  # the last token of a step may be the bonus
    assert sum(source == "script" for step in steps for source in step.sources) == accepted(engine)
    assert engine.stats.passes == len(steps) - 1


def test_a_stream_left_early_leaves_the_generator_after_its_tokens() -> None:
    model, ids = tiny("Llama"), prompt()
    plain = ran(model.generate, ids, **SAMPLED)
    engine = scripted(model, Script(every_length, False, plain.ids.tolist()))
    torch.manual_seed(0)
    taken: list[int] = []
    for step in engine.stream(ids, **SAMPLED):
        taken += step.tokens
        if len(taken) > 20:
            break
    state = torch.get_rng_state()
    assert taken == plain.ids[0, 6 : 6 + len(taken)].tolist()
    shorter = ran(model.generate, ids, **{**SAMPLED, "max_new_tokens": len(taken)})
    assert torch.equal(state, shorter.state)


@pytest.mark.filterwarnings("ignore:decoding plainly")
@pytest.mark.parametrize("sample", [False, True])
def test_custom_generate_hook_searches_beams_where_that_is_asked_for(sample: bool) -> None:
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    arguments: dict[str, Any] = {"max_new_tokens": 12, "num_beams": 3, "do_sample": sample}
    plain = ran(partial(model.generate, num_return_sequences=2), torch.cat([ids, ids]), **arguments)
    hook = partial(model.generate, num_return_sequences=2, custom_generate=engine.custom_generate)
    assert_same(ran(hook, torch.cat([ids, ids]), **arguments), plain)


def test_custom_generate_hook_refuses_what_it_cannot_call() -> None:
    model = tiny("Llama")
    engine = wrap(model, Config(remember_cost=False))
    with (
        pytest.raises(ValueError, match="leave out custom_generate"),
        pytest.warns(UserWarning, match="decoding plainly"),
    ):
        model.generate(
            prompt(),
            max_new_tokens=4,
            prompt_lookup_num_tokens=3,
            custom_generate=engine.custom_generate,
        )


def test_the_generation_config_may_be_the_second_argument() -> None:
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    config = GenerationConfig(max_new_tokens=9, do_sample=False, repetition_penalty=1.4)
    expected = model.generate(ids, config)
    assert engine.generate(ids, config).tolist() == expected.tolist()
    tokens = [token for step in engine.stream(ids, config) for token in step.tokens]
    assert tokens == expected[0, ids.shape[1] :].tolist()


def _first_two(model: Any, input_ids: torch.Tensor, **rest: Any) -> torch.Tensor:
    return input_ids[:, :2]


@pytest.mark.filterwarnings("ignore:decoding plainly")
def test_another_custom_generate_is_called() -> None:
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    seen = engine.generate(ids, custom_generate=_first_two, max_new_tokens=4)
    assert seen.tolist() == ids[:, :2].tolist()


@pytest.mark.filterwarnings("ignore:decoding plainly")
def test_a_plain_stream_left_early_ends_the_call_and_leaves_the_generator_after_its_tokens() -> (
    None
):
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    arguments: dict[str, Any] = {"do_sample": True, "use_cache": False}
    plain = ran(model.generate, ids, max_new_tokens=3, **arguments)
    threads = threading.active_count()
    torch.manual_seed(0)
    steps = engine.stream(ids, max_new_tokens=200, **arguments)
    tokens = [token for _ in range(3) for token in next(steps).tokens]
    steps.close()  # type: ignore[attr-defined]
    assert threading.active_count() == threads
    assert tokens == plain.ids[0, ids.shape[1] :].tolist()
    assert torch.equal(torch.get_rng_state(), plain.state)


@pytest.mark.filterwarnings("ignore:decoding plainly")
def test_a_stream_under_autocast() -> None:
    model, ids = tiny("Llama"), prompt()
    engine = wrap(model, Config(remember_cost=False))
    seen: list[Any] = []
    handle = model.lm_head.register_forward_hook(lambda module, given, out: seen.append(out.dtype))
    with torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in engine.stream(ids, max_new_tokens=3, do_sample=False):
            pass
    handle.remove()
    assert set(seen[-3:]) == {torch.bfloat16}
