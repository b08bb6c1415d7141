"""Generation ends where plain decoding ends, whatever was accepted in that pass.

Ids, streamer, scores, logits and cache are compared; guesses are right and reach past the end.
"""

from __future__ import annotations

import string
import time
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from torch import Tensor
from transformers import MaxTimeCriteria, PreTrainedTokenizerFast, StoppingCriteria

from lookahead import Config, lookahead_config, wrap
from tests.contract.guesses import DEPTH, Script, all_right, every_length, scripted, scripted_config
from tests.contract.models import VOCABULARY, build, continuation, prompt, tiny
from tests.contract.oracle import accepted, assert_same, check, ran

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
SAMPLED: dict[str, Any] = {"do_sample": True, "temperature": 0.8, "max_new_tokens": 24}
EVERYTHING = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}


def assert_same_end(model: Any, ids: Tensor, full: list[int], **arguments: Any) -> int:
    """Compare with guesses that follow the unstopped text ``full``. Returns tokens written."""
    plain = ran(model.generate, ids, **EVERYTHING, **arguments)
    engine = scripted(model, Script(all_right, False, [ids[0].tolist() + full]))
    out = ran(engine.generate, ids, **EVERYTHING, **arguments)
    assert_same(out, plain)
    written = plain.ids.shape[1] - ids.shape[1]
    assert len(out.out.scores) == len(out.out.logits) == written
    for name in ("scores", "logits"):
        rows, expected = torch.cat(getattr(out.out, name)), torch.cat(getattr(plain.out, name))
        torch.testing.assert_close(rows, expected, atol=1e-4, rtol=1e-4)
    assert out.out.cache.get_seq_length() == plain.out.cache.get_seq_length()
    if written > 3:
        assert accepted(engine) > 0
    return written


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
@pytest.mark.parametrize("offset", range(12))
def test_eos_at_every_offset(sample: bool, offset: int) -> None:
    model, ids = tiny("Qwen3"), prompt()
    arguments = SAMPLED if sample else GREEDY
    torch.manual_seed(0)
    full = continuation(model, ids, **arguments)
    written = assert_same_end(model, ids, full, eos_token_id=full[offset], **arguments)
    assert written == full.index(full[offset]) + 1


@pytest.mark.parametrize("accept", range(DEPTH + 1))
def test_eos_after_every_accepted_length(accept: int) -> None:
    """The EOS comes as an accepted guess, as the bonus token, and with guesses left below it."""
    model, ids = tiny("Llama"), prompt()
    full = continuation(model, ids, **GREEDY)
    engine = scripted(model, Script(lambda _: accept, True, [ids[0].tolist() + full]))
    for offset in range(1, 10):
        arguments = {**GREEDY, "eos_token_id": full[offset]}
        plain = ran(model.generate, ids, **arguments)
        assert_same(ran(engine.generate, ids, **arguments), plain)
        assert engine.stats.tokens == full.index(full[offset]) + 1
    assert (accepted(engine) > 0) == (accept > 0)


def test_the_first_of_several_eos_ids_ends() -> None:
    model, ids = tiny("Llama"), prompt()
    full = continuation(model, ids, **GREEDY)
    for first, second in ((3, 9), (12, 5), (7, 8)):
        assert_same_end(model, ids, full, eos_token_id=[full[first], full[second]], **GREEDY)


def test_eos_that_only_the_models_generation_config_knows() -> None:
    model, ids = build("Llama"), prompt()
    full = continuation(model, ids, **GREEDY)
    model.generation_config.eos_token_id = full[7]
    assert assert_same_end(model, ids, full, **GREEDY) == full.index(full[7]) + 1


def letter_tokenizer() -> PreTrainedTokenizerFast:
    """Letters and pairs of letters, no space between: stops begin and end inside tokens."""
    pairs = [(a, b) for a in "abcdefghi" for b in "vwxyz"]
    tokens = [*(a + b for a, b in pairs), *string.ascii_letters]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("width", [1, 2, 3])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_stop_strings_at_every_offset(width: int, sample: bool) -> None:
    model, ids, tokenizer = tiny("Llama"), prompt(), letter_tokenizer()
    arguments = SAMPLED if sample else GREEDY
    full = ran(model.generate, ids, **arguments).ids[0, 6:].tolist()
    pieces = tokenizer.convert_ids_to_tokens(full)
    assert len(tokenizer) == VOCABULARY
    script = Script(all_right, False, [ids[0].tolist() + full])
    engine = wrap(model, scripted_config(), tokenizer=tokenizer, sources=[script])
    ends = set()
    for offset in range(10):
        stop = "".join(pieces[offset : offset + width])
        plain = ran(model.generate, ids, stop_strings=stop, tokenizer=tokenizer, **arguments)
        assert_same(ran(engine.generate, ids, stop_strings=stop, **arguments), plain)
        ends.add(plain.ids.shape[1])
        inside = stop[1:-1] or stop  # begins and ends inside a token
        plain = ran(model.generate, ids, stop_strings=[inside], tokenizer=tokenizer, **arguments)
        assert_same(ran(engine.generate, ids, stop_strings=[inside], **arguments), plain)
    assert len(ends) > 5
    assert accepted(engine) > 0


def test_stop_strings_without_a_tokenizer_are_refused_in_one_sentence() -> None:
    engine = scripted(tiny("Llama"), Script())
    with pytest.raises(ValueError, match="stop_strings need a tokenizer: pass tokenizer="):
        engine.generate(prompt(), stop_strings="ab", **GREEDY)


@pytest.mark.parametrize("count", range(1, 6))
def test_never_more_than_max_new_tokens(count: int) -> None:
    model = tiny("Llama")
    ids = prompt(3).repeat(1, 5)
    full = continuation(model, ids, do_sample=False, max_new_tokens=20)
    script = Script(all_right, True, [ids[0].tolist() + full])
    engine = scripted(model, script)
    for sample in (False, True):
        arguments = {"do_sample": sample, "max_new_tokens": count}
        plain = ran(model.generate, ids, **arguments)
        out = ran(engine.generate, ids, **arguments)
        assert_same(out, plain)
        assert out.ids.shape[1] == ids.shape[1] + count
        by_length = {"do_sample": sample, "max_length": ids.shape[1] + count}
        assert_same(ran(engine.generate, ids, **by_length), plain)


class StopsAt(StoppingCriteria):
    """A user's criterion; keeps every prefix it was asked about."""

    def __init__(self, length: int) -> None:
        self.length, self.seen = length, list[list[int]]()

    def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
        self.seen.append(input_ids[0].tolist())
        return torch.tensor([input_ids.shape[1] >= self.length] * input_ids.shape[0])


@pytest.mark.parametrize("after", range(1, 14))
def test_a_users_stopping_criterion_cuts_where_it_cuts_plain_decoding(after: int) -> None:
    model, ids = tiny("Llama"), prompt()
    full = continuation(model, ids, **GREEDY)
    plain_stop, engine_stop = StopsAt(6 + after), StopsAt(6 + after)
    plain = ran(model.generate, ids, stopping_criteria=[plain_stop], **GREEDY)
    engine = scripted(model, Script(all_right, True, [ids[0].tolist() + full]))
    assert_same(ran(engine.generate, ids, stopping_criteria=[engine_stop], **GREEDY), plain)
    assert plain.ids.shape[1] == 6 + after
    assert engine_stop.seen == plain_stop.seen
    assert accepted(engine) >= after - 1 - engine.stats.passes


def test_a_criterion_that_answers_with_a_plain_bool() -> None:
    model, ids = tiny("Llama"), prompt()

    class Says(StoppingCriteria):
        def __call__(self, input_ids: Tensor, scores: Any, **kwargs: Any) -> Any:
            return torch.tensor(input_ids.shape[1] == 15)

    plain = ran(model.generate, ids, stopping_criteria=[Says()], **GREEDY)
    assert plain.ids.shape[1] == 15
    engine = scripted(model, Script(all_right, False, [ids[0].tolist() + [0] * 30]))
    assert_same(ran(engine.generate, ids, stopping_criteria=[Says()], **GREEDY), plain)


def test_max_time_ends_generation() -> None:
    model, ids = tiny("Llama"), prompt()
    engine = scripted(model, Script())
    out = engine.generate(ids, do_sample=False, max_new_tokens=200, max_time=0.0)
    assert out.shape[1] == 7  # the first token is written before time is looked at

    past = MaxTimeCriteria(1.0, initial_timestamp=time.time() - 2)
    out = engine.generate(ids, do_sample=False, max_new_tokens=200, stopping_criteria=[past])
    assert out.shape[1] == 7


def test_eos_inside_the_prompt_does_not_end_generation() -> None:
    """Several turns, each closed with EOS."""
    model = tiny("Llama")
    ids = prompt(12)
    for eos in (3, 7, 11):
        ids[0, eos] = 5
    for sample in (False, True):
        arguments = {**(SAMPLED if sample else GREEDY), "eos_token_id": 5}
        engine = check(model, ids, every_length, decoys=True, **arguments)
        assert engine.stats.tokens > 1


@pytest.mark.parametrize("pad", [0, None])
def test_no_eos_configured(pad: int | None) -> None:
    model = build("GPT2", pad_token_id=None)
    model.generation_config.pad_token_id = pad
    engine = check(model, prompt(), every_length, decoys=True, **GREEDY)
    assert accepted(engine) > 5


@pytest.mark.parametrize("kind", ["GPT2", "OPT", "Llama"])
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_guesses_never_pass_the_context_limit(kind: str, sample: bool) -> None:
    """Learned positions fail past the limit; text is generated exactly up to it."""
    length = "n_positions" if kind == "GPT2" else "max_position_embeddings"
    model = build(kind, **{length: 32})
    for prompt_length in (5, 20, 29, 31):
        arguments: dict[str, Any] = {"do_sample": sample, "max_length": 32}
        engine = check(model, prompt(prompt_length), all_right, **arguments)
        assert engine.stats.tokens == 32 - prompt_length


@pytest.mark.parametrize("kind", ["GPT2", "OPT", "Llama"])
@pytest.mark.parametrize("left", [0, 1, 2, 3, 5])
def test_guesses_never_pass_the_context_limit_where_only_an_eos_ends_before_it(
    kind: str, left: int
) -> None:
    """More tokens are asked for than there are positions; guesses would have gone on past it."""
    length = "n_positions" if kind == "GPT2" else "max_position_embeddings"
    model = build(kind, **{length: 32})
    for prompt_length in (6, 15):
        ids = prompt(prompt_length)
        full = continuation(model, ids, do_sample=False, max_length=33)
        eos = full[len(full) - 1 - left]
        script = Script(all_right, False, [ids[0].tolist() + full])
        engine = scripted(model, script)
        arguments = {"do_sample": False, "max_length": 60, "eos_token_id": eos}
        plain = ran(model.generate, ids, **arguments)
        assert_same(ran(engine.generate, ids, **arguments), plain)
        assert engine.stats.tokens == full.index(eos) + 1


def test_the_window_never_passes_the_context_limit() -> None:
    for kind, length in (("GPT2", "n_positions"), ("OPT", "max_position_embeddings")):
        model = build(kind, **{length: 32})
        engine = wrap(model, lookahead_config(4, 5, 5, remember_cost=False))
        plain = ran(model.generate, prompt(), do_sample=False, max_length=32)
        assert_same(ran(engine.generate, prompt(), do_sample=False, max_length=32), plain)
        assert engine.stats.proposed["jacobi"] > 0


@pytest.mark.parametrize("kind", ["GPT2", "OPT", "Llama"])
def test_measuring_the_cost_of_passes_stays_inside_the_context(kind: str) -> None:
    length = "n_positions" if kind == "GPT2" else "max_position_embeddings"
    model, ids = build(kind, **{length: 64}), prompt(50)
    engine = wrap(model, Config(remember_cost=False))
    for sample in (False, True):
        arguments: dict[str, Any] = {"max_new_tokens": 12, "do_sample": sample}
        assert_same(ran(engine.generate, ids, **arguments), ran(model.generate, ids, **arguments))


@pytest.mark.parametrize("limit", [{"max_length": int(1e30)}, {"max_new_tokens": 10**12}])
def test_a_length_that_only_an_end_token_keeps_finite(limit: dict[str, int]) -> None:
    model, ids = tiny("Llama"), prompt()
    eos = continuation(model, ids, max_new_tokens=30, do_sample=False)[-1]
    arguments: dict[str, Any] = {**limit, "eos_token_id": eos, "do_sample": False}
    engine = wrap(model, Config(remember_cost=False))
    assert_same(ran(engine.generate, ids, **arguments), ran(model.generate, ids, **arguments))


def test_text_longer_than_what_was_set_aside_for_it() -> None:
    model, ids = build("Llama", max_position_embeddings=4096), prompt()
    ids = torch.cat([ids, prompt(6, 2)])
    engine = wrap(model, Config(remember_cost=False))
    arguments: dict[str, Any] = {"max_new_tokens": 1100, "do_sample": True}
    assert_same(ran(engine.generate, ids, **arguments), ran(model.generate, ids, **arguments))


def test_stop_strings_of_the_models_own_configuration_do_not_hinder_the_trial() -> None:
    model = build("Llama")
    model.generation_config.stop_strings = ["stop"]
    assert wrap(model, Config(remember_cost=False)).capability.mode == "tree"
