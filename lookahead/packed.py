"""Cheaper linear layers for passes of few rows on a CPU, put into a shared copy of a model.

1. Prepacked: a layer holds its weight once more, in panels for the compiled kernels (fp32, where
   there are any) or in the blocked layout of oneDNN, which PyTorch otherwise makes anew on every
   call; for 2 to 64 rows that is most of the time.
2. Joint: siblings that read the same input (queries, keys and values; gate and up) are one matrix.
3. Padded: kernels work on blocks of rows, and one row can take longer than four. Where that was
   measured with oneDNN, shorter inputs are padded.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from lookahead.native.build import Kernels
from lookahead.native.matrix import NativeMatrix

# Siblings that are given the same input, by the names that models use for them.
_JOINED = (
    ("q_proj", "k_proj", "v_proj"),
    ("gate_proj", "up_proj"),
    ("w1", "w3"),
)
_PADDED_ROWS = 4
_TIMED_BYTES = 1 << 28  # of weights per shape: more than caches hold
_CACHED_BYTES = 1 << 25  # with less in all, weights come from a cache and rows hardly matter
_WORTH_PADDING = 0.95


class PackedMatrix(nn.Module):
    """``x @ weight.T + bias`` over a weight [out, in] prepacked for oneDNN; inference on a CPU.

    float32 or bfloat16. Inputs of fewer than ``least_rows`` rows are padded to as many.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__()
        self.shape = tuple(weight.shape)
        self.bytes = weight.numel() * weight.element_size()
        self.dtype = weight.dtype
        self.least_rows = 1
        self._bias = bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(weight, None)

    def forward(self, x: Tensor) -> Tensor:
        rows = x.numel() // x.shape[-1]
        if rows >= self.least_rows or rows == 0:
            return self._product(x)
        padded = x.new_zeros(self.least_rows, x.shape[-1])
        padded[:rows] = x.reshape(rows, -1)
        return self._product(padded)[:rows].view(*x.shape[:-1], -1)

    def _product(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self._bias, "none", [], "")


class PackedLinear(nn.Module):
    """``nn.Linear``, or a part of several joined ones, over a packed matrix.

    ``joint`` computes the outputs of all siblings for the first one that is asked.
    """

    def __init__(self, linear: nn.Linear, joint: JointMatrix, index: int) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight  # some models look at it; also keeps it alive
        self.bias = linear.bias
        self.joint, self.index = joint, index

    def forward(self, x: Tensor) -> Tensor:
        made: Tensor = self.joint(x, self.index)
        return made


class JointMatrix(nn.Module):
    """Linear layers over the same input as one matrix."""

    def __init__(self, linears: Sequence[nn.Linear], kernels: Kernels | None = None) -> None:
        super().__init__()
        self.count = len(linears)
        self._sizes = [linear.out_features for linear in linears]
        weights = [linear.weight.detach() for linear in linears]
        biases = [linear.bias.detach() for linear in linears if linear.bias is not None]
        weight = weights[0] if self.count == 1 else torch.cat(weights)
        bias = None if not biases else biases[0] if self.count == 1 else torch.cat(biases)
        self.matrix: PackedMatrix | NativeMatrix
        if kernels is not None and all(can_compile(linear) for linear in linears):
            self.matrix = NativeMatrix(kernels, weight, bias)
        else:
            self.matrix = PackedMatrix(weight, bias)
        self._last: tuple[Tensor, Sequence[Tensor]] | None = None

    def forward(self, x: Tensor, index: int) -> Tensor:
        """Output of the layer of that index. One attribute holds input and outputs together, so
        that passes in several threads never see each other's."""
        if self.count == 1:
            made: Tensor = self.matrix(x)
            return made
        last = self._last
        if last is None or last[0] is not x:
            last = (x, self.matrix(x).split(self._sizes, -1))
        self._last = last if index < self.count - 1 else None
        return last[1][index]


def joined(layers: Sequence[Any]) -> bool:
    """Whether these layers, in this order, are all the parts of one joint matrix."""
    joint = getattr(layers[0], "joint", None)
    return (
        isinstance(joint, JointMatrix)
        and joint.count == len(layers)
        and all(isinstance(layer, PackedLinear) and layer.joint is joint for layer in layers)
        and [layer.index for layer in layers] == list(range(joint.count))
    )


def can_pack(linear: nn.Module, kernels: Kernels | None = None) -> bool:
    """Whether a layer can be replaced by a ``PackedLinear``."""
    if type(linear) is not nn.Linear or linear.weight.device.type != "cpu":
        return False
    if kernels is not None and can_compile(linear):
        return True
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if linear.weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return linear.weight.dtype == torch.float32


def can_compile(linear: nn.Module) -> bool:
    """Whether the compiled kernels take a layer."""
    if type(linear) is not nn.Linear or linear.weight.device.type != "cpu":
        return False
    return {w.dtype for w in (linear.weight, linear.bias) if w is not None} == {torch.float32}


def pack_linears(model: nn.Module, kernels: Kernels | None = None) -> int:
    """Replace the linear layers of a shared copy; return how many."""
    packed: dict[int, PackedLinear] = {}
    for module in list(model.modules()):
        children = module.named_children()
        linears = {n: c for n, c in children if isinstance(c, nn.Linear) and can_pack(c, kernels)}
        for group in _siblings(linears):
            if all(id(linear) not in packed for linear in group):
                joint = JointMatrix(group, kernels)
                for index, linear in enumerate(group):
                    packed[id(linear)] = PackedLinear(linear, joint, index)
        for name, linear in linears.items():
            setattr(module, name, packed[id(linear)])
    _pad_where_faster([m for m in model.modules() if isinstance(m, PackedMatrix)])
    return len(packed)


def _siblings(linears: dict[str, nn.Linear]) -> list[list[nn.Linear]]:
    """The linear layers of one module, those that read the same input together."""
    groups: list[list[nn.Linear]] = []
    alone = dict(linears)
    for names in _JOINED:
        group = [alone[name] for name in names if name in alone]
        alike = {(linear.in_features, linear.bias is None) for linear in group}
        if len(group) == len(names) and len(alike) == 1 and len({id(x) for x in group}) > 1:
            groups.append(group)
            alone = {name: linear for name, linear in alone.items() if name not in names}
    return groups + [[linear] for linear in alone.values()]


def _pad_where_faster(matrices: Sequence[PackedMatrix]) -> None:
    """Time one row against several, shape by shape."""
    if sum(matrix.bytes for matrix in matrices) < _CACHED_BYTES:
        return
    by_shape: dict[tuple[int, ...], list[PackedMatrix]] = {}
    for matrix in matrices:
        by_shape.setdefault(matrix.shape, []).append(matrix)
    for (_, size), alike in by_shape.items():
        timed = alike[: max(1, _TIMED_BYTES // alike[0].bytes)]
        one = torch.zeros(1, size, dtype=alike[0].dtype)
        alone = _best_time(timed, one)
        for matrix in alike:
            matrix.least_rows = _PADDED_ROWS
        if _best_time(timed, one) > _WORTH_PADDING * alone:
            for matrix in alike:
                matrix.least_rows = 1


def _best_time(run: Sequence[Callable[[Tensor], Tensor]], x: Tensor, repeats: int = 3) -> float:
    times = []
    with torch.inference_mode():
        for _ in range(repeats):
            begin = time.perf_counter()
            for each in run:
                each(x)
            times.append(time.perf_counter() - begin)
    return min(times)
