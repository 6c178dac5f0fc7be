"""Make the outbox of a copied database an outbox of its own, beside the original.

A copy has the original's outbox id, and so the names that derive from it: the same ledger, the same group, the same
transactional ids. Harvested into the same Kafka it would be the original's rival. Here it gets another id, and forgets
the ledger, the history and what is published. Nothing is written to Kafka, and no producer is fenced.

The records in its outbox, parked ones too, stay and count as unpublished.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from dataclasses import dataclass
from typing import Any
from uuid import UUID

import psycopg

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.transactional_log import transactional_ids
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import SHARD, OutboxTable
from airflow_outbox.postgres.trail import enter

_SILENCE = 10.0  # seconds after which the member that the fence row names counts as gone; it tries every 5 s
# Settings for names in Kafka that otherwise derive from the outbox's id.
_NAMING = ("leader_topic", "leader_group_id", "ledger_topic", "transactional_id")


@dataclass(frozen=True, slots=True)
class Copied:
    """Facts that an operator needs before accepting: the copy's id, how many records wait or are parked, and the
    brokers they would go to. They also tell which settings name something in Kafka instead of the outbox's id.
    """

    outbox_id: UUID
    waiting: int
    parked: int
    brokers: str
    named: tuple[str, ...]


def make_new_outbox(
    config: HarvestConfig, *, reason: str, accept: Callable[[Copied], bool], on_behalf_of: str | None = None
) -> tuple[UUID, KafkaNames] | None:
    """Give the outbox an id of its own if `accept` agrees; return the id and its names in Kafka, or None.

    `reason` is recorded; the trail also names whom it is made for (`on_behalf_of`). Raises ConfigurationError while its
    harvesters run, and when the configuration names the original's ledger or producer; KafkaError, PostgresError.
    """
    with closing(OutboxTable(connect(config.data_source, purpose="adopt"), config.name)) as table:
        outbox_id: UUID | None = None
        with translated(config.name), table.connection.transaction() as changing:
            found = _found(table, config)
            if not accept(found):
                raise psycopg.Rollback(changing)
            outbox_id = _record(table, found, reason=reason, on_behalf_of=on_behalf_of)
        return (outbox_id, KafkaNames.of(config, outbox_id)) if outbox_id else None


def _found(table: OutboxTable, config: HarvestConfig) -> Copied:
    """Look at the copy, which stays as it is until the transaction ends. Raises ConfigurationError, KafkaError."""
    identity = table.identity()
    running = _execute(table, "running_harvester", silence=_SILENCE).fetchone()
    if running is not None:
        member, silent = running
        raise ConfigurationError(
            f"{table.name} is harvested: {member} was last heard from {silent:.0f} s ago. Stop all harvesters of this "
            f"database. If {member} belongs to the original, and was copied with it, try again in {_SILENCE:.0f} s"
        )
    recorded, topic_id, waiting, parked = _execute(table, "copied").fetchone()
    names = KafkaNames.of(config, identity.outbox_id)
    if config.transactional_id is not None and {*transactional_ids(config, names, shard=SHARD)} & {*recorded}:
        raise _shared("transactional_id", config.transactional_id)
    if config.ledger_topic is not None and topic_id is not None:
        topic = Cluster(config.kafka).topics([config.ledger_topic])[config.ledger_topic]
        if str(getattr(topic, "topic_id", "")) == topic_id:
            raise _shared("ledger_topic", config.ledger_topic)
    given = {
        **{name: getattr(config, name) for name in _NAMING},
        "positions.extents_topic": config.positions.extents_topic,
    }
    named = tuple(f"{name} {value}" for name, value in given.items() if value is not None)
    return Copied(identity.outbox_id, waiting, parked, str(config.kafka["bootstrap.servers"]), named)


def _shared(setting: str, value: str) -> ConfigurationError:
    return ConfigurationError(
        f"{setting} {value} belongs to the original, and two outboxes can't share it. Remove it from this copy's "
        "configuration, or choose another"
    )


def _record(table: OutboxTable, found: Copied, *, reason: str, on_behalf_of: str | None) -> UUID:
    _execute(table, "lock_shards")
    shards = _execute(table, "shards").fetchall()  # also those without slots, which may get some again
    highest_id = max(_execute(table, "forget_shard", shard=shard).fetchone()[0] for (shard,) in shards)
    outbox_id, incarnation = _execute(table, "become_new_outbox").fetchone()
    _execute(table, "copy_to_shards")
    _execute(table, "forget_lacks")
    _execute(table, "forget_history")
    _execute(table, "adopt_transactions")
    _execute(table, "adopt_sequence", highest_id=highest_id)
    difference = f"a copy of outbox {found.outbox_id} became outbox {outbox_id}"
    _execute(table, "note_adoption", incarnation=incarnation, differences=difference, reason=reason)
    enter(table.connection, table.name, "adopt", on_behalf_of=on_behalf_of, matched=difference, reason=reason)
    return UUID(str(outbox_id))


def _execute(table: OutboxTable, statement: str, **values: object) -> Any:
    given = {"shard": SHARD, "outbox": table.name.text(), **values}
    return Statements(table.connection, table.name).execute(f"adopt.{statement}", given)
