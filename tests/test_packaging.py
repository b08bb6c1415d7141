"""What the built package contains."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

if sys.version_info >= (3, 11):
    import tomllib
else:
    tomllib = pytest.importorskip("tomli")

ROOT = Path(__file__).resolve().parent.parent


def test_every_package_folder_is_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    folders = {p.parent.relative_to(ROOT) for p in ROOT.glob("lookahead/**/__init__.py")}
    folders |= {p.parent.relative_to(ROOT) for p in ROOT.glob("attention/**/__init__.py")}
    names = {".".join(f.parts) for f in folders}
    names = {n if n.startswith("lookahead") else f"lookahead.{n}" for n in names}
    assert names == set(settings["packages"])


def test_the_sources_of_the_kernels_are_installed() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]
    patterns = settings["package-data"]["lookahead.native"]
    folder = ROOT / "lookahead" / "native"
    sources = [p for p in folder.iterdir() if p.is_file() and p.suffix != ".py"]
    assert len(sources) >= 6
    assert all(any(source.match(pattern) for pattern in patterns) for source in sources)


def test_attention_imports_as_a_subpackage() -> None:
    module = importlib.import_module("lookahead.attention")
    assert module.__file__ is not None
    assert Path(module.__file__).parent.name == "attention"
