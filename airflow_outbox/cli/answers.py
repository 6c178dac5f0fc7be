"""The answers of commands: lines for people, coloured where there is a terminal, or JSON for programs."""

from __future__ import annotations

import os
from collections.abc import Iterable

import click

from airflow_outbox.values.terminal import as_json, escaped

as_text_or_json = click.option(
    "--output", type=click.Choice(["text", "json"]), default="text", show_default=True, help="For people or programs."
)


def answer(lines: Iterable[str], values: object, *, output: str) -> None:
    """Print the lines, or the values that say the same, as JSON in one line."""
    if output == "json":
        click.echo(as_json(values))
    else:
        for line in lines:
            say(line)


def say(text: str, *, colour: str | None = None, mark: str = "", err: bool = False) -> None:
    """Print a line that a terminal only shows. `mark`, at its beginning, has the colour, where there is a terminal and
    NO_COLOR is not set.
    """
    begun = click.style(escaped(mark), fg=colour, bold=True) if mark and colour else escaped(mark)
    click.echo(begun + escaped(text), err=err, color=False if os.environ.get("NO_COLOR") else None)
