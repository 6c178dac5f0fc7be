"""The types that an outbox's key, value and header values may have."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, cast

from psycopg import sql

from airflow_outbox.errors import ConfigurationError

DEFAULT_TYPES = {"kafka_key": "varchar(100)", "kafka_value": "varchar(10000)", "kafka_header_values": "text"}
"""A new outbox's types, unless others are asked for."""
_TYPE = re.compile(r"text|bytea|varchar\([1-9]\d*\)")


@dataclass(frozen=True, slots=True)
class OutboxTypes:
    """The types of an outbox's key, value and header values, as somebody asks for them (None: nobody does).

    Raises ConfigurationError for others than `varchar(n)`, `text` and `bytea`.
    """

    key: str | None = None
    value: str | None = None
    header: str | None = None

    def __post_init__(self) -> None:
        for kind in (self.key, self.value, self.header):
            if kind is not None and not _TYPE.fullmatch(kind.strip().lower()):
                raise ConfigurationError(
                    f"{kind!r} is not a type for a key, value or header: give varchar(n), text or bytea"
                )

    @property
    def asked(self) -> dict[str, str]:
        """The types that somebody asks for, by column."""
        given = {"kafka_key": self.key, "kafka_value": self.value, "kafka_header_values": self.header}
        return {column: kind.strip().lower() for column, kind in given.items() if kind is not None}

    @property
    def parts(self) -> dict[str, sql.SQL]:
        """The parts of `schema.sql` that a new table's types are."""
        kinds = {**DEFAULT_TYPES, **self.asked}
        key, value, header = (sql.SQL(cast("Any", kinds[column])) for column in DEFAULT_TYPES)
        lane = sql.SQL("bytea" if kinds["kafka_key"] == "bytea" else "text")
        return {"key_type": key, "value_type": value, "header_type": header, "lane_type": lane}

    @property
    def signature(self) -> dict[str, sql.SQL]:
        """The types of the arguments of a new table's function that stashes: text or bytes."""
        kinds = {**DEFAULT_TYPES, **self.asked}
        names = ("key_type", "value_type", "header_type")
        texts = ("bytea" if kinds[column] == "bytea" else "text" for column in DEFAULT_TYPES)
        return {name: sql.SQL(cast("Any", text)) for name, text in zip(names, texts, strict=True)}
