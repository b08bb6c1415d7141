"""Calling conventions of kernels this machine may not have, and the traps of those it has."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lookahead.attention import TreeContext, reference_attention
from lookahead.attention.flash import (
    efficient_attention,
    kernel_for,
    kvcache_attention,
    kvcache_fits,
    masked_attention,
    run_kernel,
    unmasked_attention,
)
from lookahead.attention.masks import additive
from lookahead.attention.tree import split_attention

from .trees import make_case


def kvcache_stand_in(
    q: Tensor,
    k_cache: Tensor,
    v_cache: Tensor,
    *,
    cache_seqlens: Tensor,
    cache_leftpad: Tensor,
    softmax_scale: float,
    causal: bool,
    softcap: float,
    num_splits: int,
    return_softmax_lse: bool,
) -> tuple[Tensor, Tensor]:
    """flash_attn 2.8's flash_attn_with_kvcache as its docstring and C++ checks describe it."""
    batch, rows, heads, _ = q.shape
    assert k_cache.stride(-1) == 1 and v_cache.stride(-1) == 1
    assert k_cache.shape[0] == batch and heads % k_cache.shape[2] == 0
    for lengths in (cache_seqlens, cache_leftpad):
        assert lengths.dtype == torch.int32 and lengths.shape == (batch,)
        assert lengths.is_contiguous()
    assert not causal and return_softmax_lse and num_splits == 0
    out, lse = torch.zeros_like(q), torch.full((batch, heads, rows), torch.inf)
    for b in range(batch):
        for h in range(heads):
            keep = slice(int(cache_leftpad[b]), int(cache_seqlens[b]))
            head = h // (heads // k_cache.shape[2])
            scores = q[b, :, h].float() @ k_cache[b, keep, head].float().T * softmax_scale
            if softcap > 0:
                scores = softcap * torch.tanh(scores / softcap)
            if scores.shape[1]:  # an empty range leaves out 0 and lse +inf, as the CUDA code does
                lse[b, h] = torch.logsumexp(scores, -1)
                out[b, :, h] = (torch.softmax(scores, -1) @ v_cache[b, keep, head].float()).to(q)
    return out, lse


@pytest.mark.parametrize("window", [None, 4, 20])
@pytest.mark.parametrize("softcap", [None, 1.5])
@pytest.mark.parametrize("lens", [(30,), (25, 0, 9), (12, 12)])
def test_flash_attn_serves_the_prefix_in_its_calling_convention(
    lens: tuple[int, ...], softcap: float | None, window: int | None
) -> None:
    starts = tuple(min(2, n) for n in lens)
    case = make_case(nodes=7, prefix_lens=lens, prefix_starts=starts, heads=(6, 2))
    context = TreeContext(lens, case.tree_mask, None, starts)
    calls = []

    def kernel(*args: Any, **kwargs: Any) -> tuple[Tensor, Tensor]:
        calls.append(kwargs)
        return kvcache_stand_in(*args, **kwargs)

    options: dict[str, Any] = {"scale": 0.2, "softcap": softcap, "window": window}
    out, lse = split_attention(case.q, case.k, case.v, context, kernel=kernel, **options)
    exact, exact_lse = reference_attention(case.q, case.k, case.v, context, **options)
    assert lse is not None
    torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(lse.double(), exact_lse, rtol=1e-5, atol=1e-5)
    assert len(calls) == 1  # one call however different the rows are


def test_an_empty_range_of_flash_attn_becomes_lse_minus_infinity() -> None:
    q, kv = torch.randn(2, 2, 3, 8), torch.randn(2, 2, 10, 8)
    starts, ends = (torch.tensor(x, dtype=torch.int32) for x in ([0, 4], [5, 4]))
    _, lse = kvcache_attention(kvcache_stand_in, q, kv, kv, starts, ends, scale=1.0)
    assert lse[0].isfinite().all() and (lse[1] == -torch.inf).all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
@pytest.mark.parametrize("size", [32, 64, 80, 96, 128, 256])
def test_cuda_kernels_take_our_arguments_and_return_our_shapes(
    dtype: torch.dtype, size: int
) -> None:
    """On meta tensors: PyTorch's own shape rules for its CUDA kernels, without a GPU."""
    q = torch.empty(2, 3, 50, size, dtype=dtype, device="meta")
    cache = torch.empty(2, 3, 500, size, dtype=dtype, device="meta")
    k = cache[:, :, 10:300]
    name = "efficient" if dtype == torch.float32 else "flash"
    out, lse = run_kernel(name, q, k, k, scale=0.1)
    assert out.shape == q.shape and out.dtype == dtype
    assert lse.shape == (2, 3, 50) and lse.dtype == torch.float32
    bias = torch.empty(1, 1, 50, 304, dtype=dtype, device="meta")[..., :290]
    out, lse = efficient_attention(q, k, k, bias, scale=0.1)
    assert out.shape == q.shape and lse.shape == (2, 3, 50)


def test_kernels_are_chosen_by_device_dtype_and_features() -> None:
    q = torch.empty(1, 2, 3, 64)
    assert kernel_for(q, q, q, None) == "cpu"
    assert kernel_for(q, q, q, 2.0) == "dense"
    assert kernel_for(q, q, q[..., :32], None) == "dense"
    assert kernel_for(q, q.transpose(2, 3).transpose(2, 3), q, None) == "cpu"
    assert kernel_for(q, torch.empty(1, 2, 64, 3).transpose(2, 3), q, None) == "dense"
    assert kernel_for(*(q.to("meta"),) * 3, None) == "dense"
    assert not kvcache_fits(q, q)


def test_masked_rows_of_each_kernel_are_empty_not_wrong() -> None:
    """PyTorch's CPU kernel reports lse 0 for a row that sees nothing; ours must not."""
    q, kv = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 5, 8)
    seen = torch.ones(1, 3, 5, dtype=torch.bool)
    seen[0, 1] = False
    bias = additive(seen, 1, torch.float32, q.device)
    for softcap in (None, 100.0):  # the CPU kernel, the dense fallback
        out, lse = masked_attention(q, kv, kv, bias, scale=1.0, softcap=softcap)
        assert (out[:, :, 1] == 0).all() and (lse[:, :, 1] == -torch.inf).all()
        assert lse[:, :, 0].isfinite().all()


def test_a_cache_view_is_read_in_place() -> None:
    cache = torch.randn(1, 2, 4096, 64)
    q = torch.randn(1, 2, 4, 64)
    view = cache[:, :, 5:4001]
    out, _ = unmasked_attention(q, view, view, scale=0.125)
    copied, _ = unmasked_attention(q, view.contiguous(), view.contiguous(), scale=0.125)
    assert torch.equal(out, copied)
