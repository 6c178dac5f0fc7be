"""OutboxPositionsTrigger: waits until a consumer group may move to another cluster."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, fields
from typing import Any

from airflow.providers.common.compat.sdk import AirflowNotFoundException
from airflow.providers.postgres.hooks.postgres import PostgresHook
from airflow.triggers.base import BaseTrigger, TriggerEvent

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.positions_process import COMMAND
from airflow_outbox.harvest.supervised_child import HarvestChild
from airflow_outbox.hooks.outbox import OutboxHook

_RETRY_INTERVAL = 5.0


@dataclass(kw_only=True, eq=False, repr=False)
class OutboxPositionsTrigger(BaseTrigger):
    """Wait until a consumer group has no members and its position is on the cluster `to`, and say so in one event.

    The event is `{"status": "ready", "group": …}`, or `{"status": "failed", "error": …}` where the connections or the
    configuration can't be right. Clusters that are away are waited for. The task's log shows the reason for the wait
    whenever it changes. It commits nothing.
    """

    group: str
    to: str
    kafka_conn_ids: Mapping[str, str]
    postgres_conn_id: str = PostgresHook.default_conn_name
    outbox: str = "outbox"
    settings: Mapping[str, Any] | None = None

    def __post_init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.kafka_conn_ids = dict(self.kafka_conn_ids)
        self.settings = dict(self.settings or {})

    def serialize(self) -> tuple[str, dict[str, Any]]:
        parameters = {field.name: getattr(self, field.name) for field in fields(self)}
        return "airflow_outbox.triggers.positions.OutboxPositionsTrigger", parameters

    async def run(self) -> AsyncIterator[TriggerEvent]:
        try:
            await self._may_move()
        except (ConfigurationError, AirflowNotFoundException) as error:
            yield TriggerEvent({"status": "failed", "error": str(error)})
        else:
            yield TriggerEvent({"status": "ready", "group": self.group})

    async def _may_move(self) -> None:
        """Return once it may. Raises ConfigurationError."""
        hook = OutboxHook(
            postgres_conn_id=self.postgres_conn_id, outbox=self.outbox, kafka_conn_ids=self.kafka_conn_ids
        )
        settings = await asyncio.to_thread(lambda: hook.harvest_config(**(self.settings or {})))
        while not await self._tells_that_it_may(settings):
            await asyncio.sleep(_RETRY_INTERVAL)

    async def _tells_that_it_may(self, settings: Mapping[str, Any]) -> bool:
        """Watch in a process of its own, and return whether the group may move. False: the process has ended."""
        watch = {"group": self.group, "to": self.to}
        child = await HarvestChild.start(settings, until="forever", command=COMMAND, also={"watch": watch})
        refusal = None
        try:
            async for event in child.events():
                if event["event"] == "may_move":
                    if event["reason"] is None:
                        return True
                    self.log.info("%s", event["reason"])
                elif event["event"] == "error":
                    refusal = event["error"]
        finally:
            await child.end()
        if refusal is not None:
            raise ConfigurationError(refusal)
        return False
