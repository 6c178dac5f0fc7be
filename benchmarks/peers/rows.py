"""The rows that are published: the same for every contender, whatever its table looks like."""

from __future__ import annotations

import random
import re
import uuid
from collections.abc import Iterable
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
    """What rows are like: over how many keys they are spread, and how many bytes a value has."""

    name: str
    keys: int
    value_bytes: int

    def key(self, number: int) -> str:
        return f"customer-{number % self.keys}"

    def value(self, number: int) -> str:
        """JSON with the row's number, and words that compress about as well as words do."""
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
    """The row's number, from the value that arrived; None of a value that is not of these rows."""
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
    """How a contender's table takes rows: by which COPY, and which text of a row."""

    table: str
    columns: str
    row: str
    """Tab-separated, with {topic}, {key}, {value}, {header}, {header_value} and {uuid}."""

    def text(self, shape: Shape, topic: str, numbers: Iterable[int]) -> str:
        """Rows as COPY reads them."""
        name, header_value = HEADER
        return "".join(
            self.row.format(
                topic=topic,
                key=shape.key(number),
                value=shape.value(number),
                header=name,
                header_value=header_value,
                uuid=uuid.UUID(int=number),
            )
            for number in numbers
        )

    def write(self, connection: psycopg.Connection[Any], shape: Shape, topic: str, numbers: Iterable[int]) -> None:
        """Insert rows by one statement, and so, on a connection with autocommit, in one transaction."""
        with connection.cursor() as cursor, cursor.copy(f"COPY {self.table} ({self.columns}) FROM STDIN") as copy:
            copy.write(self.text(shape, topic, numbers))

    def load(self, dsn: str, shape: Shape, topic: str, rows: int) -> None:
        """Fill the table, in transactions of 100 rows, and leave nothing for background workers to do."""
        with psycopg.connect(dsn, autocommit=True) as connection:
            connection.execute("SET synchronous_commit = off")
            for start in range(0, rows, LOADED_TOGETHER):
                self.write(connection, shape, topic, range(start, min(start + LOADED_TOGETHER, rows)))
            connection.execute("SET synchronous_commit = on")
            connection.execute(f"VACUUM (ANALYZE) {self.table}")
            connection.execute("CHECKPOINT")


OUTBOX = Layout(
    table="outbox",
    columns="create_time, kafka_topic, kafka_key, kafka_value, kafka_header_keys, kafka_header_values",
    row="now\t{topic}\t{key}\t{value}\t{{{header}}}\t{{{header_value}}}\n",
)
"""goharvest's columns, which this project's table has, too."""
OUTBOX_EVENT = Layout(
    table="outboxevent",
    columns="id, aggregatetype, aggregateid, type, payload",
    row="{uuid}\t{topic}\t{key}\tcreated\t{value}\n",
)
"""Debezium's; the id becomes a header."""
