"""OutboxHarvestTrigger: supervises a harvesting process, for a deferred task or an asset."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any, ClassVar, Literal

from airflow.providers.apache.kafka.hooks.base import KafkaBaseHook
from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.triggers.base import BaseEventTrigger, TriggerEvent

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.kafka.oauth import Token
from airflow_outbox.hooks.outbox import OutboxHook
from airflow_outbox.triggers.alerts import Alerts, check_path
from airflow_outbox.triggers.child import COMMAND, HarvestChild
from airflow_outbox.triggers.report import HarvestReport
from airflow_outbox.triggers.tokens import relay_tokens
from airflow_outbox.version_compat import metrics, set_xcom

FAILED_STARTS = 4
"""A deferred task fails when this many processes in a row have ended before they harvested."""
FIRST_DELAY = 1.0
LONGEST_DELAY = 60.0
ALERT_PATIENCE = 10.0


class OutboxHarvestTrigger(BaseEventTrigger):
    """Harvest an outbox in a child process of the triggerer, until `until` (`forever`, `drained`, or an ISO 8601 time).

    A process that dies is started again, after 1 s, then 2 s, up to 60 s. It is gone within a second of the trigger's
    end.

    `emit` says what the trigger's events are:

    - `published`, for an `AssetWatcher`: at most one a second, `{"outbox": …, "topics": {topic: records}, "published":
      total}`, whenever records were published. Also whenever some were `parked`, `retried` or `discarded`, with the
      details under these names. It harvests while a Dag that is scheduled on the asset is unpaused (a change counts
      when Airflow next reads the Dag's file). It is never given up; errors are in the triggerer's log.
    - `end`, for a deferred task: one event, `{"status": "ended", "reason": …, "published": total, "topics": {topic:
      records}}` or `{"status": "failed", "error": …}`. Until then the task's log tells the story, and its XCom
      `progress` how far it is. It fails for a configuration that can't work, and after four processes in a row that did
      not begin to harvest.

    `settings` are more of the harvester's configuration (`limits`, `leader_topic`, `kafka_producer`, …). They are
    stored and shown as they are: secrets belong in the connections.

    `alert_callback` is the import path of a function, `my_package.alerts.tell`. The triggerer calls it with every event
    `parked`, `retried` or `discarded`, a mapping with the `outbox`. It may be a coroutine function. Its errors are
    logged, and stop nothing. Raises ConfigurationError for a value that can't be an import path.
    """

    # Airflow asks only where a task defers; there this trigger may be pinned to a queue like any other.
    supports_triggerer_queue = True
    command: ClassVar[tuple[str, ...]] = COMMAND

    def __init__(
        self,
        *,
        postgres_conn_id: str = PostgresHook.default_conn_name,
        kafka_conn_id: str = KafkaBaseHook.default_conn_name,
        outbox: str = "outbox",
        until: str = "forever",
        settings: Mapping[str, Any] | None = None,
        emit: Literal["published", "end"] = "published",
        alert_callback: str | None = None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.postgres_conn_id = postgres_conn_id
        self.kafka_conn_id = kafka_conn_id
        self.outbox = outbox
        self.until = until
        self.settings = dict(settings or {})
        self.emit = emit
        self.alert_callback = check_path(alert_callback)
        self._alerts = Alerts(self.alert_callback, self.log.log)
        self._report = HarvestReport()
        self._child: HarvestChild | None = None
        self._showing: asyncio.Task[None] | None = None

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
            },
        )

    async def run(self) -> AsyncIterator[TriggerEvent]:
        delay, failed_starts = FIRST_DELAY, 0
        while True:
            begun = time.monotonic()
            self._report.begin_process()
            try:
                config, token_source = await asyncio.to_thread(self._harvest_config)
                async for payload in self._harvest(config, token_source):
                    yield TriggerEvent(payload)
                if self._report.end_reason in ("drained", "time"):
                    await self._alerts.finish(ALERT_PATIENCE)
                    if self.emit == "end":
                        yield TriggerEvent(self._summary())
                    return
                problem, hopeless = self._report.why_it_ended(self._child.status if self._child else None), False
            except (OutboxError, AirflowNotFoundException) as error:
                problem, hopeless = str(error), True
            except Exception as error:  # Airflow's API server may be away, or the machine out of processes
                problem, hopeless = f"the harvesting process could not be started: {error!r}", False
            failed_starts = 0 if self._report.started else failed_starts + 1
            if self.emit == "end" and (hopeless or failed_starts >= FAILED_STARTS):
                yield TriggerEvent({"status": "failed", "error": problem})
                return
            if self._report.started and time.monotonic() - begun > LONGEST_DELAY:
                delay = FIRST_DELAY
            if problem != self._report.last_error:  # which is in the log already
                self.log.warning(problem)
            self.log.warning("the harvesting process restarts in %.0f s", delay)
            metrics().incr("outbox.harvest_restarts", tags={"outbox": self.outbox})
            await asyncio.sleep(delay)
            delay = min(2 * delay, LONGEST_DELAY)

    async def cleanup(self) -> None:
        """End the process, within a second. Called whenever the trigger ends; nothing happens when there is none."""
        self._alerts.cancel()
        if self._child is not None:
            await self._child.end()

    def _harvest_config(self) -> tuple[dict[str, Any], Callable[[], Token] | None]:
        hook = OutboxHook(postgres_conn_id=self.postgres_conn_id, kafka_conn_id=self.kafka_conn_id, outbox=self.outbox)
        return hook.harvest_config(**self.settings), hook.token_source()

    async def _harvest(
        self, config: Mapping[str, Any], token_source: Callable[[], Token] | None
    ) -> AsyncIterator[dict[str, Any]]:
        """Run one process to its end; yield the payloads of asset events, if any are wanted."""
        self._child = child = await HarvestChild.start(
            config, until=self.until, relays_tokens=token_source is not None, command=self.command
        )
        relaying = asyncio.create_task(relay_tokens(token_source, child)) if token_source is not None else None
        try:
            async for event in child.events():
                now = time.monotonic()
                for line in self._report.take(event, now):
                    self.log.log(line.level, line.text)
                if event["event"] == "progress":
                    self._measure(event)
                    self._show_progress(now)
                self._alerts.tell({**event, "outbox": self.outbox})
                if self.emit == "published" and (news := self._report.news_due(now)):
                    yield self._publication(news)
        finally:
            for task in (self._showing, relaying):
                if task is not None:
                    task.cancel()
            await child.end()
        if self.emit == "published" and (news := self._report.news_due(time.monotonic(), final=True)):
            yield self._publication(news)

    def _summary(self) -> dict[str, Any]:
        published, topics = self._report.published, dict(self._report.topics)
        return {"status": "ended", "reason": self._report.end_reason, "published": published, "topics": topics}

    def _publication(self, news: dict[str, Any]) -> dict[str, Any]:
        return {"outbox": self.outbox, **news, "published": self._report.published}

    def _measure(self, progress: Mapping[str, Any]) -> None:
        stats = metrics()
        stats.gauge("outbox.in_flight", progress.get("in_flight") or 0, tags={"outbox": self.outbox})
        for topic, count in (progress.get("topics") or {}).items():
            stats.incr("outbox.published", count, tags={"outbox": self.outbox, "topic": topic})

    def _show_progress(self, now: float) -> None:
        """Show the progress as the task's XCom, in the background: a slow API server must not delay the events."""
        busy = self._showing is not None and not self._showing.done()
        if self.task_instance is not None and not busy and (progress := self._report.progress_due(now)):
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
            self.log.warning("the XCom progress could not be set: %r", error)
