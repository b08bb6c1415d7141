"""A copy of a model that shares its weights and runs cheaper passes.

The copy is a second set of module objects over the same parameters and buffers; the model itself is
left as it was. In the copy, on a CPU, linear layers hold their weight once more in the blocked
layout of oneDNN, which PyTorch otherwise makes anew on every call: for 2 to 64 rows that is most of
the time. The copy is refused (and the model itself used) where modules carry hooks or forward
functions of their own, adapters or quantised layers, because these would not be copied faithfully.
"""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

_SAMPLED = 509  # a prime, so that the sample runs through all columns


class PackedLinear(nn.Module):
    """``nn.Linear`` over a weight prepacked for oneDNN. float32 or bfloat16, CPU, inference
    only."""

    def __init__(self, linear: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = linear.in_features, linear.out_features
        self.weight = linear.weight  # some models look at it; also keeps it alive
        self.bias = linear.bias
        self._packed = torch.ops.mkldnn._reorder_linear_weight(linear.weight.detach(), None)

    def forward(self, x: Tensor) -> Tensor:
        return torch.ops.mkldnn._linear_pointwise(x, self._packed, self.bias, "none", [], "")


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


def can_pack(linear: nn.Module) -> bool:
    """Whether a layer can be replaced by a ``PackedLinear``."""
    if type(linear) is not nn.Linear or linear.weight.device.type != "cpu":
        return False
    if not torch.backends.mkldnn.is_available() or not torch.backends.mkldnn.enabled:
        return False
    if linear.weight.dtype == torch.bfloat16:
        return torch.ops.mkldnn._is_mkldnn_bf16_supported()
    return linear.weight.dtype == torch.float32


def pack_linears(model: nn.Module) -> int:
    """Replace the linear layers of a shared copy; return how many."""
    packed: dict[int, PackedLinear] = {}
    for module in list(model.modules()):
        for name, child in list(module.named_children()):
            if can_pack(child) and isinstance(child, nn.Linear):
                key = id(child)
                if key not in packed:
                    packed[key] = PackedLinear(child)
                setattr(module, name, packed[key])
    return len(packed)


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
