"""Which guesses a pass verifies: best first, as many as pay.

Candidates of all sources are merged into one tree and taken in the order of their path probability
``w`` (the product of acceptance estimates from the root down). With ``t`` the relative cost of a
pass over so many tokens and ``rate`` the tokens that decoding yields per unit of cost, the planner
takes the ``B`` nodes that maximise

    (1 + sum of the B largest w) - rate * t(1 + B)

over every ``B`` as far as nodes can pay, none included, because ``t`` is a staircase. At the best
possible rate this gives the most tokens over time (Dinkelbach 1967): a node pays if it brings more
than its cost would elsewhere in the text, and a margin. The ratio of a single pass, S(B), would
stop too early where a pass can gain much and too late where it can gain little. Path probabilities
fall with depth, so the B best nodes always form a tree (compare SpecInfer, arXiv:2305.09781, and
the budget of Sequoia, arXiv:2402.12374).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush, nlargest
from typing import Any

from lookahead.calibration import LARGEST_RATIO, Calibration
from lookahead.config import PlannerConfig
from lookahead.cost import CostTable
from lookahead.sources.base import Source
from lookahead.tree import TokenTree

_NEGLIGIBLE = 0.002  # path probability below which a guess is not worth its host time
_UNLIKELY = 0.0005  # path probability below which a guess is not even queued
_MAX_SIBLINGS = 16
_FIRST_RATE = 2.0
_FIRST_PASSES = 8.0
_FADE = 0.96  # passes are forgotten after some 25 more
_MARGIN = 1.25  # of what it costs, a node must earn: estimates at the margin err upwards


Top = tuple[int, float, int]


@dataclass
class Plan:
    """A tree to verify and what was thought of it.

    ``weights[i]``: path probability of node i. ``proposers[i]``: indices of the sources that
    guessed it. ``offered[i]``: for an expanded node, its candidates as token -> buckets, in the
    tree or not; ``tops[i]``: the likeliest of them, its estimate and its cell of
    ``StreakCalibration``. ``expected``: tokens expected of the pass. ``price``: what a pass
    over this tree costs, in plain passes (over the widest tree of a batch, once that is known); 0
    where none is run for this plan.
    """

    tree: TokenTree
    weights: list[float] = field(default_factory=lambda: [1.0])
    proposers: list[tuple[int, ...]] = field(default_factory=lambda: [()])
    offered: dict[int, dict[int, list[int]]] = field(default_factory=dict)
    tops: dict[int, Top] = field(default_factory=dict)
    expected: float = 1.0
    price: float = 0.0
    window: bool = False
    guessed: int = 1


class Pace:
    """Tokens per unit of cost that decoding has reached lately."""

    def __init__(self, rate: float = _FIRST_RATE) -> None:
        self._tokens, self._cost = rate * _FIRST_PASSES, _FIRST_PASSES

    @property
    def rate(self) -> float:
        """Tokens per plain pass's cost."""
        return self._tokens / self._cost

    def saw(self, tokens: float, cost: float) -> None:
        """Count one pass."""
        self._tokens = _FADE * self._tokens + tokens
        self._cost = _FADE * self._cost + cost


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
        rate: float,
        streak: int = 0,
        chain: bool = False,
    ) -> Plan:
        """The tree to verify after ``root_token``.

        ``cost.relative[n]`` is the relative cost of a pass over n tokens and ``rate`` the tokens
        that a unit of cost yields elsewhere; ``max_nodes`` and ``max_depth`` bound the tree;
        ``streak`` counts the last tokens that were the likeliest guess; ``chain`` allows one child
        a node.
        """
        fixed = self._config.fixed_nodes
        limit = min(
            max_nodes, self._config.max_nodes if fixed is None else fixed, len(cost.relative) - 2
        )
        table = cost if fixed is None else None
        rate *= _MARGIN
        grown = self._grow(root_token, limit, max_depth, streak, chain, rate, table)
        nodes = self._best_size(grown, rate, cost) if fixed is None else len(grown.tree) - 1
        correct = self._calibration.paths.correct
        grown.expected = 1.0 + sum([correct(weight) for weight in grown.weights[1 : nodes + 1]])
        grown.price = cost.price(nodes + 1)
        return self._cut(grown, nodes)

    def _best_size(self, grown: Plan, rate: float, cost: CostTable) -> int:
        """How many of the nodes bring the most beyond what they cost."""
        best, most = 0, -rate * cost.prices[1]
        gain, correct = 0.0, self._calibration.paths.correct
        for node, weight in enumerate(grown.weights[1:], 1):
            gain += correct(weight)
            worth = gain - rate * cost.prices[node + 1]
            if worth > most:
                best, most = node, worth
        return best

    def _grow(
        self,
        root_token: int,
        limit: int,
        max_depth: int,
        streak: int,
        chain: bool,
        rate: float,
        cost: CostTable | None,
    ) -> Plan:
        """Take up to ``limit`` candidates, best first.

        Less than ``rate * cost.slopes[n]`` does not pay in a tree of n nodes, whatever follows, and
        growth ends there; ``floors`` say the same for larger trees. Without ``cost`` all pays.
        """
        plan = Plan(TokenTree(root_token))
        if max_depth < 1:
            return plan
        correct = self._calibration.paths.correct
        buckets_of: list[list[int]] = [[]]
        heap: list[tuple[float, int, int, list[int], Any, int]] = []
        states = [source.root() for source in self._sources]
        least = 0.0 if cost is None else rate / LARGEST_RATIO * cost.floors[1]
        self._expand(plan, 0, states, 1.0, heap, streak, chain, max(_UNLIKELY, least))
        while heap and len(plan.tree) <= limit:
            negative, parent, token, buckets, states, streak = heappop(heap)
            weight = -negative
            if cost is not None and correct(weight) < rate * cost.slopes[len(plan.tree)]:
                break
            node = plan.tree.add(parent, token)
            plan.weights.append(weight)
            buckets_of.append(buckets)
            if weight > _NEGLIGIBLE and plan.tree.depths[node] < max_depth:
                states = [s.advance(at, token) for s, at in zip(self._sources, states, strict=True)]
                if cost is not None:
                    least = rate / LARGEST_RATIO * cost.floors[len(plan.tree)]
                floor = max(_UNLIKELY, least)
                self._expand(plan, node, states, weight, heap, streak, chain, floor)
        owners = self._calibration.owners
        plan.proposers = [tuple([owners[bucket] for bucket in known]) for known in buckets_of]
        return plan

    def _expand(
        self, plan: Plan, node: int, states: list[Any], weight: float, heap: list[Any],
        streak: int, chain: bool, floor: float,
    ) -> None:  # fmt: skip
        """Merge what the sources say after a node and queue what is likelier than ``floor``."""
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
        top, best = max(chances.items(), key=_chance)
        total = max(sum(chances.values()), 1.0)
        best /= total
        cell = self._calibration.streaks.cell(streak, best)
        surer = self._calibration.streaks.correct(cell, best)
        plan.tops[node] = (top, best, cell)
        scale = weight / total * ((1.0 - surer) / (1.0 - best) if best < 1.0 else 1.0)
        highest = weight * surer
        if highest > floor:
            heappush(heap, (-highest, node, top, merged[top], states, streak + 1))
        if chain or min(best * total * scale, highest) <= floor:
            return
        likely: Iterable[tuple[int, float]] = chances.items()
        if len(chances) > _MAX_SIBLINGS:
            likely = [item for item in likely if item[1] * scale > floor]
            likely = nlargest(_MAX_SIBLINGS, likely, key=_chance)
        for token, chance in likely:
            path = chance * scale
            if path > floor and token != top:
                heappush(heap, (-min(path, highest), node, token, merged[token], states, 0))

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
            {new[old]: top for old, top in plan.tops.items() if old in new},
            plan.expected,
            plan.price,
            guessed=nodes + 1,
        )
