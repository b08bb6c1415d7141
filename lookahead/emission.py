"""From logits to emitted tokens, exactly as the sampling loop of transformers does it.

Per emitted token: processors on the true prefix, pick, append, stopping criteria, streamer. What is
known by its exact type to depend on nothing but the row's own tokens is evaluated without tensors
(length, EOS) or row by row; anything else is shown the whole batch at each step, in step.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional
from transformers.generation import logits_process, stopping_criteria

_LOOK_AT_ONE_ROW = {
    logits_process.MinLengthLogitsProcessor,
    logits_process.MinNewTokensLengthLogitsProcessor,
    logits_process.TemperatureLogitsWarper,
    logits_process.RepetitionPenaltyLogitsProcessor,
    logits_process.TopPLogitsWarper,
    logits_process.TopKLogitsWarper,
    logits_process.MinPLogitsWarper,
    logits_process.TypicalLogitsWarper,
    logits_process.EpsilonLogitsWarper,
    logits_process.EtaLogitsWarper,
    logits_process.NoRepeatNGramLogitsProcessor,
    logits_process.SequenceBiasLogitsProcessor,
    logits_process.NoBadWordsLogitsProcessor,
    logits_process.ForcedBOSTokenLogitsProcessor,
    logits_process.ForcedEOSTokenLogitsProcessor,
    logits_process.InfNanRemoveLogitsProcessor,
    logits_process.ExponentialDecayLengthPenalty,
    logits_process.LogitNormalization,
    logits_process.SuppressTokensAtBeginLogitsProcessor,
    logits_process.SuppressTokensLogitsProcessor,
}


def _row_independent(processor: Any) -> bool:
    return type(processor) in _LOOK_AT_ONE_ROW


def _of_one_row(processor: Any, row: int) -> Any:
    """The processor for one row alone; those that hold something for each row are cut to it."""
    lengths = getattr(processor, "prompt_ignore_length", None)
    if not isinstance(lengths, Tensor) or len(lengths) == 1:
        return processor
    cut = copy.copy(processor)
    cut.prompt_ignore_length = lengths[row : row + 1]
    return cut


class Stopping:
    """The stopping criteria of a call, the common ones as plain numbers."""

    def __init__(self, criteria: Sequence[Any]) -> None:
        self.max_length: int | None = None
        self.eos: frozenset[int] = frozenset()
        self.has_eos = any(hasattr(c, "eos_token_id") for c in criteria)
        self.others: list[Any] = []
        for criterion in criteria:
            if type(criterion) is stopping_criteria.MaxLengthCriteria:
                known: int | None = self.max_length
                limit = int(criterion.max_length)
                self.max_length = limit if known is None else min(known, limit)
            elif type(criterion) is stopping_criteria.EosTokenCriteria:
                self.eos |= frozenset(criterion.eos_token_id.tolist())
            else:
                self.others.append(criterion)

    @property
    def row_independent(self) -> bool:
        known = (stopping_criteria.StopStringCriteria, stopping_criteria.MaxTimeCriteria)
        return all(type(criterion) in known for criterion in self.others)

    def ends(self, tokens: Sequence[int], length: int) -> list[bool]:
        """Which rows of ``length`` tokens end by their new ones; ``others`` are not asked."""
        at_end = self.max_length is not None and length >= self.max_length
        return [at_end or token in self.eos for token in tokens]


def _flags(value: Any, rows: int) -> list[bool]:
    if isinstance(value, Tensor):
        flat = value.reshape(-1).tolist()
        return [bool(flag) for flag in flat] if len(flat) == rows else [bool(flat[0])] * rows
    return [bool(value)] * rows


def _as_array(ids: Tensor) -> NDArray[Any] | None:
    """The same memory as an array, where it is on a CPU: single tokens are written faster."""
    return ids.numpy() if ids.device.type == "cpu" else None


class Emitter:
    """Picks tokens and keeps what the call returns beside them.

    ``ids`` int64 [batch, capacity] holds prompt and output, and grows; ``scores`` and ``logits``
    hold float32 [batch, vocabulary] per step where asked for, else None.
    """

    def __init__(
        self,
        input_ids: Tensor,
        capacity: int,
        processors: Any,
        criteria: Sequence[Any],
        config: Any,
    ) -> None:
        batch, self.prompt_length = input_ids.shape
        self.ids = input_ids.new_zeros((batch, capacity))
        self.ids[:, : self.prompt_length] = input_ids
        self._host = _as_array(self.ids)
        self.processors = logits_process.LogitsProcessorList(processors)
        self._of_row = [
            logits_process.LogitsProcessorList([_of_one_row(p, row) for p in processors])
            for row in range(batch)
        ]
        self.stopping = Stopping(criteria)
        returns = config.return_dict_in_generate
        self.scores: list[Tensor] | None = [] if returns and config.output_scores else None
        self.logits: list[Tensor] | None = [] if returns and config.output_logits else None
        self.sampling = bool(config.do_sample)

    @property
    def takes_argmax(self) -> bool:
        """Whether the token is simply the argmax of the logits and nobody looks at them."""
        return not self.sampling and len(self.processors) == 0 and self.keeps_nothing

    @property
    def keeps_nothing(self) -> bool:
        return self.scores is None and self.logits is None

    @property
    def row_independent(self) -> bool:
        """Whether rows may be decoded at their own pace."""
        return (
            self.keeps_nothing
            and all(_row_independent(p) for p in self.processors)
            and self.stopping.row_independent
            and (self.stopping.has_eos or not self.stopping.others)
        )

    def prefix(self, rows: slice, emitted: int) -> Tensor:
        """The prefix that plain decoding would show: int64 [rows, prompt + emitted]."""
        return self.ids[rows, : self.prompt_length + emitted].contiguous()

    def score(self, logits: Tensor, rows: slice, emitted: int) -> Tensor:
        """Processed scores of all rows or of one, float32 [rows, vocabulary].

        Raises ValueError on NaN that the processors leave.
        """
        raw = logits.to(copy=True, dtype=torch.float32, device=self.ids.device)
        everything = len(raw) == len(self._of_row)
        processors = self.processors if everything else self._of_row[rows.start]
        scores = processors(self.prefix(rows, emitted), raw)
        if bool(torch.isnan(scores).any()):
            raise ValueError(nan_message(emitted))
        if self.scores is not None:
            self.scores.append(scores)
        if self.logits is not None:
            self.logits.append(raw)
        return scores

    def append(self, row: int, emitted: int, token: int) -> None:
        """Put the token of output position ``emitted`` of a row in its place."""
        place = self.prompt_length + emitted
        if place >= self.ids.shape[1]:
            self.ids = functional.pad(self.ids, (0, place))
            self._host = _as_array(self.ids)
        if self._host is not None:
            self._host[row, place] = token
        else:
            self.ids[row, place] = token

    def done(self, tokens: Sequence[int], rows: slice, emitted: int) -> list[bool]:
        """Which of ``rows`` are done, their last of ``emitted`` tokens being ``tokens``."""
        done = self.stopping.ends(tokens, self.prompt_length + emitted)
        if not self.stopping.others:
            return done
        prefix, scores = self.prefix(rows, emitted), self.scores_so_far()
        for criterion in self.stopping.others:
            flags = criterion(prefix, scores)
            done = [a or b for a, b in zip(done, _flags(flags, len(done)), strict=True)]
        return done

    def scores_so_far(self) -> tuple[Tensor, ...] | None:
        """Scores of the steps so far where they are kept, as plain decoding shows them."""
        return tuple(self.scores) if self.scores is not None else None

    def output(self, emitted: int) -> Tensor:
        """int64 [batch, prompt + emitted], a tensor of its own."""
        return self.ids[:, : self.prompt_length + emitted].clone()


def nan_message(emitted: int) -> str:
    """One sentence for logits that are not numbers."""
    return (
        f"the model returned NaN logits for output token {emitted + 1}; "
        "check its weights and dtype (float16 on a CPU overflows easily; try float32 or bfloat16)"
    )
