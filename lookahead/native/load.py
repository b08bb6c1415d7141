"""The kernels, built and tried: what a compiler makes is believed only if it computes rightly."""

from __future__ import annotations

from pathlib import Path

import platformdirs
import torch
from torch import Tensor

from .build import Kernels, NoKernels, build
from .trials import TRIALS

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

    for trial in TRIALS:
        found, expected = trial(kernels, normal)
        if not torch.allclose(found, expected, rtol=_TOLERANCE, atol=_TOLERANCE):
            return f"the compiled kernels compute wrongly ({trial.__name__})"
    return ""
