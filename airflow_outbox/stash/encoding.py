"""The rules of Kafka and the outbox for records, and the form in which a record travels to Postgres."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from airflow_outbox.errors import InvalidRecordError
from airflow_outbox.postgres.columns import Column
from airflow_outbox.postgres.names import is_an_outboxs_own, is_kafkas_own
from airflow_outbox.values.records import OutboxRecord

_TOPIC = re.compile(r"[A-Za-z0-9._-]+")
_MAX_TOPIC_LENGTH = 249  # Kafka's own limit
_MAX_PARTITION = 2**31 - 1


def encoded_record(place: int, record: OutboxRecord, columns: Mapping[str, Column]) -> dict[str, Any]:
    """Return a record as the JSON object that the statement takes; `place` is its place in the call.

    Raises InvalidRecordError.
    """

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
    if is_an_outboxs_own(topic):
        return f"{topic!r} has the name of an outbox's own topic. Choose another name"
    return None


def _partition_problem(partition: Any, columns: Mapping[str, Column]) -> str | None:
    if partition is None:
        return None
    if "kafka_partition" not in columns:
        return "the outbox has no column kafka_partition; add it (INTEGER), or leave the partition to the key"
    if not isinstance(partition, int) or isinstance(partition, bool) or not 0 <= partition <= _MAX_PARTITION:
        return f"{partition!r} is not a partition's number: give 0 or more"
    return None
