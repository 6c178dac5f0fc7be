"""A simulated Kafka: partitions of topics, transactional producers, and the compacted ledger.

A *transactional id* has an epoch; whoever initialises it raises the epoch, and the coordinator refuses all older ones
from then on. Within an epoch it can't tell a request of this transaction from a late copy of one before: whatever
arrives acts in the transaction that is open. Only records that arrive again are known by their sequence numbers. A
partition takes records of a transaction that it was added to.

The coordinator first *decides* a transaction (from then on it is committed, or aborted, whoever dies), and writes its
markers into the partitions after that, one by one. A consumer that reads committed sees a partition up to its *last
stable offset*, the first record of a transaction that has no marker there yet, and nothing of aborted ones.

A partition may be without a leader for a while. Then it takes no records and tells nothing, and a transaction that
touches it is decided, but does not end: its marker waits there. The coordinator may also be slow to write down what
a producer asks of it; until it has, it takes nothing else for that id, and nobody can end the transaction.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from random import Random
from typing import Any

from simulation.loop import ELSEWHERE

from airflow_outbox.errors import RecordsRefusedError
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import HEADER_NAMES, HEADER_VALUES, TOPIC, VALUE
from airflow_outbox.values.refusals import Cause, Refusal

LEDGER = ("ledger", 0)


def ledger_of(shard: int) -> TopicAndPartition:
    """The ledger's partition of a shard."""
    return LEDGER[0], shard


PARTITIONS = 2


class Fenced(Exception):
    """The producer's epoch is an old one."""


class NotInTransaction(Exception):
    """The partition was not added to the transaction, or none is open."""


class Concurrent(Exception):
    """The transaction before it has not got all its markers yet: to be tried again."""


class NoLeader(Exception):
    """Nobody answers for the partition."""


@dataclass(slots=True, eq=False)
class KafkaTransaction:
    """`committed` is None until it is decided, at `decided_at` in the world's count."""

    number: int
    places: dict[TopicAndPartition, None] = field(default_factory=dict)
    committed: bool | None = None
    decided_at: int = 0
    unmarked: set[TopicAndPartition] = field(default_factory=set)
    held_back: set[TopicAndPartition] = field(default_factory=set)
    """Where its marker had to wait for a leader."""
    marked_at: dict[TopicAndPartition, int] = field(default_factory=dict)
    """Since when its marker is there."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A record in a partition. `at` is when it was appended, in the world's count."""

    offset: int
    key: Any
    value: Any
    transaction: KafkaTransaction | None
    at: int


class Partition:
    """Records in the order of their offsets, some of which are markers' or were compacted away."""

    def __init__(self) -> None:
        self.records: list[Stored] = []
        self.compacted: list[Stored] = []
        """All records that were here once."""
        self.end = 0
        self.open: dict[KafkaTransaction, int] = {}
        self.readable_at: dict[int, int] = {}
        """When the stable offset passed an offset, in the world's count."""
        self._waiting: list[tuple[int, Callable[[], None]]] = []
        self._noted = 0

    def note(self, at: int) -> None:
        """Take note of how far the stable offset is."""
        self.readable_at.update((offset, at) for offset in range(self._noted, self.stable))
        self._noted = max(self._noted, self.stable)

    def append(self, key: Any, value: Any, transaction: KafkaTransaction | None, at: int) -> int:
        self.records.append(Stored(self.end, key, value, transaction, at))
        if transaction is not None:
            self.open.setdefault(transaction, self.end)
        self.end += 1
        return self.end - 1

    def mark(self, transaction: KafkaTransaction) -> None:
        self.open.pop(transaction, None)
        self.end += 1
        ready = [call for offset, call in self._waiting if offset <= self.stable]
        self._waiting = [(offset, call) for offset, call in self._waiting if offset > self.stable]
        for call in ready:
            call()

    @property
    def stable(self) -> int:
        """The last stable offset."""
        return min(self.open.values(), default=self.end)

    def when_stable(self, offset: int, call: Callable[[], None]) -> None:
        """Call once the stable offset has reached `offset`."""
        if self.stable >= offset:
            call()
        else:
            self._waiting.append((offset, call))

    def committed(self, start: int = 0, end: int | None = None) -> Iterator[Stored]:
        """The records that a consumer that reads committed sees."""
        limit = self.stable if end is None else min(end, self.stable)
        for record in self.records:
            if start <= record.offset < limit and (record.transaction is None or record.transaction.committed):
                yield record

    def compact(self, limit: int, *, forget_tombstones_before: int) -> None:
        """Below `limit`, keep the last committed record of each key only, and of tombstones the younger ones."""
        limit = min(limit, self.stable)
        last = {record.key: record.offset for record in self.committed(end=limit)}
        kept = [
            record
            for record in self.records
            if record.offset >= limit
            or (
                last.get(record.key) == record.offset
                and (record.value is not None or record.at >= forget_tombstones_before)
            )
        ]
        offsets = {record.offset for record in kept}
        self.compacted += [record for record in self.records if record.offset not in offsets]
        self.records = kept


class Coordinator:
    """The broker's knowledge of one transactional id."""

    def __init__(self) -> None:
        self.epoch = -1
        self.transaction: KafkaTransaction | None = None  # open, or decided and without all its markers
        self.taken: dict[TopicAndPartition, dict[int, int]] = {}
        """Offsets of records of this epoch, by the first sequence number."""
        self.is_writing = False  # what a producer has asked


class Broker:
    """One cluster. A transaction that is open for `transaction_timeout` seconds is aborted by the coordinator."""

    def __init__(self, random: Random, tick: Callable[[], int], *, transaction_timeout: float) -> None:
        self.is_backup = False
        self.partitions_of_topics = PARTITIONS
        self.is_up = True
        """Whether anybody is answered."""
        self.partitions: dict[TopicAndPartition, Partition] = {LEDGER: Partition()}
        self.ledger_id: str | None = "ledger 1"
        self.losses = 0
        """How often the ledger has lost something."""
        self.told: dict[str, Refusal] = {}
        """Records that are refused, by value, of which a look at them tells so."""
        self.untold: set[str] = set()
        """Records that are refused, of which only the sending tells so; with all that is sent with them."""
        self.unclear: set[str] = set()
        """Those of them that are refused with an error that may also be about Kafka itself."""
        self.missing: set[str] = set()
        """Topics that are not there."""
        self.marking_time = 0.0
        """How long it takes to write a marker, at most, in seconds."""
        self.away: set[TopicAndPartition] = set()
        """Partitions without a leader."""
        self.unanswered: set[str] = set()
        """Topics of which a record was not taken in time, since a partition has no leader."""
        self.writing_time: Callable[[Collection[TopicAndPartition]], float] = lambda places: 0.0
        """How long the coordinator takes to write down what it is asked, in seconds; told which partitions it adds."""
        self._held_back: list[tuple[Coordinator, KafkaTransaction, TopicAndPartition]] = []  # markers
        self._random = random
        self._tick = tick
        self._timeout = transaction_timeout
        self._coordinators: dict[str, Coordinator] = {}
        self.opened = count()
        """Numbers the logs that are opened, where these differ."""
        self._numbers = 0

    def refusal(self, row: Sequence[Any]) -> Refusal | None:
        """The result of a look at a record."""
        if row[TOPIC] in self.missing:
            return Refusal(Cause.UNKNOWN_TOPIC, f"topic {row[TOPIC]} does not exist")
        if len(row[HEADER_NAMES]) != len(row[HEADER_VALUES]):
            return Refusal(Cause.HEADERS, "as many names as values are needed")
        return self.told.get(row[VALUE])

    def takes(self, row: Sequence[Any]) -> bool:
        """Whether a record is taken when it is sent."""
        return row[VALUE] not in self.untold and self.refusal(row) is None

    def refused_with(self, rows: Iterable[Sequence[Any]]) -> RecordsRefusedError | None:
        """The error for rows that are sent together (None: all of them are taken)."""
        refused = [row for row in rows if not self.takes(row)]
        if not refused:
            return None
        unclear = all(row[VALUE] in self.unclear for row in refused)
        topics = sorted({row[TOPIC] for row in refused})
        return RecordsRefusedError("simulated: refused", topics=topics, explained=not unclear, unclear=unclear)

    def unavailable(self, row: Sequence[Any], *, again: bool) -> Refusal | None:
        """The result of a look at a record's topic: an old one, unless a record was not answered, or one `again`."""
        if (again or row[TOPIC] in self.unanswered) and any(row[TOPIC] == topic for topic, _ in self.away):
            return Refusal(Cause.UNAVAILABLE, f"a partition of topic {row[TOPIC]} has no leader")
        return None

    @property
    def unmarked(self) -> list[TopicAndPartition]:
        """Partitions of topics that are to get a marker."""
        found = (coordinator.transaction for coordinator in self._coordinators.values())
        return sorted({place for one in found if one for place in one.unmarked if place[0] != LEDGER[0]})

    def lose_leader(self, place: TopicAndPartition) -> None:
        """A partition has no leader from now on."""
        self.away.add(place)

    def find_leader(self, place: TopicAndPartition) -> None:
        """A partition has a leader again, and gets its markers."""
        self.away.discard(place)
        if not any(place[0] == topic for topic, _ in self.away):
            self.unanswered.discard(place[0])
        back = [held for held in self._held_back if held[2] == place]
        self._held_back = [held for held in self._held_back if held[2] != place]
        loop = asyncio.get_running_loop()
        for held in back:
            loop.call_later(self.marking_time * self._random.random(), self._mark, *held, context=ELSEWHERE)

    def partition(self, place: TopicAndPartition) -> Partition:
        return self.partitions.setdefault(place, Partition())

    def coordinator(self, transactional_id: str) -> Coordinator:
        return self._coordinators.setdefault(transactional_id, Coordinator())

    def initialise(self, transactional_id: str) -> int:
        """Fence all older producers; the new epoch. Raises Concurrent while their last transaction is being ended."""
        coordinator = self.coordinator(transactional_id)
        transaction = coordinator.transaction
        if transaction is not None:
            if transaction.committed is None and not coordinator.is_writing:
                self._raise_epoch(coordinator)
                self._decide(coordinator, transaction, committed=False)
            raise Concurrent
        return self._raise_epoch(coordinator)

    def add(self, transactional_id: str, epoch: int, places: Collection[TopicAndPartition]) -> None:
        """Add partitions to the producer's transaction, which begins with the first ones."""
        coordinator = self._required(transactional_id, epoch)
        transaction = coordinator.transaction
        if transaction is None:
            self._numbers += 1
            loop = asyncio.get_running_loop()
            transaction = coordinator.transaction = KafkaTransaction(self._numbers)
            loop.call_later(self._timeout, self._expire, coordinator, transaction, context=ELSEWHERE)
        elif transaction.committed is not None or coordinator.is_writing:
            raise Concurrent
        if not transaction.places.keys() >= set(places):
            self._write_down(coordinator, lambda: transaction.places.update(dict.fromkeys(places)), places)

    def produce(
        self,
        transactional_id: str,
        epoch: int,
        place: TopicAndPartition,
        records: list[tuple[Any, Any]],
        *,
        sequence: int,
    ) -> int:
        """Append records in the producer's transaction, unless they are there; the first one's offset."""
        if place in self.away:
            raise NoLeader
        coordinator = self._required(transactional_id, epoch)
        taken = coordinator.taken.setdefault(place, {})
        if sequence not in taken:
            transaction = coordinator.transaction
            if transaction is None or transaction.committed is not None or place not in transaction.places:
                raise NotInTransaction
            partition = self.partition(place)
            taken[sequence] = partition.end
            for key, value in records:
                partition.append(key, value, transaction, self._tick())
        return taken[sequence]

    def end(self, transactional_id: str, epoch: int, *, committed: bool) -> None:
        coordinator = self._required(transactional_id, epoch)
        transaction = coordinator.transaction
        if transaction is None or transaction.committed is not None:
            return
        if coordinator.is_writing:
            raise Concurrent
        self._write_down(coordinator, lambda: self._decide(coordinator, transaction, committed=committed), ())

    def stable_offsets(self, places: Collection[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        """How far consumers that read committed can get, where anybody knows."""
        return {place: self.partition(place).stable for place in places if place not in self.away}

    def append(self, place: TopicAndPartition, key: Any, value: Any) -> int:
        """Append a record of a producer without transactions."""
        partition = self.partition(place)
        offset = partition.append(key, value, None, self._tick())
        partition.note(self._tick())
        return offset

    def lose_ledger(self) -> None:
        """The ledger's topic is deleted and recreated."""
        self.partitions[LEDGER] = Partition()
        self.losses += 1
        self.ledger_id = f"ledger {self.losses + 1}"

    def _required(self, transactional_id: str, epoch: int) -> Coordinator:
        coordinator = self.coordinator(transactional_id)
        if epoch != coordinator.epoch:
            raise Fenced
        return coordinator

    def _expire(self, coordinator: Coordinator, transaction: KafkaTransaction) -> None:
        if coordinator.is_writing:
            loop = asyncio.get_running_loop()
            loop.call_later(1.0, self._expire, coordinator, transaction, context=ELSEWHERE)
        elif transaction.committed is None:
            self._raise_epoch(coordinator)
            self._decide(coordinator, transaction, committed=False)

    def _write_down(
        self, coordinator: Coordinator, effect: Callable[[], None], places: Collection[TopicAndPartition]
    ) -> None:
        """Do something now, or later and raise Concurrent: when it is asked again, it may be done."""
        if (after := self.writing_time(places)) == 0:
            return effect()

        def written() -> None:
            coordinator.is_writing = False
            effect()

        coordinator.is_writing = True
        asyncio.get_running_loop().call_later(after, written, context=ELSEWHERE)
        raise Concurrent

    def _raise_epoch(self, coordinator: Coordinator) -> int:
        coordinator.epoch += 1
        coordinator.taken = {}
        return coordinator.epoch

    def _decide(self, coordinator: Coordinator, transaction: KafkaTransaction, *, committed: bool) -> None:
        transaction.committed, transaction.decided_at = committed, self._tick()
        transaction.unmarked = set(transaction.places)
        loop = asyncio.get_running_loop()
        for place in transaction.places:
            after = self.marking_time * self._random.random()
            loop.call_later(after, self._mark, coordinator, transaction, place, context=ELSEWHERE)

    def _mark(self, coordinator: Coordinator, transaction: KafkaTransaction, place: TopicAndPartition) -> None:
        if place in self.away:
            transaction.held_back.add(place)
            self._held_back.append((coordinator, transaction, place))
            return
        transaction.unmarked.remove(place)
        if not transaction.unmarked:
            coordinator.transaction = None
        partition = self.partition(place)
        partition.mark(transaction)
        tick = transaction.marked_at[place] = self._tick()
        partition.note(tick)
