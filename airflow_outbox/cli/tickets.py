"""`airflow-outbox status --ticket`: is all of a transaction published?"""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import psycopg

from airflow_outbox.errors import PostgresError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.published import TicketState, TicketStatus, ticket_status
from airflow_outbox.values.membership import Membership
from airflow_outbox.values.moments import moment
from airflow_outbox.values.terminal import escaped

_NOT_PUBLISHED = 3


def show_ticket(connection: psycopg.Connection[Any], name: OutboxName, ticket: str, *, output: str) -> None:
    """Say how far a ticket's transaction is, and on which of several clusters; end with status 3 unless all of it is
    published.
    """
    status = ticket_status(connection, ticket, outbox=located(connection, name).text())
    membership = _membership(connection, name)
    if output == "json":
        values: dict[str, Any] = {"ticket": str(status.ticket), "state": status.state.value, "left": status.left}
        values |= {"parked": status.parked, "discarded": status.discarded, "reasons": list(status.reasons)}
        values |= {"prepared": status.prepared, "prepared_for": status.prepared_for}
        values |= {"published_on": list(status.clusters)}
        click.echo(json.dumps({**values, "clusters": None if membership is None else dict(membership.parts)}))
    else:
        where = ""
        if membership is not None and status.state is TicketState.PUBLISHED:
            where = elsewhere(status, membership)
        click.echo(escaped(f"{status}{where}"))
    if status.state is not TicketState.PUBLISHED:
        sys.exit(_NOT_PUBLISHED)


def elsewhere(status: TicketStatus, membership: Membership) -> str:
    """Return what is to be said of several clusters beside the status; nothing where there is one cluster. The status
    names those that have all of it, if there are more than one.
    """
    if len(membership.clusters) < 2:
        return ""
    where = f" on cluster {status.clusters[0]}" if len(status.clusters) == 1 else ""
    lacking = [
        f". Cluster {cluster.name} {'does not count' if cluster.part == 'owed' else 'counts'} since "
        f"{moment(cluster.since)}, and may lack it"
        for cluster in membership.clusters
        if cluster.name not in status.clusters
    ]
    return where + "".join(lacking)


def _membership(connection: psycopg.Connection[Any], name: OutboxName) -> Membership | None:
    """Return which clusters count; None where the role may not look, as one that only stashes."""
    try:
        return read_membership(connection, name)
    except PostgresError as error:
        if isinstance(error.__cause__, psycopg.errors.InsufficientPrivilege):
            return None
        raise
