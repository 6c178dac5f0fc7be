"""Outboxes as the page knows them: by which connection and name, and which Dags use them for what."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.outbox_list import OutboxPattern

_USUAL_SCHEMA = "public"
"""Where a name or pattern without a schema means outboxes; only a session could tell its search path."""


class TaskRole(StrEnum):
    """How a Dag uses an outbox."""

    HARVESTS = "harvests"
    WRITES = "writes"
    WAITS = "waits"


@dataclass(frozen=True, slots=True, order=True)
class OutboxKey:
    """An outbox behind an Airflow connection. As text it is `connection:outbox`."""

    conn_id: str
    name: str

    @classmethod
    def of(cls, conn_id: str, outbox: str) -> OutboxKey:
        """Raises InvalidNameError."""
        return cls(conn_id, _shown(OutboxName.parse(outbox)))

    @classmethod
    def parse(cls, text: str) -> OutboxKey:
        """Raises InvalidNameError, ConfigurationError."""
        found = re.fullmatch(r"(.+?):((?:\"|[^:\"]).*)", text.strip(), re.DOTALL)
        if found is None:
            raise ConfigurationError(f"{text!r} names no outbox. Give connection:outbox")
        return cls.of(found[1].strip(), found[2])

    @property
    def outbox(self) -> OutboxName:
        return OutboxName.parse(self.name)

    @property
    def place(self) -> tuple[str, str, str]:
        """Connection, schema and table: the same whether the usual schema is named or not."""
        name = self.outbox
        return self.conn_id, name.schema or _USUAL_SCHEMA, name.table

    def __str__(self) -> str:
        return f"{self.conn_id}:{self.name}"


def _shown(name: OutboxName) -> str:
    """The name as people write it: in quotes only where it needs them."""
    parts = [name.schema, name.table] if name.schema else [name.table]
    return ".".join(
        part if re.fullmatch(r"[a-z_][a-z0-9_]*", part) else '"' + part.replace('"', '""') + '"' for part in parts
    )


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """The outboxes behind an Airflow connection that a pattern means."""

    conn_id: str
    pattern: OutboxPattern

    def means(self, key: OutboxKey) -> bool:
        conn_id, schema, table = key.place
        return self.conn_id == conn_id and self.pattern.matches(schema, table, path=(_USUAL_SCHEMA,))


@dataclass(frozen=True, slots=True)
class Clusters:
    """How a harvest reaches several clusters: a Kafka connection by each one's name, and its settings, as far as
    Airflow stores them: of a task, only while it runs.
    """

    kafka_conn_ids: Mapping[str, str]
    settings: Mapping[str, Any]


@dataclass(frozen=True, slots=True, order=True)
class Use:
    """A Dag, and its task (None: an asset that it is scheduled on), that uses an outbox.

    `key` is None where a template names the outbox, which is known when the task runs, and where a `pattern` of a list
    means outboxes. `brokers` are the options by which `airflow outbox` finds the Kafka that a task harvests to, where
    they are needed. `clusters` are those of a harvest, if there are several and no template names them; two uses are
    the same without regard to them.
    """

    dag_id: str
    task_id: str | None
    role: TaskRole
    key: OutboxKey | None
    clusters: Clusters | None = field(default=None, compare=False)
    brokers: tuple[str, ...] = ()
    pattern: KeyPattern | None = None


@dataclass(frozen=True, slots=True)
class Found:
    """The outboxes that Airflow knows, each with its uses; and the uses whose outbox a template or a pattern names."""

    outboxes: Mapping[OutboxKey, tuple[Use, ...]] = field(default_factory=dict)
    templated: tuple[Use, ...] = ()

    def patterns(self) -> Mapping[str, Sequence[OutboxPattern]]:
        """Return the patterns by their Airflow connection, in order."""
        found: dict[str, set[OutboxPattern]] = {}
        for use in self.templated:
            if use.pattern is not None:
                found.setdefault(use.pattern.conn_id, set()).add(use.pattern.pattern)
        return {conn_id: sorted(found[conn_id], key=lambda pattern: pattern.text) for conn_id in sorted(found)}

    def also(self, keys: Iterable[OutboxKey]) -> Found:
        """Return the same with these outboxes, which are there because patterns mean them."""
        known = {key.place for key in self.outboxes}
        more = {key: uses for key in keys if key.place not in known and (uses := self.uses(key))}
        return Found(dict(sorted({**self.outboxes, **more}.items())), self.templated)

    def uses(self, key: OutboxKey) -> tuple[Use, ...]:
        """Return the uses of an outbox, also of one that only patterns mean."""
        return self.outboxes.get(key, ()) or tuple(_by_patterns(self.templated, key))

    def dags(self, key: OutboxKey, *roles: TaskRole) -> list[str]:
        """Return the Dags that use an outbox, in one of these roles, if any are given."""
        uses = self.uses(key)
        return sorted({use.dag_id for use in uses if not roles or use.role in roles})

    def of_dag(self, dag_id: str) -> list[Use]:
        uses = [use for found in self.outboxes.values() for use in found] + list(self.templated)
        return sorted((use for use in uses if use.dag_id == dag_id), key=lambda use: (use.task_id or "", str(use.key)))


def assembled(uses: Iterable[Use], configured: Iterable[OutboxKey]) -> Found:
    """Bring all uses together by outbox, in order. The first one counts of those that are the same.

    A Dag that harvests by a pattern uses each of these outboxes that the pattern means.
    """
    outboxes: dict[OutboxKey, set[Use]] = {key: set() for key in configured}
    templated = []
    for use in uses:
        if use.key is None:
            templated.append(use)
        else:
            outboxes.setdefault(use.key, set()).add(use)
    for key, found in outboxes.items():
        found.update(_by_patterns(templated, key))
    by_name = {key: tuple(sorted(outboxes[key], key=_order)) for key in sorted(outboxes)}
    return Found(by_name, tuple(sorted(templated, key=_order)))


def _by_patterns(uses: Iterable[Use], key: OutboxKey) -> list[Use]:
    """The uses of an outbox by those whose patterns mean it, in order."""
    meant = (use for use in uses if use.pattern is not None and use.pattern.means(key))
    return sorted((replace(use, key=key, pattern=None) for use in meant), key=_order)


def _order(use: Use) -> tuple[str, str, str]:
    return use.dag_id, use.task_id or "", use.role
