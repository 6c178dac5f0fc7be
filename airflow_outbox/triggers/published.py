"""OutboxPublishedTrigger: waits until all of a ticket's transaction is published."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_outbox.errors import OutboxError, ParkedError
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.listener import listener
from airflow_outbox.tickets.published import TicketState
from airflow_outbox.values.records import Ticket


class OutboxPublishedTrigger(BaseTrigger):
    """Wait until all of a ticket's transaction is published, and say so in one event.

    The event is `{"status": "published", "ticket": …}`, or `{"status": "failed", "error": …}` when it never will be, or
    nobody can tell. The task's log shows the progress every ten seconds while it changes.

    All triggers of a triggerer that wait for outboxes of one database share one connection to it, and a few statements
    a second. They wait for a database that is away, and read Airflow's connection again meanwhile: its password may be
    new. After a triggerer's death another one goes on. `has_committed` says that the transaction was known to have
    committed, which saves a question at first. A parked record fails the trigger or (`wait_for_parked`) is waited for;
    a discarded one fails it.
    """

    def __init__(
        self,
        *,
        ticket: str,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        outbox: str = "outbox",
        has_committed: bool = False,
        wait_for_parked: bool = False,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.ticket = ticket
        self.postgres_conn_id = postgres_conn_id
        self.outbox = outbox
        self.has_committed = has_committed
        self.wait_for_parked = wait_for_parked

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_outbox.triggers.published.OutboxPublishedTrigger",
            {
                "ticket": self.ticket,
                "postgres_conn_id": self.postgres_conn_id,
                "outbox": self.outbox,
                "has_committed": self.has_committed,
                "wait_for_parked": self.wait_for_parked,
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            await self._published()
        except (OutboxError, AirflowNotFoundException) as error:
            yield TriggerEvent({"status": "failed", "error": str(error)})
        else:
            yield TriggerEvent({"status": "published", "ticket": self.ticket})

    async def _published(self) -> None:
        """Return when all is published. Raises ParkedError."""
        name, ticket = OutboxName.parse(self.outbox), Ticket.parse(self.ticket)
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        listening = await listener(hook.data_source)
        said = None
        async with aclosing(listening.statuses(name, ticket, has_committed=self.has_committed)) as statuses:
            async for status in statuses:
                text, is_parked = str(status), status.state is TicketState.PARKED
                if is_parked and (status.discarded or not self.wait_for_parked):
                    raise ParkedError(text)
                if text != said:
                    is_odd = is_parked or status.state in (TicketState.PREPARED, TicketState.HALTED)
                    log = self.log.warning if is_odd else self.log.info
                    log(text)
                    said = text
