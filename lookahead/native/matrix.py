"""A linear layer's weight, packed for the compiled kernels."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from .build import Kernels

_ALIGNED = 16  # floats of a cache line


class Norm(NamedTuple):
    """RMS normalisation: weight [inner] and epsilon."""

    weight: Tensor
    eps: float


class NativeMatrix(nn.Module):
    """``x @ weight.T + bias`` over a weight [outer, inner], fp32 on a CPU, for inference.

    With ``up`` [outer, inner] it is the first half of a gated feed-forward layer:
    ``silu(x @ weight.T) * (x @ up.T)``. Each sum runs in the same order whatever the number of
    rows, so a row's result does not depend on the rows beside it. Raises ValueError for weights
    and inputs of another kind.
    """

    def __init__(
        self, kernels: Kernels, weight: Tensor, bias: Tensor | None = None, up: Tensor | None = None
    ) -> None:
        super().__init__()
        self.outer, self.inner = weight.shape
        _check(weight, (self.outer, self.inner))
        if up is not None:
            _check(up, (self.outer, self.inner))
            if bias is not None:
                raise ValueError("a gated matrix has no bias")
        if bias is not None:
            _check(bias, (self.outer,))
        self._kernels, self._gated = kernels, up is not None
        self._columns = 2 * self.outer if self._gated else self.outer
        self._bias = None if bias is None else bias.contiguous()
        count = -(-self._columns // kernels.panel) * kernels.panel * self.inner
        held = torch.empty(count + _ALIGNED, dtype=torch.float32, device="cpu")
        first = -(held.data_ptr() // 4) % _ALIGNED
        self._packed = held[first : first + count]
        weight, up = weight.contiguous(), None if up is None else up.contiguous()
        kernels.pack(
            weight.data_ptr(), _address(up), self._packed.data_ptr(), self._columns, self.inner,
            torch.get_num_threads(),
        )  # fmt: skip

    def forward(
        self, x: Tensor, norm: Norm | None = None, residual: Tensor | None = None
    ) -> Tensor:
        """``x`` [..., inner], normalised first if ``norm`` is given -> [..., outer], ``residual``
        [..., outer] added."""
        if x.dtype != torch.float32 or x.shape[-1] != self.inner or x.device.type != "cpu":
            raise ValueError(
                f"inputs must be fp32 [..., {self.inner}] on a CPU, got {x.dtype} {tuple(x.shape)}"
            )
        x = x.contiguous()
        y = x.new_empty(*x.shape[:-1], self.outer)
        if residual is not None:
            _check(residual, y.shape)
            residual = residual.contiguous()
        scale, eps = norm if norm is not None else (None, 0.0)
        if scale is not None:
            _check(scale, (self.inner,))
            scale = scale.contiguous()
        self._kernels.linear(
            x.data_ptr(), self._packed.data_ptr(), _address(self._bias), _address(scale), eps,
            _address(residual), y.data_ptr(), x.numel() // self.inner, self.inner, self._columns,
            self._gated, torch.get_num_threads(),
        )  # fmt: skip
        return y


def _address(tensor: Tensor | None) -> int | None:
    return None if tensor is None else tensor.data_ptr()


def _check(tensor: Tensor, shape: tuple[int, ...]) -> None:
    if tensor.dtype != torch.float32 or tensor.device.type != "cpu" or tensor.shape != shape:
        raise ValueError(
            f"a fp32 tensor {tuple(shape)} on a CPU is needed, got {tensor.dtype} "
            f"{tuple(tensor.shape)}"
        )
