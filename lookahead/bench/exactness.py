"""Exactness report: where does a method first leave plain decoding, and does rounding explain it?

1. :func:`first_divergence` finds the first position at which two outputs differ.
2. :func:`measure_noise` evaluates the model on the same text in passes of several widths and
   takes the largest change of a likely token's logit: the rounding noise between widths.
3. :func:`judge` asks whether plain decoding itself picks the other token when its logits at that
   position move by no more than this noise. If so, it is a rounding tie; if not, it is a BUG.

The noise is bounded by what the dtype can explain, so that a model which is *wrong* in wide
passes is not excused by its own fault.
"""

import inspect
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import torch
from transformers import DynamicCache, LogitsProcessor, LogitsProcessorList

from .prompt_sets import to_inputs

Outcome = Literal["equal", "rounding tie", "BUG"]

WIDTHS = (2, 4, 8, 16, 32, 64)
"""Widths of the passes that are compared with passes over one token."""

LIKELY = 32
"""Only logits of this many likeliest tokens count as noise: no other can win a near-tie."""

EPSILONS = 64.0
"""Bound of credible noise, in units of the dtype's epsilon times the largest logit."""

TRIALS = 16
"""Random moves of all logits that are tried after the two directed ones."""


@dataclass(frozen=True)
class Noise:
    """Rounding noise of a model in logits: ``by_width[n]`` is that of passes over ``n`` tokens.

    ``bound`` is the most that the dtype can explain; ``level`` is what verdicts use.
    """

    by_width: dict[int, float]
    bound: float

    @property
    def level(self) -> float:
        """The largest measured noise, but no more than the bound."""
        return min(max(self.by_width.values(), default=0.0), self.bound)


@dataclass(frozen=True)
class Verdict:
    """Comparison of one output with plain decoding.

    ``position`` counts from the first new token. ``top2_gap`` is the gap of plain decoding's two
    best processed scores there, ``gap`` the gap between its token and the other one (infinite
    where a filter such as top-k removed the other). ``noise`` is in logits.
    """

    outcome: Outcome
    position: int | None = None
    plain_token: int | None = None
    other_token: int | None = None
    top2_gap: float | None = None
    gap: float | None = None
    noise: float | None = None

    def to_dict(self) -> dict[str, Any]:
        """Plain values for JSON; an infinite gap becomes None."""
        values = asdict(self)
        if values["gap"] == float("inf"):
            values["gap"] = None
        return values


EQUAL = Verdict("equal")


def first_divergence(plain: Sequence[int], other: Sequence[int]) -> int | None:
    """First position at which the two differ, a missing token included; None where equal."""
    for position, (a, b) in enumerate(zip(plain, other, strict=False)):
        if a != b:
            return position
    return None if len(plain) == len(other) else min(len(plain), len(other))


def measure_noise(
    model: Any,
    prompt: Sequence[int],
    plain: Sequence[int],
    kwargs: dict[str, Any],
    seed: int = 0,
    chunks: bool = True,
) -> Noise:
    """Rounding noise of ``model`` along the tokens ``plain`` that it gives after ``prompt``.

    The reference is plain decoding itself, repeated with ``kwargs`` and ``seed``: passes over one
    token. It is compared with one pass over everything without a cache and, where ``chunks`` (the
    model can take several tokens on top of a cache), with passes of each width in ``WIDTHS``.
    Raises RuntimeError where plain decoding does not repeat itself: nothing can be judged then.
    """
    out = _decode(model, prompt, {**kwargs, "max_new_tokens": len(plain)}, seed)
    if out.sequences[0, len(prompt) :].tolist() != list(plain):
        raise RuntimeError("plain decoding gave other tokens when it was repeated")
    reference = torch.cat(out.logits).float()
    likely = reference.topk(min(LIKELY, reference.shape[-1]), dim=-1).indices
    ids = to_inputs([*prompt, *plain], model.device)["input_ids"]
    with torch.inference_mode():
        whole = model(input_ids=ids, use_cache=False).logits[0, len(prompt) - 1 : -1].float()
        others = {ids.shape[1]: whole}
        if chunks:
            widths = [w for w in WIDTHS if w <= len(plain)]
            others |= {width: _in_chunks(model, ids, len(prompt), width) for width in widths}
    noise = {
        width: (logits - reference).gather(-1, likely).abs().max().item()
        for width, logits in others.items()
    }
    eps = torch.finfo(model.dtype).eps
    return Noise(noise, EPSILONS * eps * max(1.0, reference.abs().max().item()))


def judge(
    model: Any,
    prompt: Sequence[int],
    plain: Sequence[int],
    other: Sequence[int],
    kwargs: dict[str, Any],
    seed: int = 0,
    noise: Noise | None = None,
    chunks: bool = True,
) -> Verdict:
    """Verdict on ``other`` against ``plain``, both made with ``kwargs`` (and ``seed``).

    ``noise`` is measured on ``plain`` where it is not given. A missing or surplus token at the end
    is a BUG: rounding cannot change the length without changing a token.
    """
    position = first_divergence(plain, other)
    if position is None:
        return EQUAL
    if position == min(len(plain), len(other)):
        return Verdict("BUG", position)
    noise = noise or measure_noise(model, prompt, plain, kwargs, seed, chunks)
    step = _Step(model, prompt, plain, position, kwargs, seed)
    wanted = other[position]
    tie = any(step.pick(moved) == wanted for moved in _moves(step, wanted, noise.level))
    top2 = step.scores.topk(2).values
    return Verdict(
        "rounding tie" if tie else "BUG",
        position,
        plain[position],
        wanted,
        (top2[0] - top2[1]).item(),
        (step.scores[plain[position]] - step.scores[wanted]).item(),
        noise.level,
    )


def _moves(step: "_Step", wanted: int, level: float) -> list[torch.Tensor]:
    """Logits moved by at most ``level``: towards the other token, then at random."""
    directed = step.logits.clone()
    directed[wanted] += level
    directed[step.token] -= level
    generator = torch.Generator(device="cpu").manual_seed(0)
    moves = [directed]
    if step.sampling:  # only filters and noise by position need more than the direct way
        for _ in range(TRIALS):
            shift = (2 * torch.rand(step.logits.shape, generator=generator) - 1) * level
            moves.append(step.logits + shift.to(step.logits.device))
    return moves


class _Step:
    """Plain decoding at one position: its logits, its scores, and what it picks from others."""

    def __init__(
        self,
        model: Any,
        prompt: Sequence[int],
        plain: Sequence[int],
        position: int,
        kwargs: dict[str, Any],
        seed: int,
    ) -> None:
        self._model = model
        self._prefix = [*prompt, *plain[:position]]
        self._kwargs = {**kwargs, "max_new_tokens": 1}
        self.sampling = bool(kwargs.get("do_sample"))
        self.token = plain[position]
        recorder = _RecordState(position)
        kwargs = {**kwargs, "max_new_tokens": position + 1}
        out = _decode(model, prompt, kwargs, seed, recorder)
        self.logits = out.logits[position][0].float()
        self.scores = out.scores[position][0].float()
        self._state = recorder.state

    def pick(self, logits: torch.Tensor) -> int:
        """The token that plain decoding picks here from these raw logits, float [vocabulary]."""
        replace = LogitsProcessorList([_Replace(logits)])
        if self._state is not None:
            _set_generator_state(self._model.device, self._state)
        out = self._model.generate(
            **to_inputs(self._prefix, self._model.device), **self._kwargs, logits_processor=replace
        )
        return int(out[0, -1])


class _RecordState(LogitsProcessor):
    """Notes the generator's state before the draw of one position."""

    def __init__(self, position: int) -> None:
        self._calls = 0
        self._position = position
        self.state: torch.Tensor | None = None

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        if self._calls == self._position:
            self.state = _generator_state(scores.device)
        self._calls += 1
        return scores


class _Replace(LogitsProcessor):
    def __init__(self, logits: torch.Tensor) -> None:
        self._logits = logits

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        return self._logits.to(scores)[None]


def _generator_state(device: torch.device) -> torch.Tensor:
    return torch.cuda.get_rng_state(device) if device.type == "cuda" else torch.get_rng_state()


def _set_generator_state(device: torch.device, state: torch.Tensor) -> None:
    if device.type == "cuda":
        torch.cuda.set_rng_state(state, device)
    else:
        torch.set_rng_state(state)


def _decode(
    model: Any,
    prompt: Sequence[int],
    kwargs: dict[str, Any],
    seed: int,
    *processors: LogitsProcessor,
) -> Any:
    torch.manual_seed(seed)
    return model.generate(
        **to_inputs(prompt, model.device),
        **kwargs,
        logits_processor=LogitsProcessorList(processors),
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
    )


def _in_chunks(model: Any, ids: torch.Tensor, start: int, width: int) -> torch.Tensor:
    """Logits that pick the tokens from ``start`` on, float [continuation, vocabulary].

    The prompt is one pass, as in plain decoding; the continuation goes in passes of ``width``.
    """
    cache = {cache_argument(model): DynamicCache(config=model.config)}
    parts = [model(input_ids=ids[:, :start], use_cache=True, **cache).logits[0, -1:]]
    for begin in range(start, ids.shape[1] - 1, width):
        chunk = ids[:, begin : min(begin + width, ids.shape[1] - 1)]
        parts.append(model(input_ids=chunk, use_cache=True, **cache).logits[0])
    return torch.cat(parts).float()


def cache_argument(model: Any) -> str:
    """Name of the argument that takes a cache.

    Transformers is renaming ``past_key_values`` to ``cache``, and the old name warns.
    """
    parameters = inspect.signature(model.forward).parameters
    return "cache" if "cache" in parameters else "past_key_values"
