"""The command of an audit, run here or on Spark: its options, and its report as a table, JSON or YAML."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click
from rich.console import Console
from rich.table import Table
from rich.text import Text

from airflow_outbox.audit.findings import AuditReport, FindingKind
from airflow_outbox.audit.run import AuditRequest
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.config_option import configuration
from airflow_outbox.values.terminal import as_json, as_yaml, escaped

Audit = Callable[[HarvestConfig, AuditRequest], AuditReport]

_WIDTH_IN_FILES = 250
_NOT_FAULTS = (
    ("waiting", "still in the outbox, or parked"),
    ("expired", "Kafka may have removed them"),
    ("later", "may have been stashed while the audit ran"),
)


def audit_command(run: Audit) -> click.Command:
    """Return the command that audits by `run`, shows the report, and ends with status 0 only if all is well."""

    @click.command("audit")
    @configuration
    @click.option("--table", required=True, help="The table of what was stashed, with the outbox's columns and ids.")
    @click.option("--topic", "topics", multiple=True, metavar="TOPIC", help="Only this topic; may be repeated.")
    @click.option(
        "--allow",
        "allowed",
        multiple=True,
        type=click.Choice([kind.value for kind in FindingKind if kind is not FindingKind.FOREIGN]),
        help="Don't count this kind as a fault; may be repeated.",
    )
    @click.option(
        "--exclusive", is_flag=True, help="Nobody else writes to the topics: count foreign records as faults."
    )
    @click.option(
        "--ignore-header", "ignored", multiple=True, metavar="NAME", help="Ignore this header; may be repeated."
    )
    @click.option(
        "--examples",
        type=click.IntRange(0, 1_000_000),
        default=5,
        show_default=True,
        help="How many findings of each kind to show.",
    )
    @click.option("--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
    def audit(
        config: HarvestConfig,
        table: str,
        topics: tuple[str, ...],
        allowed: tuple[str, ...],
        exclusive: bool,
        ignored: tuple[str, ...],
        examples: int,
        output: str,
    ) -> None:
        """Compare a table of what was stashed with the topics. Ends with status 0 only if all is well."""
        request = AuditRequest(
            table=table,
            topics=topics,
            allowed=frozenset(FindingKind(name) for name in allowed)
            | (frozenset() if exclusive else {FindingKind.FOREIGN}),
            ignored_headers=frozenset(ignored),
            examples=examples,
        )
        try:
            report = run(config, request)
        except OutboxError as error:
            raise click.ClickException(str(error)) from error
        _show(report, output)
        if not report.is_well:
            sys.exit(1)

    return audit


def _show(report: AuditReport, output: str) -> None:
    if output == "json":
        click.echo(as_json(report.as_dict()))
    elif output == "yaml":
        click.echo(as_yaml(report.as_dict()), nl=False)
    else:
        _show_table(report)


def _show_table(report: AuditReport) -> None:
    console = Console(highlight=False)
    if not console.is_terminal:
        console.width = _WIDTH_IN_FILES
    found = report.findings
    table = Table("finding", "records", "", title=Text(escaped(f"{report.table} and {', '.join(report.topics)}")))
    table.add_row("stashed", str(found.stashed), "")
    table.add_row("in Kafka", str(found.arrived), "")
    for kind in FindingKind:
        verdict = "a fault" if kind in report.faults else "allowed" if found.of(kind) else ""
        table.add_row(kind.value, str(found.of(kind)), verdict)
    for name, why in _NOT_FAULTS:
        count = getattr(found, name)
        table.add_row(name, str(count), why if count else "")
    console.print(table)
    for example in report.examples:
        where = [f"topic {example.topic}"] if example.topic else []
        where += [f"key {example.key}"] if example.key is not None else []
        where += [f"shard {example.shard}"] if example.shard is not None else []
        where += [f"partition {example.partition}", f"offset {example.offset}"] if example.offset is not None else []
        place = f" ({', '.join(where)})" if where else ""
        console.print(escaped(f"{example.kind.value}: {example.what}{place}"), markup=False)
    console.print("all is well" if report.is_well else f"found: {', '.join(report.faults)}")
