"""One clock and one counter for every method, ours and transformers' alike.

1. A forward hook on the module that makes the passes notes the width and start of each.
2. A streamer notes when tokens are emitted; the first ones mark the end of the prefill.
3. :func:`timed` runs one call between two clock readings and folds both into a :class:`Timing`.

Neither needs anything of the method but that it calls the model and takes a streamer.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers.generation.streamers import BaseStreamer


@dataclass(frozen=True)
class Pass:
    """One pass over the model after the prefill.

    ``width`` is the number of tokens fed in, ``seconds`` the time from its start to the start of
    the next one (to the end of the call for the last), so host work between passes is included.
    ``emitted`` is the number of tokens it gave.
    """

    width: int
    seconds: float
    emitted: int


@dataclass(frozen=True)
class Timing:
    """One generation, timed. Seconds are wall time; ``peak_bytes`` is of CUDA memory or None.

    ``seconds_prefill`` lasts until the first tokens are emitted and ``first_tokens`` counts them.
    ``passes`` is None where passes cannot be counted (a compiled model hides them).
    ``seconds_model`` is the time inside the model's forward after the prefill, None on devices
    that run asynchronously.
    """

    tokens: list[int]
    seconds: float
    seconds_prefill: float
    first_tokens: int
    passes: list[Pass] | None
    seconds_model: float | None
    peak_bytes: int | None


@dataclass
class _Clock(BaseStreamer):
    """Streamer that notes, per emission, the time, the number of tokens and of passes so far."""

    passes_so_far: Callable[[], int]
    emissions: list[tuple[float, int, int]] = field(default_factory=list)
    _prompt_seen: bool = False

    def put(self, value: torch.Tensor) -> None:
        now = time.perf_counter()
        if not self._prompt_seen:
            self._prompt_seen = True
            return
        self.emissions.append((now, value.numel(), self.passes_so_far()))

    def end(self) -> None:
        pass


@dataclass
class _PassLog:
    widths: list[int] = field(default_factory=list)
    starts: list[float] = field(default_factory=list)
    inside: list[float] = field(default_factory=list)


@contextmanager
def _watch(modules: Sequence[torch.nn.Module]) -> Iterator[_PassLog]:
    log = _PassLog()

    def before(_: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        ids = kwargs.get("input_ids")
        if ids is None:
            ids = args[0] if args else kwargs["inputs_embeds"]
        log.widths.append(ids.shape[1])
        log.starts.append(time.perf_counter())

    def after(*_: Any) -> None:
        log.inside.append(time.perf_counter() - log.starts[-1])

    handles = []
    for module in dict.fromkeys(modules):
        handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
        handles.append(module.register_forward_hook(after))
    try:
        yield log
    finally:
        for handle in handles:
            handle.remove()


def timed(
    call: Callable[[BaseStreamer], list[int]],
    device: torch.device,
    modules: Sequence[torch.nn.Module],
) -> Timing:
    """Run ``call`` with a streamer and time it; ``call`` returns the new tokens' ids.

    ``modules`` are those whose forward is a pass; none where passes cannot be watched. Raises
    RuntimeError where the emitted tokens are not as many as the returned ones: then one of the
    two counters is wrong and no figure may be built on them.
    """
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
    with _watch(modules) as log:
        clock = _Clock(lambda: len(log.widths))
        synchronize(device)
        start = time.perf_counter()
        tokens = call(clock)
        synchronize(device)
        end = time.perf_counter()
    streamed = sum(count for _, count, _ in clock.emissions)
    if streamed != len(tokens):
        raise RuntimeError(f"{streamed} tokens were streamed but {len(tokens)} were returned")
    if not clock.emissions:
        raise RuntimeError("the call emitted no token, so there is nothing to time")
    prefill_end, first, prefill_passes = clock.emissions[0]
    if modules:
        first = sum(count for _, count, seen in clock.emissions if seen == prefill_passes)
    return Timing(
        tokens=tokens,
        seconds=end - start,
        seconds_prefill=prefill_end - start,
        first_tokens=first,
        passes=_passes(log, clock, prefill_passes, end) if modules else None,
        seconds_model=sum(log.inside[prefill_passes:])
        if modules and device.type == "cpu"
        else None,
        peak_bytes=torch.cuda.max_memory_allocated(device) if device.type == "cuda" else None,
    )


def _passes(log: _PassLog, clock: _Clock, first: int, end: float) -> list[Pass]:
    emitted = [0] * (len(log.widths) + 1)
    for _, count, passes in clock.emissions:
        emitted[passes] += count
    ends = [*log.starts[1:], end]
    return [
        Pass(log.widths[i], ends[i] - log.starts[i], emitted[i + 1])
        for i in range(first, len(log.widths))
    ]


def synchronize(device: torch.device) -> None:
    """Wait until ``device`` has finished, so that a clock reading means something."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
