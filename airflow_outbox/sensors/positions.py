"""OutboxPositionsSensor: a task that waits until a consumer group may move to another cluster."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

from airflow.providers.common.compat.sdk import AirflowException, BaseSensorOperator
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.hooks.outbox import check_settings
from airflow_outbox.links.outbox import OutboxLink
from airflow_outbox.triggers.positions import OutboxPositionsTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context


class PositionsError(OutboxError, AirflowException):
    """Nobody can tell whether the group may move. The message says why."""


class OutboxPositionsSensor(BaseSensorOperator):
    """Wait until a consumer group may move to the cluster `to`: until it has no members, and its position is there.

    An earlier task stops the group's consumers, a later one starts them at the other cluster. A group that goes on at
    `to` already may move at once. `kafka_conn_ids` has a Kafka connection for each cluster's name, as the harvest has
    them. `settings` are the harvester's, as for OutboxHarvestSensor; `positions.enabled` is set by itself. The result
    (XCom) is the group.

    It occupies no worker slot while it waits: a small process beside the triggerer looks every second. It commits
    nothing: the replicator does. The task's log says what it waits for. `timeout` holds as for other sensors;
    `poke_interval` and `mode` have no effect.

    Raises ConfigurationError, when the Dag is read, for settings that can't be right, and for `deferrable=False`.
    """

    template_fields: Sequence[str] = ("group", "to", "postgres_conn_id", "outbox")
    operator_extra_links: Collection[BaseOperatorLink] = (OutboxLink(),)
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        group: str,
        to: str,
        kafka_conn_ids: Mapping[str, str],
        postgres_conn_id: str = PostgresHook.default_conn_name,
        outbox: str = "outbox",
        settings: Mapping[str, Any] | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not deferrable:
            raise ConfigurationError(
                "OutboxPositionsSensor waits in the triggerer, never in a worker. Leave deferrable out, and run a "
                "triggerer"
            )
        self.group = group
        self.to = to
        self.kafka_conn_ids = dict(kafka_conn_ids)
        self.postgres_conn_id = postgres_conn_id
        self.outbox = outbox
        given = dict(settings or {})
        self.settings = {**given, "positions": {**given.get("positions", {}), "enabled": True}}
        check_settings(self.settings, clusters=self.kafka_conn_ids)

    def execute(self, context: Context) -> None:
        """Hand over to the trigger."""
        trigger = OutboxPositionsTrigger(
            group=self.group,
            to=self.to,
            kafka_conn_ids=self.kafka_conn_ids,
            postgres_conn_id=self.postgres_conn_id,
            outbox=self.outbox,
            settings=self.settings,
        )
        self.defer(trigger=trigger, method_name="execute_complete", timeout=timedelta(seconds=self.timeout))

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> str:
        """Return the group. Raises PositionsError where nobody can tell."""
        if event["status"] != "ready":
            raise PositionsError(event["error"])
        self.log.info("group %s may go on at %s", self.group, self.to)
        return str(event["group"])
