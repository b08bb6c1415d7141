"""Decoder layers as the kernels see them."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence

import torch
from torch import Tensor

from .attention import Pass
from .build import Kernels
from .matrix import NativeMatrix, Packed


class Layer(ctypes.Structure):
    """Weights of a layer; see ``stack.h``."""

    _fields_ = [
        *((name, Packed) for name in ("qkv", "out", "gate_up", "down")),
        *((f"{name}norm", ctypes.c_void_p) for name in ("", "after_", "query_", "key_")),
        *((f"{name}eps", ctypes.c_float) for name in ("", "after_", "query_", "key_")),
    ]


def describe_layer(
    matrices: Sequence[NativeMatrix], norms: Sequence[tuple[Tensor | None, float]]
) -> Layer:
    """Matrices (queries, keys and values; output; gate and up; down) and norms (before attention,
    after it, of queries, of keys), as addresses: the arguments must outlive what is returned."""
    weights = [None if weight is None else weight.data_ptr() for weight, _ in norms]
    return Layer(*(matrix.described() for matrix in matrices), *weights, *(eps for _, eps in norms))


def run_layers(
    kernels: Kernels, described: Pass, layers: ctypes.Array[Layer], inner: int, x: Tensor,
    keys: Tensor, values: Tensor,
) -> None:  # fmt: skip
    """Run ``layers`` over ``x`` [..., hidden], contiguous, in place.

    ``inner``: width of the feed-forward part; ``keys``, ``values``: the cache [layers, batch, key
    heads, slots, d].
    """
    kernels.stack(
        ctypes.byref(described), layers, len(layers), x.shape[-1], inner, x.data_ptr(),
        keys.data_ptr(), values.data_ptr(), keys.stride(0), torch.get_num_threads(),
    )  # fmt: skip
