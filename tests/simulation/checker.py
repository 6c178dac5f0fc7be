"""The judge of a simulated history: what a consumer that reads committed sees, against what Postgres has committed.

It reads the log of the database and the partitions of Kafka, and knows nothing of the engine, of views or of the
ledger. Records are told from each other by their values, for ids may be given out again after a crash.

`simulation.verdicts` lists what it may find. What is stuck, a false alarm or a duel the history itself finds; what is
told to those who wait for tickets, `simulation.waiting` judges. A record counts as visible from when the stable offset
passed it: its transaction may have been decided long before. It may be deleted from the outbox before that only where
its partition had no leader, and once its transaction was decided.

At least once, a record that was sent and then discarded may arrive at any time: nothing recalls what is on its way, and
what comes behind it waits for it no more. So its own order is not judged.

What still holds in other histories, and after adoptions:

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
from itertools import pairwise
from typing import Any

from simulation.kafka import LEDGER, Broker, KafkaTransaction
from simulation.postgres import Change, Database, FenceRow

from airflow_outbox.harvest.protocol.ledger import Ledger

Lane = tuple[str, str]
UNLOCKED = "u"
"""Keys that begin with it are written without a lock. All of them are in one window, so their order is that of ids."""
_FOREVER = 2**63


@dataclass(slots=True)
class Committed:
    """What a log of Postgres says: the values of each lane in order, and of each transaction; what was deleted, and
    when; what an operator has thrown away.
    """

    lanes: defaultdict[Lane, list[str]] = field(default_factory=lambda: defaultdict(list))
    transactions: list[list[str]] = field(default_factory=list)
    deleted: dict[str, int] = field(default_factory=dict)
    truncated: set[str] = field(default_factory=set)
    discarded: set[str] = field(default_factory=set)
    claims: list[tuple[str, int]] = field(default_factory=list)
    """What a watermark has claimed to be published, and when it first did."""
    ids: dict[str, int] = field(default_factory=dict)
    setbacks: list[str] = field(default_factory=list)
    """Watermarks that don't include the one before."""
    fence: FenceRow = field(default_factory=FenceRow)

    @classmethod
    def read(cls, log: Iterable[Change]) -> Committed:
        found = cls()
        opened: dict[int, list[Any]] = {}
        values: dict[int, str] = {}
        unclaimed: dict[int, list[str]] = {}
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
                        found.ids[record.value] = record.id
            elif change == "announce":
                for number in [number for number in unclaimed if arguments[0].sees(number)]:
                    aside = {*parked.values(), *found.discarded}
                    found.claims += [(value, arguments[1]) for value in unclaimed.pop(number) if value not in aside]
            elif change == "park":
                parked.update((number, values.pop(identity)) for identity, number, _ in arguments[1])
            elif change == "unpark":
                found.deleted.update((parked.pop(number), arguments[2]) for number in arguments[1])
            elif change == "discard":
                found.discarded.update(parked.pop(number) for number in arguments[1])
            elif change == "set_fence":
                found._follow(arguments[1])
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

    def _follow(self, fence: FenceRow) -> None:
        before, now = self.fence.flushed.watermark, fence.flushed.watermark
        is_adopted = fence.incarnation > self.fence.incarnation
        if before is not None and not is_adopted and (now is None or not now.includes(before)):
            self.setbacks.append(f"{before} to {now}")
        self.fence = fence


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


def seen(broker: Broker) -> list[Seen]:
    """What a consumer that reads committed has seen of all topics but the ledger, by now."""
    return [
        Seen(
            lane=(topic, record.key),
            value=record.value[3],
            partition=number,
            visible_at=partition.readable_at[record.offset],
            transaction=record.transaction,
            was_held_back=record.transaction is not None and (topic, number) in record.transaction.held_back,
        )
        for (topic, number), partition in broker.partitions.items()
        if (topic, number) != LEDGER
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
) -> list[str]:
    """What is wrong. `drained` tells that everything ought to be published by now. `others` are databases that are
    harvested into the same Kafka, `adopted_at` is when histories were adopted, and `again` how often values may come
    once more.
    """
    present = Committed.read(database.log)
    past = [Committed.read(log) for log in database.past]
    elsewhere = [Committed.read(log) for other in others for log in (other.log, *other.past)]
    sightings = seen(broker)
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


def purged_unpublished(database: Database, sightings: list[Seen], *, but: Collection[int]) -> list[str]:
    """What was deleted from a database before it was visible, but for these ids."""
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
    records = ((record.offset, record.key, record.value) for record in broker.partition(LEDGER).committed())
    head = Ledger.read(topic_id="", end=0, records=records, unread=[]).head
    if head is not None and head.batch == committed.fence.witness.batch:  # all that is published is accounted for
        counts = Counter(sighting.lane[0] for sighting in sightings)
        account = committed.fence.flushed
        if counts != Counter(account.topics) + Counter(account.uncovered):
            yield f"false counts: {account.topics} and {account.uncovered}, {dict(counts)} were published"
