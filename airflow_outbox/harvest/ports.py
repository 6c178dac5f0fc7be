"""What the engine needs of the world: a table, a log, an election, and somewhere to report events.

The engine is asyncio code and nothing else: it starts no threads, and its only clock is the event loop's. So it runs
unchanged over Postgres and Kafka, and over simulated ones on an event loop whose time is simulated too. The real and
the simulated ports pass one conformance suite.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol
from uuid import UUID

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.protocol.election import Change, Standing
from airflow_outbox.harvest.protocol.ledger import Extent, Ledger, LedgerRecord, Parked
from airflow_outbox.harvest.protocol.parking import Refusal
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, Pulse
from airflow_outbox.values.pages import Length, OutboxRow, Page, PageSnapshot
from airflow_outbox.values.records import Lane, MarkedRecord, Snapshot


class Events(Protocol):
    """Where the engine reports what happens, as the name of an event and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None: ...


class Table(Protocol):
    """An outbox and its fence row.

    Any method may raise PostgresError; what it was asked to do may then have happened or not.
    """

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        """Write a new view into the fence row.

        Once it returns, no statement of an older view can change anything any more. Unless `after` is empty, only where
        the fence names one of these views; FencedError otherwise. Makes new connections: what was under way on the old
        ones may still happen before it returns.
        """

    async def fence(self, view: UUID) -> Fence:
        """The fence row, and what the database says of itself now. Raises FencedError."""

    async def begin(
        self,
        view: UUID,
        *,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None = None,
        flushed: Flushed | None = None,
    ) -> None:
        """Record in the fence row in which mode the term harvests, which ledger it goes by, and, unless they are as
        before, what its producers are known by and how far everything is out. Raises FencedError.

        The ids are durably recorded when it returns: none is used before, and one is left out only when it is fenced.
        """

    async def holds_marks(self) -> bool:
        """Whether any record carries a mark."""

    async def mark(
        self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool = False
    ) -> list[MarkedRecord]:
        """Claim the next records, in id order, marked by another view or (unless `only_marked`) unmarked.

        None when nothing is due. Raises FencedError.
        """

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        """Where a term that has recovered begins to read: the whole table, or, when dead rows make that slow, what the
        watermark does not see. Of what it sees everything is purged by then.
        """

    async def read(self, reading: PageSnapshot, *, max_records: int, max_bytes: int, transaction_ids: bool) -> Page:
        """The next page of a window: at most `max_records`, and at most about `max_bytes` in memory, or one record.

        Changes nothing and asks for no fence. `transaction_ids` tells whether the rows are to carry theirs.
        """

    async def lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        """How many records each of these transactions has in the outbox, and the last one's id."""

    async def flush(self, position: int) -> int:
        """Wait until Postgres' log is on disk up to a position; how far it is."""

    async def purge_published(
        self,
        view: UUID,
        ids: Sequence[int],
        snapshot: Snapshot,
        *,
        watermark: Snapshot | None = None,
        batch: int | None = None,
    ) -> int:
        """Delete, or archive, records by exact ids, as far as the snapshot sees their transactions. Raises FencedError.

        `batch` is their number in the ledger.

        Announces the watermark with it, unless there is no news of it. Returns how far Postgres' log is on disk.
        """

    async def purge(self, view: UUID, ids: Sequence[int]) -> None:
        """Delete records of this view. Raises FencedError."""

    async def reset(self, view: UUID, ids: Sequence[int]) -> None:
        """Take this view's mark from records. Raises FencedError."""

    async def require_fence(self, view: UUID) -> None:
        """Raise FencedError unless the fence is this view's; PostgresUnreachableError unless Postgres answers in time.

        Waits for no lock, and for no other call.
        """

    async def parked_lanes(self) -> tuple[Mapping[Lane, int], Collection[str]]:
        """How many records wait in each parked lane, and the topics that are parked as such."""

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        """Move records into the parked table, as far as the snapshot sees their transactions, or (without one) as they
        carry this view's mark. Raises FencedError.
        """

    async def parked_due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> Sequence[OutboxRow]:
        """Parked records to publish now, in order: of the lanes in which any is to be tried, from the first one on; or
        `of_all_lanes`, when any is to be tried. At most `max_records`, and no more than it takes to reach `max_bytes`.

        In place of an id each has its number in the parked table, and all have their transaction ids.
        """

    async def parked_in_part(self) -> Collection[int]:
        """The transactions of which a part was parked, or discarded after that, while the rest is in the outbox."""

    async def parked_lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        """How many records each of these transactions has, parked or still in the outbox, and the last parked one's
        number; of those only that may be tried: that have no record which waits until somebody asks, or somebody has,
        for a retry of whatever records.
        """

    async def unpark(self, view: UUID, numbers: Sequence[int]) -> None:
        """Delete parked records, by number. Raises FencedError."""

    async def note_refusals(self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int]) -> None:
        """Note, by number, that parked records were refused again, and when to try again; `others`, which were tried
        with them, are due no more, and a cause of theirs that can pass is forgotten: they wait for them. So does all
        that comes behind a refused record in its lane, or in the topic that is refused. Raises FencedError.
        """

    async def discard_requested(self, view: UUID) -> Sequence[Lane]:
        """Discard what operators have asked to discard; the lanes, once for each record. Raises FencedError."""

    async def release(self, view: UUID, *, max_records: int) -> bool:
        """Make due what nothing holds any more: the first records of lanes, unless they have a cause themselves, or
        another one has that stands for their topic. At most so many; whether there may be more. Raises FencedError.
        """

    async def heartbeat(
        self,
        view: UUID,
        *,
        published: int,
        in_flight: int,
        rate: float,
        witness: LedgerPosition | None = None,
        flushed: Flushed | None = None,
    ) -> Pulse:
        """Say in the fence row that the view is alive, has published so many more records, what it has witnessed, and
        how far everything is out, which is announced too.

        Durable once it returns. Raises FencedError.
        """

    async def halt(self, view: UUID, reason: str) -> None:
        """Stop harvesting, whoever leads, until an operator adopts. Nothing happens when the fence is another
        view's.
        """

    async def note_error(self, view: UUID, error: str) -> None:
        """Leave the reason for a failure in the fence row."""

    async def is_empty(self) -> bool:
        """Whether every committed record has been published and purged, by whichever member."""

    async def close(self) -> None:
        """End the connections. What is under way on them may still happen."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """What became of one record: delivered when `error` is None, else undelivered or uncertain.

    A RecordsRefusedError says that Kafka does not take records; it names this one if it is known to be the reason.
    """

    record: MarkedRecord
    error: OutboxError | None


class Log(Protocol):
    """A producer to Kafka, for one term. Each record that was sent is reported exactly once."""

    async def examine(self, records: Sequence[MarkedRecord], *, again: bool = False) -> Mapping[int, Refusal]:
        """Which of these records Kafka would refuse, by id, as far as can be told without sending them.

        `again` asks about topics, too, that were refused before.
        """

    def send(self, record: MarkedRecord) -> None:
        """Publish a record, some time soon.

        Never waits and never raises: a record that can't go out is reported as undelivered.
        """

    async def deliveries(self) -> Sequence[Delivery]:
        """Wait for reports, and return all that have come in since the last call.

        Raises KafkaError when no more will come: what was sent and not reported may have been published or not.
        """

    async def close(self) -> None:
        """Give up what is unreported, which may then be published or not, and end."""


class LogFactory(Protocol):
    """Makes the log of a new term. `individually`: each record goes out by itself, so that none is refused with others.

    Raises KafkaError.
    """

    async def __call__(self, *, individually: bool = False) -> Log: ...


class TransactionalLog(Protocol):
    """Transactional producers to Kafka, which take turns, and the ledger beside them, for one term.

    Any method may raise KafkaError; what it was asked to do may then have happened or not, and the log is of no use any
    more but for `close`. What was not committed is never seen by consumers that read committed.
    """

    @property
    def transactional_ids(self) -> Sequence[str]:
        """What this log's producers are known by."""

    @property
    def readable(self) -> int:
        """How many of the transactions that were committed, from the first one on, are known to be readable: consumers
        that read committed get past them, unless other applications' open transactions hold them back.
        """

    async def fence(self, others: Collection[str] = ()) -> None:
        """End the transaction of every earlier producer of the log's ids, and of `others`, one way or the other, and
        keep them from new ones.

        To be called before anything else. Ids of `others` whose last transaction can't be ended now, because a
        partition that it touches lacks brokers, are `unfenced` afterwards; StuckTransactionsError for ids of the log.
        """

    @property
    def unfenced(self) -> Collection[str]:
        """Ids that could not be fenced, for their last transaction has not ended. What it has written may be committed
        and not readable yet. Once it has ended, their producers may begin another one, unless they are given up.

        They belong to `transactional_ids` until they are fenced.
        """

    async def fence_rest(self) -> None:
        """Try to fence what is `unfenced`."""

    async def are_readable(self, extents: Collection[Extent]) -> bool:
        """Whether consumers that read committed get past these records, as far as can be told now."""

    async def glimpse(self, start: int) -> Ledger:
        """What is readable in the ledger by now, from an offset on; nothing, if it does not reach so far.

        Disturbs no producer, and waits for none. Raises HistoryError for what no release has written, KafkaError also
        when there is no ledger.
        """

    async def ledger(self, start: int) -> Ledger:
        """What the ledger says from an offset on, as far as it goes now; committed entries only.

        Waits for transactions that are still open there. Raises HistoryError when the ledger does not reach so far,
        KafkaError also when there is none.
        """

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Refusal]:
        """Which of these rows Kafka would refuse, by id, as far as can be told without sending them.

        `again` asks about topics, too, that were refused before.
        """

    async def begin(self) -> bool:
        """Begin the next transaction, perhaps while others are being committed; waits until its producer is free.

        Returns whether the producer has a new epoch since its last transaction. Then it may have fenced a successor:
        nothing is to be published before the fence row has been read.
        """

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        """Send rows, in their order, in the transaction that was begun last, and wait until Kafka has them; where they
        are. It makes known that the last transaction of the same producer is readable.

        Raises RecordsRefusedError when it is the records that Kafka does not take.
        """

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        """Write records into the ledger in the first transaction that is not committed, and commit it; the last one's
        offset in the ledger. Nothing is published in it any more, and the commit before it has returned.
        """

    async def await_readable(self) -> None:
        """Ask Kafka until all that is committed is readable, or as far as the next transactions don't tell it."""

    async def close(self) -> None:
        """Give up what is open, and end. Waits for nothing."""


class TransactionalLogFactory(Protocol):
    """Makes the log of a new term. Raises KafkaError."""

    async def __call__(self) -> TransactionalLog: ...


class Election(Protocol):
    """This member's part in the election of the shards' leaders."""

    def standing(self, shard: int) -> Standing: ...

    def changes(self) -> AsyncIterator[tuple[int, Change]]:
        """When to lead a shard and when to stand by.

        After a StandBy, the group waits (for at most the heartbeat timeout) for `released`.
        """

    def released(self, shard: int) -> None:
        """Nothing of the shard's ended term is under way any more: a successor may begin."""

    def fenced(self, shard: int) -> None:
        """The shard's fence names another view."""

    def resign(self, reason: str) -> None:
        """Leave the group until `rejoin`: others are to lead what this member can't serve."""

    def rejoin(self) -> None:
        """Be a member again."""

    async def close(self) -> None:
        """Leave the group, so that a successor is chosen at once, and end `changes`."""
