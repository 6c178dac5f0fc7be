"""OutboxHarvestSensor: a task that harvests an outbox for as long as it is deferred."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import AirflowException, BaseSensorOperator, XComArg
from airflow.providers.postgres.hooks.postgres import PostgresHook

from airflow_outbox.errors import ConfigurationError, HarvestProcessError
from airflow_outbox.harvest.process import Until
from airflow_outbox.hooks import lineage
from airflow_outbox.hooks.outbox import OutboxHook, check_settings
from airflow_outbox.links.outbox import OutboxLink
from airflow_outbox.triggers.alerts import check_path
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger

if TYPE_CHECKING:
    from airflow.providers.common.compat.sdk import BaseOperatorLink, Context
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

    A list as `outbox` has names and patterns, such as `["tenant_*.outbox"]`: one process harvests all of them. It finds
    new ones by itself.

    For several clusters, `kafka_conn_ids` has a connection for each cluster's name, such as `{"primary": "kafka_east",
    "west": "kafka_west"}`, and takes the place of `kafka_conn_id`.

    `settings` are more of the harvester's configuration (`limits`, `leader_topic`, `kafka_producer`, …), and not
    secret. Set `retries`: a task that fails because Postgres or Kafka were away when it started is then tried again.
    `timeout`, `poke_interval` and `mode` of other sensors have no effect here; `soft_fail` and `never_fail` do.

    `processes` is how many processes the triggerer runs for it (1 unless given): an outbox with several shards is
    spread over them, and so over several cores. Each is started again when it dies, while the others go on.

    `alert_callback` is the import path of a function, `my_package.alerts.tell`. The triggerer calls it when records are
    parked, retried or discarded, and for each new verdict, with a mapping: the event as the reference has it, and the
    `outbox`.

    Raises ConfigurationError, when the Dag is read, for settings that can't be right and for `deferrable=False`.
    """

    template_fields: Sequence[str] = ("postgres_conn_id", "kafka_conn_id", "kafka_conn_ids", "outbox", "until")
    operator_extra_links: Collection[BaseOperatorLink] = (OutboxLink(),)
    ui_color = "#dbeafe"

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        kafka_conn_id: str = KafkaBaseHook.default_conn_name,
        outbox: str | Sequence[str] = "outbox",
        until: str | datetime = "forever",
        settings: Mapping[str, Any] | None = None,
        processes: int | None = None,
        alert_callback: str | None = None,
        deferrable: bool = True,
        kafka_conn_ids: Mapping[str, str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        if not deferrable:
            problem = "OutboxHarvestSensor harvests in the triggerer, never in a worker"
            raise ConfigurationError(f"{problem}. Leave deferrable out, and run a triggerer")
        self.postgres_conn_id = postgres_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.kafka_conn_ids = dict(kafka_conn_ids or {})
        self.outbox = outbox if isinstance(outbox, (str, XComArg)) else list(outbox)
        self.until = until
        self.settings = {**(settings or {}), **({} if processes is None else {"processes": processes})}
        self.alert_callback = check_path(alert_callback)
        self._topics: Iterable[str] = ()  # as far as the trigger has told
        shown = outbox if isinstance(outbox, str) and not _is_template(outbox) else "outbox"
        many = self.outbox if isinstance(self.outbox, list) and not any(map(_is_template, self.outbox)) else ()
        check_settings(self.settings, outbox=shown, outboxes=many, clusters=self.kafka_conn_ids)
        if not _is_template(until):
            _until_text(until)

    def execute(self, context: Context) -> None:
        """Hand over to the trigger."""
        trigger = OutboxHarvestTrigger(
            postgres_conn_id=self.postgres_conn_id,
            kafka_conn_id=self.kafka_conn_id,
            kafka_conn_ids=self.kafka_conn_ids,
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
        if not isinstance(self.outbox, str):  # what was published to which topic is told by outbox
            return lineage.lineage_of(self, inputs=[], outputs=[])
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, outbox=self.outbox)
        table = lineage.TableLocation.find(hook).dataset
        topics = {*lineage.published_topics(hook), *self._topics}
        conn_ids = self.kafka_conn_ids.values() or [self.kafka_conn_id]
        outputs = [dataset for conn_id in conn_ids for dataset in lineage.topic_datasets(conn_id, topics)]
        return lineage.lineage_of(self, inputs=[table], outputs=outputs)


def _is_template(value: object) -> bool:
    """Whether a value is known only when the task runs."""
    return isinstance(value, XComArg) or (isinstance(value, str) and ("{{" in value or "{%" in value))


def _until_text(until: object) -> str:
    text = until.isoformat() if isinstance(until, datetime) else until
    if not isinstance(text, str):
        raise ConfigurationError(f"until: {until!r} is not text or a datetime. Give forever, drained or a time")
    Until.parse(text)
    return text
