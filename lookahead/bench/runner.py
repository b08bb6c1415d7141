"""One interleaved run of all methods over all prompts.

1. Each method is warmed up once, untimed.
2. For each case (a prompt's turn) every method generates once; the order rotates from case to
   case, so that none always runs on a machine that another has heated or cooled.
3. The outputs are compared with plain decoding's. A difference is judged at once, and a BUG
   aborts the run.
4. The rows of the case go to disk. An interruption loses at most the case in progress, and a
   resumed run goes on after the last whole one.

A later turn follows plain decoding's reply, so that all methods continue the same conversation.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from . import rows as files
from .exactness import EQUAL, first_divergence, judge
from .methods import REFERENCE, Method
from .prompt_sets import Prompt, check_length, encode
from .rows import Row
from .settings import Settings
from .timing import timed


class OutputDiffers(RuntimeError):
    """A method's text differs from plain decoding's, and rounding does not explain it."""


@dataclass(frozen=True)
class Case:
    """One turn of one prompt; ``name`` is unique in a run, ``number`` counts from 0."""

    number: int
    prompt: Prompt
    turn: int

    @property
    def name(self) -> str:
        """Question id, and the turn where there are several."""
        many = len(self.prompt.turns) > 1
        return f"{self.prompt.question_id}/{self.turn + 1}" if many else self.prompt.question_id


def list_cases(prompts: Sequence[Prompt]) -> list[Case]:
    """All turns of all prompts, in the order of the run."""
    turns = [(prompt, turn) for prompt in prompts for turn in range(len(prompt.turns))]
    return [Case(number, prompt, turn) for number, (prompt, turn) in enumerate(turns)]


class Run:
    """A benchmark run: what it measures with what.

    ``rows_path`` is the file that keeps the rows, None to keep them in memory only. ``chunks``
    tells whether the model can take several tokens on top of a cache (for judging differences).
    """

    def __init__(
        self,
        model: Any,
        tokenizer: Any,
        methods: Sequence[Method],
        settings: Settings,
        rows_path: Path | None = None,
        chunks: bool = True,
    ) -> None:
        if not methods or methods[0].name != REFERENCE:
            raise ValueError(f"the first method of a run must be {REFERENCE}")
        self._model = model
        self._tokenizer = tokenizer
        self._methods = list(methods)
        self._settings = settings
        self._path = rows_path
        self._chunks = chunks

    def rows(
        self,
        prompts: Sequence[Prompt],
        done: Sequence[Row] = (),
        on_generation: Callable[[str, str], None] = lambda case, method: None,
    ) -> Iterator[list[Row]]:
        """Yield the rows of each case, those of ``done`` cases first as they are.

        ``on_generation`` is called with the names of case and method after each generation.
        Raises :class:`OutputDiffers` at the first BUG.
        """
        kept = self._whole_cases(done)
        if self._path is not None:
            files.start_file(
                self._path, self._settings, [r for rows in kept.values() for r in rows]
            )
        cases = list_cases(prompts)
        replies: dict[str, list[str]] = {}
        warmed = False
        for case in cases:
            rows = kept.get(case.name)
            if rows is None:
                ids = encode(self._tokenizer, case.prompt, replies.get(case.prompt.question_id, []))
                check_length(self._model, case.name, len(ids), self._settings.max_new_tokens)
                if not warmed:
                    self._warm_up(prompts)
                    warmed = True
                rows = self._run_case(case, ids, on_generation)
                if self._path is not None:
                    files.append(self._path, rows)
            reference = next(row for row in rows if row.method == REFERENCE)
            text = self._tokenizer.decode(reference.tokens, skip_special_tokens=True)
            replies.setdefault(case.prompt.question_id, []).append(text)
            yield rows

    def _whole_cases(self, done: Sequence[Row]) -> dict[str, list[Row]]:
        cases: dict[str, list[Row]] = {}
        for row in done:
            cases.setdefault(row.case, []).append(row)
        names = {method.name for method in self._methods}
        return {c: rows for c, rows in cases.items() if {row.method for row in rows} == names}

    def _warm_up(self, prompts: Sequence[Prompt]) -> None:
        """One generation by each method, after the longest prompt."""
        ids = max((encode(self._tokenizer, prompt) for prompt in prompts), key=len)
        for method in self._methods:
            method.warm_up(ids, self._settings.generate_kwargs())

    def _run_case(
        self, case: Case, ids: list[int], on_generation: Callable[[str, str], None]
    ) -> list[Row]:
        shift = case.number % len(self._methods)
        order = self._methods[shift:] + self._methods[:shift]
        timed_rows: dict[str, Row] = {}
        for method in order:
            timed_rows[method.name] = self._generate(case, method, ids)
            on_generation(case.name, method.name)
        plain = timed_rows[REFERENCE]
        return [self._compare(m, timed_rows[m.name], plain, case) for m in self._methods]

    def _generate(self, case: Case, method: Method, ids: list[int]) -> Row:
        kwargs = self._settings.generate_kwargs()
        method.start_prompt()
        torch.manual_seed(self._settings.seed + case.number)
        timing = timed(
            lambda streamer: method.generate(ids, kwargs, streamer),
            self._model.device,
            method.modules(),
        )
        row = Row.from_timing(case.name, case.prompt.category, method.name, ids, timing)
        stats, passes = method.stats(), method.passes() or timing.passes
        method.end_prompt()
        once = stats["seconds_measuring"] if stats else 0.0
        return replace(
            row,
            seconds=row.seconds - once,
            seconds_prefill=row.seconds_prefill - once,
            seconds_once=once,
            stats=stats,
            passes=passes,
        )

    def _compare(self, method: Method, row: Row, plain: Row, case: Case) -> Row:
        settings = self._settings
        if settings.do_sample and not method.seed_equal:
            return row
        if first_divergence(plain.tokens, row.tokens) is None:
            return replace(row, equal=True, verdict=EQUAL.to_dict())
        verdict = judge(
            self._model,
            row.prompt_ids,
            plain.tokens,
            row.tokens,
            settings.generate_kwargs(),
            settings.seed + case.number,
            chunks=self._chunks,
        )
        if verdict.outcome == "BUG":
            raise OutputDiffers(
                f"{method.name} differs from plain decoding at token {verdict.position} of "
                f"{case.name}, and rounding does not explain it"
                + (f" (gap {verdict.gap:.3g}, noise {verdict.noise:.3g})" if verdict.noise else "")
            )
        return replace(row, equal=False, verdict=verdict.to_dict())
