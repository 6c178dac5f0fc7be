"""Tables of records and requests, which may hold anything, in a terminal or in a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.values.moments import moment
from airflow_outbox.values.terminal import escaped

WIDTH_IN_FILES = 250
WIDTH_OF_TABLE = 120
"""In a narrower terminal, facts stand one a line."""


def print_table(table: Table) -> None:
    """Print a table, in a width of its own where there is no terminal."""
    console = Console()
    if not console.is_terminal:
        console.width = WIDTH_IN_FILES
    console.print(table)


def print_rows(rows: Sequence[Mapping[str, Any]], columns: Sequence[str], *, title: str) -> None:
    """Print these columns of rows: as a table, or where the terminal is too narrow for it one fact a line."""
    console = Console()
    named = {name: name.replace("_", " ").removesuffix(" at") for name in columns}
    if console.is_terminal and console.width < WIDTH_OF_TABLE:
        console.print(Text(title, style="italic"))
        for row in rows:
            console.print()
            for name, heading in named.items():
                if row[name] is not None:
                    console.print(Text.assemble((f"{heading}: ", "bold"), cell(row[name])))
        return
    table = Table(title=Text(title))
    for heading in named.values():
        table.add_column(heading, overflow="fold")
    for row in rows:
        table.add_row(*(cell(row[name]) for name in named))
    print_table(table)


def cell(value: Any) -> Text:
    """Plain text without effect: nothing in a record acts as markup or controls a terminal."""
    if value is None:
        return Text("")
    return Text(moment(value) if isinstance(value, datetime) else escaped(str(value)))
