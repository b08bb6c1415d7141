"""FlashAttention kernels that return (out, lse): which one fits, and its calling conventions.

    device   kernel                                            dtypes            GQA
    CPU      aten._scaled_dot_product_flash_attention_for_cpu  fp64 32 16 bf16   folded *
    CUDA     flash_attn.flash_attn_with_kvcache, if installed  fp16 bf16         folded
    CUDA     aten._scaled_dot_product_flash_attention          fp16 bf16         folded
    CUDA     aten._scaled_dot_product_efficient_attention      fp32, old GPUs    folded
    other    two matrix products (`dense.py`)                  any               folded

"Folded": heads that share a key head become more query rows, [batch, key heads, group * n, d].
Over keys that every node sees this is exact, needs no mask, reads each key once per group instead
of once per head, and makes no expanded copy. * Under a mask the CPU kernel takes all query heads as
they are, over fewer key heads.

Two traps, both handled here: the CPU kernel divides by zero (the process dies) on an empty key
range and reports lse 0 for a fully masked row; flash_attn reports lse +inf for an empty range
(its C++ source writes INFINITY when the row sum is 0).

Not yet run on a GPU: the three CUDA rows were written against flash_attn 2.8's and PyTorch 2.13's
documentation and checked on meta tensors (shapes) and against a CPU stand-in (values).
"""

from __future__ import annotations

import functools
import importlib.util
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .dense import dense_attention
from .masks import Bias

aten = torch.ops.aten
Partial = tuple[Tensor, Tensor]


def fold_heads(q: Tensor, key_heads: int) -> Tensor:
    """[batch, heads, n, d] -> [batch, key heads, group * n, d]; copies only if it must."""
    batch, heads, nodes, head_dim = q.shape
    if heads == key_heads:
        return q
    return q.reshape(batch, key_heads, heads // key_heads * nodes, head_dim)


def kernel_for(q: Tensor, k: Tensor, v: Tensor, softcap: float | None) -> str:
    """Name of the PyTorch kernel for unmasked attention: "cpu", "flash", "efficient", "dense"."""
    device, dtype, size = q.device.type, q.dtype, q.shape[-1]
    if softcap is not None or v.shape[-1] != size or k.stride(-1) != 1 or v.stride(-1) != 1:
        return "dense"
    if device == "cpu":
        return "cpu"
    if device == "cuda" and size % 8 == 0 and size <= 256:
        half = dtype in (torch.float16, torch.bfloat16)
        if half and flash_generation(q.device):
            return "flash"
        if half or dtype == torch.float32:
            return "efficient"
    return "dense"


@functools.cache
def flash_generation(device: torch.device) -> bool:
    """FlashAttention-2 needs compute capability 8.0 (Ampere) or later."""
    return torch.cuda.get_device_capability(device) >= (8, 0)


def unmasked_attention(
    q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float | None = None
) -> Partial:
    """(out, lse) of q [batch, key heads, m, d] over all of k, v [batch, key heads, keys, d].

    k and v may be views into a larger cache (unit stride in the last dimension). keys >= 1.
    """
    return run_kernel(kernel_for(q, k, v, softcap), q, k, v, scale=scale, softcap=softcap)


def run_kernel(
    name: str, q: Tensor, k: Tensor, v: Tensor, *, scale: float, softcap: float | None = None
) -> Partial:
    """`unmasked_attention` by the kernel of that name (see `kernel_for`)."""
    if name == "cpu":
        return aten._scaled_dot_product_flash_attention_for_cpu(q, k, v, scale=scale)
    if name == "flash":
        return aten._scaled_dot_product_flash_attention(q, k, v, scale=scale)[:2]
    if name == "efficient":
        return efficient_attention(q, k, v, None, scale=scale)
    return dense_attention(q, k, v, None, scale=scale, softcap=softcap)


def efficient_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None, *, scale: float
) -> Partial:
    """CUDA memory-efficient kernel. Its lse is padded to a multiple of 32 rows: cut off."""
    if bias is not None:
        bias = bias.expand(q.shape[0], q.shape[1], -1, -1)
    out, lse = aten._scaled_dot_product_efficient_attention(q, k, v, bias, True, scale=scale)[:2]
    return out, lse[..., : q.shape[2]]


def masked_attention(
    q: Tensor, k: Tensor, v: Tensor, bias: Bias, *, scale: float, softcap: float | None = None
) -> Partial:
    """(out, lse) under an additive mask; rows that see no key give out 0 and lse -inf.

    q [batch, key heads or, for the CPU kernel, any multiple, m, d]; k, v [batch, key heads,
    keys >= 1, d]; bias over (m, keys).
    out is in q's dtype or, from `dense_attention`, wider.
    """
    if kernel_for(q, k, v, softcap) != "cpu":
        return dense_attention(q, k, v, bias.bias, scale=scale, softcap=softcap)
    out, lse = aten._scaled_dot_product_flash_attention_for_cpu(
        q, k, v, attn_mask=bias.bias, scale=scale
    )
    if bias.dead is not None:
        lse = lse.masked_fill(bias.dead, -torch.inf)
    return out, lse


@functools.cache
def kvcache_kernel() -> Callable[..., Any] | None:
    """`flash_attn.flash_attn_with_kvcache` where the flash_attn package is installed."""
    if importlib.util.find_spec("flash_attn") is None:
        return None
    from flash_attn import flash_attn_with_kvcache

    return flash_attn_with_kvcache


def kvcache_fits(q: Tensor, v: Tensor) -> bool:
    """What flash_attn takes: Ampere or later, fp16 or bf16, head size a multiple of 8 up to 256."""
    size = q.shape[-1]
    half = q.dtype in (torch.float16, torch.bfloat16)
    fits = half and size % 8 == 0 and size <= 256 and v.shape[-1] == size
    return fits and q.is_cuda and flash_generation(q.device)


def kvcache_attention(
    kernel: Callable[..., Any],
    q: Tensor,
    k: Tensor,
    v: Tensor,
    starts: Tensor,
    ends: Tensor,
    *,
    scale: float,
    softcap: float | None = None,
) -> Partial:
    """Attention of every row b over its own cache slots starts[b] .. ends[b]-1, in one call.

    q [batch, key heads, m, d]; k, v [batch, key heads, capacity, d]; starts, ends int32 [batch].
    flash_attn wants [batch, sequence, heads, d]; the transposed cache is passed as a view.
    `cache_seqlens` counts from slot 0, left padding included. num_splits=0 lets the kernel split
    over keys, which is what keeps the GPU busy when there are few query rows.
    """
    out, lse = kernel(
        q.transpose(1, 2),
        k.transpose(1, 2),
        v.transpose(1, 2),
        cache_seqlens=ends,
        cache_leftpad=starts,
        softmax_scale=scale,
        causal=False,
        softcap=softcap or 0.0,
        num_splits=0,
        return_softmax_lse=True,
    )
    return out.transpose(1, 2), lse.masked_fill((ends <= starts)[:, None, None], -torch.inf)
