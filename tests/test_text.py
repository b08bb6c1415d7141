"""Streamed text: the pieces joined are the whole, and no piece ends inside a character."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from lookahead.text import REPLACEMENT, TextStream, decode
from tests.cli.conftest import byte_level_tokenizer

TEXT = "Grüße,  世界 👩‍👩‍👧‍👦🇩🇪!\n\n\ttwo  spaces é👍🏽 “quotes” ."


def sentencepiece_like() -> PreTrainedTokenizerFast:
    """Spaces as U+2581, unknown characters as bytes, and a decoder that drops a leading space."""
    vocabulary = {"<unk>": 0, "</s>": 1, **{f"<0x{b:02X}>": b + 2 for b in range(256)}}
    for piece in ["\u2581", "\u2581t", "\u2581th", "t", "h", "e", "\u2581\u2581", "a", "."]:
        vocabulary[piece] = len(vocabulary)
    merges = [("\u2581", "t"), ("\u2581t", "h"), ("\u2581", "\u2581")]
    model = models.BPE(vocabulary, merges, byte_fallback=True, unk_token="<unk>", fuse_unk=True)
    tokenizer = Tokenizer(model)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace()
    tokenizer.decoder = decoders.Sequence(
        [
            decoders.Replace("\u2581", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="</s>")


TOKENIZERS = {
    "byte-level": byte_level_tokenizer([("t", "h"), ("Ġ", "t")]),
    "sentencepiece": sentencepiece_like(),
}


def pieces(tokenizer: PreTrainedTokenizerFast, ids: list[int]) -> list[str]:
    stream = TextStream(tokenizer)
    return [*(stream.push(token) for token in ids), stream.finish()]


@pytest.mark.parametrize("name", list(TOKENIZERS))
def test_pieces_join_to_the_text_and_end_between_characters(name: str) -> None:
    tokenizer = TOKENIZERS[name]
    ids = tokenizer(TEXT, add_special_tokens=False).input_ids
    found = pieces(tokenizer, ids)
    assert "".join(found) == decode(tokenizer, ids) == TEXT
    assert not any(REPLACEMENT in piece for piece in found)
    assert len([piece for piece in found if piece]) >= 15  # it does stream


@pytest.mark.parametrize("name", list(TOKENIZERS))
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_ids_stream_to_their_full_decode(name: str, data: st.DataObject) -> None:
    tokenizer = TOKENIZERS[name]
    ids = data.draw(st.lists(st.integers(0, len(tokenizer) - 1), max_size=30))
    assert "".join(pieces(tokenizer, ids)) == decode(tokenizer, ids)


def test_unfinished_character_comes_at_the_end_as_the_full_decode_shows_it() -> None:
    tokenizer = TOKENIZERS["byte-level"]
    ids = tokenizer("a世").input_ids[:-1]
    assert pieces(tokenizer, ids) == ["a", "", "", REPLACEMENT]
