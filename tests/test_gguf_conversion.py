"""A converted GGUF file is the model that transformers reads from the GGUF file itself."""

from __future__ import annotations

from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from tokenizers.pre_tokenizers import ByteLevel
from transformers import AutoModelForCausalLM, AutoTokenizer

from lookahead.model_store import LoadOptions, ModelStore, ModelStoreError, load
from lookahead.model_store.convert import convert_gguf

HIDDEN, HEADS, KV_HEADS, INNER, LAYERS = 64, 4, 2, 96, 2


@pytest.fixture(scope="module")
def tiny_gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A random two-layer Llama with quantized (Q8_0) projections and a byte vocabulary."""
    path = tmp_path_factory.mktemp("gguf") / "tiny.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(64)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    tokens = ["<|end|>", *sorted(ByteLevel.alphabet()), "th"]
    writer.add_vocab_size(len(tokens))
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(tokens)
    writer.add_token_types([3] + [1] * (len(tokens) - 1))
    writer.add_token_merges(["t h"])
    for add in (writer.add_bos_token_id, writer.add_eos_token_id, writer.add_pad_token_id):
        add(0)
    add_weights(writer, len(tokens))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def add_weights(writer: gguf.GGUFWriter, vocabulary: int) -> None:
    random = np.random.default_rng(0)
    q8 = gguf.GGMLQuantizationType.Q8_0

    def dense(name: str, *shape: int) -> None:
        writer.add_tensor(name, random.normal(0, 0.2, shape).astype(np.float32))

    def quantized(name: str, *shape: int) -> None:
        data = gguf.quants.quantize(random.normal(0, 0.2, shape).astype(np.float32), q8)
        writer.add_tensor(name, data, raw_dtype=q8)

    dense("token_embd.weight", vocabulary, HIDDEN)
    dense("output_norm.weight", HIDDEN)
    narrow = HIDDEN * KV_HEADS // HEADS
    for layer in range(LAYERS):
        dense(f"blk.{layer}.attn_norm.weight", HIDDEN)
        dense(f"blk.{layer}.ffn_norm.weight", HIDDEN)
        quantized(f"blk.{layer}.attn_q.weight", HIDDEN, HIDDEN)
        quantized(f"blk.{layer}.attn_k.weight", narrow, HIDDEN)
        quantized(f"blk.{layer}.attn_v.weight", narrow, HIDDEN)
        quantized(f"blk.{layer}.attn_output.weight", HIDDEN, HIDDEN)
        quantized(f"blk.{layer}.ffn_gate.weight", INNER, HIDDEN)
        quantized(f"blk.{layer}.ffn_up.weight", INNER, HIDDEN)
        quantized(f"blk.{layer}.ffn_down.weight", HIDDEN, INNER)


def test_converted_folder_gives_the_same_logits_and_ids(tiny_gguf: Path, tmp_path: Path) -> None:
    where, name = str(tiny_gguf.parent), tiny_gguf.name
    direct = AutoModelForCausalLM.from_pretrained(where, gguf_file=name, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(where, gguf_file=name)

    resolved = ModelStore(tmp_path / "cache").resolve(str(tiny_gguf))
    loaded = load(resolved, LoadOptions(device="cpu"))

    text = "the thin café"
    ids = tokenizer(text, return_tensors="pt").input_ids
    assert torch.equal(loaded.tokenizer(text, return_tensors="pt").input_ids, ids)
    assert loaded.tokenizer.decode(ids[0]) == text
    assert loaded.model.dtype == torch.float32
    assert not loaded.model.training
    with torch.no_grad():
        expected = direct.eval()(ids).logits
        assert torch.equal(loaded.model(ids).logits, expected)
    assert not hasattr(loaded.model.config, "quantization_config")


@pytest.mark.parametrize("missing", [10, 20_000, -3000], ids=["tensor", "tensors", "metadata"])
def test_truncated_gguf_is_one_clear_sentence(
    tiny_gguf: Path, tmp_path: Path, missing: int
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(tiny_gguf.read_bytes()[:-missing])
    with pytest.raises(ModelStoreError, match="cannot read") as caught:
        ModelStore(tmp_path / "cache").resolve(str(cut))
    assert "\n" not in str(caught.value)
    assert not list((tmp_path / "cache").glob("models/*"))


def test_unknown_architecture_is_one_clear_sentence(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "odd.gguf", "unheard-of")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    with pytest.raises(ModelStoreError, match="cannot read") as caught:
        convert_gguf(tmp_path / "odd.gguf", tmp_path / "out")
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "out").exists()


def test_unknown_dtype_and_device_are_refused() -> None:
    with pytest.raises(ValueError, match="dtype must be one of"):
        LoadOptions(dtype="float8")
    with pytest.raises(ValueError, match="not available"):
        LoadOptions(device="gpu").torch_device()
