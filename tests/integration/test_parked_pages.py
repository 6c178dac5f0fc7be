"""Pages of parked records on a real Postgres: in order, whole, counted, and cheap however many records are parked."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest
from support.parking import park_by_hand

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.operate.parked_requests import BEHIND, REFUSED, Choice, ListingPlace, Matched, ParkedRequests
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

NAME = OutboxName.parse("outbox")
ALL = Choice(everything=True)
MANY = 150_000
# One topic that is parked whole, one in which each record was refused, and a hundred small ones.
PARK_MANY = """
INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values,
                           incarnation, cause, reason, transaction_id)
SELECT n, now(),
       CASE WHEN n <= %(many)s * 0.4 THEN 'whole' WHEN n <= %(many)s * 0.9 THEN 'each' ELSE 'small' || n %% 100 END,
       'k' || n %% 5000, 'v', '{}', '{}', 1,
       CASE WHEN n = 1 THEN 'unknown_topic' WHEN n <= %(many)s * 0.4 THEN NULL WHEN n <= %(many)s * 0.9 THEN 'too_large'
            WHEN n %% 10 = 0 THEN 'refused' END,
       'because', '7'
FROM generate_series(1, %(many)s::integer) AS n
"""


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME)
        yield connection


@pytest.fixture
def requests(connection: psycopg.Connection[Any]) -> ParkedRequests:
    return ParkedRequests(connection, NAME)


def paged(requests: ParkedRequests, choice: Choice, *, discarded: bool = False) -> list[tuple[str, int]]:
    """Topic and id of all records that match, read two at a time."""
    found: list[tuple[str, int]] = []
    after = None
    while page := requests.page(choice, discarded=discarded, after=after, limit=2):
        found += [(row["topic"], row["id"]) for row in page]
        last = page[-1]
        after = ListingPlace(last["topic"], last["number"], last["cause"])
    return found


def test_pages_hold_each_record_once_in_order(connection: psycopg.Connection[Any], requests: ParkedRequests) -> None:
    park_by_hand(connection, "a", "b", "a", topic="t2", cause="too_large")
    park_by_hand(connection, "a", "c", topic="t1", cause=None)
    park_by_hand(connection, "a", topic="t3", cause="refused")
    in_topic_2 = [("t2", number) for number in range(3)]
    in_topic_1 = [("t1", 0), ("t1", 1)]
    assert paged(requests, ALL) == [*in_topic_1, *in_topic_2, ("t3", 0)]
    assert paged(requests, Choice(topic="t2")) == in_topic_2
    assert paged(requests, Choice(key="a")) == [("t1", 0), ("t2", 0), ("t2", 2), ("t3", 0)]
    assert paged(requests, Choice(topic="t2", key="a")) == [("t2", 0), ("t2", 2)]
    assert paged(requests, Choice(cause="too_large")) == in_topic_2
    assert paged(requests, Choice(cause=REFUSED)) == [("t3", 0), *in_topic_2]  # by cause
    assert paged(requests, Choice(cause=BEHIND)) == in_topic_1
    assert paged(requests, Choice(cause=REFUSED, topic="t2", key="b")) == [("t2", 1)]
    assert requests.topics() == ["t1", "t2", "t3"]
    assert requests.topics(limit=2) == ["t1", "t2"]
    connection.execute("UPDATE outbox_parked SET discarded_at = now() WHERE kafka_topic = 't2'")
    assert paged(requests, ALL) == [*in_topic_1, ("t3", 0)]
    assert paged(requests, ALL, discarded=True) == in_topic_2
    assert paged(requests, Choice(cause=REFUSED), discarded=True) == in_topic_2
    assert paged(requests, Choice(key="b"), discarded=True) == [("t2", 1)]  # its topic has none that waits
    assert [row["id"] for row in requests.whole(Choice(key="b"))] == [1]


@pytest.mark.parametrize("kind", ["text", "bytea"])
def test_a_key_of_any_length_is_found(database: str, kind: str) -> None:
    keys = ["k" * 100, "k" * 101, "ü" * 50, "ü" * 51, "k" * 50_000]
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, NAME, key_type=kind)
        park_by_hand(connection, *(key.encode() if kind == "bytea" else key for key in keys))
        requests = ParkedRequests(connection, NAME)
        for number, key in enumerate(keys):
            assert paged(requests, Choice(key=key)) == [("t", number)]
            assert requests.ask("retry", Choice(key=key, topic="t")) == 1
        row = requests.page(ALL)[-1]
        assert (len(row["key"]), row["key_size"]) == (200, 50_000)


def test_an_action_means_what_was_counted(connection: psycopg.Connection[Any], requests: ParkedRequests) -> None:
    park_by_hand(connection, "a", "b")
    matched = requests.matched(ALL)
    assert (matched.records, matched.is_exact) == (2, True)
    park_by_hand(connection, "c")  # while somebody reads how many there are
    assert requests.ask("discard", Choice(everything=True, up_to=matched.up_to), reason="why") == 2
    assert [row["requested"] for row in requests.page(ALL)] == ["discard", "discard", None]
    assert requests.ask("retry", Choice(numbers=(matched.up_to,))) == 1
    assert requests.matched(ALL, discarded=True).records == 0


def test_a_record_is_shown_with_the_beginnings_of_what_is_long(
    connection: psycopg.Connection[Any], requests: ParkedRequests
) -> None:
    park_by_hand(connection, "a", value="v")
    connection.execute("ALTER TABLE outbox_parked ALTER kafka_value TYPE text")
    connection.execute(
        "UPDATE outbox_parked SET kafka_value = repeat('ü', 100000),"
        " kafka_header_keys = array_fill('h'::text, ARRAY[300]),"
        " kafka_header_values = array_fill(repeat('x', 9999), ARRAY[300])"
    )
    record = requests.record(requests.page(ALL)[0]["number"])
    assert record is not None
    assert (len(record["value"]), record["value_size"]) == (65_536, 200_000)
    assert (len(record["header_values"]), record["headers"]) == (100, 300)
    assert {len(value) for value in record["header_values"]} == {4096}
    assert requests.record(0) is None


def test_what_is_no_cause_is_refused() -> None:
    with pytest.raises(ConfigurationError, match="no cause"):
        Choice(cause="drop table")


def plan(connection: psycopg.Connection[Any], query: bytes) -> str:
    return "\n".join(line for (line,) in connection.execute(b"EXPLAIN " + query).fetchall())


def test_a_page_reads_an_index_and_sorts_nothing(connection: psycopg.Connection[Any], database: str) -> None:
    connection.execute(PARK_MANY, {"many": MANY})
    connection.execute("VACUUM ANALYZE outbox_parked")
    sent: list[bytes] = []

    class Noting(psycopg.ClientCursor[Any]):
        def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
            sent.append(self.mogrify(query, params).encode())
            return super().execute(query, params, **options)

    counts: dict[Choice, Matched] = {}
    with psycopg.connect(database, autocommit=True, cursor_factory=Noting) as noted:
        requests = ParkedRequests(noted, NAME)
        sent.clear()
        for choice in (
            ALL,
            Choice(topic="whole"),
            Choice(topic="each"),
            Choice(topic="whole", key="k17"),
            Choice(key="k17"),
            Choice(cause="refused"),
            Choice(cause="too_large"),
            Choice(cause=REFUSED),
            Choice(cause=REFUSED, topic="whole"),
            Choice(cause="too_large", topic="whole"),
            Choice(cause="too_large", key="k17"),
            Choice(numbers=(MANY // 2,)),
        ):
            page = requests.page(choice)
            if len(page) == 100:
                requests.page(choice, after=ListingPlace(page[-1]["topic"], page[-1]["number"], page[-1]["cause"]))
            counts[choice] = requests.matched(choice)
        requests.record(MANY // 2)
        requests.topics()
    assert (counts[ALL].records, counts[ALL].is_exact) == (100_000, False)
    assert (counts[Choice(cause="refused")].records, counts[Choice(cause="refused")].is_exact) == (MANY // 100, True)
    assert counts[Choice(cause=REFUSED, topic="whole")].records == 1
    for query in sent:
        steps = plan(connection, query)
        if b"AS counted" not in query:  # which stops at the bound, however it reads
            assert "Seq Scan on outbox_parked" not in steps, (query, steps)
        # A key's few records may be sorted.
        assert "Sort" not in steps or b"k17" in query or b"number = ANY" in query, (query, steps)
