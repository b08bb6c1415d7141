"""One row of the batch: its tree, the logits of its last pass and how far it has walked."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from numpy.typing import ArrayLike
from torch import Tensor

from lookahead.drafting import MODEL, Drafter
from lookahead.plan import Plan
from lookahead.sources import Observation
from lookahead.stats import Stats


@dataclass
class Row:
    """State of one row.

    ``logits`` [nodes, vocabulary] of the last pass, with ``picks``, ``broken`` (NaN logits) and
    ``top`` (likeliest tokens and their probabilities) of its nodes on the host. ``node``: where the
    walk stands, None where the next logits are not known. ``path``: walked nodes. ``run``: tokens
    emitted on this walk.
    """

    index: int
    drafter: Drafter
    last: int
    plan: Plan  # at first a bare root: the pass that read the prompt guessed nothing
    emitted: int = 0
    logits: Tensor | None = None
    picks: Sequence[int] = ()
    broken: Sequence[bool] = ()
    top: tuple[Sequence[Sequence[int]], ArrayLike] = ((), ())
    node: int | None = 0
    path: list[int] = field(default_factory=lambda: [0])
    run: list[int] = field(default_factory=list)
    began: float = 0.0
    done: bool = False
    in_prompt: bool = True

    def start_walk(self, logits: Tensor) -> None:
        """Begin at the root of the tree that was just verified."""
        self.logits = logits
        self.node, self.path, self.run, self.in_prompt = 0, [0], [], False

    def walk(self, token: int) -> None:
        """Emit a token: descend if it was guessed, else the walk ends."""
        assert self.node is not None
        self.run.append(token)
        self.emitted += 1
        self.last = token
        self.node = self.plan.tree.child(self.node, token)
        if self.node is not None:
            self.path.append(self.node)

    @property
    def used_path(self) -> list[int]:
        """Walked nodes whose logits gave a token; their rows stay in the cache."""
        return self.path[: len(self.run)]

    def observation(self) -> Observation:
        """What the pass showed."""
        return Observation(self.plan.tree, self.picks, self.used_path, self.run, *self.top)

    def accepted(self) -> list[int]:
        """Nodes whose token was emitted, in order."""
        pairs = zip(self.used_path, self.run, strict=True)
        children = (self.plan.tree.child(node, token) for node, token in pairs)
        return [child for child in children if child is not None]

    def origins(self, accepted: Sequence[int]) -> list[str]:
        """Who guessed each token of the run; "model" where nobody did."""
        proposers, names = self.plan.proposers, self.drafter.names
        named = [(names(proposers[node]) or [MODEL])[0] for node in accepted]
        return named + [MODEL] * (len(self.run) - len(named))

    def count(self, stats: Stats, accepted: Sequence[int]) -> None:
        """Add this walk to the counts of the call."""
        stats.tokens += len(self.run)
        if self.in_prompt:
            return
        proposers = self.plan.proposers
        self._count_names(stats.proposed, proposers[1:])
        self._count_names(stats.accepted, [proposers[node] for node in accepted])
        stats.count_depth(self.plan.tree.depths[1:], len(accepted))

    def _count_names(self, counts: dict[str, int], proposers: Sequence[tuple[int, ...]]) -> None:
        for who, times in Counter(proposers).items():
            for name in self.drafter.names(who):
                counts[name] = counts.get(name, 0) + times

    def end_walk(self) -> None:
        """Wait for the next pass."""
        self.node, self.run, self.path = None, [], [0]
