"""What a model can do, found out by trying: ``tree``, ``chain`` or ``plain``.

The model first decodes two short texts that share a beginning, in the plain way, with its tokens
forced. Then the same tokens are verified by passes of the engine: a tree with both texts as
branches, a path kept whose rows are not contiguous, the rest rolled back, and a second tree on top.
If all logits agree the mode is ``tree``; if only passes over single chains with rollback agree,
``chain``; else ``plain``. No class name and no flag is believed.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers.generation import LogitsProcessor, LogitsProcessorList

from lookahead.model import Target, text_config
from lookahead.tree import TokenTree

_TOLERANCE = {torch.float32: 5e-5, torch.float64: 1e-9, torch.bfloat16: 8e-2, torch.float16: 1e-2}
_PROMPT = 7
_LONGEST_WINDOW = 64  # windows up to this length are crossed by the trial


@dataclass(frozen=True)
class Capability:
    """``mode``: "tree", "chain" or "plain". ``reason``: why not a stronger mode, empty for "tree".

    ``error`` is the largest difference of logits seen in the accepted mode, relative to their
    spread.
    """

    mode: str
    reason: str = ""
    error: float = 0.0

    @property
    def plain_reason(self) -> str:
        return self.reason if self.mode == "plain" else ""


class _Force(LogitsProcessor):
    """Forces given tokens after the prompt, whatever the model thinks."""

    def __init__(self, prompt: int, tokens: list[int]) -> None:
        self._prompt, self._tokens = prompt, tokens

    def __call__(self, input_ids: Tensor, scores: Tensor) -> Tensor:
        forced = torch.full_like(scores, float("-inf"))
        forced[:, self._tokens[input_ids.shape[1] - self._prompt]] = 0.0
        return forced


class _Trial:
    """Runs plain decoding and the engine's passes on the same forced tokens."""

    def __init__(self, model: Any, module: Any) -> None:
        self._model, self._module = model, module
        self._draw = random.Random(0)
        config = text_config(model)
        self._special = self._special_ids(model)
        self._vocabulary = int(config.vocab_size)
        window = getattr(config, "sliding_window", None) or getattr(
            config, "attention_chunk_size", 0
        )
        longer = window + 2 if window and window <= _LONGEST_WINDOW else 0
        self.prompt = self.tokens(max(_PROMPT, longer))

    @staticmethod
    def _special_ids(model: Any) -> set[int]:
        ids: set[int] = set()
        for config in (model.generation_config, text_config(model)):
            for name in ("eos_token_id", "pad_token_id", "bos_token_id"):
                value = getattr(config, name, None)
                if value is not None:
                    ids |= set(value) if isinstance(value, list | tuple) else {int(value)}
        return ids

    def tokens(self, count: int) -> list[int]:
        """Distinct random tokens, none of them special."""
        usual = [t for t in range(min(self._vocabulary, 1000)) if t not in self._special]
        return self._draw.sample(usual, min(count, len(usual))) + [
            self._draw.choice(usual) for _ in range(count - len(usual))
        ]

    def plainly(self, tokens: list[int]) -> Tensor:
        """Logits [len(tokens) + 1, vocabulary] before each token and after the last."""
        ids = torch.tensor([self.prompt], device=self._model.device)
        out = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=len(tokens) + 1,
            min_new_tokens=None,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            cache_implementation=None,
            output_logits=True,
            return_dict_in_generate=True,
            logits_processor=LogitsProcessorList([_Force(ids.shape[1], [*tokens, tokens[-1]])]),
        )
        return torch.cat(out.logits).float()

    def target(self, mode: str) -> Target:
        """The engine's passes after the same prompt."""
        ids = torch.tensor([self.prompt], device=self._model.device)
        prepared = self._model.generate(
            ids,
            attention_mask=torch.ones_like(ids),
            max_new_tokens=2,
            do_sample=False,
            num_beams=1,
            use_cache=True,
            cache_implementation=None,
            custom_generate=_prepared,
        )
        target = Target(self._module, mode)
        target.prefill(
            ids, prepared[0], prepared[1], ids.shape[1] + 4
        )  # small: growth is tried too
        return target


def _prepared(
    model: Any,
    input_ids: Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **model_kwargs: Any,
) -> tuple[Any, dict[str, Any]]:
    return generation_config, model_kwargs


def _try_tree(trial: _Trial) -> float:
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
    seen = target.verify([tree], [0])[0].float()
    errors = [_error(seen[[0, 1, 3]], one[1:4]), _error(seen[[0, 2, 4]], two[1:4])]
    target.commit(0, [0, 2, 4])
    tree = TokenTree(x)
    tree.add(0, z)
    tree.add(0, y)
    seen = target.verify([tree], [0])[0].float()
    errors.append(_error(seen[[0, 2]], two[4:6]))
    return max(errors)


def _try_chain(trial: _Trial) -> float:
    """Largest relative error of a chain, a rollback and a chain on top of it."""
    root, a, b, x, y = trial.tokens(5)
    one = trial.plainly([root, a, b])
    two = trial.plainly([root, a, x, y])
    target = trial.target("chain")
    seen = target.verify([_chain([root, a, b])], [0])[0].float()
    errors = [_error(seen, one[1:4])]
    target.commit(0, [0, 1])
    seen = target.verify([_chain([x, y])], [0])[0].float()
    errors.append(_error(seen, two[3:5]))
    return max(errors)


def _chain(tokens: list[int]) -> TokenTree:
    tree = TokenTree(tokens[0])
    for node, token in enumerate(tokens[1:]):
        tree.add(node, token)
    return tree


def _error(seen: Tensor, true: Tensor) -> float:
    spread = float(true.max() - true.mean()) or 1.0
    error = float((seen.to(true.device) - true).abs().max()) / spread
    return error if error == error else float("inf")  # NaN never passes


def find_capability(model: Any, module: Any) -> Capability:
    """The strongest mode in which ``module`` (see ``Passes``) reproduces ``model``.

    Leaves the random generators as they were. Costs about a dozen short passes.
    """
    if getattr(model.config, "is_encoder_decoder", False):
        return Capability("plain", "an encoder-decoder model decodes against its encoder")
    tolerance = _TOLERANCE.get(module.dtype, 1e-2)
    reasons = []
    devices = [model.device] if model.device.type == "cuda" else []
    with torch.no_grad(), torch.random.fork_rng(devices=devices):
        for mode, attempt in (("tree", _try_tree), ("chain", _try_chain)):
            try:
                error = attempt(_Trial(model, module))
            except (
                RuntimeError,
                ValueError,
                TypeError,
                AttributeError,
                IndexError,
                KeyError,
                NotImplementedError,
                AssertionError,
            ) as problem:
                text = str(problem).strip().splitlines()
                reasons.append(f"{mode}: {text[0] if text else type(problem).__name__}")
                continue
            if error <= tolerance:
                return Capability(mode, "; ".join(reasons), error)
            reasons.append(
                f"{mode}: logits differ from single steps by {error:.1e} of their spread"
            )
    return Capability("plain", "; ".join(reasons))
