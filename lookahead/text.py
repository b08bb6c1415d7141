"""Token ids -> text, all at once or as they come, with the same result."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

# What a decoder writes for bytes that do not (yet) make a character.
REPLACEMENT = "\N{REPLACEMENT CHARACTER}"
# SentencePiece's byte fallback.
BYTE_TOKEN = re.compile("<0x[0-9A-F]{2}>")


def decode(tokenizer: Any, ids: Sequence[int]) -> str:
    """The text of ``ids`` without special tokens, spaces untouched."""
    # Cleaning up spaces would change text that a stream has already shown.
    text = tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
    assert isinstance(text, str)
    return text


class TextStream:
    """Decodes ids as they come; the pieces joined are `decode` of all the ids.

    A piece is held back while it ends inside a character, or in a byte token (a run of which
    decodes as a whole or not at all). Each piece is decoded together with
    the ids of the piece before it, since a decoder may treat the first id of a text differently
    (SentencePiece drops its leading space). Time per id does not grow with the text.

    Args:
        tokenizer: a Hugging Face tokenizer, fast or slow.
    """

    def __init__(self, tokenizer: Any) -> None:
        self._tokenizer = tokenizer
        self._special = {*tokenizer.all_special_ids}
        self._special |= {i for i, t in tokenizer.added_tokens_decoder.items() if t.special}
        self._window: list[int] = []  # ids of the last piece, then those not yet shown
        self._shown = 0  # how many ids of the window are shown
        self._shown_text = ""  # their text

    def push(self, token: int) -> str:
        """Add one id; return the text that is now certain, often empty."""
        self._window.append(token)
        if token in self._special or self._is_byte(token):
            return ""
        text = decode(self._tokenizer, self._window)
        if text.endswith(REPLACEMENT) or len(text) <= len(self._shown_text):
            return ""
        return self._show(text)

    def finish(self) -> str:
        """The text still held back: what the model left of an unfinished character."""
        return self._show(decode(self._tokenizer, self._window))

    def _is_byte(self, token: int) -> bool:
        piece = self._tokenizer.convert_ids_to_tokens(token)
        return isinstance(piece, str) and BYTE_TOKEN.fullmatch(piece) is not None

    def _show(self, text: str) -> str:
        piece = text[len(self._shown_text) :]
        self._window = self._window[self._shown :]
        self._shown = len(self._window)
        self._shown_text = decode(self._tokenizer, self._window)
        return piece
