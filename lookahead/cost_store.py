"""Where measured pass costs are kept between runs: one small file per model, device and
settings."""

from __future__ import annotations

import hashlib
import platform
from pathlib import Path
from typing import Any

import platformdirs
import torch

from lookahead.model import text_config
from lookahead.passes import Passes


def cost_path(model: Any, passes: Passes) -> Path:
    """The file for this model on this machine, in the user's cache folder.

    Named after all that changes the cost of a pass: shape of the model, dtype, device, threads,
    kind of passes, the bytes that they read, and the version of PyTorch.
    """
    passes.module()  # made now, so that its bytes are known
    config = text_config(model)
    shape = {
        name: value
        for name, value in sorted(config.to_dict().items())
        if isinstance(value, int) and not name.endswith("_id")
    }
    device = model.device
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor()
    kind = (passes.kind, passes.packed_bytes, passes.lean, config._attn_implementation)
    what = (
        type(model).__name__, shape, str(model.dtype), device.type, name, platform.node(),
        torch.get_num_threads(), *kind, torch.__version__,
    )  # fmt: skip
    digest = hashlib.sha256(repr(what).encode()).hexdigest()[:24]
    folder = Path(platformdirs.user_cache_dir("lookahead-decoding", appauthor=False))
    return folder / "cost" / f"{digest}.json"
