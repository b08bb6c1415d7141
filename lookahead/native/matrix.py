"""A linear layer's weight, packed for the compiled kernels."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from enum import IntEnum
from typing import NamedTuple

import torch
from torch import Tensor, nn

from .build import Kernels

_ALIGNED = 64  # bytes of a cache line


class Form(IntEnum):
    """How packed weights are kept: the same fp32 values but for the sign of zero; ``weights.h``."""

    WHOLE = 0
    HALF = 1  # bfloat16: the lower halves are zero
    CODES = 2  # 8 bits, with a scale and a base for 32 weights


class Packed(ctypes.Structure):
    """Where a matrix lies, for the kernels; see ``stack.h``."""

    _fields_ = [
        ("data", ctypes.c_void_p), ("bias", ctypes.c_void_p), ("form", ctypes.c_int64)
    ]  # fmt: skip


class Norm(NamedTuple):
    """RMS normalisation: weight [inner] and epsilon."""

    weight: Tensor
    eps: float


class NativeMatrix(nn.Module):
    """``x @ weight.T + bias`` over a weight [outer, inner], fp32 on a CPU, for inference.

    With ``up`` [outer, inner] it is the first half of a gated feed-forward layer:
    ``silu(x @ weight.T) * (x @ up.T)``. Each sum runs in the same order whatever the number of
    rows, so a row's result does not depend on the rows beside it. The weights are kept in the
    smallest of ``forms`` that loses nothing. Raises ValueError for weights and inputs of another
    kind.
    """

    def __init__(
        self,
        kernels: Kernels,
        weight: Tensor,
        bias: Tensor | None = None,
        up: Tensor | None = None,
        forms: Sequence[Form] = (Form.CODES, Form.HALF, Form.WHOLE),
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
        self.form, self._packed = self._pack(weight.contiguous(), up, forms)

    @property
    def bytes(self) -> int:
        """What a pass reads of it."""
        return self._packed.numel()

    def described(self) -> Packed:
        """The weights for the kernels; the matrix must outlive it."""
        return Packed(self._packed.data_ptr(), _address(self._bias), self.form)

    def _pack(
        self, weight: Tensor, up: Tensor | None, forms: Sequence[Form]
    ) -> tuple[Form, Tensor]:
        """The weights in the first form that holds them."""
        kernels, up = self._kernels, None if up is None else up.contiguous()
        panels = -(-self._columns // kernels.panel)
        for form in forms:
            count = panels * kernels.panel_bytes(form, self.inner)
            held = torch.empty(count + _ALIGNED, dtype=torch.uint8, device="cpu")
            first = -held.data_ptr() % _ALIGNED
            packed = held[first : first + count]
            if kernels.pack(
                weight.data_ptr(), _address(up), packed.data_ptr(), self._columns, self.inner,
                form, torch.get_num_threads(),
            ):  # fmt: skip
                return form, packed
        raise ValueError(f"these weights do not fit {[form.name for form in forms]}")

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
            x.data_ptr(), self._packed.data_ptr(), self.form, _address(self._bias),
            _address(scale), eps, _address(residual), y.data_ptr(), x.numel() // self.inner,
            self.inner, self._columns, self._gated, torch.get_num_threads(),
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
