"""Chances of guesses under sampling, once the noise of their position is known.

In the exponential race (see ``sampling``) a token of probability p wins if p / e exceeds that of
every other token. The others' least e / p is Exp(1 - p), so it wins with probability
exp(-e (1 - p) / p). An estimate m of p is a mean over texts in which p differs: it is taken to be
spread like Beta(2 m, 2 (1 - m)), which fitted recorded runs best. The chance is the mean over that
spread, from a table; its mean over e is m again.
"""

from __future__ import annotations

from bisect import bisect
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

PositionNoise = Callable[[int], "NDArray[Any] | None"]
"""``noise(d)``: Exp(1) noise [vocabulary] of the position after a node of depth ``d``."""

_SPREAD = 2.0
_ESTIMATES = 1.0 / (1.0 + np.exp(-np.linspace(-7.0, 5.0, 49)))  # of p, evenly in log odds
_FAR = 14.0  # log odds at which a token surely loses, or wins, with all of the noises
_NOISES = np.geomspace(0.003, 10.0, 60)


@cache
def _chances() -> tuple[list[float], list[float], list[list[float]]]:
    """Limits of the estimates' and the noises' classes, and the chance for each pair of them."""
    odds, step = np.linspace(-_FAR, _FAR, 561, retstep=True)  # log odds of p
    p = 1.0 / (1.0 + np.exp(-odds))
    a, b = _SPREAD * _ESTIMATES[:, None], _SPREAD * (1.0 - _ESTIMATES[:, None])
    spread = np.exp(a * np.log(p) + b * np.log1p(-p)) * step  # Beta's density in log odds
    never, surely = np.exp(-a * _FAR) / a, np.exp(-b * _FAR) / b  # beyond, all lose or all win
    wins = np.exp(-_NOISES[:, None] * np.exp(-odds))
    won = (spread @ wins.T + surely) / (spread.sum(1, keepdims=True) + never + surely)
    table = np.clip(won, 1e-6, 1.0)
    return _middles(_ESTIMATES), _middles(_NOISES), table.tolist()


def _middles(points: NDArray[np.float64]) -> list[float]:
    middles: list[float] = np.sqrt(points[1:] * points[:-1]).tolist()
    return middles


def given_noise(chances: dict[int, float], noise: NDArray[Any]) -> dict[int, float]:
    """Chances of tokens at a position, given its noise [vocabulary]."""
    estimates, noises, table = _chances()
    drawn = noise.take(list(chances), mode="clip").tolist()
    return {
        token: table[bisect(estimates, chance)][bisect(noises, e)]
        for (token, chance), e in zip(chances.items(), drawn, strict=True)
    }
