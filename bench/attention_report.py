"""The table, the plot and the machine line of `bench/attention.py`."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from rich.table import Table

from lookahead.attention.flash import kvcache_kernel


@dataclass(frozen=True)
class Record:
    """One line of the table. Times in microseconds per call, bandwidth as a share of copying."""

    heads: str
    nodes: int
    prefix: int
    backend: str
    microseconds: float
    new_mask_microseconds: float | None
    over_expanded: float
    roofline_share: float
    error: float


def show(records: list[Record]) -> None:
    table = Table(title="tree attention, one layer")
    for column in (
        "heads", "n", "prefix", "backend", "us", "new mask us", "x expanded", "roofline", "error",
    ):  # fmt: skip
        table.add_column(column, justify="left" if column in ("heads", "backend") else "right")
    for r in records:
        table.add_row(
            r.heads, str(r.nodes), str(r.prefix), r.backend, f"{r.microseconds:,.0f}",
            "" if r.new_mask_microseconds is None else f"{r.new_mask_microseconds:,.0f}",
            f"{r.over_expanded:.2f}", f"{r.roofline_share:.0%}", f"{r.error:.1e}",
        )  # fmt: skip
    Console(width=110).print(table)


def plot(records: list[Record], path: Path, title: str) -> None:
    """Speed over the yardstick against prefix length, one panel per head layout and n."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot as plt

    layouts = list(dict.fromkeys(r.heads for r in records))
    widths = sorted({r.nodes for r in records})
    figure, axes = plt.subplots(
        len(layouts), len(widths), squeeze=False, sharex=True, sharey=True,
        figsize=(2.6 * len(widths), 2.6 * len(layouts)),
    )  # fmt: skip
    for row, heads in zip(axes, layouts, strict=True):
        for axis, nodes in zip(row, widths, strict=True):
            for backend in dict.fromkeys(r.backend for r in records):
                points = sorted(
                    (r.prefix, r.over_expanded)
                    for r in records
                    if (r.heads, r.nodes, r.backend) == (heads, nodes, backend)
                )
                axis.plot(*zip(*points, strict=True), marker="o", markersize=3, label=backend)
            axis.set_xscale("log", base=2)
            axis.set_yscale("log", base=2)
            axis.set_title(f"{heads} heads, n = {nodes}", fontsize=8)
            axis.grid(alpha=0.3)
    figure.supxlabel("prefix length", fontsize=9)
    figure.supylabel("times as fast as SDPA, 4-D mask, expanded keys", fontsize=9)
    axes[0][0].legend(fontsize=7)
    figure.suptitle(title, fontsize=10)
    figure.tight_layout()
    figure.savefig(path, dpi=120)


def machine(device: str, dtype: str, size: int, bandwidth: float) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else cpu_name()
    return {
        "device": device,
        "name": name,
        "dtype": dtype,
        "head_size": size,
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "flash_attn": device == "cuda" and kvcache_kernel() is not None,
        "copy_gigabytes_per_second": bandwidth / 1e9,
    }


def cpu_name() -> str:
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    names = [line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")]
    return names[0] if names else platform.processor() or platform.machine()
