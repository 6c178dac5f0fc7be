"""OutboxHarvestTrigger: supervises harvesting processes, for a deferred task or an asset."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any, ClassVar, Literal

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent
from pydantic import TypeAdapter, ValidationError

from airflow_outbox.errors import HarvestProcessError
from airflow_outbox.harvest.config import Processes
from airflow_outbox.harvest.kafka.oauth import Token
from airflow_outbox.harvest.supervised_child import COMMAND
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.triggers.alerts import Alerts, check_path
from airflow_outbox.triggers.harvest_report import HarvestReport, LogLine, combined
from airflow_outbox.triggers.supervision import SupervisedProcess, merged
from airflow_outbox.version_compat import set_xcom

PROCESSES: TypeAdapter[int] = TypeAdapter(Processes)
ALERT_PATIENCE = 10.0


class OutboxHarvestTrigger(BaseEventTrigger):
    """Harvest an outbox in a child process of the triggerer, until `until` (`forever`, `drained`, or an ISO 8601 time).

    With `processes` in `settings` there are that many, and the outbox's shards are spread over them. One that dies is
    started again, after 1 s, then 2 s, up to 60 s; the others go on. All end within a second of the trigger's end.

    `emit` says what the trigger's events are:

    - `published`, for an `AssetWatcher`: at most one a second, `{"outbox": …, "topics": {topic: records}, "published":
      total}`, whenever records were published. Also whenever some were `parked`, `retried` or `discarded`, with the
      details under these names. It harvests while a Dag that is scheduled on the asset is unpaused (a change counts
      when Airflow next reads the Dag's file). It is never given up; errors are in the triggerer's log.
    - `end`, for a deferred task: one event, `{"status": "ended", "reason": …, "published": total, "topics": {topic:
      records}}` or `{"status": "failed", "error": …}`. Until then the task's log tells the story, and its XCom
      `progress` how far it is. It fails for a configuration that can't work, and after four processes in a row that did
      not begin to harvest.

    `kafka_conn_ids`, instead of `kafka_conn_id`, has a connection for the name of each of several clusters.

    A list as `outbox` has names and patterns, such as `["tenant_*.outbox"]`: one process harvests all of them.

    `settings` are more of the harvester's configuration (`limits`, `leader_topic`, `kafka_producer`, …). They are
    stored and shown as they are: secrets belong in the connections.

    `alert_callback` is the import path of a function, `my_package.alerts.tell`. The triggerer calls it with every event
    `parked`, `retried`, `discarded` or `verdict`, a mapping with the `outbox`. It may be a coroutine function. Its
    errors are logged, and stop nothing. Raises ConfigurationError for a value that can't be an import path.
    """

    # Airflow asks only where a task defers; there this trigger may be pinned to a queue like any other.
    supports_triggerer_queue = True
    command: ClassVar[tuple[str, ...]] = COMMAND

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        kafka_conn_id: str = KafkaBaseHook.default_conn_name,
        outbox: str | Sequence[str] = "outbox",
        until: str = "forever",
        settings: Mapping[str, Any] | None = None,
        emit: Literal["published", "end"] = "published",
        alert_callback: str | None = None,
        kafka_conn_ids: Mapping[str, str] | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.postgres_conn_id = postgres_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.kafka_conn_ids = dict(kafka_conn_ids or {})
        self.outbox = outbox if isinstance(outbox, str) else list(outbox)
        self.until = until
        self.settings = dict(settings or {})
        self.emit = emit
        self.alert_callback = check_path(alert_callback)
        self._alerts = Alerts(self.alert_callback, self.log.log)
        self._verdict: tuple[object, object] | None = None  # the last that was told
        self._whole = HarvestReport()  # what is shown of all processes together
        self._showing: asyncio.Task[None] | None = None
        count = process_count(self.settings)
        self._processes = [self._supervised(number, count) for number in range(1, count + 1)]

    def serialize(self) -> tuple[str, dict[str, Any]]:
        return (
            "airflow_outbox.triggers.harvest.OutboxHarvestTrigger",
            {
                "postgres_conn_id": self.postgres_conn_id,
                "kafka_conn_id": self.kafka_conn_id,
                "outbox": self.outbox,
                "until": self.until,
                "settings": self.settings,
                "emit": self.emit,
                "alert_callback": self.alert_callback,
                # Left out where there is one cluster: a triggerer of an earlier release does not know it.
                **({"kafka_conn_ids": self.kafka_conn_ids} if self.kafka_conn_ids else {}),
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            async with aclosing(merged(self._processes)) as all_news:
                async for news in all_news:
                    if self.emit == "published":
                        yield TriggerEvent({"outbox": self.outbox, **news})
        except HarvestProcessError as error:
            yield TriggerEvent({"status": "failed", "error": str(error)})
            return
        finally:
            if self._showing is not None:
                self._showing.cancel()
        await self._alerts.finish(ALERT_PATIENCE)
        if self.emit == "end":
            yield TriggerEvent(self._summary())

    async def cleanup(self) -> None:
        """End the processes, within a second. Called whenever the trigger ends; nothing happens when there is none."""
        self._alerts.cancel()
        await asyncio.gather(*(process.end() for process in self._processes))

    def _supervised(self, number: int, count: int) -> SupervisedProcess:
        return SupervisedProcess(
            outbox=self.outbox if isinstance(self.outbox, str) else ",".join(self.outbox),
            until=self.until,
            configure=self._harvest_config,
            audience=_Audience(self, "" if count == 1 else f"process {number} of {count}: "),
            gives_up=self.emit == "end",
            command=self.command,
        )

    def _harvest_config(self) -> tuple[dict[str, Any], Callable[[], Token] | None]:
        one = self.outbox if isinstance(self.outbox, str) else None
        hook = OutboxHook(
            postgres_conn_id=self.postgres_conn_id,
            kafka_conn_id=self.kafka_conn_id,
            kafka_conn_ids=self.kafka_conn_ids,
            **({} if one is None else {"outbox": one}),
        )
        many = {} if one is not None else {"outboxes": self.outbox}
        return hook.harvest_config(**self.settings, **many), hook.token_source()

    @property
    def _published(self) -> int:
        return sum(process.report.published for process in self._processes)

    def _summary(self) -> dict[str, Any]:
        topics: Counter[str] = Counter()
        for process in self._processes:
            topics.update(process.report.topics)
        reason = self._processes[0].report.end_reason
        return {"status": "ended", "reason": reason, "published": self._published, "topics": dict(topics)}

    def tell(self, event: Mapping[str, Any]) -> None:
        """Pass an event on to `alert_callback`; a verdict only if it is another."""
        if event["event"] == "verdict":
            news = event.get("state"), event.get("remedy")
            if news == self._verdict:
                return
            self._verdict = news
        one = {"outbox": self.outbox} if isinstance(self.outbox, str) else {}  # of many, the event says which
        self._alerts.tell({**event, **one})

    def lose_sight(self, verdict: Mapping[str, Any]) -> None:
        """Tell that nobody here sees how the outbox is doing, unless another process does. Many have no verdict."""
        if isinstance(self.outbox, str) and not any(process.report.sees for process in self._processes):
            self.tell(verdict)

    def show_progress(self, now: float) -> None:
        """Show the progress as the task's XCom, in the background: a slow API server must not delay the events."""
        busy = self._showing is not None and not self._showing.done()
        if self.task_instance is None or busy:
            return
        self._whole.progress = combined([process.report for process in self._processes])
        if progress := self._whole.progress_due(now):
            self._showing = asyncio.create_task(self._set_xcom(self.task_instance, progress))

    async def _set_xcom(self, task: Any, progress: Mapping[str, Any]) -> None:
        try:
            await set_xcom(
                key="progress",
                value=progress,
                dag_id=task.dag_id,
                task_id=task.task_id,
                run_id=task.run_id,
                map_index=task.map_index,
            )
        except Exception as error:  # a failure here does not concern the harvest
            self.log.warning("the XCom progress could not be set: %r. The harvest goes on", error)


def process_count(settings: Mapping[str, Any]) -> int:
    """Return the number of processes in a harvester's settings; for one that can't be right, 1: that one says so."""
    try:
        return int(PROCESSES.validate_python(settings.get("processes", 1)))
    except ValidationError:
        return 1


class _Audience:
    """Reports of a process go to its trigger; `prefix` tells which of several it is."""

    def __init__(self, trigger: OutboxHarvestTrigger, prefix: str) -> None:
        self._trigger = trigger
        self._prefix = prefix
        self.tell = trigger.tell
        self.lose_sight = trigger.lose_sight
        self.show_progress = trigger.show_progress

    def log_line(self, line: LogLine) -> None:
        self._trigger.log.log(line.level, self._prefix + line.text)

    def warn(self, text: str) -> None:
        self._trigger.log.warning(self._prefix + text)
