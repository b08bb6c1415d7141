"""Exact attention of a token tree over a committed prefix, on stock kernels.

    out, lse = tree_attention(q, k, v, prefix_lens=[len_0, ...], tree_mask=mask)

`hf.register()` offers it to unpatched transformers models. This package imports nothing from the
decoding engine and can be used on its own; see README.md beside this file.
"""

from .context import TreeContext
from .dispatch import attend, tree_attention
from .merge import add_sinks, merge
from .reference import reference_attention
from .select import BACKENDS, choose_backend

__all__ = [
    "BACKENDS",
    "TreeContext",
    "add_sinks",
    "attend",
    "choose_backend",
    "merge",
    "reference_attention",
    "tree_attention",
]
