"""Attention of a pass over trees by the compiled kernels: rotation, cache and softmax in one call.

What the kernel does not know (windows that hide something, rows at slots of their own choice) is
left to the layer's usual way.
"""

from __future__ import annotations

import ctypes
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.attention import TreeContext
from lookahead.kv_cache import TreeCache

from .build import Kernels


class Geometry(NamedTuple):
    """What every layer of a pass has in common: arrays [batch] of slots, and the masks
    [batch or 1, nodes, nodes] of one byte each."""

    starts: NDArray[np.int64]
    lengths: NDArray[np.int64]
    mask: NDArray[np.uint8]


def geometry(
    cache: Any, batch: int, nodes: int, mask: Tensor | None, context: TreeContext | None,
    window: int | None,
) -> Geometry | None:  # fmt: skip
    """The geometry of a pass, or None where the kernel does not apply."""
    if not isinstance(cache, TreeCache) or cache.static is not None or len(cache.starts) != batch:
        return None
    if context is None:
        if mask is not None or nodes > 1 or (window is not None and max(cache.starts) >= window):
            return None
        lengths = np.array(cache.starts, dtype=np.int64)
        return Geometry(np.zeros_like(lengths), lengths, np.ones((1, 1, 1), dtype=np.uint8))
    if context.effective(window) is not None or context.width != nodes:
        return None

    def make() -> Geometry | None:
        times = batch if len(context.lens) == 1 else 1
        lens, starts = list(context.lens) * times, list(context.starts) * times
        if lens != cache.starts:
            return None
        mask = np.ascontiguousarray(context.host_mask.numpy()).view(np.uint8)
        return Geometry(np.array(starts, dtype=np.int64), np.array(lens, dtype=np.int64), mask)

    return context.derive(("compiled", batch), make)


class Pass(ctypes.Structure):
    """What the kernels are told of a pass; see ``stack.h``."""

    _fields_ = [
        *((name, ctypes.c_void_p) for name in ("cos", "sin")),
        ("turns", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("starts", "lengths", "mask")),
        *(
            (name, ctypes.c_int64)
            for name in (
                "masks", "batch", "nodes", "heads", "key_heads", "size",
                "row_stride", "head_stride", "slot_stride",
            )
        ),
        ("scale", ctypes.c_float),
    ]  # fmt: skip


class Heads(NamedTuple):
    """Heads of queries, of keys, and their size; what queries times keys are scaled by."""

    queries: int
    keys: int
    size: int
    scale: float


def describe(
    embeddings: tuple[Tensor, Tensor], cache: Tensor, where: Geometry, heads: Heads, nodes: int
) -> Pass:
    """A pass for the kernels; it holds addresses of its arguments, which must outlive it.

    ``embeddings``: cosine and sine [batch or 1, n, d], contiguous; ``cache``: keys of one layer.
    """
    cos, sin = embeddings
    return Pass(
        cos.data_ptr(), sin.data_ptr(), cos.shape[0], where.starts.ctypes.data,
        where.lengths.ctypes.data, where.mask.ctypes.data, where.mask.shape[0],
        len(where.lengths), nodes, heads.queries, heads.keys, heads.size, *cache.stride()[:3],
        heads.scale,
    )  # fmt: skip


def attend(
    kernels: Kernels, qkv: Tensor, embeddings: tuple[Tensor, Tensor], keys: Tensor, values: Tensor,
    where: Geometry, heads: Heads,
) -> Tensor:  # fmt: skip
    """Rotate queries and keys, write keys and values into the cache, attend.

    ``qkv`` [batch, n, heads + 2 * key heads, d], changed in place; ``embeddings``: cosine and sine
    [batch or 1, n, d]; ``keys``, ``values``: the cache [batch, key heads, slots, d]. All fp32 on a
    CPU. Returns [batch, n, heads, d].
    """
    batch, nodes, _, size = qkv.shape
    turns = embeddings[0].contiguous(), embeddings[1].contiguous()
    out = qkv.new_empty(batch, nodes, heads.queries, size)
    described = describe(turns, keys, where, heads, nodes)
    kernels.attention(
        ctypes.byref(described), qkv.data_ptr(), keys.data_ptr(), values.data_ptr(),
        out.data_ptr(), torch.get_num_threads(),
    )  # fmt: skip
    return out


def fits(
    batch: int, nodes: int, embeddings: tuple[Tensor, Tensor], keys: Any, values: Any,
    where: Geometry, heads: Heads,
) -> bool:  # fmt: skip
    """Whether the cache of a layer and the angles are as the kernels take them."""
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
        return False
    turns = {tuple(x.shape) for x in embeddings}
    size = heads.size
    return (
        all(
            x.dtype == torch.float32 and x.device.type == "cpu" for x in (*embeddings, keys, values)
        )
        and keys.shape[:2] == (batch, heads.keys)
        and keys.shape[3] == size
        and keys.shape[2] >= where.lengths.max() + nodes
        and values.shape == keys.shape
        and values.stride() == keys.stride()
        and keys.stride(3) == 1
        and turns in ({(1, nodes, size)}, {(batch, nodes, size)})
    )


def causal(kernels: Kernels, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    """Attention of a prompt over itself, node i over nodes 0 to i.

    ``q`` [batch, heads, n, d], ``k`` and ``v`` [batch, key heads, n, d], fp32 on a CPU, any strides
    with a contiguous last dimension. Returns [batch, n, heads, d].
    """
    batch, heads, nodes, size = q.shape
    out = q.new_empty(batch, nodes, heads, size)
    strides = [np.array(x.stride(), dtype=np.int64) for x in (q, k, v)]
    places = [
        x for t, s in zip((q, k, v), strides, strict=True) for x in (t.data_ptr(), s.ctypes.data)
    ]
    kernels.causal(
        *places, out.data_ptr(), batch, nodes, heads, k.shape[1], size, scale,
        torch.get_num_threads(),
    )  # fmt: skip
    return out


def is_prompt(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, window: int | None) -> bool:
    """Whether ``causal`` is what is asked for: no mask, no earlier keys, no window that hides."""
    nodes = q.shape[2]
    return (
        mask is None
        and nodes > 1
        and k.shape == v.shape == (*k.shape[:2], nodes, q.shape[3])
        and (window is None or nodes <= window)
        and all(x.dtype == torch.float32 and x.stride(3) == 1 for x in (q, k, v))
        and all(x.device.type == "cpu" for x in (q, k, v))
    )
