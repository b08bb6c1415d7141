"""The methods that a run compares, all behind one call.

``plain`` is the reference: ``model.generate``, eager. The peers are transformers' own, the
``engine`` is ours, and the reduced engines are ours with everything but one published method
switched off, so that the gain of merging is visible.
"""

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from transformers import CompileConfig
from transformers.generation.streamers import BaseStreamer

from lookahead import config as configs
from lookahead.config import Config

from .prompt_sets import to_inputs
from .timing import Pass

REFERENCE = "plain"
WARM_UP_TOKENS = 8

Wrap = Callable[[Config], Any]
"""Makes an engine of the model under test with a configuration."""


class Method(ABC):
    """One way of generating. ``name`` identifies it in tables and rows.

    ``seed_equal`` tells whether the same seed gives the same sampled text as plain decoding; a
    method without it is compared under greedy decoding only.
    """

    name: str
    seed_equal: bool

    def start_prompt(self) -> None:  # noqa: B027 - most methods keep nothing between prompts
        """Called before each prompt, outside its time."""

    def end_prompt(self) -> None:  # noqa: B027
        """Called after each prompt, when its statistics are taken."""

    @abstractmethod
    def generate(
        self, ids: Sequence[int], kwargs: dict[str, Any], streamer: BaseStreamer | None
    ) -> list[int]:
        """New token ids after the prompt ``ids``; ``kwargs`` are those of ``model.generate``."""

    @abstractmethod
    def modules(self) -> list[torch.nn.Module]:
        """Modules whose forward is a pass; empty where passes cannot be watched."""

    def passes(self) -> list[Pass] | None:
        """Passes of the last call as the method itself counts them, None to watch modules."""
        return None

    def warm_up(self, ids: Sequence[int], kwargs: dict[str, Any]) -> None:
        """Untimed generation before the run, so that no first call is measured.

        ``kwargs`` are those of the run; most methods need but a few tokens.
        """
        self.generate(ids, {**kwargs, "max_new_tokens": WARM_UP_TOKENS}, None)

    def stats(self) -> dict[str, Any] | None:
        """The engine's own statistics of the last call, None for other methods."""
        return None


class TransformersMethod(Method):
    """``model.generate`` with extra arguments, such as transformers' prompt lookup."""

    def __init__(
        self,
        name: str,
        model: Any,
        extra: dict[str, Any] | None = None,
        seed_equal: bool = False,
    ) -> None:
        self.name = name
        self.seed_equal = seed_equal
        self._model = model
        self._extra = extra or {}

    def generate(
        self, ids: Sequence[int], kwargs: dict[str, Any], streamer: BaseStreamer | None
    ) -> list[int]:
        inputs = to_inputs(ids, self._model.device)
        out = self._model.generate(**inputs, **kwargs, **self._extra, streamer=streamer)
        return out[0, len(ids) :].tolist()

    def modules(self) -> list[torch.nn.Module]:
        return [self._model]


class CompiledMethod(TransformersMethod):
    """``model.generate`` with a static cache and a compiled forward.

    Its passes are not watched, because hooks would be compiled too. Its warm-up has the full
    length, since transformers keeps the static cache that is made there and would compile anew
    for a longer one.
    """

    def __init__(self, name: str, model: Any) -> None:
        compile_config = CompileConfig()
        if model.device.type == "cpu":
            # Transformers compiles on accelerators only, unless this, its own mark, is set.
            compile_config._compile_all_devices = True
            compile_config.mode = "default"
        extra = {"cache_implementation": "static", "compile_config": compile_config}
        super().__init__(name, model, extra, seed_equal=True)

    def warm_up(self, ids: Sequence[int], kwargs: dict[str, Any]) -> None:
        self.generate(ids, kwargs, None)

    def modules(self) -> list[torch.nn.Module]:
        return []


class EngineMethod(Method):
    """Our engine with one configuration; cold it starts afresh for every prompt."""

    seed_equal = True

    def __init__(self, name: str, model: Any, wrap: Wrap, config: Config, warm: bool) -> None:
        self.name = name
        self._make = lambda: wrap(config)
        self._model = model
        self._warm = warm
        self._engine: Any = None
        self._steps: list[tuple[int, float, int]] = []  # width, end and tokens of each step

    @property
    def engine(self) -> Any:
        """The engine of the current prompt, made when it is first asked for."""
        if self._engine is None:
            self._engine = self._make()
        return self._engine

    def start_prompt(self) -> None:
        """Have the engine ready before the clock starts."""
        assert self.engine is not None

    def end_prompt(self) -> None:
        """A cold engine goes at once: it may hold a packed copy of the weights."""
        if not self._warm:
            self._engine = None

    def warm_up(self, ids: Sequence[int], kwargs: dict[str, Any]) -> None:
        super().warm_up(ids, kwargs)
        self._engine = None  # what the warm-up taught it does not count

    def generate(
        self, ids: Sequence[int], kwargs: dict[str, Any], streamer: BaseStreamer | None
    ) -> list[int]:
        """Take the engine's steps as they come; each but the first, the prefill's, is a pass."""
        inputs = to_inputs(ids, self._model.device)
        tokens: list[int] = []
        self._steps = []
        if streamer is not None:
            streamer.put(inputs["input_ids"].cpu())
        for step in self.engine.stream(**inputs, **kwargs):
            self._steps.append((step.nodes + 1, time.perf_counter(), len(step.tokens)))
            tokens += step.tokens
            if streamer is not None:
                streamer.put(torch.tensor(step.tokens))
        return tokens

    def modules(self) -> list[torch.nn.Module]:
        return []  # the engine may run a copy of the model, so it counts its passes itself

    def passes(self) -> list[Pass] | None:
        pairs = zip(self._steps, self._steps[1:], strict=False)
        return [Pass(width, end - before, count) for (_, before, _), (width, end, count) in pairs]

    def stats(self) -> dict[str, Any] | None:
        values: dict[str, Any] = self.engine.stats.to_dict()
        return values


@dataclass(frozen=True)
class Entry:
    """A method that can be asked for by name."""

    name: str
    help: str
    config: Callable[[], Config] | None = None


ENTRIES: tuple[Entry, ...] = (
    Entry("plain", "model.generate, eager: the reference, always run"),
    Entry("compiled", "model.generate with a static cache and torch.compile"),
    Entry("hf-lookup", "transformers' prompt lookup, 10 tokens"),
    Entry("assisted", "transformers' assisted generation with --draft-model"),
    Entry("engine", "this project's engine with its defaults", Config),
    Entry("passes", "the engine's passes without guesses: what cheap passes alone bring",
          configs.plain_config),
    Entry("lookahead-5-7-7", "engine reduced to lookahead decoding, N/W/G 5/7/7",
          lambda: configs.lookahead_config(5, 7, 7)),
    Entry("lookahead-5-15-15", "engine reduced to lookahead decoding, N/W/G 5/15/15",
          lambda: configs.lookahead_config(5, 15, 15)),
    Entry("prompt-lookup", "engine reduced to prompt lookup", configs.prompt_lookup_config),
    Entry("suffix", "engine reduced to counted suffixes as a tree", configs.suffix_config),
    Entry("recycling", "engine reduced to token recycling, 80 nodes", configs.recycling_config),
)  # fmt: skip


def default_names(device: torch.device, draft: bool = False) -> tuple[str, ...]:
    """Methods of a run that names none: compiled on a GPU only, assisted only with a draft."""
    skipped = set() if device.type == "cuda" else {"compiled"}
    if not draft:
        skipped.add("assisted")
    return tuple(entry.name for entry in ENTRIES if entry.name not in skipped)


def build_methods(
    names: Sequence[str],
    model: Any,
    wrap: Wrap,
    state: str = "cold",
    draft_model: Any = None,
) -> list[Method]:
    """The methods named, the reference first.

    Under ``state="both"`` the full engine runs cold and, as ``engine-warm``, warm; the reduced
    ones run cold. Raises ValueError for an unknown name, and for a draft model without the method
    assisted or the other way round.
    """
    known = {entry.name: entry for entry in ENTRIES}
    unknown = [name for name in names if name not in known]
    if unknown:
        raise ValueError(f"no method {', '.join(unknown)}; there are {', '.join(known)}")
    if "assisted" in names and draft_model is None:
        raise ValueError("the method assisted needs a draft model: give its path")
    if draft_model is not None and "assisted" not in names:
        raise ValueError("a draft model is used by the method assisted only: add it")
    make = Siblings(wrap)
    methods: list[Method] = []
    for name in dict.fromkeys([REFERENCE, *names]):
        entry = known[name]
        if entry.config is None:
            methods.append(_peer(name, model, draft_model))
            continue
        methods.append(EngineMethod(name, model, make, entry.config(), state == "warm"))
        if name == "engine" and state == "both":
            methods.append(EngineMethod("engine-warm", model, make, entry.config(), True))
    return methods


class Siblings:
    """Makes engines that share what was found out about the model, but nothing of its texts."""

    def __init__(self, wrap: Wrap) -> None:
        self._wrap = wrap
        self._first: dict[tuple[bool, bool], Any] = {}  # by what chooses the kind of passes

    def __call__(self, config: Config) -> Any:
        kind = (config.prepack, config.compiled)
        if kind not in self._first:
            prepack, compiled = kind
            self._first[kind] = self._wrap(Config(prepack=prepack, compiled=compiled))
        return self._first[kind].sibling(config)


def _peer(name: str, model: Any, draft_model: Any) -> Method:
    if name == "hf-lookup":
        return TransformersMethod(name, model, {"prompt_lookup_num_tokens": 10})
    if name == "assisted":
        return TransformersMethod(name, model, {"assistant_model": draft_model})
    if name == "compiled":
        return CompiledMethod(name, model)
    return TransformersMethod(name, model, seed_equal=True)
