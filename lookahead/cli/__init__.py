"""The ``lookahead`` command: one file per subcommand, added to the group here."""

from __future__ import annotations

import click


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(package_name="lookahead-decoding")
def main() -> None:
    """Generate text faster with any Hugging Face causal LM: same output, no draft model."""
