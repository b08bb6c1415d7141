"""Packed linear layers and lean decoder layers compute what the model's own compute."""

from __future__ import annotations

import gc
import threading
import weakref
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor, nn
from transformers import (
    AutoModelForCausalLM,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen2Config,
    Qwen3Config,
)
from transformers.models.llama import modeling_llama

from lookahead.lean import _BLOCK, LeanLayer
from lookahead.native.layer import NativeLayer
from lookahead.native.matrix import NativeMatrix
from lookahead.packed import JointMatrix, PackedLinear, PackedMatrix, pack_linears
from lookahead.passes import Passes
from lookahead.shared_copy import shared_copy

SIZES: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 48,
    "intermediate_size": 80,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
}
FAMILY: list[PreTrainedConfig] = [
    LlamaConfig(**SIZES),
    LlamaConfig(**SIZES, attention_bias=True, mlp_bias=True, head_dim=16),
    MistralConfig(**SIZES, sliding_window=8),
    Qwen2Config(**SIZES),
    Qwen3Config(**SIZES, head_dim=16),
]


def tiny(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> Any:
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=dtype).eval()
    with torch.no_grad():
        for parameter in model.parameters():  # norms of ones and biases of zeros hide mistakes
            parameter.add_(torch.randn_like(parameter) * 0.1)
    return model


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("least", [1, 4])
@pytest.mark.parametrize("shape", [(1, 24), (1, 1, 24), (2, 3, 24), (9, 24), (0, 24)])
def test_a_packed_matrix_multiplies_like_a_linear_layer(
    bias: bool, least: int, shape: tuple[int, ...]
) -> None:
    linear = nn.Linear(24, 40, bias=bias)
    matrix = PackedMatrix(linear.weight.detach(), linear.bias.detach() if bias else None)
    matrix.least_rows = least
    x = torch.randn(shape)
    torch.testing.assert_close(matrix(x), linear(x).detach())


def joined(sizes: tuple[int, ...]) -> tuple[list[nn.Linear], list[PackedLinear]]:
    linears = [nn.Linear(16, size) for size in sizes]
    joint = JointMatrix(linears)
    return linears, [PackedLinear(linear, joint, i) for i, linear in enumerate(linears)]


def test_joined_layers_give_each_its_own_output_in_any_order_of_calls() -> None:
    linears, parts = joined((8, 12, 20))
    x, y = torch.randn(2, 16), torch.randn(2, 16)
    for index, value in [(0, x), (1, x), (2, x), (2, y), (0, y), (1, x), (1, y), (0, x), (0, y)]:
        torch.testing.assert_close(parts[index](value), linears[index](value).detach())


def test_joined_layers_serve_several_threads_at_once() -> None:
    linears, parts = joined((8, 12))
    wrong: list[int] = []

    def work(seed: int) -> None:
        draw = torch.Generator().manual_seed(seed)
        for _ in range(300):
            x = torch.randn(1, 16, generator=draw)
            for part, linear in zip(parts, linears, strict=True):
                if not torch.allclose(part(x), linear(x), atol=1e-5):
                    wrong.append(seed)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_only_siblings_of_one_input_size_and_kind_are_joined() -> None:
    class Odd(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.gate_proj, self.up_proj = nn.Linear(8, 4), nn.Linear(8, 4, bias=False)
            self.q_proj, self.k_proj, self.v_proj = (
                nn.Linear(8, 4),
                nn.Linear(6, 4),
                nn.Linear(8, 4),
            )

    model = Odd()
    packed = shared_copy(model)
    assert pack_linears(packed) == 5
    for name, linear in model.named_children():
        assert isinstance(linear, nn.Linear)
        x = torch.randn(3, linear.in_features)
        torch.testing.assert_close(packed.get_submodule(name)(x), linear(x).detach())


@pytest.mark.parametrize("config", FAMILY, ids=lambda c: c.model_type)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize("compiled", [False, True])
def test_lean_layers_compute_what_the_models_own_layers_compute(
    config: PreTrainedConfig, dtype: torch.dtype, rows: int, compiled: bool
) -> None:
    model = tiny(config, dtype)
    passes = Passes(model, compiled=compiled)
    copy = passes.module()
    if compiled and isinstance(passes.kernels, str):
        pytest.skip(passes.kernels)
    if not passes.packed:
        pytest.skip(f"linear layers in {dtype} cannot be packed on this processor")
    assert passes.lean == SIZES["num_hidden_layers"]
    ids = torch.randint(0, 97, (rows, 20))

    def logits(module: Any) -> Tensor:
        with torch.no_grad():
            first = module(ids[:, :14], use_cache=True, return_dict=True)
            cache = first[1] if not hasattr(first, "cache") else first.cache
            name = "cache" if hasattr(first, "cache") else "past_key_values"
            then = module(ids[:, 14:], use_cache=True, return_dict=True, **{name: cache})
            return torch.cat([first.logits, then.logits], 1)

    tolerance = 1e-4 if dtype == torch.float32 else 6e-2
    expected = logits(model)
    torch.testing.assert_close(
        logits(copy), expected, rtol=tolerance, atol=tolerance * float(expected.abs().max())
    )


def test_compiled_layers_need_a_silu_without_biases_and_weights_of_one_kind() -> None:
    passes = Passes(tiny(FAMILY[0]))
    if isinstance(passes.kernels, str):
        pytest.skip(passes.kernels)

    def compiled(model: Any) -> int:
        return sum(isinstance(m, NativeLayer) for m in Passes(model).module().modules())

    assert compiled(tiny(FAMILY[0])) == 3
    assert compiled(tiny(LlamaConfig(**SIZES, mlp_bias=True))) == 0
    assert compiled(tiny(LlamaConfig(**SIZES, hidden_act="gelu"))) == 0


@pytest.mark.parametrize("compiled", [False, True])
def test_lean_layers_read_a_prompt_longer_than_a_block_like_the_model(compiled: bool) -> None:
    model = tiny(FAMILY[0].__class__(**{**SIZES, "max_position_embeddings": 1024}))
    ids = torch.randint(0, 97, (2, 2 * _BLOCK + 5))
    with torch.no_grad():
        expected = model(ids).logits
        torch.testing.assert_close(
            Passes(model, compiled=compiled).module()(ids).logits, expected, rtol=1e-3, atol=1e-3
        )


def test_a_copy_with_lean_layers_leaves_the_model_as_it_was() -> None:
    model = tiny(FAMILY[0])
    before = {name: value.clone() for name, value in model.state_dict().items()}
    kinds = [type(module) for module in model.modules()]
    ids = torch.arange(9)[None]
    with torch.no_grad():
        Passes(model).module()(ids)
    assert [type(module) for module in model.modules()] == kinds
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())


@pytest.mark.parametrize("compiled", [False, True])
def test_a_dropped_copy_frees_its_packed_weights_at_once(compiled: bool) -> None:
    passes = Passes(tiny(FAMILY[0]), compiled=compiled)
    kinds = (PackedMatrix, NativeMatrix)
    alive = [weakref.ref(m) for m in passes.module().modules() if isinstance(m, kinds)]
    gc.disable()
    try:
        passes.use(passes.kind)
        passes._module = None
        assert alive and not any(matrix() for matrix in alive)
    finally:
        gc.enable()


@pytest.mark.parametrize("kind", ["Mistral", "Qwen2", "Qwen3"])
def test_lean_layers_hand_their_window_to_the_attention(kind: str) -> None:
    options: dict[str, Any] = {"sliding_window": 24}
    if kind != "Mistral":
        options.update(use_sliding_window=True, max_window_layers=1)
    model = tiny(getattr(transformers, f"{kind}Config")(**SIZES, head_dim=16, **options))
    layers = [m for m in Passes(model).module().modules() if isinstance(m, LeanLayer)]
    windows = [layer._features["sliding_window"] for layer in layers]
    assert windows == ([24] * 3 if kind == "Mistral" else [None, 24, 24])


@pytest.mark.parametrize("patched", ["attention", "norm", "rotary"])
def test_a_patched_class_or_function_keeps_its_layers_as_they_are(
    patched: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = tiny(FAMILY[0])

    def other(*args: Any, **kwargs: Any) -> Any:
        raise AssertionError("not to be called")

    if patched == "rotary":
        monkeypatch.setattr(modeling_llama, "apply_rotary_pos_emb", other)
    elif patched == "norm":
        monkeypatch.setattr(modeling_llama.LlamaRMSNorm, "forward", other)
    else:
        monkeypatch.setattr(modeling_llama.LlamaAttention, "forward", other)
    passes = Passes(model)
    passes.module()
    assert passes.packed and not passes.lean


def test_a_layer_with_a_part_of_another_class_is_not_made_lean() -> None:
    model = tiny(FAMILY[0])
    layers = model.model.layers
    foreign = {"__module__": "transformers.mine"}
    layers[0].__class__ = type("LlamaDecoderLayer", (type(layers[0]),), foreign)
    layers[1].mlp.__class__ = type("OtherMLP", (type(layers[1].mlp),), foreign)
    passes = Passes(model)
    passes.module()
    assert passes.lean == SIZES["num_hidden_layers"] - 2
