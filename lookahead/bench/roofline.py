"""How far a plain step and an engine's pass are from the floor that memory sets.

1. The bytes that a step must read: weights, and the cache at the context of the run.
2. The bandwidth of the device, measured.
3. Plain decoding and the engine on the same prompt, timed pass by pass.

Packed weights can be smaller than the model's own (``native/weights.h``): a pass over them may then
take less than the floor.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Any

from lookahead import theory

from .methods import EngineMethod, TransformersMethod
from .prompt_sets import check_length
from .timing import timed

WARM_UP_TOKENS = 8


@dataclass(frozen=True)
class Roofline:
    """Bytes, bytes per second and seconds; ``pass_`` figures are means over the engine's passes.

    ``floor`` is the least time of a step (``theory.step_floor``), in a pass too, unless its weights
    are packed in fewer bytes: it reads the same once for all its tokens.
    """

    weight_bytes: int
    kv_bytes: int
    bandwidth: float
    floor: float
    plain_step: float
    pass_seconds: float
    pass_width: float
    tokens_per_pass: float

    @property
    def step_over_floor(self) -> float:
        """A plain step in units of the floor; 1 is the most that the memory allows."""
        return self.plain_step / self.floor

    @property
    def pass_over_floor(self) -> float:
        """An engine's pass in units of the floor."""
        return self.pass_seconds / self.floor

    @property
    def token_over_floor(self) -> float:
        """The engine's time per token in units of the floor; below 1 is beyond plain decoding."""
        return self.pass_over_floor / self.tokens_per_pass


def measure_roofline(model: Any, engine: Any, ids: Sequence[int], new_tokens: int = 48) -> Roofline:
    """Time plain decoding and ``engine`` after the prompt ``ids`` and set them against the floor.

    Raises ValueError where the prompt does not fit the context, or where the model ends the text
    before there is a pass to time.
    """
    check_length(model, "of the roofline", len(ids), new_tokens)
    kwargs = {"max_new_tokens": new_tokens, "do_sample": False}
    plain = TransformersMethod("plain", model)
    ours = EngineMethod("engine", model, lambda _: engine, engine.config, warm=True)
    for method in (plain, ours):
        method.generate(ids, {**kwargs, "max_new_tokens": WARM_UP_TOKENS}, None)
    timing = timed(lambda s: plain.generate(ids, kwargs, s), model.device, plain.modules())
    timed(lambda s: ours.generate(ids, kwargs, s), model.device, [])
    steps, passes = timing.passes, ours.passes()
    if not steps or not passes:
        raise ValueError("the model ends this text at once, so there is no step to time")
    context = len(ids) + len(timing.tokens) // 2
    weights, cache = theory.weight_bytes(model), cache_bytes(model, context)
    bandwidth = theory.measure_bandwidth(model.device)
    return Roofline(
        weight_bytes=weights,
        kv_bytes=cache,
        bandwidth=bandwidth,
        floor=theory.step_floor(weights + cache, bandwidth),
        plain_step=median(one.seconds for one in steps),
        pass_seconds=fmean(one.seconds for one in passes),
        pass_width=fmean(one.width for one in passes),
        tokens_per_pass=fmean(one.emitted for one in passes),
    )


def cache_bytes(model: Any, context: int) -> int:
    """Bytes of keys and values that a step reads at ``context``, by the model's configuration.

    0 where the configuration does not describe ordinary attention: the floor is then too low.
    """
    config = model.config.get_text_config()
    heads = getattr(config, "num_attention_heads", None)
    kv_heads = getattr(config, "num_key_value_heads", None) or heads
    if not isinstance(heads, int) or not isinstance(kv_heads, int):
        return 0
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // heads
    itemsize = model.dtype.itemsize
    return theory.kv_bytes(config.num_hidden_layers, kv_heads, head_dim, context, itemsize)
