"""Catching up: a cluster that is owed records gets them, batch by batch, from Postgres.

1. Its producers are fenced, as at any take-over, and its ledger is read after that.
2. All that it has must belong to the present history (`protocol.clusters.owed_from`). A cluster may be accepted with
   batches of its own: their records are noted first (`Skipped`), and are left out of what it gets. Then its ledger says
   that it goes on from the last batch that all have.
3. The batches that it lacks are published there, in order, with their boundaries: the same records in the same
   partitions. Postgres has kept them since the cluster ceased to count; no cluster is read for another.

This may go on beside harvesting (`harvest.catch_up`): a batch is kept before it is purged, and only batches that all
other clusters have are kept. Whoever goes on with it later finds in the cluster's ledger how far it has got.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from uuid import UUID

from airflow_outbox.errors import HistoryError, KafkaError
from airflow_outbox.harvest.ports import Table, TransactionalLog
from airflow_outbox.harvest.protocol.clusters import (
    EMPTY_IT,
    accepted_from,
    is_unfinished,
    owed_from,
    require_all_kept,
    require_empty,
    require_same_places,
    skipping,
)
from airflow_outbox.harvest.protocol.ledger import Entry, Ledger, expanded, runs
from airflow_outbox.harvest.protocol.ledger_state import LedgerState
from airflow_outbox.harvest.protocol.recovery import Recovery, require_no_rival
from airflow_outbox.values.fence import AttachHow, Fence, LedgerPosition, LedgerRow, Skipped, recorded_ids
from airflow_outbox.values.pages import ID, PARTITION, TOPIC, OutboxRow
from airflow_outbox.values.records import Snapshot

AT_A_TIME = 100  # batches whose entries are in memory
_ANY = 2**62


class CatchingUp:
    """Gives an owed cluster what it lacks of one shard, over its `log`.

    `places` is the log that chooses each record's partition: the primary's, if that can be reached. Methods raise
    HistoryError or KafkaError if the cluster can't be caught up; FencedError, PostgresError.
    """

    def __init__(
        self, table: Table, log: TransactionalLog, *, places: TransactionalLog, view: UUID, cluster: str
    ) -> None:
        self._table = table
        self._log = log
        self._places = places
        self._view = view
        self._cluster = cluster
        self.is_unfinished = False
        self._skipped: Skipped | None = None
        self._accounted = 0  # the last batch that the primary is known to have accounted for
        self._state: LedgerState | None = None
        self._noted: LedgerPosition | None = None

    @property
    def batch(self) -> int:
        """The last batch that it has."""
        return self._known.published.batch

    async def begin(self, *, how: AttachHow | None, last: int, may_lack: bool = False) -> None:
        """Find out what it has, where the others have all batches up to the `last` one, and keep old producers from it.

        `may_lack`: if it has lost what was there, go on from what its ledger says, which Postgres learns; and accept
        what it has of a promotion that has failed. `is_unfinished` tells afterwards whether it has batches of its own
        that the next leader can complete.
        """
        if how == "reset":
            return await self._begin_empty(last)
        owed = await self._owed()
        start = 0 if may_lack else owed.witness.offset
        require_no_rival(owed, await self._log.glimpse(start))
        owed, ledger = await self._fenced(owed, start=start)
        if may_lack and (owed.witness.topic_id != ledger.topic_id or _last(ledger) < owed.witness.batch):
            known = LedgerPosition(ledger.topic_id, _last(ledger), ledger.head_offset, owed.witness.highest_id)
            owed = replace(owed, witness=known)
            await self._table.note_caught_up(self._view, self._cluster, known)
        await self._begin(owed, ledger, accepts=may_lack or how == "accept", last=last)

    async def _begin(self, owed: Fence, ledger: Ledger, *, accepts: bool, last: int) -> None:
        table, after = self._table, owed.witness.batch
        end = max(after, _last(ledger))
        kept = await table.owed_entries(after=after, upto=end, most=max(1, end - after))
        published = {entry.batch: entry for entry in kept}
        self.is_unfinished = is_unfinished(owed, ledger, published, last=last)
        if owed.witness.topic_id is None and ledger.head is None:  # what is written there is known from now on
            await table.note_caught_up(self._view, self._cluster, replace(owed.witness, topic_id=ledger.topic_id))
        if not accepts:
            self._state = self._state_at(owed, owed_from(owed, ledger, published, last=last))
            return
        found, alone = accepted_from(owed, ledger, published)
        self._skipped = skipping(self._skipped, alone, incarnation=owed.incarnation)
        self._state = self._state_at(owed, found)
        if alone:
            if self._skipped is not None:
                await table.skip(self._view, self._cluster, self._skipped)  # before its ledger forgets them
            entries = {entry.batch: entry for entry in ledger.entries}
            last_common = entries.get(found.witness.batch) or _empty_entry(self._view, owed, found.witness.batch)
            await self._commit_entry(last_common, without=alone)

    async def _begin_empty(self, last: int) -> None:
        """It starts from now: its ledger begins with the last batch, without its records, so that it is known."""
        await self.require_empty()
        owed, ledger = await self._fenced(await self._owed(), start=0)
        require_empty(owed, ledger)
        before = LedgerPosition(ledger.topic_id, max(0, last - 1))
        owed = replace(owed, witness=before)
        kept = ledger.head.kept if ledger.head else ()  # of an attempt that failed
        self._state = self._state_at(owed, Recovery(before, (), kept))
        if last:  # without this entry, it would look as if it had lost its ledger
            await self._commit_entry(_empty_entry(self._view, owed, last))

    async def require_empty(self) -> None:
        """Raise HistoryError if there is something in its ledger, except the start of an attempt that failed."""
        require_empty(await self._owed(), await self._log.glimpse(0))

    async def advance(self, *, upto: int | None = None, most: int = AT_A_TIME) -> int:
        """Publish the next batches that it lacks, at most this many. Return how many there were.

        `upto`: all up to this one have to be kept.
        """
        after = self.batch
        entries = await self._table.owed_entries(after=after, upto=_ANY if upto is None else upto, most=most)
        if upto is not None and upto > after:
            require_all_kept(entries, after=after, upto=min(after + most, upto))
        elif entries:
            require_all_kept(entries, after=after, upto=entries[-1].batch)
        for entry in entries:
            await self.publish(entry)
        return len(entries)

    async def publish(self, entry: Entry, *, may_lack: bool = False) -> bool:
        """Publish a batch as it was published elsewhere: its identity, records, partitions and order. Return whether
        all of its records are kept (`may_lack`), and raise HistoryError otherwise.

        A batch that is not whole there is another one: its entry names this view, and the records that are there.
        """
        expected = sum(extent.count for extent in entry.extents)
        kept = await self._table.owed_rows(entry.batch) if expected else ()
        is_whole = len(kept) == expected
        if not is_whole and not may_lack:
            raise HistoryError(f"the records of batch {entry.batch} are not kept. {EMPTY_IT}")
        rows = await self._placed(entry, self._wanted(entry, kept))
        wanted = None if len(rows) == expected else _counted(rows)
        await self._begin_transaction()
        extents = await self._log.publish(rows) if rows else ()
        require_same_places(entry.extents, extents, cluster=self._cluster, wanted=wanted)
        there = replace(entry if is_whole else self._partial(entry, kept), extents=tuple(extents))
        await self._commit(there, published=there)
        return is_whole

    async def skip_to(self, batch: int) -> None:
        """The batches up to this one are lost: go on after it, under its number."""
        if batch > self.batch:
            await self._commit_entry(_empty_entry(self._view, await self._owed(), batch))

    async def note(self, *, accounted: int = 0) -> None:
        """Let Postgres know how far it has got.

        Its ledger keeps only entries of later batches from now on, and those that the primary has not accounted for: if
        the cluster is promoted, the next leader does that. `accounted` is the last batch of which that is known now (or
        the one that was known at the beginning).
        """
        state = self._known
        self._accounted = max(self._accounted, accounted)
        if self._noted != state.published:
            await self._table.note_caught_up(self._view, self._cluster, state.published)
            self._noted = state.published
            state.witnessed = self._witnessed(state.published, after=state.witnessed)

    async def waits(self) -> bool:
        """Whether a record that it has alone waits to be published elsewhere: it would get it a second time."""
        if self._skipped is None:
            return False
        return await self._table.are_unpublished(expanded(self._skipped.ids), expanded(self._skipped.numbers))

    async def row(self, *, witnessed: int | None = None) -> LedgerRow:
        """Return what is known of its ledger, once consumers can read what it got.

        `witnessed`: the batches after this one are yet to be completed by a leader (None: none are). The primary has
        accounted for no later one.
        """
        await self._log.await_readable()
        state = self._known
        position = state.published if witnessed is None else replace(state.witnessed, batch=witnessed)
        position = replace(position, topic_id=state.published.topic_id)
        return LedgerRow(position, tuple(recorded_ids(self._log.transactional_ids, given_up=())))

    @property
    def _known(self) -> LedgerState:
        assert self._state is not None
        return self._state

    async def _owed(self) -> Fence:
        fence = await self._table.fence(self._view)
        self._accounted = fence.witness.batch
        skipped = {**fence.backups, **fence.owed}[self._cluster].skipped
        self._skipped = None if skipped is None or skipped.incarnation != fence.incarnation else skipped
        return fence.on(self._cluster)

    async def _fenced(self, owed: Fence, *, start: int) -> tuple[Fence, Ledger]:
        """Fence its producers; return what the fence row and the ledger say after that."""
        table, log = self._table, self._log
        await log.fence(owed.producers)
        try:
            ledger = await log.ledger(start)
        except HistoryError as error:  # it does not reach so far, or has lost its beginning
            raise HistoryError(f"{error.difference}. {EMPTY_IT}") from error
        if log.unfenced:
            raise KafkaError("an earlier leader's transaction can't be ended there. Bring its brokers back")
        fence = await self._owed()
        await table.note_producers(self._view, self._cluster, log.transactional_ids)
        return fence, ledger

    def _state_at(self, owed: Fence, found: Recovery) -> LedgerState:
        state = LedgerState(self._view, owed, found)
        # Later entries are kept until Postgres knows of them.
        state.witnessed = self._witnessed(owed.witness, after=replace(owed.witness, batch=0, offset=0))
        state.beats = owed.beats
        self._noted = owed.witness
        return state

    def _witnessed(self, known: LedgerPosition, *, after: LedgerPosition) -> LedgerPosition:
        """Return up to where its ledger needs no entries, where Postgres knows it to be as far as `known`: not after
        what the primary has accounted for. Then its offset is that of an earlier position, `after` which it comes.
        """
        return known if known.batch <= self._accounted else replace(after, batch=self._accounted)

    async def _placed(self, entry: Entry, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Choose the partitions of kept rows, as they were chosen when they were published. Raises KafkaError."""
        identities = _identities(entry)
        rows = [(identities[row[ID] - 1], *row[1:]) for row in rows]
        await self._places.examine(rows)  # so that it knows their topics
        if (partitions := self._places.choose_partitions(rows)) is None:
            await self._places.examine(rows, again=True)  # however long that takes
            if (partitions := self._places.choose_partitions(rows)) is None:
                return rows
        return [
            (*row[:PARTITION], partition, *row[PARTITION + 1 :])  # type: ignore[misc]
            for row, partition in zip(rows, partitions, strict=True)
        ]

    def _partial(self, entry: Entry, kept: Sequence[OutboxRow]) -> Entry:
        """The entry of a batch of which only these rows are there."""
        ids, places = entry.ids(), [row[ID] - 1 for row in kept]
        numbers = expanded(entry.unparked)
        return replace(
            entry,
            view=self._view,
            runs=runs([ids[place] for place in places if place < len(ids)]),
            unparked=runs([numbers[place - len(ids)] for place in places if place >= len(ids)]),
        )

    def _wanted(self, entry: Entry, rows: Sequence[OutboxRow]) -> Sequence[OutboxRow]:
        """Leave out the records that it has alone. Raises HistoryError if one of them was parked since."""
        if self._skipped is None:
            return rows
        ids, numbers = {*expanded(self._skipped.ids)}, {*expanded(self._skipped.numbers)}
        parked = {identity for group in entry.parked for identity in expanded(group.runs)}
        if parked_since := sorted(ids & parked):
            raise HistoryError(
                f"record {parked_since[0]}, which it has alone, was parked elsewhere since, and would come twice. "
                f"{EMPTY_IT}"
            )
        published = [identity in ids for identity in entry.ids()]
        published += [number in numbers for number in expanded(entry.unparked)]
        return [row for row in rows if not published[row[ID] - 1]]

    async def _commit_entry(self, entry: Entry, *, without: Sequence[Entry] = ()) -> None:
        """Write an entry into its ledger, and no records."""
        await self._begin_transaction()
        await self._commit(entry, without=without)

    async def _begin_transaction(self) -> None:
        if await self._log.begin():
            await self._table.require_fence(self._view)

    async def _commit(self, entry: Entry, *, without: Sequence[Entry] = (), published: Entry | None = None) -> None:
        state = self._known
        records = state.records(entry, highest_id=0, without=without)
        offset = await self._log.commit(records, entry=published)
        state.committed(entry, offset=offset, highest_id=0)
        state.settle()


def _identities(entry: Entry) -> Sequence[int]:
    """The ids of a batch's records, and the numbers of those that had been parked, in published order."""
    return [*entry.ids(), *expanded(entry.unparked)]


def _counted(rows: Sequence[OutboxRow]) -> Counter[tuple[str, int]]:
    """How many rows there are, by topic and partition. Raises KafkaError if a partition is not known."""
    if unplaced := sorted({row[TOPIC] for row in rows if row[PARTITION] is None}):
        topics = " and ".join(unplaced)
        raise KafkaError(f"nobody can tell into which partitions records of {topics} go. Make the topic")
    return Counter((row[TOPIC], row[PARTITION] or 0) for row in rows)


def _last(ledger: Ledger) -> int:
    return 0 if ledger.head is None else ledger.head.batch


def _empty_entry(view: UUID, owed: Fence, batch: int) -> Entry:
    nothing = Snapshot(1, 1)
    return Entry(batch, view, owed.incarnation, nothing, (), (), outbox_id=owed.outbox_id, shard=owed.shard)
