"""What a pass over n tokens costs: measured first, then learned from every pass.

A curve is kept per class of context length as ``scale * shape[n]``: the scale (seconds of the
narrowest pass) follows the load of the machine quickly, the shape (relative cost of width n) moves
slowly. Only the shape and the host's share decide how wide a pass should be.
"""

from __future__ import annotations

import json
import os
import tempfile
from bisect import bisect_left
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

WIDTHS = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 192, 256, 512, 1024)
CONTEXTS = (512, 1024, 2048, 4096, 8192, 16384, 32768, 65536)

_SCALE_RATE = 0.2
_SHAPE_RATE = 0.08
_REFRESH = 32  # passes between two looks at the learned shape


@dataclass(frozen=True)
class CostTable:
    """``relative[n]``: cost of a pass over n tokens, in plain passes, and ``prices`` as a list.
    ``slopes[n]``: the least mean cost of one more token over all wider passes; ``floors[n]``: the
    least of the slopes from n on."""

    relative: NDArray[np.float64]
    slopes: list[float]
    floors: list[float]
    prices: list[float]

    def price(self, width: int) -> float:
        """Relative cost of a pass over ``width`` tokens."""
        return self.prices[min(width, len(self.prices) - 1)]

    @classmethod
    def of(cls, relative: NDArray[np.float64]) -> CostTable:
        """Table of a curve; its last two entries are spare width."""
        at = np.arange(len(relative))
        apart = at[None, :] - at[:, None]
        ahead = apart > 0
        rise = relative[None, :] - relative[:, None]
        means = np.where(ahead, rise, np.inf) / np.where(ahead, apart, 1)
        slopes = means[:-1].min(axis=1)
        floors = np.minimum.accumulate(slopes[::-1])[::-1]
        return cls(relative, [*slopes.tolist(), 0.0], [*floors.tolist(), 0.0], relative.tolist())


def _rising(curve: NDArray[np.float64]) -> NDArray[np.float64]:
    """The largest rising curve below a curve: a width costs no more than any wider one.

    Kernels make some widths dearer than wider ones (2 rows more than 4, say). That must not make
    the wider ones look dear.
    """
    return np.minimum.accumulate(curve[::-1])[::-1]


def _knots(width: int) -> list[tuple[int, float]]:
    """Indices of the widths of the curve next to a width, and their shares in it."""
    at = min(bisect_left(WIDTHS, width), len(WIDTHS) - 1)
    if WIDTHS[at] <= width:
        return [(at, 1.0)]
    share = (width - WIDTHS[at - 1]) / (WIDTHS[at] - WIDTHS[at - 1])
    return [(at - 1, 1.0 - share), (at, share)]


class PassCost:
    """Seconds of a pass by width and context length.

    ``shape`` starts as given or as a gentle slope; ``measured`` tells whether it was measured.
    """

    def __init__(self, knots: dict[int, float] | None = None) -> None:
        self.scale = 0.03
        self._shapes: dict[int, list[float]] = {}
        self._tables: dict[tuple[int, int], CostTable] = {}
        self._default = [1.0 + 0.03 * (width - 1.0) for width in WIDTHS]
        self._learned = 0
        self.measured = knots is not None
        if knots:
            self.fit(0, knots)

    def fit(self, context: int, seconds: dict[int, float]) -> None:
        """Set the curve at a context length from measured seconds by width."""
        widths = sorted(seconds)
        times = np.array([seconds[width] for width in widths])
        self.scale = max(float(times[0]), 1e-9)
        curve = np.interp(WIDTHS, widths, times / self.scale)
        if len(widths) > 1:  # beyond the last measured width the last slope goes on
            slope = (times[-1] - times[-2]) / (widths[-1] - widths[-2]) / self.scale
            beyond = np.array(WIDTHS) - widths[-1]
            curve = curve + np.maximum(beyond, 0) * max(float(slope), 0.0)
        self._shapes[self._class(context)] = curve.tolist()
        self._tables.clear()
        self.measured = True

    def table(self, context: int, widest: int, rows: int = 1) -> CostTable:
        """Costs of passes over 0 to ``widest`` tokens a row, in passes of one token a row."""
        key = (self._class(context), rows)
        table = self._tables.get(key)
        if table is None or len(table.relative) <= widest + 1:
            widths = np.arange(max(widest + 2, 130)) * rows
            curve = np.interp(widths, WIDTHS, self._shape(key[0]))
            beyond = np.maximum(widths - WIDTHS[-1], 0)
            curve += beyond * (curve[-1] / WIDTHS[-1])  # arithmetic rules there
            curve = _rising(curve)
            table = CostTable.of(curve / curve[1])
            self._tables[key] = table
        return table

    def learn(self, width: int, context: int, seconds: float) -> None:
        """Follow one timed pass."""
        key = self._class(context)
        shape = self._shape(key)
        knots = _knots(width)
        relative = sum([share * shape[knot] for knot, share in knots])
        surprise = seconds / (self.scale * relative)
        bounded = min(max(surprise, 0.5), 2.0)  # one hiccup must not bend the curve
        self.scale *= bounded**_SCALE_RATE
        moved = list(shape)
        for knot, share in knots:
            moved[knot] *= bounded ** (_SHAPE_RATE * share)
        self._shapes[key] = [value / moved[0] for value in moved]
        self._learned += 1
        if self._learned % _REFRESH == 0:
            self._tables = {k: t for k, t in self._tables.items() if k[0] != key}

    def _class(self, context: int) -> int:
        return min(bisect_left(CONTEXTS, context), len(CONTEXTS) - 1)

    def _shape(self, key: int) -> list[float]:
        if not self._shapes:
            return self._default
        nearest = min(self._shapes, key=lambda other: abs(other - key))
        return self._shapes[nearest]

    def to_dict(self) -> dict[str, Any]:
        """State as plain values."""
        return {"scale": self.scale, "shapes": dict(self._shapes)}

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> PassCost:
        """The opposite of ``to_dict``. Raises ValueError or KeyError if it does not fit."""
        cost = cls()
        cost.scale = float(values["scale"])
        if not 0 < cost.scale < float("inf"):
            raise ValueError("no time that a pass can take")
        for key, shape in values["shapes"].items():
            curve = np.array(shape, dtype=np.float64)
            if curve.shape != (len(WIDTHS),) or not np.isfinite(curve).all() or (curve <= 0).any():
                raise ValueError("cost curve of another version")
            cost._shapes[int(key)] = curve.tolist()
        cost.measured = bool(cost._shapes)
        return cost


class AssumedCost(PassCost):
    """A curve that is never measured nor learned.

    Processes that hold parts of one model must plan alike; times differ from one to the other.
    """

    def __init__(self) -> None:
        super().__init__()
        self.measured = True

    def fit(self, context: int, seconds: dict[int, float]) -> None:
        """Times are ignored."""

    def learn(self, width: int, context: int, seconds: float) -> None:
        """Times are ignored."""


def load_cost(path: Path) -> PassCost | None:
    """A saved curve, or None where there is none that can be read."""
    try:
        return PassCost.from_dict(json.loads(path.read_text()))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError):
        return None


def save_cost(path: Path, cost: PassCost) -> None:
    """Save a curve in one step; where the folder cannot be written, it is not kept."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, name = tempfile.mkstemp(dir=path.parent, prefix=path.name)
        with os.fdopen(handle, "w") as file:
            json.dump(cost.to_dict(), file)
        os.replace(name, path)
    except OSError:
        return
