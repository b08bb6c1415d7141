"""State of one call: rows, their trees, and the three moves of the loop on them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lookahead.drafting import MODEL, Drafter
from lookahead.emission import Emitter, nan_message
from lookahead.memory import Memory
from lookahead.model import Target
from lookahead.planner import Plan
from lookahead.sampling import GuessPicks, Noise, pick_sampled, top_tokens
from lookahead.sources import Observation
from lookahead.stats import Stats, Step
from lookahead.tree import TokenTree

TRIAL_WIDTHS = (1, 2, 4, 8, 16, 32, 64)


@dataclass
class Row:
    """One row: its plan, the logits [nodes, vocabulary] of its last pass and where it stands."""

    index: int
    drafter: Drafter
    last: int
    plan: Plan  # at first a bare root: the pass that read the prompt guessed nothing
    emitted: int = 0
    logits: Tensor | None = None
    picks: Sequence[int] = ()
    top: tuple[Sequence[Sequence[int]], Sequence[Sequence[float]]] = ((), ())
    node: int | None = 0
    path: list[int] = field(default_factory=lambda: [0])
    run: list[int] = field(default_factory=list)
    began: float = 0.0
    done: bool = False
    in_prompt: bool = True


class Call:
    """One call of ``generate`` on prepared arguments."""

    def __init__(
        self,
        target: Target,
        memory: Memory,
        emitter: Emitter,
        input_ids: Tensor,
        model_kwargs: dict[str, Any],
        config: Any,
        streamer: Any,
        *,
        chain: bool,
        in_step: bool,
    ) -> None:
        self._target, self._memory, self._emitter = target, memory, emitter
        self._input_ids, self._model_kwargs, self._config = input_ids, model_kwargs, config
        self._streamer, self._chain = streamer, chain
        batch = input_ids.shape[0]
        self._in_step = in_step and batch > 1
        self._noise: Noise | None = None
        self._released = 0
        self._guess_picks = GuessPicks(
            config.temperature or 1.0,
            config.top_k or 0,
            1.0 if config.top_p is None else config.top_p,
        )
        pad = config._pad_token_tensor
        self._pad = int(pad) if pad is not None else 0
        self.stats = Stats(mode="chain" if chain else "tree")
        self.rows: list[Row] = []
        self.prompt_cache: Any = None

    # -- 0. the prompt ----------------------------------------------------------------------

    def prefill(self) -> None:
        """Read the prompt; its last logits are those of output position 0."""
        begin = time.perf_counter()
        keep = self._memory.config.recycling
        if keep.enabled and keep.prompt_positions and "logits_to_keep" in self._model_kwargs:
            self._model_kwargs["logits_to_keep"] = max(1, keep.prompt_positions)
        mask = self._model_kwargs.get("attention_mask")
        length = self._input_ids.shape[1]
        room = min(self._room(0), 256) + self._memory.config.planner.max_nodes
        prompt = self._target.prefill(
            self._input_ids, self._config, self._model_kwargs, length + room
        )
        self.prompt_cache = prompt.cache
        batch = self._input_ids.shape[0]
        if self._emitter.sampling:
            vocabulary = prompt.logits.shape[-1]
            self._noise = Noise(batch, vocabulary, self._input_ids.device)
        for index in range(batch):
            ids = self._input_ids[index]
            if mask is not None and mask.shape[1] >= length:
                ids = ids[mask[index, -length:].bool().to(ids.device)]
            tokens = ids.tolist() or [self._pad]
            drafter = Drafter(
                self._memory, tokens, sampling=self._emitter.sampling, chain=self._chain
            )
            row = Row(index, drafter, tokens[-1], Plan(TokenTree(tokens[-1])), began=begin)
            self._recycle_prompt(row, prompt.logits[index], tokens)
            row.logits = prompt.logits[index, -1:]
            self.rows.append(row)
        self._read(self.rows, prompt.logits[:, -1:])
        self._measure_cost()
        self.stats.seconds_prefill = time.perf_counter() - begin

    def _measure_cost(self) -> None:
        """Time a few widths once, before the first passes that are planned by cost."""
        config, cost = self._memory.config.planner, self._memory.cost
        if cost.measured or config.fixed_nodes is not None or self._room(0) < 8:
            return
        begin = time.perf_counter()
        widest = min(config.max_nodes + 1, 8 if self._chain else 1024)
        widths = [width for width in TRIAL_WIDTHS if width < widest] + [widest]
        cost.fit(max(self._target.lengths), self._target.time_widths(widths))
        self.stats.seconds_measuring = time.perf_counter() - begin

    def _recycle_prompt(self, row: Row, logits: Tensor, tokens: list[int]) -> None:
        config = self._memory.config.recycling
        kept = min(logits.shape[0], len(tokens)) - 1
        if not (config.enabled and config.prompt_positions) or kept < 1:
            return
        top, probs = top_tokens(logits[-kept - 1 : -1], config.top_k)
        store = self._memory.recycling
        first = len(tokens) - kept - 1
        for i, (ids, chances) in enumerate(zip(top.tolist(), probs.tolist(), strict=True)):
            at = first + i
            store.put(tokens[at - 1] if at else -1, tokens[at], ids, chances)

    # -- 1. and 2. draft and verify ---------------------------------------------------------

    def active_rows(self) -> list[Row]:
        """Rows that still emit. In step, finished rows go on with padding until all are done."""
        if all(row.done for row in self.rows):
            return []
        return self.rows if self._in_step else [row for row in self.rows if not row.done]

    def starved_rows(self) -> list[Row]:
        """Active rows whose next logits are not known."""
        return [row for row in self.active_rows() if row.node is None]

    def _room(self, emitted: int) -> int:
        """Tokens that may still be emitted after ``emitted`` of them."""
        limit = self._emitter.stopping.max_length
        length = self._input_ids.shape[1] + emitted
        return max(0, limit - length) if limit is not None else 1 << 30

    def verify(self, rows: Sequence[Row]) -> None:
        """Draft a tree for each row and run one pass over all of them."""
        begin = time.perf_counter()
        trees: list[TokenTree | None] = [None] * len(self.rows)
        held = [0 if row.node is None else len(row.plan.tree) for row in self.rows]
        context = max(self._target.lengths)
        cost = self._memory.cost.table(context, self._memory.config.planner.max_nodes + 1)
        for row in rows:
            row.began = begin
            row.plan = self._draft(row, cost)
            trees[row.index] = row.plan.tree
        planned = time.perf_counter()
        logits = self._target.verify(trees, held)
        for row in rows:
            row.logits = logits[row.index, : len(row.plan.tree)]
            row.node, row.path, row.run, row.in_prompt = 0, [0], [], False
        ran = time.perf_counter()
        self._read(
            rows,
            logits[[row.index for row in rows]] if len(rows) > 1 else logits[rows[0].index][None],
        )
        if logits.device.type != "cpu":  # only the transfer waits for the device
            ran = time.perf_counter()
        width = max(len(row.plan.tree) for row in rows)
        self._memory.cost.learn(width, context, ran - planned)
        self.stats.predicted_cost += float(cost.relative[min(width, len(cost.relative) - 1)])
        self._count_pass(rows, width, planned - begin, ran - planned, time.perf_counter() - ran)

    def _draft(self, row: Row, cost: Any) -> Plan:
        room = min(self._room(row.emitted) - 1, self._target.room(row.index))
        nodes = self._memory.config.planner.max_nodes
        if row.done:  # padding of a finished row: known in advance
            plan = Plan(TokenTree(row.last))
            for node in range(max(0, min(room, 4))):
                plan.tree.add(node, self._pad)
                plan.weights.append(1.0)
                plan.proposers.append(())
            return plan
        return row.drafter.draft(row.last, cost, nodes, room)

    def _read(self, rows: Sequence[Row], logits: Tensor) -> None:
        """Bring to the host what a pass says at each node, in one transfer.

        ``logits`` [rows, nodes, vocabulary]: picks, and the likeliest tokens for recycling.
        """
        highest, picks = logits.float().max(-1)
        for i, row in enumerate(rows):
            if self._noise is not None and row.plan.window:
                nodes = len(row.plan.tree)
                picks[i, :nodes] = self._guess_with_noise(row, logits[i, :nodes])
        columns = [picks.double()[..., None], highest.double()[..., None]]
        recycling = self._memory.config.recycling
        k = min(recycling.top_k, logits.shape[-1]) if recycling.enabled else 0
        if k:
            tokens, probs = top_tokens(logits, k)
            columns += [tokens.double(), probs.double()]  # a double holds any token id exactly
        host = torch.cat(columns, dim=-1).cpu().numpy()
        if self._emitter.takes_argmax and np.isnan(host[..., 1]).any():
            raise ValueError(nan_message(rows[0].emitted))
        ids = host[..., [0, *range(2, 2 + k)]].astype(np.int64).tolist()
        chances = host[..., 2 + k :].tolist()
        for i, row in enumerate(rows):
            nodes = len(row.plan.tree)
            row.picks = [entry[0] for entry in ids[i][:nodes]]
            if k:
                row.top = ([entry[1:] for entry in ids[i][:nodes]], chances[i][:nodes])

    def _guess_with_noise(self, row: Row, logits: Tensor) -> Tensor:
        assert self._noise is not None
        if not self._memory.config.jacobi.shared_noise:
            noise = torch.empty_like(logits, dtype=torch.float32).exponential_(
                generator=torch.Generator(logits.device).manual_seed(row.emitted)
            )
        else:
            draws = [self._noise.at(row.emitted + d)[row.index] for d in row.plan.tree.depths]
            noise = torch.stack(draws)
        return self._guess_picks(logits, noise)

    def _count_pass(
        self, rows: Sequence[Row], width: int, planning: float, model: float, picking: float
    ) -> None:
        stats = self.stats
        stats.passes += len(rows)
        stats.nodes += sum(len(row.plan.tree) - 1 for row in rows)
        stats.predicted_tokens += sum(row.plan.expected for row in rows)
        stats.widths[width] = stats.widths.get(width, 0) + 1
        stats.seconds_by_width[width] = stats.seconds_by_width.get(width, 0.0) + model
        stats.seconds_planning += planning
        stats.seconds_model += model
        stats.seconds_picking += picking

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
        if self._noise is not None:
            self._release_noise()

    def _emit_one(self, row: Row) -> None:
        emitter = self._emitter
        assert row.node is not None and row.logits is not None
        if emitter.takes_argmax:
            token = row.picks[row.node]
        else:
            rows = slice(row.index, row.index + 1)
            logits = row.logits[row.node : row.node + 1]
            scores = emitter.score(logits, rows, row.emitted)
            token = int(self._pick(scores, row.emitted, rows))
        emitter.append(row.index, row.emitted, token)
        prefix = emitter.prefix(slice(row.index, row.index + 1), row.emitted + 1)
        row.done = emitter.stopping([token], prefix, self._all_scores())[0]
        self._walk(row, token)
        if self._streamer is not None:
            self._streamer.put(prefix[:, -1].cpu())

    def _emit_together(self, rows: Sequence[Row]) -> None:
        emitter = self._emitter
        emitted = rows[0].emitted
        logits = torch.stack([row.logits[row.node] for row in rows])  # type: ignore[index]
        everything = slice(0, len(rows))
        scores = emitter.score(logits, everything, emitted)
        tokens = self._pick(scores, emitted, everything).tolist()
        for i, row in enumerate(rows):
            if row.done and emitter.stopping.has_eos:
                tokens[i] = self._pad
            emitter.append(row.index, emitted, tokens[i])
        prefix = emitter.prefix(everything, emitted + 1)
        done = emitter.stopping(tokens, prefix, self._all_scores())
        for row, token, now in zip(rows, tokens, done, strict=True):
            row.done = row.done or now
            self._walk(row, token)
        if self._noise is not None:
            self._noise.emitted(emitted)

    def _pick(self, scores: Tensor, emitted: int, rows: slice) -> Tensor:
        if self._noise is None:
            return torch.argmax(scores, dim=-1)
        alone = len(self.rows) == 1 or self._in_step
        noise = self._noise.due(emitted) if alone else self._noise.at(emitted)
        token = pick_sampled(scores, noise[rows])
        if len(self.rows) == 1:
            self._noise.emitted(emitted)
            self._released = emitted + 1
        return token

    def _all_scores(self) -> Any:
        scores = self._emitter.scores
        return tuple(scores) if scores is not None else None

    def _release_noise(self) -> None:
        """Move the generator past the positions that every row has left behind."""
        assert self._noise is not None
        behind = [row.emitted for row in self.rows if not row.done]
        until = min(behind) if behind else max(row.emitted for row in self.rows)
        while self._released < until:
            self._noise.emitted(self._released)
            self._released += 1

    def _walk(self, row: Row, token: int) -> None:
        assert row.node is not None
        row.run.append(token)
        row.emitted += 1
        row.last = token
        child = row.plan.tree.child(row.node, token)
        row.node = child
        if child is not None:
            row.path.append(child)

    # -- settle -----------------------------------------------------------------------------

    def settle(self) -> Iterator[Step]:
        """Close the walk of each row that came to its end: cache, sources, counts."""
        finished = not self.active_rows()
        for row in self.rows:
            if row.run and (row.node is None or finished or (row.done and not self._in_step)):
                yield self._settle(row)

    def _settle(self, row: Row) -> Step:
        path = row.path[: len(row.run)]  # a node whose logits were not used is not kept
        if not row.in_prompt:
            self._target.commit(row.index, path)
        self._target.check(row.index, row.emitted - 1)
        seen = Observation(row.plan.tree, row.picks, path, row.run, *row.top)
        row.drafter.learn(row.plan, seen)
        accepted = [
            child
            for node, token in zip(path, row.run, strict=True)
            if (child := row.plan.tree.child(node, token)) is not None
        ]
        sources = [self._source(row, child) for child in accepted]
        self._count_row(row, accepted)
        sources += [MODEL] * (len(row.run) - len(sources))
        seconds = time.perf_counter() - row.began
        step = Step(list(row.run), sources, len(row.plan.tree) - 1, seconds, row.index)
        row.node, row.run, row.path = None, [], [0]
        return step

    def _source(self, row: Row, node: int) -> str:
        names = row.drafter.names(row.plan, node)
        return names[0] if names else MODEL

    def _count_row(self, row: Row, accepted: Sequence[int]) -> None:
        stats, plan = self.stats, row.plan
        stats.tokens += len(row.run)
        if row.in_prompt:
            return
        for node in range(1, len(plan.tree)):
            for name in row.drafter.names(plan, node):
                stats.proposed[name] = stats.proposed.get(name, 0) + 1
        for node in accepted:
            for name in row.drafter.names(plan, node):
                stats.accepted[name] = stats.accepted.get(name, 0) + 1
        stats.count_depth(plan.tree.depths[1:], len(accepted))

    # -- the result -------------------------------------------------------------------------

    def output(self) -> Tensor:
        """int64 [batch, longest]; rows that ended early are padded as plain decoding pads them."""
        longest = max(row.emitted for row in self.rows)
        ids = self._emitter.output(longest)
        for row in self.rows:
            ids[row.index, self._input_ids.shape[1] + row.emitted :] = self._pad
        return ids

    def kept(self) -> tuple[Any, Any]:
        """Scores and logits per step, or None where not asked for."""
        scores, logits = self._emitter.scores, self._emitter.logits
        return (
            tuple(scores) if scores is not None else None,
            tuple(logits) if logits is not None else None,
        )

    def export(self, cache: Any) -> None:
        """Bring the caller's cache up to date: all but the last emitted token."""
        self._target.export(cache)
