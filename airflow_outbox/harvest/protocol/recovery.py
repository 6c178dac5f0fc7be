"""Recovery: a new leader compares the fence row with the ledger before it reads its first record.

If both belong to one history, the leader completes what is committed (it purges the batches whose purge Postgres has
not witnessed) and goes on with the next batch. If not, an id, and even a transaction id, may name another record than
it did then. So nothing may be purged or published until an operator has looked: HistoryError says what differs.

Facts that Postgres alone can tell are checked twice: before any producer is fenced (`require_history`), and again with
the ledger. So is a glimpse of the ledger (`require_no_rival`). A database that is known to be a copy never disturbs the
original.

These are compared:

- the *history*: the database's system identifier, timeline and oid, and the outbox's table oid, against those that the
  first leader of this incarnation found. A promotion changes the timeline. A new table changes the table's oid. A copy
  within the same cluster (`CREATE DATABASE … TEMPLATE`) changes the database's;
- the sequence of the ids against the highest id ever published, and the transaction ids of the records against the
  database's own: TRUNCATE … RESTART IDENTITY, setval, rows loaded from another database's dump;
- how often leaders have said in the fence row that they are alive (its *beats*, one a second) against the ledger's
  count: a restore brings back a row with fewer. Only a leader that has compared them may add to them. One that takes
  over and fails before it could compare must not make up for beats that a restore took away;
- the number of the *membership*, which counts how often other clusters counted, against the ledger's;
- the *witness* in the fence row against the ledger. A restored fence row knows less than the ledger says it did. A
  ledger that is lost, shortened or exchanged knows less than the fence row, or has another id;
- the owners of entries that are not witnessed. A term begins when all that the ledger holds is purged and witnessed,
  and every older producer is fenced. So only the last view that began can have published anything after the witness,
  and the fence row names it. An entry of another view belongs to another database: a copy's leader may hold the ledger
  and the producer for a moment, and its ids name other records.

A difference, once found, stays in the outbox's row (`halted`) until an operator ends it. Ids and transaction ids that
were set back keep growing, so the next look might find them beyond what was published.

A leader also checks each page before it publishes any of it (`require_page`). So no record of another table gets into
the ledger. And no batch holds records from before and after a TRUNCATE: its ids and its snapshot would name records
that were not read.

`airflow-outbox adopt` raises the incarnation after an operator has accepted a difference. It sets the witness to the
ledger's position at that time, so that no entry of an older incarnation purges anything. Before that it purges the
batches that are published beyond doubt (`of_present_records`), as when ids were set back between commit and purge.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, replace
from uuid import UUID

from airflow_outbox.errors import HistoryError, KafkaError, PostgresError
from airflow_outbox.harvest.protocol.ledger import Entry, Head, Ledger
from airflow_outbox.values.fence import Fence, LedgerPosition, Pulse
from airflow_outbox.values.pages import Page

BEFORE_THIS_DATABASE = "the ledger was written before this database had one"
_RECREATED = "the outbox's table was dropped and recreated"


def _set_back(last_drawn: int, highest_id: int) -> str:
    return (
        f"the sequence of the ids is at {last_drawn}, but id {highest_id} was published: it was set back, or a writer "
        "chose that id under an earlier release"
    )


@dataclass(frozen=True, slots=True)
class Recovery:
    """The batches to complete, and where to go on.

    `witness` holds once the `unpurged` batches, which are committed, are purged too. `kept` are the ledger's entries
    that are not yet deleted, with their chunks.
    """

    witness: LedgerPosition
    unpurged: tuple[Entry, ...]
    kept: tuple[tuple[int, int], ...]


def require_pulse(fence: Fence, pulse: Pulse, *, highest_id: int) -> None:
    """Raise HistoryError if the table was exchanged, or its ids set back, since the take-over, or if another shard's
    leader has found a difference.
    """
    if pulse.halted is not None:
        raise HistoryError(pulse.halted)
    if pulse.table_oid != fence.present.table_oid:
        raise HistoryError(_RECREATED)
    if pulse.last_drawn < highest_id:
        raise HistoryError(_set_back(pulse.last_drawn, highest_id))


def require_page(fence: Fence, page: Page, *, file_number: int | None) -> int:
    """Raise if the table was exchanged before the page was read, so that its records do not go out with earlier ones.

    Raises HistoryError if it is another table. Raises PostgresError if it was truncated or rewritten: the next view
    compares the ids and finds out which. `file_number` is that of the term's first page. Return the present one.
    """
    if page.table_oid != fence.present.table_oid:
        raise HistoryError(_RECREATED)
    if file_number not in (None, page.file_number):
        raise PostgresError("the outbox's table was truncated or rewritten: harvesting starts again with a new view")
    return page.file_number


def require_history(fence: Fence) -> None:
    """Raise HistoryError for a difference that Postgres alone can tell. Call it before fencing any producer."""
    for difference in differences_of_databases(fence):
        raise HistoryError(difference)


def require_no_rival(fence: Fence, ledger: Ledger) -> None:
    """Raise HistoryError if, by a glimpse, another database wrote the ledger, or this one in a later state.

    Call it before fencing any producer. The glimpse is older than the fence row, and may end amid committed records.
    """
    for difference in _differences_of_rivals(fence, ledger):
        raise HistoryError(difference)


def require_given_up(fence: Fence, unfenced: Collection[str], *, own_views: Collection[UUID]) -> None:
    """Raise KafkaError if a producer could not be fenced and may still publish: its last transaction has not ended.

    If that transaction was committed, its producer may begin another as soon as it has ended, regardless of the fence
    row. A producer that was given up does not. This process has given its own up if the last view that began was one
    of its own. The fence row tells which others were given up.
    """
    waiting = sorted({*unfenced} - fence.given_up)
    if waiting and fence.begun_view not in own_views:
        raise KafkaError(
            f"Kafka can't end the last transaction of an earlier leader, of {' and '.join(waiting)}: too few brokers "
            "are up for one of its partitions. Bring them back"
        )


def recover(fence: Fence, ledger: Ledger) -> Recovery:
    """Return the batches to complete, and where to go on. Raises HistoryError."""
    for difference in differences(fence, ledger):
        raise HistoryError(difference)
    head, witness = ledger.head, fence.witness
    if head is None:
        return Recovery(replace(witness, topic_id=ledger.topic_id), (), ())
    return Recovery(
        witness=LedgerPosition(
            ledger.topic_id, head.batch, ledger.head_offset, max(witness.highest_id, head.highest_id)
        ),
        # An entry after the head is left over from a batch that was cut: nothing has compared it.
        unpurged=tuple(entry for entry in ledger.entries if witness.batch < entry.batch <= head.batch),
        kept=head.kept,
    )


def of_present_records(fence: Fence, ledger: Ledger) -> Iterator[Entry]:
    """The entries that are not known to be purged, and name records of the present table beyond doubt.

    - The database is the one that the entry's view harvested.
    - It has lost nothing that the ledger knows of.
    - It still has the same table.

    So its transaction ids went on, even if its ids did not. A record with one of the entry's ids, whose transaction the
    entry's snapshot sees, is the one that was published.
    """
    head = ledger.head
    if head is None or fence.recorded != fence.present or any(_differences_ahead(fence, head)):
        return
    for entry in ledger.entries:
        is_unpurged = fence.witness.batch < entry.batch <= head.batch
        if is_unpurged and entry.view == fence.begun_view and not any(_differences_of_entry(fence, entry)):
            yield entry


def differences(fence: Fence, ledger: Ledger) -> Iterator[str]:
    """The reasons, in words, why database and ledger do not belong to one history; none if they do."""
    yield from differences_of_databases(fence)
    if fence.halted is not None:
        return
    witness, head = fence.witness, ledger.head
    if head is not None and head.outbox_id != fence.outbox_id:
        yield from _differences_ahead(fence, head)
    elif witness.topic_id is None:
        if head is not None:
            yield BEFORE_THIS_DATABASE
    elif witness.topic_id != ledger.topic_id:
        yield "the ledger's topic was deleted and recreated"
    elif head is None:
        if witness.batch > 0 or witness.offset > ledger.end:
            yield f"the ledger is empty, but batch {witness.batch} was in it"
    else:
        yield from _differences_of_heads(fence, head, ledger)


def differences_of_databases(fence: Fence) -> Iterator[str]:
    """The signs of another history, in words, that Postgres alone can tell; none if there are none."""
    recorded, present, witness = fence.recorded, fence.present, fence.witness
    if fence.halted is not None:
        yield fence.halted
        return
    if recorded.system_identifier != present.system_identifier:
        yield "this is another database cluster than the one that was harvested"
    if recorded.timeline != present.timeline:
        yield (
            f"the database is on timeline {present.timeline}, but was harvested on {recorded.timeline}: "
            "a replica was promoted, or a backup restored"
        )
    if recorded.database_oid not in (None, present.database_oid):
        yield (
            f"this is the database with oid {present.database_oid}, but {recorded.database_oid} was harvested: this is "
            "a copy in the same cluster, or it was dropped and recreated"
        )
    if recorded.table_oid != present.table_oid:
        yield _RECREATED
    if fence.last_drawn < witness.highest_id:
        yield _set_back(fence.last_drawn, witness.highest_id)
    if fence.newest_transaction_id >= fence.next_transaction_id:
        yield (
            f"a record belongs to transaction {fence.newest_transaction_id}, which has not begun yet: the record was "
            "loaded from another database, or a writer set transaction_id"
        )


def _differences_of_rivals(fence: Fence, ledger: Ledger) -> Iterator[str]:
    head, witness = ledger.head, fence.witness
    if head is None:
        return
    if witness.topic_id is None and head.outbox_id == fence.outbox_id:
        yield BEFORE_THIS_DATABASE
    elif witness.topic_id in (None, ledger.topic_id):
        yield from _differences_ahead(fence, head)


def _differences_ahead(fence: Fence, head: Head) -> Iterator[str]:
    """The differences by which the ledger's head is ahead of the database; none in the one that it was written for."""
    witness = fence.witness
    if head.outbox_id != fence.outbox_id:
        yield f"the ledger belongs to outbox {head.outbox_id}"
    elif head.incarnation > fence.incarnation:
        yield (
            f"the ledger is in incarnation {head.incarnation}, but the database is in {fence.incarnation}: it was "
            "restored"
        )
    elif head.incarnation == fence.incarnation and head.witnessed > witness.batch:
        yield (
            f"the database knows batches up to {witness.batch}, but it knew batch {head.witnessed} before: "
            "it was restored to an earlier time"
        )
    elif head.incarnation == fence.incarnation and head.membership > fence.membership:
        yield (
            f"the ledger was written when the outbox's clusters had been changed {head.membership - 1} times, but the "
            f"database knows of {fence.membership - 1}: it was restored to an earlier time"
        )
    elif head.incarnation == fence.incarnation and head.beats > fence.beats:
        yield "the ledger knows more of the leaders than the database: the database was restored to an earlier time"


def _differences_of_heads(fence: Fence, head: Head, ledger: Ledger) -> Iterator[str]:
    witness = fence.witness
    if ahead := list(_differences_ahead(fence, head)):
        yield from ahead
    elif head.batch < witness.batch:
        yield f"the ledger ends with batch {head.batch}, but batch {witness.batch} was in it"
    elif head.incarnation < fence.incarnation:
        if head.batch > witness.batch:
            yield f"batch {head.batch} was published after the ledger had been adopted at batch {witness.batch}"
    elif fence.last_drawn < head.highest_id:
        yield _set_back(fence.last_drawn, head.highest_id)
    else:
        yield from _differences_of_entries(fence, head, ledger)


def _differences_of_entries(fence: Fence, head: Head, ledger: Ledger) -> Iterator[str]:
    entries = {entry.batch: entry for entry in ledger.entries}
    for batch in range(fence.witness.batch + 1, head.batch + 1):
        entry = entries.get(batch)
        if entry is None:
            yield f"the ledger has no entry for batch {batch}, which is not known to be purged"
        else:
            yield from _differences_of_entry(fence, entry)


def _differences_of_entry(fence: Fence, entry: Entry) -> Iterator[str]:
    batch = entry.batch
    if entry.outbox_id not in (None, fence.outbox_id) or entry.shard not in (None, fence.shard):
        yield f"batch {batch} belongs to outbox {entry.outbox_id}, shard {entry.shard}"
    elif entry.incarnation != fence.incarnation:
        yield f"batch {batch} comes from incarnation {entry.incarnation}, but the database is in {fence.incarnation}"
    elif entry.snapshot.xmax > fence.next_transaction_id:
        yield f"batch {batch} was read in a later state of the database: it was restored to an earlier time"
    elif fence.begun_view not in (None, entry.view):
        yield (
            f"batch {batch} was published by view {entry.view}, which this database does not know: a copy of it is "
            "harvested with the same ledger"
        )
