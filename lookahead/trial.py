"""Short texts decoded plainly and by the engine's passes, for the capability check.

A trial has a prompt (or two, one of them left-padded), forces tokens through plain decoding, runs
the same tokens through passes over trees or chains, and compares the logits.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from transformers.generation import LogitsProcessor, LogitsProcessorList

from lookahead.model import Target, input_device, text_config
from lookahead.shared_copy import shared_copy
from lookahead.tree import TokenTree

PROMPT = 7
PADDING = 3  # left padding of the shorter prompt
LONGEST_WINDOW = 64  # windows up to this length are crossed as they are
_SHORT_WINDOW = 8  # longer ones are crossed in a copy of the model where they are this short
_WINDOWS = ("sliding_window", "attention_chunk_size")


class Trial:
    """Plain decoding and passes of ``module`` after the same prompts, with given tokens.

    ``model`` decodes plainly; ``module`` runs the passes. ``padded``: the first of ``rows``
    prompts is left-padded by ``PADDING``. ``static``: passes of fixed shape to try as well.
    """

    def __init__(
        self, model: Any, module: Any, *, padded: bool = False, rows: int = 1, static: Any = None
    ) -> None:
        self._model, self._module, self._static = model, module, static
        self._draw = random.Random(0)
        self._vocabulary = int(text_config(model).vocab_size)
        self._special = _special_ids(model)
        longest = max((w for w in windows(model) if w <= LONGEST_WINDOW), default=0)
        length = max(PROMPT, longest + 2 if longest else 0)
        self.ids = torch.tensor([self.tokens(length) for _ in range(rows)])
        self._mask = torch.ones_like(self.ids)
        if padded:
            self._mask[0, :PADDING] = 0
            self.ids[0, :PADDING] = self.ids[0, PADDING]
        device = input_device(model)
        self.ids, self._mask = self.ids.to(device), self._mask.to(device)

    def tokens(self, count: int) -> list[int]:
        """Random tokens, distinct where there are enough, none of them special."""
        known = range(min(self._vocabulary, 1000))
        usual = [t for t in known if t not in self._special] or list(known)
        return self._draw.sample(usual, min(count, len(usual))) + [
            self._draw.choice(usual) for _ in range(count - len(usual))
        ]

    def plainly(self, tokens: Sequence[int]) -> Tensor:
        """Logits [rows, len(tokens) + 1, vocabulary] before each token and after the last."""
        force = _Force(self.ids.shape[1], [*tokens, tokens[-1]])
        out = self._generate(
            max_new_tokens=len(tokens) + 1,
            output_logits=True,
            return_dict_in_generate=True,
            logits_processor=LogitsProcessorList([force]),
        )
        return torch.stack(out.logits, 1).float()

    def target(self, mode: str) -> Target:
        """The engine's passes after the same prompts."""
        config, kwargs = self._generate(max_new_tokens=2, custom_generate=_prepared)
        target = Target(self._module, mode, self._static)
        room = 4  # so little that growth is tried too
        target.prefill(self.ids, config, kwargs, self.ids.shape[1] + room)
        return target

    def _generate(self, **kwargs: Any) -> Any:
        return self._model.generate(
            self.ids,
            attention_mask=self._mask,
            do_sample=False,
            num_beams=1,
            min_new_tokens=None,
            use_cache=True,
            cache_implementation=None,
            stop_strings=None,
            **kwargs,
        )


class _Force(LogitsProcessor):
    """Forces given tokens after the prompt, whatever the model thinks."""

    def __init__(self, prompt: int, tokens: list[int]) -> None:
        self._prompt, self._tokens = prompt, tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self._tokens[input_ids.shape[1] - self._prompt]] = 0.0
        return forced


def _prepared(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_kwargs: Any,
) -> tuple[Any, dict[str, Any]]:
    return generation_config, model_kwargs


def _special_ids(model: Any) -> set[int]:
    ids: set[int] = set()
    for config in (model.generation_config, text_config(model)):
        for name, value in vars(config).items():
            if name.endswith(("token_id", "token_index")) and value is not None:
                ids |= set(value) if isinstance(value, list | tuple) else {int(value)}
    return ids


# -- what both modes must reproduce ---------------------------------------------------------


def try_tree(trial: Trial) -> float:
    """Largest relative error of a tree, a gathered path and a tree on top of it."""
    root, a, c, b, d, x, y, z = trial.tokens(8)
    one = trial.plainly([root, a, c])
    two = trial.plainly([root, b, d, x, y])
    target = trial.target("tree")
    tree = TokenTree(root)
    node_a, node_b = tree.add(0, a), tree.add(0, b)
    tree.add(node_a, c)
    tree.add(node_b, d)
    tree.add(node_a, z)
    rows = len(one)
    seen = target.verify([tree] * rows, [0] * rows).float()
    errors = [error(seen[:, [0, 1, 3]], one[:, 1:4]), error(seen[:, [0, 2, 4]], two[:, 1:4])]
    short = TokenTree(d)  # the last row keeps less, so that rows lie at different lengths
    short.add(0, x)
    trees = []
    for row in range(rows):
        target.commit(row, [0, 2] if row else [0, 2, 4])
        longer = TokenTree(x)
        longer.add(0, z)
        longer.add(0, y)
        trees.append(short if row else longer)
    seen = target.verify(trees, [0] * rows).float()
    for row in range(rows):
        pair = (seen[row, [0, 1]], two[row, 3:5]) if row else (seen[row, [0, 2]], two[row, 4:6])
        errors.append(error(*pair))
    return max(errors)


def try_chain(trial: Trial) -> float:
    """Largest relative error of a chain, a rollback and a chain on top of it."""
    root, a, b, x, y = trial.tokens(5)
    one = trial.plainly([root, a, b])
    two = trial.plainly([root, a, x, y])
    target = trial.target("chain")
    seen = target.verify([_chain([root, a, b])], [0]).float()
    errors = [error(seen, one[:, 1:4])]
    target.commit(0, [0, 1])
    seen = target.verify([_chain([x, y])], [0]).float()
    errors.append(error(seen, two[:, 3:5]))
    return max(errors)


def _chain(tokens: Sequence[int]) -> TokenTree:
    tree = TokenTree(tokens[0])
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token)
    return tree


def error(seen: Tensor, true: Tensor) -> float:
    """Largest difference relative to the spread of the true logits; infinite for NaN."""
    spread = float(true.max() - true.mean()) or 1.0
    largest = float((seen.to(true.device) - true).abs().max()) / spread
    return largest if largest == largest else float("inf")


# -- windows --------------------------------------------------------------------------------


def windows(model: Any) -> list[int]:
    """Lengths of sliding windows and chunks that the text configuration names."""
    config = text_config(model)
    found = [getattr(config, name, None) for name in _WINDOWS]
    return [size for size in found if isinstance(size, int) and size > 0]


def _hooked(module: Any) -> Any:
    """Whether a copy of a module would still run something of the original."""
    return "forward" in vars(module) or module._forward_hooks or module._forward_pre_hooks


def with_short_windows(model: Any, attention: str) -> Any:
    """A copy over the same weights whose long windows are short, or None where that cannot be.

    The copy is another model, but its code is that of the model: if passes of the copy reproduce
    its plain decoding across a short window, those of the model do so across a long one.
    ``attention``: its attention implementation.
    """
    long = {size for size in windows(model) if size > LONGEST_WINDOW}
    if not long or any(_hooked(module) for module in model.modules()):
        return None
    made: Any = shared_copy(model)
    made.generation_config = copy.deepcopy(model.generation_config)
    holders = [text_config(made), *(m for m in made.modules())]
    holders += [m.config for m in made.modules() if hasattr(m, "config")]
    for holder in holders:
        for name in _WINDOWS:
            if getattr(holder, name, None) in long:
                setattr(holder, name, _SHORT_WINDOW)
    if attention != made.config._attn_implementation:
        made.set_attn_implementation(attention)
    return made.eval()
