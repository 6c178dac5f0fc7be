"""Records that Postgres won't delete: something refers to them, or a trigger objects. They hold up nothing.

    published ──deleted──► gone
        └──refused──► undeleted: it stays in the outbox, and is gone for harvesters ──deleted at last──► gone

A record that could not be published is parked instead. If it can't be deleted, a copy of it is, and it is noted, too.

Invariants:

- A record is noted as undeleted after it was published, or in the transaction that parks its copy. Whatever looks for
  records that wait leaves it out from then on, so it is published once.
- A statement that fails deletes nothing. The records that it was for are deleted in ever smaller parts, until the part
  that fails is one record. Where that takes too many statements, the rest of a part is noted whole: the records in it
  that nothing holds are deleted soon.
- All of them are tried again every few seconds, since whatever holds them may be gone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any
from uuid import UUID

import psycopg
from psycopg import sql

from airflow_outbox.errors import PostgresError
from airflow_outbox.postgres.errors import reason_of
from airflow_outbox.postgres.kept_columns import archived

if TYPE_CHECKING:
    from airflow_outbox.postgres.table import OutboxTable

Delete = Callable[[Sequence[int]], Sequence[int]]
"""Deletes records by id, and returns those that are still there all the same. Raises PostgresError."""

_MOST_STATEMENTS = 100  # that narrow a failure, until the next time that undeleted records are tried again
_MOST_AT_ONCE = 1_000
# Classes of SQLSTATE. Trouble that is no record's, even where a trigger passes it on: the connection, a read-only
# server, a rollback, resources, a lock, an operator, the system.
_NOT_OF_A_RECORD = ("08", "25", "40", "53", "55", "57", "58", "XX")
# And what is a record's: data, constraints, changes by triggers, checks of views, and what PL/pgSQL raises.
_OF_A_RECORD = ("22", "23", "27", "44", "P0")


def refusal_of(error: PostgresError) -> str | None:
    """Return why Postgres would not delete a record, if the error can be a record's; None if it is not.

    A constraint or a trigger refuses some records and takes others. Anything else that a trigger's function raises
    counts as its refusal, too.
    """
    cause = error.__cause__
    if not isinstance(cause, psycopg.Error) or (state := cause.sqlstate or "08").startswith(_NOT_OF_A_RECORD):
        return None
    place = (cause.diag.context or "").partition("\n")[0]
    if not place and not state.startswith(_OF_A_RECORD):
        return None
    if isinstance(cause, psycopg.errors.UndefinedTable):  # which says what to do
        return str(error).partition('": ')[2]
    return f"{reason_of(cause)} ({place})" if place and not state.startswith("23") else reason_of(cause)


class UndeletedRecords:
    """A leader's statements about them, over one connection. Methods raise PostgresError, and FencedError."""

    def __init__(self, table: OutboxTable) -> None:
        self._table = table
        self._statements_left = _MOST_STATEMENTS
        self._are_known: bool | None = None  # whether there are any; None: nobody has looked

    def are_any(self) -> bool:
        return bool(self._table.statements.row("undeleted.are_any")[0])

    def delete_apart(self, ids: Sequence[int], delete: Delete) -> dict[int, str]:
        """Delete what can be of records that could not be deleted together. Return why the others can't be, by id."""
        found: dict[int, str] = {}
        parts = [ids] if ids else []
        while parts:
            part = parts.pop()
            try:
                kept = delete(part)
            except PostgresError as error:
                if (reason := refusal_of(error)) is None:
                    raise
                if len(part) == 1 or self._statements_left <= 0:
                    found |= dict.fromkeys(part, reason)
                else:
                    middle = len(part) // 2
                    parts += [part[middle:], part[:middle]]
                self._statements_left -= 1
            else:
                found |= self.kept(kept)
        return found

    def kept(self, ids: Sequence[int]) -> dict[int, str]:
        """Return why these records are still there, which were deleted without an error."""
        return dict.fromkeys(ids, self.keeper()) if ids else {}

    def keeper(self) -> str:
        """Return what keeps a record that was deleted without an error, in words."""
        triggers = [name for (name,) in self._table.statements.rows("undeleted.triggers", self._outbox)]
        who = f"the trigger {triggers[0]}" if triggers else "something, such as a trigger,"
        return f"{who} kept it although it was deleted"

    def are_noted(self) -> None:
        """Another statement has noted some."""
        self._are_known = True

    def note(self, view: UUID, reasons: Mapping[int, str], mine: sql.Composable, **values: Any) -> None:
        """Note published records that could not be deleted, and why, by id. `mine`, with `values`, says what the view
        has published.
        """
        if not reasons:
            return
        self.are_noted()
        values |= {"ids": list(reasons), "reasons": list(reasons.values())}
        self._require_fence("note", view, {"mine": mine}, **values)

    def try_again(self, view: UUID) -> None:
        """Delete, or archive, those that can be deleted now. Costs no statement while there are none."""
        self._statements_left = _MOST_STATEMENTS
        if self._are_known is None:
            self._are_known = self.are_any()
        if not self._are_known:
            return
        found = self._table.statements.rows("undeleted.due", {"shard": self._table.shard, "most": _MOST_AT_ONCE})
        held: dict[int, str] = {}
        for is_published in (True, False):
            part = {"archived": self._archived if is_published else sql.SQL("")}

            def delete(ids: Sequence[int], part: Mapping[str, sql.Composable] = part) -> Sequence[int]:
                self._require_fence("delete", view, part, ids=list(ids), batch=None)
                return ()

            if ids := [identity for identity, published in found if published is is_published]:
                held |= self.delete_apart(ids, delete)
        self._are_known = bool(found)
        if found:
            tried = [identity for identity, _ in found]
            reasons = [held.get(identity) for identity in tried]
            self._require_fence("forget", view, ids=tried, reasons=reasons)

    @property
    def _outbox(self) -> dict[str, str]:
        return {"outbox": self._table.name.text()}

    @cached_property
    def _archived(self) -> sql.Composable:
        return archived(self._table.name, self._table.columns) if self._table.archives else sql.SQL("")

    def _require_fence(
        self, statement: str, view: UUID, parts: Mapping[str, sql.Composable] | None = None, **values: Any
    ) -> None:
        row = self._table.row(f"undeleted.{statement}", parts or {}, view=view, **values)
        self._table.fenced_unless(row)
