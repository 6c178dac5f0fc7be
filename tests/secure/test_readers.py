"""A reader of the ledger or the topics belongs to no group, and needs no permission for one, however long it reads."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import replace

from confluent_kafka import Producer
from secure.broker import Acl
from secure.conftest import MakeOutbox
from support.harvesting import PATIENCE

from airflow_outbox.audit.topics import Span, arrived
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.ledger_reader import LedgerReader
from airflow_outbox.harvest.kafka.names import KafkaNames

LONG = 2.0  # seconds in which Kafka's client has found out that it may not ask for its group's coordinator
RECORDS = 20_000  # more than the audit takes at once


def test_the_ledger_while_a_transaction_is_open_in_it(make_outbox: MakeOutbox) -> None:
    outbox = make_outbox()
    config = HarvestConfig.validated(outbox.settings, source="test")
    topic = outbox.settings["ledger_topic"]
    names = KafkaNames(outbox.leader_topic, outbox.user, topic, outbox.user, "unused", "unused")
    other = Producer({"bootstrap.servers": outbox.bootstrap, "transactional.id": f"{outbox.user}.other"})
    other.init_transactions(PATIENCE)
    other.begin_transaction()
    other.produce(topic, key="batch/1", value="{}", partition=0)
    assert other.flush(PATIENCE) == 0
    with ThreadPoolExecutor(1) as threads:
        reading = threads.submit(LedgerReader(config, names, shard=0).read, 0)
        done, _ = wait([reading], timeout=LONG)
        assert not done, "the transaction was not waited for"
        other.abort_transaction()
        ledger = reading.result(PATIENCE)
    assert ledger == replace(ledger, end=1)


def test_a_topic_that_takes_long(make_outbox: MakeOutbox) -> None:
    outbox = make_outbox()
    outbox.kafka.allow(outbox.user, [Acl("TOPIC", outbox.topic, "READ")])
    producer = Producer({"bootstrap.servers": outbox.bootstrap})
    for number in range(RECORDS):
        producer.produce(outbox.topic, key="k", value=str(number), partition=0)
    assert producer.flush(PATIENCE) == 0
    kafka = HarvestConfig.validated(outbox.settings, source="test").kafka
    records = arrived(kafka, [Span(0, outbox.topic, 0, 0, RECORDS, RECORDS)], ignored_headers=())
    next(records)
    time.sleep(LONG)
    assert sum(1 for _ in records) == RECORDS - 1
