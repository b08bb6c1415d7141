"""Runs the ``lookahead`` command from a checkout: ``python cli.py generate "Hello"``."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

# Folders that pyproject.toml installs inside the package; from a checkout they lie beside it.
MAPPED = {"lookahead.attention": "attention", "lookahead.bench": "bench"}


def use_checkout(root: Path) -> None:
    """Make ``import lookahead`` and its mapped subpackages load from the checkout at ``root``."""
    sys.path.insert(0, str(root))
    for name, folder in MAPPED.items():
        spec = spec_from_file_location(name, root / folder / "__init__.py")
        assert spec is not None and spec.loader is not None
        module = module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)


if __name__ == "__main__":
    use_checkout(Path(__file__).resolve().parent)
    from lookahead.cli import main

    main(prog_name="python cli.py")
