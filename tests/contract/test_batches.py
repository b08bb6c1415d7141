"""Rows of a batch accept different lengths; each is the row of plain decoding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lookahead import Config, PlannerConfig, wrap
from tests.contract.guesses import DEPTH, Script, all_right, every_length, scripted
from tests.contract.models import TYPES, prompt, tiny
from tests.contract.oracle import accepted, assert_same, ran

GREEDY: dict[str, Any] = {"do_sample": False, "max_new_tokens": 24}
SAMPLED: dict[str, Any] = {"do_sample": True, "top_k": 15, "max_new_tokens": 24}


def padded() -> tuple[Tensor, Tensor]:
    """Three prompts of 7, 4 and 1 tokens, padded on the left with 0."""
    ids, mask = torch.zeros((3, 7), dtype=torch.long), torch.zeros((3, 7), dtype=torch.long)
    for row, length in enumerate((7, 4, 1)):
        ids[row, 7 - length :] = prompt(length, seed=row)[0]
        mask[row, 7 - length :] = 1
    return ids, mask


def batch(generate: Any, seed: int = 0, **arguments: Any) -> tuple[Any, Tensor]:
    ids, mask = padded()
    torch.manual_seed(seed)
    out = generate(ids, attention_mask=mask, **arguments)
    return out, torch.get_rng_state()


def texts(out: Tensor) -> list[list[int]]:
    """Rows as a source sees them, without the padding of the prompt."""
    _, mask = padded()
    return [row[int((mask[i] == 0).sum()) :].tolist() for i, row in enumerate(out)]


@pytest.mark.parametrize("kind", TYPES)
@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_every_row_is_plains(kind: str, sample: bool) -> None:
    model, arguments = tiny(kind), SAMPLED if sample else GREEDY
    plain, state = batch(model.generate, **arguments)
    engine = scripted(model, Script(every_length, True, texts(plain)))
    found, after = batch(engine.generate, **arguments)
    assert found.tolist() == plain.tolist()
    assert torch.equal(after, state)
    assert accepted(engine) > 15


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_rows_end_at_their_own_eos_and_are_padded(sample: bool) -> None:
    model, arguments = tiny("Llama"), SAMPLED if sample else GREEDY
    full, _ = batch(model.generate, **arguments)
    script = Script(all_right, True, texts(full))
    engine = scripted(model, script)
    for first, second in ((2, 9), (12, 4), (0, 17)):
        eos = [int(full[0, 7 + first]), int(full[1, 7 + second])]
        plain, state = batch(model.generate, eos_token_id=eos, **arguments)
        found, after = batch(engine.generate, eos_token_id=eos, **arguments)
        assert found.tolist() == plain.tolist()
        assert torch.equal(after, state)
    assert accepted(engine) > 5


@pytest.mark.parametrize("sample", [False, True], ids=["greedy", "sampled"])
def test_rows_in_step_give_scores_caches_and_prefixes_of_the_whole_batch(sample: bool) -> None:
    model, arguments = tiny("Llama"), SAMPLED if sample else GREEDY
    seen: list[list[list[list[int]]]] = []

    def looks(input_ids: Tensor, scores: Tensor) -> Tensor:
        seen[-1].append(input_ids.tolist())
        return scores

    asked = {"return_dict_in_generate": True, "output_scores": True, "output_logits": True}
    asked["logits_processor"] = [looks]  # type: ignore[assignment]
    full, _ = batch(model.generate, **arguments)
    arguments = {**arguments, "eos_token_id": [int(full[0, 22]), int(full[2, 19])]}
    seen.append([])
    plain, state = batch(model.generate, **asked, **arguments)
    seen.append([])
    engine = scripted(model, Script(every_length, True, texts(full)))
    found, after = batch(engine.generate, **asked, **arguments)
    assert found.sequences.tolist() == plain.sequences.tolist()
    assert torch.equal(after, state)
    assert seen[0] == seen[1]
    assert found.cache.get_seq_length() == plain.cache.get_seq_length()
    for name in ("scores", "logits"):
        ours, theirs = torch.stack(getattr(found, name)), torch.stack(getattr(plain, name))
        assert ours.shape == theirs.shape
        # A finished row goes on with padding: its rows count too.
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)
    assert accepted(engine) > 3


@pytest.mark.parametrize("kind", ["Llama", "GPT2"])
def test_built_in_sources_on_a_batch_call_after_call(kind: str) -> None:
    model = tiny(kind)
    engine = wrap(model, Config(planner=PlannerConfig(fixed_nodes=12), remember_cost=False))
    for seed in (0, 1, 0):
        for arguments in (GREEDY, SAMPLED):
            plain, state = batch(model.generate, seed, **arguments)
            found, after = batch(engine.generate, seed, **arguments)
            assert found.tolist() == plain.tolist()
            assert torch.equal(after, state)
    assert accepted(engine) > 15


def test_a_row_that_is_far_ahead_waits_while_sampling() -> None:
    """The noise of all positions between the rows is held, whole rows of the vocabulary."""
    model, ids = tiny("Llama"), torch.cat([prompt(), prompt(6, 2)])
    arguments: dict[str, Any] = {"max_new_tokens": 200, "do_sample": True}
    plain = ran(model.generate, ids, **arguments)
    engine = scripted(model, Script(all_right, False, [plain.ids[0].tolist()]))
    torch.manual_seed(0)
    lengths, leads = [0, 0], [0]
    for step in engine.stream(ids, **arguments):
        lengths[step.row] += len(step.tokens)
        leads.append(lengths[0] - lengths[1])
    assert 32 < max(leads) <= 32 + DEPTH + 2
    assert_same(ran(engine.generate, ids, **arguments), plain)


@pytest.mark.parametrize("sample", [False, True])
def test_rows_may_share_one_row_of_position_ids(sample: bool) -> None:
    model, ids = tiny("Llama"), torch.cat([prompt(), prompt(6, 2)])
    engine = wrap(model, Config(remember_cost=False))
    arguments: dict[str, Any] = {
        "max_new_tokens": 20, "do_sample": sample, "position_ids": torch.arange(3, 9)[None],
    }  # fmt: skip
    assert_same(ran(engine.generate, ids, **arguments), ran(model.generate, ids, **arguments))
