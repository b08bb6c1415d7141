"""`custom_generate`, `stream` and `generate` are one loop."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from lookahead import Config, wrap
from tests.contract.guesses import Script, every_length, scripted
from tests.contract.models import prompt, tiny
from tests.contract.oracle import accepted, ran

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
