"""Small tasks for the kernels, and what PyTorch makes of them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Geometry, Heads, attend, causal, describe
from .build import Kernels
from .layers import Layer, describe_layer, run_layers
from .matrix import Form, NativeMatrix, Norm
from .top import likeliest

Normal = Callable[..., Tensor]


def product(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """A gated product and one with all that may surround it, for every form of weights, at several
    numbers of rows."""
    found, expected = [], []
    x, bias, norm = normal(17, 64), normal(33), Norm(normal(64), 1e-5)
    for form in Form:
        gate, up, down = (
            of_form(form, normal(*size) / 8) for size in ((64, 64), (64, 64), (33, 64))
        )
        square = of_form(form, normal(64, 64) / 8)
        first, second = NativeMatrix(kernels, gate, up=up), NativeMatrix(kernels, down, bias)
        before = NativeMatrix(kernels, square)
        for rows in (1, 5, 17):
            some, rest = x[:rows], x[:rows, :33]
            inner = gated(some @ square.T, gate, up)
            expected.append(F.linear(normalised(inner, norm), down, bias) + rest)
            found.append(second(first(before(some)), norm, rest))
    return torch.cat(found), torch.cat(expected)


def of_form(form: Form, weight: Tensor) -> Tensor:
    """Weights close to the given ones that can be kept like this."""
    if form == Form.HALF:
        return weight.bfloat16().float()
    return (weight * 64).round() / 64 if form == Form.CODES else weight


def normalised(x: Tensor, norm: Norm) -> Tensor:
    return x * x.pow(2).mean(-1, keepdim=True).add(norm.eps).rsqrt() * norm.weight


def gated(x: Tensor, gate: Tensor, up: Tensor) -> Tensor:
    return F.silu(x @ gate.T) * (x @ up.T)


def attention(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
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
    found = attend(kernels, qkv, turn, keys, values, where, Heads(4, 2, size, size**-0.5))
    k, v = torch.cat([keys[:, :, :slots], k], 2), torch.cat([values[:, :, :slots], v], 2)
    mask = torch.cat([torch.ones(nodes, slots, dtype=torch.bool, device="cpu"), seen], 1)
    expected = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=True)
    return found, expected.transpose(1, 2)


def prompt(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """A prompt of more than one block."""
    q, k, v = normal(1, 4, 90, 16), normal(1, 2, 90, 16), normal(1, 2, 90, 16)
    expected = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)
    return causal(kernels, q, k, v, 0.25), expected.transpose(1, 2)


def top(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """Tokens and probabilities of a vocabulary of many blocks."""
    logits = normal(3, 3000) * 3
    found = likeliest(kernels, logits, 8)
    chances, tokens = logits.softmax(-1).topk(8)
    parts = [torch.from_numpy(found.tokens).float(), torch.from_numpy(found.chances)]
    return torch.cat(parts), torch.cat([tokens.float(), chances])


def stack(kernels: Kernels, normal: Normal) -> tuple[Tensor, Tensor]:
    """Two layers over a chain of three nodes behind five slots, unrotated, heads normalised."""
    heads, nodes, slots = Heads(2, 1, 8, 0.5), 3, 5
    keys, values, x = normal(2, 1, 1, 12, 8), normal(2, 1, 1, 12, 8), normal(nodes, 16)
    sizes = ((32, 16), (16, 16), (24, 16), (24, 16), (16, 24))
    weights = [[normal(*size) / 4 for size in sizes] for _ in range(2)]
    norms = [Norm(normal(size), 1e-5) for size in (16, 16, 8, 8)]
    matrices = [
        (
            NativeMatrix(kernels, qkv), NativeMatrix(kernels, out),
            NativeMatrix(kernels, gate, up=up), NativeMatrix(kernels, down),
        )
        for qkv, out, gate, up, down in weights
    ]  # fmt: skip
    sees = torch.ones(nodes, slots + nodes, dtype=torch.bool, device="cpu").tril(slots)
    expected = x
    for (qkv, out, gate, up, down), k, v in zip(weights, keys, values, strict=True):
        parts = (normalised(expected, norms[0]) @ qkv.T).view(nodes, 4, 8).split([2, 1, 1], 1)
        q, own = normalised(parts[0], norms[2]), normalised(parts[1], norms[3])
        k = torch.cat([k[0, :, :slots], own.transpose(0, 1)], 1)
        v = torch.cat([v[0, :, :slots], parts[2].transpose(0, 1)], 1)
        scores = (q.transpose(0, 1) @ k.transpose(1, 2) * heads.scale).where(sees, -torch.inf)
        mixed = (scores.softmax(-1) @ v).transpose(0, 1).reshape(nodes, 16)
        expected = mixed @ out.T + expected
        expected = gated(normalised(expected, norms[1]), gate, up) @ down.T + expected
    layers = (Layer * 2)(*(describe_layer(each, norms) for each in matrices))
    where = Geometry(
        np.zeros(1, dtype=np.int64),
        np.full(1, slots),
        sees[:, slots:].contiguous().numpy().view(np.uint8)[None],
    )
    turn = torch.ones(1, nodes, 8, device="cpu"), torch.zeros(1, nodes, 8, device="cpu")
    run_layers(kernels, describe(turn, keys[0], where, heads, nodes), layers, 24, x, keys, values)
    return x, expected


TRIALS = (product, attention, prompt, top, stack)
