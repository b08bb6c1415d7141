"""A tiny model in a folder, and an engine that only pretends to guess."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from click.testing import CliRunner, Result
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

from lookahead.cli import main
from lookahead.cli.common import Services
from lookahead.stats import Stats, Step

SOURCES = ["model", "jacobi", "ngram_pool", "prompt_lookup", "recycling", "positions"]


def byte_level_tokenizer(merges: list[tuple[str, str]] | None = None) -> PreTrainedTokenizerFast:
    """A byte-level BPE over all 256 bytes: any id sequence is possible, valid UTF-8 or not."""
    merges = merges or []
    tokens = ["<|end|>", *sorted(pre_tokenizers.ByteLevel.alphabet()), *(a + b for a, b in merges)]
    tokenizer = Tokenizer(models.BPE({t: i for i, t in enumerate(tokens)}, merges))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token="<|end|>", pad_token="<|end|>"
    )


@pytest.fixture(scope="session")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random Llama with a context of 64 tokens, a byte vocabulary and a chat template."""
    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = byte_level_tokenizer()
    tokenizer.chat_template = "{% for m in messages %}[{{ m.content }}]{% endfor %}"
    tokenizer.save_pretrained(folder)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=64,
        bos_token_id=None,
        eos_token_id=0,
        pad_token_id=0,
        initializer_range=0.1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    return folder


@dataclass
class FakeEngine:
    """Decodes plainly and hands the tokens out in runs of 1, 2, 3, ... with made-up sources."""

    model: Any
    spoil: bool = False
    fail: BaseException | None = None
    stats: Stats = field(default_factory=Stats)
    capability: ClassVar[Any] = SimpleNamespace(mode="tree", reason="a test says so")
    fitted: ClassVar[Any] = SimpleNamespace(
        passes=SimpleNamespace(
            kind="copy", kernels="no compiler", used_kernels=None, packed_bytes=0
        )
    )

    def stream(self, **arguments: Any) -> Iterator[Step]:
        length = arguments["input_ids"].shape[1]
        ids = self.model.generate(**arguments)[0, length:].tolist()
        if self.spoil:
            ids[2] = (ids[2] + 1) % 256
        start, passes = 0, 0
        while start < len(ids):
            if passes == 6 and self.fail is not None:
                raise self.fail
            run = ids[start : start + 1 + passes % 3]
            yield Step(run, [SOURCES[(start + i) % len(SOURCES)] for i in range(len(run))], 4, 0.01)
            start, passes = start + len(run), passes + 1
        self.stats = Stats(tokens=len(ids), passes=passes, accepted={"jacobi": 3})


@dataclass
class Command:
    """Runs ``lookahead`` on the tiny model, with a fake engine unless ``real``.

    ``wrapped`` keeps what the fake engine's `wrap` was given.
    """

    folder: Path
    real: bool = False
    engine: dict[str, Any] = field(default_factory=dict)
    wrapped: list[Any] = field(default_factory=list)

    def __call__(
        self, *arguments: str, model: str = "", stdin: str | None = None, color: bool = False
    ) -> Result:
        def wrap(model: Any, config: Any = None, *, tokenizer: Any = None) -> FakeEngine:
            self.wrapped.append((model, config, tokenizer))
            return FakeEngine(model, **self.engine)

        given = [*arguments, "--model", model or str(self.folder)]
        services = Services() if self.real else Services(wrap=wrap)
        return CliRunner().invoke(main, given, input=stdin, obj=services, color=color)


@pytest.fixture
def command(model_folder: Path) -> Command:
    return Command(model_folder)


@pytest.fixture
def plain_ids(model_folder: Path) -> Callable[..., list[int]]:
    """What plain ``generate`` writes after the ids of a prompt."""
    model = LlamaForCausalLM.from_pretrained(model_folder)
    tokenizer = PreTrainedTokenizerFast.from_pretrained(model_folder)

    def run(prompt: str, **arguments: Any) -> list[int]:
        inputs = tokenizer(prompt, return_tensors="pt", return_token_type_ids=False)
        out = model.generate(**inputs, **arguments)
        ids: list[int] = out[0, inputs["input_ids"].shape[1] :].tolist()
        return ids

    return run
