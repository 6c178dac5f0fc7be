"""`airflow-outbox parked list · show · retry · discard`: look at parked records, and ask the leader to act on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.cli.options import clear_errors, config_file, database
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests, shown
from airflow_outbox.values.terminal import as_json, as_yaml, escaped

_WIDTH_IN_FILES = 250
_LISTED = ("id", "topic", "key", "cause", "reason", "attempts", "parked_at", "retry_at", "requested")
_LISTED_DISCARDED = ("id", "topic", "key", "cause", "discarded_at", "requested_by", "request_reason", "purged_at")

Command = Callable[..., None]
Row = Mapping[str, Any]


def _choosing(command: Command) -> Command:
    """Add the options that select records."""
    for option in (
        click.option("--all", "everything", is_flag=True, help="All parked records."),
        click.option(
            "--id", "ids", type=int, multiple=True, help="The record with this id in the outbox; may be repeated."
        ),
        click.option("--key", help="Records of this key; in a BYTEA column, \\x and hexadecimal digits, or text."),
        click.option("--topic", help="Records of this topic."),
    ):
        command = option(command)
    return command


def _showing(command: Command) -> Command:
    """Add the options for what is shown, and how much of it."""
    formats = click.Choice(["table", "json", "yaml"])
    command = click.option("--limit", default=1000, show_default=True, help="Show at most this many records.")(command)
    return click.option("--output", type=formats, default="table", show_default=True)(command)


def _choice(topic: str | None, key: str | None, ids: Sequence[int], *, everything: bool) -> Choice:
    return Choice(topic=topic, key=key, ids=tuple(ids), everything=everything)


@click.group()
def parked() -> None:
    """Look at records that could not be published and what waits behind them; retry or discard them."""


@parked.command("list")
@config_file
@_choosing
@_showing
@click.option("--discarded", is_flag=True, help="List discarded records instead of waiting ones.")
def list_command(
    path: Path,
    topic: str | None,
    key: str | None,
    ids: tuple[int, ...],
    everything: bool,
    output: str,
    limit: int,
    discarded: bool,
) -> None:
    """List parked records in their order, without their contents; all of them unless some are named."""
    with clear_errors():
        everything = everything or (topic is None and key is None and not ids)
        choice = _choice(topic, key, ids, everything=everything)
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            found = ParkedRequests(connection, config.name).listed(choice, discarded=discarded, limit=limit + 1)
    columns = _LISTED_DISCARDED if discarded else _LISTED
    _print(_cut(found, limit), output, lambda rows: _side_by_side(rows, columns))


@parked.command("show")
@config_file
@_choosing
@_showing
def show_command(
    path: Path, topic: str | None, key: str | None, ids: tuple[int, ...], everything: bool, output: str, limit: int
) -> None:
    """Show parked records whole, with value and headers, those that were discarded, too."""
    with clear_errors():
        choice = _choice(topic, key, ids, everything=everything)
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            found = ParkedRequests(connection, config.name).whole(choice, limit=limit + 1)
    _print(_cut(found, limit), output, _one_below_the_other)


@parked.command("retry")
@config_file
@_choosing
def retry_command(path: Path, topic: str | None, key: str | None, ids: tuple[int, ...], everything: bool) -> None:
    """Ask the leader to try records again, each topic and key from its first record on."""
    with clear_errors():
        choice = _choice(topic, key, ids, everything=everything)
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            asked = _found(ParkedRequests(connection, config.name).ask("retry", choice), choice)
    click.echo(
        f"asked the leader to retry {asked} records; it does so within seconds. `parked list` shows what is left"
    )


@parked.command("discard")
@config_file
@_choosing
@click.option("--reason", help="The reason, which is kept with the record.")
@click.option("--purge", is_flag=True, help="Empty records that were discarded before; the note of it stays.")
def discard_command(
    path: Path,
    topic: str | None,
    key: str | None,
    ids: tuple[int, ...],
    everything: bool,
    reason: str | None,
    purge: bool,
) -> None:
    """Ask the leader to give records up, so that the next of their topic and key can be published."""
    if purge == bool(reason):
        raise click.UsageError("give --reason to discard records, or --purge to empty those that were discarded")
    with clear_errors():
        choice = _choice(topic, key, ids, everything=everything)
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            requests = ParkedRequests(connection, config.name)
            count = requests.forget(choice) if purge else _found(requests.ask("discard", choice, reason=reason), choice)
    if purge:
        click.echo(f"emptied {count} discarded records; the notes of who discarded them, when and why stay")
    else:
        click.echo(f"asked the leader to discard {count} records; it does so within seconds")


def _found(count: int, choice: Choice) -> int:
    """Return how many records were meant. It is an error if none of the named records was."""
    if not count and not choice.everything:
        raise ConfigurationError("no waiting parked record matches. `airflow-outbox parked list` shows those that wait")
    return count


def _cut(found: Sequence[Row], limit: int) -> Sequence[Row]:
    if len(found) > limit:
        click.echo(f"only the first {limit} records are shown. Raise --limit to see more", err=True)
    return found[:limit]


def _print(found: Sequence[Mapping[str, Any]], output: str, laid_out: Callable[[Sequence[Any]], Table]) -> None:
    rows = [{name: shown(value) for name, value in row.items()} for row in found]
    if output == "json":
        click.echo(as_json(rows))
    elif output == "yaml":
        click.echo(as_yaml(rows))
    else:
        console = Console()
        if not console.is_terminal:
            console.width = _WIDTH_IN_FILES
        console.print(laid_out(rows))


def _side_by_side(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> Table:
    table = Table(title=f"{len(rows)} records")
    for name in columns:
        table.add_column(name.replace("_", " ").removesuffix(" at"), overflow="fold")
    for row in rows:
        table.add_row(*(_cell(row[name]) for name in columns))
    return table


def _one_below_the_other(rows: Sequence[Mapping[str, Any]]) -> Table:
    table = Table(show_header=False)
    for row in rows:
        for name, value in row.items():
            table.add_row(Text(name.replace("_", " ")), _cell(value))
        table.add_section()
    return table


def _cell(value: Any) -> Text:
    """Plain text without effect: nothing in a record acts as markup or controls a terminal."""
    if value is None:
        return Text("")
    return Text(f"{value:%Y-%m-%d %H:%M:%S}" if hasattr(value, "strftime") else escaped(str(value)))
