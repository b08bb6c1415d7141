"""A source of guesses that knows the answer, for tests and sweeps.

It proposes what plain decoding gave, beside wrong tokens, and at some positions wrong tokens alone:
so runs of every length are accepted, and rejected in the middle of a tree, whatever the model.
"""

from __future__ import annotations

from collections.abc import Sequence

from lookahead.sources import Candidate, Observation

RIGHT, WRONG = 0, 1


class Book:
    """Texts that plain decoding gave, found again by their prompt."""

    def __init__(self) -> None:
        self._texts: dict[tuple[int, ...], list[int]] = {}

    def add(self, prompt: Sequence[int], output: Sequence[int]) -> None:
        """Remember an output by its prompt, both without padding."""
        self._texts[tuple(prompt)] = [*prompt, *output]

    def text(self, prompt: Sequence[int]) -> list[int]:
        """Prompt and output, or the prompt alone where it is not known."""
        return self._texts.get(tuple(prompt), list(prompt))


class OracleSource:
    """Guesses from a ``Book``.

    ``gap``: every so many positions the right token is withheld (0: never).

    A state is the number of tokens so far that agree with the text, or None.
    """

    name = "oracle"
    buckets = 2

    def __init__(self, book: Book, vocabulary: int, gap: int = 5) -> None:
        self._book, self._vocabulary, self._gap = book, vocabulary, gap
        self._text: list[int] = []
        self._length = 0

    def prior(self, bucket: int) -> float:
        return (0.9, 0.3)[bucket]

    def start(self, tokens: Sequence[int]) -> None:
        self._text = self._book.text(tokens)
        self._length = len(tokens)

    def extend(self, tokens: Sequence[int]) -> None:
        self._length += len(tokens)

    def root(self) -> int | None:
        return self._length

    def advance(self, state: int | None, token: int) -> int | None:
        if state is None or state >= len(self._text) or self._text[state] != token:
            return None
        return state + 1

    def candidates(self, state: int | None) -> list[Candidate]:
        if state is None or state >= len(self._text):
            return []
        right = self._text[state]
        wrong = [(right + step) % self._vocabulary for step in (1, 7)]
        withheld = self._gap and state % self._gap == self._gap - 1
        first = [] if withheld else [(right, RIGHT)]
        return first + [(token, WRONG) for token in wrong]

    def observe(self, seen: Observation) -> None:
        """Nothing to learn."""
