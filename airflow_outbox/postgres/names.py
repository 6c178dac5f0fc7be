"""The name of an outbox, and the identifiers that follow from it."""

from __future__ import annotations

import hashlib
import re
import shlex
from dataclasses import dataclass, field, replace
from typing import Any, Self, cast

from psycopg import sql

from airflow_outbox.errors import InvalidNameError

_PART = r'(?:"(?:[^"\x00]|"")+"|[A-Za-z_\u0080-\uffff][\w$\u0080-\uffff]*)'
_PLAIN = re.compile(r"[a-z_][a-z0-9_]*")
_NAME = re.compile(rf"(?:({_PART})\.)?({_PART})")
_LONGEST_SUFFIX = "_published"
_STAGING = "_staging"
MAX_IDENTIFIER_BYTES = 63
_OF_AN_OUTBOX = re.compile(r"airflow-outbox\.[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\.(?:leader|ledger)")


def is_kafkas_own(topic: str) -> bool:
    """Whether Kafka keeps its own state in a topic, as in `__consumer_offsets`, so that clients can't write to it."""
    return topic.startswith("__")


def is_an_outboxs_own(topic: str) -> bool:
    """Whether a topic has the name that an election or a ledger has unless one is configured, of whatever outbox."""
    return _OF_AN_OUTBOX.fullmatch(topic) is not None


def _fold(part: str) -> str:
    """Return an identifier as Postgres stores it: quoted as written, otherwise in lower case."""
    return part[1:-1].replace('""', '"') if part.startswith('"') else part.lower()


def identifier(*parts: str) -> sql.Composable:
    """Return a quoted name for a statement: in one line, and without `%`, which psycopg takes for a placeholder's."""
    if not any(character == "%" or not character.isprintable() for part in parts for character in part):
        return sql.Identifier(*parts)
    return sql.SQL(".").join(sql.SQL(cast("Any", _escaped(part))) for part in parts)


def _escaped(part: str) -> str:
    letters = (
        character if character.isalnum() and character.isascii() else f"\\+{ord(character):06x}" for character in part
    )
    return f'U&"{"".join(letters)}"'


@dataclass(frozen=True, slots=True)
class OutboxName:
    """The outbox's table, which also names the tables beside it. `schema` None leaves it to the search path.

    `found_in` is the schema in which a name without one was found (None: nobody has looked).
    """

    schema: str | None
    table: str
    found_in: str | None = field(default=None, compare=False)

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
        if len((name.table + _LONGEST_SUFFIX).encode()) > MAX_IDENTIFIER_BYTES:
            longest = MAX_IDENTIFIER_BYTES - len(_LONGEST_SUFFIX)
            raise InvalidNameError(
                f"{name.table!r} is too long. Give a name of at most {longest} bytes, so that {_LONGEST_SUFFIX} fits "
                "behind it"
            )
        return name

    def beside(self, suffix: str) -> sql.Composable:
        """Return the quoted name of an outbox's table: `""` for itself, `"shard"` for `<outbox>_shard`."""
        return identifier(*self._parts(suffix))

    def sibling(self, suffix: str) -> Self:
        """Return the table `<outbox>_<suffix>` as a name of its own."""
        return replace(self, table=f"{self.table}_{suffix}")

    def located(self, schema: str) -> Self:
        """Return the same name, in this schema unless it names another. It still shows as it was written."""
        return replace(self, found_in=schema)

    def staging_schema(self, schema: str) -> str:
        """Return the schema in which jobs stage what they write into this outbox. The outbox is in `schema`."""
        whole = f"{schema}_{self.table}{_STAGING}"
        if len(whole.encode()) <= MAX_IDENTIFIER_BYTES:
            return whole
        digest = hashlib.sha256(whole.encode()).hexdigest()[:8]
        room = MAX_IDENTIFIER_BYTES - len(_STAGING) - len(digest) - 1
        return f"{whole.encode()[:room].decode(errors='ignore')}_{digest}{_STAGING}"

    def text(self, suffix: str = "") -> str:
        """Return the same as text, for to_regclass()."""
        return sql.Identifier(*self._parts(suffix)).as_string(None)

    def typed(self) -> str:
        """Return the name as somebody types it in a shell: without quotes where none are needed."""
        parts = [part for part in (self.schema, self.table) if part is not None]
        quoted = (part if _PLAIN.fullmatch(part) else sql.Identifier(part).as_string(None) for part in parts)
        return shlex.quote(".".join(quoted))

    def _parts(self, suffix: str) -> list[str]:
        table = f"{self.table}_{suffix}" if suffix else self.table
        schema = self.schema or self.found_in
        return [schema, table] if schema else [table]

    def __str__(self) -> str:
        return replace(self, found_in=None).text()
