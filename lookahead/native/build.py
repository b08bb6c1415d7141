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
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import platformdirs
import torch

SOURCES = Path(__file__).parent
COMPILERS = ("c++", "g++", "clang++")
_TUNED = "-mcpu=native" if platform.machine() in ("aarch64", "arm64") else "-march=native"
# Sums keep their order, so that a row's result does not depend on the rows beside it.
FLAGS = ("-std=c++17", "-O3", _TUNED, "-ffp-contract=fast", "-fno-math-errno", "-fopenmp", "-fPIC")
_SECONDS = 300  # more than any compiler needs

_P, _I, _C, _F = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int, ctypes.c_float
_SIGNATURES: dict[str, tuple[Any, ...]] = {
    "lookahead_panel": (),
    "lookahead_pack": (_P, _P, _P, _I, _I, _C),
    "lookahead_linear": (_P, _P, _P, _P, _F, _P, _P, _I, _I, _I, _C, _C),
    "lookahead_attention": (
        _P, _P, _P, _I, _P, _P, _I, _I, _I, _P, _P, _P, _I, _P, _I, _I, _I, _I, _I, _F, _C,
    ),
    "lookahead_causal": (_P, _P, _P, _P, _P, _P, _P, _I, _I, _I, _I, _I, _F, _C),
    "lookahead_top": (_P, _I, _I, _I, _P, _P, _P, _C),
}  # fmt: skip


@dataclass(frozen=True)
class Kernels:
    """The functions of ``kernels.cpp``; ``panel``: columns of a panel of packed weights."""

    pack: Any
    linear: Any
    attention: Any
    causal: Any
    top: Any
    panel: int


class NoKernels(Exception):
    """The kernels cannot be used here; the text says why."""


def load_kernels() -> Kernels | str:
    """The kernels, compiled if need be, or why there are none."""
    folder = Path(platformdirs.user_cache_dir("lookahead-decoding", appauthor=False)) / "kernels"
    try:
        return build(folder)
    except NoKernels as reason:
        return str(reason)


def build(folder: Path, compilers: Sequence[str] = COMPILERS) -> Kernels:
    """Load the library from ``folder``, compiled there if it is missing. Raises NoKernels."""
    if not sys.platform.startswith("linux"):
        raise NoKernels("compiled kernels are for Linux")
    reason = "no C++ compiler was found"
    for name in compilers:
        compiler = shutil.which(name)
        if compiler is None:
            continue
        try:
            return _build_with(compiler, folder)
        except NoKernels as problem:
            reason = str(problem)
    raise NoKernels(reason)


def _build_with(compiler: str, folder: Path) -> Kernels:
    library = folder / f"{_key(compiler)}.so"
    if library.exists():
        try:
            return _load(library)
        except (OSError, AttributeError):
            pass  # damaged: made anew
    try:
        folder.mkdir(parents=True, exist_ok=True)
        _compile(compiler, library)
    except OSError as problem:
        raise NoKernels(f"{folder} cannot be written: {problem.strerror}") from problem
    try:
        return _load(library)
    except (OSError, AttributeError) as problem:
        raise NoKernels(f"the compiled kernels cannot be loaded: {problem}") from problem


def _key(compiler: str) -> str:
    digest = hashlib.sha256(repr((compiler, os.stat(compiler).st_mtime_ns, FLAGS)).encode())
    for source in sorted([*SOURCES.glob("*.h"), *SOURCES.glob("*.cpp")]):
        digest.update(source.read_bytes())
    digest.update(_features().encode())
    digest.update(torch.__version__.encode())
    return digest.hexdigest()[:24]


def _features() -> str:
    """What the processor can do: a folder may be shared by machines."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return platform.processor()
    kinds = ("flags", "Features", "CPU part", "model name")
    return "\n".join(sorted({line for line in lines if line.startswith(kinds)}))


def _compile(compiler: str, library: Path) -> None:
    with tempfile.TemporaryDirectory(dir=library.parent) as scratch:
        object_file, made = Path(scratch) / "kernels.o", Path(scratch) / "kernels.so"
        source = SOURCES / "kernels.cpp"
        # Linked without -fopenmp: its functions are then found in what PyTorch has loaded.
        for command in (
            [compiler, *FLAGS, "-c", str(source), "-o", str(object_file)],
            [compiler, "-shared", str(object_file), "-o", str(made)],
        ):
            try:
                done = subprocess.run(command, capture_output=True, text=True, timeout=_SECONDS)
            except subprocess.TimeoutExpired as problem:
                raise NoKernels(f"{compiler} took too long") from problem
            if done.returncode:
                lines = [*done.stderr.strip().splitlines(), "no message"]
                raise NoKernels(f"{compiler} failed: {lines[0]}")
        os.replace(made, library)


def _load(library: Path) -> Kernels:
    loaded = ctypes.CDLL(str(library))
    for name, arguments in _SIGNATURES.items():
        function = getattr(loaded, name)
        function.argtypes = list(arguments)
        function.restype = _C if name == "lookahead_panel" else None
    return Kernels(
        loaded.lookahead_pack,
        loaded.lookahead_linear,
        loaded.lookahead_attention,
        loaded.lookahead_causal,
        loaded.lookahead_top,
        loaded.lookahead_panel(),
    )
