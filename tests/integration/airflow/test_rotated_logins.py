"""The triggers go on by a new password, once it is in Airflow's connection."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import psycopg
import pytest
from support.harvesting import PATIENCE, Outbox
from support.logins import rotated_login

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.triggers.harvest import OutboxHarvestTrigger
from airflow_outbox.triggers.published import OutboxPublishedTrigger
from airflow_outbox.triggers.watermark import OutboxWatermarkTrigger

from .conftest import connections


async def told(trigger: Any, payloads: list[dict[str, Any]]) -> None:
    async for event in trigger.run():
        payloads.append(event.payload)


async def test_triggers_read_the_connection_again(
    outbox: Outbox, kafka: EmbeddedKafka, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def until(condition: Any) -> None:
        async with asyncio.timeout(PATIENCE):
            while not condition():
                await asyncio.sleep(0.1)

    with (
        rotated_login(outbox.database) as login,
        psycopg.connect(outbox.database) as owner,
    ):

        def connect() -> None:
            made = connections(outbox.database, kafka, login=login.role, password=login.password)
            monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps(made["postgres_default"]))

        connect()
        harvest = OutboxHarvestTrigger()
        harvested: list[dict[str, Any]] = []
        followed: list[dict[str, Any]] = []
        published: list[dict[str, Any]] = []
        running = [
            asyncio.create_task(told(harvest, harvested)),
            asyncio.create_task(told(OutboxWatermarkTrigger(asset="outbox"), followed)),
        ]
        try:
            outbox.stash(10)
            await until(lambda: outbox.left() == 0 and followed)
            ticket = stash(owner, OutboxRecord(outbox.topic, "k10", "10"))
            running.append(asyncio.create_task(told(OutboxPublishedTrigger(ticket=str(ticket)), published)))
            login.rotate()
            connect()
            owner.commit()
            await until(lambda: published)
            assert published == [{"status": "published", "ticket": str(ticket)}]
            await until(lambda: sum(payload["published"] for payload in followed) == 11)
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)
            await harvest.cleanup()
    assert harvested[-1]["published"] == 11
