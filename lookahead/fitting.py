"""What is found out about a model once: its passes, what they can verify and what they cost."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch

from lookahead.capability import Capability, find_capability
from lookahead.config import Config
from lookahead.cost import AssumedCost, PassCost, load_cost, save_cost
from lookahead.cost_store import cost_path
from lookahead.passes import MODEL, Passes
from lookahead.static_pass import StaticPasses

_WORTH_KEEPING = 0.2  # seconds of measuring below which a cost curve is not kept


@dataclass
class Fit:
    """A model fitted for the engine; engines with other options over the model may share it.

    ``static`` holds passes of fixed shape, None where they are not used; ``cost`` follows the
    passes that are run.
    """

    model: Any
    passes: Passes
    static: StaticPasses | None
    capability: Capability
    cost: PassCost = field(default_factory=PassCost)
    remembers: bool = True
    structure: Any = None

    def renew(self, config: Config) -> None:
        """Fit anew where the modules of the model have changed since.

        Changed weights are no reason: ``Passes`` sees to those.
        """
        if structure(self.model) == self.structure:
            return
        new = fit(self.model, config)
        self.passes, self.static, self.capability = new.passes, new.static, new.capability
        self.structure = new.structure

    def remember_cost(self, seconds_measuring: float) -> None:
        """Keep the measured cost for later runs, where measuring took noticeable time."""
        if self.remembers and seconds_measuring > _WORTH_KEEPING:
            save_cost(cost_path(self.model, self.passes), self.cost)


def fit(model: Any, config: Config) -> Fit:
    """Try the kinds of passes that ``config`` allows, the cheapest first."""
    on_gpu = model.device.type == "cuda" and getattr(model, "hf_device_map", None) is None
    wanted = on_gpu if config.static_passes is None else config.static_passes
    passes = Passes(model, copied=config.prepack, compiled=config.compiled)
    found = _with_static_passes(model, passes) if wanted else None
    found = found or Fit(model, passes, None, _best_kind(model, passes))
    found.remembers = config.remember_cost
    if _shared_by_processes(model):
        found.cost, found.remembers = AssumedCost(), False
    elif config.remember_cost:
        found.cost = load_cost(cost_path(model, passes)) or found.cost
    found.structure = structure(model)
    return found


def structure(model: Any) -> list[Any]:
    """What a copy of the model would not follow and the trial has not seen, if it changes.

    The configuration, the modules themselves, their hooks, replaced forward functions, training
    mode, and numbers such as scaling factors and dropout rates.
    """
    found: list[Any] = [model.config.to_dict()]
    for module in model.modules():
        held = vars(module)
        numbers = {
            name: value
            for name, value in held.items()
            if type(value) in (float, bool) and not name.startswith("_")
        }
        hooks = [*module._forward_hooks, *module._forward_pre_hooks]
        found.append((module, hooks, held.get("forward"), type(module).forward, numbers))
    return found


def _shared_by_processes(model: Any) -> bool:
    """Whether other processes run parts of the same passes (tensor parallel, sharded weights)."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return False
    from torch.distributed.tensor import DTensor  # not in every build of torch

    split = getattr(model, "_tp_size", None) or any(
        isinstance(p, DTensor) for p in model.parameters()
    )
    return bool(split) and torch.distributed.get_world_size() > 1


def _with_static_passes(model: Any, passes: Passes) -> Fit | None:
    static = StaticPasses(model)
    capability = find_capability(model, model, static)
    if capability.mode != "tree":
        return None
    passes.use(MODEL)
    return Fit(model, passes, static, capability)


def _best_kind(model: Any, passes: Passes) -> Capability:
    """Take the cheapest kind of pass in which the model can verify trees, else the best."""
    found: dict[str, Capability] = {}
    for kind in passes.kinds:
        passes.use(kind)
        found[kind] = find_capability(model, passes.module())
        if found[kind].mode == "tree":
            return found[kind]
    best = "chain" if any(c.mode == "chain" for c in found.values()) else "plain"
    kind = next(kind for kind, capability in found.items() if capability.mode == best)
    passes.use(kind)
    return found[kind]
