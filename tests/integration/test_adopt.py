"""A ledger that leaders refuse to read is adopted as far as it can be read, and harvesting goes on."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import closing
from dataclasses import dataclass, replace

import pytest
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, Producer, TopicPartition
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)
from support.harvesting import CHILD, PATIENCE, Outbox, Process, make_outbox, wait_until

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.ledger_reader import LedgerReader
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.protocol.ledger import Ledger, LedgerRecord
from airflow_outbox.operate.adopt import Adoption, adopt
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.records import Snapshot

FOREIGN = ("theirs", "not json")


@dataclass(slots=True)
class Damaged:
    """An outbox that was harvested, and its ledger."""

    outbox: Outbox

    @property
    def config(self) -> HarvestConfig:
        return HarvestConfig.validated(self.outbox.settings, source="test")

    @property
    def names(self) -> KafkaNames:
        with closing(connect(self.outbox.database, purpose="test")) as connection:
            return KafkaNames.of(self.config, OutboxTable(connection, self.config.name).identity().outbox_id)

    def drain(self) -> None:
        process = Process(CHILD, first_line={"config": self.outbox.settings, "until": "drained"})
        try:
            process.ends()
            assert process.popen.returncode == 0, process.events
        finally:
            process.end()

    def is_refused(self, reason: str) -> None:
        process = Process(CHILD, first_line={"config": self.outbox.settings})
        try:
            wait_until(lambda: reason in str(self.outbox.query("SELECT halted FROM outbox_state")), doing=reason)
            process.popen.terminate()  # it leaves the group, so that the next one need not wait
            process.ends()
        finally:
            process.end()

    def adopt(self, *, nothing_lost: bool = False) -> Adoption | None:
        return adopt(self.config, reason="a test", nothing_lost=nothing_lost, accept=lambda _: True, on_behalf_of="ada")

    def ledger(self) -> Ledger:
        return LedgerReader(self.config, self.names, 0).read_all([])

    def write(self, records: Sequence[LedgerRecord]) -> None:
        producer = Producer({"bootstrap.servers": self.outbox.bootstrap, "enable.idempotence": True})
        for key, value in records:
            producer.produce(self.names.ledger_topic, value, key, 0)
        assert producer.flush(PATIENCE) == 0

    def commit_unpurged(self, first: int, last: int) -> int:
        """Write what a leader has written that is killed before it deletes the records from the first to the last one
        that wait; the offset where that begins.
        """
        ledger = self.ledger()
        assert ledger.head is not None
        ids = [number for (number,) in self.outbox.query("SELECT id FROM outbox ORDER BY id")][first : last + 1]
        (snapshot,) = self.outbox.query("SELECT pg_current_snapshot()::text")[0]
        batch, seen = ledger.head.batch + 1, Snapshot.parse(snapshot)
        entry = replace(ledger.entries[-1], batch=batch, snapshot=seen, runs=((ids[0], ids[-1]),))
        told = replace(ledger.head, batch=batch, highest_id=ids[-1])
        self.write([*entry.records(), told.record()])
        return ledger.end

    def delete_all(self) -> None:
        self.delete_before(-1)

    def delete_before(self, offset: int) -> None:
        """Delete the ledger's records before an offset; -1 is its end."""
        admin = AdminClient({"bootstrap.servers": self.outbox.bootstrap})
        topic = self.names.ledger_topic
        entry = ConfigEntry("cleanup.policy", "delete", incremental_operation=AlterConfigOpType.SET)
        resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
        admin.incremental_alter_configs([resource])[resource].result()
        records = TopicPartition(topic, 0, offset)

        def is_deleted() -> bool:
            """For a while the broker refuses to delete from a topic that was compacted."""
            try:
                admin.delete_records([records])[records].result()
            except KafkaException as error:
                if error.args[0].code() != BrokerError.POLICY_VIOLATION:
                    raise
                return False
            return True

        wait_until(is_deleted)


@pytest.fixture
def damaged(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Damaged:
    outbox = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data")
    outbox.stash(20)
    damaged = Damaged(outbox)
    damaged.drain()
    outbox.stash(20, start=20)
    return damaged


def once() -> dict[str, list[int]]:
    return {f"k{key}": list(range(key, 40, 10)) for key in range(10)}


def test_a_ledger_whose_front_was_deleted(damaged: Damaged) -> None:
    damaged.delete_all()
    damaged.is_refused("no longer holds offset")
    adopted = damaged.adopt()
    assert adopted is not None
    assert "no longer holds offset" in adopted.differences[0]
    copies = "SELECT outbox_id, incarnation, secret FROM outbox_shard"
    assert damaged.outbox.query(copies) == damaged.outbox.query(copies.replace("shard", "state"))
    assert damaged.outbox.query("SELECT incarnation FROM outbox_state") == [(2,)]
    bounds = damaged.config.thresholds
    assert damaged.outbox.query("SELECT lagging_after, stalled_after, silence FROM outbox_shard") == [
        (bounds.lagging_after, bounds.stalled_after, bounds.silence)  # as the last leader has told
    ]
    damaged.drain()
    assert damaged.outbox.by_key() == once()
    assert damaged.adopt() is None
    assert damaged.outbox.query("SELECT action, on_behalf_of, matched, reason FROM outbox_trail") == [
        ("adopt", "ada", f"incarnation 2: {'; '.join(adopted.differences)}", "a test")
    ]


def test_a_ledger_whose_witnessed_part_was_deleted_is_none_the_worse(damaged: Damaged) -> None:
    [(witnessed,)] = damaged.outbox.query("SELECT ledger_offset FROM outbox_ledger")
    assert witnessed > 0
    damaged.delete_before(witnessed)
    damaged.drain()
    assert damaged.outbox.by_key() == once()
    assert damaged.adopt() is None


def test_a_ledger_that_was_deleted_up_to_the_middle_of_what_is_not_purged(damaged: Damaged) -> None:
    """As if a leader had been killed before it deleted ids 21 to 30, and 31 to 40."""
    first, second = damaged.commit_unpurged(0, 9), damaged.commit_unpurged(10, 19)
    damaged.delete_before(second)
    assert first < second
    damaged.is_refused("no longer holds offset")
    adopted = damaged.adopt()
    assert adopted is not None
    assert "no longer holds offset" in adopted.differences[0]
    copies = "SELECT outbox_id, incarnation, secret FROM outbox_shard"
    assert damaged.outbox.query(copies) == damaged.outbox.query(copies.replace("shard", "state"))
    assert damaged.outbox.query("SELECT incarnation FROM outbox_state") == [(2,)]
    left = [number for (number,) in damaged.outbox.query("SELECT kafka_value::int FROM outbox ORDER BY id")]
    assert left == list(range(20, 30)), "what the rest of the ledger says is published comes once more"
    damaged.drain()
    assert damaged.adopt() is None


def test_a_foreign_record_in_the_ledger(damaged: Damaged) -> None:
    damaged.write([FOREIGN])
    damaged.is_refused("not written by airflow-outbox")
    adopted = damaged.adopt()
    assert adopted is not None
    assert adopted.differences == ["the ledger's record theirs was not written by airflow-outbox"]
    damaged.drain()
    assert damaged.outbox.by_key() == once()
    assert damaged.adopt() is None  # nobody reads it any more


def test_what_can_be_read_beside_a_foreign_record_is_completed_if_nothing_is_lost(damaged: Damaged) -> None:
    """As if a leader had been killed before it deleted ids 21 to 30, and in an earlier incarnation others."""
    head = damaged.ledger().head
    assert head is not None
    ids = [number for (number,) in damaged.outbox.query("SELECT id FROM outbox ORDER BY id")]
    (snapshot,) = damaged.outbox.query("SELECT pg_current_snapshot()::text")[0]
    batch = damaged.ledger().entries[-1]
    committed = replace(
        batch, batch=head.batch + 1, snapshot=type(batch.snapshot).parse(snapshot), runs=((ids[0], ids[9]),)
    )
    older = replace(committed, batch=head.batch + 2, incarnation=head.incarnation - 1, runs=((ids[10], ids[19]),))
    told = replace(head, batch=head.batch + 1, highest_id=ids[19] + 1000)
    damaged.write([*older.records(), *committed.records(), told.record(), FOREIGN])
    adopted = damaged.adopt(nothing_lost=True)
    assert adopted is not None
    assert adopted.incarnation == head.incarnation + 1
    assert damaged.outbox.query("SELECT id FROM outbox ORDER BY id") == [(number,) for number in ids[10:]]
    damaged.drain()
    damaged.outbox.stash(1)
    assert damaged.outbox.query("SELECT id FROM outbox")[0][0] > ids[19] + 1000
