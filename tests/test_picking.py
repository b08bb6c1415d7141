"""What the planner is shown of the noise is what picks the tokens."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from lookahead.picking import _FARTHEST, Picker

VOCABULARY = 23


def picker_of(batch: int = 1, *, do_sample: bool = True, shared: bool = True) -> Picker:
    config = SimpleNamespace(do_sample=do_sample, temperature=1.0, top_k=0, top_p=1.0)
    device = torch.device("cpu")
    together = batch == 1
    return Picker(config, batch, VOCABULARY, device, together=together, shared_noise=shared)


def row_at(emitted: int, index: int = 0) -> Any:
    return SimpleNamespace(emitted=emitted, index=index, done=False)


@given(st.integers(0, 10**6), st.integers(0, 6), st.integers(1, 3))
def test_the_noise_shown_for_a_position_is_the_one_that_picks_there(
    seed: int, ahead: int, batch: int
) -> None:
    torch.manual_seed(seed)
    scores = torch.randn(batch, VOCABULARY)
    picker = picker_of(batch)
    after = [picker.to_come(row_at(0, index)) for index in range(batch)]
    shown = [[noise(depth) for depth in range(ahead + 1)] for noise in after if noise is not None]
    for emitted in range(ahead + 1):
        for index in range(batch):
            rows = slice(index, index + 1)
            picked = int(picker.pick(scores[rows], emitted, rows))
            noise = shown[index][emitted]
            assert noise is not None
            expected = torch.softmax(scores[index], -1) / torch.from_numpy(noise)
            assert picked == int(expected.argmax())
        picker.release([row_at(emitted + 1, index) for index in range(batch)])


def test_looking_at_noise_leaves_the_generator_as_it_was() -> None:
    torch.manual_seed(3)
    before = torch.get_rng_state()
    after = picker_of().to_come(row_at(0))
    assert after is not None and after(5) is not None
    assert torch.equal(before, torch.get_rng_state())


@pytest.mark.parametrize("options", [{"do_sample": False}, {"shared": False}])
def test_there_is_no_noise_to_come_where_none_is_shared(options: dict[str, bool]) -> None:
    assert picker_of(**options).to_come(row_at(0)) is None


def test_noise_is_not_drawn_far_ahead_nor_for_another_vocabulary() -> None:
    picker = picker_of()
    after = picker.to_come(row_at(0))
    assert after is not None
    assert after(_FARTHEST - 1) is not None and after(_FARTHEST) is None
    picker.pick(torch.zeros(1, VOCABULARY - 5), 0, slice(0, 1))  # a processor cut it
    assert picker.to_come(row_at(1)) is None


def test_noise_that_others_draw_between_is_not_relied_on() -> None:
    picker = picker_of()
    scores = torch.zeros(1, VOCABULARY)
    picker.pick(scores, 0, slice(0, 1))
    torch.rand(1)  # as a processor may
    picker.pick(scores, 1, slice(0, 1))
    assert picker.to_come(row_at(2)) is None
