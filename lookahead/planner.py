"""Which guesses a pass verifies: best first, as many as pay.

Candidates of all sources are merged into one tree and taken in the order of their path probability
``w`` (the product of acceptance estimates from the root down). With ``t`` the relative cost of a
pass over so many tokens, the planner takes the ``B`` nodes that maximise

    S(B) = (1 + sum of the B largest w) / (host + t(1 + B))

over every ``B``, none included, because ``t`` is a staircase. Path probabilities fall with depth,
so the B best nodes always form a tree (compare SpecInfer, arXiv:2305.09781, and the budget of
Sequoia, arXiv:2402.12374).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nlargest
from typing import Any

import numpy as np

from lookahead.calibration import Calibration
from lookahead.config import PlannerConfig
from lookahead.cost import CostTable
from lookahead.sources.base import Source
from lookahead.tree import TokenTree

_NEGLIGIBLE = 0.002  # path probability below which a guess is not worth its host time
_UNLIKELY = 0.0005  # path probability below which a guess is not even queued
_MAX_SIBLINGS = 16


@dataclass
class Plan:
    """A tree to verify and what was thought of it.

    ``weights[i]``: path probability of node i. ``proposers[i]``: indices of the sources that
    guessed it. ``offered[i]``: for an expanded node, its candidates as token -> buckets, in the
    tree or not. ``expected``: tokens expected of the pass. ``speed``: S(B) relative to a plain
    pass.
    """

    tree: TokenTree
    weights: list[float] = field(default_factory=lambda: [1.0])
    proposers: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    offered: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    expected: float = 1.0
    speed: float = 1.0
    window: bool = False
    guessed: int = 1


def _chance(item: tuple[int, float]) -> float:
    return item[1]


class Planner:
    """Grows the tree of one row for one pass."""

    def __init__(
        self, config: PlannerConfig, sources: Sequence[Source], calibration: Calibration
    ) -> None:
        self._config = config
        self._sources = sources
        self._calibration = calibration

    def plan(
        self,
        root_token: int,
        cost: CostTable,
        max_nodes: int,
        max_depth: int,
        *,
        chain: bool = False,
        host: float = 0.0,
    ) -> Plan:
        """The tree to verify after ``root_token``.

        ``cost.relative[n]`` is the relative cost of a pass over n tokens; ``max_nodes`` and
        ``max_depth`` bound the tree; ``chain`` allows one child a node; ``host`` is the cost of
        planning itself.
        """
        fixed = self._config.fixed_nodes
        limit = min(
            max_nodes, self._config.max_nodes if fixed is None else fixed, len(cost.relative) - 2
        )
        priced = None if fixed is not None else cost
        grown = self._grow(root_token, limit, max_depth, chain, priced, host)
        weights = self._calibration.paths.correct(np.array(grown.weights))
        weights[0] = 1.0  # the token that every pass gives
        gains = np.cumsum(weights)
        speeds = gains / (host + cost.relative[1 : len(gains) + 1])
        nodes = int(np.argmax(speeds)) if fixed is None else len(gains) - 1
        grown.expected = float(gains[nodes])
        grown.speed = float(speeds[nodes] / speeds[0])
        return self._cut(grown, nodes)

    def _grow(
        self,
        root_token: int,
        limit: int,
        max_depth: int,
        chain: bool,
        cost: CostTable | None,
        host: float,
    ) -> Plan:
        """Take up to ``limit`` candidates, best first."""
        plan = Plan(TokenTree(root_token))
        if max_depth < 1:
            return plan
        # The least a further node can cost: no node lighter than that times the best speed pays.
        slope = cost.slopes if cost is not None else None
        paths = self._calibration.paths
        gain = 1.0
        best = 1.0 if cost is None else 1.0 / (host + float(cost.relative[1]))
        buckets_of: list[list[int]] = [[]]
        heap: list[tuple[float, int, int, list[int], Any]] = []
        states = [source.root() for source in self._sources]
        self._expand(plan, 0, states, 1.0, heap, chain)
        while heap and len(plan.tree) <= limit:
            negative, parent, token, buckets, states = heappop(heap)
            weight = -negative
            nodes = len(plan.tree)
            if slope is not None and cost is not None:
                believed = weight * paths.ratio(weight)
                if believed < best * slope[nodes]:
                    break
                gain += believed
                best = max(best, gain / (host + float(cost.relative[nodes + 1])))
            node = plan.tree.add(parent, token)
            plan.weights.append(weight)
            buckets_of.append(buckets)
            if weight > _NEGLIGIBLE and plan.tree.depths[node] < max_depth:
                states = [s.advance(at, token) for s, at in zip(self._sources, states, strict=True)]
                self._expand(plan, node, states, weight, heap, chain)
        owners = self._calibration.owners
        plan.proposers = [tuple([owners[bucket] for bucket in known]) for known in buckets_of]
        return plan

    def _expand(
        self, plan: Plan, node: int, states: list[Any], weight: float, heap: list[Any], chain: bool
    ) -> None:
        """Merge what the sources say after a node and queue it."""
        merged: dict[int, list[int]] = {}
        chances: dict[int, float] = {}
        probabilities, offsets = self._calibration.probabilities, self._calibration.offsets
        for index, source in enumerate(self._sources):
            offset = offsets[index]
            for token, bucket in source.candidates(states[index]):
                bucket += offset
                chance = probabilities[bucket]
                known = merged.get(token)
                if known is None:
                    merged[token] = [bucket]
                    chances[token] = chance
                else:
                    known.append(bucket)
                    if chance > chances[token]:
                        chances[token] = chance
        if not merged:
            return
        plan.offered[node] = merged
        total = sum(chances.values())
        scale = weight / total if total > 1.0 else weight
        likely: Iterable[tuple[int, float]] = chances.items()
        if chain or len(chances) > _MAX_SIBLINGS:
            likely = nlargest(1 if chain else _MAX_SIBLINGS, likely, key=_chance)
        for token, chance in likely:
            path = chance * scale
            if path > _UNLIKELY:
                heappush(heap, (-path, node, token, merged[token], states))

    @staticmethod
    def _cut(plan: Plan, nodes: int) -> Plan:
        """Keep the first ``nodes`` guesses, the likeliest chain first."""
        kept = TokenTree(plan.tree.tokens[0])
        for node in range(1, nodes + 1):
            kept.add(plan.tree.parents[node], plan.tree.tokens[node])
        order = kept.likeliest_first(plan.weights[: nodes + 1])
        new = {old: i for i, old in enumerate(order)}
        return Plan(
            kept.reordered(order),
            [plan.weights[old] for old in order],
            [plan.proposers[old] for old in order],
            {new[old]: offer for old, offer in plan.offered.items() if old in new},
            plan.expected,
            plan.speed,
            guessed=nodes + 1,
        )
