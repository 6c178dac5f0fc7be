"""The rows that are published: the same for every contender, whichever table it uses."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

LOADED_TOGETHER = 100
"""Rows a transaction while a backlog is loaded."""
HEADER = ("source", "bench")
_FILLING_CHARACTERS = 1 << 20
_NUMBER = re.compile(rb'\{"id":(\d+),')


@dataclass(frozen=True, slots=True)
class Shape:
    """The shape of rows: how many keys they are spread over, and how many bytes a value has."""

    name: str
    keys: int
    value_bytes: int

    def key(self, number: int) -> str:
        return f"customer-{number % self.keys}"

    def value(self, number: int) -> str:
        """JSON with the row's number, and words that compress about as well as real words."""
        begun = f'{{"id":{number},"note":"'
        length = self.value_bytes - len(begun) - 2
        start = number * 7919 % (_FILLING_CHARACTERS - length)
        return f'{begun}{_FILLING[start : start + length]}"}}'


SHAPES = {
    shape.name: shape
    for shape in (
        Shape("keys", keys=10_000, value_bytes=100),
        Shape("hot", keys=1, value_bytes=100),
        Shape("large", keys=10_000, value_bytes=1000),
    )
}


def number_of(value: bytes) -> int | None:
    """The row's number, from the value that arrived; None for a value that is not one of these rows."""
    found = _NUMBER.match(value)
    return int(found[1]) if found else None


def _filling() -> str:
    drawn = random.Random(0)
    words = ["".join(drawn.choices("abcdefghijklmnopqrstuvwxyz", k=drawn.randint(2, 9))) for _ in range(4000)]
    text = " ".join(drawn.choices(words, k=_FILLING_CHARACTERS // 4))
    return text[:_FILLING_CHARACTERS]


_FILLING = _filling()


@dataclass(frozen=True, slots=True)
class Layout:
    """How a contender's table takes rows."""

    table: str
    columns: Mapping[str, str]
    """The text for each column, with {topic}, {key}, {value}, {header}, {header_value} and {uuid}."""

    def values(self, shape: Shape, topic: str, number: int) -> list[str]:
        """A row, as one text a column."""
        name, header_value = HEADER
        known = {"topic": topic, "key": shape.key(number), "value": shape.value(number), "uuid": uuid.UUID(int=number)}
        return [text.format(**known, header=name, header_value=header_value) for text in self.columns.values()]

    def insert(self, rows: int) -> str:
        """The statement that inserts so many rows; its parameters are the rows one after the other."""
        row = f"({', '.join(['%s'] * len(self.columns))})"
        return f"INSERT INTO {self.table} ({', '.join(self.columns)}) VALUES {', '.join([row] * rows)}"

    def write(self, connection: psycopg.Connection[Any], shape: Shape, topic: str, numbers: Iterable[int]) -> None:
        """Write rows by one COPY, and so, on a connection with autocommit, in one transaction."""
        text = "".join("\t".join(self.values(shape, topic, number)) + "\n" for number in numbers)
        statement = f"COPY {self.table} ({', '.join(self.columns)}) FROM STDIN"
        with connection.cursor() as cursor, cursor.copy(statement.encode()) as copy:
            copy.write(text)

    def load(self, dsn: str, shape: Shape, topic: str, rows: int) -> None:
        """Fill the table, in transactions of 100 rows, and leave nothing for background workers to do."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for start in range(0, rows, LOADED_TOGETHER):
                self.write(connection, shape, topic, range(start, min(start + LOADED_TOGETHER, rows)))
            connection.execute("SET synchronous_commit = on")
            connection.execute(f"VACUUM (ANALYZE) {self.table}".encode())
            connection.execute("CHECKPOINT")


OUTBOX = Layout(
    "outbox",
    {
        "create_time": "now",
        "kafka_topic": "{topic}",
        "kafka_key": "{key}",
        "kafka_value": "{value}",
        "kafka_header_keys": "{{{header}}}",
        "kafka_header_values": "{{{header_value}}}",
    },
)
"""goharvest's columns, which this project's table also has."""
OUTBOX_EVENT = Layout(
    "outboxevent",
    {"id": "{uuid}", "aggregatetype": "{topic}", "aggregateid": "{key}", "type": "created", "payload": "{value}"},
)
"""Debezium's; the id becomes a header."""
LAYOUTS = {layout.table: layout for layout in (OUTBOX, OUTBOX_EVENT)}
