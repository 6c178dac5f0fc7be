"""`airflow-outbox status --ticket`: is all of a transaction published?"""

from __future__ import annotations

import json
import sys
from typing import Any

import click
import psycopg

from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.published import TicketState, ticket_status
from airflow_outbox.values.terminal import escaped

_NOT_PUBLISHED = 3


def show_ticket(connection: psycopg.Connection[Any], name: OutboxName, ticket: str, *, output: str) -> None:
    """Say how far a ticket's transaction is; end with status 3 unless all of it is published."""
    status = ticket_status(connection, ticket, outbox=located(connection, name).text())
    if output == "json":
        values: dict[str, Any] = {"ticket": str(status.ticket), "state": status.state.value, "left": status.left}
        values |= {"parked": status.parked, "discarded": status.discarded, "reasons": list(status.reasons)}
        click.echo(json.dumps({**values, "prepared": status.prepared, "prepared_for": status.prepared_for}))
    else:
        click.echo(escaped(str(status)))
    if status.state is not TicketState.PUBLISHED:
        sys.exit(_NOT_PUBLISHED)
