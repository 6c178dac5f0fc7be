"""Whatever Postgres lets in is read, examined, parked and shown without a failure: rows that Hypothesis makes up."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from typing import Any

import psycopg
import pytest
from hostile.innocents import strict_json
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from airflow_outbox.harvest.kafka.partitioner import Partitioner
from airflow_outbox.harvest.kafka.topic import Topic
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.operate.parked_requests import Choice, ParkedRequests, shown
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.pages import PageSnapshot
from airflow_outbox.values.refusals import Cause, Refusal
from airflow_outbox.values.terminal import as_json, as_yaml

NAME = OutboxName.parse("outbox")
TIMES = ("infinity", "-infinity", "294276-12-31 23:59:59.999999+00", "4713-01-01 BC", "2026-11-22", "10000-01-01")
texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), max_size=12)


hexadecimal = st.binary(max_size=12).map(lambda value: f"\\x{value.hex()}")
"""Bytes as Postgres reads them."""


@st.composite
def arrays(draw: st.DrawFn, elements: st.SearchStrategy[str]) -> str:
    """An array as Postgres reads it: of up to three dimensions, with any lower bounds, with nulls."""
    lengths = draw(st.lists(st.integers(1, 3), max_size=3))

    def part(lengths: list[int]) -> str:
        if not lengths:
            text = draw(st.none() | elements)
            return "NULL" if text is None else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'
        return "{" + ",".join(part(lengths[1:]) for _ in range(lengths[0])) + "}"

    lower = [draw(st.integers(-3, 3)) for _ in lengths]
    bounds = "".join(f"[{low}:{low + length - 1}]" for low, length in zip(lower, lengths, strict=True))
    return f"{bounds}={part(lengths)}" if lengths else "{}"


def rows(values: st.SearchStrategy[str]) -> st.SearchStrategy[tuple[Any, ...]]:
    """Rows with these keys, values and header values."""
    return st.tuples(
        texts,
        values,
        st.none() | values,
        arrays(texts),
        arrays(values),
        st.none() | st.integers(-(2**31), 2**31 - 1),
        st.sampled_from(TIMES),
        st.integers(-(2**63) + 1, 2**63 - 1),
    )


ROWS = {"text": rows(texts), "bytea": rows(hexadecimal)}
"""By the type of keys, values and header values."""
INSERT = """INSERT INTO public.outbox (kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
    kafka_partition, create_time, id) VALUES (%s, %s, %s, %s, %s, %s, %s, %s) ON CONFLICT DO NOTHING"""
UNCHECKED = """ALTER TABLE public.outbox
    DROP CONSTRAINT headers_have_one_dimension, DROP CONSTRAINT outbox_kafka_partition_check"""


@dataclass(slots=True)
class Decoded:
    """An outbox whose rows are read in all the ways in which a harvester and an operator read them."""

    connection: psycopg.Connection[Any]
    rows: st.SearchStrategy[tuple[Any, ...]]

    def write(self, written: list[tuple[Any, ...]]) -> int:
        self.connection.execute("TRUNCATE public.outbox, public.outbox_parked")
        for row in written:
            self.connection.execute(INSERT, row)
        return int(self.connection.execute("SELECT count(*) FROM public.outbox").fetchone()[0])  # type: ignore[index]

    def examined(self, records: list[Any]) -> None:
        """Each record is refused, or such that Kafka's client and the partitioner take it."""
        book = TopicCache({})
        book._known_until = float("inf")
        book._topics = {record[1]: Topic(None, partitions=4, max_bytes=1_000) for record in records}
        refused = book.examine(records, again=False)
        passed = [record for record in records if record[0] not in refused]
        for record in passed:
            assert all(isinstance(name, str) for name in record[4])
            assert all(isinstance(value, str | bytes) for value in record[5])
            assert len(record[4]) == len(record[5])
            assert record[6] is None or 0 <= record[6] < 4
        unpartitioned = [(*record[:6], None, 0, None) for record in passed]
        Partitioner("murmur2_random").choose(unpartitioned, {record[1]: 4 for record in passed})


@pytest.fixture(scope="module", params=[*ROWS])
def decoded(postgres: Any, request: pytest.FixtureRequest) -> Iterator[Decoded]:
    kind = request.param
    database = f"fuzz_{uuid.uuid4().hex[:12]}"
    with closing(connect(postgres.create_database(database), purpose="test")) as connection:
        init_outbox(connection, NAME, key_type=kind, value_type=kind, header_type=kind)
        connection.execute(UNCHECKED)
        yield Decoded(connection, ROWS[kind])
    postgres.drop_database(database)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_every_row_that_postgres_lets_in(decoded: Decoded, data: st.DataObject) -> None:
    count = decoded.write(data.draw(st.lists(decoded.rows, min_size=1, max_size=6)))
    table = OutboxTable(decoded.connection, NAME)
    page = table.windows.read(PageSnapshot(), max_records=100, max_bytes=10_000_000, transaction_ids=True)
    assert len(page.rows) == count
    decoded.examined(list(page.rows))
    decoded.connection.execute("UPDATE public.outbox_shard SET view = %s", [view := uuid.uuid4()])
    marked = table.marks.mark(view, max_records=100, max_bytes=10_000_000)
    assert len(marked) == count
    decoded.examined(marked)
    parked = ParkedTable(table)
    parked.park(view, {record.id: Refusal(Cause.HEADERS, record.topic + "\0\udcff") for record in marked}, None)
    lanes, _, _ = parked.lanes(most=count)
    assert sum(keys.total() for keys in lanes.values()) == count
    asked = [(record.topic, record.key) for record in marked]
    assert parked.waiting_lanes(asked, leaving=[]) == set(asked)
    requests = ParkedRequests(decoded.connection, NAME)
    requests.ask("retry", Choice(everything=True))
    due, _ = parked.due(max_records=100, max_bytes=10**9, of_all_lanes=False)
    assert len(due) == count
    for found in (requests.listed(Choice(everything=True)), requests.whole(Choice(everything=True))):
        values = [{name: shown(value) for name, value in row.items()} for row in found]
        strict_json(as_json(values))
        as_yaml(values)
