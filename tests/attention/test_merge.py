"""Merging partial results equals attention over the joined keys, not merely another merge."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lookahead.attention import add_sinks, merge
from lookahead.attention.dense import dense_attention

DTYPES = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


@pytest.mark.parametrize("dtype", DTYPES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 2**31), first=st.integers(1, 20), loud=st.sampled_from([1.0, 8.0]))
def test_two_parts_equal_the_joined_keys(
    dtype: torch.dtype, seed: int, first: int, loud: float
) -> None:
    generator = torch.Generator().manual_seed(seed)
    q, k, v = (
        torch.randn(2, 3, rows, 32, generator=generator, dtype=torch.float64).to(dtype)
        for rows in (5, 24, 24)
    )
    q = q * loud
    joined, joined_lse = dense_attention(q.double(), k.double(), v.double(), None, scale=0.2)
    a, lse_a = dense_attention(q, k[:, :, :first], v[:, :, :first], None, scale=0.2)
    b, lse_b = dense_attention(q, k[:, :, first:], v[:, :, first:], None, scale=0.2)
    out, lse = merge(a.to(dtype), lse_a, b.to(dtype), lse_b)
    assert out.dtype == dtype and lse is not None
    # Each part is rounded once and the result once more; values are averages of about 1.
    tolerance = max(8 * torch.finfo(dtype).eps, 1e-12)
    if dtype == torch.float32:
        tolerance = 1e-5
    torch.testing.assert_close(out.double(), joined, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(lse.double(), joined_lse, rtol=1e-5, atol=1e-5)


def test_an_empty_side_leaves_the_other_untouched() -> None:
    out, lse = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3)
    nothing, never = torch.zeros_like(out), torch.full_like(lse, -torch.inf)
    for arguments in ((out, lse, nothing, never), (nothing, never, out, lse)):
        merged, merged_lse = merge(*arguments)
        assert torch.equal(merged, out)
        assert torch.equal(merged_lse, lse)
    merged, merged_lse = merge(nothing, never, nothing, never)
    assert torch.equal(merged, nothing) and torch.equal(merged_lse, never)


def test_the_wider_dtype_wins() -> None:
    out, lse = torch.ones(1, 2, 3, 8), torch.zeros(1, 2, 3)
    half = out.to(torch.bfloat16)
    assert merge(half, lse, out, lse)[0].dtype == torch.float32
    assert merge(out, lse, half, lse)[0].dtype == torch.float32
    assert merge(half, lse, half, lse)[0].dtype == torch.bfloat16


def test_lse_is_left_out_unless_needed() -> None:
    out, lse = torch.randn(1, 2, 3, 8), torch.randn(1, 2, 3)
    assert merge(out, lse, out, lse, need_lse=False)[1] is None


def test_a_sink_is_a_key_whose_value_is_zero() -> None:
    generator = torch.Generator().manual_seed(0)
    q, k, v = (torch.randn(1, 2, n, 8, generator=generator) for n in (3, 5, 5))
    sinks = torch.tensor([0.5, -1.0])
    out, lse = add_sinks(*dense_attention(q, k, v, None, scale=1.0), sinks)
    scores = torch.cat([q @ k.transpose(-1, -2), sinks.view(1, 2, 1, 1).expand(1, 2, 3, 1)], -1)
    torch.testing.assert_close(out, torch.softmax(scores, -1)[..., :-1] @ v)
    torch.testing.assert_close(lse, torch.logsumexp(scores, -1))
    none = torch.full((1, 2, 3), -torch.inf)
    assert torch.equal(add_sinks(torch.zeros(1, 2, 3, 8), none, sinks)[0], torch.zeros(1, 2, 3, 8))
