"""Options of the engine: frozen dataclasses, checked when they are made.

The command line reads its defaults from these fields, so this file is the only place
where a default is written down. Sizes are counts of tokens or tree nodes.
"""

from __future__ import annotations

from dataclasses import MISSING, dataclass, field, fields
from typing import Any


def _require(condition: bool, message: str) -> None:
    if not condition:
        raise ValueError(message)


_TYPES: dict[str, tuple[type, ...]] = {
    "bool": (bool,),
    "int": (int,),
    "int | None": (int, type(None)),
    "bool | None": (bool, type(None)),
}


def _require_types(options: Any) -> None:
    """Raise ValueError for a field of another type than the one written down for it."""
    for option in fields(options):
        value = getattr(options, option.name)
        annotation = str(option.type)
        allowed = _TYPES.get(annotation) or (globals()[annotation],)
        flag_as_number = type(value) is bool and bool not in allowed
        _require(
            isinstance(value, allowed) and not flag_as_number,
            f"{type(options).__name__}.{option.name} must be of type {annotation}, got {value!r}",
        )


@dataclass(frozen=True)
class JacobiConfig:
    """The lookahead window (Fu et al. 2024, arXiv:2402.02057, section 3).

    A full window has ``window * (ngram - 1)`` nodes; they are verified in the same pass as the
    guesses. ``always`` grafts the window on every pass, as published; otherwise it runs only
    while its n-grams earn what its nodes cost. ``shared_noise``: under sampling, guesses of all
    sources take the noise of their positions into account.
    """

    enabled: bool = True
    window: int = 5
    ngram: int = 4
    always: bool = False
    shared_noise: bool = True

    def __post_init__(self) -> None:
        _require_types(self)
        _require(self.window >= 1, f"jacobi.window must be at least 1, got {self.window}")
        _require(self.ngram >= 2, f"jacobi.ngram must be at least 2, got {self.ngram}")


@dataclass(frozen=True)
class PoolConfig:
    """The n-gram pool: up to ``guesses`` continuations for each of up to ``capacity`` tokens."""

    enabled: bool = True
    guesses: int = 7
    capacity: int = 65_536

    def __post_init__(self) -> None:
        _require_types(self)
        _require(self.guesses >= 1, f"ngram_pool.guesses must be at least 1, got {self.guesses}")
        _require(self.capacity >= 1, f"ngram_pool.capacity must be at least 1, got {self.capacity}")


@dataclass(frozen=True)
class LookupConfig:
    """Prompt lookup: copy what followed earlier occurrences of the current suffix.

    ``min_match`` is the shortest suffix looked up; ``back_off`` how many shorter suffixes are
    asked besides the longest one that occurred before (0: the longest only).
    """

    enabled: bool = True
    min_match: int = 1
    back_off: int = 3

    def __post_init__(self) -> None:
        _require_types(self)
        _require(self.min_match >= 1, f"prompt_lookup.min_match must be >= 1, got {self.min_match}")
        _require(self.back_off >= 0, f"prompt_lookup.back_off must be >= 0, got {self.back_off}")


@dataclass(frozen=True)
class RecyclingConfig:
    """Recycled logits (Luo et al. 2024, arXiv:2408.08696): the top-k of every computed position.

    ``capacity`` rows of ``top_k`` tokens with their probabilities are kept; ``prompt_positions``
    last positions of the prompt are recycled too (0: none), at the price of their logits.
    """

    enabled: bool = True
    top_k: int = 8
    capacity: int = 65_536
    prompt_positions: int = 0

    def __post_init__(self) -> None:
        _require_types(self)
        _require(1 <= self.top_k <= 64, f"recycling.top_k must be 1 to 64, got {self.top_k}")
        _require(self.capacity >= 1, f"recycling.capacity must be at least 1, got {self.capacity}")
        _require(self.prompt_positions >= 0, "recycling.prompt_positions must not be negative")


@dataclass(frozen=True)
class PositionsConfig:
    """Picks by position: what the model picked after rejected guesses, for positions to come."""

    enabled: bool = True

    def __post_init__(self) -> None:
        _require_types(self)


@dataclass(frozen=True)
class PlannerConfig:
    """How many guesses a pass verifies.

    ``fixed_nodes`` verifies that many whenever they can be found (0: none, plain decoding on the
    engine's passes); None spends by measured cost, at most ``max_nodes``.
    """

    max_nodes: int = 64
    fixed_nodes: int | None = None

    def __post_init__(self) -> None:
        _require_types(self)
        _require(0 <= self.max_nodes <= 1024, f"max_nodes must be 0 to 1024, got {self.max_nodes}")
        if self.fixed_nodes is not None:
            _require(
                0 <= self.fixed_nodes <= self.max_nodes,
                f"fixed_nodes must be 0 to max_nodes ({self.max_nodes}), got {self.fixed_nodes}",
            )


@dataclass(frozen=True)
class Config:
    """All options of an engine. No option changes an emitted token (in fp32).

    ``prepack`` lets CPU passes use linear layers with weights packed once for the processor, in
    a copy that shares everything else with the model: about one more copy of the weights in
    memory. ``compiled`` runs fp32 passes of that copy on kernels that the machine's C++ compiler
    makes once; without a compiler they run on oneDNN. ``static_passes`` runs passes of one row in
    fixed shapes, replayed as CUDA graphs on a GPU (None: on a GPU only). ``remember_cost`` keeps
    measured pass costs in the user's cache folder.
    """

    jacobi: JacobiConfig = field(default_factory=JacobiConfig)
    ngram_pool: PoolConfig = field(default_factory=PoolConfig)
    prompt_lookup: LookupConfig = field(default_factory=LookupConfig)
    recycling: RecyclingConfig = field(default_factory=RecyclingConfig)
    positions: PositionsConfig = field(default_factory=PositionsConfig)
    planner: PlannerConfig = field(default_factory=PlannerConfig)
    prepack: bool = True
    compiled: bool = True
    static_passes: bool | None = None
    remember_cost: bool = True

    def __post_init__(self) -> None:
        _require_types(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Config:
        """Build from nested dictionaries; unknown names and other types raise ValueError."""
        _require(isinstance(values, dict), f"options must be a dictionary, got {values!r}")
        parts: dict[str, Any] = {}
        groups = {f.name: f.default_factory for f in fields(cls)}
        for name, value in values.items():
            _require(name in groups, f"unknown option {name!r}; known: {', '.join(groups)}")
            group: Any = groups[name]
            if isinstance(value, dict) and group is not MISSING:
                known = {f.name for f in fields(group)}
                unknown = sorted(set(value) - known)
                _require(not unknown, f"unknown option {name}.{', '.join(unknown)}")
                value = group(**value)
            parts[name] = value
        return cls(**parts)


_OFF = {
    "jacobi": JacobiConfig(enabled=False, shared_noise=False),
    "ngram_pool": PoolConfig(enabled=False),
    "prompt_lookup": LookupConfig(enabled=False),
    "recycling": RecyclingConfig(enabled=False),
    "positions": PositionsConfig(enabled=False),
}


def plain_config(**overrides: Any) -> Config:
    """No guesses at all: plain decoding on the engine's own passes."""
    return Config(**{**_OFF, "planner": PlannerConfig(fixed_nodes=0), **overrides})


def lookahead_config(ngram: int = 5, window: int = 7, guesses: int = 7, **overrides: Any) -> Config:
    """Lookahead decoding as published (arXiv:2402.02057): N / W / G, window on every pass."""
    jacobi = JacobiConfig(window=window, ngram=ngram, always=True)
    pool = PoolConfig(guesses=guesses)
    nodes = guesses * (ngram - 1)
    planner = PlannerConfig(max_nodes=nodes, fixed_nodes=nodes)
    return Config(**{**_OFF, "jacobi": jacobi, "ngram_pool": pool, "planner": planner, **overrides})


def prompt_lookup_config(nodes: int = 10, **overrides: Any) -> Config:
    """Prompt lookup alone: one chain, the longest match first."""
    lookup = LookupConfig(back_off=0)
    planner = PlannerConfig(fixed_nodes=nodes)
    return Config(**{**_OFF, "prompt_lookup": lookup, "planner": planner, **overrides})


def suffix_config(nodes: int = 16, **overrides: Any) -> Config:
    """Counted suffixes of all lengths as a tree, after SuffixDecoding (arXiv:2411.04975)."""
    planner = PlannerConfig(fixed_nodes=nodes)
    return Config(**{**_OFF, "prompt_lookup": LookupConfig(), "planner": planner, **overrides})


def recycling_config(nodes: int = 80, **overrides: Any) -> Config:
    """Token recycling alone (arXiv:2408.08696), with its published tree size."""
    planner = PlannerConfig(max_nodes=max(nodes, 64), fixed_nodes=nodes)
    return Config(**{**_OFF, "recycling": RecyclingConfig(), "planner": planner, **overrides})
