"""Stashing in the caller's own transaction, over every kind of connection, against a real Postgres."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import psycopg
import pytest
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy.orm import Session

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.errors import InvalidRecordError, InvalidTicketError, OutboxMissingError, UnsupportedConnectionError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

Transaction = Callable[[], AbstractContextManager[Any]]


@pytest.fixture
def looking(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees only what is committed."""
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        yield connection


@pytest.fixture(
    params=["psycopg", "psycopg with dict rows", "sqlalchemy", "sqlalchemy over psycopg2", "sqlalchemy session"]
)
def transaction(request: pytest.FixtureRequest, database: str, looking: object) -> Transaction:
    """How to open a transaction that commits on exit, and what to pass to stash()."""
    if request.param.startswith("psycopg"):
        rows = dict_row if "dict" in request.param else None
        return lambda: psycopg.connect(database, **({"row_factory": rows} if rows else {}))
    settings = psycopg.conninfo.conninfo_to_dict(database)
    driver = "psycopg2" if "psycopg2" in request.param else "psycopg"
    engine = sqlalchemy.create_engine(f"postgresql+{driver}://", connect_args=settings, poolclass=sqlalchemy.NullPool)
    if "session" not in request.param:
        return engine.begin

    @contextmanager
    def session() -> Iterator[Session]:
        with Session(engine) as opened, opened.begin():
            yield opened

    return session


def rows(
    connection: psycopg.Connection[Any], columns: str = "kafka_topic, kafka_key, kafka_value"
) -> list[tuple[Any, ...]]:
    return connection.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()  # type: ignore[call-overload]


def test_records_become_visible_with_the_callers_commit(
    transaction: Transaction, looking: psycopg.Connection[Any]
) -> None:
    with transaction() as connection:
        ticket = stash(connection, [OutboxRecord("t", f"k{number}", f"v{number}") for number in range(100)])
        assert rows(looking) == []
    assert rows(looking) == [("t", f"k{number}", f"v{number}") for number in range(100)]
    assert {row[0] for row in rows(looking, "transaction_id::text")} == {str(ticket.transaction_id)}
    assert looking.execute("SELECT outbox_id, incarnation FROM outbox_state").fetchone() == (
        ticket.outbox_id,
        ticket.incarnation,
    )


def test_a_rollback_leaves_nothing(transaction: Transaction, looking: psycopg.Connection[Any]) -> None:
    def fail() -> None:
        with transaction() as connection:
            stash(connection, OutboxRecord("t", "k", "v"))
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert rows(looking) == []


def test_every_kind_of_record(transaction: Transaction, looking: psycopg.Connection[Any]) -> None:
    records = [
        OutboxRecord("t", "tombstone", None),
        OutboxRecord("t", b"bytes", "käse \U0001f9c0 \"quoted\" \\ 'and' %s %(x)s {x}".encode()),
        OutboxRecord("t.A_b-9", "", "", {"a": "1", "b": b"2"}),
        OutboxRecord("t", "headers", "v", [("same", "1"), ("same", "2"), ("empty", "")], partition=3),
        OutboxRecord("t", "many", "v", [(f"name {number}", f'va"l,{{}}ue {number}') for number in range(500)]),
    ]
    with transaction() as connection:
        stash(connection, records)
    stored = rows(looking, "kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition")
    assert stored[0] == ("tombstone", None, [], [], None)
    assert stored[1][:2] == ("bytes", "käse \U0001f9c0 \"quoted\" \\ 'and' %s %(x)s {x}")
    assert stored[2] == ("", "", ["a", "b"], ["1", "2"], None)
    assert stored[3][2:] == (["same", "same", "empty"], ["1", "2", ""], 3)
    assert list(zip(*stored[4][2:4], strict=True)) == records[4].header_pairs()


def test_nothing_is_written_for_no_records_but_the_ticket_is_good(
    transaction: Transaction, looking: psycopg.Connection[Any]
) -> None:
    with transaction() as connection:
        ticket = stash(connection, [])
        assert stash(connection, []) == ticket
    assert rows(looking) == []


BAD: list[tuple[OutboxRecord, str, str]] = [
    (OutboxRecord("t" * 250, "k", "v"), "topic", "250 characters; Kafka allows at most 249"),
    (OutboxRecord("a b", "k", "v"), "topic", "not a legal name"),
    (OutboxRecord("..", "k", "v"), "topic", "not a legal name"),
    (OutboxRecord("__consumer_offsets", "k", "v"), "topic", "Kafka keeps its own state"),
    (OutboxRecord(f"airflow-outbox.{uuid.uuid4()}.ledger", "k", "v"), "topic", "an outbox's own topic"),
    (OutboxRecord("täg", "k", "v"), "topic", "not a legal name"),
    (OutboxRecord("t\n", "k", "v"), "topic", "not a legal name"),
    (OutboxRecord("", "k", "v"), "topic", "must be the name of a topic"),
    (OutboxRecord("t", "k" * 101, "v"), "key", "101 characters; the column takes at most 100"),
    (OutboxRecord("t", None, "v"), "key", "must be text or bytes, not NoneType"),  # type: ignore[arg-type]
    (OutboxRecord("t", 7, "v"), "key", "must be text or bytes, not int"),  # type: ignore[arg-type]
    (OutboxRecord("t", b"\xff", "v"), "key", "BYTEA"),
    (OutboxRecord("t", "k", "v" * 10001), "value", "10001 characters; the column takes at most 10000"),
    (OutboxRecord("t", "k", b"\xff"), "value", "BYTEA"),
    (OutboxRecord("t", "k", "a\x00b"), "value", "NUL"),
    (OutboxRecord("t", "k", "\ud800"), "value", "surrogate"),
    (OutboxRecord("t", "k", {"a": 1}), "value", "must be text or bytes, not dict"),  # type: ignore[arg-type]
    (OutboxRecord("t", "k", "v", {"": "x"}), "headers", "a header has no name"),
    (OutboxRecord("t", "k", "v", [(None, "x")]), "headers", "a header has no name"),  # type: ignore[list-item]
    (OutboxRecord("t", "k", "v", {"h": None}), "headers", "not NoneType"),  # type: ignore[dict-item]
    (OutboxRecord("t", "k", "v", ["ab"]), "headers", "not a pair"),  # type: ignore[list-item]
    (OutboxRecord("t", "k", "v", partition=-1), "partition", "not a partition's number"),
]


@pytest.mark.parametrize(("bad", "field", "says"), BAD, ids=[f"{field}: {says}" for _, field, says in BAD])
def test_bad_input_names_the_record_and_the_field_before_anything_is_written(
    database: str, looking: psycopg.Connection[Any], bad: OutboxRecord, field: str, says: str
) -> None:
    with psycopg.connect(database) as connection:
        with pytest.raises(InvalidRecordError, match=f"record 1: {field}: .*{says}.*nothing was written") as caught:
            stash(connection, [OutboxRecord("t", "k", "v"), bad])
        assert (caught.value.record, caught.value.field) == (1, field)
        stash(connection, OutboxRecord("t", "still usable", "v"))
    assert rows(looking, "kafka_key") == [("still usable",)]


def test_bytes_in_bytea_columns(database: str) -> None:
    with psycopg.connect(database) as connection:
        init_outbox(connection, OutboxName.parse("raw"), key_type="bytea", value_type="bytea", header_type="bytea")
        stash(connection, OutboxRecord("t", b"\xff\x00", "text", {"h": b"\x00"}), outbox="raw")
        row = connection.execute("SELECT kafka_key, kafka_value, kafka_header_values FROM raw").fetchone()
    assert row == (b"\xff\x00", b"text", [b"\x00"])


def test_goharvests_table_takes_records_too(database: str) -> None:
    with psycopg.connect(database) as connection:
        connection.execute(
            "CREATE TABLE old (id BIGSERIAL PRIMARY KEY, create_time TIMESTAMP WITH TIME ZONE NOT NULL,"
            " kafka_topic VARCHAR(249) NOT NULL, kafka_key VARCHAR(100) NOT NULL, kafka_value VARCHAR(10000),"
            " kafka_header_keys TEXT[] NOT NULL, kafka_header_values TEXT[] NOT NULL, leader_id UUID)"
        )
        init_outbox(connection, OutboxName.parse("old"))
        stash(connection, OutboxRecord("t", "k", "v"), outbox="old")
        with pytest.raises(InvalidRecordError, match="no column kafka_partition"):
            stash(connection, OutboxRecord("t", "k", "v", partition=1), outbox="old")


def test_an_outbox_without_its_own_row_is_named(database: str) -> None:
    with psycopg.connect(database) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute("DELETE FROM outbox_state")
        with pytest.raises(
            OutboxMissingError, match=r'"outbox_state" is empty. Roll back and run `airflow-outbox init`'
        ):
            stash(connection, OutboxRecord("t", "k", "v"))
        connection.rollback()


def test_a_missing_outbox_is_named_and_the_transaction_goes_on(database: str) -> None:
    with psycopg.connect(database) as connection:
        with pytest.raises(OutboxMissingError, match=r'no table "nowhere" on the search path'):
            stash(connection, OutboxRecord("t", "k", "v"), outbox="nowhere")
        assert connection.execute("SELECT 1").fetchone() == (1,)


def test_other_connections_are_refused() -> None:
    with pytest.raises(UnsupportedConnectionError, match="takes a psycopg connection"):
        stash(object(), OutboxRecord("t", "k", "v"))  # type: ignore[arg-type]
    with sqlalchemy.create_engine("sqlite://").connect() as connection, pytest.raises(UnsupportedConnectionError):
        stash(connection, OutboxRecord("t", "k", "v"))


def test_a_ticket_travels_as_text(database: str, looking: object) -> None:
    with psycopg.connect(database) as connection:
        ticket = stash(connection, OutboxRecord("t", "k", "v"))
    assert Ticket.parse(str(ticket)) == ticket
    assert len(str(ticket)) < 80
    for text in ("", "a/b/c", str(ticket) + "/1", None):
        with pytest.raises(InvalidTicketError, match="Pass on what stash"):
            Ticket.parse(text)  # type: ignore[arg-type]
