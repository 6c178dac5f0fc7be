"""`airflow-outbox trail`: what operators have asked for."""

from __future__ import annotations

from dataclasses import asdict

import click

from airflow_outbox.cli.numbers import Whole
from airflow_outbox.cli.options import clear_errors, configuration, database
from airflow_outbox.cli.tables import print_rows
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.trail import read_trail
from airflow_outbox.values.terminal import as_json

_COLUMNS = ("asked_at", "asked_by", "on_behalf_of", "action", "matched", "records", "reason")


@click.command()
@configuration
@click.option("--limit", type=Whole(1), default=100, show_default=True, help="Show at most this many requests.")
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
def trail(config: HarvestConfig, limit: int, output: str) -> None:
    """List what operators have asked for, the last request first."""
    with clear_errors(), database(config) as connection:
        found = read_trail(connection, config.name, limit=limit)
    if output == "json":
        click.echo(as_json([asdict(entry) for entry in found]))
    else:
        print_rows([asdict(entry) for entry in found], _COLUMNS, title=f"{len(found)} requests")
