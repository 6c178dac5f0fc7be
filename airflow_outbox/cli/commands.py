"""`airflow-outbox` and `init · check · grant · harvest`: thin commands over the rooms that do the work."""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn

import click
import psycopg

from airflow_outbox import __version__
from airflow_outbox.audit.command import audit_command
from airflow_outbox.audit.in_process import audit
from airflow_outbox.cli.adopt import adopt_command
from airflow_outbox.cli.operate import handover, pause, pump_command, resume
from airflow_outbox.cli.options import clear_errors, config_file, database
from airflow_outbox.cli.parked import parked
from airflow_outbox.cli.replay import replay_command
from airflow_outbox.cli.status import status
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.events import NdjsonEvents
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.process import Until, harvest
from airflow_outbox.operate.acls import as_commands, as_table, principal
from airflow_outbox.operate.check import acls, examine
from airflow_outbox.operate.finding import Severity
from airflow_outbox.postgres.schema import ROLES, Role, cost_of_transaction_id, grant_statements, init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.terminal import escaped


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="airflow-outbox")
def main() -> None:
    """Get events out of Postgres into Kafka: make, examine and harvest an outbox."""


for operation in (
    status,
    pause,
    resume,
    handover,
    parked,
    replay_command,
    pump_command,
    adopt_command,
    audit_command(audit),
):
    main.add_command(operation)


@main.command()
@config_file
@click.option(
    "--key-type",
    default="varchar(100)",
    show_default=True,
    help="The keys' type in a new table: varchar(n), text or bytea.",
)
@click.option(
    "--value-type",
    default="varchar(10000)",
    show_default=True,
    help="The values' type in a new table: varchar(n), text or bytea.",
)
@click.option(
    "--header-type", default="text", show_default=True, help="The header values' type in a new table: text or bytea."
)
@click.option(
    "--transaction-id", is_flag=True, help="Add the column transaction_id to a table that goharvest made, too."
)
def init(path: Path, key_type: str, value_type: str, header_type: str, transaction_id: bool) -> None:
    """Create the outbox's tables and its own topics, or bring them up to date. Existing things stay as they are."""
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            done = init_outbox(
                connection,
                config.name,
                key_type=key_type,
                value_type=value_type,
                header_type=header_type,
                transaction_id=transaction_id,
                archive_retention=config.archive_retention if config.archives else None,
            )
            cost = cost_of_transaction_id(connection, config.name)
            identity = OutboxTable(connection, config.name).identity()
        names = KafkaNames.of(config, identity.outbox_id)
        done += [f"created topic {topic}" for topic in make_internal_topics(config, names)]
        for line in done or [f"{config.name} was already complete"]:
            click.echo(line)
        if cost is not None:
            click.echo(f"the column transaction_id is missing; `init --transaction-id` adds it by {cost}")


@main.command()
@config_file
@click.option(
    "--acls",
    "acl_format",
    type=click.Choice(["table", "kafka-acls"]),
    help="Only print what Kafka's ACLs must allow, as a table or as kafka-acls commands.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="With --acls: a data topic; may be repeated.")
def check(path: Path, acl_format: str | None, topics: tuple[str, ...]) -> None:
    """Say what is missing or dangerous. Ends with status 1 when something is missing."""
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        if acl_format is not None:
            _print_acls(config, acl_format, topics)
            return
        findings = examine(config)
    for finding in findings:
        click.echo(escaped(f"{finding.severity.value}: {finding.text}"))
    if not findings:
        click.echo("all is well")
    if any(finding.severity is Severity.MISSING for finding in findings):
        sys.exit(1)


def _print_acls(config: HarvestConfig, acl_format: str, topics: tuple[str, ...]) -> None:
    whom, needed = principal(config), acls(config, topics)
    if acl_format == "table":
        lines = as_table(needed, whom)
    else:
        lines = as_commands(needed, whom, str(config.kafka["bootstrap.servers"]))
    for line in lines:
        click.echo(line)


@main.command()
@config_file
@click.option("--run", is_flag=True, help="Run the statements instead of printing them.")
@click.option("--stash", metavar="ROLE", help="May stash records.")
@click.option("--harvest", metavar="ROLE", help="May harvest.")
@click.option("--look", metavar="ROLE", help="May read everything.")
@click.option("--operate", metavar="ROLE", help="May look, pause, hand over, and ask for parked records to be retried.")
@click.option("--job", metavar="ROLE", help="May stash, and commit once under an id, as Spark jobs do.")
def grant(path: Path, run: bool, **grantees: str | None) -> None:
    """Print, or run, the statements that give existing roles what they need."""
    wanted: list[tuple[Role, str]] = [(role, grantee) for role in ROLES if (grantee := grantees[role])]
    if not wanted:
        raise click.UsageError("name at least one role: --stash, --harvest, --look, --operate or --job")
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        with database(config) as connection:
            lines = [
                line for role, grantee in wanted for line in grant_statements(connection, config.name, role, grantee)
            ]
            if run:
                _run(connection, lines)
    for line in lines:
        click.echo(line)


def _run(connection: psycopg.Connection[Any], lines: list[str]) -> None:
    try:
        with connection.transaction():
            for line in lines:
                connection.execute(line.encode())
    except psycopg.Error as error:
        raise OutboxError(
            f"nothing was granted: {error}. Create the role first, and run this as the tables' owner"
        ) from error


@main.command("harvest")
@config_file
@click.option("--until", default="forever", show_default=True, help="forever, drained, or an ISO 8601 time.")
def harvest_command(path: Path, until: str) -> None:
    """Harvest without Airflow, until SIGTERM. Events go to stdout as NDJSON."""
    with clear_errors():
        config, end = HarvestConfig.from_yaml(path), Until.parse(until)
        asyncio.run(_harvest(config, end))
    _end()


async def _harvest(config: HarvestConfig, until: Until) -> None:
    stop = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop.set)
    await harvest(
        config, until=until, events=NdjsonEvents(sys.stdout), stop=stop, grace=config.limits.heartbeat_timeout
    )


def _end() -> NoReturn:
    """End at once, even while threads wait for servers that do not answer."""
    sys.stdout.flush()
    os._exit(0)
