"""What a model can do, found out by trying: ``tree``, ``chain`` or ``plain``.

The model first decodes two short texts that share a beginning, in the plain way, with its tokens
forced. Then the same tokens are verified by passes of the engine: a tree with both texts as
branches, a path kept whose rows are not contiguous, the rest rolled back, and a second tree on top.
If all logits agree the mode is ``tree``; if only passes over single chains with rollback agree,
``chain``; else ``plain``. The same is tried across a sliding window, where the model has one, and
with a left-padded prompt beside another one. No class name and no flag is believed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any

import torch

from lookahead.trial import Trial, try_chain, try_tree, with_short_windows

_TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-9, torch.bfloat16: 8e-2, torch.float16: 1e-2}
_FAILURES = (
    RuntimeError,
    ValueError,
    TypeError,
    AttributeError,
    IndexError,
    KeyError,
    NotImplementedError,
    AssertionError,
)


@dataclass(frozen=True)
class Capability:
    """``mode``: "tree", "chain" or "plain". ``reason``: why not a stronger mode, empty for "tree".

    ``error`` is the largest difference of logits seen in the accepted mode, relative to their
    spread. ``padding_reason`` says why batches and padded prompts are decoded plainly, empty where
    they are not.
    """

    mode: str
    reason: str = ""
    error: float = 0.0
    padding_reason: str = ""

    @property
    def plain_reason(self) -> str:
        return self.reason if self.mode == "plain" else ""

    def rows_reason(self, rows: int, attention_mask: Any) -> str:
        """Why a call with so many rows and this mask [rows, tokens] is decoded plainly, or ""."""
        if self.mode == "chain" and rows > 1:
            return "rows of a batch cannot keep their own pace in chain mode"
        if not self.padding_reason:
            return ""
        padded = attention_mask is not None and not bool(attention_mask.bool().all())
        return self.padding_reason if rows > 1 or padded else ""


def find_capability(model: Any, module: Any, static: Any = None) -> Capability:
    """The strongest mode in which ``module`` (see ``Passes``) reproduces ``model``.

    ``static``: passes of fixed shape (``StaticPasses``) to be tried too, or None.
    Leaves the random generators as they were. Costs about two dozen short passes.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        return Capability("plain", "an encoder-decoder model decodes against its encoder")
    tolerance = _TOLERANCE.get(module.dtype, 1e-2)
    reasons: list[str] = []
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        for mode, attempt in (("tree", try_tree), ("chain", try_chain)):
            failure, error = "", 0.0
            for name, trial in _trials(model, module, static):
                failure, seen = _failure(attempt, trial, tolerance)
                error = max(error, seen)
                if failure:
                    reasons.append(f"{mode}: {failure}{name}")
                    break
            if not failure:
                found = Capability(mode, "; ".join(reasons), error)
                return replace(found, padding_reason=_padding_reason(model, module, mode))
    return Capability("plain", "; ".join(dict.fromkeys(reasons)))


def _trials(model: Any, module: Any, static: Any) -> Iterator[tuple[str, Trial]]:
    """What a mode must reproduce, lazily: the model, and a copy of it across a short window."""
    yield "", Trial(model, module, static=static)
    plain = with_short_windows(model, model.config._attn_implementation)
    if plain is not None:
        passes = with_short_windows(model, module.config._attn_implementation)
        yield " across a sliding window", Trial(plain, passes)


def _padding_reason(model: Any, module: Any, mode: str) -> str:
    """Why batches and padded prompts cannot be decoded in this mode, or an empty string."""
    tolerance = _TOLERANCE.get(module.dtype, 1e-2)
    trial = Trial(model, module, padded=True, rows=2 if mode == "tree" else 1)
    failure, _ = _failure(try_tree if mode == "tree" else try_chain, trial, tolerance)
    return f"with left padding {failure}" if failure else ""


def _failure(
    attempt: Callable[[Trial], float], trial: Trial, tolerance: float
) -> tuple[str, float]:
    """Why an attempt failed, empty if it did not, and the largest error seen."""
    try:
        error = attempt(trial)
    except _FAILURES as problem:
        text = str(problem).strip().splitlines()
        return (text[0] if text else type(problem).__name__), 0.0
    if error <= tolerance:
        return "", error
    return f"logits differ from single steps by {error:.1e} of their spread", error
