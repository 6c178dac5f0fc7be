"""`airflow-outbox parked list · show · retry · discard`: look at parked records, and ask the leader to act on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import wraps
from typing import Any

import click
from rich.table import Table
from rich.text import Text

from airflow_outbox.cli.answers import answer, as_text_or_json
from airflow_outbox.cli.groups import Commands
from airflow_outbox.cli.numbers import Whole
from airflow_outbox.cli.options import clear_errors, configuration, database, on_behalf_of
from airflow_outbox.cli.tables import cell, print_rows, print_table
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.parked_requests import BEHIND, REFUSED, Choice, ParkedRequests, shown
from airflow_outbox.values.refusals import Cause
from airflow_outbox.values.terminal import as_json, as_yaml

_LISTED = ("id", "topic", "key", "shard", "cause", "reason", "attempts", "parked_at", "retry_at", "requested")
_LISTED_DISCARDED = (
    "id",
    "topic",
    "key",
    "shard",
    "cause",
    "discarded_at",
    "requested_by",
    "request_reason",
    "purged_at",
)

_NONE_WAITS = "no parked record waits, so nothing was asked"

Command = Callable[..., None]
ParkedItem = Mapping[str, Any]


def _choosing(command: Command) -> Command:
    """Add the options that select records. The command gets a Choice, None where nothing was given."""

    @wraps(command)
    def chosen(
        *arguments: Any,
        topic: str | None,
        key: str | None,
        cause: str | None,
        ids: tuple[int, ...],
        everything: bool,
        **others: Any,
    ) -> None:
        given = everything or bool(ids) or any(each is not None for each in (topic, key, cause))
        with clear_errors():
            choice = Choice(topic=topic, key=key, cause=cause, ids=ids, everything=everything) if given else None
        command(*arguments, choice=choice, **others)

    for option in (
        click.option("--all", "everything", is_flag=True, help="All parked records."),
        click.option(
            "--id", "ids", type=Whole(0), multiple=True, help="The record with this id in the outbox; may be repeated."
        ),
        click.option(
            "--cause",
            type=click.Choice([*(cause.value for cause in Cause), REFUSED, BEHIND]),
            help=f"Records refused for this cause; {REFUSED}: for any, {BEHIND}: those that wait behind others.",
        ),
        click.option("--key", help="Records of this key; in a BYTEA column, \\x and hexadecimal digits, or text."),
        click.option("--topic", help="Records of this topic."),
    ):
        chosen = option(chosen)
    return chosen


def _showing(command: Command) -> Command:
    """Add the options for what is shown, and how much of it."""
    formats = click.Choice(["table", "json", "yaml"])
    most = Whole(1)
    command = click.option(
        "--limit", type=most, default=1000, show_default=True, help="Show at most this many records."
    )(command)
    return click.option("--output", type=formats, default="table", show_default=True)(command)


def _required(choice: Choice | None) -> Choice:
    return choice or Choice()  # which says what to give


@click.group(cls=Commands)
def parked() -> None:
    """Look at records that could not be published and what waits behind them; retry or discard them."""


@parked.command("list")
@configuration
@_choosing
@_showing
@click.option("--discarded", is_flag=True, help="List discarded records instead of waiting ones.")
def list_command(config: HarvestConfig, choice: Choice | None, output: str, limit: int, discarded: bool) -> None:
    """List parked records in their order, without their contents; all of them unless some are named.

    Published records that Postgres would not delete come last. They are tried again by themselves.
    """
    with clear_errors():
        chosen, choice = choice is not None, choice or Choice(everything=True)
        with database(config) as connection:
            requests = ParkedRequests(connection, config.name)
            found = requests.listed(choice, discarded=discarded, limit=limit + 1)
            if not discarded:
                found += requests.undeleted(choice, limit=limit + 1)
    columns = _LISTED_DISCARDED if discarded else _LISTED
    _print(_cut(found, limit), output, lambda rows: _side_by_side(rows, columns))
    if not found and chosen and output == "table":
        click.echo("none matches. Without these options, all are listed", err=True)


@parked.command("show")
@configuration
@_choosing
@_showing
def show_command(config: HarvestConfig, choice: Choice | None, output: str, limit: int) -> None:
    """Show parked and discarded records whole, with value and headers."""
    with clear_errors():
        choice = _required(choice)
        with database(config) as connection:
            found = ParkedRequests(connection, config.name).whole(choice, limit=limit + 1)
        if not found:
            raise ConfigurationError("no parked record matches. `airflow-outbox parked list` shows all that are parked")
    _print(_cut(found, limit), output, _one_below_the_other)


@parked.command("retry")
@configuration
@_choosing
@on_behalf_of
@as_text_or_json
def retry_command(config: HarvestConfig, choice: Choice | None, on_behalf_of: str | None, output: str) -> None:
    """Ask the leader to try records again, each topic and key from its first record on."""
    with clear_errors():
        choice = _required(choice)
        with database(config) as connection:
            asked = _found(
                ParkedRequests(connection, config.name).ask("retry", choice, on_behalf_of=on_behalf_of), choice
            )
    done = f"asked the leader to retry {asked} records; it does so within seconds. `parked list` shows what is left"
    done = done if asked else _NONE_WAITS
    answer([done], {"request": "retry", "records": asked}, output=output)


@parked.command("discard")
@configuration
@_choosing
@click.option("--reason", help="The reason, which is kept with the record.")
@click.option("--purge", is_flag=True, help="Empty records that were discarded before; a note that they were stays.")
@on_behalf_of
@as_text_or_json
def discard_command(
    config: HarvestConfig, choice: Choice | None, reason: str | None, purge: bool, on_behalf_of: str | None, output: str
) -> None:
    """Ask the leader to give records up, so that the next of their topic and key can be published."""
    if purge == bool(reason):
        raise click.UsageError("give --reason to discard records, or --purge to empty those that were discarded")
    with clear_errors():
        choice = _required(choice)
        with database(config) as connection:
            requests = ParkedRequests(connection, config.name)
            if purge:
                count = requests.forget(choice, on_behalf_of=on_behalf_of)
            else:
                count = _found(requests.ask("discard", choice, reason=reason, on_behalf_of=on_behalf_of), choice)
    done = f"asked the leader to discard {count} records; it does so within seconds" if count else _NONE_WAITS
    if purge:
        done = f"emptied {count} discarded records; the notes of who discarded them, when and why stay"
    answer([done], {"request": "purge" if purge else "discard", "records": count}, output=output)


def _found(count: int, choice: Choice) -> int:
    """Return how many records were meant. It is an error if none of the named records was."""
    if not count and not choice.everything:
        raise ConfigurationError("no waiting parked record matches. `airflow-outbox parked list` shows those that wait")
    return count


def _cut(found: Sequence[ParkedItem], limit: int) -> Sequence[ParkedItem]:
    if len(found) > limit:
        click.echo(f"only the first {limit} records are shown. Raise --limit to see more", err=True)
    return found[:limit]


def _print(found: Sequence[Mapping[str, Any]], output: str, show: Callable[[Sequence[Any]], None]) -> None:
    rows = [{name: shown(value) for name, value in row.items()} for row in found]
    if output == "json":
        click.echo(as_json(rows))
    elif output == "yaml":
        click.echo(as_yaml(rows))
    else:
        show(rows)


def _side_by_side(rows: Sequence[Mapping[str, Any]], columns: Sequence[str]) -> None:
    if all(row["shard"] is None for row in rows):  # there is only one
        columns = [name for name in columns if name != "shard"]
    print_rows(rows, columns, title=f"{len(rows)} records")


def _one_below_the_other(rows: Sequence[Mapping[str, Any]]) -> None:
    table = Table(show_header=False)
    for row in rows:
        for name, value in row.items():
            table.add_row(Text(name.replace("_", " ")), cell(value))
        table.add_section()
    print_table(table)
