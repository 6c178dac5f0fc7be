"""The records whose place Kafka is asked for: they tell where all others are."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import RecordsRefusedError
from airflow_outbox.harvest.kafka import extents_writer
from airflow_outbox.harvest.kafka.delivery_reports import DeliveryReports
from airflow_outbox.harvest.kafka.extents_writer import ExtentsFailures
from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.values.pages import OutboxRow


def row(number: int, topic: str, size: int) -> OutboxRow:
    return number, topic, "key", "value", [], [], None, size, None


@pytest.mark.parametrize("partitions", [1, 4, 40])
@pytest.mark.parametrize("topics", [1, 2])
def test_the_first_and_last_record_of_each_partition_and_large_ones_report(topics: int, partitions: int) -> None:
    book: Any = SimpleNamespace(smallest_max_bytes=1000)
    reports = DeliveryReports({}, ledger=("ledger", 0), book=book)
    chosen = [number * 7 % partitions for number in range(200)]
    rows = [row(number, f"topic-{number % topics}", 600 if number == 150 else 500) for number in range(200)]
    places = [(each[1], partition) for each, partition in zip(rows, chosen, strict=True)]
    counts, found = reports.edges(rows, chosen, {each[1] for each in rows})
    assert counts == {place: places.count(place) for place in places}
    last = len(places) - 1
    edges = {places.index(place) for place in places} | {last - places[::-1].index(place) for place in places}
    assert {number for number, report in enumerate(found) if report} == edges | {150}


MESSAGE: Any = SimpleNamespace(offset=lambda: 7, topic=lambda: "extents")
NOT_TAKEN = [
    BrokerError(code)
    for code in (BrokerError._MSG_TIMED_OUT, BrokerError._TRANSPORT, BrokerError.INVALID_PRODUCER_EPOCH)
]


def of_extents(failures: ExtentsFailures) -> tuple[DeliveryReports, Any]:
    book: Any = SimpleNamespace()
    reports = DeliveryReports({"transactional.id": "x"}, ledger=("ledger", 0), book=book)
    written = list[int]()
    extents = ExtentsToWrite("extents", 0, [("batch/1", "{}")], written.append, failures.refused)
    return reports, reports.extents_report(extents)


@pytest.mark.parametrize("error", NOT_TAKEN)
def test_an_outage_is_not_blamed_on_the_extents(error: BrokerError) -> None:
    failures = ExtentsFailures()
    reports, report = of_extents(failures)
    report(error, MESSAGE)
    assert "extents" not in str(reports.refused)
    assert failures.count == 0
    reports, report = of_extents(failures)
    reports.note_late_extents()
    assert (reports.refused, failures.count) == (None, 0)


@pytest.mark.parametrize("error", NOT_TAKEN)
def test_extents_that_are_not_taken_while_the_ledger_is_are_to_blame(error: BrokerError) -> None:
    failures = ExtentsFailures()
    reports, report = of_extents(failures)
    reports.written(None, MESSAGE)
    report(error, MESSAGE)
    assert "Check topic extents" in str(reports.refused)
    reports, report = of_extents(failures)
    reports.written(None, MESSAGE)
    reports.note_late_extents()
    assert "Check topic extents" in str(reports.refused)
    assert failures.count == 2
    reports, report = of_extents(failures)
    reports.written(None, MESSAGE)
    report(None, MESSAGE)
    reports.note_late_extents()
    assert reports.refused is None


@pytest.mark.parametrize("code", [BrokerError.MSG_SIZE_TOO_LARGE, BrokerError._UNKNOWN_TOPIC])
def test_a_topic_that_takes_no_extents_is_named(code: int) -> None:
    failures = ExtentsFailures()
    reports, report = of_extents(failures)
    report(BrokerError(code), MESSAGE)
    assert "Check topic extents" in str(reports.refused)
    assert failures.count == 1


def test_terms_do_without_extents_twice_as_long_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extents_writer.time, "monotonic", lambda: 1000.0)
    failures = ExtentsFailures()
    pauses = []
    for _ in range(10):
        failures.refused()
        pauses.append(failures.without_until and failures.without_until - 1000.0)
    assert pauses == [0, 30, 60, 120, 240, 480, 960, 1920, 3600, 3600]


def not_added(*topics: str) -> tuple[DeliveryReports, ExtentsFailures]:
    """The reports on a producer whose client has logged that these topics were not added to the transaction."""
    failures = ExtentsFailures()
    reports, _ = of_extents(failures)
    log = reports.new_client()
    for topic in topics:
        log.error('Failed to add partition "%s" [0] to transaction: %s', topic, BrokerError(BrokerError.UNKNOWN).str())
    log.error('Failed to add partition "other" [0] to transaction: Broker: Operation not attempted')
    return reports, failures


def test_a_failed_transaction_is_blamed_on_the_topics_that_were_not_added() -> None:
    reports, failures = not_added("data")
    reports.failed(BrokerError(BrokerError.UNKNOWN), sent_to={"orders"})
    assert isinstance(reports.refused, RecordsRefusedError)
    assert (reports.refused.topics, reports.refused.unclear) == (("data",), True)
    assert failures.count == 0


@pytest.mark.parametrize("own", ["ledger", "extents"])
def test_a_failed_transaction_is_not_blamed_on_records_when_an_own_topic_was_not_added(own: str) -> None:
    reports, failures = not_added("data", own)
    reports.failed(BrokerError(BrokerError.UNKNOWN), sent_to={"orders"})
    assert reports.refused is not None
    assert not isinstance(reports.refused, RecordsRefusedError)
    assert failures.count == (own == "extents")


def test_a_failed_transaction_is_not_blamed_on_records_when_the_producer_has_failed() -> None:
    for error in (BrokerError(BrokerError.UNKNOWN, "simulated", True), BrokerError(BrokerError._PURGE_QUEUE)):
        reports, _ = not_added()
        reports.failed(error, sent_to={"orders"})
        assert not isinstance(reports.refused, RecordsRefusedError)
