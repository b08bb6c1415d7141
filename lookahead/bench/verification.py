"""Does an engine give the text of plain decoding? One finding per turn of each prompt."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from .exactness import Noise, Verdict, judge, measure_noise
from .prompt_sets import Prompt, check_length, encode, to_inputs
from .runner import Case, list_cases

Generate = Callable[..., torch.Tensor]
"""Has the arguments and the result of ``model.generate``: int64 [1, prompt + new tokens]."""


@dataclass(frozen=True)
class Finding:
    """What one case showed: the number of new tokens, the model's noise there, the verdict."""

    case: str
    category: str
    tokens: int
    noise: Noise
    verdict: Verdict


def verify(
    model: Any,
    tokenizer: Any,
    generate: Generate,
    prompts: Sequence[Prompt],
    kwargs: dict[str, Any],
    seed: int = 0,
    chunks: bool = True,
) -> Iterator[Finding]:
    """Compare ``generate`` with ``model.generate`` on all turns of ``prompts``.

    Both get the same arguments, and before each call torch's generators are seeded with ``seed``
    plus the number of the case. A later turn follows plain decoding's reply. ``chunks`` tells
    whether the model can take several tokens on top of a cache.
    """
    replies: dict[str, list[str]] = {}
    for case in list_cases(prompts):
        earlier = replies.setdefault(case.prompt.question_id, [])
        ids = encode(tokenizer, case.prompt, earlier)
        check_length(model, case.name, len(ids), kwargs["max_new_tokens"])
        plain = _new_tokens(model.generate, model.device, ids, kwargs, seed + case.number)
        other = _new_tokens(generate, model.device, ids, kwargs, seed + case.number)
        earlier.append(tokenizer.decode(plain, skip_special_tokens=True))
        yield _finding(case, model, ids, plain, other, kwargs, seed + case.number, chunks)


def _new_tokens(
    generate: Generate, device: torch.device, ids: list[int], kwargs: dict[str, Any], seed: int
) -> list[int]:
    torch.manual_seed(seed)
    out = generate(**to_inputs(ids, device), **kwargs)
    tokens: list[int] = out[0, len(ids) :].tolist()
    return tokens


def _finding(
    case: Case,
    model: Any,
    ids: list[int],
    plain: list[int],
    other: list[int],
    kwargs: dict[str, Any],
    seed: int,
    chunks: bool,
) -> Finding:
    noise = measure_noise(model, ids, plain, kwargs, seed, chunks)
    verdict = judge(model, ids, plain, other, kwargs, seed, noise)
    return Finding(case.name, case.prompt.category, len(plain), noise, verdict)
