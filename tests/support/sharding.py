"""Shared by tests of several shards: an outbox that has them, and keys whose shard is known."""

from __future__ import annotations

import hashlib
import time
from typing import Any

import psycopg
from support.harvesting import Outbox

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.operate.reshard import prepare
from airflow_outbox.postgres.layout import ask_layout
from airflow_outbox.postgres.names import OutboxName

LED = "SELECT count(*) FROM outbox_shard WHERE slots IS DISTINCT FROM '{}' AND member IS NOT NULL AND begun_view = view"
"""How many shards have a leader that has begun."""


def config_of(outbox: Outbox, **settings: Any) -> HarvestConfig:
    return HarvestConfig.validated({**outbox.settings, **settings}, source="test")


def divided(outbox: Outbox, shards: int) -> None:
    """Have so many shards, before anybody has led."""
    prepare(config_of(outbox), shards=shards)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        ask_layout(connection, OutboxName.parse(outbox.name), shards=shards)


def keys_of(shard: int, shards: int, topic: str, *, count: int) -> list[str]:
    """So many keys whose records of the topic belong to a shard, as `slots.sql` has it."""
    found: list[str] = []
    number = 0
    while len(found) < count:
        key = f"k{number}"
        both = hashlib.md5(topic.encode()).hexdigest() + hashlib.md5(key.encode()).hexdigest()
        if (hashlib.md5(both.encode()).digest()[0] & 63) % shards == shard:
            found.append(key)
        number += 1
    return found


def delays(outbox: Outbox, *, while_any_of: str, most: int) -> list[float]:
    """How long single records of shard 1 are in the outbox while there are some of another topic or key."""
    [key] = keys_of(1, 2, outbox.topic, count=1)
    found = []
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        while len(found) < most and connection.execute(while_any_of.encode()).fetchall():
            began = time.monotonic()
            stash(connection, [OutboxRecord(outbox.topic, key, "alone")])
            here = "SELECT FROM outbox WHERE kafka_key = %s LIMIT 1"
            while connection.execute(here, [key]).fetchall():
                assert time.monotonic() - began < 60, "it is held up"
            found.append(time.monotonic() - began)
    return found
