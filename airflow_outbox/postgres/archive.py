"""The archive keeps published records for a while, when the configuration says `purge: archive`.

It is a table partitioned by the day (UTC) on which a record was purged. The purging statement moves the records into
it. Partitions are made days ahead, so that nothing waits for one. Where one is missing, because no role that may make
tables came by, records go into a default partition. Old records are dropped by whole days.
"""

from __future__ import annotations

import re
from datetime import UTC, date, datetime, time, timedelta
from typing import Any, cast

import psycopg
from psycopg import sql

from airflow_outbox.errors import InvalidNameError, OutboxMissingError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

DAYS_AHEAD = 7
_LONGEST_NAME = 63 - len("_archive_20000101")  # bytes
_DAY = re.compile(r"_archive_(\d{8})$")


class Archive:
    """One outbox's archive, over one connection. Methods raise PostgresError."""

    def __init__(self, connection: psycopg.Connection[Any], name: OutboxName) -> None:
        self._connection = connection
        self._name = located(connection, name)
        self._statements = Statements(connection, self._name, default=self._name.beside("archive_default"))

    @property
    def exists(self) -> bool:
        return bool(self._value("exists"))

    def require(self) -> None:
        """Raise OutboxMissingError unless the archive is there."""
        if not self.exists:
            raise OutboxMissingError(f"there is no {self._name.text('archive')}. Run `airflow-outbox init`")

    def make(self) -> list[str]:
        """Make the archive, unless it is there. Return what was done, in words. Raises InvalidNameError.

        Call this in a transaction.
        """
        self._require_short_name()
        if self.exists:
            return []
        self._statements.execute("archive.make")
        return [f"created {self._name.text('archive')}"]

    def making(self) -> list[sql.Composed]:
        """Return the statements that make the archive and the partitions of today and the days ahead, without running
        them. Raises InvalidNameError.
        """
        self._require_short_name()
        made = [self._statements.composed("archive.make")]
        for day in _days_from(self.now()):
            made.append(self._statements.composed("archive.add_partition", **self._bounds(day)))
        return made

    def now(self) -> datetime:
        """Return the server's time, by which records are archived: other clocks may be wrong."""
        return cast("datetime", self._value("now"))

    def tend(self, *, now: datetime, retention: float) -> list[str]:
        """Make the partitions of today and the days ahead, and drop those older than `retention` (seconds). Return what
        was done, in words.

        A role that may not do that only deletes old records from the default partition.
        """
        done: list[str] = []
        oldest = now - timedelta(seconds=retention)
        if self._value("may_tend"):
            there = self.days()
            for day in _days_from(now):
                if day not in there and self._add(day):
                    done.append(f"created {self._partition_name(day)}")
            for day in sorted(there):
                if _begin(day + timedelta(days=1)) <= oldest:
                    self._drop(day)
                    done.append(f"dropped {self._partition_name(day)}")
        self._statements.execute("archive.clear_default", {"oldest": oldest})
        return done

    def days(self) -> set[date]:
        """Return the days that have a partition."""
        names = self._statements.rows("archive.partitions", {"archive": self._name.text("archive")})
        found = (_DAY.search(name) for (name,) in names)
        return {datetime.strptime(match[1], "%Y%m%d").date() for match in found if match}

    def default_records(self) -> int:
        """Return how many records are in the default partition, counted up to 1,000."""
        return int(self._statements.row("archive.default_records")[0])

    def _add(self, day: date) -> bool:
        with translated(self._name), self._connection.transaction():
            self._wait_briefly()
            if day in self.days():  # another process was faster
                return False
            self._statements.execute("archive.add_partition", **self._bounds(day))
        return True

    def _drop(self, day: date) -> None:
        with translated(self._name), self._connection.transaction():
            self._wait_briefly()
            if day in self.days():
                self._statements.execute("archive.drop_partition", partition=self._partition(day))

    def _bounds(self, day: date) -> dict[str, sql.Composable]:
        begin, end = (sql.Literal(_begin(bound)) for bound in (day, day + timedelta(days=1)))
        return {"partition": self._partition(day), "begin": begin, "end": end}

    def _require_short_name(self) -> None:
        if len(self._name.table.encode()) > _LONGEST_NAME:
            raise InvalidNameError(
                f"{self._name.table!r} is too long for an archive: at most {_LONGEST_NAME} bytes leave room for the "
                "names of its partitions. Leave `purge: archive` out, or give the outbox a shorter name"
            )

    def _wait_briefly(self) -> None:
        """Change partitions one process at a time, and give up rather than let purging wait for long."""
        self._statements.execute("connection.lock_name", {"name": self._name.text()})
        self._statements.execute("connection.wait_briefly")

    def _partition(self, day: date) -> sql.Composable:
        return self._name.beside(f"archive_{day:%Y%m%d}")

    def _partition_name(self, day: date) -> str:
        return self._name.text(f"archive_{day:%Y%m%d}")

    def _value(self, statement: str) -> Any:
        row = self._statements.row(f"archive.{statement}", {"archive": self._name.text("archive")})
        return row[0] if row else None


def _days_from(now: datetime) -> list[date]:
    """Today and the days ahead."""
    today = now.astimezone(UTC).date()
    return [today + timedelta(days=ahead) for ahead in range(DAYS_AHEAD + 1)]


def _begin(day: date) -> datetime:
    return datetime.combine(day, time(), UTC)
