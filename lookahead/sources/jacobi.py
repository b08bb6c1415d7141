"""The Jacobi lookahead window, kept on absolute positions.

The window holds W columns of up to N-1 levels (Fu et al. 2024, arXiv:2402.02057, section 3.1;
Jacobi decoding: Santilli et al. 2023, arXiv:2305.10427). Column ``a`` is anchored at absolute
position ``a``; its token at level ``l`` is a guess for position ``a + l``. As tree nodes, level 0
is a chain below the root, and a token of level ``l > 0`` is the child of its column's token at
level ``l - 1``: ancestors give the mask of the paper, depths its positions.

One pass, in order:
1. ``graft`` adds the window to the tree of guesses; equal tokens share nodes.
2. The model's pick after the last level of column ``a`` is its guess for the next position: with
   the column it makes an n-gram for the pool.
3. When all N-1 levels are full the oldest goes: level ``l`` of column ``a`` becomes level ``l - 1``
   of column ``a + 1``. The position ``a + l`` of each token stays what it was.
4. ``k`` emitted tokens move the root by ``k``: columns that are now behind it are dropped and new
   ones appended, so that W columns start right after the root, however large ``k`` is.

Differences from the published scheme: guesses are verified while the window fills; columns start
from the best known continuation; a window token can itself be accepted; columns stay on their
positions when several tokens are accepted; columns that repeat their last guess are trusted more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lookahead.config import JacobiConfig
from lookahead.sources.base import Candidate, Observation
from lookahead.sources.ngram_pool import WINDOW, NgramPool
from lookahead.tree import TokenTree

_COLUMNS = 3
_LEVELS = 3
_STABILITIES = 3


class JacobiWindow:
    """The window of one row: a source of guesses and the branch that makes n-grams.

    ``continuation(token)`` names the best known token after ``token``; new columns start there.
    """

    name = "jacobi"
    buckets = _COLUMNS * _LEVELS * _STABILITIES

    def __init__(
        self, config: JacobiConfig, pool: NgramPool | None, continuation: Callable[[int], int]
    ) -> None:
        self._config = config
        self._pool = pool
        self._continuation = continuation
        self._root_token = 0
        self._columns: list[list[int]] = []  # columns[i][l]: level l of the i-th column
        self._levels = 1  # of a column, also when all columns are behind the root
        self._stable: list[int] = []  # passes in a row in which a column's new guess was the old
        self._nodes: list[list[int]] = []  # tree nodes of the grafted columns
        self.follows_noise = config.shared_noise

    @property
    def columns(self) -> list[list[int]]:
        """Tokens of each column, level 0 first; the first column follows the root."""
        return [list(column) for column in self._columns]

    def prior(self, bucket: int) -> float:
        column, rest = divmod(bucket, _LEVELS * _STABILITIES)
        level, stable = divmod(rest, _STABILITIES)
        return (0.3, 0.2, 0.15)[column] * (1.0, 1.2, 1.2)[level] * (1.0, 1.8, 2.5)[stable]

    def start(self, tokens: Sequence[int]) -> None:
        self._columns, self._stable, self._nodes = [], [], []
        self._levels = 1
        self._root_token = tokens[-1]

    def extend(self, tokens: Sequence[int]) -> None:
        """Move the root: drop the columns behind it. Appending waits for the next graft."""
        if tokens:
            self._root_token = tokens[-1]
            del self._columns[: len(tokens)]
            del self._stable[: len(tokens)]

    # -- as a branch of the tree ------------------------------------------------------------

    def size(self) -> int:
        """Nodes that a full window would add."""
        return self._config.window * (self._config.ngram - 1)

    def graft(self, tree: TokenTree, start: Sequence[int] = ()) -> list[int]:
        """Add the window below the root of ``tree`` and return its nodes, parents first.

        ``start`` is the best known continuation of the text; columns that are missing begin there.
        """
        self._fill(start)
        self._nodes = []
        above = 0
        grafted: list[int] = []
        for column in self._columns:
            nodes = [tree.add(above, column[0])]
            for token in column[1:]:
                nodes.append(tree.add(nodes[-1], token))
            self._nodes.append(nodes)
            grafted += nodes
            above = nodes[0]
        return grafted

    def _fill(self, start: Sequence[int]) -> None:
        columns = self._columns
        while len(columns) < self._config.window:
            column: list[int] = []
            before = columns[-1] if columns else None
            for level in range(self._levels):
                if before is not None and level + 1 < len(before):
                    column.append(before[level + 1])
                elif level == 0 and len(columns) < len(start):
                    column.append(start[len(columns)])
                else:
                    last = column[-1] if column else before[0] if before else self._root_token
                    column.append(self._continuation(last))
            columns.append(column)
            self._stable.append(0)

    # -- as a source ------------------------------------------------------------------------

    def root(self) -> Any:
        return ((-1, 0),) if self._columns else ()

    def _next(self, place: tuple[int, int]) -> list[tuple[int, int]]:
        column, level = place
        following = [(column + 1, 0)] if level == 0 else []
        if column >= 0:
            following.append((column, level + 1))
        return [
            (c, at) for c, at in following if c < len(self._columns) and at < len(self._columns[c])
        ]

    def advance(self, state: Any, token: int) -> Any:
        return tuple(
            (c, at)
            for place in state
            for c, at in self._next(place)
            if self._columns[c][at] == token
        )

    def candidates(self, state: Any) -> list[Candidate]:
        found: dict[int, int] = {}
        for place in state:
            for column, level in self._next(place):
                stable = min(self._stable[column], _STABILITIES - 1)
                kind = min(column, _COLUMNS - 1) * _LEVELS + min(level, _LEVELS - 1)
                found.setdefault(self._columns[column][level], kind * _STABILITIES + stable)
        return list(found.items())

    def observe(self, seen: Observation) -> None:
        """Take the picks after the last level; feed the pool; age the levels."""
        if not self._nodes:
            return
        picks = [seen.picks[nodes[-1]] for nodes in self._nodes]
        full = self._levels == self._config.ngram - 1
        for i, (column, pick) in enumerate(zip(self._columns, picks, strict=True)):
            column.append(pick)
            if self._pool is not None:
                self._pool.add(column, WINDOW)
            # The next column's last level guessed the same position in an earlier pass.
            repeated = i + 1 < len(self._columns) and self._columns[i + 1][-1] == pick
            self._stable[i] = self._stable[i] + 1 if repeated else 0
        if full:
            self._age()
        else:
            self._levels += 1
        self._nodes = []

    def _age(self) -> None:
        """Drop level 0: what was level 1 of the column at ``a`` is level 0 of ``a + 1``."""
        for column in self._columns:
            del column[0]
        # Columns now begin one position later, so a gap opens right behind the root. It closes
        # when the emitted tokens (one at least) move the root; see ``extend``.
        self._columns.insert(0, [])
        self._stable.insert(0, 0)
