"""The demo's checker: do the records that a plain consumer reads, and the tables, agree with the input file?

It knows the input (`flights.py`), Kafka and Postgres, and nothing of how records get from one to the other. The
`source-row` header names the row of the file that a record stands for.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from typing import Any, cast

import psycopg
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from psycopg.rows import dict_row

from airflow_outbox.demo.flights import SCHEMA, Flight

_SHOWN_PROBLEMS = 10


@dataclass(frozen=True, slots=True)
class Delivered:
    """A record as a consumer got it. The records of one partition are compared in the order of their arrival."""

    topic: str
    partition: int
    key: str
    value: str | None
    headers: tuple[tuple[str, str], ...]

    @property
    def source_row(self) -> int | None:
        """The row of the input that the record stands for; None when its header doesn't say."""
        found = dict(self.headers).get("source-row", "")
        return int(found) if found.isascii() and found.isdigit() else None


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check. `problems` describes the first faults in words; it is empty when nothing is wrong.

    - `delivered`: all records that arrived, right or wrong.
    - `missing`: rows of the input without a right record (one with the row's topic, key, headers and value).
    - `duplicates`: records beyond the first of a row.
    - `out_of_order`: rows that first arrived after a later row of the same topic and key, or in another partition than
      earlier rows of that key.
    """

    delivered: int
    missing: int
    duplicates: int
    out_of_order: int
    problems: tuple[str, ...]


def compare(flights: Iterable[Flight], delivered: Iterable[Delivered]) -> CheckResult:
    """Compare what arrived with what had to."""
    arrivals: dict[int, list[Delivered]] = defaultdict(list)
    latest: dict[tuple[str, str], tuple[int, int]] = {}
    count, out_of_order, problems = 0, 0, []
    for record in delivered:
        count += 1
        row = record.source_row
        if row is None:
            problems.append(f"a record of {record.topic} has no source-row: {record}")
            continue
        if row not in arrivals:
            partition, highest = latest.get((record.topic, record.key), (record.partition, 0))
            if record.partition != partition or row < highest:
                out_of_order += 1
                problems.append(f"row {row} is out of order: {record.topic}, key {record.key}, after row {highest}")
            latest[record.topic, record.key] = (record.partition, max(row, highest))
        arrivals[row].append(record)
    duplicates = sum(len(records) - 1 for records in arrivals.values())
    problems += [f"row {row} arrived {len(records)} times" for row, records in arrivals.items() if len(records) > 1]

    missing = 0
    for flight in flights:
        wrongs = [_wrong(flight, record) for record in arrivals.pop(flight.source_row, [])]
        if not wrongs:
            problems.append(f"row {flight.source_row} did not arrive")
        problems += [f"row {flight.source_row} arrived with {wrong}" for wrong in wrongs if wrong]
        missing += None not in wrongs
    problems += [f"row {row} arrived and is not in the input" for row in arrivals]
    return CheckResult(count, missing, duplicates, out_of_order, tuple(problems))


def _wrong(flight: Flight, record: Delivered) -> str | None:
    """How a record differs from the input; None when it is right."""
    if record.topic != flight.topic:
        return f"topic {record.topic}, not {flight.topic}"
    if record.key != flight.key:
        return f"key {record.key}, not {flight.key}"
    if sorted(record.headers) != [("schema", SCHEMA), ("source-row", str(flight.source_row))]:
        return f"headers {record.headers}"
    try:
        value = json.loads(record.value or "null")
    except ValueError:
        value = record.value
    return None if value == flight.event() else f"value {record.value}, not {json.dumps(flight.event())}"


def compare_tables(flights: Sequence[Flight], connection: psycopg.Connection[Any]) -> list[str]:
    """The faults of the business tables: `flights` row by row, and the counts and sums of `daily_delays`."""
    problems = []
    expected = {flight.source_row: asdict(flight) for flight in flights}
    with connection.cursor(row_factory=dict_row) as cursor:
        for row in cursor.execute("SELECT * FROM flights"):
            wanted = expected.pop(row["source_row"], None)
            if row != wanted:
                problems.append(f"table flights has {row}, but the input has {wanted}")
        problems += [f"table flights lacks row {row}" for row in expected]

        days: dict[tuple[Any, str], list[int]] = defaultdict(lambda: [0, 0, 0])
        for flight in flights:
            sums = days[flight.day, flight.origin]
            sums[0] += 1
            sums[1] += flight.status == "cancelled"
            sums[2] += flight.departure_delay or 0
        rows = cursor.execute("SELECT day, origin, flights, cancelled, departure_delay FROM daily_delays").fetchall()
    found = {
        (row["day"], row["origin"]): [row["flights"], row["cancelled"], int(row["departure_delay"])] for row in rows
    }
    for day in sorted(days.keys() | found.keys()):
        if days.get(day) != found.get(day):
            problems.append(
                f"table daily_delays has {found.get(day)} for {day[0]} {day[1]}, but the input has {days.get(day)}"
            )
    return problems


def shown(problems: Sequence[str]) -> list[str]:
    """The first problems, and how many more there are."""
    more = len(problems) - _SHOWN_PROBLEMS
    return [*problems[:_SHOWN_PROBLEMS], *([f"and {more} more"] if more > 0 else [])]


class TopicReader:
    """Reads topics from their beginning, and keeps what it has read. It joins no group and commits nothing."""

    def __init__(self, bootstrap_servers: str, topics: Sequence[str]) -> None:
        self.delivered: list[Delivered] = []
        self._consumer = Consumer(
            {
                "bootstrap.servers": bootstrap_servers,
                "group.id": "none",  # librdkafka wants one; unused without subscribe() and commit()
                "enable.auto.commit": False,
                "auto.offset.reset": "error",
                "enable.partition.eof": True,
                "log_level": 3,
            }
        )
        listing = self._consumer.list_topics(timeout=10.0).topics
        self._positions = {(topic, partition): 0 for topic in topics for partition in listing[topic].partitions}
        self._consumer.assign([TopicPartition(topic, partition, 0) for topic, partition in self._positions])

    def read(self, timeout: float) -> int:
        """Take the records that arrive within `timeout` seconds; return how many."""
        before = len(self.delivered)
        for message in self._consumer.consume(10_000, timeout):
            place = str(message.topic()), int(message.partition() or 0)
            offset, error = int(message.offset() or 0), message.error()
            if error is not None:
                if error.code() != KafkaError._PARTITION_EOF:
                    raise KafkaException(error)
                self._positions[place] = offset  # also past the markers of Kafka's transactions, which are no records
                continue
            pairs = cast("list[tuple[str, bytes | None]]", message.headers() or [])
            headers = tuple((name, _text(content) or "") for name, content in pairs)
            self.delivered.append(Delivered(*place, _text(message.key()) or "", _text(message.value()), headers))
            self._positions[place] = offset + 1
        return len(self.delivered) - before

    def read_to_end(self) -> None:
        """Take all records that the topics hold now."""
        ends = {
            place: self._consumer.get_watermark_offsets(TopicPartition(*place), timeout=10.0, cached=False)[1]
            for place in self._positions
        }
        while any(self._positions[place] < end for place, end in ends.items()):
            self.read(0.5)

    def close(self) -> None:
        self._consumer.close()


def _text(content: str | bytes | None) -> str | None:
    return content.decode("utf-8", "backslashreplace") if isinstance(content, bytes) else content
