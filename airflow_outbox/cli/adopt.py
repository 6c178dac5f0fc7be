"""`airflow-outbox adopt`: go on after a restore, a fail-over, or a ledger that was lost."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from airflow_outbox.adopt import adopt
from airflow_outbox.cli.common import clear_errors, config_file
from airflow_outbox.harvest.config import HarvestConfig


@click.command("adopt")
@config_file
@click.option("--reason", required=True, help="Why; it is recorded.")
@click.option(
    "--nothing-lost",
    is_flag=True,
    help="The database holds all that it ever acknowledged, as after a planned switch-over: purge what the ledger says "
    "is published. Without it, such records are published once more.",
)
@click.option("--yes", is_flag=True, help="Accept without being asked.")
def adopt_command(path: Path, reason: str, nothing_lost: bool, yes: bool) -> None:
    """Accept that database and ledger are not of one history, and let harvesting go on.

    To be run by the owner of the tables, who may write the sequence.
    """

    def accept(differences: Sequence[str]) -> bool:
        for difference in differences:
            click.echo(f"- {difference}")
        return yes or click.confirm("Accept this, and count every record that is in the outbox now as unpublished?")

    with clear_errors():
        adoption = adopt(HarvestConfig.from_yaml(path), reason=reason, nothing_lost=nothing_lost, accept=accept)
    if adoption is None:
        click.echo("nothing was adopted")
    else:
        click.echo(f"adopted as incarnation {adoption.incarnation}; harvesting goes on within seconds")
