"""Plain ``model.generate`` as the oracle: same ids, same generator state afterwards."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from transformers.generation.streamers import BaseStreamer

from lookahead import Engine
from tests.contract.guesses import Plan, Script, every_length, run_lengths, scripted


class Recorder(BaseStreamer):
    """Keeps what a streamer is told."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def put(self, value: Tensor) -> None:
        self.calls.append((value.shape, value.dtype, value.tolist()))

    def end(self) -> None:
        self.calls.append("end")


@dataclass
class Ran:
    """Outcome of a call: ``out`` as returned, ``state`` of the generator, ``streamed`` calls."""

    out: Any
    state: Tensor
    streamed: list[Any] = field(default_factory=list)

    @property
    def ids(self) -> Tensor:
        ids: Tensor = self.out if isinstance(self.out, Tensor) else self.out.sequences
        return ids


def ran(generate: Any, ids: Tensor, seed: int = 0, **arguments: Any) -> Ran:
    """Call ``generate`` from a seed, with a streamer where there is one row."""
    streamer = Recorder() if ids.shape[0] == 1 else None
    torch.manual_seed(seed)
    out = generate(ids, attention_mask=torch.ones_like(ids), streamer=streamer, **arguments)
    return Ran(out, torch.get_rng_state(), streamer.calls if streamer else [])


def assert_same(engine: Ran, plain: Ran) -> None:
    """Everything that the two kinds of decoding must have in common."""
    assert engine.ids.tolist() == plain.ids.tolist()
    assert engine.ids.dtype == plain.ids.dtype
    assert torch.equal(engine.state, plain.state)
    assert engine.streamed == plain.streamed


def check(
    model: Any, ids: Tensor, plan: Plan = every_length, *, decoys: bool = False, **arguments: Any
) -> Engine:
    """Decode plainly, then with guesses for just that text; assert the same. Returns the engine.

    ``arguments`` are given to both calls; a callable value is called to make each call's own.
    """
    first = {k: v() if callable(v) and k in _MADE else v for k, v in arguments.items()}
    plain = ran(model.generate, ids, **first)
    script = Script(plan, decoys, plain.ids.tolist())
    engine = scripted(model, script)
    second = {k: v() if callable(v) and k in _MADE else v for k, v in arguments.items()}
    assert_same(ran(engine.generate, ids, **second), plain)
    return engine


_MADE = {"logits_processor", "stopping_criteria"}


def accepted(engine: Engine) -> int:
    """Guesses accepted in the last call."""
    return sum(engine.stats.accepted.values())


def lengths_seen(engine: Engine) -> set[int]:
    """Accepted lengths above 0 that occurred in the last call."""
    runs = run_lengths(engine.stats.accepted_by_depth)
    return {length for length, count in enumerate(runs) if count > 0}
