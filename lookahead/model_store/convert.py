"""GGUF file -> Hugging Face model folder, through transformers' own GGUF reader."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from .errors import ModelStoreError, is_disk_full


def check_gguf(path: Path) -> None:
    """Raise `ModelStoreError` unless ``path`` begins as a GGUF file does."""
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ModelStoreError(f"{path} is no GGUF file: give a .gguf file or a model folder.")


def convert_gguf(gguf: Path, folder: Path) -> None:
    """Write the model and tokenizer of ``gguf`` to ``folder``, dequantized to float32.

    Loading the result takes seconds where loading the GGUF file takes half a minute.

    Raises:
        ModelStoreError: transformers cannot read this GGUF file.
    """
    from transformers import AutoModelForCausalLM, AutoTokenizer

    where, name = str(gguf.parent.resolve()), gguf.name
    try:
        tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)
        model = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    except Exception as error:  # on a damaged file the reader fails in many ways
        if is_disk_full(error):
            raise
        reason = str(error).strip().split("\n")[0].rstrip(".")
        raise ModelStoreError(
            f"transformers cannot read {gguf.name} ({reason}): give a model folder instead."
        ) from error
    _unmark_quantized(model)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def _unmark_quantized(model: Any) -> None:
    """Remove what says "quantized": the weights are dense now, and saving would refuse or undo."""
    for name in ("quantization_config", "_pre_quantization_dtype"):
        if hasattr(model.config, name):
            delattr(model.config, name)
    model.hf_quantizer = None
    model.is_quantized = False
    model._weight_conversions = None
