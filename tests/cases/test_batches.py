"""Rows of a batch: own lengths, own pace, own end, same text as plain batched decoding."""

from __future__ import annotations

from string import ascii_letters
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer
from tokenizers.decoders import Fuse
from tokenizers.models import BPE
from transformers import LogitsProcessor, LogitsProcessorList, PreTrainedTokenizerFast

from lookahead.bench.tiny_models import VOCABULARY
from tests.cases.comparing import ORACLE_ALONE, Pair, padded, shared_model, shared_pair

RAGGED = {2: (5, 11), 4: (3, 12, 1, 7), 8: (1, 2, 12, 5, 8, 3, 9, 4)}
TYPES = ("gpt2", "mistral")


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize(
    ("model_type", "rows"),
    [("llama", 2), ("llama", 4), ("llama", 8), ("gpt2", 4), ("gemma3_text", 2)],
)
def test_rows_of_ragged_batches_equal_plain_decoding(
    model_type: str, sample: bool, rows: int
) -> None:
    pair = shared_pair(model_type)
    stats = pair.assert_same(
        **padded(*RAGGED[rows]), max_new_tokens=24, do_sample=sample, mode="tree"
    )
    assert sum(stats.accepted.values()) > 5 * rows


@pytest.mark.parametrize("sample", [False, True])
def test_greedy_rows_equal_each_prompt_alone(sample: bool) -> None:
    pair = shared_pair("llama")
    batch = padded(4, 9, 6)
    together = pair.engines(**batch, max_new_tokens=20, do_sample=False)
    for row in range(3):
        mask = batch["attention_mask"][row].bool()
        ids = batch["input_ids"][row][mask][None]
        alone = pair.engines(input_ids=ids, max_new_tokens=20, do_sample=False)
        assert together[row, -20:].tolist() == alone[0, -20:].tolist()


@pytest.mark.parametrize("model_type", TYPES)
def test_num_return_sequences_draw_as_plain_decoding_draws(model_type: str) -> None:
    pair = shared_pair(model_type)
    pair.assert_same(
        **padded(5, 8), max_new_tokens=16, do_sample=True, num_return_sequences=3, mode="tree"
    )


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("model_type", TYPES)
def test_rows_that_end_early_are_padded_as_plain_decoding_pads_them(
    model_type: str, sample: bool
) -> None:
    pair = shared_pair(model_type)
    batch = padded(5, 11, 3, 8)
    free = pair.plainly(**batch, max_new_tokens=24, do_sample=sample)
    eos = [int(free[0, -20]), int(free[2, -9])]  # ends rows at different lengths
    for pad in (0, eos[0]):
        pair.assert_same(
            **batch, max_new_tokens=24, do_sample=sample, eos_token_id=eos, pad_token_id=pad
        )


@pytest.mark.parametrize("sample", [False, True])
@pytest.mark.parametrize("end", [False, True])
def test_scores_and_logits_of_a_batch_are_those_of_plain_decoding(sample: bool, end: bool) -> None:
    pair = shared_pair("llama")
    batch = padded(5, 11, 3)
    free = pair.plainly(**batch, max_new_tokens=16, do_sample=sample)
    stats = pair.assert_same(
        **batch,
        max_new_tokens=16,
        do_sample=sample,
        eos_token_id=[int(free[1, -8])] if end else None,
        output_scores=True,
        output_logits=True,
        return_dict_in_generate=True,
        mode="tree",
    )
    assert sum(stats.accepted.values()) > 3


class _SeesBatch(LogitsProcessor):
    """Depends on all rows, and logs the prefixes it is shown."""

    def __init__(self) -> None:
        self.prefixes: list[list[list[int]]] = []

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        self.prefixes.append(input_ids.tolist())
        scores[:, int(input_ids[:, -1].sum()) % scores.shape[1]] -= 5.0
        return scores


@pytest.mark.parametrize("sample", [False, True])
def test_a_processor_sees_the_whole_batch_in_step(sample: bool) -> None:
    pair = shared_pair("llama")
    seen: list[Any] = []
    for run in (pair.plainly, pair.engines):
        processor = _SeesBatch()
        out = run(
            **padded(5, 11, 3),
            max_new_tokens=14,
            do_sample=sample,
            logits_processor=LogitsProcessorList([processor]),
        )
        seen.append((out.tolist(), processor.prefixes))
    assert seen[0] == seen[1]
    assert sum(pair.engine.stats.accepted.values()) > 3


@pytest.mark.parametrize("sample", [False, True])
def test_penalties_and_filters_act_on_each_row_of_a_batch(sample: bool) -> None:
    warpers = {"temperature": 1.5, "top_k": 30, "top_p": 0.9, "min_p": 0.01} if sample else {}
    stats = shared_pair("llama").assert_same(
        **padded(5, 9, 3),
        max_new_tokens=16,
        do_sample=sample,
        repetition_penalty=1.4,
        no_repeat_ngram_size=3,
        bad_words_ids=[[5], [6, 7]],
        min_new_tokens=4,
        eos_token_id=[9],
        suppress_tokens=[11],
        **warpers,
        mode="tree",
    )
    assert sum(stats.accepted.values()) > 3


def test_one_row_accepts_everything_and_another_nothing() -> None:
    pair = Pair(shared_model("llama"), gap=0, **ORACLE_ALONE)
    batch = padded(5, 7)
    expected = pair.plainly(**batch, max_new_tokens=20, do_sample=False)
    lost = batch["input_ids"][1].tolist()
    pair.book.add(lost, [])  # no right guess for the second row
    seen = pair.engines(**batch, max_new_tokens=20, do_sample=False)
    assert seen.tolist() == expected.tolist()
    passes = pair.engine.stats.passes
    assert 19 + 2 <= passes < 30  # the second row takes a pass for each token, the first a few


def test_a_padded_single_row_equals_plain_decoding() -> None:
    for model_type in TYPES:
        pair = shared_pair(model_type)
        batch = padded(5, 11)
        row = {name: value[:1] for name, value in batch.items()}
        assert not bool(row["attention_mask"].all())
        pair.assert_same(**row, max_new_tokens=20, do_sample=False, mode="tree")


def test_the_generator_is_left_as_plain_batched_decoding_leaves_it() -> None:
    pair = shared_pair("llama")
    batch = padded(4, 6)
    free = pair.plainly(**batch, max_new_tokens=20, do_sample=True)
    # Both rows end long before the limit, at different lengths.
    pair.assert_same(
        **batch,
        max_new_tokens=20,
        do_sample=True,
        eos_token_id=[int(free[0, 9]), int(free[1, 14])],
    )
    assert torch.initial_seed() == 11


def _tokenizer() -> PreTrainedTokenizerFast:
    """Letters and pairs of letters without spaces: stops begin and end inside tokens."""
    pairs = [(a, b) for a in "abcdefghi" for b in "pqrstuvwxyz"]
    pairs = pairs[: VOCABULARY - len(ascii_letters)]
    tokens = [*(a + b for a, b in pairs), *ascii_letters]
    tokenizer = Tokenizer(BPE({token: i for i, token in enumerate(tokens)}, pairs))
    tokenizer.decoder = Fuse()
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


@pytest.mark.parametrize("eos", [None, 2])
@pytest.mark.parametrize("sample", [False, True])
def test_a_stop_string_ends_its_own_row(sample: bool, eos: int | None) -> None:
    """Without an EOS plain decoding goes on writing in a stopped row until all rows stop."""
    pair, tokenizer = shared_pair("llama"), _tokenizer()
    batch = padded(5, 9, 3)
    free = pair.plainly(**batch, max_new_tokens=20, do_sample=sample)[:, -20:].tolist()
    for first, second in ((4, 12), (15, 7), (9, 9)):
        # The end of one token and the beginning of the next; two tokens.
        texts = [tokenizer.convert_ids_to_tokens(row) for row in free]
        stops = [texts[0][first][-1] + texts[0][first + 1][0]]
        stops.append(texts[2][second] + texts[2][second + 1])
        arguments = {**batch, "max_new_tokens": 20, "do_sample": sample, "stop_strings": stops}
        arguments |= {"tokenizer": tokenizer, "eos_token_id": eos}
        pair.assert_same(**arguments, mode="tree")
    assert sum(pair.engine.stats.accepted.values()) > 3
