"""Lookahead decoding: faster generation for any causal language model, with the same output.

engine = lookahead.wrap(model)
ids = engine.generate(**inputs, max_new_tokens=256)
"""

from lookahead.capability import Capability
from lookahead.config import (
    Config,
    JacobiConfig,
    LookupConfig,
    PlannerConfig,
    PoolConfig,
    PositionsConfig,
    RecyclingConfig,
    lookahead_config,
    plain_config,
    prompt_lookup_config,
    recycling_config,
    suffix_config,
)
from lookahead.engine import Engine, wrap
from lookahead.stats import Stats, Step
from lookahead.tree import TokenTree

__all__ = [
    "Capability",
    "Config",
    "Engine",
    "JacobiConfig",
    "LookupConfig",
    "PlannerConfig",
    "PoolConfig",
    "PositionsConfig",
    "RecyclingConfig",
    "Stats",
    "Step",
    "TokenTree",
    "lookahead_config",
    "plain_config",
    "prompt_lookup_config",
    "recycling_config",
    "suffix_config",
    "wrap",
]
