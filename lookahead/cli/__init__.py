"""The ``lookahead`` command: one file per subcommand, added to the group at the end."""

from __future__ import annotations

from typing import Any

import click

from .bench import bench
from .chat import chat
from .common import Services, note
from .generate import generate
from .info import info
from .replay import replay
from .verify import verify


class InterruptibleGroup(click.Group):
    """Ends with a clean line and exit code 130 on Ctrl-C."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            note("\nInterrupted.")
            ctx.exit(130)


@click.group(
    cls=InterruptibleGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(package_name="lookahead-decoding")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Generate text faster with any Hugging Face causal LM: same output, no draft model."""
    if ctx.obj is None:
        ctx.obj = Services()


for command in (generate, chat, bench, verify, replay, info):
    main.add_command(command)
