"""What an engine keeps between calls: n-grams, recycled logits, acceptance and cost.

All of it is bounded and changes speed only.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from importlib import resources

from lookahead.calibration import Calibration
from lookahead.config import Config
from lookahead.cost import PassCost
from lookahead.planner import Pace
from lookahead.sources import (
    JacobiWindow,
    NgramPool,
    PoolSource,
    PositionSource,
    PromptLookup,
    RecyclingSource,
    RecyclingStore,
    Source,
)

SourceFactory = Callable[[], Source]

_GAIN_AT_FIRST = 0.35  # tokens a pass that the window is taken to earn before it was tried
_GAIN_RATE = 0.03
_GAIN_RETURN = 0.002


class WindowValue:
    """Tokens per pass that nothing but the Jacobi window, and picks after its nodes, had guessed.

    While the window runs the estimate follows what was accepted; while it rests the estimate drifts
    back to where it began, so that a window is tried again when the text has changed.
    """

    def __init__(self) -> None:
        self.gain = _GAIN_AT_FIRST

    def saw(self, tokens: int, *, active: bool) -> None:
        """Count ``tokens`` that only the window had guessed in one pass."""
        if active:
            self.gain += _GAIN_RATE * (tokens - self.gain)
        else:
            self.gain += _GAIN_RETURN * (_GAIN_AT_FIRST - self.gain)

    def pays(self, extra_cost: float, rate: float) -> bool:
        """Whether ``extra_cost`` (in plain passes) is earned at ``rate`` tokens per plain pass."""
        return self.gain > extra_cost * rate


class Memory:
    """Shared state of all calls and rows of one engine.

    ``extra`` makes further sources, one set for each row; they are asked like the built-in ones.
    """

    def __init__(
        self, config: Config, extra: Sequence[SourceFactory] = (), cost: PassCost | None = None
    ) -> None:
        self.config = config
        self.extra = tuple(extra)
        self.pool = NgramPool(config.ngram_pool, config.jacobi.ngram)
        self.recycling = RecyclingStore(config.recycling)
        self.window_value = WindowValue()
        self.pace = Pace()
        self.cost = cost or PassCost()
        self._calibrations: dict[bool, Calibration] = {}
        self._priors = shipped_priors

    def sources(self) -> list[Source]:
        """Fresh views for one row: the window first, if there is one."""
        config = self.config
        made: list[Source] = []
        if config.jacobi.enabled:
            pool = self.pool if config.ngram_pool.enabled else None
            made.append(JacobiWindow(config.jacobi, pool, self.continuation))
        if config.ngram_pool.enabled:
            made.append(PoolSource(self.pool))
        if config.prompt_lookup.enabled:
            made.append(PromptLookup(config.prompt_lookup))
        if config.recycling.enabled:
            made.append(RecyclingSource(self.recycling))
        if config.positions.enabled:
            made.append(PositionSource(follows_noise=config.jacobi.shared_noise))
        return made + [make() for make in self.extra]

    def calibration(self, sources: Sequence[Source], *, sampling: bool) -> Calibration:
        """The estimates for greedy decoding or for sampling."""
        if sampling not in self._calibrations:
            self._calibrations[sampling] = Calibration(sources, self._priors(sampling=sampling))
        return self._calibrations[sampling]

    def begin_with(self, priors: Mapping[str, Sequence[float]]) -> None:
        """Forget all estimates and begin with these priors instead of the shipped ones."""
        self._calibrations = {}
        self._priors = lambda *, sampling: priors

    def share_calibrations(self, other: Memory) -> None:
        """Use and go on with the estimates of another engine's memory."""
        self._calibrations = other._calibrations

    def continuation(self, token: int) -> int:
        """The best known token after ``token``; itself where nothing is known."""
        _, (likely, _) = self.recycling.get(-1, token)
        if likely:
            return likely[0]
        known = self.pool.get(token)
        return known[0][0][0] if known else token


def shipped_priors(*, sampling: bool) -> Mapping[str, Sequence[float]]:
    """Acceptance priors that come with the package, by source name, "streaks" and "paths"; fitted
    on recorded runs."""
    file = resources.files("lookahead").joinpath("priors.json")
    if not file.is_file():
        return {}
    kinds: dict[str, dict[str, list[float]]] = json.loads(file.read_text())
    return kinds.get("sampling" if sampling else "greedy", {})
