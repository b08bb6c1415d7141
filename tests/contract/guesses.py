"""A source of guesses that knows the text, and engines that verify only what it says."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from lookahead import Config, Engine, PlannerConfig, plain_config, wrap
from lookahead.sources import Observation
from lookahead.sources.base import Candidate
from tests.contract.models import VOCABULARY

DEPTH = 7  # guesses in a row that a script makes
NODES = 32
_ROUNDS = 64
_KINDS = 3 * (DEPTH + 1)

Plan = Callable[[int], int]
"""Number of a pass (0 for the one that reads the prompt) -> how many guesses in a row are right."""


def all_right(number: int) -> int:
    """Oracle guesses only."""
    return DEPTH


def all_wrong(number: int) -> int:
    """Not one right guess."""
    return 0


def every_length(number: int) -> int:
    """0, 1, ... DEPTH right guesses, one pass after the other."""
    return number % (DEPTH + 1)


@dataclass
class Script:
    """What is guessed: ``texts`` (prompt and output of each row) and where the guesses go wrong.

    ``decoys`` adds wrong siblings that seem likelier and have children of their own, so that the
    right branch is not the first one and its rows are not contiguous.
    """

    plan: Plan = every_length
    decoys: bool = False
    texts: list[list[int]] = field(default_factory=list)

    def __call__(self) -> ScriptedSource:
        return ScriptedSource(self)


State = tuple[int, int, bool]  # position in the text, guesses since the root, still right


class ScriptedSource:
    """One row's guesses by the script.

    Each pass has buckets of its own, so what was accepted never changes what seems likely.
    """

    name = "script"
    buckets = _ROUNDS * _KINDS

    def __init__(self, script: Script) -> None:
        self._script = script
        self._text: Sequence[int] = ()
        self._length = 0
        self._passes = -1

    def prior(self, bucket: int) -> float:
        return (0.45, 0.5, 0.3)[bucket % _KINDS // (DEPTH + 1)]

    def start(self, tokens: Sequence[int]) -> None:
        given = list(tokens)
        fitting = [text for text in self._script.texts if text[: len(given)] == given]
        self._text = fitting[0] if fitting else given
        self._length = len(given)

    def extend(self, tokens: Sequence[int]) -> None:
        self._length += len(tokens)

    def root(self) -> State:
        return (self._length, 0, True)

    def _guess(self, state: State) -> int:
        """The scripted guess: the text's token, or one that is wrong."""
        position, depth, _ = state
        known = self._text[position] if position < len(self._text) else 0
        right = depth < self._script.plan(max(self._passes, 0))
        return known if right else (known + 3) % VOCABULARY

    def advance(self, state: State, token: int) -> State:
        position, depth, right = state
        return (position + 1, depth + 1, right and token == self._guess(state))

    def candidates(self, state: State) -> list[Candidate]:
        position, depth, right = state
        if depth >= DEPTH or position >= len(self._text) + DEPTH:
            return []
        base = self._passes % _ROUNDS * _KINDS + depth
        token = self._guess(state)
        if not right:
            return [(token, base + 2 * (DEPTH + 1))]
        decoy = [((token + 1) % VOCABULARY, base + DEPTH + 1)] if self._script.decoys else []
        return [*decoy, (token, base)]

    def observe(self, seen: Observation) -> None:
        self._passes += 1


def scripted_config(nodes: int = NODES, **options: Any) -> Config:
    """Built-in sources off; every pass verifies ``nodes`` guesses where there are so many."""
    planner = PlannerConfig(fixed_nodes=nodes)
    return plain_config(planner=planner, remember_cost=False, **options)


def scripted(model: Any, script: Script, **options: Any) -> Engine:
    """An engine whose only guesses are those of the script."""
    return wrap(model, scripted_config(**options), sources=[script])


def run_lengths(accepted_by_depth: Sequence[int]) -> list[int]:
    """``runs[k]``: passes that accepted ``k`` guesses, k > 0; from acceptance counts by depth."""
    counts = [*accepted_by_depth, 0]
    return [0] + [here - deeper for here, deeper in pairwise(counts)]
