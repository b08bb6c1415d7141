"""Time, memory traffic and error of tree attention, backend by backend.

    python bench/attention.py                                  # CPU, small sizes, fp32
    python bench/attention.py --device cuda --dtype bfloat16   # the whole grid

Every backend gets the same tensors in the same process; rounds are interleaved and the median of
each is kept, so that a noisy machine disturbs all alike. "expanded" is the yardstick: PyTorch's
SDPA under a 4-D mask with grouped keys expanded to all heads, which is what transformers does.
Masks are made before timing starts, for all backends, since the layers of a pass share them; the
column "new mask" is the time of a call that has to make its own. On a machine that others use
too, `--clock cpu --threads 1` counts the process's own processor time instead of waiting time.

    roofline share = (bytes that must be read or written once / copy bandwidth) / time
                     (above 100% where a CPU's cache holds the keys)
    error          = largest difference from attention over the joined keys in fp64

Prints a table, writes JSON and a plot, and ends with one line of JSON.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import click
import torch
from attention_report import Record, machine, plot, show
from attention_timing import Clock, copy_bandwidth, interleaved_medians
from torch import Tensor

from lookahead.attention import TreeContext, attend
from lookahead.attention.dense import dense_attention
from lookahead.attention.flash import fold_heads
from lookahead.attention.masks import additive, visible_range

RESULTS = Path(__file__).parent / "results"
SIZES: dict[str, dict[str, Any]] = {
    "cpu": {"nodes": (1, 8, 16, 32, 64), "prefix": (256, 1024, 4096, 16384), "heads": "9/3,14/2"},
    "cuda": {
        "nodes": (1, 8, 16, 32, 64, 128),
        "prefix": (256, 2048, 8192, 32768),
        "heads": "9/3,14/2,32/8,32/32",
    },
}


@dataclass(frozen=True)
class Inputs:
    """One pass: a random tree of n nodes behind a prefix, in a preallocated cache."""

    q: Tensor
    k: Tensor
    v: Tensor
    tree_mask: Tensor
    prefix: int
    seen: Tensor  # bool [1, n, prefix + n] in host memory

    def context(self) -> TreeContext:
        return TreeContext(self.prefix, self.tree_mask)


def make_inputs(
    heads: int, key_heads: int, nodes: int, prefix: int, size: int, device: str, dtype: torch.dtype
) -> Inputs:
    generator = torch.Generator().manual_seed(nodes * 1_000_003 + prefix)
    q = torch.randn(1, nodes, heads, size, generator=generator).transpose(1, 2)
    capacity = 1 << math.ceil(math.log2(prefix + nodes))
    k, v = (torch.zeros(1, key_heads, capacity, size) for _ in range(2))
    for x in (k, v):
        x[:, :, : prefix + nodes].normal_(generator=generator)
    mask = torch.eye(nodes, dtype=torch.bool)
    for node in range(1, nodes):
        parent = int(torch.randint(node, (1,), generator=generator))
        mask[node] |= mask[parent]
    q, k, v = (x.to(device=device, dtype=dtype) for x in (q, k, v))
    seen = visible_range(TreeContext(prefix, mask[None]), 0, prefix + nodes, None)
    return Inputs(q, k, v, mask[None], prefix, seen)


def expanded_call(inputs: Inputs) -> Callable[[], Tensor]:
    """SDPA under an additive 4-D mask with expanded keys."""
    q, group = inputs.q, inputs.q.shape[1] // inputs.k.shape[1]
    bias = additive(inputs.seen, 1, q.dtype, q.device).bias
    keep = slice(0, bias.shape[-1])

    def call() -> Tensor:
        k, v = inputs.k[:, :, keep], inputs.v[:, :, keep]
        if group > 1:
            k, v = k.repeat_interleave(group, 1), v.repeat_interleave(group, 1)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=bias)

    return call


def backend_call(inputs: Inputs, backend: str, context: TreeContext | None) -> Callable[[], Tensor]:
    """Tree attention; with context None every call makes its own masks."""

    def call() -> Tensor:
        return attend(
            inputs.q,
            inputs.k,
            inputs.v,
            context or inputs.context(),
            backend=backend,
            need_lse=False,
        )[0]

    return call


def exact(inputs: Inputs) -> Tensor:
    """Attention over the joined keys in fp64."""
    group = inputs.q.shape[1] // inputs.k.shape[1]
    bias = additive(inputs.seen, group, torch.float64, inputs.q.device).bias
    end = bias.shape[-1]
    rows = fold_heads(inputs.q.double(), inputs.k.shape[1])
    k, v = (x[:, :, :end].double() for x in (inputs.k, inputs.v))
    out, _ = dense_attention(rows, k, v, bias, scale=inputs.q.shape[-1] ** -0.5)
    return out.reshape(inputs.q.shape)


def needed_bytes(inputs: Inputs) -> int:
    """Keys and values of prefix and tree once, queries once, output once."""
    rows = (inputs.prefix + inputs.q.shape[2]) * inputs.k.shape[1] * 2
    numbers = rows * inputs.k.shape[3] + 2 * inputs.q.numel()
    return numbers * inputs.q.element_size()


def measure(
    inputs: Inputs,
    heads: str,
    backends: tuple[str, ...],
    rounds: int,
    bandwidth: float,
    clock: Clock,
) -> list[Record]:
    context = inputs.context()
    calls = {"expanded": expanded_call(inputs)}
    for backend in backends:
        calls[backend] = backend_call(inputs, backend, context)
    truth = exact(inputs)
    errors = {n: float((call().double() - truth).abs().max()) for n, call in calls.items()}
    fresh = {f"{b} fresh": backend_call(inputs, b, None) for b in backends}
    times = interleaved_medians({**calls, **fresh}, rounds, clock)
    return [
        Record(
            heads=heads,
            nodes=inputs.q.shape[2],
            prefix=inputs.prefix,
            backend=name,
            microseconds=times[name] * 1e6,
            new_mask_microseconds=times[f"{name} fresh"] * 1e6 if name in backends else None,
            over_expanded=times["expanded"] / times[name],
            roofline_share=needed_bytes(inputs) / bandwidth / times[name],
            error=errors[name],
        )
        for name in calls
    ]


def numbers(context: click.Context, option: click.Parameter, value: str | None) -> Any:
    try:
        return None if value is None else tuple(int(part) for part in value.split(","))
    except ValueError as error:
        raise click.BadParameter("give whole numbers separated by commas") from error


@click.command()
@click.option("--device", type=click.Choice(["cpu", "cuda"]), default="cpu", show_default=True)
@click.option(
    "--dtype", type=click.Choice(["float32", "bfloat16", "float16"]), default="float32",
    show_default=True,
)  # fmt: skip
@click.option("--backends", default="flash,sdpa,auto", show_default=True, help="Add flex on CUDA.")
@click.option("--nodes", callback=numbers, help="Tree sizes, as 1,8,16.")
@click.option("--prefix", callback=numbers, help="Prefix lengths, as 256,4096.")
@click.option("--heads", help="Query heads/key heads, as 9/3,14/2.")
@click.option("--head-size", default=64, show_default=True)
@click.option("--rounds", default=15, show_default=True)
@click.option("--threads", type=int, help="CPU threads; default PyTorch's.")
@click.option("--clock", type=click.Choice(["wall", "cpu"]), default="wall", show_default=True)
@click.option("--output", type=click.Path(path_type=Path), help="Path without an ending.")
@torch.inference_mode()
def main(
    device: str,
    dtype: str,
    backends: str,
    nodes: tuple[int, ...] | None,
    prefix: tuple[int, ...] | None,
    heads: str | None,
    head_size: int,
    rounds: int,
    threads: int | None,
    clock: str,
    output: Path | None,
) -> None:
    """Measure tree attention; see the top of this file."""
    if device == "cuda" and not torch.cuda.is_available():
        raise click.UsageError("PyTorch finds no CUDA device here; use --device cpu.")
    if device == "cuda" and clock == "cpu":
        raise click.UsageError("processor time says nothing about a GPU; use --clock wall.")
    if threads:
        torch.set_num_threads(threads)
    layouts = [tuple(map(int, h.split("/"))) for h in (heads or SIZES[device]["heads"]).split(",")]
    timer = Clock(device, time.process_time if clock == "cpu" else time.perf_counter)
    bandwidth = copy_bandwidth(device, timer)
    about = {**machine(device, dtype, head_size, bandwidth), "clock": clock}
    records: list[Record] = []
    for query_heads, key_heads in layouts:
        for n in nodes or SIZES[device]["nodes"]:
            for length in prefix or SIZES[device]["prefix"]:
                inputs = make_inputs(
                    query_heads, key_heads, n, length, head_size, device, getattr(torch, dtype)
                )
                records += measure(
                    inputs, f"{query_heads}/{key_heads}", tuple(backends.split(",")), rounds,
                    bandwidth, timer,
                )  # fmt: skip
                click.echo(f"{query_heads}/{key_heads} n={n} prefix={length}", err=True)
    show(records)
    RESULTS.mkdir(exist_ok=True)
    path = output or RESULTS / f"attention-{device}-{dtype}-{about['threads']}threads"
    json_path = Path(f"{path}.json")
    summary = {"machine": about, "records": [asdict(r) for r in records]}
    json_path.write_text(json.dumps(summary, indent=1) + "\n")
    title = f"{about['name']}, {about['threads']} thread(s), {dtype}, head size {head_size}"
    plot(records, Path(f"{path}.png"), title)
    gains = {
        f"{r.heads} n={r.nodes} prefix={r.prefix}": round(r.over_expanded, 2)
        for r in records
        if r.backend == backends.split(",")[-1]
    }
    click.echo(json.dumps({**about, "json": json_path.name, "gain": gains}))


if __name__ == "__main__":
    main()
