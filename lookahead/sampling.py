"""Noise by position, and the pick.

``torch.multinomial(p, 1)`` returns ``argmax(p / e)`` with ``e ~ Exp(1)`` drawn from the generator
(the exponential race). So the token at output position ``t`` is decided by ``p`` and by the
``t``-th draw, whoever computes ``p``. ``Noise`` draws each position once, in order, from a copy of
the generator, and moves the generator itself only past the positions that were emitted: sampling
equals plain decoding under the same seed, and so does the state that it leaves behind. Because a
position keeps its noise, guesses for it can use the same draw.
"""

from __future__ import annotations

import torch
from torch import Tensor


def default_generator(device: torch.device) -> torch.Generator:
    """The generator that ``torch.multinomial`` uses on ``device``."""
    if device.type == "cuda":
        index = device.index if device.index is not None else torch.cuda.current_device()
        return torch.cuda.default_generators[index]
    if device.type == "mps":
        return torch.mps._get_default_mps_generator()
    return torch.default_generator


class Noise:
    """Exponential noise for the output positions of one call.

    ``at(t)`` is [batch, vocabulary], float32 unless ``fit`` says otherwise, the ``t``-th draw that
    plain decoding would make. ``emitted(t)`` must be called once for each position in order, after
    its token is picked.
    """

    def __init__(self, batch: int, vocabulary: int, device: torch.device) -> None:
        self._shape, self._dtype = (batch, vocabulary), torch.float32
        self.device = device
        self.disturbed = (
            False  # others draw from the generator in between: what is ahead is not known
        )
        self._main = default_generator(device)
        self._ahead = torch.Generator(device)
        self._restart(0)

    def _restart(self, position: int) -> None:
        """Draw anew from where the generator is now, for ``position`` and on."""
        self._first = position
        self._draws: list[Tensor] = []
        self._states = [self._main.get_state()]  # before each draw, and after the last

    @property
    def width(self) -> int:
        """Size of the vocabulary that is drawn for."""
        return self._shape[1]

    def fit(self, scores: Tensor, position: int) -> None:
        """Draw from ``position`` on as ``torch.multinomial`` does for such ``scores``.

        Processors may cut the vocabulary or change the dtype; the draws are then others.
        """
        if scores.shape[-1] != self.width or scores.dtype != self._dtype:
            self._shape, self._dtype = (self._shape[0], scores.shape[-1]), scores.dtype
            self._restart(position)

    def at(self, position: int) -> Tensor:
        """The noise of a position that is not emitted yet."""
        index = position - self._first
        while len(self._draws) <= index:
            self._ahead.set_state(self._states[-1])
            draw = torch.empty(self._shape, dtype=self._dtype, device=self.device)
            self._draws.append(draw.exponential_(generator=self._ahead))
            self._states.append(self._ahead.get_state())
        return self._draws[index]

    def due(self, position: int) -> Tensor:
        """The noise of the next position to emit.

        A processor may have drawn numbers of its own since; plain decoding would draw after it, so
        what was drawn ahead is then dropped.
        """
        if not torch.equal(self._main.get_state(), self._states[0]):
            self.disturbed = True
            self._restart(position)
        return self.at(position)

    def emitted(self, position: int) -> None:
        """Move the generator past ``position``, as plain decoding would have."""
        self.at(position)
        self._main.set_state(self._states[1])
        del self._draws[0], self._states[0]
        self._first = position + 1


def pick_sampled(scores: Tensor, noise: Tensor) -> Tensor:
    """Token per row: what ``torch.multinomial(softmax(scores), 1)`` gives with this noise.

    ``scores`` float32 [rows, vocabulary], processed; ``noise`` alike. int64 [rows]. Raises
    ValueError where they are no distribution, as ``torch.multinomial`` raises RuntimeError.
    """
    probs = torch.softmax(scores, dim=-1)
    if bool(torch.isnan(probs[:, 0]).any()):  # one NaN, and the whole row is NaN
        raise ValueError(
            "no token can be sampled: the scores are all -inf, or one is inf or NaN; "
            "check what the logits processors and the temperature make of them"
        )
    return torch.argmax(probs / noise, dim=-1)


class GuessPicks:
    """What the model would pick after each node, for guessing only.

    Applies temperature, top-k and top-p of the call to the ``width`` likeliest tokens, with the
    noise of each node's position; other processors are ignored, so a pick may be wrong but costs
    little.
    """

    def __init__(self, temperature: float, top_k: int, top_p: float, width: int = 64) -> None:
        self._temperature = max(temperature, 1e-4)
        self._top_p = top_p
        self._filtered = top_p < 1.0 or top_k > 0
        self._width = min(width, top_k) if top_k > 0 else width

    def __call__(self, logits: Tensor, log_noise: Tensor) -> Tensor:
        """``logits`` and the logarithm of the noise [nodes, vocabulary] -> int64 [nodes]."""
        scores = logits.float() / self._temperature
        if not self._filtered:
            return torch.argmax(scores - log_noise, dim=-1)
        top, tokens = scores.topk(min(self._width, scores.shape[-1]), dim=-1)
        if self._top_p < 1.0:
            probs = torch.softmax(scores, dim=-1).gather(-1, tokens) if self._width > 50 else None
            probs = torch.softmax(top, dim=-1) if probs is None else probs
            before = probs.cumsum(-1) - probs
            top = top.masked_fill(before >= self._top_p, float("-inf"))
        chosen = torch.argmax(top - log_noise.gather(-1, tokens), dim=-1, keepdim=True)
        return tokens.gather(-1, chosen).squeeze(-1)


def top_tokens(logits: Tensor, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The k largest logits per row, their tokens and probabilities, [..., k].

    Values of the dtype of ``logits``, int64 and float32.
    """
    values, tokens = logits.topk(min(k, logits.shape[-1]), dim=-1)
    chances = torch.log_softmax(logits, dim=-1, dtype=torch.float32).gather(-1, tokens)
    return values, tokens, chances.exp_()
