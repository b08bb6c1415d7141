"""A pass without the model's own code around the layers gives the model's logits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaConfig, MistralConfig, PreTrainedConfig, Qwen2Config, Qwen3Config
from transformers.models.llama.modeling_llama import LlamaModel

import lookahead.model
import lookahead.native.direct
from lookahead.native.direct import Angles, DirectPass, direct_pass
from lookahead.passes import Passes
from tests.native.kernels import kernels_or_skip
from tests.native.test_stack import logits
from tests.test_packed import SIZES, tiny

ROPES: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 2.0},
    {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64},
    {
        "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
]  # fmt: skip
KNOWN = [
    LlamaConfig(**SIZES),
    LlamaConfig(**SIZES, attention_bias=True, head_dim=16, tie_word_embeddings=True),
    MistralConfig(**SIZES, sliding_window=20),  # hides something after some tokens
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=16),
    *(LlamaConfig(**SIZES, rope_parameters={"rope_theta": 1e4, **rope}) for rope in ROPES),
]


def copy_of(model: Any) -> Any:
    return Passes(model).module()


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("config", KNOWN, ids=lambda c: c.model_type)
def test_logits_are_those_of_the_model(
    config: PreTrainedConfig, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    kernels_or_skip()
    model = tiny(config)
    ids = torch.randint(1, 97, (rows, 9))
    mask = torch.ones_like(ids)
    if rows > 1:
        mask[1, :4] = 0
    monkeypatch.setattr(lookahead.native.direct, "_ANGLES_AHEAD", 6)  # so that they are made anew
    calls = []
    run = DirectPass.__call__

    def watched(self: DirectPass, *args: Any) -> Tensor | None:
        made = run(self, *args)
        calls.append(made is not None)
        return made

    monkeypatch.setattr(DirectPass, "__call__", watched)
    direct = logits(model, ids, mask)
    assert True in calls
    if rows == 1:  # of several, one may wait with its tree half walked
        assert (False in calls) == (config.model_type == "mistral")
    monkeypatch.setattr(lookahead.model, "direct_pass", lambda module: None)
    calls.clear()
    usual = logits(model, ids, mask)
    assert not calls
    torch.testing.assert_close(direct, usual, rtol=1e-5, atol=1e-5)


def test_angles_are_the_models_own_whatever_positions_are_asked_in_turn() -> None:
    model = tiny(LlamaConfig(**SIZES))
    angles = Angles(model.model.rotary_emb)
    for positions in ([[3, 4, 4, 5]], [[5000, 5001, 5001, 5002]], [[0, 1, 2, 2], [7, 9, 8, 2000]]):
        at = np.array(positions, dtype=np.int64)
        expected = model.model.rotary_emb(torch.zeros(1), torch.from_numpy(at))
        for found, own in zip(angles.at(at), expected, strict=True):
            assert torch.equal(found, own)


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16])
def test_angles_do_not_depend_on_the_default_dtype(dtype: torch.dtype) -> None:
    model = tiny(LlamaConfig(**SIZES))
    usual = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        cos, sin = Angles(model.model.rotary_emb).at(np.array([[1, 2]], dtype=np.int64))
    finally:
        torch.set_default_dtype(usual)
    assert cos.dtype == sin.dtype == torch.float32


def test_models_of_known_classes_are_run_directly() -> None:
    kernels_or_skip()
    assert direct_pass(copy_of(tiny(LlamaConfig(**SIZES)))) is not None


@pytest.mark.parametrize(
    "config",
    [
        LlamaConfig(
            **SIZES, rope_parameters={"rope_theta": 1e4, "rope_type": "dynamic", "factor": 2.0}
        ),
        LlamaConfig(**SIZES, mlp_bias=True),
    ],
    ids=["angles that depend on the longest position", "layers that are not fused"],
)
def test_other_models_are_run_by_their_own_code(config: PreTrainedConfig) -> None:
    assert direct_pass(copy_of(tiny(config))) is None


def test_a_model_as_it_is_is_run_by_its_own_code() -> None:
    assert direct_pass(tiny(LlamaConfig(**SIZES))) is None


def test_patched_forward_functions_are_called(monkeypatch: pytest.MonkeyPatch) -> None:
    model = copy_of(tiny(LlamaConfig(**SIZES)))
    own = LlamaModel.forward

    def louder(self: Any, *args: Any, **kwargs: Any) -> Any:
        found = own(self, *args, **kwargs)
        found.last_hidden_state = 2 * found.last_hidden_state
        return found

    monkeypatch.setattr(LlamaModel, "forward", louder)
    assert direct_pass(model) is None


def test_embeddings_that_do_more_than_look_up_are_called() -> None:
    model = tiny(LlamaConfig(**SIZES))
    model.model.embed_tokens.max_norm = 1.0
    assert direct_pass(copy_of(model)) is None
