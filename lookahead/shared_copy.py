"""A copy of a model that shares its weights.

The copy is a second set of module objects over the same parameters and buffers; the model itself is
left as it was. It is refused where modules carry hooks or forward functions of their own, adapters
or quantised layers, because these would not be copied faithfully.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

_SAMPLED = 509  # a prime, so that the sample runs through all columns


def cannot_copy(model: nn.Module) -> str:
    """Why a faithful copy cannot be made, or an empty string."""
    if hasattr(model, "peft_config") or getattr(model, "_hf_peft_config_loaded", False):
        return "it carries adapters"
    if getattr(model, "is_quantized", False) or getattr(model, "hf_quantizer", None) is not None:
        return "it is quantised"
    for name, module in model.named_modules():
        if "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks:
            return f"module {name or 'itself'} carries hooks"
        if not type(module).__module__.startswith(("torch.nn.", "transformers.")):
            return f"module {name or 'itself'} is of a foreign class"
        if hasattr(module, "parametrizations"):
            return f"module {name} is parametrised"
    if any(type(p.data) is not Tensor for p in model.parameters()):
        return "its weights are not plain tensors"
    return ""


def shared_copy(model: nn.Module) -> nn.Module:
    """New module objects over the same parameters and buffers."""
    memo: dict[int, object] = {id(p): p for p in model.parameters()}
    memo.update({id(b): b for b in model.buffers()})
    return copy.deepcopy(model, memo)


def weights_version(model: nn.Module) -> tuple[tuple[int, int, str], ...]:
    """Changes whenever a parameter is replaced or written in place: packed weights are then
    stale.

    Writes through ``.data`` (merging an adapter, say) leave PyTorch's own count of writes as it
    is, so a sample of the values is looked at too. It meets every dense write and every write to
    a row or column; single elements changed in this way are not noticed.
    """
    return tuple(
        (p.data_ptr(), 0 if p.is_inference() else p._version, _sample(p))
        for p in model.parameters()
    )


def _sample(weight: torch.Tensor) -> str:
    """The sum of every so manyth value; text, because NaN equals itself there."""
    step = _SAMPLED if weight.dim() > 1 and weight.shape[-1] >= _SAMPLED else 1
    values = weight.detach().reshape(-1)[::step]
    return repr(values.sum(dtype=torch.float64).item())
