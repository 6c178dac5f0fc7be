"""A list of outboxes, as a configuration gives it: names, and patterns with `*` and `?`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Self
from uuid import UUID, uuid5

_NAMESPACE = UUID("6a1f0a8e-52f4-4d0c-9f6c-3f0b4b8f7c11")
_PART = r'(?:"(?:[^"\x00]|"")+"|[\w$*?\u0080-\uffff]+)'
_ENTRY = re.compile(rf"(?:({_PART})\.)?({_PART})")
_WILD = re.compile(r"[*?]")


@dataclass(frozen=True, slots=True)
class OutboxPattern:
    """One entry of the list: what schema and table have to be like. Without a schema, any of the search path will do.

    A part in double quotes is literal; any other is in lower case, and may have `*` and `?`.
    """

    text: str
    schema: str | None
    table: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read an entry such as `tenant_*.outbox`. Raises ValueError."""
        match = _ENTRY.fullmatch(text.strip())
        if match is None:
            raise ValueError(
                f"{text!r} is no outbox, and no pattern. Give table or schema.table, where * and ? stand for letters"
            )
        schema, table = match.groups()
        return cls(text.strip(), None if schema is None else _folded(schema), _folded(table))

    @property
    def is_a_name(self) -> bool:
        """Whether the entry means a single outbox."""
        return not any(_WILD.search(_unescaped(part)) for part in (self.schema or "", self.table))

    def matches(self, schema: str, table: str, *, path: Sequence[str]) -> bool:
        """Whether a table is meant, on a connection that searches these schemas."""
        in_schema = schema in path if self.schema is None else fnmatchcase(schema, self.schema)
        return in_schema and fnmatchcase(table, self.table)


def _folded(part: str) -> str:
    """Return a part as a pattern for `fnmatch`."""
    if part.startswith('"'):
        return re.sub(r"([*?[])", r"[\1]", part[1:-1].replace('""', '"'))
    return part.lower()


def _unescaped(part: str) -> str:
    return re.sub(r"\[[*?[]\]", "", part)


def list_id(entries: Sequence[str], *, system_identifier: int, database_oid: int) -> UUID:
    """Return the id of a list in a database, by which its members find one another: all with the same entries."""
    return uuid5(_NAMESPACE, "\n".join([str(system_identifier), str(database_oid), *sorted({*entries})]))
