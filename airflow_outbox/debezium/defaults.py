"""The computed defaults of columns. Debezium has a placeholder for them: in schemas, and where a column is null."""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import Enum
from typing import Any

from airflow_outbox.debezium.table import SourceColumn

_FUNCTION = re.compile(r"\(?[A-Za-z0-9_.]+\(.*\)", re.DOTALL)
_NOW = ("CURRENT_TIMESTAMP", "CURRENT_DATE", "LOCALTIMESTAMP")
_TIMES = ("date", "timestamp without time zone", "timestamp with time zone")


@dataclass(frozen=True, slots=True)
class Placeholder:
    """A value instead of a computed default: as JSON has it, and as Postgres reads it for the column's type."""

    value: Any
    text: str


_EMPTY, _OBJECT, _ZERO = Placeholder("", ""), Placeholder("{}", "{}"), Placeholder(0, "0")
_NOBODY = "00000000-0000-0000-0000-000000000000"
_PLACEHOLDERS = {
    "text": _EMPTY,
    "character varying": _EMPTY,
    "character": _EMPTY,
    "uuid": Placeholder(_NOBODY, _NOBODY),
    "json": _OBJECT,
    "jsonb": _OBJECT,
    "smallint": _ZERO,
    "integer": _ZERO,
    "bigint": _ZERO,
    "boolean": Placeholder(value=False, text="false"),
    "date": Placeholder(0, "1970-01-01"),
    "timestamp without time zone": Placeholder(0, "1970-01-01"),
    "timestamp with time zone": Placeholder("1970-01-01T00:00:00.000000Z", "1970-01-01 00:00:00+00"),
}


class Default(Enum):
    """NONE: Debezium knows of no default. COMPUTED: it has a placeholder for it. LITERAL: it has the value."""

    NONE = "none"
    COMPUTED = "computed"
    LITERAL = "literal"


def default_of(column: SourceColumn) -> Default:
    """Return what Debezium makes of the column's default."""
    if column.default is None:
        return Default.NONE
    if _FUNCTION.match(column.default) or (column.default in _NOW and column.type in _TIMES):
        return Default.COMPUTED if column.type in _PLACEHOLDERS else Default.NONE
    if column.type in _TIMES and column.default.startswith("(("):
        return Default.NONE
    return Default.LITERAL


def placeholder(column: SourceColumn) -> Placeholder:
    """Return the value instead of a computed default."""
    return _PLACEHOLDERS[column.type]
