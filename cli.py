"""Runs the ``lookahead`` command from a checkout: ``python cli.py generate "Hello"``."""

from __future__ import annotations

import sys
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path


def use_checkout(root: Path) -> None:
    """Import ``lookahead``, and ``lookahead.attention`` beside it, from the checkout ``root``."""
    sys.path.insert(0, str(root))
    name = "lookahead.attention"
    spec = spec_from_file_location(name, root / "attention" / "__init__.py")
    assert spec is not None and spec.loader is not None
    module = module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


if __name__ == "__main__":
    try:
        use_checkout(Path(__file__).resolve().parent)
        from lookahead.cli import main
    except ModuleNotFoundError as error:
        if (error.name or "lookahead").startswith("lookahead"):
            raise
        print(f"Error: {error.name} is not installed: set up as README.md says.", file=sys.stderr)
        sys.exit(2)

    main(prog_name="python cli.py")
