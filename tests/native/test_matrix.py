"""Packed matrices of the compiled kernels compute what PyTorch computes in double precision."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from lookahead.native.matrix import NativeMatrix, Norm
from tests.native.kernels import kernels_or_skip


def close(found: Tensor, exact: Tensor, usual: Tensor, scale: Tensor) -> None:
    """No further from the exact result than a few times PyTorch's own in fp32, or than the
    rounding of sums whose terms have ``scale`` as the sum of their sizes."""
    error = float((found.double() - exact).abs().max())
    allowed = 4 * float((usual.double() - exact).abs().max()) + 2e-7 * float(scale.max())
    assert error <= allowed, f"{error:.2e} > {allowed:.2e}"


@given(
    rows=st.integers(1, 80),
    inner=st.integers(1, 700),
    outer=st.integers(1, 90),
    bias=st.booleans(),
    norm=st.booleans(),
    residual=st.booleans(),
    threads=st.integers(1, 3),
    seed=st.integers(0, 99),
)
def test_a_product_with_all_around_it_is_that_of_pytorch(
    rows: int,
    inner: int,
    outer: int,
    bias: bool,
    norm: bool,
    residual: bool,
    threads: int,
    seed: int,
) -> None:
    kernels = kernels_or_skip()
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    weight, x = torch.randn(outer, inner), torch.randn(rows, inner) * 3
    shift = torch.randn(outer) if bias else None
    scale = Norm(torch.rand(inner) + 0.5, 1e-5) if norm else None
    rest = torch.randn(rows, outer) if residual else None

    def expected(dtype: torch.dtype) -> Tensor:
        wide = x.to(dtype)
        if scale is not None:
            length = wide.pow(2).mean(-1, keepdim=True).add(scale.eps).rsqrt()
            wide = wide * length * scale.weight.to(dtype)
        made = F.linear(wide, weight.to(dtype), None if shift is None else shift.to(dtype))
        return made if rest is None else made + rest.to(dtype)

    found = NativeMatrix(kernels, weight, shift)(x, scale, rest)
    scale_of_sums = (x.abs() @ weight.abs().T) * 2 + 4
    close(found, expected(torch.float64), expected(torch.float32), scale_of_sums)


@given(
    rows=st.integers(1, 40),
    inner=st.integers(1, 300),
    outer=st.integers(1, 70),
    seed=st.integers(0, 99),
)
def test_a_gated_matrix_is_silu_of_one_product_times_the_other(
    rows: int, inner: int, outer: int, seed: int
) -> None:
    kernels = kernels_or_skip()
    torch.manual_seed(seed)
    gate, up, x = torch.randn(outer, inner), torch.randn(outer, inner), torch.randn(rows, inner)

    def expected(dtype: torch.dtype) -> Tensor:
        wide = x.to(dtype)
        return F.silu(wide @ gate.to(dtype).T) * (wide @ up.to(dtype).T)

    found = NativeMatrix(kernels, gate, up=up)(x)
    sizes = (x.abs() @ gate.abs().T) * (x.abs() @ up.abs().T)
    close(found, expected(torch.float64), expected(torch.float32), sizes)


@given(st.integers(1, 64), st.integers(0, 63), st.integers(0, 99))
def test_a_row_has_the_same_bits_whatever_rows_are_beside_it(
    rows: int, which: int, seed: int
) -> None:
    torch.manual_seed(seed)
    matrix = NativeMatrix(kernels_or_skip(), torch.randn(50, 333), torch.randn(50))
    norm = Norm(torch.rand(333), 1e-6)
    x = torch.randn(rows, 333)
    row = which % rows
    assert torch.equal(matrix(x, norm)[row], matrix(x[row : row + 1], norm)[0])


def test_a_gate_of_any_size_gives_what_silu_gives() -> None:
    gates = torch.tensor([-1e30, -200.0, -90.0, -20.0, -1e-3, 0.0, 1e-3, 20.0, 90.0, 1e30])
    matrix = NativeMatrix(kernels_or_skip(), gates[:, None], up=torch.ones(len(gates), 1))
    found = matrix(torch.ones(1, 1))[0]
    torch.testing.assert_close(found, F.silu(gates), rtol=1e-6, atol=1e-6)
    broken = NativeMatrix(kernels_or_skip(), torch.tensor([[float("nan")]]), up=torch.ones(1, 1))
    assert broken(torch.ones(1, 1)).isnan().all()


@pytest.mark.parametrize("shape", [(0, 24), (2, 3, 24), (24,)])
def test_inputs_of_any_number_of_dimensions_are_taken(shape: tuple[int, ...]) -> None:
    weight, x = torch.randn(7, 24), torch.randn(shape)
    matrix = NativeMatrix(kernels_or_skip(), weight)
    torch.testing.assert_close(matrix(x), F.linear(x, weight))


def test_strided_inputs_are_read_as_they_are_seen() -> None:
    weight, x = torch.randn(7, 24), torch.randn(24, 5).T
    matrix = NativeMatrix(kernels_or_skip(), weight.T.contiguous().T)
    torch.testing.assert_close(matrix(x), F.linear(x, weight))


@pytest.mark.parametrize(
    "x", [torch.zeros(2, 23), torch.zeros(2, 24, dtype=torch.float64), torch.zeros(2, 24).int()]
)
def test_inputs_of_another_kind_are_refused(x: Tensor) -> None:
    with pytest.raises(ValueError, match="inputs must be fp32"):
        NativeMatrix(kernels_or_skip(), torch.randn(7, 24))(x)


def test_weights_and_residuals_of_another_kind_are_refused() -> None:
    kernels = kernels_or_skip()
    with pytest.raises(ValueError, match="needed"):
        NativeMatrix(kernels, torch.zeros(3, 4, dtype=torch.float64))
    with pytest.raises(ValueError, match="needed"):
        NativeMatrix(kernels, torch.zeros(3, 4), up=torch.zeros(4, 4))
    with pytest.raises(ValueError, match="no bias"):
        NativeMatrix(kernels, torch.zeros(3, 4), torch.zeros(3), torch.zeros(3, 4))
    with pytest.raises(ValueError, match="needed"):
        NativeMatrix(kernels, torch.zeros(3, 4))(torch.zeros(2, 4), None, torch.zeros(2, 4))
