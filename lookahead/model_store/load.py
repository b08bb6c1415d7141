"""Loads a resolved model folder in a dtype on a device."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from .errors import ModelStoreError
from .store import ResolvedModel

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True)
class LoadOptions:
    """Where and how to hold the weights.

    Attributes:
        dtype: "float32", "bfloat16", "float16", or "auto": float32 on a CPU, where the output is
            exactly that of plain decoding, and the checkpoint's own dtype elsewhere.
        device: a torch device such as "cpu" or "cuda:1", or "auto": CUDA if there is any, else CPU.

    Raises:
        ValueError: an unknown dtype.
    """

    dtype: str = "auto"
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.dtype != "auto" and self.dtype not in DTYPES:
            raise ValueError(f"dtype must be one of auto, {', '.join(DTYPES)}; got {self.dtype!r}.")

    def torch_device(self) -> torch.device:
        """The device to use; ValueError if it is unknown or absent."""
        if self.device == "auto":
            return torch.device("cuda" if torch.cuda.is_available() else "cpu")
        try:
            device = torch.device(self.device)
            torch.zeros(1, device=device).item()  # "meta" is a device that holds nothing
        except (RuntimeError, AssertionError, NotImplementedError) as error:
            raise ValueError(f"Device {self.device!r} is not available on this machine.") from error
        return device

    def torch_dtype(self, device: torch.device) -> torch.dtype | str:
        """The dtype argument for ``from_pretrained`` on ``device``."""
        if self.dtype == "auto":
            return torch.float32 if device.type == "cpu" else "auto"
        return DTYPES[self.dtype]


@dataclass(frozen=True)
class LoadedModel:
    """A causal LM in evaluation mode, its tokenizer, and where they came from."""

    model: Any
    tokenizer: Any
    path: Path
    origin: str


def load(resolved: ResolvedModel, options: LoadOptions | None = None) -> LoadedModel:
    """Load the model and tokenizer of a folder.

    Raises:
        ModelStoreError: transformers cannot load what lies there.
        ValueError: the device is unknown or absent.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    options = options or LoadOptions()
    device = options.torch_device()
    try:
        tokenizer = AutoTokenizer.from_pretrained(resolved.path)
        model = AutoModelForCausalLM.from_pretrained(
            resolved.path, dtype=options.torch_dtype(device)
        )
        model = model.to(device).eval()
    except Exception as error:  # on damaged files transformers fails in many ways
        reason = (str(error).strip() or type(error).__name__).split("\n")[0].rstrip(".")
        raise ModelStoreError(
            f"The model in {resolved.path} cannot be loaded ({reason}): give another as --model."
        ) from error
    return LoadedModel(model, tokenizer, resolved.path, resolved.origin)
