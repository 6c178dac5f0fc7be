"""Groups of commands, whose help says of each command what it does in whole sentences."""

from __future__ import annotations

import click


class Commands(click.Group):
    """A group that wraps the first sentence of each command's help, where click's own cuts it off."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = []
        for name in self.list_commands(ctx):
            command = self.get_command(ctx, name)
            if command is not None and not command.hidden:
                rows.append((name, command.get_short_help_str(limit=10_000)))
        if rows:
            with formatter.section("Commands"):
                formatter.write_dl(rows)
