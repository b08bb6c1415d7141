"""What one pass over a token tree looks like to attention, and everything derived from it once.

A pass has n tree rows per batch row. Row b's keys live in its cache at

    slots  0 .. start-1          left padding, attended by nobody
           start .. length-1     committed prefix, attended by every node (window permitting)
           length .. length+n-1  the n tree rows, attended by their descendants and themselves

Every layer of a pass shares one `TreeContext`, so masks are built once per pass, not per layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeVar

import torch
from torch import Tensor

T = TypeVar("T")


class Spans(NamedTuple):
    """Prefix slots of one batch row under a window.

    Every node sees all of `dense_start .. length-1`; of `fringe_start .. dense_start-1` each node
    sees a part that depends on its depth; nobody sees anything before `fringe_start`.
    """

    fringe_start: int
    dense_start: int
    length: int


def _ints(values: int | Sequence[int] | Tensor, name: str) -> tuple[int, ...]:
    if isinstance(values, Tensor):
        if values.is_floating_point() or values.dtype == torch.bool or values.ndim > 1:
            raise ValueError(f"{name} must be integers, one per batch row; got {values.dtype}.")
        values = values.tolist()
    numbers = (values,) if isinstance(values, int) else tuple(int(x) for x in values)
    if not numbers or min(numbers) < 0:
        raise ValueError(f"{name} must be non-negative, one per batch row; got {numbers}.")
    return numbers


@dataclass(frozen=True, eq=False)
class TreeContext:
    """Geometry of one pass; immutable, cheap to make, shared by all layers of the pass.

    prefix_lens: first tree slot of each batch row, i.e. its committed length counted in cache
        slots, padding included. An int or a single number holds for every row. Host integers are
        best: a CUDA tensor is copied to the host, as is the mask.
    tree_mask: bool [batch or 1, n, n]; entry (i, j) says that node i attends to node j. A node
        attends to its ancestors and itself; an all-False row is a padding row (it still attends
        to the prefix, and its result is finite).
    depths: int64 [batch or 1, n], distance from the root, so a node's position is
        `prefix_len + depth`. Default: number of attended nodes minus one, which is the depth when
        the mask is closed under ancestors.
    prefix_starts: first valid slot of each row (left padding before it). Default 0.
    lens, starts, host_mask, node_depths: the same, filled in: one host integer per batch row,
        tensors in host memory, where all masks are built before they move to the device.

    Raises ValueError when shapes or values do not fit together.
    """

    prefix_lens: int | Sequence[int] | Tensor
    tree_mask: Tensor
    depths: Tensor | None = None
    prefix_starts: int | Sequence[int] | Tensor = 0
    lens: tuple[int, ...] = field(init=False, repr=False)
    starts: tuple[int, ...] = field(init=False, repr=False)
    host_mask: Tensor = field(init=False, repr=False)
    node_depths: Tensor = field(init=False, repr=False)
    _derived: dict[tuple[object, ...], object] = field(default_factory=dict, init=False, repr=False)

    def __post_init__(self) -> None:
        mask = self.tree_mask
        if mask.dtype != torch.bool or mask.ndim != 3 or mask.shape[1] != mask.shape[2]:
            raise ValueError(
                "tree_mask must be a bool tensor of shape [batch or 1, n, n]; "
                f"got {mask.dtype} {tuple(mask.shape)}."
            )
        if not mask.shape[1]:
            raise ValueError("tree_mask must have at least one node.")
        depths = self.depths
        mask = mask.cpu()
        if depths is None:
            depths = (mask.sum(-1) - 1).clamp_(min=0)
        elif depths.is_floating_point() or depths.shape[-1] != mask.shape[1] or depths.ndim != 2:
            raise ValueError(
                f"depths must be integers of shape [batch or 1, {mask.shape[1]}]; "
                f"got {depths.dtype} {tuple(depths.shape)}."
            )
        depths = depths.cpu()
        lens = _ints(self.prefix_lens, "prefix_lens")
        starts = _ints(self.prefix_starts, "prefix_starts")
        rows = {n for n in (len(lens), len(starts), mask.shape[0], depths.shape[0]) if n != 1}
        if len(rows) > 1:
            raise ValueError(f"TreeContext got parts of different batch sizes: {sorted(rows)}.")
        count = max(len(lens), len(starts))
        lens, starts = (x * count if len(x) == 1 else x for x in (lens, starts))
        if any(s > n for s, n in zip(starts, lens, strict=True)):
            raise ValueError(f"prefix_starts {starts} must not exceed prefix_lens {lens}.")
        filled_in = {"lens": lens, "starts": starts, "host_mask": mask, "node_depths": depths}
        for name, value in filled_in.items():
            object.__setattr__(self, name, value)

    @property
    def width(self) -> int:
        """Number of tree rows n."""
        return self.tree_mask.shape[1]

    @property
    def rows(self) -> int:
        """Batch rows told apart by this context; 1 fits any batch."""
        return max(len(self.lens), self.tree_mask.shape[0], self.node_depths.shape[0])

    @property
    def uniform(self) -> bool:
        """True when every batch row has the same prefix slots."""
        return self.derive(
            ("uniform",), lambda: len(set(zip(self.starts, self.lens, strict=True))) == 1
        )

    def row_span(self, row: int) -> tuple[int, int]:
        """(start, length) of the prefix of a batch row."""
        index = row if len(self.lens) > 1 else 0
        return self.starts[index], self.lens[index]

    def derive(self, key: tuple[object, ...], make: Callable[[], T]) -> T:
        """Value of `make()`, made once per pass and key."""
        if key not in self._derived:
            self._derived[key] = make()
        return self._derived[key]  # type: ignore[return-value]

    @property
    def max_depth(self) -> int:
        """Largest depth of any node."""
        return self.derive(("max depth",), lambda: int(self.node_depths.max()))

    @property
    def single(self) -> bool:
        """True when the tree is one node attending to itself: plain one-token decoding."""
        return self.width == 1 and self.derive(("single",), lambda: bool(self.host_mask.all()))

    def effective(self, window: int | None) -> int | None:
        """The window, or None where it is so wide that it hides nothing in this pass."""
        if window is None:
            return None
        reach = max(n - s for s, n in zip(self.starts, self.lens, strict=True)) + self.max_depth
        return window if reach >= window else None

    def spans(self, window: int | None) -> list[Spans]:
        """Prefix spans per batch row (one entry when all rows are equal)."""
        return self.derive(("spans", window), lambda: self._spans(window))

    def _spans(self, window: int | None) -> list[Spans]:
        pairs = list(zip(self.starts, self.lens, strict=True))
        spans = []
        for start, length in pairs[:1] if self.uniform else pairs:
            if window is None:
                spans.append(Spans(start, start, length))
                continue
            fringe = min(max(start, length - window + 1), length)
            dense = min(max(start, length + self.max_depth - window + 1), length)
            spans.append(Spans(fringe, max(fringe, dense), length))
        return spans
