"""The compiled FlexAttention kernel, which CPU runs without an lse."""

from __future__ import annotations

import pytest
import torch

from lookahead.attention import TreeContext, attend, reference_attention

from .trees import make_case


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_the_compiled_kernel_equals_the_reference() -> None:
    for lens, starts, window in (((130,), (0,), None), ((40, 70), (3, 0), 20)):
        case = make_case(nodes=16, prefix_lens=lens, prefix_starts=starts, head_dim=64)
        context = TreeContext(lens, case.tree_mask, None, starts)
        with torch.no_grad():
            out, lse = attend(
                case.q, case.k, case.v, context, window=window, backend="flex", need_lse=False
            )
        exact, _ = reference_attention(case.q, case.k, case.v, context, window=window)
        assert lse is None
        torch.testing.assert_close(out.double(), exact, rtol=1e-5, atol=1e-5)
