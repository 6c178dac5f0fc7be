"""The calls to Postgres and Kafka that a batch costs, and that waiting costs: counts, which no busy machine changes.

Postgres' own log is what is counted there, by the harvester's backends. A batch needs one read that returns rows and
one purge; all else is background, and bounded by the second.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator, Sequence

from confluent_kafka import Consumer, TopicPartition
from support.harvesting import PARTITIONS, PATIENCE, Outbox, wait_until
from support.statement_log import Statement

from .counted_harvest import (  # noqa: F401
    BATCH,
    BATCHES,
    FIRST,
    ROWS,
    Harvested,
    harvested_backlog,
    returns_records,
)

MOST_A_SECOND = 20
"""Statements beyond a read and a purge a batch: looks for records, heartbeats, looks at the fence."""
SOON_LOOKS = 25
"""Looks that follow soon on the last read that returned rows, before they are a tenth of a second apart, at most."""
LEDGER_RECORDS = 4
"""A batch in the ledger, at most: its transaction's first record, its entry, the head, and the end of an old entry."""
IDLE_SECONDS = 5.0
WAITING = {"look", "read_window", "heartbeat", "holds_fence"}
"""What a leader says to Postgres that waits."""
AT_REST = 15
"""So many of these, one after the other, come only when nothing else is left to do."""
ONCE = {"begin_session", "backend_pid", "notice_hang_ups"}
"""What sets a connection up."""
BY_THE_CLOCK = """
SELECT application_name, pid FROM pg_stat_activity
WHERE datname = current_database() AND application_name IN ('airflow-outbox observe', 'airflow-outbox history')
"""
LOOK_SECONDS, NOTE_SECONDS = 5.0, 10.0
MOST_A_LOOK = 12
"""Statements of a look at the outbox as a whole; the first one asks where its table is, too."""


def test_a_batch_is_one_read_and_one_purge(harvested: Harvested) -> None:
    reads = [statement.rows for statement in harvested.statements if returns_records(statement)]
    assert reads == [FIRST + 1] + [BATCH + 1] * (BATCHES - 1)
    names = Counter(statement.name for statement in harvested.statements)
    assert names["purge_published"] == BATCHES
    # Nothing else comes with a batch, and what comes by the second is known. Once, or on a busy machine now and then,
    # the log is brought to disk: the first look at rows has written hints into it. The connection that looks is set up
    # when it is needed first.
    by_the_second, rare = {"heartbeat", "holds_fence"}, {"flushed", "flush"}
    assert names.keys() <= {"read_window", "read_on", "look", "purge_published"} | by_the_second | rare | ONCE, names
    assert all(names[name] <= 1 for name in ONCE), names
    assert all(names[name] <= BATCHES for name in rare), names
    background = len(harvested.statements) - 2 * BATCHES - sum(names[name] for name in rare)
    assert background <= MOST_A_SECOND * harvested.seconds + SOON_LOOKS, names
    assert names["heartbeat"] <= harvested.seconds + 1
    assert not any("get_byte" in statement.text for statement in harvested.statements), "one shard reckons no slot"


def test_a_batch_is_one_commit_and_few_delivery_reports(harvested: Harvested) -> None:
    counted = harvested.counted
    assert ROWS < counted["produced"] <= ROWS + LEDGER_RECORDS * BATCHES
    assert counted["begun"] == counted["commits"] == BATCHES
    assert counted["flushes"] == 2 * BATCHES  # one tells the offsets, which the ledger's entry is made of
    assert counted["reports"] <= (2 * PARTITIONS + LEDGER_RECORDS) * BATCHES
    # The next batches tell what can be read. On a busy machine they may come too late for that.
    assert counted.get("asked", 0) <= BATCHES
    assert set(ends_of_transactions(harvested.outbox)) <= {0, BATCHES}
    assert len(harvested.outbox.committed()) == ROWS


def test_a_batch_goes_to_another_thread_four_times(harvested: Harvested) -> None:
    """To be read, sent, committed and purged. Each time costs a small batch more than the work that is done there."""
    before, calls = harvested.counted_first, Counter(harvested.counted)
    calls.subtract(before)
    seconds, batches = harvested.seconds + 1, BATCHES - 1
    # The second batch may have been sent before the first commit. A producer is renewed after a batch that took long.
    assert 2 * batches - 1 <= calls["outbox-publish"] - calls["producers"] <= 2 * batches
    brought_to_disk = sum(statement.name == "flushed" for statement in harvested.statements)  # rare, as above
    assert calls["outbox-purge"] <= batches + 1 + brought_to_disk + seconds
    assert calls["outbox-mark"] <= batches + SOON_LOOKS + MOST_A_SECOND * seconds


def test_waiting_costs_a_bounded_number_of_statements(harvested: Harvested) -> None:
    def names_of(statements: Sequence[Statement]) -> list[str | None]:
        return [statement.name for statement in statements]

    def waits() -> bool:
        """The last ones of the backlog's statements are over."""
        newest = names_of(harvested.log.statements(harvested.backends, since=harvested.log.start))[-AT_REST:]
        return set(newest) <= WAITING

    wait_until(waits)
    before = harvested.snapshot()
    start, began = harvested.log.end, time.monotonic()
    time.sleep(IDLE_SECONDS)
    wait_until(lambda: len(harvested.log.statements(harvested.backends, since=start)) > IDLE_SECONDS, doing="looks")
    end, seconds = harvested.log.end, time.monotonic() - began
    found = harvested.log.statements(harvested.backends, since=start, until=end)
    names = Counter(names_of(found))
    assert names.keys() <= WAITING
    # Nothing is read that can't have changed. Each transaction of the server, as other tests have them, begins and
    # ends.
    changes = len(before.in_progress) + 2 * (harvested.snapshot().xmax - before.xmax)
    assert names["read_window"] <= changes
    assert names["read_window"] <= names["look"] + 1  # one may have looked before
    assert len(found) <= seconds * MOST_A_SECOND, names


def test_looks_at_the_whole_and_notes_come_by_the_clock_on_connections_of_their_own(
    harvested: Harvested,
) -> None:
    wait_until(lambda: len(harvested.outbox.query(BY_THE_CLOCK)) == 2)
    backends = dict(harvested.outbox.query(BY_THE_CLOCK))
    start, began = harvested.log.end, time.monotonic()
    time.sleep(2 * LOOK_SECONDS + 1)

    def looks(until: int | None) -> int:
        backend = backends["airflow-outbox observe"]
        return len(harvested.log.statements([backend], since=start, until=until))

    wait_until(lambda: looks(None) >= MOST_A_LOOK // 2, doing="looks")
    end, seconds = harvested.log.end, time.monotonic() - began
    assert looks(end) <= MOST_A_LOOK * (seconds / LOOK_SECONDS + 1)

    def notes(until: int | None) -> list[str | None]:
        found = harvested.log.statements([backends["airflow-outbox history"]], since=start, until=until)
        return [statement.name for statement in found]

    assert len(notes(end)) <= seconds / NOTE_SECONDS + 1
    wait_until(lambda: "note" in notes(None))
    assert set(notes(None)) <= {"note"} | ONCE


def ends_of_transactions(outbox: Outbox) -> Iterator[int]:
    """How many offsets of each partition are no records: Kafka notes there that a transaction has ended."""
    records = Counter(message.partition() for message in outbox.committed())
    consumer = Consumer({"bootstrap.servers": outbox.bootstrap, "group.id": "unused"})
    try:
        for number in range(PARTITIONS):
            _, end = consumer.get_watermark_offsets(TopicPartition(outbox.topic, number), timeout=PATIENCE)
            yield end - records[number]
    finally:
        consumer.close()
