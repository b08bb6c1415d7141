"""What a benchmark run measured: everything that must be equal for runs to be comparable."""

import hashlib
import json
import platform
import sys
from dataclasses import asdict, dataclass, fields
from typing import Any

import torch
import transformers


@dataclass(frozen=True)
class Settings:
    """Options of a run. A resumed run must have the same ones; see :meth:`fingerprint`.

    ``state`` is ``"cold"`` (a fresh engine for every prompt), ``"warm"`` (one for all) or
    ``"both"``. ``seed`` is that of the first case under sampling; case ``i`` uses ``seed + i``.
    """

    model: str
    device: str = "cpu"
    dtype: str = "float32"
    prompts: str = "own"
    categories: tuple[str, ...] = ()
    per_category: int | None = None
    max_new_tokens: int = 128
    do_sample: bool = False
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    methods: tuple[str, ...] = ()
    state: str = "both"
    draft_model: str | None = None
    threads: int | None = None

    def __post_init__(self) -> None:
        checks = [
            (self.max_new_tokens >= 2, "max_new_tokens must be at least 2"),
            (self.temperature > 0, "temperature must be above 0 (greedy is the default)"),
            (self.top_k >= 0, "top_k must be 0 (off) or more"),
            (0 < self.top_p <= 1, "top_p must be above 0 and at most 1"),
            (self.state in {"cold", "warm", "both"}, "state must be cold, warm or both"),
            (self.threads is None or self.threads >= 1, "threads must be at least 1"),
        ]
        for valid, message in checks:
            if not valid:
                raise ValueError(message)

    def generate_kwargs(self) -> dict[str, Any]:
        """Arguments of ``model.generate`` that make every method do the same work."""
        if not self.do_sample:
            return {"max_new_tokens": self.max_new_tokens, "do_sample": False}
        return {
            "max_new_tokens": self.max_new_tokens,
            "do_sample": True,
            "temperature": self.temperature,
            "top_k": self.top_k,
            "top_p": self.top_p,
        }

    def fingerprint(self) -> str:
        """Digest of all options, to tell whether a file of rows belongs to this run."""
        text = json.dumps(asdict(self), sort_keys=True)
        return hashlib.sha256(text.encode()).hexdigest()[:16]

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "Settings":
        """The inverse of ``dataclasses.asdict`` after a trip through JSON."""
        names = {f.name for f in fields(cls)}
        kept: dict[str, Any] = {}
        for name in names & set(values):
            value = values[name]
            kept[name] = tuple(value) if isinstance(value, list) else value
        return cls(**kept)


def environment(device: torch.device) -> dict[str, Any]:
    """Hardware and versions to print beside every figure."""
    values: dict[str, Any] = {
        "processor": _processor(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "system": platform.system(),
    }
    if device.type == "cuda":
        values["gpu"] = torch.cuda.get_device_name(device)
        values["cuda"] = torch.version.cuda
    return values


def peak_memory() -> int | None:
    """Most bytes of main memory that this process has held; None where the system does not tell."""
    if sys.platform == "win32":
        return None
    import resource

    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def _processor() -> str:
    try:
        with open("/proc/cpuinfo") as file:
            for line in file:
                if line.startswith("model name"):
                    return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
