"""How `bench/attention.py` takes time."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Clock:
    """Mean seconds per call; on CUDA the queue is drained before and after."""

    device: str
    now: Callable[[], float] = time.perf_counter

    def __call__(self, call: Callable[[], Tensor], repeats: int) -> float:
        self._drain()
        start = self.now()
        for _ in range(repeats):
            call()
        self._drain()
        return (self.now() - start) / repeats

    def _drain(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def interleaved_medians(
    calls: dict[str, Callable[[], Tensor]], rounds: int, clock: Clock
) -> dict[str, float]:
    """Median seconds per call of each; one round times each of them once."""
    repeats = {}
    for name, call in calls.items():
        call()
        repeats[name] = max(1, min(50, int(2e-3 / max(clock(call, 2), 1e-9))))
    times: dict[str, list[float]] = {name: [] for name in calls}
    for _ in range(rounds):
        for name, call in calls.items():
            times[name].append(clock(call, repeats[name]))
    return {name: statistics.median(values) for name, values in times.items()}


def copy_bandwidth(device: str, clock: Clock) -> float:
    """Bytes per second of copying 256 MiB (bytes read plus bytes written)."""
    source = torch.ones(64 * 2**20, device=device)
    target = torch.empty_like(source)
    best = min(clock(lambda: target.copy_(source), 1) for _ in range(8))
    return 2 * source.numel() * source.element_size() / best
