"""The engine's ports to the world: a table, a log, an election, and somewhere to report events.

The engine is asyncio code and nothing else: it starts no threads, and its only clock is the event loop's. So it runs
unchanged over Postgres and Kafka, and over simulated ones on an event loop whose time is simulated too. The real and
the simulated ports pass one conformance suite.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncIterator, Collection, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import Protocol, Unpack
from uuid import UUID

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.cluster_ports import ClusterTable
from airflow_outbox.harvest.protocol.election import Change, Standing
from airflow_outbox.harvest.protocol.ledger import Entry, Extent, Ledger, LedgerRecord, Parked
from airflow_outbox.values.fence import Fence, Flushed, LedgerPosition, LedgerRow, Pulse, Purged, ShardLook
from airflow_outbox.values.pages import Length, OutboxRow, Page, PageBounds, PageSnapshot
from airflow_outbox.values.records import Key, Lane, MarkedRecord, Snapshot
from airflow_outbox.values.refusals import Refusal

NO_BACKUPS: Mapping[str, LedgerRow] = {}
NO_WITNESS: Mapping[str, LedgerPosition] = {}


class Events(Protocol):
    """Takes the engine's events, as the name of an event and its fields."""

    def __call__(self, event: str, /, **fields: object) -> None: ...


class Table(ClusterTable, Protocol):
    """An outbox and its fence row.

    Any method may raise PostgresError; its effect may then have happened or not.
    """

    async def take_over(self, view: UUID, *, after: Collection[UUID] = ()) -> Fence:
        """Write a new view into the fence row.

        Once it returns, no statement of an older view can change anything any more. Raises FencedError if the fence
        names none of the views `after`; empty allows any. Raises LayoutChangedError if the outbox has another layout
        than the table was made for, TakeOverError while it gets another. Makes new connections: statements under way on
        the old ones may still take effect before it returns.
        """

    async def fence(self, view: UUID) -> Fence:
        """The fence row, with the present identity and ids of the database. Raises FencedError."""

    async def begin(
        self,
        view: UUID,
        *,
        delivery: str,
        witness: LedgerPosition,
        transactional_ids: Sequence[str] | None = None,
        flushed: Flushed | None = None,
        backups: Mapping[str, LedgerRow] = NO_BACKUPS,
    ) -> None:
        """Record in the fence row the term's mode and ledger and, unless None (as before), its producers' transactional
        ids and how far everything is out. `backups`: the ledger and the ids on other clusters. Raises FencedError.

        The ids are durable when it returns: none is used before, and one is left out only once it is fenced.
        """

    async def holds_marks(self) -> bool:
        """Whether any record carries a mark."""

    async def mark(
        self, view: UUID, *, max_records: int, max_bytes: int, only_marked: bool = False
    ) -> list[MarkedRecord]:
        """Claim the next records, in id order, marked by another view or (unless `only_marked`) unmarked.

        Returns an empty list when nothing is due. Raises FencedError.
        """

    async def first_reading(self, watermark: Snapshot | None) -> PageSnapshot:
        """The place where a recovered term begins to read: the whole table or, if dead rows make that slow, the records
        that the watermark does not see. All that it sees are purged by then.
        """

    async def read(self, reading: PageSnapshot, *, wait: float = 0.0, **bounds: Unpack[PageBounds]) -> Page:
        """The next page of a window.

        Changes nothing and asks for no fence. If a new window would be empty, this waits this many seconds for a
        transaction to end; it may return sooner all the same.
        """

    async def lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        """The count of each of these transactions' records in the outbox, and the last one's id."""

    async def flush(self, position: int) -> int:
        """Wait until Postgres' log is on disk up to a position. Return how far it is."""

    async def purge_published(
        self,
        view: UUID,
        ids: Sequence[int],
        snapshot: Snapshot,
        *,
        watermark: Snapshot | None = None,
        batch: int | None = None,
    ) -> Purged:
        """Delete, or archive, records by exact ids, as far as the snapshot sees their transactions. Raises FencedError.

        `batch` is their number in the ledger. Announces the watermark too, unless None (no news).
        """

    async def purge(self, view: UUID, ids: Sequence[int]) -> float | None:
        """Delete records of this view. Return how many seconds ago the one in the middle was stashed (None: nobody
        knows). Raises FencedError.
        """

    async def delete_again(self, view: UUID) -> None:
        """Delete published records that Postgres would not delete before, as far as it does now. Raises FencedError."""

    async def reset(self, view: UUID, ids: Sequence[int]) -> None:
        """Take this view's mark from records. Raises FencedError."""

    async def require_fence(self, view: UUID) -> None:
        """Raise FencedError unless the fence is this view's; PostgresUnreachableError unless Postgres answers in time.

        Waits for no lock, and for no other call.
        """

    async def parked_lanes(self, *, most: int) -> tuple[Mapping[str, Counter[Key]], Collection[str], Mapping[str, int]]:
        """The count of waiting records in each lane, by topic and short key; the topics that are parked whole; and the
        count of waiting records of each topic whose lanes are left out, so that at most this many are returned.
        """

    async def waiting_lanes(self, lanes: Sequence[Lane], *, leaving: Sequence[int]) -> Collection[Lane]:
        """Those of these lanes in which records wait, but for the `leaving` ones, by number."""

    async def park(self, view: UUID, parked: Sequence[Parked], snapshot: Snapshot | None) -> None:
        """Move records into the parked table: those whose transactions the snapshot sees, or (without one) those with
        this view's mark. Raises FencedError.
        """

    async def parked_due(self, *, max_records: int, max_bytes: int, of_all_lanes: bool) -> Sequence[OutboxRow]:
        """Parked records to publish now, in order. They are those of each lane with a record to be tried, from its
        first record on; or those `of_all_lanes`, if any record is to be tried. At most `max_records`, and only enough
        to reach `max_bytes`.

        Each has its number in the parked table in place of an id. All have their transaction ids.
        """

    async def parked_in_part(self) -> Collection[int]:
        """The transactions with a part that is parked, or was then discarded, and the rest in the outbox."""

    async def parked_lengths(self, transaction_ids: Collection[int]) -> Mapping[int, Length]:
        """The count of each transaction's records, parked or still in the outbox, and the last parked one's number.

        Only retryable transactions: none of their records waits for a manual retry, or a retry of any record was asked
        for.
        """

    async def unpark(self, view: UUID, numbers: Sequence[int], *, batch: int | None = None) -> None:
        """Delete parked records, by number. `batch` is theirs in the ledger. Raises FencedError."""

    async def note_refusals(self, view: UUID, refusals: Mapping[int, Refusal], *, others: Collection[int]) -> None:
        """Note, by number, that parked records were refused again, and when to try again.

        The `others`, which were tried with them, now wait for them: they are no longer due, and a cause of theirs that
        can pass is forgotten. All records behind a refused one in its lane, or in a refused topic, wait too; of very
        many, the rest has it tried once more. A retry for which somebody has asked since `parked_due` read them is
        still to come. Raises FencedError.
        """

    async def discard_requested(self, view: UUID) -> Sequence[Lane]:
        """Discard records as operators have asked, some of them where these are very many. Return their lanes, one for
        each; none: nothing is left. Raises FencedError.
        """

    async def release(self, view: UUID, *, max_records: int) -> bool:
        """Make due the first record of each lane that nothing holds any more: it has no cause of its own, and no record
        stands for its topic. At most this many. Return whether there may be more. Raises FencedError.
        """

    async def heartbeat(
        self,
        view: UUID,
        *,
        published: int,
        in_flight: int,
        rate: float,
        witness: Mapping[str, LedgerPosition] = NO_WITNESS,
        flushed: Flushed | None = None,
    ) -> Pulse:
        """Write into the fence row that the view is alive, how many more records it has published, its `witness` on
        each cluster (empty: as before), and how far everything is out. Announces the last.

        Durable once it returns. Raises FencedError.
        """

    async def leave(self, view: UUID) -> None:
        """Write into the fence row that nobody leads any more. Does nothing if the fence is another view's."""

    async def halt(self, view: UUID, reason: str) -> None:
        """Stop harvesting, under any leader, until an operator adopts. Does nothing if the fence is another view's."""

    async def note_error(self, view: UUID, error: str) -> None:
        """Write the reason for a failure into the fence row."""

    async def looks(self) -> Sequence[ShardLook]:
        """All that each shard with slots shows to all members. Waits for no lock."""

    async def write_layout(self, views: Mapping[int, UUID], shards: int) -> Mapping[int, UUID]:
        """Give the outbox this many shards, and void all views. `views` are those of all shards that have slots.

        All of their committed batches are purged. Returns the fresh view of each new shard. Raises FencedError unless
        all fences name these views.
        """

    async def is_empty(self) -> bool:
        """Whether every committed record has been published and purged, by any member."""

    async def close(self) -> None:
        """End the connections. Statements under way on them may still take effect."""


@dataclass(frozen=True, slots=True)
class Delivery:
    """The outcome of one record: delivered if `error` is None, else undelivered or uncertain.

    A RecordsRefusedError says that Kafka refuses records; it names this one if it is known to be the reason.
    """

    record: MarkedRecord
    error: OutboxError | None


class Log(Protocol):
    """A producer to Kafka, for one term. It reports each sent record exactly once."""

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

        Raises KafkaError when no more will come: unreported records may have been published or not.
        """

    async def close(self) -> None:
        """Give up unreported records, which may be published or not, and end."""


class LogFactory(Protocol):
    """Makes the log of a new term. `individually`: each record goes out alone, so that none is refused with others.

    Raises KafkaError.
    """

    async def __call__(self, *, individually: bool = False) -> Log: ...


class TransactionalLog(Protocol):
    """Transactional producers to Kafka, which take turns, and the ledger beside them, for one term.

    Any method may raise KafkaError; its effect may then have happened or not, and only `close` may be called after
    that. Consumers that read committed never see uncommitted records.
    """

    @property
    def transactional_ids(self) -> Sequence[str]:
        """The transactional ids of this log's producers."""

    @property
    def readable(self) -> int:
        """How many committed transactions, from the first one on, are known to be readable: consumers that read
        committed get past them, unless other applications' open transactions hold them back.
        """

    async def fence(self, others: Collection[str] = ()) -> None:
        """End the transaction of every earlier producer of the log's ids and of `others`, either way, and keep these
        producers from new ones.

        Call it first. A last transaction can't be ended now if a partition that it touches lacks brokers. Such ids of
        `others` are `unfenced` afterwards. Raises StuckTransactionsError for such ids of the log.
        """

    @property
    def unfenced(self) -> Collection[str]:
        """Ids that could not be fenced, since their last transaction has not ended. Its records may be committed and
        not readable yet. Once it has ended, their producers may begin another one, unless they are given up.

        They belong to `transactional_ids` until they are fenced.
        """

    async def fence_rest(self) -> None:
        """Try to fence the `unfenced` ids."""

    async def are_readable(self, extents: Collection[Extent]) -> bool:
        """Whether consumers that read committed get past these records, as far as can be told now."""

    async def glimpse(self, start: int) -> Ledger:
        """Return the ledger from an offset on, as far as it is readable now; empty if it does not reach so far.

        Disturbs no producer, and waits for none. Raises HistoryError for records that no release has written,
        KafkaError also when there is no ledger.
        """

    async def ledger(self, start: int) -> Ledger:
        """Return the ledger from an offset to its present end; committed entries only.

        Waits for transactions that are still open there. Raises HistoryError when the ledger does not reach so far,
        KafkaError also when there is none.
        """

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Refusal]:
        """Which of these rows Kafka would refuse, by id, as far as can be told without sending them.

        `again` asks about topics, too, that were refused before.
        """

    def passes(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether Kafka is known to take all these rows, without asking it. False: `examine` tells."""

    def passes_too(self, topics: Set[str], *, largest: int) -> bool:
        """The same of rows that pass on another cluster. `topics` are theirs; `largest` is how many bytes of key and
        value one of them has at most.
        """

    def partitions(self, topics: Collection[str]) -> Mapping[str, int]:
        """How many partitions those of these topics have that are known."""

    def choose_partitions(self, rows: Sequence[OutboxRow]) -> Sequence[int] | None:
        """The partition into which this cluster's producers would put each row; None if that is not known of all. The
        same rows get the same partitions while their topics have as many.
        """

    async def begin(self) -> bool:
        """Begin the next transaction, perhaps while others are being committed; waits until its producer is free.

        Returns whether the producer has a new epoch since its last transaction. Then it may have fenced a successor:
        nothing is to be published before the fence row has been read.
        """

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        """Send rows, in order, in the transaction begun last. Wait until Kafka has them; return where they are.
        `partitions`: where each of them goes (None: where it names a partition or, by its key, this cluster puts it).

        This proves that the last transaction of the same producer is readable. Raises RecordsRefusedError if Kafka
        refuses the records.
        """

    async def write(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> None:
        """Write records into the ledger in the first uncommitted transaction, ahead of `commit`, which gets none then.
        Wait until Kafka has them. Nothing more is published in this transaction, and the commit before it has returned.

        `entry` is the batch's, as it is on this cluster. Its extents are written, too, where positions are on.
        """

    async def commit(self, records: Sequence[LedgerRecord], *, entry: Entry | None = None) -> int:
        """Write records as `write` does, unless that was done, and commit the first uncommitted transaction. Return the
        last one's offset in the ledger.
        """

    async def await_readable(self) -> None:
        """Ask Kafka until all commits are readable, except those of which the next transactions tell."""

    async def close(self) -> None:
        """Give up open transactions, and end. Waits for nothing."""


class TransactionalLogFactory(Protocol):
    """Makes the log of a new term. Raises KafkaError."""

    async def __call__(self) -> TransactionalLog: ...


class Election(Protocol):
    """This member's part in the election of the shards' leaders."""

    def standing(self, shard: int) -> Standing: ...

    def changes(self) -> AsyncIterator[tuple[int, Change]]:
        """Yield when to lead a shard and when to stand by.

        After a StandBy, the group waits (for at most the heartbeat timeout) for `released`.
        """

    def released(self, shard: int) -> None:
        """The shard's ended term has nothing under way any more: a successor may begin."""

    def fenced(self, shard: int) -> None:
        """The shard's fence names another view."""

    def resign(self, reason: str) -> None:
        """Leave the group until `rejoin`: others should lead the shards that this member can't serve."""

    def rejoin(self) -> None:
        """Be a member again."""

    async def close(self) -> None:
        """Leave the group, so that a successor is chosen at once, and end `changes`."""
