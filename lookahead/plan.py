"""A tree to verify and what was thought of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from lookahead.tree import TokenTree

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
    offered: dict[int, dict[int, tuple[int, ...]]] = field(default_factory=dict)
    tops: dict[int, Top] = field(default_factory=dict)
    expected: float = 1.0
    price: float = 0.0
    window: bool = False
    guessed: int = 1

    def first(self, nodes: int) -> Plan:
        """The plan of the first ``nodes`` guesses, the likeliest chain first."""
        order = self.tree.likeliest_first(self.weights[: nodes + 1])
        new = {old: i for i, old in enumerate(order)}
        return Plan(
            self.tree.reordered(order),
            [self.weights[old] for old in order],
            [self.proposers[old] for old in order],
            {new[old]: offer for old, offer in self.offered.items() if old in new},
            {new[old]: top for old, top in self.tops.items() if old in new},
            guessed=nodes + 1,
        )
