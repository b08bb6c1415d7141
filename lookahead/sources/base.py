"""The contract between the planner and a source of guesses.

A source is asked for the likely next tokens of a *state*: the text so far plus a path of guesses.
It says how sure it is by naming a bucket, a small class of comparable guesses; how often guesses of
that bucket come true is measured elsewhere (``calibration``), so a source never states a
probability of its own. States are opaque to the planner and must not be changed by it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import ArrayLike

from lookahead.tree import TokenTree

Candidate = tuple[int, int]
"""A guessed token and the source's bucket for it."""


@dataclass(frozen=True)
class Observation:
    """What one pass over one row's tree showed, as host values.

    ``picks[i]``: the token the model picks after node ``i`` (argmax; under sampling, with the noise
    of that position, and empty where trees are narrow and no window runs). ``top_tokens[i]``: the k
    likeliest tokens there, ``top_probs`` float32 [nodes, k]: their probabilities; both empty where
    nobody asked. ``path``: the walked nodes, root first. ``emitted``: the tokens of this step, so
    ``emitted[j]`` follows ``path[j]``.
    """

    tree: TokenTree
    picks: Sequence[int]
    path: Sequence[int]
    emitted: Sequence[int]
    top_tokens: Sequence[Sequence[int]] = ()
    top_probs: ArrayLike = ()


class Source(Protocol):
    """A source of guesses for one row of the batch.

    Under sampling, the planner weighs guesses by the noise of their positions. A source whose
    guesses were made with that noise has an attribute ``follows_noise`` that is true.
    """

    name: str
    buckets: int

    def prior(self, bucket: int) -> float:
        """Probability that a guess of this bucket is accepted, before anything was measured."""
        ...

    def start(self, tokens: Sequence[int]) -> None:
        """Begin a text with its prompt."""
        ...

    def extend(self, tokens: Sequence[int]) -> None:
        """Append emitted tokens to the text."""
        ...

    def root(self) -> Any:
        """The state after the whole text."""
        ...

    def advance(self, state: Any, token: int) -> Any:
        """The state one guessed token further; None where nothing more can be said."""
        ...

    def candidates(self, state: Any) -> Iterable[Candidate]:
        """Guesses for the next token, best first, no token twice."""
        ...

    def observe(self, seen: Observation) -> None:
        """Learn from a pass. Called before ``extend`` with the tokens of the same step."""
        ...
