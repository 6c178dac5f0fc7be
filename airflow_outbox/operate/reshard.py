"""Give an outbox another number of shards: prepare what they need, ask for it, and wait until it is so."""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import closing
from typing import Any

import psycopg

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.assembly import one_shard_only
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, widen_topics
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.layout import ask_layout, read_layout, require_all_count
from airflow_outbox.postgres.membership import read_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.slots import make_indexes
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.trail import enter
from airflow_outbox.values.layout import Layout

_LOOK_INTERVAL = 0.1


def prepare(config: HarvestConfig, *, shards: int) -> list[str]:
    """Make what this many shards lack: indexes, while others write, and partitions of the outbox's own topics.

    Returns what was done, in words. Raises ConfigurationError for an outbox that can't have this many, KafkaError,
    PostgresError.
    """
    if shards > 1 and (reason := one_shard_only(config)) is not None:
        raise ConfigurationError(f"{config.name} can't have {shards} shards: {reason}")
    done: list[str] = []
    with closing(connect(config.data_source, purpose="command")) as connection:
        require_all_count(connection, config.name)
        if shards > 1:
            done += make_indexes(connection, config.name)
        identity = OutboxTable(connection, config.name).identity()
    names = KafkaNames.of(config, identity.outbox_id)
    return done + [f"topic {topic} has {shards} partitions now" for topic in widen_topics(config, names, shards=shards)]


def request_layout(
    connection: psycopg.Connection[Any], name: OutboxName, *, shards: int | None, on_behalf_of: str | None = None
) -> None:
    """Ask for this many shards; None withdraws that. The trail names whom it is made for (`on_behalf_of`).

    Raises ConfigurationError, PostgresError.
    """
    name = located(connection, name)
    matched = "withdrawn" if shards is None else f"{shards} shards"
    with translated(name), connection.transaction():
        ask_layout(connection, name, shards=shards)
        enter(connection, name, "reshard", on_behalf_of=on_behalf_of, matched=matched)


def reshard(
    config: HarvestConfig,
    *,
    shards: int,
    patience: float,
    tell: Callable[[str], None],
    on_behalf_of: str | None = None,
) -> Layout:
    """Give the outbox this many shards, and return the new layout. `tell` hears what is done meanwhile.

    Raises ConfigurationError for an outbox that can't have this many; OutboxError when the request was withdrawn, as it
    is when a cluster ceases to count. OutboxError, too, when nobody has brought it about after `patience` seconds: it
    is still asked for then. Raises KafkaError, PostgresError.
    """
    for line in prepare(config, shards=shards):
        tell(line)
    with closing(connect(config.data_source, purpose="command")) as connection:
        before = read_layout(connection, config.name)
        if (before.shards, before.wanted) == (shards, None):
            return before
        wanted = None if before.shards == shards else shards
        request_layout(connection, config.name, shards=wanted, on_behalf_of=on_behalf_of)
        return _awaited(connection, config, shards, patience)


def _awaited(connection: psycopg.Connection[Any], config: HarvestConfig, shards: int, patience: float) -> Layout:
    deadline = time.monotonic() + patience
    while True:
        layout = read_layout(connection, config.name)
        if layout.wanted is None:
            if layout.shards != shards:
                raise OutboxError(_withdrawn(connection, config, shards, layout))
            return layout
        if time.monotonic() > deadline:
            raise OutboxError(
                f"{config.name} still has {layout.shards} shards. The leader of shard 0 gives it {shards} as soon as "
                "it can: see `airflow-outbox status`. `airflow-outbox reshard --withdraw` withdraws the request"
            )
        time.sleep(_LOOK_INTERVAL)


def _withdrawn(connection: psycopg.Connection[Any], config: HarvestConfig, shards: int, layout: Layout) -> str:
    """Return why nobody gives the outbox this many shards any more."""
    clusters = read_membership(connection, config.name).clusters
    told = [f"cluster {each.name} does not count: {each.reason}" for each in clusters if each.part == "owed"]
    why = ". ".join(told) or "somebody has done that, or asked for another number"
    return (
        f"{config.name} still has {layout.shards} shards, and the request for {shards} was withdrawn: {why}. Ask again "
        "when that has changed"
    )
