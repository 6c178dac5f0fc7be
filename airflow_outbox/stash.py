"""Stash records: write them into the outbox inside the caller's own transaction.

The records and the business rows become visible together, when the caller commits, or not at all. One statement
carries any number of records; the records of one call get ids in the order in which they were given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID
from weakref import WeakKeyDictionary

import psycopg
from psycopg.rows import tuple_row

from airflow_outbox.errors import InvalidRecordError, OutboxMissingError, UnsupportedConnectionError
from airflow_outbox.postgres.columns import Column, column_types
from airflow_outbox.postgres.names import OutboxName, is_kafkas_own
from airflow_outbox.postgres.statements import composed
from airflow_outbox.values.records import OutboxRecord, Ticket

if TYPE_CHECKING:
    from sqlalchemy.engine import Connection as SQLAlchemyConnection
    from sqlalchemy.orm import Session

    Connectable = psycopg.Connection[Any] | SQLAlchemyConnection | Session

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_MAX_TOPIC_LENGTH = 249  # Kafka's own limit
_MAX_PARTITION = 2**31 - 1

_Execute = Callable[[str, dict[str, Any]], list[tuple[Any, ...]]]
_known_columns: WeakKeyDictionary[Any, dict[OutboxName, Mapping[str, Column]]] = WeakKeyDictionary()


def stash(connection: Connectable, records: OutboxRecord | Iterable[OutboxRecord], *, outbox: str = "outbox") -> Ticket:
    """Write one record or many into `outbox` (`table` or `schema.table`) in the caller's transaction.

    `connection` is a psycopg connection, or a SQLAlchemy connection or session over psycopg or psycopg2. Nothing is
    committed here. Returns the ticket of the transaction.

    Raises InvalidRecordError, before anything is written, for a record that Kafka or the table can't take;
    OutboxMissingError when there is no outbox; UnsupportedConnectionError; and the driver's own errors when Postgres
    refuses.
    """
    name = OutboxName.parse(outbox)
    execute, owner = _executor(connection)
    columns = _columns(owner, execute, name)
    batch = [records] if isinstance(records, OutboxRecord) else list(records)
    rows = [_row(place, record, columns) for place, record in enumerate(batch)]
    statement = "stash_with_partition" if "kafka_partition" in columns else "stash"
    query = composed(f"stash.{statement}", name, **column_types(columns)).as_string(None)
    tickets = execute(query, {"records": json.dumps(rows, separators=(",", ":"))})
    if not tickets:
        raise OutboxMissingError(f"{name.text('state')} is empty. Roll back and run `airflow-outbox init`")
    outbox_id, incarnation, transaction_id = tickets[0]
    return Ticket(UUID(outbox_id), incarnation, int(transaction_id))


def _executor(connection: Any) -> tuple[_Execute, Any]:
    """How to run a statement on the caller's connection, and the object to keep knowledge about its database with."""
    if isinstance(connection, psycopg.Connection):

        def execute(query: str, values: dict[str, Any]) -> list[tuple[Any, ...]]:
            with connection.cursor(row_factory=tuple_row) as cursor:
                return list(cursor.execute(cast("Any", query), values))

        return execute, connection
    if (
        hasattr(connection, "connection")
        and hasattr(connection, "get_bind")
        and not hasattr(connection, "exec_driver_sql")
    ):
        connection = connection.connection()  # a session lends the connection of its transaction
    driver = getattr(getattr(connection, "dialect", None), "driver", None)
    if driver not in {"psycopg", "psycopg2"} or not hasattr(connection, "exec_driver_sql"):
        raise UnsupportedConnectionError
    return lambda query, values: [tuple(row) for row in connection.exec_driver_sql(query, values)], connection.engine


def _columns(owner: Any, execute: _Execute, name: OutboxName) -> Mapping[str, Column]:
    known = _known_columns.setdefault(owner, {})
    if name not in known:
        found = execute(composed("connection.columns").as_string(None), {"table": name.text()})
        if not found:
            raise OutboxMissingError(
                f"there is no table {name} on the search path. Run `airflow-outbox init`, or name its schema"
            )
        known[name] = {column: Column(kind, max_length) for column, kind, max_length in found}
    return known[name]


def _row(place: int, record: OutboxRecord, columns: Mapping[str, Column]) -> dict[str, Any]:
    """A record as the JSON object that the statement takes. Raises InvalidRecordError."""

    def check(field: str, problem: str | None) -> None:
        if problem:
            raise InvalidRecordError(record=place, field=field, problem=problem)

    def encoded(field: str, value: Any, column: str) -> str:
        text, problem = _encode(value, columns[column])
        check(field, problem)
        return text

    check("topic", topic_problem(record.topic))
    names, values = [], []
    for header in record.header_pairs():
        check(
            "headers",
            None if isinstance(header, tuple) and len(header) == 2 else f"{header!r} is not a pair of name and value",
        )
        header_name, header_value = header
        check("headers", None if isinstance(header_name, str) and header_name else "a header has no name")
        names.append(encoded("headers", header_name, "kafka_header_keys"))
        values.append(encoded("headers", header_value, "kafka_header_values"))
    check("partition", _partition_problem(record.partition, columns))
    return {
        "topic": record.topic,
        "key": encoded("key", record.key, "kafka_key"),
        "value": None if record.value is None else encoded("value", record.value, "kafka_value"),
        "names": names,
        "values": values,
        "partition": record.partition,
    }


def _encode(value: Any, column: Column) -> tuple[str, str | None]:
    """A value as text that Postgres reads into the column, and its fault, if any."""
    if not isinstance(value, str | bytes):
        return "", f"must be text or bytes, not {type(value).__name__}"
    try:
        if column.is_bytes:
            return "\\x" + (value.encode() if isinstance(value, str) else value).hex(), None
        text = value.decode() if isinstance(value, bytes) else value
        text.encode()
    except UnicodeDecodeError:
        return "", "bytes that are not UTF-8 need a BYTEA column: see `airflow-outbox init --help`"
    except UnicodeEncodeError:
        return "", "text with a lone surrogate can't be stored; remove it"
    if "\x00" in text:
        return "", "text with a NUL character needs a BYTEA column: see `airflow-outbox init --help`"
    if column.max_length is not None and len(text) > column.max_length:
        return "", f"{len(text)} characters; the column takes at most {column.max_length}"
    return text, None


def topic_problem(topic: Any) -> str | None:
    """Why this can't be a topic's name; None when it can."""
    if not isinstance(topic, str) or not topic:
        return "must be the name of a topic"
    if len(topic) > _MAX_TOPIC_LENGTH:
        return f"{len(topic)} characters; Kafka allows at most {_MAX_TOPIC_LENGTH}"
    if not _TOPIC.fullmatch(topic) or topic in {".", ".."}:
        return f"{topic!r} is not a legal name: use only letters, digits, '.', '_' and '-'"
    if is_kafkas_own(topic):
        return f"{topic!r} begins with '__': Kafka keeps its own state in such topics. Choose another name"
    return None


def _partition_problem(partition: Any, columns: Mapping[str, Column]) -> str | None:
    if partition is None:
        return None
    if "kafka_partition" not in columns:
        return "the outbox has no column kafka_partition; add it (INTEGER), or leave the partition to the key"
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _MAX_PARTITION:
        return f"{partition!r} is not a partition's number: give 0 or more"
    return None
