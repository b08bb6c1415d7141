"""Sources of guesses behind one protocol (see ``base``), one file each."""

from lookahead.sources.base import Candidate, Observation, Source
from lookahead.sources.jacobi import JacobiWindow
from lookahead.sources.ngram_pool import NgramPool, PoolSource
from lookahead.sources.positions import PositionSource
from lookahead.sources.prompt_lookup import PromptLookup
from lookahead.sources.recycling import RecyclingSource, RecyclingStore

__all__ = [
    "Candidate",
    "JacobiWindow",
    "NgramPool",
    "Observation",
    "PoolSource",
    "PositionSource",
    "PromptLookup",
    "RecyclingSource",
    "RecyclingStore",
    "Source",
]
