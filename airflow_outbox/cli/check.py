"""`airflow-outbox check · grant`: what is missing or dangerous, and the rights that roles need."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import click
import psycopg

from airflow_outbox.cli.answers import answer, as_text_or_json, say
from airflow_outbox.cli.options import clear_errors, configuration, configuration_of_many, database
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.acls import Acl, as_commands, as_table, principal
from airflow_outbox.operate.check import acls, examine
from airflow_outbox.operate.finding import Severity
from airflow_outbox.operate.many import examine_list, needed_acls_of_list
from airflow_outbox.postgres.errors import reason_of
from airflow_outbox.postgres.schema import ROLES, Role, grant_statements
from airflow_outbox.values.fence import PRIMARY

_COLOURS = {Severity.MISSING: "red", Severity.DANGEROUS: "yellow", Severity.UNCHECKED: "cyan", Severity.NOTE: "cyan"}


@click.command("check")
@configuration_of_many
@click.option(
    "--acls",
    "acl_format",
    type=click.Choice(["table", "kafka-acls"]),
    help="Only print what Kafka's ACLs must allow, as a table or as kafka-acls commands.",
)
@click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="With --acls: a data topic; may be repeated.")
@as_text_or_json
def check_command(config: HarvestConfig, acl_format: str | None, topics: tuple[str, ...], output: str) -> None:
    """Say what is missing or dangerous. Ends with status 1 when something is missing.

    A file may name many outboxes. Then all of them are examined, and their election; `--outbox` examines one as if it
    was harvested by itself.
    """
    if topics and acl_format is None:
        raise click.UsageError("--topic goes with --acls")
    with clear_errors():
        if acl_format is not None:
            _print_acls(config, acl_format, topics, output)
            return
        findings = examine_list(config) if config.outboxes else examine(config)
    if output == "json":
        told = [{"severity": finding.severity.value, "text": finding.text} for finding in findings]
        whose = {"outboxes": config.outboxes} if config.outboxes else {"outbox": str(config.name)}
        answer([], {**whose, "findings": told}, output=output)
    else:
        for finding in findings:
            say(f" {finding.text}", mark=f"{finding.severity.value}:", colour=_COLOURS[finding.severity])
        if not findings:
            say("", mark="all is well", colour="green")
    if any(finding.severity is Severity.MISSING for finding in findings):
        sys.exit(1)


def _print_acls(config: HarvestConfig, acl_format: str, topics: tuple[str, ...], output: str) -> None:
    needed = {PRIMARY: needed_acls_of_list(config, topics)} if config.outboxes else acls(config, topics)
    values = {
        cluster: {"principal": principal(own), "acls": [asdict(acl) for acl in needed[cluster]]}
        for cluster, own in config.by_cluster().items()
    }
    answer(_acl_lines(config, acl_format, needed), values, output=output)


def _acl_lines(config: HarvestConfig, acl_format: str, needed: Mapping[str, list[Acl]]) -> Iterator[str]:
    for cluster, own in config.by_cluster().items():
        whom = principal(own)
        if acl_format == "table":
            yield from [f"cluster {cluster}:"] if config.clusters else []
            yield from as_table(needed[cluster], whom)
        else:
            yield from as_commands(needed[cluster], whom, str(own.kafka["bootstrap.servers"]))


@click.command("grant")
@configuration
@click.option("--run", is_flag=True, help="Run the statements instead of printing them.")
@click.option("--stash", metavar="ROLE", help="May stash records.")
@click.option("--harvest", metavar="ROLE", help="May harvest.")
@click.option("--look", metavar="ROLE", help="May read everything.")
@click.option("--operate", metavar="ROLE", help="May look, pause, hand over, and ask for parked records to be retried.")
@click.option("--job", metavar="ROLE", help="May stash, and commit once under an id, as Spark jobs do.")
@as_text_or_json
def grant_command(config: HarvestConfig, run: bool, output: str, **grantees: str | None) -> None:
    """Print, or run, the statements that give existing roles what they need."""
    wanted: list[tuple[Role, str]] = [(role, grantee) for role in ROLES if (grantee := grantees[role])]
    if not wanted:
        raise click.UsageError("name at least one role: --stash, --harvest, --look, --operate or --job")
    with clear_errors(), database(config) as connection:
        lines = [line for role, grantee in wanted for line in grant_statements(connection, config.name, role, grantee)]
        if run:
            _run(connection, lines)
    answer(lines, {"outbox": str(config.name), "statements": lines, "run": run}, output=output)


def _run(connection: psycopg.Connection[Any], lines: list[str]) -> None:
    try:
        with connection.transaction():
            for line in lines:
                connection.execute(line.encode())
    except psycopg.errors.UndefinedObject as error:
        raise OutboxError(f"nothing was granted: {reason_of(error)}. Create the role first: CREATE ROLE …") from error
    except psycopg.Error as error:
        raise OutboxError(f"nothing was granted: {reason_of(error)}. Run this as the tables' owner") from error
