"""Weights that hold less than 32 bits are kept smaller, and nothing is lost by it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lookahead.native.matrix import Form, NativeMatrix
from tests.native.kernels import kernels_or_skip


def in_groups(outer: int, inner: int, levels: int, base: bool) -> Tensor:
    """Weights as GGUF has them: scale * code (+ base) in groups of 32, scale and base in fp16."""
    scale = (torch.rand(outer, inner // 32, 1) * 0.01 + 1e-4).half().float()
    if base:
        codes = torch.randint(0, levels, (outer, inner // 32, 32)).float()
        shift = -(torch.rand(outer, inner // 32, 1) * 0.05).half().float()
        return (scale * codes + shift).reshape(outer, inner)
    codes = torch.randint(-levels // 2, levels // 2, (outer, inner // 32, 32)).float()
    return (scale * codes).reshape(outer, inner)


KINDS: dict[str, tuple[Callable[[int, int], Tensor], Form]] = {
    "8 bits": (lambda outer, inner: in_groups(outer, inner, 255, False), Form.CODES),
    "5 bits": (lambda outer, inner: in_groups(outer, inner, 32, False), Form.CODES),
    "4 bits and a base": (lambda outer, inner: in_groups(outer, inner, 16, True), Form.CODES),
    "constant": (lambda outer, inner: torch.full((outer, inner), 0.1), Form.CODES),
    "zero": (lambda outer, inner: torch.zeros(outer, inner), Form.CODES),
    "bfloat16": (lambda outer, inner: torch.randn(outer, inner).bfloat16().float(), Form.HALF),
    "float32": (lambda outer, inner: torch.randn(outer, inner), Form.WHOLE),
}


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_kept_in_the_smallest_form_that_holds_them(kind: str) -> None:
    torch.manual_seed(0)
    make, form = KINDS[kind]
    weight = make(50, 96)
    assert NativeMatrix(kernels_or_skip(), weight).form == form
    assert NativeMatrix(kernels_or_skip(), weight, up=make(50, 96)).form == form


@given(
    kind=st.sampled_from(list(KINDS)),
    rows=st.integers(1, 40),
    groups=st.integers(1, 20),
    outer=st.integers(1, 70),
    gated=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_every_form_gives_the_bits_that_whole_weights_give(
    kind: str, rows: int, groups: int, outer: int, gated: bool, threads: int, seed: int
) -> None:
    kernels = kernels_or_skip()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    make, _ = KINDS[kind]
    weight, up = make(outer, 32 * groups), make(outer, 32 * groups) if gated else None
    x = torch.randn(rows, 32 * groups)
    small = NativeMatrix(kernels, weight, up=up)
    whole = NativeMatrix(kernels, weight, up=up, forms=(Form.WHOLE,))
    assert torch.equal(small(x), whole(x))


@pytest.mark.parametrize("kind", ["8 bits", "4 bits and a base", "bfloat16"])
@pytest.mark.parametrize("where", [(0, 0), (49, 95), (17, 40)])
def test_one_weight_that_does_not_fit_keeps_all_of_them_whole(
    kind: str, where: tuple[int, int]
) -> None:
    torch.manual_seed(0)
    weight = KINDS[kind][0](50, 96) + 0.0
    weight[where] = torch.nextafter(torch.tensor(0.0123), torch.tensor(1.0))
    matrix = NativeMatrix(kernels_or_skip(), weight)
    assert matrix.form == Form.WHOLE
    x = torch.eye(96)
    assert torch.equal(matrix(x), weight.T)


@pytest.mark.parametrize(
    "odd", [float("inf"), float("-inf"), float("nan"), -0.0, 1e-42, 3.4e38, -3.4e38, 1e-38]
)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_weights_are_multiplied_as_they_are(kind: str, odd: float) -> None:
    torch.manual_seed(0)
    weight = KINDS[kind][0](3, 64).clone()
    weight[1, 5] = odd
    matrix = NativeMatrix(kernels_or_skip(), weight)
    x = torch.zeros(1, 64)
    x[0, 5] = 1.0
    expected = (x * weight).sum(-1)  # infinite times zero is no number elsewhere
    torch.testing.assert_close(matrix(x)[0], expected, rtol=0, atol=0, equal_nan=True)


def test_weights_that_fit_no_form_that_is_allowed_are_refused() -> None:
    with pytest.raises(ValueError, match="do not fit"):
        NativeMatrix(kernels_or_skip(), torch.randn(8, 64), forms=(Form.CODES, Form.HALF))
    with pytest.raises(ValueError, match="do not fit"):  # no whole number of groups
        NativeMatrix(kernels_or_skip(), torch.zeros(8, 60), forms=(Form.CODES,))


def test_small_forms_take_the_bytes_they_promise() -> None:
    kernels = kernels_or_skip()
    panels = -(-512 // kernels.panel) * kernels.panel
    sizes = {
        kind: NativeMatrix(kernels, KINDS[kind][0](512, 640)).bytes / (panels * 640)
        for kind in ("8 bits", "bfloat16", "float32")
    }
    assert sizes == {"8 bits": 1.25, "bfloat16": 2.0, "float32": 4.0}
