"""Attention of a pass over trees by the compiled kernels: rotation, cache and softmax in one call.

What the kernel does not know (windows that hide something, rows at slots of their own choice) is
left to the layer's usual way.
"""

from __future__ import annotations

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


def attend(
    kernels: Kernels, qkv: Tensor, embeddings: tuple[Tensor, Tensor], keys: Tensor, values: Tensor,
    where: Geometry, heads: int, scale: float,
) -> Tensor:  # fmt: skip
    """Rotate queries and keys, write keys and values into the cache, attend.

    ``qkv`` [batch, n, heads + 2 * key heads, d], changed in place; ``embeddings``: cosine and sine
    [batch or 1, n, d]; ``keys``, ``values``: the cache [batch, key heads, slots, d]. All fp32 on a
    CPU. Returns [batch, n, heads, d].
    """
    batch, nodes, _, size = qkv.shape
    cos, sin = (x.contiguous() for x in embeddings)
    out = qkv.new_empty(batch, nodes, heads, size)
    kernels.attention(
        qkv.data_ptr(), cos.data_ptr(), sin.data_ptr(), cos.shape[0], keys.data_ptr(),
        values.data_ptr(), *keys.stride()[:3], where.starts.ctypes.data, where.lengths.ctypes.data,
        where.mask.ctypes.data, where.mask.shape[0], out.data_ptr(), batch, nodes, heads,
        keys.shape[1], size, scale, torch.get_num_threads(),
    )  # fmt: skip
    return out


def fits(
    qkv: Tensor, embeddings: tuple[Tensor, Tensor], keys: Any, values: Any, where: Geometry,
    heads: int,
) -> bool:  # fmt: skip
    """Whether the tensors of a layer are as ``attend`` takes them."""
    if not isinstance(keys, Tensor) or not isinstance(values, Tensor):
        return False
    batch, nodes, all_heads, size = qkv.shape
    tensors = (qkv, *embeddings, keys, values)
    turns = {tuple(x.shape) for x in embeddings}
    return (
        all(x.dtype == torch.float32 and x.device.type == "cpu" for x in tensors)
        and keys.shape[:2] == (batch, (all_heads - heads) // 2)
        and keys.shape[3] == size
        and keys.shape[2] >= where.lengths.max() + nodes
        and values.shape == keys.shape
        and values.stride() == keys.stride()
        and keys.stride(3) == 1
        and qkv.is_contiguous()
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
