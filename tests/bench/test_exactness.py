"""The exactness report: faults are called BUG, ties are called ties."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
from transformers import LlamaForCausalLM

from lookahead.bench.exactness import EQUAL, first_divergence, judge, measure_noise
from lookahead.bench.prompt_sets import to_inputs

Maker = Callable[..., LlamaForCausalLM]

GREEDY: dict[str, Any] = {"max_new_tokens": 24, "do_sample": False}
SAMPLED: dict[str, Any] = {
    "max_new_tokens": 24,
    "do_sample": True,
    "temperature": 0.8,
    "top_k": 12,
    "top_p": 0.9,
}
PROMPT = [5, 9, 2, 33, 17, 5, 9]


def plain(model: LlamaForCausalLM, kwargs: dict[str, Any], prompt: list[int]) -> list[int]:
    torch.manual_seed(0)
    out = model.generate(**to_inputs(prompt, model.device), **kwargs)
    return out[0, len(prompt) :].tolist()


def decode_in_chunks(model: LlamaForCausalLM, prompt: list[int], tokens: list[int]) -> list[int]:
    """Greedy picks of one wide pass: what a method that verifies ``tokens`` at once would emit."""
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt + tokens])).logits[0, len(prompt) - 1 : -1]
    return logits.argmax(-1).tolist()


def test_first_divergence_is_the_first_difference() -> None:
    assert first_divergence([1, 2, 3], [1, 2, 3]) is None
    assert first_divergence([1, 2, 3], [1, 4, 3]) == 1
    assert first_divergence([1, 2, 3], [1, 2]) == 2
    assert first_divergence([], [7]) == 0


@pytest.mark.parametrize("kwargs", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
def test_equal_outputs_are_equal(model: LlamaForCausalLM, kwargs: dict[str, Any]) -> None:
    tokens = plain(model, kwargs, PROMPT)
    assert judge(model, PROMPT, tokens, list(tokens), kwargs) == EQUAL


@pytest.mark.parametrize("kwargs", [GREEDY, SAMPLED], ids=["greedy", "sampled"])
@pytest.mark.parametrize("position", [0, 7, 23])
def test_a_wrong_token_is_a_bug(
    model: LlamaForCausalLM, kwargs: dict[str, Any], position: int
) -> None:
    tokens = plain(model, kwargs, PROMPT)
    wrong = list(tokens)
    wrong[position] = (wrong[position] + 1) % 64
    verdict = judge(model, PROMPT, tokens, wrong, kwargs)
    assert verdict.outcome == "BUG"
    assert verdict.position == position
    assert verdict.gap is not None and verdict.noise is not None
    assert verdict.gap > 2 * verdict.noise


@pytest.mark.parametrize("change", [lambda t: t[:-1], lambda t: [*t, 3]], ids=["short", "long"])
def test_another_length_is_a_bug(model: LlamaForCausalLM, change: Any) -> None:
    tokens = plain(model, GREEDY, PROMPT)
    assert judge(model, PROMPT, tokens, change(tokens), GREEDY).outcome == "BUG"


def test_an_exact_tie_is_a_rounding_tie(make_model: Maker) -> None:
    model = make_model(1)
    tokens = plain(model, GREEDY, PROMPT)
    twin = next(t for t in range(64) if t not in tokens and t not in PROMPT)
    last = tokens[-1]
    with torch.no_grad():
        model.lm_head.weight[twin] = model.lm_head.weight[last]
    tokens = plain(model, GREEDY, PROMPT)
    position = next(i for i, token in enumerate(tokens) if token in (last, twin))
    other = list(tokens)
    other[position] = twin if tokens[position] == last else last
    verdict = judge(model, PROMPT, tokens, other, GREEDY)
    assert verdict.outcome == "rounding tie"
    assert verdict.gap == 0.0


def find_bf16_divergence(
    make_model: Maker,
) -> tuple[LlamaForCausalLM, list[int], list[int], list[int]]:
    """The first of a fixed series of bf16 models and prompts where a wide pass picks otherwise."""
    for seed in range(40):
        model = make_model(seed, torch.bfloat16)
        for start in range(20):
            prompt = [(start * 7 + i * i) % 64 for i in range(9)]
            tokens = plain(model, GREEDY, prompt)
            wide = decode_in_chunks(model, prompt, tokens)
            if wide != tokens:
                return model, prompt, tokens, wide
    raise AssertionError("no bf16 model of the series diverges, so the test shows nothing")


def test_a_divergence_by_bf16_rounding_is_a_tie_and_a_planted_one_beside_it_a_bug(
    make_model: Maker,
) -> None:
    model, prompt, tokens, wide = find_bf16_divergence(make_model)
    verdict = judge(model, prompt, tokens, wide, GREEDY)
    assert verdict.outcome == "rounding tie"
    assert verdict.gap is not None and verdict.noise is not None
    assert 0 <= verdict.gap <= 2 * verdict.noise
    planted = list(tokens)
    with torch.inference_mode():
        logits = model(input_ids=torch.tensor([prompt])).logits[0, -1]
    planted[0] = int(logits.argmin())
    assert judge(model, prompt, tokens, planted, GREEDY).outcome == "BUG"


def test_noise_is_at_the_level_of_the_dtype(model: LlamaForCausalLM, make_model: Maker) -> None:
    tokens = plain(model, GREEDY, PROMPT)
    single = measure_noise(model, PROMPT, tokens, GREEDY)
    coarse = make_model(0, torch.bfloat16)
    half = measure_noise(coarse, PROMPT, plain(coarse, GREEDY, PROMPT), GREEDY)
    assert set(single.by_width) == {2, 4, 8, 16, len(PROMPT) + len(tokens)}
    assert 0 < single.level < 1e-4 < half.level < 1.0


def test_a_model_that_is_wrong_in_wide_passes_is_not_excused_by_its_own_noise(
    make_model: Maker,
) -> None:
    class WrongWhenWide(LlamaForCausalLM):
        def forward(self, input_ids: torch.Tensor, cache: Any = None, **kwargs: Any) -> Any:
            out = super().forward(input_ids=input_ids, cache=cache, **kwargs)
            if 1 < input_ids.shape[1] <= 16:
                out.logits = out.logits.roll(1, -1)
            return out

    right = make_model(2)
    model = WrongWhenWide(right.config).eval()
    model.load_state_dict(right.state_dict())
    prompt = [*PROMPT, *range(20)]
    tokens = plain(model, GREEDY, prompt)
    noise = measure_noise(model, prompt, tokens, GREEDY)
    assert max(noise.by_width.values()) > 100 * noise.level
    wrong = [*tokens[:5], (tokens[5] + 1) % 64, *tokens[6:]]
    assert judge(model, prompt, tokens, wrong, GREEDY).outcome == "BUG"
