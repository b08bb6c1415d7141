"""All layers in one call compute what the layers compute one by one."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config

import lookahead
from lookahead import Config
from lookahead.native.layer import NativeLayer
from lookahead.native.stack import NativeStack
from lookahead.passes import Passes
from tests.native.kernels import kernels_or_skip
from tests.test_packed import SIZES, tiny

FUSED = [  # without biases in the feed-forward part and without a window that hides something
    LlamaConfig(**SIZES),
    LlamaConfig(**SIZES, attention_bias=True, head_dim=16),
    MistralConfig(**SIZES, sliding_window=64),
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=16),
]


def logits(model: Any, ids: Tensor, mask: Tensor) -> Tensor:
    """Logits of every emitted token, [batch, tokens, vocabulary]."""
    engine = lookahead.wrap(model, Config(remember_cost=False))
    found = engine.generate(
        ids, attention_mask=mask, max_new_tokens=24, do_sample=False, pad_token_id=0,
        eos_token_id=None, return_dict_in_generate=True, output_logits=True,
    )  # fmt: skip
    return torch.stack(found.logits, 1)


@pytest.mark.parametrize("config", FUSED, ids=lambda c: c.model_type)
@pytest.mark.parametrize("rows", [1, 3])
def test_logits_are_those_of_single_layers(
    config: PreTrainedConfig, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_or_skip()
    model = tiny(config)
    ids = torch.randint(1, 97, (rows, 9))
    mask = torch.ones_like(ids)
    if rows > 1:
        mask[1, :4] = 0
    calls = []
    run = NativeStack.run

    def watched(self: NativeStack, *args: Any, **kwargs: Any) -> Tensor | None:
        made = run(self, *args, **kwargs)
        calls.append(made is not None)
        return made

    monkeypatch.setattr(NativeStack, "run", watched)
    together = logits(model, ids, mask)
    assert True in calls
    monkeypatch.setattr(NativeStack, "run", lambda *args, **kwargs: None)
    one_by_one = logits(model, ids, mask)  # in other trees, so sums are cut elsewhere
    torch.testing.assert_close(together, one_by_one, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "config, stacks",
    [
        (LlamaConfig(**SIZES), 1),
        (LlamaConfig(**SIZES, mlp_bias=True), 0),  # no native layers
        (Qwen2Config(**SIZES, use_sliding_window=True, sliding_window=8, max_window_layers=1), 0),
    ],
    ids=["alike", "with biases", "two kinds of windows"],
)
def test_only_layers_that_are_alike_are_run_together(config: PreTrainedConfig, stacks: int) -> None:
    kernels_or_skip()
    passes = Passes(tiny(config))
    found = [m for m in passes.module().modules() if isinstance(m, NativeStack)]
    assert len(found) == stacks
    assert passes.packed_bytes > 0


def test_layers_that_the_configuration_leaves_out_are_not_run() -> None:
    model = tiny(LlamaConfig(**SIZES))
    model.config.num_hidden_layers = 2
    passes = Passes(model)
    assert not [m for m in passes.module().modules() if isinstance(m, NativeStack)]
    ids = torch.randint(1, 97, (1, 9))
    plain = model.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
    engine = lookahead.wrap(model, Config(remember_cost=False))
    found = engine.generate(ids, max_new_tokens=20, do_sample=False, pad_token_id=0)
    assert torch.equal(found, plain)


def test_norms_outlive_a_parameter_that_is_replaced_while_a_pass_runs() -> None:
    kernels_or_skip()
    model = tiny(Qwen3Config(**SIZES, head_dim=16))
    layers = [m for m in Passes(model).module().modules() if isinstance(m, NativeLayer)]
    assert len(layers) == SIZES["num_hidden_layers"]
    held = [norm for layer in layers for norm, _ in (layer._norm, layer._norm_after)]
    held += [norm for layer in layers for (norm, _), _ in layer._head_norms]
    places, values = [x.data_ptr() for x in held], [x.clone() for x in held]
    for parameter in model.parameters():
        parameter.data = torch.zeros_like(parameter.data)
    assert [x.data_ptr() for x in held] == places
    assert all(torch.equal(x, value) for x, value in zip(held, values, strict=True))


def test_head_norms_of_another_dtype_are_left_to_the_usual_way() -> None:
    kernels_or_skip()
    model = tiny(Qwen3Config(**SIZES, head_dim=16))
    model.model.layers[1].self_attn.q_norm.to(torch.bfloat16)
    found = [m for m in Passes(model).module().modules() if isinstance(m, NativeStack)]
    assert not found
