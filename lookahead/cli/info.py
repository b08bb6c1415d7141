"""``lookahead info``: what the engine can do with a model here, and the versions."""

from __future__ import annotations

import json
import platform
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click
import torch

from ..bench.prompt_sets import encode, own_prompts
from ..bench.roofline import measure_roofline
from ..model_store import LoadedModel
from .common import (
    Services,
    clear_errors,
    make_engine,
    model_choice,
    model_options,
    warnings_as_notes,
)

PACKAGES = ("lookahead-decoding", "torch", "transformers", "tokenizers", "flash-attn")


@click.command(short_help="Show the model, the mode, the device, the versions.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
@click.option("--roofline", is_flag=True, help="Also time steps and passes against the memory.")
@model_options
@click.pass_obj
def info(services: Services, as_json: bool, roofline: bool, **values: Any) -> None:
    """Show the model, what the engine can do with it, the device, and the versions."""
    loaded = model_choice(values).load_with(services)
    with clear_errors(), warnings_as_notes():
        engine = make_engine(services, loaded)
    report = {
        "model": describe_model(loaded),
        "capability": {"mode": str(engine.capability.mode), "reason": engine.capability.reason},
        "passes": describe_passes(engine.fitted.passes),
        "device": describe_device(loaded.model.device),
        "versions": versions(),
    }
    if roofline:
        with clear_errors(), warnings_as_notes():
            report["roofline"] = describe_roofline(loaded, engine)
    if as_json:
        click.echo(json.dumps(report, ensure_ascii=False))
        return
    for title, rows in report.items():
        click.secho(title, bold=True)
        for name, value in rows.items():
            if value not in (None, ""):
                click.echo(f"  {name:<20}{value}")


def describe_model(loaded: LoadedModel) -> dict[str, Any]:
    """Class, size, dtype, context and place of the model."""
    model, text = loaded.model, loaded.model.config.get_text_config()
    return {
        "folder": str(loaded.path),
        "origin": loaded.origin,
        "class": type(model).__name__,
        "parameters": model.num_parameters(),
        "dtype": str(model.dtype).removeprefix("torch."),
        "layers": getattr(text, "num_hidden_layers", None),
        "context": getattr(text, "max_position_embeddings", None),
        "vocabulary": getattr(text, "vocab_size", None),
        "chat template": bool(loaded.tokenizer.chat_template),
    }


def describe_passes(passes: Any) -> dict[str, Any]:
    """What runs the engine's passes, and why not on compiled kernels where it does not."""
    reason = (
        passes.kernels if isinstance(passes.kernels, str) else "passes of another kind are used"
    )
    return {
        "module": passes.kind,
        "packed weights MB": round(passes.packed_bytes / 1e6, 1) if passes.packed_bytes else None,
        "no compiled kernels": "" if passes.used_kernels is not None else reason,
    }


def describe_device(device: torch.device) -> dict[str, Any]:
    """The device, its name, and torch's threads on a CPU."""
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        name = torch.cuda.get_device_name(device)
        return {"device": str(device), "name": name, "memory GiB": round(memory / 2**30, 1)}
    name = platform.processor() or platform.machine()
    return {"device": str(device), "name": name, "threads": torch.get_num_threads()}


def _three_digits(value: float) -> float:
    """A tiny model's floor is thousandths of a millisecond, a large one's many milliseconds."""
    return float(f"{value:.3g}")


def describe_roofline(loaded: LoadedModel, engine: Any) -> dict[str, Any]:
    """How far a plain step and a pass are from the time that reading their bytes takes."""
    prompt = own_prompts()[0]
    found = measure_roofline(loaded.model, engine, encode(loaded.tokenizer, prompt))
    return {
        "weights MB": round(found.weight_bytes / 1e6, 1),
        "cache MB": round(found.kv_bytes / 1e6, 1),
        "bandwidth GB/s": round(found.bandwidth / 1e9, 1),
        "floor ms": _three_digits(1e3 * found.floor),
        "plain step ms": _three_digits(1e3 * found.plain_step),
        "plain step / floor": round(found.step_over_floor, 2),
        "pass ms": _three_digits(1e3 * found.pass_seconds),
        "pass / floor": round(found.pass_over_floor, 2),
        "tokens in a pass": round(found.pass_width, 1),
        "tokens out a pass": round(found.tokens_per_pass, 2),
        "token / floor": round(found.token_over_floor, 2),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for package in PACKAGES:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "not installed"
    return found
