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

from collections.abc import Callable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
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
from airflow_outbox.postgres.table import SHARD, OutboxTable


@dataclass(frozen=True, slots=True)
class Adoption:
    """The accepted differences, and the new incarnation."""

    differences: Sequence[str]
    incarnation: int


def adopt(
    config: HarvestConfig, *, reason: str, nothing_lost: bool, accept: Callable[[Sequence[str]], bool]
) -> Adoption | None:
    """Adopt the history if `accept` agrees to the differences. Return None when there are none, or it does not agree.

    `reason` is recorded. `nothing_lost` is the operator's word that the database holds all that it ever acknowledged.
    Raises ConfigurationError, HistoryError when there is no ledger topic, KafkaError, PostgresError.
    """
    if config.delivery != "exactly_once":
        raise ConfigurationError("delivery is not exactly_once, so there is no ledger and nothing to adopt")
    with closing(_table(config)) as table:
        # One transaction, which holds the fence row to its end: a harvester that tries again meanwhile waits.
        with translated(config.name), table.connection.transaction() as adopting:
            adoption = _adopt(table, config, reason=reason, nothing_lost=nothing_lost, accept=accept)
            if adoption is None:
                raise psycopg.Rollback(adopting)
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
    view = uuid4()
    found = table.take_over(view, [table.backend()], member="airflow-outbox adopt")
    names = KafkaNames.of(config, found.outbox_id)
    reader = LedgerReader(config, names, SHARD)
    # Before any producer is fenced: this may be a copy, or the configuration may name another outbox's ledger.
    shown = list(differences_of_databases(found))
    if shown and not accept(shown):
        return None
    require_own_ledger(found, reader.read_all([], stable=True))
    fence_producers(config, names, found.producers, shard=SHARD)
    unread: list[Unread] = []
    ledger = reader.read_all(unread)
    fence = table.fence(view)
    plan = adopting(fence, ledger, unread)
    if not plan.differences or (set(plan.differences) - set(shown) and not accept(plan.differences)):
        return None
    if reader.read_all([], stable=True).head != ledger.head:  # no harvester of this database can have done that
        raise ConfigurationError(
            "another database is harvested with the same ledger: it has just published. If this database is a copy, "
            "run `airflow-outbox adopt --as-new-outbox`. Otherwise stop the other database's harvesters first"
        )
    for entry in plan.unpurged if nothing_lost else plan.certain:
        _complete(table, view, entry)
    incarnation = _record(table, view, plan, reason=reason)
    return Adoption(plan.differences, incarnation)


def _complete(table: OutboxTable, view: UUID, entry: Entry) -> None:
    """Carry out a ledger entry in Postgres."""
    parked = ParkedTable(table)
    if entry.parked:
        parked.park(view, refusals_of(entry.parked), entry.snapshot)
    if entry.unparked:
        parked.unpark(view, expanded(entry.unparked))
    if entry.runs:
        table.purge_published(view, entry.ids(), entry.snapshot, batch=entry.batch)


def _record(table: OutboxTable, view: UUID, plan: Adopting, *, reason: str) -> int:
    """Make the present history the outbox's own; return the new incarnation. It is above the last one in the ledger:
    the database may have been restored to before an earlier adoption.
    """
    statements = Statements(table.connection, table.name, present=composed("fence.present"))

    def execute(statement: str, **values: object) -> Any:
        return statements.execute(f"adopt.{statement}", {"shard": SHARD, "outbox": table.name.text(), **values})

    execute("lock_shards")
    (highest_id,) = execute("adopt_shard", view=view, **asdict(plan.witness)).fetchone()
    (incarnation,) = execute("adopt", last_incarnation=plan.last_incarnation).fetchone()
    execute("copy_to_shards")
    execute("adopt_transactions")
    execute("adopt_sequence", highest_id=highest_id)
    execute("note_adoption", incarnation=incarnation, differences="; ".join(plan.differences), reason=reason)
    return int(incarnation)
