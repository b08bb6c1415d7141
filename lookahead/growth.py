"""How a tree of guesses grows: the candidates of all sources merged, taken best first.

The weight of a node is its path probability: the product of acceptance estimates from the root
down. Under sampling the noise of the positions to come is known, and estimates are taken given it
(``race``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, nlargest
from typing import Any

from lookahead.calibration import LARGEST_RATIO, Calibration
from lookahead.cost import CostTable
from lookahead.plan import Plan
from lookahead.race import PositionNoise, given_noise
from lookahead.sources.base import Candidate, Source
from lookahead.tree import TokenTree

_NEGLIGIBLE = 0.002  # path probability below which a guess is not worth its host time
_UNLIKELY = 0.0005  # path probability below which a guess is not even queued
_MAX_SIBLINGS = 16


@dataclass(frozen=True)
class Bounds:
    """``nodes`` and ``depth`` bound the tree; ``chain`` allows one child a node. Guesses that
    cannot bring ``rate`` tokens per unit of ``cost`` end it; without ``cost`` all pay."""

    nodes: int
    depth: int
    chain: bool
    rate: float
    cost: CostTable | None

    def pays(self, gain: float, size: int) -> bool:
        """Whether one more token can pay, whatever follows, in a tree of ``size`` tokens."""
        return self.cost is None or gain >= self.rate * self.cost.slopes[size]

    def floor(self, size: int) -> float:
        """Path probability below which a guess is not queued in a tree of ``size`` tokens."""
        if self.cost is None:
            return _UNLIKELY
        return max(_UNLIKELY, self.rate / LARGEST_RATIO * self.cost.floors[size])


class Growth:
    """A tree below one root, as it grows."""

    def __init__(
        self, root_token: int, sources: Sequence[Source], calibration: Calibration,
        bounds: Bounds, noise: PositionNoise | None = None,
    ) -> None:  # fmt: skip
        self.plan = Plan(TokenTree(root_token))
        self._sources, self._calibration = sources, calibration
        self._bounds, self._noise = bounds, noise
        self._heap: list[tuple[float, int, int, list[int], list[Any], int]] = []

    def run(self, streak: int) -> Plan:
        """Take candidates, best first, as long as the bounds allow.

        ``streak``: the last tokens of the text that were the likeliest guess.
        """
        plan, bounds, heap = self.plan, self._bounds, self._heap
        if bounds.depth < 1:
            return plan
        correct = self._calibration.paths.correct
        buckets_of: list[list[int]] = [[]]
        self._expand(0, [source.root() for source in self._sources], 1.0, streak)
        while heap and len(plan.tree) <= bounds.nodes:
            negative, parent, token, buckets, states, streak = heappop(heap)
            weight = -negative
            if not bounds.pays(correct(weight), len(plan.tree)):
                break
            node = plan.tree.add(parent, token)
            plan.weights.append(weight)
            buckets_of.append(buckets)
            if weight > _NEGLIGIBLE and plan.tree.depths[node] < bounds.depth:
                onward = [s.advance(at, token) for s, at in zip(self._sources, states, strict=True)]
                self._expand(node, onward, weight, streak)
        owners = self._calibration.owners
        plan.proposers = [tuple([owners[bucket] for bucket in known]) for known in buckets_of]
        return plan

    def _merge(
        self, states: list[Any], depth: int
    ) -> tuple[dict[int, list[int]], dict[int, float]]:
        """What the sources say: buckets of each token, and its largest estimate."""
        merged: dict[int, list[int]] = {}
        chances: dict[int, float] = {}
        asked = zip(self._sources, self._calibration.offsets, states, strict=True)
        if self._noise is None:
            for source, offset, state in asked:
                self._take(source.candidates(state), offset, merged, chances)
            return merged, chances
        done = []  # guesses that noise has already gone into
        for source, offset, state in asked:
            if getattr(source, "follows_noise", False):
                done.append((source.candidates(state), offset))
            else:
                self._take(source.candidates(state), offset, merged, chances)
        noise = self._noise(depth) if chances else None
        if noise is not None:
            chances = given_noise(chances, noise)
        for candidates, offset in done:
            self._take(candidates, offset, merged, chances)
        return merged, chances

    def _take(
        self, candidates: Sequence[Candidate], offset: int, merged: dict[int, list[int]],
        chances: dict[int, float],
    ) -> None:  # fmt: skip
        probabilities = self._calibration.probabilities
        for token, bucket in candidates:
            bucket += offset
            if token not in merged:
                merged[token] = [bucket]
                chances[token] = probabilities[bucket]
            else:
                merged[token].append(bucket)
                if probabilities[bucket] > chances[token]:
                    chances[token] = probabilities[bucket]

    def _expand(self, node: int, states: list[Any], weight: float, streak: int) -> None:
        """Queue what may follow a node and is likely enough."""
        plan, heap, streaks = self.plan, self._heap, self._calibration.streaks
        merged, chances = self._merge(states, plan.tree.depths[node])
        if not merged:
            return
        plan.offered[node] = merged
        top = max(chances, key=chances.__getitem__)
        total = max(sum(chances.values()), 1.0)
        best = chances[top] / total
        cell = streaks.cell(streak, best)
        surer = streaks.correct(cell, best)
        plan.tops[node] = (top, best, cell)
        scale = weight / total * ((1.0 - surer) / (1.0 - best) if best < 1.0 else 1.0)
        floor = self._bounds.floor(len(plan.tree))
        highest = weight * surer
        if highest > floor:
            heappush(heap, (-highest, node, top, merged[top], states, streak + 1))
        if self._bounds.chain or min(best * total * scale, highest) <= floor:
            return
        for token, chance in _likeliest(chances, floor / scale if scale else 1.0):
            path = chance * scale
            if path > floor and token != top:
                heappush(heap, (-min(path, highest), node, token, merged[token], states, 0))


def _likeliest(chances: dict[int, float], least: float) -> Iterable[tuple[int, float]]:
    """The candidates above ``least`` if there are many, else all."""
    likely: Iterable[tuple[int, float]] = chances.items()
    if len(chances) > _MAX_SIBLINGS:
        likely = [item for item in likely if item[1] > least]
        likely = nlargest(_MAX_SIBLINGS, likely, key=lambda item: item[1])
    return likely
