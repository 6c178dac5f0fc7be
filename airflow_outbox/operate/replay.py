"""Replay: stash records of the archive again, so that they are published once more.

They go through the outbox like any others, so all promises for records hold. Each carries a header with the replay's
id. A replay goes by id, in transactions of a given length. Each of them enters into `<outbox>_commits` the id that it
has reached. So an interrupted replay goes on under the same id, and a finished one does nothing more.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import datetime
from typing import Any

import psycopg
from psycopg import sql

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.operate.parked_requests import key_value
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.columns import column_types
from airflow_outbox.postgres.commits import CommitId, enter_commit
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.trail import enter
from airflow_outbox.stash.encoding import topic_problem

HEADER = "outbox-replay"
_ID = re.compile(r"[A-Za-z0-9._-]{1,100}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """The records to replay: those that match everything given.

    `from_id` and `to_id` are the first and the last id. The record was published (purged) at `since` or later, and
    before `until`. With `to_topic` None each record goes to its own topic. `header` is the name of the header that
    carries `replay_id`; records that have such a header are not replayed again.
    """

    replay_id: str
    topic: str | None = None
    key: str | None = None
    from_id: int | None = None
    to_id: int | None = None
    since: datetime | None = None
    until: datetime | None = None
    everything: bool = False
    to_topic: str | None = None
    header: str = HEADER

    def __post_init__(self) -> None:
        given = (self.topic, self.key, self.from_id, self.to_id, self.since, self.until)
        if any(value is not None for value in given) == self.everything:
            raise ConfigurationError("select the records either by topic, key, ids or time, or all of them")
        for name, first, last in (("ids", self.from_id, self.to_id), ("times", self.since, self.until)):
            if first is not None and last is not None and first > last:  # type: ignore[operator]  # both of one type
                raise ConfigurationError(f"the {name} end at {last}, before they begin, at {first}. Exchange them")
        if not _ID.fullmatch(self.replay_id):
            raise ConfigurationError(
                f"{self.replay_id!r} is not an id for a replay. Give up to 100 letters, digits, '.', '_' and '-'"
            )
        if not self.header:
            raise ConfigurationError(
                f"the header that marks replayed records needs a name. Give one, or leave it out for {HEADER}"
            )
        if self.to_topic is not None and (problem := topic_problem(self.to_topic)):
            raise ConfigurationError(f"the topic to replay to: {problem}")

    @property
    def words(self) -> str:
        """The choices in words, for the trail."""
        given = {
            "topic": self.topic,
            "key": self.key,
            "from id": self.from_id,
            "to id": self.to_id,
            "since": self.since,
            "until": self.until,
        }
        words = [f"{name} {value}" for name, value in given.items() if value is not None] or ["all"]
        target = [] if self.to_topic is None else [f"into {self.to_topic}"]
        return "; ".join([*words, *target, f"as {self.replay_id}"])

    @property
    def digest(self) -> str:
        """A digest that tells these choices from others."""
        return hashlib.sha256(json.dumps(asdict(self), default=str, sort_keys=True).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Replayed:
    """How many records a run of a replay has stashed, and how many all its runs together have."""

    now: int
    in_all: int


class Replayer:
    """Carries out one replay over one connection. Methods raise PostgresError and OutboxMissingError."""

    def __init__(
        self, connection: psycopg.Connection[Any], name: OutboxName, replay: Replay, *, on_behalf_of: str | None = None
    ) -> None:
        """The trail names whom it is made for (`on_behalf_of`)."""
        self._on_behalf_of = on_behalf_of
        self._counted: int | None = None
        self._connection = connection
        table = OutboxTable(connection, name)
        self._name = table.name
        self._replay = replay
        columns = table.columns
        if not Archive(connection, name).exists:
            raise ConfigurationError(
                f"there is no {self._name.text('archive')}: what is published is not kept, so it can't be replayed. "
                "With `purge: archive` in the configuration, `airflow-outbox init` makes the archive, and what is "
                "published from then on is kept"
            )
        keeps_partition = "kafka_partition" in columns and replay.to_topic is None
        text = "bytes_header_value" if columns["kafka_header_values"].is_bytes else "text_header_value"
        partition = sql.SQL(", kafka_partition" if keeps_partition else "")
        parts = Statements(connection, self._name, **column_types(columns), partition=partition)
        parts = parts.having(by_an_operator=parts.composed("archive.by_an_operator"))
        self._statements = parts.having(
            header_value=parts.composed(f"archive.{text}"), chosen=parts.composed("archive.chosen")
        )
        values = asdict(replay)
        self._values = {
            name: values[name]
            for name in ("replay_id", "topic", "from_id", "to_id", "since", "until", "to_topic", "header")
        }
        self._values["parked"] = self._name.text("parked")
        self._values["key"] = None if replay.key is None else key_value(replay.key, columns)
        self._prefix = f"replay/{replay.replay_id}/"
        self._app_id = self._prefix + replay.digest

    def count(self) -> dict[str, int]:
        """How many records are meant, by topic, including those already stashed."""
        counts = dict(self._execute("replay_count").fetchall())
        self._counted = sum(counts.values())
        return counts

    def run(self, *, transaction_records: int, report: Callable[[int], None]) -> Replayed:
        """Stash the records that are not stashed yet; return how many those were.

        `report` gets how many the replay has stashed in all, after every transaction. Raises ConfigurationError when a
        replay of this id was begun with other choices.
        """
        newest = self._begin()
        _, before = self._done()
        while (stashed := self._stash_next(newest, transaction_records)) is not None:
            report(stashed)
        _, stashed = self._done()
        return Replayed(stashed - before, stashed)

    def _begin(self) -> int:
        """Return where the replay ends: at the newest record that was there when it began."""
        bound = f"{self._app_id}/newest"
        with translated(self._name), self._connection.transaction():
            self._lock()
            begun = dict(self._execute("replay_begun", prefix=self._prefix).fetchall())
            if begun and bound not in begun:
                raise ConfigurationError(
                    f"replay {self._replay.replay_id} was started with other options. Give the same, or another id"
                )
            if bound not in begun:
                row = self._execute("replay_newest").fetchone()
                begun[bound] = row[0] if row else 0
                self._enter(CommitId(bound, begun[bound]), records=0)
                self._note()
            return int(begun[bound])

    def _stash_next(self, newest: int, records: int) -> int | None:
        """Run one transaction; return how many records the replay has stashed by then, None when nothing was left."""
        with translated(self._name), self._connection.transaction():
            self._lock()
            above, stashed = self._done()
            bounds = {"above": above, "newest": newest}
            row = self._execute("replay_next", **bounds, records=records).fetchone()
            upto = None if row is None else row[0]
            if upto is None:
                return None
            count = self._execute("replay_stash", **bounds, upto=upto).rowcount
            self._enter(CommitId(self._app_id, upto), records=count)
            return stashed + count

    def _done(self) -> tuple[int, int]:
        """The id that the replay has reached, and how many records it has stashed."""
        row = self._execute("replay_done", app_id=self._app_id).fetchone()
        above, records = row or (None, 0)
        return (-(2**63) if above is None else above, records)

    def _enter(self, commit_id: CommitId, *, records: int) -> None:
        enter_commit(self._connection, self._name, commit_id, records=records)

    def _note(self) -> None:
        """Enter it in the trail when it begins, with the number of records if somebody has counted them."""
        enter(
            self._connection,
            self._name,
            "replay",
            on_behalf_of=self._on_behalf_of,
            matched=self._replay.words,
            records=self._counted,
        )

    def _lock(self) -> None:
        """Let one process at a time work on a replay."""
        self._statements.execute("connection.lock_name", {"name": f"{self._name} {self._prefix}"})

    def _execute(self, statement: str, **values: Any) -> psycopg.Cursor[Any]:
        return self._statements.execute(f"archive.{statement}", {**self._values, **values})
