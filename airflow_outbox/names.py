"""The name of an outbox, and the identifiers that follow from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Self

from psycopg import sql

from airflow_outbox.errors import InvalidNameError

_PART = r'(?:"(?:[^"\x00]|"")+"|[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*)'
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_LONGEST_SUFFIX = "_published"
_MAX_IDENTIFIER_BYTES = 63


def is_kafkas_own(topic: str) -> bool:
    """Whether Kafka keeps its own state in a topic, as in `__consumer_offsets`, and clients can't write to it."""
    return topic.startswith("__")


def _fold(part: str) -> str:
    """An identifier as Postgres would store it: quoted as written, otherwise in lower case."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


@dataclass(frozen=True, slots=True)
class OutboxName:
    """The outbox's table; the tables beside it are named after it. `schema` None leaves it to the search path."""

    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `table` or `schema.table`, each in double quotes where it is not a plain identifier.

        Raises InvalidNameError.
        """
        match = _NAME.fullmatch(text.strip())
        if match is None:
            raise InvalidNameError(
                f"{text!r} is not a table's name. Give table or schema.table, in double quotes where needed"
            )
        schema, table = match.groups()
        name = cls(None if schema is None else _fold(schema), _fold(table))
        if len((name.table + _LONGEST_SUFFIX).encode()) > _MAX_IDENTIFIER_BYTES:
            longest = _MAX_IDENTIFIER_BYTES - len(_LONGEST_SUFFIX)
            raise InvalidNameError(
                f"{name.table!r} is too long: at most {longest} bytes, so that {_LONGEST_SUFFIX} fits behind it"
            )
        return name

    def beside(self, suffix: str) -> sql.Identifier:
        """The quoted name of a table of this outbox: `""` for itself, `"leader"` for `<outbox>_leader`."""
        table = f"{self.table}_{suffix}" if suffix else self.table
        return sql.Identifier(self.schema, table) if self.schema else sql.Identifier(table)

    def text(self, suffix: str = "") -> str:
        """The same as text, as to_regclass() takes it."""
        return self.beside(suffix).as_string(None)

    def __str__(self) -> str:
        return self.text()
