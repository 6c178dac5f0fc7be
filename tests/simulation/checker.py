"""The judge of a simulated history: what a consumer that reads committed sees, against what Postgres has committed.

It reads the log of the database and the partitions of Kafka, and knows nothing of the engine, of views or of the
ledger. Records are told from each other by their values, for ids may be given out again after a crash.

`simulation.verdicts` lists what it may find. The history itself finds stuck records, false alarms and duels.
`simulation.waiting` judges the answers for tickets. A record counts as visible from when the stable offset passed it:
its transaction may have been decided long before. It may be deleted from the outbox before that only where its
partition had no leader, and once its transaction was decided.

At least once, a record that was sent and then discarded may arrive at any time: nothing recalls what is on its way, and
what comes behind it waits for it no more. So its own order is not judged.

Rules that still hold in other histories, and after adoptions:

- Order is that of ids, among records of a key that were committed in that order, too: where ids were set back, the
  later record may have the lower one. A record that is published again comes in order among those that are published
  since the same adoption.
- A record that is in the outbox when a history is adopted counts as unpublished, and may come once more for each such
  adoption; none that was not there comes twice. Where nothing was lost, and the operator says so, none does.
- Counts are of the present incarnation: of what was published since the last adoption.
- A watermark never goes back but by an adoption.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from itertools import pairwise
from typing import Any

from simulation.database_state import FenceRow, slot_of
from simulation.kafka import LEDGER, Broker, KafkaTransaction, Partition, Stored, ledger_of
from simulation.postgres import Change, Database

from airflow_outbox.harvest.protocol.ledger import Ledger
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.records import Snapshot

Lane = tuple[str, str]
UNLOCKED = "u"
"""Keys that begin with it are written without a lock. All of them are in one window, so their order is that of ids."""
_FOREVER = 2**63


@dataclass(slots=True)
class Committed:
    """The contents of a log of Postgres: the values of each lane in order, and of each transaction; what was deleted,
    and when; what an operator has thrown away.
    """

    lanes: defaultdict[Lane, list[str]] = field(default_factory=lambda: defaultdict(list))
    transactions: list[list[str]] = field(default_factory=list)
    deleted: dict[str, int] = field(default_factory=dict)
    truncated: set[str] = field(default_factory=set)
    discarded: set[str] = field(default_factory=set)
    claims: list[tuple[str, int]] = field(default_factory=list)
    """The transactions that a watermark has claimed to be published, and when it first did."""
    ids: dict[str, int] = field(default_factory=dict)
    setbacks: list[str] = field(default_factory=list)
    """Watermarks that don't include the one before."""
    fences: dict[int, FenceRow] = field(default_factory=lambda: {0: FenceRow()})

    @classmethod
    def read(cls, log: Iterable[Change]) -> Committed:
        found = cls()
        opened: dict[int, list[Any]] = {}
        values: dict[int, str] = {}
        unclaimed: dict[int, list[str]] = {}
        slots: dict[str, int] = {}
        parked: dict[int, str] = {}
        for change, arguments in log:
            if change == "begin":
                opened[arguments[0]] = []
            elif change == "insert":
                opened[arguments[0]].append(arguments[1].record)
            elif change == "end":
                records = sorted(opened.pop(arguments[0]), key=lambda record: int(record.id))
                if arguments[1] and records:
                    found.transactions.append([record.value for record in records])
                    unclaimed[arguments[0]] = found.transactions[-1]
                    for record in records:
                        found.lanes[record.topic, record.key].append(record.value)
                        values[record.id] = record.value
                        slots[record.value] = slot_of(record)
                        found.ids[record.value] = record.id
            elif change == "announce":
                for number in [number for number in unclaimed if arguments[0].sees(number)]:
                    aside = {*parked.values(), *found.discarded}
                    own = [value for value in unclaimed[number] if arguments[2] is None or slots[value] in arguments[2]]
                    found.claims += [(value, arguments[1]) for value in own if value not in aside]
                    unclaimed[number] = [value for value in unclaimed[number] if value not in own]
                    if not unclaimed[number]:
                        del unclaimed[number]
            elif change == "park":
                parked.update((number, values.pop(identity)) for identity, number, _ in arguments[1])
            elif change == "unpark":  # what was discarded meanwhile is judged as such
                there = [number for number in arguments[1] if number in parked]
                found.deleted.update((parked.pop(number), arguments[2]) for number in there)
            elif change == "discard":
                found.discarded.update(parked.pop(number) for number in arguments[1])
            elif change == "set_fence":
                row, known = arguments[1], found.fences.get(arguments[2])
                if known is None or _shown(row) != _shown(known):
                    found._follow({**found.fences, arguments[2]: row})
                else:
                    found.fences[arguments[2]] = row
            elif change == "set_layout":
                found._follow(arguments[2])
            elif change == "exchange":
                found.truncated.update(values.values())
                values.clear()
                unclaimed.clear()
            elif change == "load":
                opened.clear()
                unclaimed.clear()
            elif change == "delete":
                found.deleted.update((values.pop(number), arguments[2]) for number in arguments[1])
        for lane, stashed in found.lanes.items():
            if lane[1].startswith(UNLOCKED):
                stashed.sort(key=found.ids.__getitem__)
        return found

    def _follow(self, fences: Mapping[int, FenceRow]) -> None:
        """The watermark of several shards is what all of them see."""
        before, now = (_watermark(rows) for rows in (self.fences, fences))
        is_adopted = fences[0].incarnation > self.fences[0].incarnation
        if before is not None and not is_adopted and (now is None or not now.includes(before)):
            self.setbacks.append(f"{before} to {now}")
        self.fences = dict(fences)


def _shown(row: FenceRow) -> tuple[object, ...]:
    """What a row says of the watermark of all."""
    return row.incarnation, row.slots, row.flushed.watermark


def _watermark(fences: Mapping[int, FenceRow]) -> Snapshot | None:
    watermarks = [row.flushed.watermark for row in fences.values() if row.slots != ()]
    known = [watermark for watermark in watermarks if watermark is not None]
    return reduce(Snapshot.meet, known) if len(known) == len(watermarks) else None


@dataclass(frozen=True, slots=True)
class Seen:
    """A record as a consumer sees it; `visible_at` in the world's count."""

    lane: Lane
    value: str
    partition: int
    visible_at: int
    transaction: KafkaTransaction | None
    was_held_back: bool = False

    @property
    def sure_at(self) -> int:
        """From when on nothing but a leader of its partition keeps it from being visible."""
        return self.transaction.decided_at if self.transaction and self.was_held_back else self.visible_at


def seen(broker: Broker, *, by_markers: bool = False) -> list[Seen]:
    """All that a consumer that reads committed has seen of all topics but the ledger, by now.

    `by_markers`: a record counts as visible since its own transaction's marker is there, though one of another shard,
    which is open in the same partition, may hold readers back for a moment.
    """

    def visible_at(place: TopicAndPartition, partition: Partition, record: Stored) -> int:
        found = partition.readable_at[record.offset]
        marked = None if record.transaction is None else record.transaction.marked_at.get(place)
        return found if marked is None or not by_markers else min(found, marked)

    return [
        Seen(
            lane=(topic, record.key),
            value=record.value[3],
            partition=number,
            visible_at=visible_at((topic, number), partition, record),
            transaction=record.transaction,
            was_held_back=record.transaction is not None and (topic, number) in record.transaction.held_back,
        )
        for (topic, number), partition in broker.partitions.items()
        if topic != LEDGER[0]
        for record in partition.committed()
    ]


def complaints(
    database: Database,
    broker: Broker,
    *,
    exactly_once: bool = True,
    atomic: bool = False,
    drained: bool = True,
    others: Sequence[Database] = (),
    adopted_at: Sequence[int] = (),
    again: Mapping[str, int] | None = None,
    by_markers: bool = False,
) -> list[str]:
    """The faults. `drained` tells that everything ought to be published by now. `others` are databases that are
    harvested into the same Kafka, `adopted_at` is when histories were adopted, and `again` how often values may come
    once more.
    """
    present = Committed.read(database.log)
    past = [Committed.read(log) for log in database.past]
    elsewhere = [Committed.read(log) for other in others for log in (other.log, *other.past)]
    sightings = seen(broker, by_markers=by_markers)
    may_be_late = set() if exactly_once else present.discarded
    found = [*_foreign([present, *past, *elsewhere], sightings)]
    found += _out_of_order(present, sightings, adopted_at, may_be_late)
    if drained:
        found += _lost(present, sightings)
    if exactly_once:
        found += _doubled(sightings, again or {})
        found += [f"discarded and published: {one.value}" for one in sightings if one.value in present.discarded]
    if atomic:
        found += _torn(present, sightings)
    for history in (present, *past):
        found += [*_purged_unpublished(history, sightings), *_false_watermarks(history, sightings)]
    if exactly_once and not others:
        since = [one for one in sightings if one.visible_at > max(adopted_at, default=-1)]
        found += _false_counts(present, broker, since)
    return found


def differences_of(one: Broker, other: Broker, *, of_shards: bool = False) -> Iterator[str]:
    """Where two clusters do not hold the same records in the same order and the same transactions.

    `of_shards`: several shards publish into a partition, so one's transaction may come before, after or among another's
    on each cluster. The transactions are the same, and each key's order is.
    """
    for place in sorted({*one.partitions, *other.partitions}):
        if place[0] != LEDGER[0]:
            in_parts = _in_any_order if of_shards else _transactions
            first, second = (in_parts(broker.partition(place)) for broker in (one, other))
            if first != second:
                yield f"clusters differ: {place} holds {first} on one, {second} on another"


def _in_any_order(partition: Partition) -> list[list[str]]:
    """The values of each transaction, and of each key, in their order."""
    found: dict[Any, list[str]] = {}
    for record in partition.committed():
        for part in (record.transaction, record.key):
            found.setdefault(part, []).append(record.value[3])
    return sorted(found.values())


def _transactions(partition: Partition) -> list[list[str]]:
    found: list[list[str]] = []
    last: KafkaTransaction | None = None
    for record in partition.committed():
        if record.transaction is not last or not found:
            found.append([])
        last = record.transaction
        found[-1].append(record.value[3])
    return found


def purged_unpublished(database: Database, sightings: list[Seen], *, but: Collection[int]) -> list[str]:
    """The records deleted from a database before they were visible, but for these ids."""
    committed = Committed.read(database.log)
    committed.deleted = {value: at for value, at in committed.deleted.items() if committed.ids[value] not in but}
    return list(_purged_unpublished(committed, sightings))


def _lost(committed: Committed, sightings: list[Seen]) -> Iterator[str]:
    values = committed.truncated | committed.discarded | {sighting.value for sighting in sightings}
    for lane, stashed in committed.lanes.items():
        yield from (f"lost: {value} of {lane}" for value in stashed if value not in values)


def _doubled(sightings: list[Seen], again: Mapping[str, int]) -> Iterator[str]:
    for value, times in Counter(sighting.value for sighting in sightings).items():
        if times > 1 + again.get(value, 0):
            yield f"doubled: {value} came {times} times"


def _foreign(histories: list[Committed], sightings: list[Seen]) -> Iterator[str]:
    known = {value for history in histories for values in history.lanes.values() for value in values}
    for sighting in sightings:
        if sighting.value not in known:
            yield f"foreign: {sighting.value} of {sighting.lane} is not committed in Postgres"


def _out_of_order(
    committed: Committed, sightings: list[Seen], adopted_at: Sequence[int], may_be_late: Collection[str]
) -> Iterator[str]:
    yield from _out_of_order_at_first(committed, sightings, may_be_late)
    for begin, end in pairwise([*adopted_at, _FOREVER]):
        published = [sighting for sighting in sightings if begin < sighting.visible_at <= end]
        yield from _out_of_order_at_first(committed, published, may_be_late)


def _out_of_order_at_first(committed: Committed, sightings: list[Seen], may_be_late: Collection[str]) -> Iterator[str]:
    """Each value counts where it came first."""
    places = {value: place for values in committed.lanes.values() for place, value in enumerate(values)}
    latest: defaultdict[Lane, list[tuple[int, int]]] = defaultdict(list)
    partitions: dict[Lane, int] = {}
    known: set[str] = set()
    for sighting in sightings:
        if partitions.setdefault(sighting.lane, sighting.partition) != sighting.partition:
            yield f"out of order: {sighting.value} of {sighting.lane} is in another partition than what came before it"
        place = places.get(sighting.value, -1)
        if place >= 0 and sighting.value not in known:
            known.add(sighting.value)
            number, earlier = committed.ids[sighting.value], latest[sighting.lane]
            is_late = any(place < other and number < greater for other, greater in earlier)
            if is_late and sighting.value not in may_be_late:
                yield f"out of order: {sighting.value} of {sighting.lane} came after a later one"
            earlier.append((place, number))


def _torn(committed: Committed, sightings: list[Seen]) -> Iterator[str]:
    holders: defaultdict[str, set[KafkaTransaction | None]] = defaultdict(set)
    for sighting in sightings:
        holders[sighting.value].add(sighting.transaction)
    for values in committed.transactions:
        if len({frozenset(holders[value]) for value in values if value in holders}) > 1:
            yield f"torn: {values} became visible in parts"


def _purged_unpublished(committed: Committed, sightings: list[Seen]) -> Iterator[str]:
    visible = {sighting.value: sighting.sure_at for sighting in reversed(sightings)}
    for value, deleted_at in committed.deleted.items():
        if visible.get(value, deleted_at + 1) > deleted_at:
            yield f"purged unpublished: {value}"


def _false_watermarks(committed: Committed, sightings: list[Seen]) -> Iterator[str]:
    visible = {sighting.value: sighting.visible_at for sighting in reversed(sightings)}
    for value, claimed_at in committed.claims:
        if visible.get(value, claimed_at + 1) > claimed_at:
            yield f"false watermark: {value} was not visible yet"
    yield from (f"false watermark: it goes back from {setback}" for setback in committed.setbacks)


def _false_counts(committed: Committed, broker: Broker, sightings: list[Seen]) -> Iterator[str]:
    account: Counter[str] = Counter()
    for shard, fence in committed.fences.items():
        partition = broker.partition(ledger_of(shard))
        records = ((record.offset, record.key, record.value) for record in partition.committed())
        head = Ledger.read(topic_id="", end=0, records=records, unread=[]).head
        if (head is None and (fence.witness.batch or not shard)) or (head and head.batch != fence.witness.batch):
            return  # not all that is published is accounted for
        account += Counter(fence.flushed.topics) + Counter(fence.flushed.uncovered)
    counts = Counter(sighting.lane[0] for sighting in sightings)
    if counts != account:
        yield f"false counts: {dict(account)}, {dict(counts)} were published"
