"""Compiles the kernels for this processor, once, and loads them.

The library lies in the user's cache folder under a name made of the sources, the compiler, its
flags and the processor's features; it is written beside its place and moved there whole. It uses
the OpenMP runtime that PyTorch has loaded, so both share one set of threads.
"""

from __future__ import annotations

import ctypes
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
_TUNED = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
FLAGS = (
    "-std=c++17", "-O3", _TUNED, "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-fPIC",
    "-fvisibility=hidden",
)  # fmt: skip
_SECONDS = 300  # more than any compiler needs
_KEPT = 24 * 3600  # seconds for which a compiler's failure is believed

_P, _I, _C, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "lookahead_panel": (),
    "lookahead_panel_bytes": (_C, _I),
    "lookahead_pack": (_P, _P, _P, _I, _I, _C, _C),
    "lookahead_linear": (_P, _P, _C, _P, _P, _F, _P, _P, _I, _I, _I, _C, _C),
    "lookahead_attention": (_P, _P, _P, _P, _P, _C),
    "lookahead_stack": (_P, _P, _I, _I, _I, _P, _P, _P, _I, _C),
    "lookahead_causal": (_P, _P, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _F, _C),
    "lookahead_top": (_P, _I, _I, _I, _P, _P, _P, _C),
}  # fmt: skip

_RESULTS = {"lookahead_panel": _C, "lookahead_panel_bytes": _I, "lookahead_pack": _C}


@dataclass(frozen=True)
class Kernels:
    """The functions of ``kernels.cpp``; ``panel``: columns of a panel of packed weights."""

    panel_bytes: Any
    pack: Any
    linear: Any
    attention: Any
    stack: Any
    causal: Any
    top: Any
    panel: int


class NoKernels(Exception):
    """The kernels cannot be used here; the text says why."""


class Stopped(NoKernels):
    """The compiler was stopped, which may not happen another time."""


def build(
    folder: Path, compilers: Sequence[str] = COMPILERS, flags: Sequence[str] = FLAGS
) -> Kernels:
    """Load the library from ``folder``, compiled there if it is missing. Raises NoKernels.

    Why a compiler fails is kept there for a day, so that it is not asked again at every start.
    """
    if not sys.platform.startswith("linux"):
        raise NoKernels("compiled kernels are for Linux")
    reasons = []
    for compiler in filter(None, map(shutil.which, compilers)):
        try:
            return _build_with(compiler, folder, flags)
        except NoKernels as reason:
            reasons.append(str(reason))
        except OSError as problem:
            reasons.append(f"{problem.filename or folder}: {problem.strerror}")
    raise NoKernels("; ".join(dict.fromkeys(reasons)) or "no C++ compiler was found")


def _build_with(compiler: str, folder: Path, flags: Sequence[str]) -> Kernels:
    key = _key(compiler, flags)
    library, failure = folder / f"{key}.so", folder / f"{key}.failed"
    try:
        return _load(library)
    except (OSError, AttributeError):  # missing or damaged: made anew
        folder.mkdir(parents=True, exist_ok=True)
    if failure.exists() and time.time() - failure.stat().st_mtime < _KEPT:
        raise NoKernels(f"{failure.read_text()} (to try again, delete {failure})")
    try:
        _compile(compiler, flags, library)
        return _load(library)
    except Stopped:
        raise
    except (NoKernels, OSError, AttributeError) as problem:
        if isinstance(problem, OSError) and problem.errno is not None:
            raise  # of the folder, not of the compiler; dlopen gives no number
        failure.write_text(str(problem))
        raise NoKernels(str(problem)) from problem


def _key(compiler: str, flags: Sequence[str]) -> str:
    """Names what the library is made of and for."""
    digest = hashlib.sha256(repr((compiler, os.stat(compiler).st_mtime_ns, flags)).encode())
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(source.read_bytes())
    # Machines may share a folder, and a library must not meet a processor that lacks its
    # instructions.
    kinds = ("flags", "Features", "CPU part", "model name")
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    digest.update("\n".join(sorted({line for line in lines if line.startswith(kinds)})).encode())
    digest.update(torch.__version__.encode())
    return digest.hexdigest()[:24]


def _compile(compiler: str, flags: Sequence[str], library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        object_file, made = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        source = SOURCES / "kernels.cpp"
        # Linked without -fopenmp: its functions are then found in what PyTorch has loaded.
        _run(compiler, *flags, "-c", str(source), "-o", str(object_file))
        _run(compiler, "-shared", str(object_file), "-o", str(made))
        if not made.exists():
            raise NoKernels(f"{compiler} made nothing")
        with made.open("rb") as whole:
            os.fsync(whole.fileno())
        os.replace(made, library)


def _run(*command: str) -> None:
    """Run a compiler. Raises NoKernels with what it says first, errors before notes."""
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, errors="replace", timeout=_SECONDS
        )
    except subprocess.TimeoutExpired as problem:
        raise Stopped(f"{command[0]} took too long") from problem
    except OSError as problem:
        raise NoKernels(f"{command[0]} cannot be run: {problem.strerror}") from problem
    if done.returncode < 0:
        raise Stopped(f"{command[0]} was stopped by signal {-done.returncode}")
    if done.returncode:
        lines = [line for line in done.stderr.splitlines() if line.strip()] or ["no message"]
        first = next((line for line in lines if "error" in line), lines[0])
        raise NoKernels(f"{command[0]} failed: {first.strip()}")


def _load(library: Path) -> Kernels:
    loaded = ctypes.CDLL(str(library))
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = list(arguments)
        function.restype = _RESULTS.get(name)
    return Kernels(
        loaded.lookahead_panel_bytes,
        loaded.lookahead_pack,
        loaded.lookahead_linear,
        loaded.lookahead_attention,
        loaded.lookahead_stack,
        loaded.lookahead_causal,
        loaded.lookahead_top,
        loaded.lookahead_panel(),
    )
