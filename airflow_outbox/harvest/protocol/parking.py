"""Parking: a record that can't be published is set aside with the later records of its topic and key. Others go on.

A *lane* is a topic and key. A *refusal* says why a record can't go out, and whether that can pass by itself. The
refused record and those that follow it in its lane *wait* in the parked table, in id order, until the lane's queue is
empty:

    FLOWING ──refused──► PARKED: every later record of the lane is diverted ──the last one published or discarded──►
    FLOWING
                           ▲     │ retry: publish from the head of the queue
                           └─────┘ refused again

A refusal of the topic parks the topic: all its lanes, without a new refusal for each. Such a topic does not exist, may
not be written to, or finds the harvester's clock wrong.

Invariants:

- A record is diverted when its lane or its topic is parked, or it is refused itself. A record that comes before such a
  record in its lane never is.
- A lane is parked as long as it has waiting records. They count from their diversion, before the parked table holds
  them, until they are published or discarded.
- The queue of a lane is published from its head, and stops at the first record that is refused again.
- The head of a queue is in one of three states: *blocked* by its own cause, until it is tried again or somebody asks;
  *represented* by another record that stands for its topic or (in whole transactions) holds its own; or *due*.
- When a record that held others goes, those that nothing holds any more are *released*. They are due as soon as all
  that was diverted by then is in the parked table.

Diverted records are written into the batch's ledger entry before they are moved, so that a successor completes the
move.

The parked lanes are in memory while they are few. When they are very many, the topics with the most of them are only
*counted*: before rows of such a topic are divided, Postgres is asked which of their lanes wait. It does not know two
things yet, and these are kept here until it does: the lanes that batches under way divert, and the records that they
publish from the parked table.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from airflow_outbox.harvest.protocol.ledger import Parked, expanded, runs
from airflow_outbox.harvest.protocol.refused_topics import RefusedTopics
from airflow_outbox.values.pages import ID, KEY, TOPIC, Length
from airflow_outbox.values.records import Key, Lane, short_key
from airflow_outbox.values.refusals import Cause, Refusal

_PORTIONS = 100  # into which suspects are divided; waiting for each takes some milliseconds

_MOST_TRIES = 3  # of a parked record, by itself

MOST_LANES = 100_000  # in memory: some 12 MB

Row = TypeVar("Row", bound=tuple[Any, ...])
"""A record as a tuple that begins with id, topic and key: a row that was read, or one that was marked."""


@dataclass(slots=True)
class Diversion(Generic[Row]):
    """The fates of rows: published, refused, or waiting behind a refused one."""

    published: Sequence[Row] = ()
    refused: dict[int, Refusal] = field(default_factory=dict)  # by id
    waiting: list[int] = field(default_factory=list)
    topics: Counter[str] = field(default_factory=Counter)  # of rows that are set aside

    def __bool__(self) -> bool:
        """Whether anything is set aside."""
        return bool(self.refused or self.waiting)

    def groups(self) -> tuple[Parked, ...]:
        """The rows that are set aside, by reason."""
        reasons: dict[Refusal, list[int]] = {}
        for identity, refusal in self.refused.items():
            reasons.setdefault(refusal, []).append(identity)
        parked = [Parked(refusal.cause, refusal.reason, runs(ids)) for refusal, ids in reasons.items()]
        if self.waiting:
            parked.append(Parked(None, None, runs(self.waiting)))
        return tuple(parked)


def refusals_of(parked: Iterable[Parked]) -> dict[int, Refusal | None]:
    """The refusal of each record in a ledger entry's groups, by id; None for one that waits behind another."""
    found: dict[int, Refusal | None] = {}
    for group in parked:
        refusal = None if group.cause is None else Refusal(Cause(group.cause), group.reason or "")
        found.update(dict.fromkeys(expanded(group.runs), refusal))
    return found


def stand_for_topics(rows: Iterable[Row], refusals: Mapping[int, Refusal]) -> dict[int, Refusal]:
    """The refusals of rows, in their order. When a topic is refused, its first row stands for all of it."""
    found: dict[int, Refusal] = {}
    topics: set[str] = set()
    for row in rows if refusals else ():
        if (refusal := refusals.get(row[ID])) is not None and row[TOPIC] not in topics:
            found[row[ID]] = refusal
            if refusal.cause.is_of_the_topic:
                topics.add(row[TOPIC])
    return found


def passed(rows: Iterable[tuple[Any, ...]], refused: Mapping[int, Refusal]) -> set[str]:
    """The topics with a row that was refused for a reason of its own."""
    return {row[TOPIC] for row in rows if row[ID] in refused and not refused[row[ID]].cause.is_of_the_topic}


@dataclass(frozen=True, slots=True)
class RetryOutcome(Generic[Row]):
    """The fates of parked rows that were due: published, refused again, or (`others`) waiting behind a refused one.

    A topic has `passed` if a row of it was refused for a reason of its own. `is_early`: a transaction is not parked
    whole yet.
    """

    published: Sequence[Row]
    refused: Mapping[int, Refusal]  # by id
    others: Sequence[int]
    passed: Collection[str]
    is_early: bool = False


class ParkedLanes:
    """Which lanes and topics are parked, and how many records wait in each.

    Before rows are divided: `begin_asking`, and then ask Postgres until there is nothing left `to_ask`.
    """

    most_lanes = MOST_LANES

    def __init__(
        self, lanes: Mapping[str, Counter[Key]], topics: Iterable[str], counted: Mapping[str, int] | None = None
    ) -> None:
        """`lanes` counts waiting records by topic and short key, `counted` those of topics whose lanes are too many.
        The counters are changed here, not copied.
        """
        self._waiting = dict(lanes)
        self._counted = dict(counted or {})
        self._records = sum(keys.total() for keys in lanes.values()) + sum(self._counted.values())
        self._lanes = sum(map(len, lanes.values()))
        self._topics = set(topics)
        self._answers: dict[Lane, bool] = {}  # whether records of the lane are in the parked table, by short keys
        self.are_answers_old = False
        """Whether records went since Postgres was asked. Others may wait behind them now, and have to be released."""
        self._batch = self._settled = 0
        self._diverted: dict[int, set[Lane]] = {}  # by the batch that diverts them
        self._unparked: dict[int, Collection[int]] = {}  # by the batch that publishes them

    def __len__(self) -> int:
        """The number of waiting records."""
        return self._records

    def begin(self, batch: int) -> None:
        """Postgres knows all that is diverted from now on when this batch is settled."""
        self._batch = batch

    def settled(self, batch: int) -> None:
        """Postgres knows what the batches up to this one have diverted, or published from the parked table."""
        self._settled = batch
        for published in [published for published in self._unparked if published <= batch]:
            del self._unparked[published]

    def begin_asking(self) -> None:
        """Forget what Postgres has answered, and leave to it what it knows by now. Only here: its last answers were
        given before it knew that.
        """
        self._answers.clear()
        self.are_answers_old = False
        for batch in [batch for batch in self._diverted if batch <= self._settled]:
            del self._diverted[batch]
        while self._lanes > self.most_lanes:
            topic = max(self._waiting, key=lambda topic: len(self._waiting[topic]))
            keys = self._waiting.pop(topic)
            self._lanes -= len(keys)
            self._counted[topic] = keys.total()

    def to_ask(self, rows: Iterable[tuple[Any, ...]]) -> Sequence[Lane]:
        """The lanes of these rows that are in Postgres only, and about which it has not answered yet."""
        if not self._counted:
            return ()
        found: dict[Lane, Lane] = {}
        for row in rows:
            topic, key = row[TOPIC], row[KEY]
            if (
                topic in self._counted
                and topic not in self._topics
                and (lane := _short(topic, key)) not in self._answers
            ):
                found[lane] = topic, key
        return tuple(found.values())

    @property
    def leaving(self) -> Sequence[int]:
        """The numbers of records that are published, and may still be in the parked table."""
        return tuple(number for numbers in self._unparked.values() for number in numbers)

    def answered(self, lanes: Iterable[Lane], waiting: Collection[Lane]) -> None:
        """Postgres has answered which of these lanes are waiting."""
        self._answers.update((_short(*lane), lane in waiting) for lane in lanes)

    def divert(self, rows: Sequence[Row], refusals: Mapping[int, Refusal]) -> Diversion[Row]:
        """Divide rows, in their order, by what is parked and by `refusals`, which are by id."""
        if not refusals and not self._records:
            return Diversion(rows)
        published: list[Row] = []
        diversion = Diversion(published)
        for row in rows:
            if self.holds((row[TOPIC], row[KEY])):
                diversion.waiting.append(row[ID])
            elif row[ID] in refusals:
                diversion.refused[row[ID]] = refusals[row[ID]]
            else:
                published.append(row)
                continue
            diversion.topics[row[TOPIC]] += 1
            self.wait([row], refusals)
        return diversion

    def holds(self, lane: Lane) -> bool:
        """Whether records of a lane have to wait."""
        topic, key = lane
        if topic in self._topics:
            return True
        if topic in self._counted:
            lane = _short(topic, key)
            return self._answers[lane] or any(lane in lanes for lanes in self._diverted.values())
        return topic in self._waiting and short_key(key) in self._waiting[topic]

    def wait(self, rows: Iterable[tuple[Any, ...]], refusals: Mapping[int, Refusal]) -> None:
        """Count diverted records."""
        diverted = self._diverted.setdefault(self._batch, set())
        for row in rows:
            topic, key = lane = _short(row[TOPIC], row[KEY])
            diverted.add(lane)
            self._records += 1
            if topic in self._counted:
                self._counted[topic] += 1
            else:
                keys = self._waiting.setdefault(topic, Counter())
                self._lanes += key not in keys
                keys[key] += 1
            if row[ID] in refusals and refusals[row[ID]].cause.is_of_the_topic:
                self._topics.add(topic)

    def gone(self, lanes: Iterable[Lane], *, unparked: Mapping[int, Collection[int]] | None = None) -> None:
        """Waiting records were published or discarded: their lanes, once for each. `unparked`: the numbers of those
        that a batch has published, by batch, while it is not settled.

        Their topics are no longer parked. Either they take records, or the reason for parking may be gone: the next
        record will tell.
        """
        lanes = list(lanes)
        self.are_answers_old = True
        self._unparked.update({batch: ids for batch, ids in (unparked or {}).items() if batch > self._settled})
        self._leave(lanes)
        self.admit({topic for topic, _ in lanes})

    def admit(self, topics: Collection[str]) -> bool:
        """Unpark these topics, but not their lanes. Return whether one of them was parked."""
        before = len(self._topics)
        self._topics -= set(topics)
        return len(self._topics) < before

    def divert_again(self, rows: Sequence[Row], refusals: Mapping[int, Refusal]) -> Diversion[Row]:
        """Divide rows that were diverted just now: the records that they waited for may be gone."""
        self._diverted.clear()
        self._leave((row[TOPIC], row[KEY]) for row in rows)
        return self.divert(rows, refusals)

    def _leave(self, lanes: Iterable[Lane]) -> None:
        for topic, key in lanes:
            keys, key = self._waiting.get(topic, Counter()), short_key(key)
            if topic in self._counted:
                self._counted[topic] -= 1
                self._records -= 1
                if not self._counted[topic]:
                    del self._counted[topic]
            elif key in keys:
                keys[key] -= 1
                self._records -= 1
                if not keys[key]:
                    del keys[key]
                    self._lanes -= 1
                if not keys:
                    del self._waiting[topic]
        self._topics &= self._waiting.keys() | self._counted.keys()


def _short(topic: str, key: Key) -> Lane:
    return topic, short_key(key)


class Caution:
    """Finds the records that Kafka refuses although examining them shows no reason. Lasts as long as the process.

    Each failure ends a term and narrows the search. The records that were sent together when Kafka refused are
    *suspects*. Next time they are sent in portions, and Kafka has to take each before the next one goes out. So the
    next failure is that of a portion, whose records are then sent in smaller ones. A refused portion of one record
    *condemns* that record: it is parked. A record is a suspect until it is committed or parked.

    An error that is *unclear* may also be about Kafka itself. So a record that is refused alone with it is set aside as
    one that was not tried, and retries try it by themselves. It is condemned for good once it was refused alone in
    several retries, and Kafka took other records between them.

    A retry of parked records may need several terms, too. One term may find a record refused, and the next try it
    again, since a record before it in its lane still waits for its retry. So a condemned record stays condemned until
    the retry *ends*: all the rest of it is published, or nothing is left to retry.
    """

    def __init__(self) -> None:
        self.condemned: dict[bool, dict[int, Refusal]] = {False: {}, True: {}}  # of the outbox; of the parked table
        self.condemned_transactions: dict[int, Refusal | None] = {}
        """Source transactions to park from their first record on; None: one of their records has the reason."""
        self._believed: dict[bool, set[int]] = {False: set(), True: set()}
        self.slow_transactions: set[int] = set()  # those that took too long the last time
        self._portions: dict[bool, dict[int, int]] = {False: {}, True: {}}  # suspects, and how many to send together
        self._taken = 0  # how often Kafka has taken something
        self._unclear: dict[int, tuple[int, int]] = {}  # parked records: times refused alone, and what was taken before
        self._refused_again: set[int] = set()  # parked records that this retry has found refused; on record
        self.topics = RefusedTopics()

    @property
    def is_careful(self) -> bool:
        """Whether there are suspects: they are sent so that the refused one shows."""
        return any(self._portions.values())

    def failed(
        self,
        ids: Sequence[int],
        reason: str,
        *,
        certain: bool,
        explained: bool,
        parked: bool,
        unclear: bool = False,
    ) -> None:
        """These records, of the outbox or `parked` ones, were sent together and refused.

        `certain`: each of them is the reason, unless that is `unclear`. `explained`: the next examination of the
        records will tell which ones are. That is believed once for each record.
        """
        if explained and self._believed[parked].isdisjoint(ids):
            self._believed[parked].update(ids)
        elif certain and unclear:
            self.condemned[parked].update(
                (identity, self._unclear_refusal(identity, reason, parked)) for identity in ids
            )
        elif certain:
            self.condemned[parked].update(dict.fromkeys(ids, Refusal(Cause.REFUSED, reason)))
        else:
            self._portions[parked].update(dict.fromkeys(ids, -(-len(ids) // _PORTIONS)))

    def known(self, rows: Iterable[Row], *, at: float, parked: bool) -> dict[int, Refusal]:
        """Return what is not to be sent at this time, in seconds, of these rows and perhaps others, by id."""
        return {**self.topics.untried(rows, at=at, parked=parked), **self.condemned[parked]}

    def portions(self, rows: Sequence[Row], *, parked: bool) -> Iterator[Sequence[Row]]:
        """Divide rows, in order, into portions to send: suspects apart from others, never too many together."""
        if not (sizes := self._portions[parked]) or not rows:
            if rows:
                yield rows
            return
        first, size = 0, sizes.get(rows[0][ID], 0)
        for place, row in enumerate(rows):
            wanted = sizes.get(row[ID], 0)
            if wanted != size or place - first == size > 0:
                if place > first:
                    yield rows[first:place]
                first, size = place, wanted
        yield rows[first:]

    def _unclear_refusal(self, identity: int, reason: str, parked: bool) -> Refusal:
        if parked:
            times, taken = self._unclear.get(identity, (0, -1))
            if taken < self._taken:
                times += 1
                self._unclear[identity] = times, self._taken
            if times >= _MOST_TRIES:
                return Refusal(Cause.REFUSED, reason)
        return Refusal(
            Cause.UNTRIED,
            f"Kafka's error may be about this record or not; it is tried a little later. Kafka said: {reason}",
        )

    def settled(self, ids: Collection[int], *, parked: bool) -> None:
        """Kafka has taken these records: they are no longer suspects."""
        if ids:
            self._taken += 1
        self._no_longer_suspects(ids, parked=parked)
        if parked and self._unclear:
            for identity in ids:
                self._unclear.pop(identity, None)

    def _no_longer_suspects(self, ids: Iterable[int], *, parked: bool) -> None:
        if self._believed[parked] or self._portions[parked]:
            for identity in ids:
                self._believed[parked].discard(identity)
                self._portions[parked].pop(identity, None)

    def on_record(self, condemned: Iterable[int], no_longer_slow: Iterable[int]) -> None:
        """A committed batch parks the `condemned` source transactions, and publishes those `no_longer_slow`."""
        for transaction_id in condemned:
            self.condemned_transactions.pop(transaction_id, None)
        self.slow_transactions.difference_update(no_longer_slow)

    def forget(self, ids: Iterable[int], *, parked: bool) -> None:
        """Forget records that were found refused: that is on record."""
        ids = list(ids)
        for identity in ids:
            self.condemned[parked].pop(identity, None)
        self._no_longer_suspects(ids, parked=parked)

    def refused_again(self, refusals: Mapping[int, Refusal]) -> None:
        """A retry found these parked records refused; that is on record. The retry goes on without them.

        The search among those of held topics goes on with the next retry.
        """
        found = self.condemned[True]
        self._refused_again.update(
            number for number, why in refusals.items() if why.cause is not Cause.UNTRIED or number in found
        )

    def end_retry(self) -> None:
        """End the retry: the next one tries every record again."""
        self.forget(self._refused_again, parked=True)
        self._refused_again.clear()


class SingleRecords:
    """Divides records one by one, lane by lane."""

    may_be_free = False
    condemned: frozenset[int] = frozenset()
    no_longer_slow: frozenset[int] = frozenset()

    def __init__(self, parked: ParkedLanes) -> None:
        self.parked = parked

    def begin(self, batch: int) -> None:
        """A batch begins, and its Kafka transaction."""
        self.parked.begin(batch)

    def divert(
        self,
        rows: Sequence[Row],
        refusals: Mapping[int, Refusal],
        *,
        refused: Mapping[int, Refusal],
        set_aside: Collection[int],
    ) -> Diversion[Row]:
        """Divide rows of the outbox. `refused` and `set_aside` are empty: they are for whole transactions."""
        return self.parked.divert(rows, refusals)

    def require_end(
        self, streaming: Mapping[int, Length], *, records: int, seconds: float, most_seconds: float
    ) -> None:
        """A Kafka transaction stays open for no source transaction: `streaming` is empty."""

    def due(
        self, rows: Sequence[Row], refusals: Mapping[int, Refusal], *, lengths: Mapping[int, Length]
    ) -> RetryOutcome[Row]:
        """Return which parked rows, queues of lanes in order, can be published now, and the refused heads.

        When a topic is refused, its first row stands for all of it.
        """
        published: list[Row] = []
        stopped: set[Lane | str] = set()
        refused: dict[int, Refusal] = {}
        others: list[int] = []
        for row in rows:
            lane = row[TOPIC], row[KEY]
            if lane in stopped or row[TOPIC] in stopped:
                others.append(row[ID])
            elif (refusal := refusals.get(row[ID])) is not None:
                stopped.add(row[TOPIC] if refusal.cause.is_of_the_topic else lane)
                refused[row[ID]] = refusal
            else:
                published.append(row)
        return RetryOutcome(published, refused, others, passed(rows, refused))
