"""OutboxPublishedSensor: a task that waits until another task's records are published."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, AirflowSkipException, BaseSensorOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.hooks import lineage
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.links.outbox import OutboxLink
from airflow_outbox.tickets.published import TicketState, ticket_status
from airflow_outbox.triggers.published import OutboxPublishedTrigger
from airflow_outbox.values.records import Ticket

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context
    from airflow.providers.openlineage.extractors import OperatorLineage


class NotPublishedError(OutboxError, AirflowException):
    """The transaction will never be published as a whole, or nobody can tell. The message says why."""


class OutboxPublishedSensor(BaseSensorOperator):
    """Wait until all of a ticket's transaction is published: committed in Postgres and in Kafka.

    `ticket` is what `stash`, `OutboxStashOperator` or `OutboxSparkSubmitOperator` returned, as text: for instance that
    task's output. The result (XCom) is the ticket.

    It occupies no worker slot while it waits. The trigger knows some milliseconds after the commit in Kafka. The task's
    log tells how much is left. `timeout` holds, in seconds, as for other sensors, and ends the task as failed. With
    `soft_fail` or `never_fail` the task is skipped then, and whenever else it would fail. `poke_interval` and `mode`
    have no effect.

    The task fails when

    - its transaction was rolled back, or nobody can tell about its ticket;
    - any of its records is parked. With `wait_for_parked` it waits until they are published, and fails only when one is
      discarded.

    The role needs what `airflow-outbox grant` gives any role.

    Raises ConfigurationError, when the Dag is read, for `deferrable=False`.
    """

    template_fields: Sequence[str] = ("ticket", "postgres_conn_id", "outbox")
    operator_extra_links: Collection[BaseOperatorLink] = (OutboxLink(),)
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        ticket: Any,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        outbox: str = "outbox",
        wait_for_parked: bool = False,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not deferrable:
            raise ConfigurationError(
                "OutboxPublishedSensor waits in the triggerer, never in a worker. Leave deferrable out, and run a "
                "triggerer"
            )
        self.ticket = ticket
        self.postgres_conn_id = postgres_conn_id
        self.outbox = outbox
        self.wait_for_parked = wait_for_parked

    def execute(self, context: Context) -> str:
        """Look once, and hand over to the trigger unless that is enough. Raises NotPublishedError, or
        AirflowSkipException as `soft_fail` and `never_fail` say.
        """
        try:
            return self._look()
        except AirflowException as error:
            # BaseSensorOperator handles errors after the deferral in the same way.
            if self.soft_fail or self.never_fail:
                raise AirflowSkipException(str(error)) from error
            raise

    def _look(self) -> str:
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        try:
            ticket = Ticket.parse(str(self.ticket))
            with hook.transaction() as connection:
                status = ticket_status(connection, ticket, outbox=self.outbox)
        except OutboxError as error:
            raise NotPublishedError(str(error)) from error
        self.log.info(str(status))
        if status.state is TicketState.PUBLISHED:
            return str(ticket)
        if status.state is TicketState.PARKED and (status.discarded or not self.wait_for_parked):
            raise NotPublishedError(str(status))
        trigger = OutboxPublishedTrigger(
            ticket=str(ticket),
            postgres_conn_id=self.postgres_conn_id,
            outbox=self.outbox,
            has_committed=status.state in (TicketState.WAITING, TicketState.PARKED),
            wait_for_parked=self.wait_for_parked,
        )
        timeout = timedelta(seconds=self.timeout)
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timeout)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> str:
        """Return the ticket. Raises NotPublishedError for one that will not be published."""
        if event["status"] != "published":
            raise NotPublishedError(event["error"])
        self.log.info("all of the transaction is published")
        return str(event["ticket"])

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """The outbox's table, which this task reads. Raises PostgresError, OutboxMissingError."""
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        return lineage.lineage_of(self, inputs=[lineage.TableLocation.find(hook).dataset])
