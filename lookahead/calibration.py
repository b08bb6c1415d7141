"""How often guesses of a kind come true, measured as they are verified.

Each source sorts its guesses into buckets; here each bucket has a count of trials and of hits,
shrunk to a prior: ``p = (hits + strength * prior) / (trials + strength)``. A guess is tried when
the path walked by the model passes its parent: the model then picked one token, and the guess was
that token or not. Counts are kept across calls, apart for greedy and sampling, and old ones fade.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from lookahead.sources.base import Source

_STRENGTH = 12.0
_LEAST_PATH = 1e-3
_PATH_CLASSES = 16
_PATH_STRENGTH = 8.0
LARGEST_RATIO = 1.5  # of a path's probability to its estimate
_PATH_MEMORY = 300.0
_MEMORY = 2000.0  # trials a bucket remembers before old ones fade
_STREAKS = (1, 2, 4, 8, 16)  # classes of streaks begin at these lengths, and at 0
_CHANCES = (0.15, 0.3, 0.45, 0.6, 0.75, 0.9)  # limits of the classes of chances
_STREAK_STRENGTH = 10.0
_STREAK_MEMORY = 300.0
SUREST = 0.94  # what the likeliest guess after a node is believed at most


def _ratios(prior: Sequence[float] | None, count: int) -> list[float]:
    """Shipped ratios, or ones where there are none that fit."""
    fits = prior is not None and len(prior) == count
    return [float(ratio) for ratio in prior] if prior is not None and fits else [1.0] * count


class PathCalibration:
    """How far path probabilities can be believed.

    The product of estimates along a path, and the choice of the largest of many, both err upwards.
    So verified nodes are sorted into classes of estimated path probability, and each class learns
    the ratio of accepted nodes to the sum of their estimates, shrunk to ``prior``.
    """

    def __init__(self, prior: Sequence[float] | None = None) -> None:
        self._limits: list[float] = np.geomspace(_LEAST_PATH, 1.0, _PATH_CLASSES)[:-1].tolist()
        self._expected = [0.0] * _PATH_CLASSES
        self._accepted = [0.0] * _PATH_CLASSES
        self._prior = [min(ratio, LARGEST_RATIO) for ratio in _ratios(prior, _PATH_CLASSES)]
        self.ratios = list(self._prior)

    def fitted(self) -> list[float]:
        """The ratios as they are now, to be the prior of others."""
        return [round(ratio, 4) for ratio in self.ratios]

    def correct(self, weight: float) -> float:
        """A path probability as it turned out so far for estimates like it."""
        return weight * self.ratios[bisect_left(self._limits, weight)]

    def record(self, weights: Sequence[float], accepted: Sequence[int]) -> None:
        """Count the verified nodes of a pass: estimates, and which of them were accepted."""
        classes = [bisect_left(self._limits, weight) for weight in weights]
        for at, weight in zip(classes, weights, strict=True):
            self._expected[at] += weight
        for node in accepted:
            self._accepted[classes[node]] += 1.0
        for at in set(classes):
            if self._expected[at] > _PATH_MEMORY:
                self._expected[at] *= 0.5
                self._accepted[at] *= 0.5
            shrunk = self._accepted[at] + _PATH_STRENGTH * self._prior[at]
            ratio = shrunk / (self._expected[at] + _PATH_STRENGTH)
            self.ratios[at] = min(ratio, LARGEST_RATIO)


class StreakCalibration:
    """How far the likeliest guess can be believed after it came true so many times in a row.

    A text that is being copied goes on being copied: in runs of the default model guesses put at
    0.80 on average came true in 0.97 of the cases after a streak of 16, those put at 0.44 in 0.40
    after none. So the likeliest guesses at
    visited nodes are sorted into cells by streak and by estimate, and each cell learns the ratio of
    those that came true to the sum of their estimates, shrunk to ``prior``, one ratio per cell.
    """

    cells = (len(_STREAKS) + 1) * (len(_CHANCES) + 1)

    def __init__(self, prior: Sequence[float] | None = None) -> None:
        self._prior = _ratios(prior, self.cells)
        self._expected = [0.0] * self.cells
        self._accepted = [0.0] * self.cells
        self.ratios = list(self._prior)

    def fitted(self) -> list[float]:
        """The ratios as they are now, to be the prior of others."""
        return [round(ratio, 4) for ratio in self.ratios]

    @staticmethod
    def cell(streak: int, chance: float) -> int:
        """The cell of an estimate after a streak."""
        return bisect_right(_STREAKS, streak) * (len(_CHANCES) + 1) + bisect_right(_CHANCES, chance)

    def correct(self, cell: int, chance: float) -> float:
        """The estimate as it turned out so far for estimates like it."""
        return min(chance * self.ratios[cell], SUREST)

    def record(self, cell: int, chance: float, hit: bool) -> None:
        """Count a likeliest guess and whether it came true."""
        if self._expected[cell] > _STREAK_MEMORY:
            self._expected[cell] *= 0.5
            self._accepted[cell] *= 0.5
        self._expected[cell] += chance
        self._accepted[cell] += hit
        self.ratios[cell] = (self._accepted[cell] + _STREAK_STRENGTH * self._prior[cell]) / (
            self._expected[cell] + _STREAK_STRENGTH
        )


class Calibration:
    """Acceptance estimates for the buckets of several sources, in one flat table.

    ``offsets[i]`` is where the buckets of the i-th source begin, ``owners[b]`` the source of bucket
    ``b``, ``alone[b]`` is ``(b,)`` and ``probabilities[b]`` its current estimate;
    ``streaks`` corrects that of the likeliest guess after a node, ``paths`` the products along a
    path. ``priors`` gives shipped estimates by source name, with which the sources' own are
    replaced where present, and shipped ratios as "streaks" and "paths".
    """

    def __init__(
        self, sources: Sequence[Source], priors: Mapping[str, Sequence[float]] | None = None
    ) -> None:
        self.offsets: list[int] = []
        self.owners: list[int] = []
        self._prior: list[float] = []
        for index, source in enumerate(sources):
            self.offsets.append(len(self._prior))
            self.owners += [index] * source.buckets
            shipped = (priors or {}).get(source.name)
            if shipped is not None and len(shipped) == source.buckets:
                self._prior += [float(p) for p in shipped]
            else:
                self._prior += [source.prior(bucket) for bucket in range(source.buckets)]
        self.probabilities: list[float] = list(self._prior)
        # Made once, so that planning makes few objects and Python seldom collects garbage.
        self.alone: list[tuple[int, ...]] = [(bucket,) for bucket in range(len(self._prior))]
        self._owners_alone: list[tuple[int, ...]] = [(owner,) for owner in self.owners]
        self.paths = PathCalibration((priors or {}).get("paths"))
        self.streaks = StreakCalibration((priors or {}).get("streaks"))
        self._hits = [0.0] * len(self._prior)
        self._trials = [0.0] * len(self._prior)

    def owners_of(self, buckets: tuple[int, ...]) -> tuple[int, ...]:
        """Sources of a token's buckets."""
        if len(buckets) == 1:
            return self._owners_alone[buckets[0]]
        return tuple([self.owners[bucket] for bucket in buckets])

    def record(self, buckets: Iterable[int], hit: bool) -> None:
        """Count one trial for each of ``buckets`` (numbers in the flat table)."""
        for bucket in buckets:
            trials = self._trials[bucket]
            if trials >= _MEMORY:
                self._hits[bucket] *= 0.5
                trials *= 0.5
            self._trials[bucket] = trials + 1.0
            if hit:
                self._hits[bucket] += 1.0
            self.probabilities[bucket] = (self._hits[bucket] + _STRENGTH * self._prior[bucket]) / (
                self._trials[bucket] + _STRENGTH
            )

    def counts(self, source: int, buckets: int) -> tuple[list[float], list[float]]:
        """Hits and trials of the i-th source's buckets."""
        start = self.offsets[source]
        return self._hits[start : start + buckets], self._trials[start : start + buckets]
