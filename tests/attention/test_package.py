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


def chosen(
    context: TreeContext,
    device: str = "cpu",
    dtype: torch.dtype = torch.float32,
    window: int | None = None,
) -> str:
    return choose_backend(context, device=device, dtype=dtype, group=3, window=window)


def test_auto_is_one_call_for_small_masks_and_two_parts_for_large_ones() -> None:
    limit = CPU_MASK_ENTRIES // (3 * 16)
    assert chosen(tree(16, limit)) == "sdpa"
    assert chosen(tree(16, limit + 1)) == "flash"
    # A window bounds what must be read, however long the prefix.
    assert chosen(tree(16, 100_000), window=512) == "sdpa"


def test_auto_counts_what_a_ragged_batch_would_read_in_vain() -> None:
    mask = torch.ones(4, 4, dtype=torch.bool).tril()[None]
    assert chosen(TreeContext((200, 210, 190, 205), mask)) == "sdpa"
    assert chosen(TreeContext((100, 400, 800, 1500), mask)) == "flash"


def test_auto_on_one_node_in_16_bits_and_on_other_devices() -> None:
    assert chosen(tree(1, 10)) == "flash"
    assert chosen(tree(16, 100_000), dtype=torch.bfloat16) == "sdpa"
    assert chosen(tree(8, 10), "cuda", torch.bfloat16) == "flash"
    assert chosen(tree(8, 10_000), "mps") == "sdpa"


def test_a_window_that_hides_nothing_is_dropped() -> None:
    context = tree(4, 10)  # depths 0 to 3, so the farthest key is 13 positions away
    assert context.effective(14) is None
    assert context.effective(13) == 13
    assert context.effective(None) is None
