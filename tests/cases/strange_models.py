"""Models that do something unusual, which only trying them out can show."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from lookahead.bench.tiny_models import tiny_model


class _Strange(LlamaForCausalLM):
    """A tiny Llama whose forward is replaced by ``strange``."""

    @classmethod
    def tiny(cls, **config: Any) -> Any:
        """A model with the weights of the usual tiny Llama."""
        model = tiny_model("llama", **config)
        made = cls(model.config)
        made.load_state_dict(model.state_dict())
        made.generation_config = model.generation_config
        return made.eval()


class DropsWideMasks(_Strange):
    """Ignores masks of four dimensions, as several classes and releases did."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 4:
            attention_mask = None
        return super().forward(input_ids, attention_mask, position_ids, cache, **kwargs)


class ForgetsPadding(_Strange):
    """Sees padding while it reads the prompt and forgets it in later plain steps."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        later = cache is not None and cache.get_seq_length() > 0
        if later and isinstance(attention_mask, Tensor) and attention_mask.dim() == 2:
            attention_mask = torch.ones_like(attention_mask)
        return super().forward(input_ids, attention_mask, position_ids, cache, **kwargs)


class WindowInTheCode(_Strange):
    """Hides old slots by slot number, whatever a mask of four dimensions says."""

    def forward(
        self,
        input_ids: Any = None,
        attention_mask: Any = None,
        position_ids: Any = None,
        cache: Any = None,
        **kwargs: Any,
    ) -> Any:
        window = self.config.sliding_window
        held = cache.get_seq_length() if cache is not None else 0
        n = input_ids.shape[1]
        keys, first = cache.get_mask_sizes(n, 0) if held else (n, 0)
        slots = torch.arange(first, first + keys)[None]
        queries = torch.arange(held, held + n)[:, None]
        seen = (queries - slots < window) & (queries >= slots)
        if isinstance(attention_mask, Tensor) and attention_mask.dim() == 4:
            seen = (queries - slots < window) & (attention_mask[0, 0, :, :keys] > -1)
        lowest = torch.finfo(torch.float32).min
        additive = torch.where(seen, 0.0, lowest)[None, None]
        return super().forward(input_ids, additive, position_ids, cache, **kwargs)
