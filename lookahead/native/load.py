"""The kernels, built and tried: what a compiler makes is believed only if it computes rightly."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import platformdirs
import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Geometry, attend, causal
from .build import Kernels, NoKernels, build
from .matrix import NativeMatrix, Norm
from .top import likeliest

_TOLERANCE = 1e-4  # of results of about 1: far above rounding, far below a mistake


def load_kernels() -> Kernels | str:
    """The kernels, compiled if need be, or why there are none."""
    folder = Path(platformdirs.user_cache_dir("lookahead-decoding", appauthor=False)) / "kernels"
    try:
        kernels = build(folder)
    except NoKernels as reason:
        return str(reason)
    return wrong(kernels) or kernels


def wrong(kernels: Kernels) -> str:
    """Which kernel computes wrongly here, in a sentence, or an empty string. Takes milliseconds."""
    draw = torch.Generator(device="cpu").manual_seed(0)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=draw, dtype=torch.float32, device="cpu")

    for trial in (_product, _attention, _prompt, _top):
        found, expected = trial(kernels, normal)
        if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            return f"the compiled kernels compute wrongly ({trial.__name__[1:]})"
    return ""


Normal = Callable[..., Tensor]


def _product(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """A gated product and one with all that may surround it, at several numbers of rows."""
    x, gate, up = normal(17, 70), normal(41, 70) / 8, normal(41, 70) / 8
    down, bias, weight = normal(33, 41) / 8, normal(33), normal(41)
    first = NativeMatrix(kernels, gate, up=up)
    second = NativeMatrix(kernels, down, bias)
    found, expected = [], []
    for rows in (1, 5, 17):
        inner = F.silu(x[:rows] @ gate.T) * (x[:rows] @ up.T)
        length = inner.pow(2).mean(-1, keepdim=True).add(1e-5).rsqrt()
        rest = x[:rows, :33]
        expected.append((inner * length * weight) @ down.T + bias + rest)
        found.append(second(first(x[:rows]), Norm(weight, 1e-5), rest))
    return torch.cat(found), torch.cat(expected)


def _attention(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """Five nodes over 300 slots, unrotated: two branches below the root."""
    nodes, slots, size = 5, 300, 24
    seen = torch.eye(nodes, dtype=torch.bool, device="cpu")
    seen[:, 0] = seen[2, 1] = seen[4, 3] = True
    qkv, keys, values = normal(1, nodes, 8, size), normal(1, 2, 310, size), normal(1, 2, 310, size)
    where = Geometry(
        np.zeros(1, dtype=np.int64), np.full(1, slots), seen.numpy().view(np.uint8)[None]
    )
    turn = torch.ones(1, nodes, size, device="cpu"), torch.zeros(1, nodes, size, device="cpu")
    q, k, v = qkv.clone().transpose(1, 2).split([4, 2, 2], 1)
    found = attend(kernels, qkv, turn, keys, values, where, 4, size**-0.5)
    k, v = torch.cat([keys[:, :, :slots], k], 2), torch.cat([values[:, :, :slots], v], 2)
    mask = torch.cat([torch.ones(nodes, slots, dtype=torch.bool, device="cpu"), seen], 1)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return found, expected.transpose(1, 2)


def _prompt(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """A prompt of more than one block."""
    q, k, v = normal(1, 4, 90, 16), normal(1, 2, 90, 16), normal(1, 2, 90, 16)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return causal(kernels, q, k, v, 0.25), expected.transpose(1, 2)


def _top(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """Tokens and probabilities of a vocabulary of many blocks."""
    logits = normal(3, 3000) * 3
    found = likeliest(kernels, logits, 8)
    chances, tokens = logits.softmax(-1).topk(8)
    parts = [torch.from_numpy(found.tokens).float(), torch.from_numpy(found.chances)]
    return torch.cat(parts), torch.cat([tokens.float(), chances])
