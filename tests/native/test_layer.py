"""The compiled kernels run what they are meant to run, and leave to others what they are not."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import (
    AttentionInterface,
    DynamicCache,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
)

import lookahead
from lookahead import Config
from lookahead.attention import TreeContext
from lookahead.kv_cache import TreeCache
from lookahead.native.attention import geometry
from lookahead.native.matrix import NativeMatrix
from lookahead.passes import COMPILED_WITH_TREE_ATTENTION
from tests.native.kernels import kernels_or_skip
from tests.test_packed import FAMILY, SIZES, tiny


def counting(engine: lookahead.Engine) -> Counter[str]:
    """Count the calls of the kernels by an engine from now on."""
    counts: Counter[str] = Counter()
    kernels = kernels_or_skip()

    def counted(name: str) -> Callable[..., Any]:
        def call(*args: Any) -> Any:
            counts[name] += 1
            return getattr(kernels, name)(*args)

        return call

    names = ("linear", "attention", "stack", "causal", "top")
    passes = engine.fitted.passes
    changed: dict[str, Any] = {name: counted(name) for name in names}
    passes.kernels = replace(kernels, **changed)
    passes.use(passes.kind)
    return counts


def both(model: Any, **kwargs: Any) -> tuple[Tensor, Tensor, Counter[str], lookahead.Engine]:
    """Ids of plain decoding and of an engine, and the calls of kernels that the engine made."""
    engine = lookahead.wrap(model, Config(remember_cost=False))
    options = {"do_sample": False, "pad_token_id": 0, **kwargs}
    engine.generate(**options)  # times passes, so that the next call does not
    counts = counting(engine)
    return model.generate(**options), engine.generate(**options), counts, engine


@pytest.mark.parametrize("config", FAMILY, ids=lambda c: c.model_type)
def test_passes_prompts_and_readouts_of_a_known_family_run_on_the_kernels(
    config: PreTrainedConfig,
) -> None:
    kernels_or_skip()
    ids = torch.randint(1, 97, (1, 7))
    plain, found, counts, engine = both(tiny(config), input_ids=ids, max_new_tokens=30)
    assert engine.fitted.passes.kind == COMPILED_WITH_TREE_ATTENTION
    assert torch.equal(found, plain)
    assert counts["top"] == engine.stats.passes + 1
    if not getattr(config, "mlp_bias", False):
        layers = SIZES["num_hidden_layers"]
        assert counts["causal"] == layers
        passes = engine.stats.passes
        assert counts["attention"] == 0
        if getattr(config, "sliding_window", None) == 8:  # hides something after a token
            assert counts["stack"] <= 1
        else:
            assert counts["stack"] == passes
        by_layer = passes + 1 - counts["stack"]  # the prompt, and what a window hides from
        assert counts["linear"] == 4 * layers * by_layer + passes + 1


def test_a_padded_batch_runs_on_the_kernels() -> None:
    ids = torch.randint(1, 97, (3, 9))
    mask = torch.ones_like(ids)
    mask[1, :4] = 0
    model = tiny(FAMILY[0])
    plain, found, counts, _ = both(model, input_ids=ids, attention_mask=mask, max_new_tokens=40)
    assert torch.equal(found, plain)
    assert counts["stack"] > 0 and counts["causal"] == 0


def test_a_window_is_left_to_the_usual_way_once_it_hides_something() -> None:
    model = tiny(MistralConfig(**SIZES, sliding_window=24))
    ids = torch.randint(1, 97, (1, 10))
    plain, found, counts, engine = both(model, input_ids=ids, max_new_tokens=60)
    assert torch.equal(found, plain)
    assert 0 < counts["stack"] < engine.stats.passes


def test_an_attention_function_of_the_users_own_is_called_as_ever() -> None:
    kernels_or_skip()

    def last_keys(
        module: Any, q: Tensor, k: Tensor, v: Tensor, mask: Any, **kwargs: Any
    ) -> tuple[Tensor, None]:
        n, keys = q.shape[2], k.shape[2]
        place = torch.arange(keys - n, keys)[:, None] - torch.arange(keys)
        seen = (place >= 0) & (place < 12)
        if mask is not None:
            seen = seen & ((mask == 0) if mask.dtype != torch.bool else mask)[..., :keys]
        k, v = (x.repeat_interleave(q.shape[1] // k.shape[1], 1) for x in (k, v))
        scores = (q @ k.transpose(2, 3) * q.shape[-1] ** -0.5).masked_fill(~seen, -1e30)
        return (scores.softmax(-1) @ v).transpose(1, 2), None

    AttentionInterface.register("last_keys", last_keys)
    model = tiny(LlamaConfig(**SIZES))
    model.set_attn_implementation("last_keys")
    ids = torch.randint(1, 97, (1, 30))
    plain, found, counts, _ = both(model, input_ids=ids, max_new_tokens=20)
    model.set_attn_implementation("sdpa")
    assert not torch.equal(plain, model.generate(input_ids=ids, max_new_tokens=20, pad_token_id=0))
    assert torch.equal(found, plain)
    assert counts["attention"] == counts["stack"] == counts["causal"] == 0


def test_weights_are_packed_in_fp32_whatever_the_default_dtype_is() -> None:
    kernels = kernels_or_skip()
    weight, x = torch.randn(20, 30), torch.randn(4, 30)
    torch.set_default_dtype(torch.bfloat16)
    try:
        matrix = NativeMatrix(kernels, weight)
    finally:
        torch.set_default_dtype(torch.float32)
    torch.testing.assert_close(matrix(x), x @ weight.T)


def test_the_geometry_of_a_pass_is_known_only_where_the_kernel_applies() -> None:
    prompt = DynamicCache()
    prompt.update(torch.zeros(2, 1, 20, 8), torch.zeros(2, 1, 20, 8), 0)
    cache = TreeCache(prompt, 20, 64)
    chain = torch.ones(1, 3, 3, dtype=torch.bool).tril()
    context = TreeContext([20, 20], chain, None, [0, 4])
    cache.reserve([20, 20], 3)
    found = geometry(cache, 2, 3, None, context, None)
    assert found is not None
    assert found.starts.tolist() == [0, 4] and found.lengths.tolist() == [20, 20]
    assert found.mask.tolist() == [[[1, 0, 0], [1, 1, 0], [1, 1, 1]]]
    assert geometry(cache, 2, 3, None, context, 23) is not None  # sees back to position 0
    assert geometry(cache, 2, 3, None, TreeContext([20, 20], chain), 22) is None
    assert geometry(cache, 2, 4, None, context, None) is None
    assert geometry(cache, 1, 3, None, context, None) is None
    assert geometry(prompt, 2, 3, None, context, None) is None
    one = geometry(cache, 2, 1, None, None, 21)
    assert one is not None and one.lengths.tolist() == [20, 20]
    assert geometry(cache, 2, 1, None, None, 20) is None
    assert geometry(cache, 2, 1, torch.zeros(1), None, None) is None
    cache.reserve([20, 25], 3)  # a row with held slots
    assert geometry(cache, 2, 3, None, TreeContext([20, 20], chain), None) is None
