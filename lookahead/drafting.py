"""Guessing for one row: sources, planner and window around the decode loop.

``draft`` makes the tree that the next pass verifies; ``learn`` shows every part what came of it.
"""

from __future__ import annotations

from collections.abc import Sequence

from lookahead.cost import CostTable
from lookahead.memory import Memory
from lookahead.plan import Plan
from lookahead.planner import Planner
from lookahead.race import PositionNoise
from lookahead.sources import JacobiWindow, Observation, PoolSource, PositionSource
from lookahead.tree import TokenTree

MODEL = "model"
HOST_COST = 0.02  # share of a plain pass that a step spends outside the model


class Drafter:
    """Guesses for one row of a batch."""

    def __init__(
        self, memory: Memory, prompt: Sequence[int], *, sampling: bool, chain: bool
    ) -> None:
        self._memory = memory
        self._chain = chain
        self._streak = 0  # last guessed tokens in a row that were the likeliest guess
        self.sources = memory.sources()
        self.calibration = memory.calibration(self.sources, sampling=sampling)
        self._planner = Planner(memory.config.planner, self.sources, self.calibration)
        self._window = self._find_window(chain)
        self._window_born = self._owed_to_window()
        self._by_position = {
            offset + bucket
            for source, offset in zip(self.sources, self.calibration.offsets, strict=True)
            for bucket in range(source.buckets)
            if isinstance(source, PositionSource)
        }
        self._names: dict[tuple[int, ...], list[str]] = {}
        for source in self.sources:
            source.start(prompt)

    def _find_window(self, chain: bool) -> JacobiWindow | None:
        if chain:
            return None
        found = [source for source in self.sources if isinstance(source, JacobiWindow)]
        return found[0] if found else None

    def _owed_to_window(self) -> list[bool]:
        born = []
        for source in self.sources:
            for bucket in range(source.buckets):
                owed = isinstance(source, JacobiWindow) or (
                    isinstance(source, PoolSource) and source.window_born(bucket)
                )
                born.append(owed)
        return born

    def draft(
        self, root_token: int, cost: CostTable, max_nodes: int, max_depth: int,
        noise: PositionNoise | None = None,
    ) -> Plan:  # fmt: skip
        """The tree for the next pass; ``max_depth`` guesses may still be emitted after the root.

        ``noise``: that of the positions to come, under sampling.
        """
        rate = self._memory.pace.rate
        plan = self._planner.plan(
            root_token, cost, max_nodes, max_depth,
            rate=rate, streak=self._streak, chain=self._chain, noise=noise,
        )  # fmt: skip
        if self._window is not None and self._runs(self._window, plan, cost, max_depth):
            self._graft(self._window, plan)
        return plan

    def _runs(self, window: JacobiWindow, plan: Plan, cost: CostTable, max_depth: int) -> bool:
        config = self._memory.config.jacobi
        if max_depth < config.window + config.ngram - 2:
            return False  # window positions would pass the end of the text or of the context
        if config.always:
            return True
        now = min(len(plan.tree), len(cost.relative) - 1)
        then = min(now + window.size(), len(cost.relative) - 1)
        extra = float(cost.relative[then] - cost.relative[now])
        return self._memory.window_value.pays(extra, self._memory.pace.rate)

    def _graft(self, window: JacobiWindow, plan: Plan) -> None:
        start = self._best_chain(plan.tree)
        window.graft(plan.tree, start)
        grown = len(plan.tree) - len(plan.weights)
        plan.weights += [0.0] * grown
        plan.proposers += [(self.sources.index(window),)] * grown
        plan.window = True

    @staticmethod
    def _best_chain(tree: TokenTree) -> list[int]:
        """Tokens of the first chain of a tree that has its likeliest chain first."""
        chain: list[int] = []
        for node in range(1, len(tree)):
            if tree.parents[node] != node - 1:
                break
            chain.append(tree.tokens[node])
        return chain

    def learn(self, plan: Plan, seen: Observation) -> None:
        """Take in what the pass showed; the text grows by the emitted tokens."""
        owed = 0
        for node, token in zip(seen.path, seen.emitted, strict=False):
            self._follow(plan, node, token)
            offered = plan.offered.get(node, {})
            for guess, buckets in offered.items():
                self.calibration.record(buckets, guess == token)
            if plan.tree.child(node, token) is not None:
                owed += self._is_owed(offered.get(token, ()))
        if plan.price:
            self._memory.pace.saw(len(seen.emitted), plan.price + HOST_COST)
        guessed = plan.guessed
        if guessed > 1:
            accepted = [node - 1 for node in seen.path[1:] if node < guessed]
            self.calibration.paths.record(plan.weights[1:guessed], accepted)
        if self._window is not None:
            self._memory.window_value.saw(owed, active=plan.window)
        for source in self.sources:
            source.observe(seen)
        for source in self.sources:
            source.extend(seen.emitted)

    def _is_owed(self, buckets: tuple[int, ...]) -> bool:
        """Whether an accepted guess came from the window alone. What its nodes picked is also
        offered by position, which is no guess of anybody else."""
        others = [b for b in buckets if b not in self._by_position]
        return all(self._window_born[b] for b in others) and bool(others or not buckets)

    def _follow(self, plan: Plan, node: int, token: int) -> None:
        if node not in plan.tops:  # it was not asked what follows, so nothing is known
            return
        top, chance, cell = plan.tops[node]
        self.calibration.streaks.record(cell, chance, top == token)
        self._streak = self._streak + 1 if top == token else 0

    def names(self, proposers: tuple[int, ...]) -> list[str]:
        """Names of the sources with these indices, no name twice."""
        known = self._names.get(proposers)
        if known is None:
            known = list(dict.fromkeys(self.sources[i].name for i in proposers))
            self._names[proposers] = known
        return known
