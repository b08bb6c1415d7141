"""The attention package stands alone, and `auto` follows its written rule."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

import lookahead.attention
from lookahead.attention import TreeContext, choose_backend
from lookahead.attention.select import CPU_MASK_ENTRIES

FOLDER = Path(lookahead.attention.__file__).parent


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.py")), ids=lambda p: p.name)
def test_nothing_is_imported_from_the_engine(path: Path) -> None:
    allowed = {"__future__", "collections", "dataclasses", "functools", "importlib", "typing"}
    allowed |= {"warnings", "torch"}
    if path.name == "flash.py":
        allowed.add("flash_attn")
    if path.name == "hf.py":
        allowed.add("transformers")
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom):
            assert node.level <= 1, "no import from outside the folder"
            names = [node.module or ""] if node.level == 0 else []
        elif isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        else:
            continue
        assert {name.split(".")[0] for name in names if name} <= allowed


def tree(nodes: int, prefix: int) -> TreeContext:
    return TreeContext(prefix, torch.ones(nodes, nodes, dtype=torch.bool).tril()[None])


def test_auto_is_one_call_for_small_masks_and_two_parts_for_large_ones() -> None:
    limit = CPU_MASK_ENTRIES // (3 * 16)
    assert choose_backend(tree(16, limit), device="cpu", group=3, window=None) == "sdpa"
    assert choose_backend(tree(16, limit + 1), device="cpu", group=3, window=None) == "flash"
    # A window bounds what must be read, however long the prefix.
    assert choose_backend(tree(16, 100_000), device="cpu", group=3, window=512) == "sdpa"


def test_auto_on_one_node_and_on_other_devices() -> None:
    assert choose_backend(tree(1, 10), device="cpu", group=3, window=None) == "flash"
    assert choose_backend(tree(8, 10), device="cuda", group=3, window=None) == "flash"
    assert choose_backend(tree(8, 10_000), device="mps", group=3, window=None) == "sdpa"


def test_a_window_that_hides_nothing_is_dropped() -> None:
    context = tree(4, 10)  # depths 0 to 3, so the farthest key is 13 positions away
    assert context.effective(14) is None
    assert context.effective(13) == 13
    assert context.effective(None) is None
