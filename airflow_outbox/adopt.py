"""Adopt another history: what an operator does when harvesting has stopped because database and ledger disagree.

The harvester refuses to guess (`harvest.protocol.recovery`). To adopt is to accept the differences as they are:

1. the fence row gets a view of its own, and every older producer is fenced, so that nothing moves meanwhile;
2. the differences are read, shown, and accepted by the operator;
3. the incarnation is raised, today's history and the ledger's present end are recorded,
   records with transaction ids of another database get this one's, and the sequence of the ids goes above all that was
   ever published.

All of it is one database transaction, which holds the fence row to its end.

After that every record in the outbox counts as unpublished: one that was published before, and came back by a restore,
is published once more. Where the operator knows that the database has lost nothing (a planned switch-over), what the
ledger says is purged first, and nothing is doubled.

A ledger that leaders refuse to read, because it holds something that no release has written, is gone by as far as it
can be read, and counts as new from its present end on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import Any
from uuid import UUID, uuid4

import psycopg

from airflow_outbox.connection import connect, render, translated
from airflow_outbox.errors import ConfigurationError
from airflow_outbox.fence import Fence, Witness
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.ledger_reader import LedgerReader
from airflow_outbox.harvest.parked_records import parked_table, reasons
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger, Unread, expanded
from airflow_outbox.harvest.protocol.recovery import differences
from airflow_outbox.harvest.topics import KafkaNames
from airflow_outbox.harvest.transactional import fence_producers
from airflow_outbox.sql import statements
from airflow_outbox.table import SHARD, OutboxTable


@dataclass(frozen=True, slots=True)
class Adoption:
    """What was accepted, and the incarnation that it led to."""

    differences: Sequence[str]
    incarnation: int


def adopt(
    config: HarvestConfig, *, reason: str, nothing_lost: bool, accept: Callable[[Sequence[str]], bool]
) -> Adoption | None:
    """Accept another history if `accept` says so of the differences; None when there are none, or it does not.

    `reason` is recorded. `nothing_lost` is the operator's word that the database holds all that it ever acknowledged.
    Raises ConfigurationError, HistoryError when there is no ledger topic, KafkaError, PostgresError.
    """
    if config.delivery != "exactly_once":
        raise ConfigurationError("delivery is not exactly_once: without a ledger there is nothing to adopt")
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
    fence_producers(config, names, found.transactional_ids, shard=SHARD)
    unread: list[Unread] = []
    ledger = LedgerReader(config, names, SHARD).read_all(unread)
    fence = table.fence(view)
    since = fence.witness.offset if fence.witness.topic_id == ledger.topic_id else 0  # no leader reads what is before
    foreign = {offset: text for offset, text in unread if offset >= since}
    accepted = list(dict.fromkeys([*foreign.values(), *differences(fence, ledger)]))
    if not accepted or not accept(accepted):
        return None
    if nothing_lost:
        last = ledger.head.incarnation if ledger.head else fence.incarnation
        for entry in ledger.entries:  # those of an earlier incarnation were left behind
            if entry.batch > fence.witness.batch and entry.incarnation == last:
                _complete(table, view, entry)
    incarnation = _record(
        table,
        view,
        last_incarnation=max((known.incarnation for known in (ledger.head, *ledger.entries) if known), default=0),
        witness=_witness(fence, ledger, foreign),
        differences=accepted,
        reason=reason,
    )
    return Adoption(accepted, incarnation)


def _complete(table: OutboxTable, view: UUID, entry: Entry) -> None:
    """Do in Postgres what an entry says."""
    parked = parked_table(table)
    if entry.parked:
        parked.park(view, reasons(entry.parked), entry.snapshot)
    if entry.unparked:
        parked.unpark(view, expanded(entry.unparked))
    if entry.runs:
        table.purge_published(view, entry.ids(), entry.snapshot, batch=entry.batch)


def _witness(fence: Fence, ledger: Ledger, foreign: Iterable[int]) -> Witness:
    """Where the ledger is, and where leaders will read it from: its head, or its end, with batches that begin anew,
    when there is none, or what they would not read, at these offsets, comes after it.
    """
    head = ledger.head
    published = [last for entry in ledger.entries for _, last in entry.runs]
    highest_id = max([fence.witness.highest_id, *published, *([head.highest_id] if head else [])])
    if head is None or any(offset >= ledger.head_offset for offset in foreign):
        return Witness(ledger.topic_id, 0, ledger.end, highest_id)
    return Witness(ledger.topic_id, head.batch, ledger.head_offset, highest_id)


def _record(
    table: OutboxTable,
    view: UUID,
    *,
    last_incarnation: int,
    witness: Witness,
    differences: Sequence[str],
    reason: str,
) -> int:
    """Make the present history the outbox's own; the new incarnation, above the last one that the ledger knows: the
    database may have been restored to before an earlier adoption.
    """
    name, connection = table.name, table.connection

    def execute(statement: str, **values: object) -> Any:
        query = render(statements("queries.sql")[statement], name)
        return connection.execute(query, {"shard": SHARD, "outbox": name.text(), **values})

    incarnation, highest_id = execute(
        "adopt", view=view, last_incarnation=last_incarnation, **asdict(witness)
    ).fetchone()
    execute("adopt_transactions")
    execute("adopt_sequence", highest_id=highest_id)
    execute("note_adoption", incarnation=incarnation, differences="; ".join(differences), reason=reason)
    return int(incarnation)
