"""The pick of a call: argmax, or the exponential race with the noise of the position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor

from lookahead.race import PositionNoise
from lookahead.rows import Row
from lookahead.sampling import GuessPicks, Noise, pick_sampled

_FARTHEST = 16  # positions ahead whose noise is drawn to plan by


class Picker:
    """Picks tokens for a batch.

    ``together``: all rows emit in step (or there is one row), so that the generator can be checked
    for draws that a processor made in between.
    """

    def __init__(
        self, config: Any, batch: int, vocabulary: int, device: torch.device, *, together: bool,
        shared_noise: bool,
    ) -> None:  # fmt: skip
        self._noise = Noise(batch, vocabulary, device) if config.do_sample else None
        self._vocabulary = vocabulary
        self._together = together
        self._shared_noise = shared_noise
        self._released = 0
        self._guess = GuessPicks(
            config.temperature or 1.0,
            config.top_k or 0,
            1.0 if config.top_p is None else config.top_p,
        )

    @property
    def sampling(self) -> bool:
        return self._noise is not None

    @property
    def _shares(self) -> bool:
        """Whether guesses may use the noise of their positions; not where a processor draws numbers
        too, or leaves fewer tokens than the model knows."""
        noise = self._noise
        if noise is None or noise.disturbed:
            return False
        return self._shared_noise and noise.width == self._vocabulary

    def to_come(self, row: Row) -> PositionNoise | None:
        """The noise of the positions after a row's root, for guessing only, if it is shared.

        None off the CPU: fetching it would wait for the device once more in each pass.
        """
        noise = self._noise
        if noise is None or not self._shares or noise.device.type != "cpu":
            return None
        seen: dict[int, NDArray[Any]] = {}

        def after(depth: int) -> NDArray[Any] | None:
            if depth >= _FARTHEST:
                return None
            if depth not in seen:
                seen[depth] = noise.at(row.emitted + depth)[row.index].float().numpy()
            return seen[depth]

        return after

    def pick(self, scores: Tensor, emitted: int, rows: slice) -> Tensor:
        """Token per row for output position ``emitted``; ``scores`` [rows, vocabulary]."""
        if self._noise is None:
            return torch.argmax(scores, dim=-1)
        if self._together:
            self._noise.fit(scores, emitted)
        noise = self._noise.due(emitted) if self._together else self._noise.at(emitted)
        tokens = pick_sampled(scores, noise[rows])
        if self._together:
            self._noise.emitted(emitted)
        return tokens

    def release(self, rows: Sequence[Row]) -> None:
        """Where rows keep their own pace: pass the positions that all have left behind."""
        if self._noise is None or self._together:
            return
        behind = [row.emitted for row in rows if not row.done]
        until = min(behind) if behind else max(row.emitted for row in rows)
        while self._released < until:
            self._noise.emitted(self._released)
            self._released += 1

    def guess(self, row: Row, logits: Tensor) -> Tensor:
        """What would be picked after each node of a row's tree, int64 [nodes], for guessing only.

        ``logits`` [nodes, vocabulary]. The noise is that of each node's position, unless noise is
        not to be shared; then it is drawn apart from the call's generator.
        """
        assert self._noise is not None
        if self._shares:
            depths = row.plan.tree.depths
            levels = [self._noise.at(row.emitted + d)[row.index] for d in range(max(depths) + 1)]
            return self._guess(logits, torch.stack(levels).log()[depths])
        apart = torch.Generator(logits.device).manual_seed(row.emitted)
        noise = torch.empty_like(logits, dtype=torch.float32).exponential_(generator=apart)
        return self._guess(logits, noise.log())
