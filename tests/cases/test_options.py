"""Options of ``generate``: honoured, or handed to plain decoding with one warning, or refused."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from torch import nn
from transformers import DynamicCache, GenerationConfig, LogitsProcessorList, StaticCache

import lookahead
from tests.cases.comparing import Pair, padded, prompt, shared_model, shared_pair, single


@contextmanager
def handed_over(reason: str) -> Iterator[None]:
    """Expects exactly one warning, of plain decoding and its reason."""
    with warnings.catch_warnings(record=True) as seen:
        warnings.simplefilter("always")
        yield
    ours = [w for w in seen if "decoding plainly" in str(w.message)]
    assert len(ours) == 1, [str(w.message) for w in seen]
    assert reason in str(ours[0].message)


HANDED_OVER: dict[str, dict[str, Any]] = {
    "beam search": {"num_beams": 3},
    "use_cache=False": {"use_cache": False},
    "attentions": {"output_attentions": True, "return_dict_in_generate": True},
    "hidden states": {"output_hidden_states": True, "return_dict_in_generate": True},
    "guidance": {"guidance_scale": 1.5},
}


@pytest.mark.parametrize("reason", HANDED_OVER)
def test_what_is_another_way_of_decoding_is_handed_over_with_one_warning(reason: str) -> None:
    model = tiny_eager() if reason == "attentions" else shared_model("llama")
    pair = Pair(model)
    arguments = {**single(6), "max_new_tokens": 8, "do_sample": False, **HANDED_OVER[reason]}
    expected = pair.plainly(**arguments)
    with handed_over(reason):
        seen = pair.engines(**arguments)
        again = pair.engines(**arguments)
    for out in (seen, again):
        assert ids_of(out).tolist() == ids_of(expected).tolist()
    if reason == "hidden states":
        assert len(seen.hidden_states) == 8
    if reason == "attentions":
        assert len(seen.attentions) == 8


def tiny_eager() -> Any:
    """The tiny Llama with attention that returns its weights."""
    model = copy.deepcopy(shared_model("llama"))
    model.set_attn_implementation("eager")
    return model


def ids_of(out: Any) -> torch.Tensor:
    """The sequences of either kind of result."""
    ids: torch.Tensor = out if isinstance(out, torch.Tensor) else out.sequences
    return ids


def test_inputs_embeds_are_handed_over() -> None:
    model = shared_model("llama")
    engine = lookahead.wrap(model)
    embeds = model.get_input_embeddings()(prompt(6))
    arguments = {"inputs_embeds": embeds, "max_new_tokens": 8, "do_sample": False}
    arguments["attention_mask"] = torch.ones(1, 6, dtype=torch.int64)
    with handed_over("inputs_embeds"):
        seen = engine.generate(**arguments)
    assert seen.tolist() == model.generate(**arguments).tolist()


def test_an_assistant_model_is_handed_over() -> None:
    model = shared_model("llama")
    engine = lookahead.wrap(model)
    arguments = {**single(6), "max_new_tokens": 8, "do_sample": False}
    with handed_over("assisted generation"):
        seen = engine.generate(**arguments, assistant_model=copy.deepcopy(model))
    assert seen.tolist() == model.generate(**arguments).tolist()


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("kind", ["static", "dynamic"])
@pytest.mark.parametrize("model_type", ["llama", "gemma3_text"])
def test_cache_implementations_give_the_same_text(model_type: str, kind: str, sample: bool) -> None:
    pair = shared_pair(model_type)
    stats = pair.assert_same(
        **single(6), max_new_tokens=24, do_sample=sample, cache_implementation=kind, mode="tree"
    )
    assert sum(stats.accepted.values()) > 8


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "mistral"])
def test_a_returned_cache_serves_the_next_turn(model_type: str) -> None:
    pair = shared_pair(model_type)
    turns: list[list[int]] = []
    for run in (pair.plainly, pair.engines):
        text, cache = single(6)["input_ids"], None
        lengths = []
        for turn in range(3):
            out = run(
                input_ids=text,
                attention_mask=torch.ones_like(text),
                max_new_tokens=9,
                do_sample=False,
                return_dict_in_generate=True,
                **({} if cache is None else {"cache": cache}),
            )
            cache = out.cache
            lengths.append(cache.get_seq_length())
            text = torch.cat([out.sequences, prompt(3, seed=20 + turn)], 1)
        assert lengths == [14, 26, 38]
        turns.append(text[0].tolist())
    assert turns[0] == turns[1]
    assert sum(pair.engine.stats.accepted.values()) > 2


@pytest.mark.parametrize("held", [1, 4, 7])
@pytest.mark.parametrize("model_type", ["llama", "mistral"])
def test_a_prefilled_cache_shorter_than_the_prompt_is_used(model_type: str, held: int) -> None:
    pair = shared_pair(model_type)
    ids = prompt(8)

    def prefilled() -> Any:
        cache = DynamicCache(config=pair.model.config)
        with torch.no_grad():
            pair.model(ids[:, :held], cache=cache)
        return cache

    caches = [prefilled(), prefilled()]
    arguments = {"input_ids": ids, "max_new_tokens": 16, "do_sample": False}
    arguments["attention_mask"] = torch.ones_like(ids)
    expected = pair.plainly(**arguments, cache=caches[0])
    seen = pair.engines(**arguments, cache=caches[1])
    assert seen.tolist() == expected.tolist()
    assert caches[1].get_seq_length() == caches[0].get_seq_length() == 8 + 15
    for ours, theirs in zip(caches[1].layers, caches[0].layers, strict=True):
        torch.testing.assert_close(ours.keys, theirs.keys, atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(ours.values, theirs.values, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("held", [8, 11])
def test_a_cache_as_long_as_the_prompt_or_longer_ends_as_in_plain_decoding(held: int) -> None:
    pair = shared_pair("llama")
    ids = prompt(8)
    outcomes = []
    for run in (pair.plainly, pair.engines):
        cache = DynamicCache(config=pair.model.config)
        with torch.no_grad():
            pair.model(prompt(held), cache=cache)
        arguments = {"input_ids": ids, "attention_mask": torch.ones_like(ids), "cache": cache}
        try:
            out = run(**arguments, max_new_tokens=6, do_sample=False)
            outcomes.append(("text", out.tolist()))
        except (ValueError, RuntimeError, IndexError) as error:
            outcomes.append(("error", type(error).__name__))
    assert outcomes[0] == outcomes[1]


def test_a_static_cache_of_the_caller_gives_the_same_text() -> None:
    pair = shared_pair("llama")
    texts = []
    for run in (pair.plainly, pair.engines):
        cache = StaticCache(config=pair.model.config, max_cache_len=40)
        out = run(**single(6), cache=cache, max_new_tokens=20, do_sample=False)
        texts.append(out.tolist())
    assert texts[0] == texts[1]


def test_defaults_of_the_models_generation_config_are_honoured() -> None:
    model = copy.deepcopy(shared_model("llama"))
    model.generation_config = GenerationConfig(
        do_sample=True,
        temperature=1.4,
        top_k=20,
        repetition_penalty=1.3,
        max_new_tokens=18,
        pad_token_id=0,
        eos_token_id=None,
    )
    pair = Pair(model)
    pair.assert_same(**single(6), mode="tree")
    pair.assert_same(**padded(6, 3), generation_config=GenerationConfig(max_new_tokens=7))


def test_a_penalty_list_and_a_constraint_together_in_a_batch() -> None:
    pair = shared_pair("llama")

    def even_tokens(row: int, ids: torch.Tensor) -> list[int]:
        return list(range(row % 2, 100, 2 + len(ids) % 2))

    pair.assert_same(
        **padded(5, 9, 3),
        max_new_tokens=14,
        do_sample=True,
        prefix_allowed_tokens_fn=even_tokens,
        no_repeat_ngram_size=2,
        repetition_penalty=1.2,
        logits_processor=LogitsProcessorList([]),
    )


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
def test_dynamically_quantised_weights_are_decoded_plainly_and_exactly() -> None:
    """Activations share one scale in a pass, so a wide pass rounds otherwise."""
    model = copy.deepcopy(shared_model("llama"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        quantised = torch.ao.quantization.quantize_dynamic(model, {nn.Linear}, dtype=torch.qint8)
    pair = Pair(quantised)
    arguments = {**single(6), "max_new_tokens": 12, "do_sample": False}
    expected = pair.plainly(**arguments)
    with handed_over("logits differ from single steps"):
        seen = pair.engines(**arguments)
    assert seen.tolist() == expected.tolist()


class _Int8Linear(nn.Module):
    """Linear layer with int8 weights and one scale a row, as weight-only quantisation stores it."""

    scale: torch.Tensor
    weight: torch.Tensor

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        scale = linear.weight.detach().abs().amax(1, keepdim=True) / 127
        self.register_buffer("scale", scale)
        self.register_buffer("weight", (linear.weight.detach() / scale).round().to(torch.int8))
        self.bias = linear.bias

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight.to(x.dtype) * self.scale, self.bias)


def test_weight_only_int8_layers_of_a_foreign_class_are_decoded_in_trees() -> None:
    model = copy.deepcopy(shared_model("llama"))
    for layer in model.model.layers:
        for part in (layer.self_attn, layer.mlp):
            for name, child in list(part.named_children()):
                if isinstance(child, nn.Linear):
                    setattr(part, name, _Int8Linear(child))
    pair = Pair(model)
    for sample in (False, True):
        stats = pair.assert_same(**single(6), max_new_tokens=20, do_sample=sample, mode="tree")
        assert sum(stats.accepted.values()) > 5


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_adapters_are_decoded_exactly_and_may_change_between_calls() -> None:
    peft = pytest.importorskip("peft")
    config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj"], init_lora_weights=False)
    torch.manual_seed(0)
    wrapped = peft.get_peft_model(copy.deepcopy(shared_model("llama")), config)
    pair = Pair(wrapped)
    arguments = {**single(6), "max_new_tokens": 20, "do_sample": False}
    with_adapter = pair.engines(**arguments).tolist()
    pair.assert_same(**arguments, mode="tree")
    with wrapped.disable_adapter():
        assert pair.engines(**arguments).tolist() != with_adapter
        pair.assert_same(**arguments, mode="tree")
    assert pair.engines(**arguments).tolist() == with_adapter
    assert sum(pair.engine.stats.accepted.values()) > 5


@pytest.mark.filterwarnings("ignore:.*is_gradient_checkpointing:FutureWarning")
def test_prompt_tuning_is_refused() -> None:
    peft = pytest.importorskip("peft")
    config = peft.PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=4)
    wrapped = peft.get_peft_model(copy.deepcopy(shared_model("llama")), config)
    with pytest.raises(TypeError, match="prompt-learning adapters cannot be wrapped"):
        lookahead.wrap(wrapped)


def test_weights_changed_in_place_are_seen_by_the_next_call() -> None:
    model = copy.deepcopy(shared_model("llama"))
    pair = Pair(model)
    before = pair.engines(**single(6), max_new_tokens=12, do_sample=False)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.3)
    pair.assert_same(**single(6), max_new_tokens=12, do_sample=False)
    assert pair.engines(**single(6), max_new_tokens=12, do_sample=False).tolist() != before.tolist()


@pytest.mark.slow
def test_a_compiled_model_gives_the_same_text() -> None:
    model = copy.deepcopy(shared_model("llama"))
    pair = Pair(shared_model("llama"))
    expected = pair.plainly(**single(6), max_new_tokens=12, do_sample=False)
    model.forward = torch.compile(model.forward, backend="eager", dynamic=True)
    compiled = lookahead.wrap(model)
    seen = compiled.generate(**single(6), max_new_tokens=12, do_sample=False)
    assert seen.tolist() == expected.tolist()
