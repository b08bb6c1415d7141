"""The public entry points: check the arguments, pick a backend, call it, add sinks."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from .context import TreeContext
from .flex import flex_tree_attention
from .merge import add_sinks
from .reference import reference_attention
from .sdpa import one_call_attention
from .select import BACKENDS, choose_backend
from .tree import split_attention


def tree_attention(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    *,
    prefix_lens: int | Sequence[int] | Tensor,
    tree_mask: Tensor,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
    depths: Tensor | None = None,
    prefix_starts: int | Sequence[int] | Tensor = 0,
) -> tuple[Tensor, Tensor]:
    """Exact attention of n tree nodes over a committed prefix and their own ancestors.

    q: [batch, heads, n, d]. k, v: [batch, key heads, capacity, d], heads a multiple of key heads;
        the n tree rows of batch row b are written at slots prefix_lens[b] .. prefix_lens[b]+n-1.
        Slots that a row does not use (padding, spare capacity) have no influence but must hold
        finite numbers: allocate caches with zeros. fp32, fp16, bf16 (fp64 on CPU); any strides
        with a contiguous last dimension, so a preallocated cache is passed as it is.
    prefix_lens, tree_mask, depths, prefix_starts: see `TreeContext`.
    scale: factor on the scores, default d ** -0.5.
    softcap: scores become softcap * tanh(score / softcap) (Gemma 2, arXiv:2408.00118, 2.2).
    window: a node sees keys at most window - 1 positions before its own, measured in depth.
    sinks: [heads], one learned logit per head added to the softmax's denominator.
    backend: "auto", "flash", "sdpa", "flex" or "reference" (`select.py` has auto's rule).

    Returns out [batch, heads, n, d] in q's dtype and lse [batch, heads, n], natural logarithm,
    fp32 (fp64 for fp64 inputs), sinks included. A node that sees no key gets out 0, lse -inf.
    Inference only. Raises ValueError for arguments that do not fit.
    """
    context = TreeContext(prefix_lens, tree_mask, depths, prefix_starts)
    out, lse = attend(
        q, k, v, context, scale=scale, softcap=softcap, window=window, sinks=sinks, backend=backend
    )
    assert lse is not None
    return out, lse


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    *,
    scale: float | None = None,
    softcap: float | None = None,
    window: int | None = None,
    sinks: Tensor | None = None,
    backend: str = "auto",
    need_lse: bool = True,
) -> tuple[Tensor, Tensor | None]:
    """`tree_attention` for callers that share one `TreeContext` over the layers of a pass.

    Masks and index tensors are then made once per pass. With need_lse=False the lse may be None,
    which saves a little work. Other arguments, results and errors as in `tree_attention`.
    """
    check(q, k, v, context, window=window, softcap=softcap, sinks=sinks, backend=backend)
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    window = context.effective(window)
    if backend == "auto":
        group = q.shape[1] // k.shape[1]
        backend = choose_backend(
            context, device=q.device.type, dtype=q.dtype, group=group, window=window
        )
    out: Tensor
    lse: Tensor | None
    if backend == "flash":
        out, lse = split_attention(
            q, k, v, context, scale=scale, softcap=softcap, window=window,
            need_lse=need_lse or sinks is not None,
        )  # fmt: skip
    elif backend == "sdpa":
        out, lse = one_call_attention(q, k, v, context, scale=scale, softcap=softcap, window=window)
    elif backend == "flex":
        out, lse = flex_tree_attention(
            q, k, v, context, scale=scale, softcap=softcap, window=window,
            need_lse=need_lse or sinks is not None,
        )  # fmt: skip
    else:
        wide = torch.float64 if q.dtype == torch.float64 else torch.float32
        out, lse = reference_attention(
            q, k, v, context, scale=scale, softcap=softcap, window=window, dtype=wide
        )
        out = out.to(q.dtype)
    if sinks is not None:
        assert lse is not None
        out, lse = add_sinks(out, lse, sinks)
    return out, lse


def check(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    context: TreeContext,
    *,
    window: int | None,
    softcap: float | None,
    sinks: Tensor | None,
    backend: str,
) -> None:
    """Raise ValueError, saying what to do, unless the arguments of `attend` fit together."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}; got {backend!r}.")
    if q.ndim != 4 or k.ndim != 4 or v.ndim != 4:
        raise ValueError("q, k and v must have four dimensions: batch, heads, rows, head size.")
    batch, heads, nodes, head_dim = q.shape
    if k.shape[0] != batch or k.shape[3] != head_dim or v.shape[:3] != k.shape[:3]:
        raise ValueError(
            "k and v must be [batch, key heads, capacity, head size] with q's batch and head "
            f"size; got q {tuple(q.shape)}, k {tuple(k.shape)}, v {tuple(v.shape)}."
        )
    if not k.shape[1] or heads % k.shape[1]:
        raise ValueError(f"{heads} query heads must be a multiple of {k.shape[1]} key heads.")
    if k.dtype != q.dtype or v.dtype != q.dtype or not q.is_floating_point():
        raise ValueError(f"q, k and v must share a float dtype; got {q.dtype}, {k.dtype}, "
                         f"{v.dtype}.")  # fmt: skip
    if nodes != context.width:
        raise ValueError(f"q has {nodes} rows but tree_mask has {context.width} nodes.")
    if context.rows not in (1, batch):
        raise ValueError(f"prefix_lens and tree_mask are for {context.rows} rows, not {batch}.")
    if max(context.lens) + nodes > k.shape[2]:
        raise ValueError(
            f"k and v hold {k.shape[2]} slots but prefix and tree need "
            f"{max(context.lens) + nodes}: write the tree rows before attending."
        )
    if window is not None and window < 1:
        raise ValueError(f"window must be at least 1 position or None; got {window}.")
    if softcap is not None and softcap <= 0:
        raise ValueError(f"softcap must be positive or None; got {softcap}.")
    if sinks is not None and tuple(sinks.shape) != (heads,):
        raise ValueError(f"sinks must have shape ({heads},); got {tuple(sinks.shape)}.")
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad or v.requires_grad):
        raise ValueError("tree attention has no backward pass: call it under torch.no_grad().")
