"""TokenTree: candidate tokens as flat arrays, the root first.

Node 0 is the root: the last emitted token, whose row is not yet in the cache. Node ``i > 0`` holds
a guess for the position after its parent, and a parent always comes before its children. The tree
that one pass verifies (SpecInfer, arXiv:2305.09781, section 4) and the lookahead window
(arXiv:2402.02057, figure 2) are both of this form, so both share one mask and one rule for
positions: a node attends to the committed prefix, its ancestors and itself, and its position is
that of the root plus its depth.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class TokenTree:
    """A tree of tokens; equal children of one node are one node.

    Attributes: ``tokens``, ``parents`` (-1 for the root) and ``depths`` (0 for the root), one
    entry a node.
    """

    __slots__ = ("_child", "depths", "parents", "tokens")

    def __init__(self, root_token: int) -> None:
        self.tokens: list[int] = [root_token]
        self.parents: list[int] = [-1]
        self.depths: list[int] = [0]
        self._child: dict[tuple[int, int], int] = {}

    def __len__(self) -> int:
        return len(self.tokens)

    def add(self, parent: int, token: int) -> int:
        """The node for ``token`` below ``parent``: the one that is there, or a new one."""
        key = (parent, token)
        node = self._child.get(key)
        if node is None:
            node = len(self.tokens)
            self._child[key] = node
            self.tokens.append(token)
            self.parents.append(parent)
            self.depths.append(self.depths[parent] + 1)
        return node

    def child(self, node: int, token: int) -> int | None:
        """The child of ``node`` that holds ``token``, if there is one."""
        return self._child.get((node, token))

    def blank(self, node: int, token: int) -> None:
        """Have ``node`` hold ``token`` for the model only: it is nobody's child any more."""
        del self._child[self.parents[node], self.tokens[node]]
        self.tokens[node] = token

    def path(self, node: int) -> list[int]:
        """Nodes from the root down to ``node``, both included."""
        path = []
        while node >= 0:
            path.append(node)
            node = self.parents[node]
        return path[::-1]

    def mask(self) -> NDArray[np.bool_]:
        """Ancestor mask, bool [nodes, nodes]: row attends to column."""
        n = len(self.tokens)
        mask = np.zeros((n, n), dtype=np.bool_)
        for node, parent in enumerate(self.parents):
            if parent >= 0:
                mask[node] = mask[parent]
            mask[node, node] = True
        return mask

    def is_chain(self) -> bool:
        """Whether each node is the parent of the next one: no mask is needed then."""
        return all(parent == node - 1 for node, parent in enumerate(self.parents))

    def likeliest_first(self, weights: list[float]) -> list[int]:
        """An order of the first nodes, parents first, that begins with the likeliest chain.

        ``weights`` holds a path probability for each node to keep. When the chain is accepted, its
        rows in the cache are the first rows of the tree and need no move.
        """
        best: dict[int, int] = {}
        parents = self.parents
        for node in range(1, len(weights)):
            parent = parents[node]
            if parent not in best or weights[node] > weights[best[parent]]:
                best[parent] = node
        chain = [0]
        while chain[-1] in best:
            chain.append(best[chain[-1]])
        in_chain = set(chain)
        return chain + [node for node in range(len(weights)) if node not in in_chain]

    def reordered(self, order: list[int]) -> TokenTree:
        """The tree of the nodes in ``order`` (old node numbers, parents first)."""
        new = {old: i for i, old in enumerate(order)}
        tree = TokenTree(self.tokens[0])
        for old in order[1:]:
            tree.add(new[self.parents[old]], self.tokens[old])
        return tree
