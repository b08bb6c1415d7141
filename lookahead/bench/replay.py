"""Scores sources of guesses on recorded token streams, in seconds and without a model.

Greedy text does not depend on the guesses, so a recorded output answers every question that
verification would ask: a guess is accepted where it is the recorded token. One replayed pass:

1. the planner grows a tree from the sources, as in decoding;
2. the recorded text walks down the tree as far as it can, plus the bonus token;
3. calibration and sources see what came true.

What only the model knows stays out: the Jacobi window makes no n-grams here, there are no picks by
position, and recycling sees the recorded top-k of emitted positions but not those of rejected
nodes, so its score is a lower bound.
"""

import json
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lookahead.calibration import Calibration
from lookahead.config import Config
from lookahead.cost import CostTable
from lookahead.plan import Plan
from lookahead.planner import Pace, Planner
from lookahead.sources import (
    NgramPool,
    Observation,
    PoolSource,
    PromptLookup,
    RecyclingSource,
    RecyclingStore,
    Source,
)
from lookahead.tree import TokenTree

from .prompt_sets import to_inputs
from .rows import Row, read_file

DEFAULT_SLOPE = 0.03
"""Relative cost of one more token in a pass, where no measured curve is given."""


@dataclass(frozen=True)
class Stream:
    """A prompt and what the model said, as token ids.

    ``top_tokens[i]`` and ``top_probs[i]`` are the likeliest tokens for ``output[i]`` as the model
    saw them; empty where they were not recorded.
    """

    name: str
    category: str
    prompt: list[int]
    output: list[int]
    top_tokens: list[list[int]] = field(default_factory=list)
    top_probs: list[list[float]] = field(default_factory=list)


@dataclass(frozen=True)
class Score:
    """What a set of sources would have earned on streams.

    ``speedup`` is tokens per pass over the mean relative cost of the passes, planning excluded;
    ``seconds_planning`` is the host time per pass that planning and learning took here.
    """

    tokens: int
    passes: int
    nodes: int
    speedup: float
    seconds_planning: float
    proposed: dict[str, int]
    accepted: dict[str, int]

    @property
    def tokens_per_pass(self) -> float:
        """Mean tokens per pass, the bonus token included."""
        return self.tokens / self.passes if self.passes else 0.0

    @property
    def nodes_per_pass(self) -> float:
        """Mean guesses per pass."""
        return self.nodes / self.passes if self.passes else 0.0


def streams_from_rows(rows: Iterable[Row], method: str = "plain") -> list[Stream]:
    """The streams of one method of a benchmark run, without top-k."""
    return [
        Stream(row.case, row.category, row.prompt_ids, row.tokens)
        for row in rows
        if row.method == method
    ]


@torch.inference_mode()
def record(
    model: Any, name: str, category: str, prompt: Sequence[int], max_new_tokens: int, top_k: int = 8
) -> Stream:
    """Decode greedily and record the output with the top-k of every position."""
    out = model.generate(
        **to_inputs(prompt, model.device),
        max_new_tokens=max_new_tokens,
        do_sample=False,
        output_logits=True,
        return_dict_in_generate=True,
    )
    probs, tokens = torch.cat(out.logits).float().softmax(-1).topk(top_k)
    output = out.sequences[0, len(prompt) :].tolist()
    shown = [[round(p, 5) for p in row] for row in probs.tolist()]
    return Stream(name, category, list(prompt), output, tokens.tolist(), shown)


def write_streams(path: Path, streams: Iterable[Stream]) -> None:
    """Write streams as JSONL, whole or not at all."""
    text = "".join(json.dumps(asdict(stream)) + "\n" for stream in streams)
    part = path.with_name(path.name + ".part")
    part.write_text(text)
    part.replace(path)


def read_streams(path: Path) -> list[Stream]:
    """Read what :func:`write_streams` wrote. Raises ValueError that names a bad line."""
    streams = []
    for number, line in enumerate(path.read_text().splitlines(), start=1):
        try:
            streams.append(Stream(**json.loads(line)))
        except (ValueError, TypeError) as error:
            raise ValueError(f"{path}, line {number}: not a recorded stream") from error
    return streams


def load_streams(path: Path) -> list[Stream]:
    """Streams of a file of streams, or plain decoding's from the rows of a benchmark run.

    Raises ValueError where the file is neither or holds none.
    """
    lines = path.read_text().splitlines()
    is_run = bool(lines) and lines[0].startswith('{"settings"')
    streams = streams_from_rows(read_file(path)[1]) if is_run else read_streams(path)
    if not streams:
        raise ValueError(f"{path} holds no recorded streams")
    return streams


def sloped_cost(slope: float, nodes: int) -> CostTable:
    """A pass over n tokens costs ``1 + slope * (n - 1)`` plain passes, up to ``nodes`` guesses."""
    if slope < 0:
        raise ValueError(f"a slope of {slope} would make wider passes cheaper: use 0 or more")
    widths = np.arange(nodes + 3)
    return CostTable.of(1.0 + slope * np.maximum(widths - 1.0, 0.0))


class Replayer:
    """Sources, calibration and planner of one configuration, kept from stream to stream (warm).

    ``cost`` gives the relative cost of a pass by its width; by default a straight line of
    ``DEFAULT_SLOPE``. Raises ValueError where the configuration leaves no source.
    """

    def __init__(self, config: Config, cost: CostTable | None = None) -> None:
        self._config = config
        pool, store = (
            NgramPool(config.ngram_pool, config.jacobi.ngram),
            RecyclingStore(config.recycling),
        )
        makers: list[tuple[bool, Callable[[], Source]]] = [
            (config.prompt_lookup.enabled, lambda: PromptLookup(config.prompt_lookup)),
            (config.ngram_pool.enabled, lambda: PoolSource(pool)),
            (config.recycling.enabled, lambda: RecyclingSource(store)),
        ]
        self._sources = [make() for enabled, make in makers if enabled]
        if not self._sources:
            raise ValueError("no source that works without a model is enabled")
        self._calibration = Calibration(self._sources)
        self._planner = Planner(config.planner, self._sources, self._calibration)
        self._pace = Pace()
        self._cost = cost or sloped_cost(DEFAULT_SLOPE, config.planner.max_nodes)

    def score(self, streams: Iterable[Stream]) -> Score:
        """Replay all ``streams`` one after the other."""
        tokens = passes = nodes = 0
        paid = 0.0
        proposed: dict[str, int] = {}
        accepted: dict[str, int] = {}
        start = time.perf_counter()
        for stream in streams:
            if len(stream.output) < 2:
                continue
            for plan, walked in self._passes(stream):
                tokens += len(walked)
                passes += 1
                nodes += len(plan.tree) - 1
                paid += float(self._cost.relative[len(plan.tree)])
                self._count(plan, range(1, len(plan.tree)), proposed)
                self._count(plan, walked[1:], accepted)
        seconds = time.perf_counter() - start
        return Score(
            tokens,
            passes,
            nodes,
            tokens / paid if paid else 0.0,
            seconds / passes if passes else 0.0,
            proposed,
            accepted,
        )

    def _passes(self, stream: Stream) -> Iterable[tuple[Plan, list[int]]]:
        """Yield the plan of each pass and its walked nodes, root first.

        The prefill gives the first token, as in decoding.
        """
        output = stream.output
        for source in self._sources:
            source.start(stream.prompt)
            source.extend(output[:1])
        done = 1
        while done < len(output):
            left = len(output) - done
            plan = self._planner.plan(
                output[done - 1],
                self._cost,
                self._config.planner.max_nodes,
                left - 1,
                rate=self._pace.rate,
            )
            walked = self._walk(plan, output[done:])
            self._learn(plan, walked, stream, done)
            self._pace.saw(len(walked), plan.price)
            done += len(walked)
            yield plan, walked

    def _walk(self, plan: Plan, ahead: Sequence[int]) -> list[int]:
        walked = [0]
        for token in ahead[:-1]:
            node = plan.tree.child(walked[-1], token)
            if node is None:
                break
            walked.append(node)
        return walked

    def _learn(self, plan: Plan, walked: list[int], stream: Stream, done: int) -> None:
        emitted = stream.output[done : done + len(walked)]
        for node, token in zip(walked, emitted, strict=True):
            for guess, buckets in plan.offered.get(node, {}).items():
                self._calibration.record(buckets, guess == token)
        seen = self._observation(emitted, stream, done)
        for source in self._sources:
            source.observe(seen)
            source.extend(emitted)

    @staticmethod
    def _observation(emitted: list[int], stream: Stream, done: int) -> Observation:
        """What the pass showed of the walked path; the rest of the tree is not recorded."""
        tree = TokenTree(stream.output[done - 1])
        for node, token in enumerate(emitted[:-1]):
            tree.add(node, token)
        rows = slice(done, done + len(emitted))
        return Observation(
            tree,
            picks=emitted,
            path=range(len(emitted)),
            emitted=emitted,
            top_tokens=stream.top_tokens[rows],
            top_probs=stream.top_probs[rows],
        )

    def _count(self, plan: Plan, nodes: Iterable[int], total: dict[str, int]) -> None:
        for node in nodes:
            for proposer in plan.proposers[node]:
                name = self._sources[proposer].name
                total[name] = total.get(name, 0) + 1


def replay(
    streams: Sequence[Stream], config: Config, cost: CostTable | None = None
) -> dict[str, Score]:
    """Scores by category, and of ``"all"``, each with a fresh warm :class:`Replayer`."""
    groups: dict[str, list[Stream]] = {"all": list(streams)}
    for stream in streams:
        groups.setdefault(stream.category, []).append(stream)
    return {name: Replayer(config, cost).score(group) for name, group in groups.items()}
