"""Make a second model to measure: Qwen2 class, 2.7 times the size, the default model's text.

    python bench/widen.py FOLDER

Weights of the default model are written into a wider and deeper one so that it computes the same
function (after Net2Net, arXiv:1511.05641): what was added reads and writes nothing, but costs what
such a model costs. Random numbers fill whatever the function does not depend on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from lookahead.model_store import LoadOptions, ModelStore, load

HIDDEN, INNER, HEADS, KEY_HEADS, LAYERS = 960, 2560, 15, 5, 32


def fill(weight: Tensor, known: Tensor, rows: bool, columns: bool) -> None:
    """``known`` into the corner of ``weight``; zeros in the added rows or columns if so asked."""
    weight.normal_(std=0.02)
    if rows:
        weight[known.shape[0] :] = 0
    if columns:
        weight[:, known.shape[1] :] = 0
    weight[: known.shape[0], : known.shape[1]] = known


def widen_layer(old: Any, new: Any, share: float) -> None:
    """One decoder layer. Added heads and inner units are read by nothing, and nothing writes to
    the added hidden units."""
    for name in ("q_proj", "k_proj", "v_proj"):
        fill(getattr(new.self_attn, name).weight, getattr(old.self_attn, name).weight, False, False)
        getattr(new.self_attn, name).bias.zero_()
    fill(new.self_attn.o_proj.weight, old.self_attn.o_proj.weight, True, True)
    for name in ("gate_proj", "up_proj"):
        fill(getattr(new.mlp, name).weight, getattr(old.mlp, name).weight, False, False)
    fill(new.mlp.down_proj.weight, old.mlp.down_proj.weight, True, True)
    for name in ("input_layernorm", "post_attention_layernorm"):
        widen_norm(getattr(old, name), getattr(new, name), share)


def widen_norm(old: Any, new: Any, share: float) -> None:
    """The mean square over all units is ``share`` of the mean square over those in use."""
    new.weight.normal_(mean=1.0, std=0.02)
    new.weight[: old.weight.shape[0]] = old.weight * share**0.5


def widen(model: Any) -> Any:
    """The wider model."""
    config = model.config
    share = config.hidden_size / HIDDEN
    wide = Qwen2ForCausalLM(
        Qwen2Config(
            vocab_size=config.vocab_size,
            hidden_size=HIDDEN,
            intermediate_size=INNER,
            num_hidden_layers=LAYERS,
            num_attention_heads=HEADS,
            num_key_value_heads=KEY_HEADS,
            max_position_embeddings=config.max_position_embeddings,
            rope_parameters=config.rope_parameters,
            rms_norm_eps=config.rms_norm_eps * share,
            tie_word_embeddings=True,
            bos_token_id=config.bos_token_id,
            eos_token_id=config.eos_token_id,
            pad_token_id=config.pad_token_id,
        )
    )
    torch.manual_seed(0)
    wide.model.embed_tokens.weight.zero_()
    wide.model.embed_tokens.weight[:, : config.hidden_size] = model.model.embed_tokens.weight
    widen_norm(model.model.norm, wide.model.norm, share)
    count = config.num_hidden_layers
    for old, new in zip(model.model.layers, wide.model.layers[:count], strict=True):
        widen_layer(old, new, share)
    for new in wide.model.layers[count:]:
        new.self_attn.o_proj.weight.zero_()
        new.mlp.down_proj.weight.zero_()
    wide.generation_config = model.generation_config
    return wide.eval()


@click.command()
@click.argument("folder", type=Path)
@click.option("--model", default=None, help="Model folder or name; the default model if left out.")
@torch.no_grad()
def main(folder: Path, model: str | None) -> None:
    """Write the wider model and the tokenizer to FOLDER."""
    loaded = load(ModelStore().resolve(model), LoadOptions())
    wide = widen(loaded.model)
    ids = loaded.tokenizer("The quick brown fox", return_tensors="pt").input_ids
    difference = (wide(ids).logits - loaded.model(ids).logits).abs().max()
    if not difference < 1e-2:
        raise click.ClickException(f"the wider model differs by {difference:.2g}")
    wide.save_pretrained(folder)
    loaded.tokenizer.save_pretrained(folder)
    click.echo(f"{wide.num_parameters():,} parameters; logits differ by {difference:.1e}")


if __name__ == "__main__":
    main()
