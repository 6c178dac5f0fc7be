"""OutboxHarvestSensor: a task that harvests an outbox for as long as it is deferred."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import AirflowException, BaseSensorOperator, XComArg
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_outbox.errors import ConfigurationError, HarvestProcessError
from airflow_outbox.harvest.process import Until
from airflow_outbox.hooks import lineage
from airflow_outbox.hooks.outbox import OutboxHook, check_settings
from airflow_outbox.triggers.alerts import check_path
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import Context
    from airflow.providers.openlineage.extractors import OperatorLineage


class HarvestFailedError(HarvestProcessError, AirflowException):
    """The harvest could not go on. The message says why, and the task's log tells the story."""


class OutboxHarvestSensor(BaseSensorOperator):
    """Harvest an outbox until `until`: `"forever"`, `"drained"` (all that is committed is published), or a time.

    It occupies no worker slot while it harvests: the triggerer runs a process for it. Several such tasks, in any
    deployments, stand by for one another; one of them publishes. A time is a datetime or ISO 8601 text, UTC unless it
    says otherwise. The result (XCom) is `{"reason": "drained" | "time", "published": records}`; while it harvests, the
    XCom `progress` shows how far it is.

    Like any running task, it goes on when its Dag is paused. To end it, mark it as success or failed.

    `settings` are more of the harvester's configuration (`limits`, `leader_topic`, `kafka_producer`, …), and not
    secret. Set `retries`: a task that fails because Postgres or Kafka were away when it started is then tried again.
    `timeout`, `poke_interval` and `mode` of other sensors have no effect here; `soft_fail` and `never_fail` do.

    `alert_callback` is the import path of a function, `my_package.alerts.tell`. The triggerer calls it when records are
    parked, retried or discarded, with a mapping: the event as the reference has it, and the `outbox`.

    Raises ConfigurationError, when the Dag is read, for settings that can't be right and for `deferrable=False`.
    """

    template_fields: Sequence[str] = ("postgres_conn_id", "kafka_conn_id", "outbox", "until")
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        kafka_conn_id: str = KafkaBaseHook.default_conn_name,
        outbox: str = "outbox",
        until: str | datetime = "forever",
        settings: Mapping[str, Any] | None = None,
        alert_callback: str | None = None,
        deferrable: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not deferrable:
            problem = "OutboxHarvestSensor harvests in the triggerer, never in a worker"
            raise ConfigurationError(f"{problem}. Leave deferrable out, and run a triggerer")
        self.postgres_conn_id = postgres_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.outbox = outbox
        self.until = until
        self.settings = dict(settings or {})
        self.alert_callback = check_path(alert_callback)
        self._topics: Iterable[str] = ()  # as far as the trigger has told
        check_settings(self.settings, outbox="outbox" if _is_template(outbox) else outbox)
        if not _is_template(until):
            _until_text(until)

    def execute(self, context: Context) -> None:
        """Hand over to the trigger."""
        trigger = OutboxHarvestTrigger(
            postgres_conn_id=self.postgres_conn_id,
            kafka_conn_id=self.kafka_conn_id,
            outbox=self.outbox,
            until=_until_text(self.until),
            settings=self.settings,
            emit="end",
            alert_callback=self.alert_callback,
        )
        # No timeout: `until` ends a harvest. A sensor's own default of a week would end one that is to go on for ever.
        self.defer(trigger=trigger, method_name="execute_complete", timeout=None)

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """Return the summary of a harvest that has ended. Raises HarvestFailedError for one that could not go on."""
        if event["status"] != "ended":
            raise HarvestFailedError(event["error"])
        self._topics = event.get("topics", ())
        self.log.info("the harvest has ended (%s): %s records published", event["reason"], event["published"])
        return {"reason": event["reason"], "published": event["published"]}

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any]:
        """The outbox's table, and the topics that it was published to so far: a harvest that never ends tells no more.

        Raises PostgresError, OutboxMissingError, ConfigurationError.
        """
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        table = lineage.TableLocation.find(hook).dataset
        topics = {*lineage.published_topics(hook), *self._topics}
        return lineage.lineage_of(self, inputs=[table], outputs=lineage.topic_datasets(self.kafka_conn_id, topics))


def _is_template(value: object) -> bool:
    """Whether a value is known only when the task runs."""
    return isinstance(value, XComArg) or (isinstance(value, str) and ("{{" in value or "{%" in value))


def _until_text(until: object) -> str:
    text = until.isoformat() if isinstance(until, datetime) else until
    if not isinstance(text, str):
        raise ConfigurationError(f"until: {until!r} is not text or a datetime. Give forever, drained or a time")
    Until.parse(text)
    return text
