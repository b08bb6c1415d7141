"""The only file that calls the model: a tree of tokens in, logits of its nodes out.

1. ``prefill`` reads the prompt with transformers' own code into an ordinary cache and takes that
over.
2. ``verify`` runs one pass over one tree per row: positions are those of the roots plus depths, the
   mask shows each node the committed slots and its ancestors.
3. ``commit`` keeps the rows of the walked paths.

In chain mode a tree is a single chain and the model builds its own causal mask.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor

from lookahead.attention import TreeContext, hf
from lookahead.kv_cache import CACHE_NAME, TreeCache
from lookahead.masks import LayerKinds, MaskBuilder
from lookahead.native.direct import direct_pass
from lookahead.static_pass import StaticPasses
from lookahead.tree import TokenTree

_PAD_NODE = 0  # token id of padding nodes; their logits are never read


def text_config(model: Any) -> Any:
    """The configuration of the part of the model that decodes text."""
    return model.config.get_text_config(decoder=True)


def input_device(model: Any) -> torch.device:
    """Where a model wants its inputs: that of its weights, or of the hooks that bring them."""
    device: torch.device = model.device
    if device.type != "meta":
        return device
    hooks = (getattr(module, "_hf_hook", None) for module in model.modules())
    places = (getattr(hook, "execution_device", None) for hook in hooks)
    return torch.device(next((place for place in places if place is not None), "cpu"))


def rotary_switches(config: Any) -> list[tuple[int, str]]:
    """(length, kind): where scaled rotary embeddings change; kind is "longrope" or "dynamic"."""
    parameters = getattr(config, "rope_parameters", None) or {}
    found = []
    for rope in [parameters, *(value for value in parameters.values() if isinstance(value, dict))]:
        kind = rope.get("rope_type")
        if kind in ("longrope", "dynamic"):
            length = getattr(config, "original_max_position_embeddings", None)
            length = length or rope.get("original_max_position_embeddings")
            length = length or getattr(config, "max_position_embeddings", None)
            if isinstance(length, int):
                found.append((length, str(kind)))
    return found


def position_limits(config: Any) -> list[tuple[int, bool]]:
    """(position, hard): a pass must not cross such a position; past a hard one it is one token."""
    limits = [(length, kind == "dynamic") for length, kind in rotary_switches(config)]
    context = getattr(config, "max_position_embeddings", None)
    if isinstance(context, int) and context > 0:
        limits.append((context, False))
    return limits


@dataclass
class Prompt:
    """Result of a prefill. ``logits`` [batch, kept, vocabulary]; ``cache`` as the caller knows
    it."""

    logits: Tensor
    cache: Any
    length: int


class Target:
    """The model with one call's cache. ``mode`` is ``"tree"`` or ``"chain"``; ``static`` runs
    passes of one row in fixed shapes."""

    def __init__(self, module: Any, mode: str, static: StaticPasses | None = None) -> None:
        self._module = module
        self._static = static if mode == "tree" else None
        self._direct = direct_pass(module) if mode == "tree" and static is None else None
        self._mode = mode
        self.device = input_device(module)
        self._cache: TreeCache
        self._masks: MaskBuilder | None = None
        self._limits = position_limits(text_config(module))
        self._known = getattr(module.get_input_embeddings(), "num_embeddings", None)
        self._tree_attention = text_config(module)._attn_implementation == hf.NAME

    @property
    def lengths(self) -> list[int]:
        """Committed slots of each row."""
        return self._cache.lengths

    def prefill(
        self, input_ids: Tensor, generation_config: Any, model_kwargs: dict[str, Any], capacity: int
    ) -> Prompt:
        """Read the prompt [batch, tokens].

        ``model_kwargs`` as transformers prepared them. Raises ValueError if the cache that the
        model uses cannot be rolled back.
        """
        outputs = self._module._prefill(input_ids, generation_config, model_kwargs)
        kwargs = self._module._update_model_kwargs_for_generation(outputs, model_kwargs)
        prompt_cache = outputs[CACHE_NAME]
        # The mask now covers the token to come as well; slots so far are one fewer.
        mask = kwargs.get("attention_mask")
        length = int(prompt_cache.get_seq_length())
        batch = outputs.logits.shape[0]
        if mask is None:
            valid = np.ones((batch, length), dtype=np.bool_)
        else:
            valid = mask[:, :-1].bool().cpu().numpy()
        positions = kwargs.get("position_ids")
        self._mask_2d = mask
        self._next = None
        if positions is not None:  # [..., 1 or batch, tokens]
            last = positions[..., -1:]
            self._next = last.expand(*last.shape[:-2], batch, 1).clone()
        self._next_host = (
            self._next.reshape(-1, batch).amax(0).tolist() if self._next is not None else []
        )
        self._prompt_length = length
        arena = self._static.arena if self._static is not None and batch == 1 else None
        self._cache = TreeCache(prompt_cache, length, capacity, arena)
        if self._mode == "tree":
            kinds = LayerKinds.of(text_config(self._module))
            self._masks = MaskBuilder(kinds, valid, self._module.dtype)
            self._padding = valid.argmax(1).tolist()
            left_padded = (valid.sum(1) == length - valid.argmax(1)).all()
            self._tree_attention = self._tree_attention and bool(left_padded)
        return Prompt(outputs.logits, prompt_cache, length)

    def blank_unknown(self, tree: TokenTree) -> None:
        """Blank the guesses that have no embedding: the model can neither read nor keep them."""
        known = self._known
        if known is None or (max(tree.tokens) < known and min(tree.tokens) >= 0):
            return
        for node in range(1, len(tree)):
            if not 0 <= tree.tokens[node] < known:
                tree.blank(node, _PAD_NODE)

    def verify(self, trees: Sequence[TokenTree | None], held: Sequence[int]) -> Tensor:
        """Logits [batch, widest tree, vocabulary] of one pass; a row without a tree is skipped.

        ``held[b]`` counts slots of row ``b`` behind its committed ones that must survive the pass.
        """
        n = max(len(tree) for tree in trees if tree is not None)
        lengths = self._cache.lengths
        starts = [length + keep for length, keep in zip(lengths, held, strict=True)]
        self._cache.reserve(starts, n)
        tokens = np.full((len(trees), n), _PAD_NODE, dtype=np.int64)
        depths = np.zeros((len(trees), n), dtype=np.int64)
        for row, tree in enumerate(trees):
            if tree is not None:
                tokens[row, : len(tree)] = tree.tokens
                depths[row, : len(tree)] = tree.depths
        logits = self._directly(trees, tokens, depths)
        if logits is not None:
            return logits
        ids = torch.from_numpy(tokens).to(self.device)
        positions = self._positions(depths, lengths)
        if self._static is not None and self._masks is not None and len(trees) == 1:
            masks = self._masks(trees, starts, lengths, n, self.device)
            by_kind = masks if isinstance(masks, dict) else {"": masks}
            logits = self._static(self._cache, ids, positions.get("position_ids"), by_kind)
            if logits is not None:
                return logits
        inputs: dict[str, Any] = {
            "input_ids": ids,
            CACHE_NAME: self._cache,
            "use_cache": True,
            "return_dict": True,
        }
        inputs.update(positions)
        inputs.update(self._mask(trees, starts, lengths, depths))
        return cast(Tensor, self._module(**inputs).logits)

    def _directly(
        self, trees: Sequence[TokenTree | None], tokens: Any, depths: Any
    ) -> Tensor | None:
        """Logits without the model's own code, where that is known and does nothing else."""
        if self._direct is None or not self._tree_attention or len(self._next_host) != len(trees):
            return None
        done = [
            at + length - self._prompt_length
            for at, length in zip(self._next_host, self._cache.lengths, strict=True)
        ]
        positions = depths + np.array(done, dtype=np.int64)[:, None]
        starts = np.array(self._padding, dtype=np.int64)
        return self._direct(self._cache, tokens, positions, starts, self._attended(trees, tokens))

    @staticmethod
    def _attended(trees: Sequence[TokenTree | None], tokens: Any) -> Any:
        """Which nodes a node attends to, bool [batch, n, n]."""
        masks = np.zeros((*tokens.shape, tokens.shape[1]), dtype=np.bool_)
        for row, tree in enumerate(trees):
            if tree is not None:
                masks[row, : len(tree), : len(tree)] = tree.mask()
        return masks

    def _positions(self, depths: Any, lengths: Sequence[int]) -> dict[str, Any]:
        if self._next is None:
            return {}
        done = np.array([length - self._prompt_length for length in lengths])[:, None]
        offsets = torch.from_numpy(depths + done).to(self.device)
        return {"position_ids": self._next.to(self.device) + offsets}

    def _mask(
        self, trees: Sequence[TokenTree | None], starts: list[int], lengths: list[int], depths: Any
    ) -> dict[str, Any]:
        n = depths.shape[1]
        if self._masks is None:
            if self._mask_2d is None:
                return {}
            return {"attention_mask": self._chain_mask(starts[0] + n)}
        if n == 1 and self._masks.plain and len(set(starts)) == 1:
            return {}
        if self._tree_attention:
            return self._context(trees, lengths, depths)
        return {"attention_mask": self._masks(trees, starts, lengths, n, self.device)}

    def _context(
        self, trees: Sequence[TokenTree | None], lengths: list[int], depths: Any
    ) -> dict[str, Any]:
        context = TreeContext(
            list(lengths), torch.from_numpy(self._attended(trees, depths)),
            torch.from_numpy(depths), self._padding,
        )  # fmt: skip
        return hf.tree_inputs(context)

    def _chain_mask(self, slots: int) -> Tensor:
        mask = self._mask_2d
        assert mask is not None
        missing = slots - (mask.shape[1] - 1)
        return torch.cat([mask[:, :-1], mask.new_ones((mask.shape[0], missing))], dim=1)

    def time_widths(self, widths: Sequence[int], turns: int = 2) -> dict[int, float]:
        """Least seconds of passes over so many tokens, interleaved; nothing is committed.

        A pass after a much wider one is slower, so each width runs twice and the second counts.
        """
        rows = len(self._cache.lengths)
        seconds = dict.fromkeys(widths, math.inf)
        for width in [*widths] * turns:
            tree = TokenTree(_PAD_NODE)
            for node in range(1, width):
                tree.add(node - 1, _PAD_NODE)
            for _ in range(2):
                begin = time.perf_counter()
                logits = self.verify([tree] * rows, [0] * rows)
                logits[..., -1, -1].sum().item()  # waits for the device
                spent = time.perf_counter() - begin
            seconds[width] = min(seconds[width], spent)
        return seconds

    def commit(self, row: int, path: Sequence[int]) -> None:
        """Keep the rows of a walked path of the last pass."""
        self._cache.commit(row, path)

    def check(self, row: int, expected: int) -> None:
        """Raise RuntimeError unless row ``row`` has ``expected`` new slots behind the prompt's."""
        held = self._cache.lengths[row]
        if held != self._prompt_length + expected:
            raise RuntimeError(f"the cache holds {held} positions, {expected} new ones were due")

    def room(self, row: int) -> int:
        """How deep guesses below the next root of a row may go.

        No guess passes the end of the context, nor the length at which scaled rotary embeddings
        change their factors: those depend on the longest position of a pass, and plain decoding
        would not have got there yet.
        """
        if self._next is None:
            position = self._cache.lengths[row]
        else:
            position = self._next_host[row] + self._cache.lengths[row] - self._prompt_length
        room = 1 << 30
        for limit, hard in self._limits:
            if position < limit:
                room = min(room, limit - 1 - position)
            elif hard:
                room = 0
        return room

    def export(self, target: Any) -> None:
        """Append what this call added to the caller's cache."""
        self._cache.export(target, self._prompt_length)
