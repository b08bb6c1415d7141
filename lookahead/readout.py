"""What a pass says at each node, brought to the host in one transfer."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.native.build import Kernels
from lookahead.native.top import likeliest, takes
from lookahead.sampling import top_tokens


@dataclass(frozen=True)
class Readout:
    """Lists by row and node: picks and the k likeliest tokens, with ``probs`` float32 [rows, nodes,
    k]; ``broken`` is True where the largest logit of a node is NaN.
    """

    picks: list[list[int]]
    tokens: list[list[list[int]]]
    probs: NDArray[np.float32]
    broken: list[list[bool]]


def read_nodes(
    logits: Tensor, picks: Tensor | None, k: int, kernels: Kernels | None = None
) -> Readout:
    """Read ``logits`` [rows, nodes, vocabulary]; ``picks`` [rows, nodes], None for the argmax."""
    k = min(k, logits.shape[-1])
    if kernels is not None and takes(logits):
        return _read_compiled(kernels, logits, picks, k)
    on_cpu = logits.device.type == "cpu"
    tokens = probs = None
    if k:
        values, tokens, probs = top_tokens(logits, k)
        highest, best = values[..., 0], tokens[..., 0]
    if not on_cpu or k < 2:
        highest, best = logits.float().max(-1)
    elif picks is None and bool((tied := values[..., 0] == values[..., 1]).any()):
        # On a CPU the argmax takes as long as the top k: only ties, where it is defined, need it.
        best = best.masked_scatter(tied, logits[tied].argmax(-1))
    columns = [(best if picks is None else picks).double()[..., None], highest.double()[..., None]]
    if tokens is not None and probs is not None:
        columns += [tokens.double(), probs.double()]  # a double holds any token id exactly
    host = torch.cat(columns, dim=-1).cpu().numpy()
    ids = host[..., [0, *range(2, 2 + k)]].astype(np.int64)
    return Readout(
        ids[..., 0].tolist(),
        ids[..., 1:].tolist(),
        host[..., 2 + k :].astype(np.float32),
        np.isnan(host[..., 1]).tolist(),
    )


def _read_compiled(kernels: Kernels, logits: Tensor, picks: Tensor | None, k: int) -> Readout:
    found = likeliest(kernels, logits, max(k, 1))
    picked = found.tokens[..., 0] if picks is None else picks.numpy()
    return Readout(
        picked.tolist(),
        found.tokens[..., :k].tolist(),
        found.chances[..., :k],
        np.isnan(found.logits[..., 0]).tolist(),
    )
