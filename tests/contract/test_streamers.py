"""A streamer is told what plain decoding tells it: the prompt, each step once, the end."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from transformers import DynamicCache, TextIteratorStreamer

from lookahead import Config, wrap
from tests.contract.guesses import Script, all_right, every_length, scripted
from tests.contract.models import CACHE, VOCABULARY, build, prompt, tiny
from tests.contract.oracle import Recorder, accepted
from tests.contract.test_ending import letter_tokenizer

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 15, "max_new_tokens": 24}


def told(generate: Any, rows: int, **arguments: Any) -> tuple[Any, list[Any]]:
    streamer = Recorder()
    ids = torch.cat([prompt(5, seed) for seed in range(rows)])
    torch.manual_seed(0)
    out = generate(ids, attention_mask=torch.ones_like(ids), streamer=streamer, **arguments)
    return out, streamer.calls


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_the_same_calls_as_in_plain_decoding(rows: int, sample: bool) -> None:
    model, arguments = tiny("Llama"), SAMPLED if sample else GREEDY
    out, expected = told(model.generate, rows, **arguments)
    engine = scripted(model, Script(every_length, True, out.tolist()))
    _, calls = told(engine.generate, rows, **arguments)
    assert calls == expected
    assert len(calls) == 1 + 24 + 1
    assert accepted(engine) > (15 if rows == 1 else 3)


@pytest.mark.parametrize("rows", [1, 3])
def test_nothing_is_streamed_after_the_end(rows: int) -> None:
    model = tiny("Llama")
    out, _ = told(model.generate, rows, **GREEDY)
    engine = scripted(model, Script(all_right, False, out.tolist()))
    eos = out[:, 5 + 9].tolist()
    _, expected = told(model.generate, rows, eos_token_id=eos, **GREEDY)
    assert told(engine.generate, rows, eos_token_id=eos, **GREEDY)[1] == expected


@pytest.mark.filterwarnings("ignore:decoding plainly")
@pytest.mark.parametrize("rows", [1, 2])
def test_calls_that_are_decoded_plainly_show_the_prompt_once(rows: int) -> None:
    """Whether that is known before transformers has prepared the call or only afterwards."""
    model = tiny("Llama")
    engine = wrap(model, Config(remember_cost=False))
    hidden = {**GREEDY, "output_hidden_states": True, "return_dict_in_generate": True}
    assert told(engine.generate, rows, **hidden)[1] == told(model.generate, rows, **hidden)[1]
    model = build("Bloom", n_head=4, n_layer=2, hidden_size=32)
    engine = wrap(model, Config(remember_cost=False))
    expected = told(model.generate, rows, **GREEDY)[1]
    assert told(engine.generate, rows, **GREEDY)[1] == expected


def test_steps_and_streamer_of_one_call_agree() -> None:
    model, ids, streamer = tiny("Llama"), prompt(), Recorder()
    engine = scripted(model, Script(every_length, True, model.generate(ids, **GREEDY).tolist()))
    tokens = [t for step in engine.stream(ids, streamer=streamer, **GREEDY) for t in step.tokens]
    assert [call[2] for call in streamer.calls[1:-1]] == [[token] for token in tokens]
    assert streamer.calls[0][2] == ids.tolist() and streamer.calls[-1] == "end"


def test_text_streamers_join_to_the_decoded_text() -> None:
    model, ids, tokenizer = tiny("Llama"), prompt(), letter_tokenizer()
    assert len(tokenizer) == VOCABULARY
    plain = model.generate(ids, **GREEDY)
    engine = scripted(model, Script(every_length, False, plain.tolist()))
    streamer = TextIteratorStreamer(tokenizer, skip_prompt=True)
    engine.generate(ids, streamer=streamer, **GREEDY)
    assert "".join(streamer) == tokenizer.decode(plain[0, 6:])


def test_a_cache_passed_to_stream_is_filled_as_by_generate() -> None:
    model, ids = tiny("Llama"), prompt()
    theirs, ours = DynamicCache(config=model.config), DynamicCache(config=model.config)
    plain = model.generate(ids, **{CACHE: theirs}, **GREEDY)
    engine = scripted(model, Script(every_length, True, plain.tolist()))
    list(engine.stream(ids, **{CACHE: ours}, **GREEDY))
    assert ours.get_seq_length() == theirs.get_seq_length()
    for one, other in zip(ours.layers, theirs.layers, strict=True):
        torch.testing.assert_close(one.keys, other.keys, atol=1e-4, rtol=1e-4)


def test_processors_of_a_batch_may_view_the_prefix() -> None:
    model = tiny("Llama")

    def flat(input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        scores[:, int(input_ids.view(-1).sum()) % VOCABULARY] = 9.0
        return scores

    ids = torch.cat([prompt(5, seed) for seed in range(3)])
    arguments = {**GREEDY, "logits_processor": [flat]}
    plain = model.generate(ids, **arguments)
    engine = scripted(model, Script(every_length, True, plain.tolist()))
    assert torch.equal(engine.generate(ids, **arguments), plain)
