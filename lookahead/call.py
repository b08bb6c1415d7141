"""State of one call and the moves of the loop on it: prefill, verify, emit, settle."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch import Tensor

from lookahead.cost import CostTable
from lookahead.drafting import Drafter
from lookahead.emission import Emitter, nan_message
from lookahead.memory import Memory
from lookahead.model import Prompt, Target
from lookahead.native.build import Kernels
from lookahead.picking import Picker
from lookahead.plan import Plan
from lookahead.readout import read_nodes
from lookahead.rows import Row
from lookahead.sampling import top_tokens
from lookahead.sources.recycling import classes
from lookahead.stats import Stats, Step
from lookahead.tree import TokenTree

_TRIAL_WIDTHS = (1, 2, 4, 6, 8, 12, 16, 32, 64)
_LONGEST_LEAD = 32  # tokens that a row may be ahead of another one while sampling
_WIDE = 16  # guesses from which on their picks are made under sampling, for later passes
_PADDING_AHEAD = 4  # padding tokens verified per pass for rows that only keep step


class Call:
    """One call of ``generate`` on prepared arguments.

    ``in_step``: all rows emit at the same time, finished ones padding, because something in the
    call must see the whole batch.
    """

    def __init__(
        self, target: Target, memory: Memory, emitter: Emitter, input_ids: Tensor,
        model_kwargs: dict[str, Any], config: Any, streamer: Any, *, chain: bool, in_step: bool,
        kernels: Kernels | None = None,
    ) -> None:  # fmt: skip
        self._target, self._memory, self.emitter = target, memory, emitter
        self._input_ids, self._model_kwargs, self._config = input_ids, model_kwargs, config
        self._streamer, self._chain, self._kernels = streamer, chain, kernels
        self._in_step = in_step and input_ids.shape[0] > 1
        pad = config._pad_token_tensor
        self._pad = int(pad) if pad is not None else 0
        recycling = memory.config.recycling
        self._top = recycling.top_k if recycling.enabled else 0
        self._picker: Picker
        self.stats = Stats(mode="chain" if chain else "tree")
        self.rows: list[Row] = []
        self.prompt_cache: Any = None

    # -- 0. the prompt ----------------------------------------------------------------------

    def prefill(self) -> None:
        """Read the prompt; its last logits are those of output position 0."""
        begin = time.perf_counter()
        recycled = self._memory.config.recycling.prompt_positions if self._top else 0
        if recycled and "logits_to_keep" in self._model_kwargs:
            self._model_kwargs["logits_to_keep"] = recycled
        batch, length = self._input_ids.shape
        room = min(self._room(0), 256) + self._memory.config.planner.max_nodes
        mask = self._model_kwargs.get("attention_mask")
        prompt = self._target.prefill(
            self._input_ids, self._config, self._model_kwargs, length + room
        )
        self.prompt_cache = prompt.cache
        self._picker = Picker(
            self._config, batch, prompt.logits.shape[-1], self._input_ids.device,
            together=batch == 1 or self._in_step,
            shared_noise=self._memory.config.jacobi.shared_noise,
        )  # fmt: skip
        for index in range(batch):
            self.rows.append(self._first_row(index, mask, prompt, begin))
        self._read(self.rows, prompt.logits[:, -1:])
        self._measure_cost()
        self.stats.seconds_prefill = time.perf_counter() - begin

    def _first_row(self, index: int, mask: Tensor | None, prompt: Prompt, begin: float) -> Row:
        ids = self._input_ids[index]
        if mask is not None and mask.shape[1] >= ids.shape[0]:
            ids = ids[mask[index, -ids.shape[0] :].bool().to(ids.device)]
        tokens = ids.tolist() or [self._pad]
        if self._memory.config.recycling.prompt_positions and self._top:
            self._recycle_prompt(prompt.logits[index], tokens)
        drafter = Drafter(self._memory, tokens, sampling=self.emitter.sampling, chain=self._chain)
        row = Row(index, drafter, tokens[-1], Plan(TokenTree(tokens[-1])), began=begin)
        row.logits = prompt.logits[index, -1:]
        return row

    def _recycle_prompt(self, logits: Tensor, tokens: list[int]) -> None:
        kept = min(logits.shape[0], len(tokens)) - 1
        if kept < 1:
            return
        _, top, probs = top_tokens(logits[-kept - 1 : -1], self._top)
        first = len(tokens) - kept - 1
        for i, (ids, kinds) in enumerate(
            zip(top.tolist(), classes(probs.cpu().numpy()), strict=True)
        ):
            before = tokens[first + i - 1] if first + i else -1
            self._memory.recycling.put(before, tokens[first + i], (tuple(ids), tuple(kinds)))

    def _measure_cost(self) -> None:
        """Time a few widths once, before the first passes that are planned by cost."""
        config, cost = self._memory.config.planner, self._memory.cost
        room = min(self._target.room(row.index) for row in self.rows)
        if cost.measured or config.fixed_nodes is not None or min(room, self._room(0)) < 8:
            return
        # The timed chains must not pass what a pass of guesses may not pass either.
        widest = min(config.max_nodes, 7 if self._chain else 1023, room) + 1
        if widest == 1:
            return
        begin = time.perf_counter()
        widths = [width for width in _TRIAL_WIDTHS if 1.5 * width <= widest] + [widest]
        times = self._target.time_widths(widths)
        rows = len(self.rows)
        cost.fit(max(self._target.lengths), {width * rows: spent for width, spent in times.items()})
        self.stats.seconds_measuring = time.perf_counter() - begin

    # -- 1. and 2. draft and verify ---------------------------------------------------------

    def active_rows(self) -> list[Row]:
        """Rows that still emit; those that wait for slower ones are left out."""
        going = [row for row in self.rows if not row.done]
        if self._in_step:
            return self.rows if going else []
        if self._picker.sampling and going:
            # The noise of a position is kept until every row has used it.
            slowest = min(row.emitted for row in going)
            going = [row for row in going if row.emitted <= slowest + _LONGEST_LEAD]
        return going

    def starved_rows(self) -> list[Row]:
        """Active rows whose next logits are not known."""
        return [row for row in self.active_rows() if row.node is None]

    def _room(self, emitted: int) -> int:
        """Tokens that may still be emitted after ``emitted`` of them."""
        limit = self.emitter.stopping.max_length
        length = self._input_ids.shape[1] + emitted
        return max(0, limit - length) if limit is not None else 1 << 30

    def verify(self, rows: Sequence[Row]) -> None:
        """Draft a tree for each row and run one pass over all of them."""
        begin = time.perf_counter()
        trees: list[TokenTree | None] = [None] * len(self.rows)
        held = [0 if row.node is None else len(row.plan.tree) for row in self.rows]
        context = max(self._target.lengths)
        widest = self._memory.config.planner.max_nodes + 1
        cost = self._memory.cost.table(context, widest, len(self.rows))
        for row in rows:
            row.began = begin
            row.plan = self._draft(row, cost)
            trees[row.index] = row.plan.tree
        width = max(len(row.plan.tree) for row in rows)
        for row in rows:  # a pass is as wide as its widest tree
            row.plan.price = 0.0 if row.done else cost.price(width)
        planned = time.perf_counter()
        logits = self._target.verify(trees, held)
        for row in rows:
            row.start_walk(logits[row.index, : len(row.plan.tree)])
        ran = time.perf_counter()
        here = [row.index for row in rows]
        self._read(rows, logits if len(here) == len(self.rows) else logits[here])
        if logits.device.type != "cpu":  # only the transfer waits for the device
            ran = time.perf_counter()
        self._memory.cost.learn(width * len(self.rows), context, ran - planned)
        self._count_pass(rows, width, cost, (begin, planned, ran, time.perf_counter()))

    def _draft(self, row: Row, cost: CostTable) -> Plan:
        room = min(self._room(row.emitted) - 1, self._target.room(row.index))
        if row.done:
            return self._padding(row, room)
        nodes = self._memory.config.planner.max_nodes
        noise = self._picker.to_come(row)
        plan = row.drafter.draft(row.last, cost, nodes, room, noise)
        self._target.blank_unknown(plan.tree)
        return plan

    def _padding(self, row: Row, room: int) -> Plan:
        """The tree of a finished row: what it will be given is known in advance."""
        plan = Plan(TokenTree(row.last))
        for node in range(max(0, min(room, _PADDING_AHEAD))):
            plan.tree.add(node, self._pad)
            plan.weights.append(1.0)
            plan.proposers.append(())
        return plan

    def _read(self, rows: Sequence[Row], logits: Tensor) -> None:
        """Bring picks and likeliest tokens of all nodes to the host."""
        picks, sampling = None, self._picker.sampling
        asked = sampling and any(self._wants_picks(row) for row in rows)
        if asked:
            picks = logits.new_zeros(logits.shape[:2], dtype=torch.int64)
            for i, row in enumerate(rows):
                nodes = len(row.plan.tree)
                picks[i, :nodes] = self._picker.guess(row, logits[i, :nodes])
        seen = read_nodes(logits, picks, self._top, self._kernels)
        for i, row in enumerate(rows):
            row.picks = seen.picks[i] if asked or not sampling else ()
            row.broken = seen.broken[i]
            row.top = (seen.tokens[i], seen.probs[i]) if self._top else ((), ())

    def _wants_picks(self, row: Row) -> bool:
        """Whether sources learn from the picks of a row's nodes, beyond those that are emitted."""
        wide = row.plan.guessed > _WIDE and self._memory.config.positions.enabled
        return row.plan.window or wide or bool(self._memory.extra)

    def _count_pass(
        self, rows: Sequence[Row], width: int, cost: CostTable, times: tuple[float, ...]
    ) -> None:
        stats = self.stats
        begin, planned, ran, read = times
        stats.passes += len(rows)
        stats.nodes += sum(len(row.plan.tree) - 1 for row in rows)
        stats.predicted_tokens += sum(row.plan.expected for row in rows)
        stats.predicted_cost += cost.price(width)
        stats.widths[width] = stats.widths.get(width, 0) + 1
        stats.seconds_by_width[width] = stats.seconds_by_width.get(width, 0.0) + ran - planned
        stats.seconds_planning += planned - begin
        stats.seconds_model += ran - planned
        stats.seconds_picking += read - ran

    # -- 3. emit ----------------------------------------------------------------------------

    def emit(self) -> None:
        """Emit what the known logits allow: one token for all rows in step, or each row's walk."""
        active = self.active_rows()
        if self._in_step:
            if all(row.node is not None for row in active):
                self._emit_together(active)
            return
        for row in active:
            while row.node is not None and not row.done:
                self._emit_one(row)
        self._picker.release(self.rows)

    def _emit_one(self, row: Row) -> None:
        emitter = self.emitter
        assert row.node is not None and row.logits is not None
        rows = slice(row.index, row.index + 1)
        if emitter.takes_argmax:
            if row.broken[row.node]:
                raise ValueError(nan_message(row.emitted))
            token = row.picks[row.node]
        else:
            scores = emitter.score(row.logits[row.node : row.node + 1], rows, row.emitted)
            token = int(self._picker.pick(scores, row.emitted, rows))
        emitter.append(row.index, row.emitted, token)
        row.walk(token)
        row.done = emitter.done([token], rows, row.emitted)[0]
        if self._streamer is not None:
            self._streamer.put(emitter.prefix(rows, row.emitted)[:, -1].cpu())

    def _emit_together(self, rows: Sequence[Row]) -> None:
        emitter, emitted = self.emitter, rows[0].emitted
        known = [row.logits[row.node] for row in rows if row.logits is not None]
        everything = slice(0, len(rows))
        scores = emitter.score(torch.stack(known), everything, emitted)
        tokens = self._picker.pick(scores, emitted, everything).tolist()
        for i, row in enumerate(rows):
            if row.done and emitter.stopping.has_eos:
                tokens[i] = self._pad
            emitter.append(row.index, emitted, tokens[i])
        done = emitter.done(tokens, everything, emitted + 1)
        for row, token, now in zip(rows, tokens, done, strict=True):
            row.done = row.done or now
            row.walk(token)
        if self._streamer is not None:
            self._streamer.put(emitter.prefix(everything, emitted + 1)[:, -1].cpu())

    def settle(self) -> Iterator[Step]:
        """Close the walk of each row that came to its end: cache, sources, counts."""
        finished = not self.active_rows()
        for row in self.rows:
            if row.run and (row.node is None or finished or (row.done and not self._in_step)):
                yield self._settle(row)

    def _settle(self, row: Row) -> Step:
        if not row.in_prompt:
            self._target.commit(row.index, row.used_path)
        self._target.check(row.index, row.emitted - 1)
        row.drafter.learn(row.plan, row.observation())
        accepted = row.accepted()
        row.count(self.stats, accepted)
        seconds = time.perf_counter() - row.began
        step = Step(
            list(row.run), row.origins(accepted), len(row.plan.tree) - 1, seconds, row.index
        )
        row.end_walk()
        return step

    # -- the result -------------------------------------------------------------------------

    def output(self) -> Tensor:
        """int64 [batch, longest]; rows that ended early are padded as plain decoding pads them."""
        ids = self.emitter.output(max(row.emitted for row in self.rows))
        for row in self.rows:
            ids[row.index, self._input_ids.shape[1] + row.emitted :] = self._pad
        return ids

    def export(self, cache: Any) -> None:
        """Bring the caller's cache up to date: all but the last emitted token."""
        self._target.export(cache)
