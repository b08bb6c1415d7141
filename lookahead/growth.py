"""How a tree of guesses grows: the candidates of all sources merged, taken best first.

The weight of a node is its path probability: the product of acceptance estimates from the root
down. Under sampling the noise of the positions to come is known, and estimates are taken given it
(``race``).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from heapq import heappop, heappush, heapreplace
from typing import Any, NamedTuple

from lookahead.calibration import LARGEST_RATIO, SUREST, Calibration
from lookahead.cost import CostTable
from lookahead.plan import Plan
from lookahead.race import PositionNoise, given_noise
from lookahead.sources.base import Candidate, Source
from lookahead.tree import TokenTree

_NEGLIGIBLE = 0.002  # path probability below which a guess is not worth its host time
_UNLIKELY = 0.0005  # path probability below which a guess is not even queued


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


class Siblings(NamedTuple):
    """The children that a node may get: ``tokens``, the likeliest first, with their ``buckets``.

    The first has the path probability ``highest``, the others their chance times ``scale`` and no
    more than that. ``states``: of the sources at the node; ``streak``: up to it.
    """

    node: int
    tokens: list[int]
    buckets: dict[int, tuple[int, ...]]
    chances: dict[int, float]
    scale: float
    highest: float
    states: list[Any]
    streak: int

    def weight(self, rank: int) -> float:
        """Path probability of a child that is not the first; 0 where there is none."""
        if rank >= len(self.tokens):
            return 0.0
        path = self.chances[self.tokens[rank]] * self.scale
        return path if path < self.highest else self.highest


class Growth:
    """A tree below one root, as it grows."""

    def __init__(
        self, root_token: int, sources: Sequence[Source], calibration: Calibration,
        bounds: Bounds, noise: PositionNoise | None = None,
    ) -> None:  # fmt: skip
        self.plan = Plan(TokenTree(root_token))
        self._sources, self._calibration = sources, calibration
        self._bounds, self._noise = bounds, noise
        # Of each family only the likeliest child that is not taken waits: (-weight, node, rank
        # among siblings, family).
        self._heap: list[tuple[float, int, int, Siblings]] = []

    def run(self, streak: int) -> Plan:
        """Take candidates, best first, as long as the bounds allow.

        ``streak``: the last guessed tokens of the text that were the likeliest guess.
        """
        bounds, heap, weights = self._bounds, self._heap, self.plan.weights
        if bounds.depth < 1 or bounds.nodes < 1:
            return self.plan
        correct = self._calibration.paths.correct
        self._expand(0, [source.root() for source in self._sources], 1.0, streak)
        while heap and len(weights) <= bounds.nodes:
            negative, _, rank, family = heap[0]
            if bounds.cost is not None and not bounds.pays(correct(-negative), len(weights)):
                break
            following = family.weight(rank + 1)
            if following > bounds.floor(len(weights)):
                heapreplace(heap, (-following, family.node, rank + 1, family))
            else:
                heappop(heap)
            self._take_child(-negative, rank, family)
        return self.plan

    def _take_child(self, weight: float, rank: int, family: Siblings) -> None:
        plan, token = self.plan, family.tokens[rank]
        node = plan.tree.add(family.node, token)
        plan.weights.append(weight)
        plan.proposers.append(self._calibration.owners_of(family.buckets[token]))
        bounds, size = self._bounds, len(plan.weights)
        if (
            size <= bounds.nodes
            and weight > _NEGLIGIBLE
            and weight * SUREST > bounds.floor(size)
            and plan.tree.depths[node] < bounds.depth
        ):
            asked = zip(self._sources, family.states, strict=True)
            states = [source.advance(state, token) for source, state in asked]
            self._expand(node, states, weight, 0 if rank else family.streak + 1)

    def _merge(
        self, states: list[Any], depth: int
    ) -> tuple[dict[int, tuple[int, ...]], dict[int, float]]:
        """What the sources say: buckets of each token, and its largest estimate."""
        merged: dict[int, tuple[int, ...]] = {}
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
        self, candidates: Iterable[Candidate], offset: int,
        merged: dict[int, tuple[int, ...]], chances: dict[int, float],
    ) -> None:  # fmt: skip
        probabilities, alone = self._calibration.probabilities, self._calibration.alone
        for token, bucket in candidates:
            bucket += offset
            if token not in merged:
                merged[token] = alone[bucket]
                chances[token] = probabilities[bucket]
            else:
                merged[token] += alone[bucket]
                if probabilities[bucket] > chances[token]:
                    chances[token] = probabilities[bucket]

    def _expand(self, node: int, states: list[Any], weight: float, streak: int) -> None:
        """Queue what may follow a node and is likely enough."""
        plan, streaks = self.plan, self._calibration.streaks
        merged, chances = self._merge(states, plan.tree.depths[node])
        if not merged:
            return
        plan.offered[node] = merged
        tokens = sorted(chances, key=chances.__getitem__, reverse=True)
        top = tokens[0]
        total = max(sum(chances.values()), 1.0)
        best = chances[top] / total
        cell = streaks.cell(streak, best)
        surer = streaks.correct(cell, best)
        plan.tops[node] = (top, best, cell)
        highest = weight * surer
        if highest <= self._bounds.floor(len(plan.weights)):
            return
        scale = weight / total * ((1.0 - surer) / (1.0 - best) if best < 1.0 else 1.0)
        if self._bounds.chain:
            del tokens[1:]
        family = Siblings(node, tokens, merged, chances, scale, highest, states, streak)
        heappush(self._heap, (-highest, node, 0, family))
