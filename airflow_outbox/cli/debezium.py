"""`airflow-outbox debezium init · check · drop`: an application's Debezium outbox table, without a change of it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import Any

import click
from pydantic import TypeAdapter, ValidationError

from airflow_outbox.cli.groups import Commands
from airflow_outbox.cli.options import clear_errors, configuration, database
from airflow_outbox.debezium.connector_file import read_settings
from airflow_outbox.debezium.finding import DebeziumFinding, DebeziumSeverity
from airflow_outbox.debezium.operating import examine, go_back, switch
from airflow_outbox.debezium.router import ROUTER
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.settings_base import Duration
from airflow_outbox.values.terminal import as_json, escaped

_FAILING = (DebeziumSeverity.REFUSED, DebeziumSeverity.DANGEROUS)
_CONVERTERS = ("key.converter", "value.converter", "header.converter")
_output = click.option("--output", type=click.Choice(["text", "json"]), default="text", show_default=True)
_table = click.option("--table", metavar="NAME", help="The application's table; by default the connector's, or all.")


@dataclass(frozen=True, slots=True)
class _Given:
    """The options that say what the connector is."""

    connector: Path | None
    worker: Path | None
    replaced: Sequence[str]

    def settings(self) -> dict[str, str] | None:
        """The connector's settings; None where nothing was given. Raises ConfigurationError."""
        if self.connector is None and not self.replaced:
            if self.worker is not None:
                raise ConfigurationError("--worker goes with --connector, or with --set")
            return None
        worker = {} if self.worker is None else read_settings(self.worker)
        own = _BARE if self.connector is None else read_settings(self.connector)
        names = [each for each in _CONVERTERS if each not in own]
        lent = {name: value for name, value in worker.items() if any(name.startswith(each) for each in names)}
        return {**lent, **own, **dict(_pair(text) for text in self.replaced)}


_BARE = {"transforms": "outbox", "transforms.outbox.type": ROUTER}


def _pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise ConfigurationError(f"--set {text}: give a connector's setting and its value, such as slot.name=shop")
    return name.strip(), value.strip()


def _of_connector(command: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options that say what the connector is, as one."""

    @click.option(
        "--connector",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The connector's configuration: JSON, YAML, or Java properties.",
    )
    @click.option(
        "--worker",
        type=click.Path(dir_okay=False, path_type=Path),
        help="Its Connect worker's configuration. Its converters count where the connector names none.",
    )
    @click.option(
        "--set",
        "replaced",
        multiple=True,
        metavar="NAME=VALUE",
        help="A setting of the connector, instead of the file's; may be repeated.",
    )
    @wraps(command)
    def with_options(
        config: HarvestConfig, connector: Path | None, worker: Path | None, replaced: Sequence[str], **options: Any
    ) -> None:
        command(config, _Given(connector, worker, replaced), **options)

    return with_options


def _seconds(_: click.Context, parameter: click.Parameter, text: str) -> float:
    try:
        return float(TypeAdapter(Duration).validate_python(text))
    except ValidationError:
        raise click.BadParameter(f"{text!r}: give a duration such as 5s or 1m", param=parameter) from None


_wait = click.option(
    "--wait",
    default="5s",
    show_default=True,
    callback=_seconds,
    help="How long to wait for transactions that write to the table; new writers wait meanwhile.",
)


@click.group(cls=Commands)
def debezium() -> None:
    """Take over the outbox table of a Debezium connector: the application stays as it is."""


@debezium.command("init")
@configuration
@_of_connector
@_table
@_wait
@click.option(
    "--keep-published",
    is_flag=True,
    help="Leave the table in Debezium's publication, so that both publish: for a comparison.",
)
@_output
def init_command(
    config: HarvestConfig, given: _Given, table: str | None, wait: float, keep_published: bool, output: str
) -> None:
    """Stash what is inserted into the table, and let Debezium publish what was inserted before: in one transaction.

    Without --connector, the triggers that are there are brought up to date with their tables.
    """
    with clear_errors(), database(config) as connection:
        done, findings = switch(
            connection, config, settings=given.settings(), table=table, wait=wait, keeps_published=keep_published
        )
    if output == "json":
        click.echo(as_json({"done": done, "findings": _as_values(findings)}))
        return
    for line in done or [f"nothing to do: the tables are stashed into {config.name} already"]:
        click.echo(escaped(line))
    _say(findings)


@debezium.command("check")
@configuration
@_of_connector
@_table
@_output
def check_command(config: HarvestConfig, given: _Given, table: str | None, output: str) -> None:
    """Say what would be lost, published twice, or published otherwise. Changes nothing.

    With --connector, it examines what `init` would make. Without it, it examines the triggers that are there, and
    whether Debezium has published all of its rows. Ends with status 1 when something is dangerous or not possible.
    """
    with clear_errors(), database(config) as connection:
        found = examine(connection, config, settings=given.settings(), table=table)
    if output == "json":
        tables = [
            {"table": each.table, "has_trigger": each.has_trigger, "findings": _as_values(each.findings)}
            for each in found
        ]
        click.echo(as_json(tables))
    else:
        for each in found:
            _say(each.findings)
    if any(finding.severity in _FAILING for each in found for finding in each.findings):
        sys.exit(1)


@debezium.command("drop")
@configuration
@_table
@_wait
@click.option("--stay-out", is_flag=True, help="Don't put the table back into Debezium's publication.")
@_output
def drop_command(config: HarvestConfig, table: str | None, wait: float, stay_out: bool, output: str) -> None:
    """Go back: take the triggers away, and let Debezium publish what is inserted from then on, in one transaction."""
    with clear_errors(), database(config) as connection:
        done = go_back(connection, config, table=table, wait=wait, stays_out=stay_out)
    if output == "json":
        click.echo(as_json({"done": done}))
        return
    for line in done or [f"no table is stashed into {config.name}"]:
        click.echo(escaped(line))


def _say(findings: Sequence[DebeziumFinding]) -> None:
    for finding in findings:
        click.echo(escaped(f"{finding.severity.value}: {finding.text}"))


def _as_values(findings: Sequence[DebeziumFinding]) -> list[dict[str, str]]:
    return [{"severity": finding.severity.value, "text": finding.text} for finding in findings]
