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

from collections.abc import Sequence

from lookahead.calibration import Calibration
from lookahead.config import PlannerConfig
from lookahead.cost import CostTable
from lookahead.growth import Bounds, Growth
from lookahead.plan import Plan
from lookahead.race import PositionNoise
from lookahead.sources.base import Source

_FIRST_RATE = 2.0
_FIRST_PASSES = 8.0
_FADE = 0.96  # passes are forgotten after some 25 more
_MARGIN = 1.25  # of what it costs, a node must earn: estimates at the margin err upwards


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
        noise: PositionNoise | None = None,
    ) -> Plan:
        """The tree to verify after ``root_token``.

        ``cost.relative[n]`` is the relative cost of a pass over n tokens and ``rate`` the tokens
        that a unit of cost yields elsewhere; ``max_nodes`` and ``max_depth`` bound the tree;
        ``streak`` counts the last tokens that were the likeliest guess; ``chain`` allows one child
        a node; ``noise`` is that of the positions to come, under sampling.
        """
        fixed = self._config.fixed_nodes
        limit = min(
            max_nodes, self._config.max_nodes if fixed is None else fixed, len(cost.relative) - 2
        )
        rate *= _MARGIN
        bounds = Bounds(limit, max_depth, chain, rate, cost if fixed is None else None)
        grown = Growth(root_token, self._sources, self._calibration, bounds, noise).run(streak)
        correct = self._calibration.paths.correct
        gains = [correct(weight) for weight in grown.weights[1:]]
        nodes = self._best_size(gains, rate, cost) if fixed is None else len(gains)
        plan = grown.first(nodes)
        plan.expected = 1.0 + sum(gains[:nodes])
        plan.price = cost.price(nodes + 1)
        return plan

    @staticmethod
    def _best_size(gains: Sequence[float], rate: float, cost: CostTable) -> int:
        """How many nodes bring the most beyond what they cost; ``gains``: tokens that each adds."""
        best, most, sum_of = 0, -rate * cost.prices[1], 0.0
        for nodes, gain in enumerate(gains, 1):
            sum_of += gain
            worth = sum_of - rate * cost.prices[nodes + 1]
            if worth > most:
                best, most = nodes, worth
        return best
