"""How often guesses of a kind come true, measured as they are verified.

Each source sorts its guesses into buckets; here each bucket has a count of trials and of hits,
shrunk to a prior: ``p = (hits + strength * prior) / (trials + strength)``. A guess is tried when
the path walked by the model passes its parent: the model then picked one token, and the guess was
that token or not. Counts are kept across calls, apart for greedy and sampling, and old ones fade.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from lookahead.sources.base import Source

_STRENGTH = 12.0
_MEMORY = 2000.0  # trials a bucket remembers before old ones fade


class Calibration:
    """Acceptance estimates for the buckets of several sources, in one flat table.

    ``offsets[i]`` is where the buckets of the i-th source begin, ``owners[b]`` the source of bucket
    ``b``, and ``probabilities[b]`` its current estimate. ``priors`` gives shipped estimates by
    source name, with which the sources' own are replaced where present.
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
        self._hits = [0.0] * len(self._prior)
        self._trials = [0.0] * len(self._prior)

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
