"""Adopt another history: let harvesting go on after it halted because database and ledger disagree.

The harvester refuses to guess (`harvest.protocol.recovery`). To adopt is to accept the differences as they are:

1. The fence row gets a view of its own. The differences that Postgres alone can tell are shown, and the operator
   accepts them. If a copy is adopted by mistake, nothing has touched the original's producers by then.
2. Every older producer is fenced, so that nothing moves meanwhile.
3. All differences are read. If there are more of them, they are shown and accepted.
4. The incarnation is raised. Today's history and the ledger's present end are recorded. Records with transaction ids of
   another database get this one's. The sequence of the ids goes above all that was ever published.

All of it is one database transaction, which holds the fence row to its end.

After that every record in the outbox counts as unpublished: one that was published before, and came back by a restore,
is published once more. Where nothing is in doubt, the ledger's records are purged first, and nothing is doubled:

- neither database nor table was exchanged or restored (as after `setval`), or
- the operator knows that the database has lost nothing (a planned switch-over).

A ledger may hold something that no release has written, so that leaders refuse to read it. Its readable entries are
used; the rest is skipped. It counts as new from its present end on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import chain
from typing import Any
from uuid import UUID, uuid4

import psycopg

from airflow_outbox.errors import ConfigurationError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.ledger_reader import LedgerReader
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.transactional_log import fence_producers
from airflow_outbox.harvest.protocol.adoption import Adopting, adopting, require_own_ledger
from airflow_outbox.harvest.protocol.ledger import Entry, Unread, expanded
from airflow_outbox.harvest.protocol.parking import refusals_of
from airflow_outbox.harvest.protocol.recovery import differences_of_databases
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.parked import ParkedTable
from airflow_outbox.postgres.statements import Statements, composed
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.trail import enter


@dataclass(frozen=True, slots=True)
class Adoption:
    """The accepted differences, and the new incarnation."""

    differences: Sequence[str]
    incarnation: int


def adopt(
    config: HarvestConfig,
    *,
    reason: str,
    nothing_lost: bool,
    accept: Callable[[Sequence[str]], bool],
    on_behalf_of: str | None = None,
) -> Adoption | None:
    """Adopt the history if `accept` agrees to the differences. Return None when there are none, or it does not agree.

    `reason` is recorded; the trail also names whom it is made for (`on_behalf_of`). `nothing_lost` is the operator's
    word that the database holds all that it ever acknowledged. Raises ConfigurationError, HistoryError when there is no
    ledger topic, KafkaError, PostgresError.
    """
    if config.delivery != "exactly_once":
        raise ConfigurationError("delivery is not exactly_once, so there is no ledger and nothing to adopt")
    with closing(_table(config)) as table:
        # One transaction, which holds the fence row to its end: a harvester that tries again meanwhile waits.
        with translated(config.name), table.connection.transaction() as adopting:
            adoption = _adopt(table, config, reason=reason, nothing_lost=nothing_lost, accept=accept)
            if adoption is None:
                raise psycopg.Rollback(adopting)
            matched = f"incarnation {adoption.incarnation}: {'; '.join(adoption.differences)}"
            enter(table.connection, table.name, "adopt", on_behalf_of=on_behalf_of, matched=matched, reason=reason)
        return adoption


def _table(config: HarvestConfig) -> OutboxTable:
    return OutboxTable(connect(config.data_source, purpose="adopt"), config.name, archives=config.archives)


def _adopt(
    table: OutboxTable,
    config: HarvestConfig,
    *,
    reason: str,
    nothing_lost: bool,
    accept: Callable[[Sequence[str]], bool],
) -> Adoption | None:
    shards = [_Shard(table.of(number), uuid4()) for number in range(table.identity().shards)]
    for shard in shards:
        shard.take_over()
    if backups := shards[0].found.backups:
        raise ConfigurationError(
            f"the present history can be adopted for one cluster only. Detach {' and '.join(backups)} with "
            "`airflow-outbox clusters detach NAME`, and use `airflow-outbox clusters reset NAME` after that"
        )
    names = KafkaNames.of(config, shards[0].found.outbox_id)
    # Before any producer is fenced: this may be a copy, or the configuration may name another outbox's ledger.
    shown = _all(differences_of_databases(shard.found) for shard in shards)
    if shown and not accept(shown):
        return None
    for shard in shards:
        shard.look(LedgerReader(config, names, shard.number))
    for shard in shards:
        fence_producers(config, names, shard.found.producers, shard=shard.number)
    plans = [shard.plan() for shard in shards]
    differences = _all(plan.differences for plan in plans)
    if not differences or (set(differences) - set(shown) and not accept(differences)):
        return None
    if any(shard.has_moved() for shard in shards):  # no harvester of this database can have done that
        raise ConfigurationError(
            "another database is harvested with the same ledger: it has just published. If this database is a copy, "
            "run `airflow-outbox adopt --as-new-outbox`. Otherwise stop the other database's harvesters first"
        )
    for shard, plan in zip(shards, plans, strict=True):
        for entry in plan.unpurged if nothing_lost else plan.certain:
            _complete(shard.table, shard.view, entry)
    incarnation = _record(table, {shard.number: shard.view for shard in shards}, plans, reason=reason)
    return Adoption(differences, incarnation)


def _all(differences: Iterable[Iterable[str]]) -> list[str]:
    """All differences, each once."""
    return list(dict.fromkeys(chain.from_iterable(differences)))


class _Shard:
    """A shard that is taken over for an adoption, under a view of its own."""

    def __init__(self, table: OutboxTable, view: UUID) -> None:
        self.table = table
        self.view = view
        self.number = table.shard

    def take_over(self) -> None:
        table = self.table
        self.found = table.take_over(self.view, [table.backend()], member="airflow-outbox adopt", reshards=True)

    def look(self, reader: LedgerReader) -> None:
        """Raise ConfigurationError if the ledger is another outbox's."""
        self._reader = reader
        require_own_ledger(self.found, reader.read_all([], stable=True))

    def plan(self) -> Adopting:
        """Return what to accept and to do, once every older producer is fenced."""
        unread: list[Unread] = []
        self._ledger = self._reader.read_all(unread)
        return adopting(self.table.fence(self.view), self._ledger, unread)

    def has_moved(self) -> bool:
        """Whether somebody has published since."""
        return self._reader.read_all([], stable=True).head != self._ledger.head


def _complete(table: OutboxTable, view: UUID, entry: Entry) -> None:
    """Carry out a ledger entry in Postgres."""
    parked = ParkedTable(table)
    if entry.parked:
        parked.park(view, refusals_of(entry.parked), entry.snapshot)
    if entry.unparked:
        parked.unpark(view, expanded(entry.unparked))
    if entry.runs:
        table.windows.purge_published(view, entry.ids(), entry.snapshot, batch=entry.batch)


def _record(table: OutboxTable, views: Mapping[int, UUID], plans: Sequence[Adopting], *, reason: str) -> int:
    """Make the present history the outbox's own; return the new incarnation. `views` and `plans` are the shards'.

    It is above the last one in the ledgers: the database may have been restored to before an earlier adoption.
    """
    statements = Statements(table.connection, table.name, present=composed("fence.present"))

    def execute(statement: str, **values: object) -> Any:
        return statements.execute(f"adopt.{statement}", {"outbox": table.name.text(), **values})

    differences = _all(plan.differences for plan in plans)
    execute("lock_shards")
    highest_id = 0
    for (shard, view), plan in zip(views.items(), plans, strict=True):
        (found,) = execute("adopt_shard", shard=shard, view=view, **asdict(plan.witness)).fetchone()
        highest_id = max(highest_id, found)
    (incarnation,) = execute("adopt", last_incarnation=max(plan.last_incarnation for plan in plans)).fetchone()
    execute("copy_to_shards")
    execute("forget_lacks")
    execute("adopt_transactions")
    execute("adopt_sequence", highest_id=highest_id)
    execute("note_adoption", incarnation=incarnation, differences="; ".join(differences), reason=reason)
    return int(incarnation)
