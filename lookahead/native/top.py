"""The likeliest tokens of every node of a pass, by the compiled kernels."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from .build import Kernels


class Likeliest(NamedTuple):
    """Arrays [..., k], the largest logit first, of equal ones the lower token. The first logit is
    NaN where any of the row is."""

    tokens: NDArray[np.int64]
    logits: NDArray[np.float32]
    chances: NDArray[np.float32]


def takes(logits: Tensor) -> bool:
    """Whether the kernel reads logits of this kind."""
    return logits.dtype == torch.float32 and logits.device.type == "cpu" and logits.numel() > 0


def likeliest(kernels: Kernels, logits: Tensor, k: int) -> Likeliest:
    """The ``k`` likeliest tokens for ``logits`` [..., vocabulary], at most as many as there are."""
    if not takes(logits):
        raise ValueError(f"logits must be fp32 on a CPU, got {logits.dtype} {logits.shape}")
    size = logits.shape[-1]
    if not 1 <= k <= size:
        raise ValueError(f"k must be 1 to {size}, got {k}")
    logits = logits.contiguous()
    shape = (*logits.shape[:-1], k)
    found = Likeliest(
        np.empty(shape, dtype=np.int64),
        np.empty(shape, dtype=np.float32),
        np.empty(shape, dtype=np.float32),
    )
    kernels.top(
        logits.data_ptr(), logits.numel() // size, size, k, *(part.ctypes.data for part in found),
        torch.get_num_threads(),
    )  # fmt: skip
    return found
