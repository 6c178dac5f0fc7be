"""`airflow-outbox adopt`: go on after a restore, a fail-over or a lost ledger; or as an outbox of its own."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import click

from airflow_outbox.cli.options import clear_errors, config_file
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.adopt import adopt
from airflow_outbox.operate.new_outbox import Copied, make_new_outbox
from airflow_outbox.values.terminal import escaped


@click.command("adopt")
@config_file
@click.option("--reason", required=True, help="The reason, which is recorded.")
@click.option(
    "--nothing-lost",
    is_flag=True,
    help="The database holds all that it ever acknowledged, as after a planned switch-over: purge what the ledger says "
    "is published. Without this option, such records are published again.",
)
@click.option(
    "--as-new-outbox",
    is_flag=True,
    help="This database is a copy, and the original is still harvested: give the copy its own outbox id, and so its "
    "own ledger, group and transactional ids. Stop the copy's harvesters first.",
)
@click.option("--yes", is_flag=True, help="Accept without asking.")
def adopt_command(path: Path, reason: str, nothing_lost: bool, as_new_outbox: bool, yes: bool) -> None:
    """Accept that database and ledger are not of one history, and let harvesting go on.

    To be run by the owner of the tables, who may write the sequence.
    """
    if as_new_outbox and nothing_lost:
        raise click.UsageError("give either --nothing-lost or --as-new-outbox: a new outbox has no ledger yet")
    with clear_errors():
        config = HarvestConfig.from_yaml(path)
        if as_new_outbox:
            _become_new(config, path, reason=reason, yes=yes)
        else:
            _adopt(config, reason=reason, nothing_lost=nothing_lost, yes=yes)


def _adopt(config: HarvestConfig, *, reason: str, nothing_lost: bool, yes: bool) -> None:
    def accept(differences: Sequence[str]) -> bool:
        for difference in differences:
            click.echo(escaped(f"- {difference}"))
        click.echo(
            "If this database is a copy and the original is still harvested, don't accept: run "
            "`airflow-outbox adopt --as-new-outbox`."
        )
        return yes or click.confirm("Accept this, and count every record that is in the outbox now as unpublished?")

    adoption = adopt(config, reason=reason, nothing_lost=nothing_lost, accept=accept)
    if adoption is None:
        click.echo("nothing was adopted")
    else:
        click.echo(f"adopted as incarnation {adoption.incarnation}; harvesting continues within seconds")


def _become_new(config: HarvestConfig, path: Path, *, reason: str, yes: bool) -> None:
    def accept(found: Copied) -> bool:
        click.echo(f"- the outbox gets a new id in place of {found.outbox_id}, and refuses tickets of that outbox")
        click.echo(f"- {found.waiting} records wait in it, and {found.parked} are parked: all count as unpublished")
        click.echo(
            f"- they will be published to {found.brokers}, where the original may publish them, too. Before you "
            "start a harvester, delete those that must not be published twice"
        )
        for name in found.named:
            click.echo(f"- the configuration sets {name}: the original must use another one")
        return yes or click.confirm("Make this database an outbox of its own?")

    done = make_new_outbox(config, reason=reason, accept=accept)
    if done is None:
        click.echo("nothing was changed")
        return
    outbox_id, names = done
    click.echo(
        f"this is outbox {outbox_id} now. Run `airflow-outbox init -f {path}`, which creates the topics "
        f"{names.leader_topic} and {names.ledger_topic}. Then start its harvesters"
    )
