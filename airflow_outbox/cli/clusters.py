"""`airflow-outbox clusters status · detach · attach · reset · promote`: the clusters of an outbox."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import click

from airflow_outbox.cli.answers import answer, as_text_or_json
from airflow_outbox.cli.groups import Commands
from airflow_outbox.cli.numbers import Finite
from airflow_outbox.cli.options import clear_errors, configuration, database, on_behalf_of, say_if_nobody_leads
from airflow_outbox.cli.progress import bars
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.clusters import attach, detach, promote
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.values.fence import AttachHow
from airflow_outbox.values.membership import Membership
from airflow_outbox.values.moments import moment

_wait = click.option(
    "--wait",
    type=Finite(0),
    default=60.0,
    show_default=True,
    help="How many seconds to wait until it counts.",
)


@click.group(cls=Commands)
def clusters() -> None:
    """Show and change the Kafka clusters to which the outbox is published."""


@clusters.command()
@configuration
@as_text_or_json
def status(config: HarvestConfig, output: str) -> None:
    """Show each cluster's part, since when it has it, and why."""
    with clear_errors(), database(config) as connection:
        _show(read_membership(connection, config.name), output)


@clusters.command("detach")
@configuration
@click.argument("cluster")
@click.option("--reason", help="Why; others see it.")
@on_behalf_of
@as_text_or_json
def detach_command(
    config: HarvestConfig, cluster: str, reason: str | None, on_behalf_of: str | None, output: str
) -> None:
    """Go on without a backup. Batches that it misses are kept for it. Needs a role that harvests."""
    with clear_errors(), database(config) as connection:
        _show(detach(connection, config, cluster, reason=reason, on_behalf_of=on_behalf_of), output)


@clusters.command("attach")
@configuration
@click.argument("cluster")
@click.option("--accept", is_flag=True, help="Attach it although it has batches that no other cluster has.")
@_wait
@on_behalf_of
@as_text_or_json
def attach_command(
    config: HarvestConfig, cluster: str, accept: bool, wait: float, on_behalf_of: str | None, output: str
) -> None:
    """Publish to a detached cluster what it has missed, and let it count again. Harvesting goes on meanwhile."""
    _attach(config, cluster, "accept" if accept else None, wait, on_behalf_of, output)


@clusters.command("reset")
@configuration
@click.argument("cluster")
@_wait
@on_behalf_of
@as_text_or_json
def reset_command(config: HarvestConfig, cluster: str, wait: float, on_behalf_of: str | None, output: str) -> None:
    """Let a detached cluster, whose topics were emptied, count from now on. It gets nothing that it has missed."""
    _attach(config, cluster, "reset", wait, on_behalf_of, output)


@clusters.command("promote")
@configuration
@click.argument("cluster")
@click.option("--accept-loss", is_flag=True, help="Promote it although it lacks records that are purged.")
@on_behalf_of
@as_text_or_json
def promote_command(
    config: HarvestConfig, cluster: str, accept_loss: bool, on_behalf_of: str | None, output: str
) -> None:
    """Make another cluster the primary, whether or not the present one is lost. Clusters that can't be reached are
    detached. If no other can be reached, a detached one first gets what it has missed. Needs a role that harvests.
    """
    with clear_errors():
        _show(promote(config, cluster, accept_loss=accept_loss, on_behalf_of=on_behalf_of), output)


def _attach(
    config: HarvestConfig, cluster: str, how: AttachHow | None, wait: float, on_behalf_of: str | None, output: str
) -> None:
    with clear_errors(), database(config) as connection, bars() as tell:
        say_if_nobody_leads(connection, config)
        told = partial(tell, f"batches of {cluster}")
        membership = attach(connection, config, cluster, how=how, patience=wait, on_behalf_of=on_behalf_of, tell=told)
    _show(membership, output)


def _show(membership: Membership, output: str) -> None:
    answer(_lines(membership), {"clusters": _values(membership)}, output=output)


def _lines(membership: Membership) -> Iterator[str]:
    for cluster in membership.clusters:
        line = f"{cluster.name}: {cluster.part} since {moment(cluster.since)}"
        if cluster.reason is not None:
            line += f": {cluster.reason}"
        if membership.attach == cluster.name:
            line += "; it is to be attached"
        yield line


def _values(membership: Membership) -> list[dict[str, object]]:
    return [
        {
            "name": cluster.name,
            "part": cluster.part,
            "since": cluster.since,
            "reason": cluster.reason,
            "is_wanted": membership.attach == cluster.name,
        }
        for cluster in membership.clusters
    ]
