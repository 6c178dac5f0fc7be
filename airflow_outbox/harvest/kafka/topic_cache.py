"""A cache of topics, which finds the records that Kafka will refuse before they are sent.

A topic's first record triggers a look-up: whether the topic is there, may be written to, and how many partitions it
has. The answer holds for some minutes, or until Kafka refuses something of the topic (`doubt`). Then it is looked up
again. With it come its clean-up policy, for a compacted topic takes no record without a key, and the size of the
largest record that it takes, if the user may ask for that. A topic that is deleted, or made again under its name, is
forgotten by those who find that out (`changed`).

Sizes are in `size_limits`.

Records of missing topics are refused at once, however many topics are missing. Brokers that create topics on demand are
asked in the background. A look-up waits for that only for a few names, and for a tenth of the time at most.

A topic may find all records too old or too new (`found_untimely`): the clocks of its broker and of the harvester
differ, or it allows very little. It is set aside when a heartbeat shows that Kafka takes the harvester's time
elsewhere. While heartbeats are refused too, the harvester's own clock is wrong, and nothing is set aside.

One cache lasts as long as the process, and several threads may use it. While one of them asks Kafka, the others go on
with what is known.
"""

from __future__ import annotations

import contextlib
import math
import re
import threading
import time
from collections.abc import Collection, Mapping, Sequence, Set
from concurrent.futures import Future
from typing import Any

from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import clocks_differ
from airflow_outbox.harvest.kafka.record_size import (
    Row,
    client_limit,
    compresses,
    size_for_broker,
    size_for_client,
)
from airflow_outbox.harvest.kafka.size_limits import SizeLimits
from airflow_outbox.harvest.kafka.topic import Topic, TopicSettings, is_another, not_there, topic_of
from airflow_outbox.harvest.kafka.topic_creation import TopicRequests
from airflow_outbox.postgres.names import is_an_outboxs_own, is_kafkas_own
from airflow_outbox.values.pages import ID, KEY, TOPIC, OutboxRow
from airflow_outbox.values.refusals import Cause, Refusal

_LEGAL = re.compile(r"[A-Za-z0-9._-]{1,249}")
_LOOKED_UP_AT_ONCE = 500
_MOST_KNOWN = 100_000
_CREATION_TIME = 0.3
_CREATED_AT_ONCE = 10
_CREATION_INTERVAL = 5.0  # so that waiting for topics that brokers may create takes no more than a tenth of the time
_KNOWN_FOR = 300.0  # Kafka's clients take as long to notice by themselves that a topic has more partitions
_LEADER_TIME = 3.0  # a broker that comes back takes its partitions up one after the other
_LEADER_POLL = 0.2
_SET_ASIDE_FOR = 4.0  # at least, a topic that finds all records untimely; ends before its first retry
_NAME_SHOWN = 100  # a name that Kafka does not allow may be of any length


class TopicCache:
    """Topics by name.

    The class is large because all that is known of a topic changes under one lock: whether it is there, in doubt, away,
    untimely or set aside. A record is examined by all of that at once.
    """

    def __init__(
        self, kafka: Mapping[str, Any], *, producer: Mapping[str, Any] | None = None, own: Collection[str] = ()
    ) -> None:
        """`kafka` holds the settings to ask with, `producer` those to send records with. `own` are the outbox's own
        topics, where no record may go.
        """
        self._kafka = kafka
        self._own = frozenset(own)
        self._client_limit = client_limit(producer or {})
        self._fits_client = self._client_limit - self._client_limit // 8  # with all but enormous headers
        self._cluster: Cluster | None = None
        self._topics: dict[str, Topic] = {}
        self._plain: set[str] = set()  # those with nothing to look at except the record itself
        self._earlier: dict[str, Topic] = {}  # what was known until lately
        self._doubted: set[str] = set()
        self._unanswered: set[str] = set()
        self._away: set[str] = set()  # those found to lack brokers
        self._not_added: dict[str, Refusal] = {}  # topics that Kafka did not let into a transaction
        self._untimely: dict[str, float] = {}  # topics that refused records for their time, and since when
        self._timely_at = math.inf  # when the last heartbeat was sent that Kafka took, if there are any
        self._set_aside_until: dict[str, float] = {}
        self._known_until = 0.0
        self._sizes = SizeLimits(compresses=compresses(producer or {}))
        self.is_in_doubt = False
        """Whether a transaction was begun and not committed, perhaps because Kafka refuses a record."""
        self._requests = TopicRequests({**kafka, **(producer or {})})
        self._may_wait_from = 0.0
        self._lock = threading.Lock()
        self._making = threading.Lock()

    @property
    def cluster(self) -> Cluster:
        """The cluster to ask. Raises KafkaError for settings that Kafka's client refuses."""
        with self._making:
            self._cluster = self._cluster or Cluster(self._kafka)
            return self._cluster

    def connect(self) -> None:
        """Connect again, so that the next question is answered soon: a client whose brokers were away waits before it
        tries them again. The next question reports any error.
        """
        with contextlib.suppress(KafkaError):
            fresh = Cluster(self._kafka)
            with self._making:
                self._cluster = fresh
            fresh.reach()

    def doubt(self, topic: str) -> None:
        """Note that Kafka refused something of this topic: what is known of it holds no more."""
        self.forget([topic])
        with self._lock:
            self._doubted.add(topic)

    def forget(self, topics: Collection[str]) -> None:
        """Look these topics up before their next record: they may be others than those that are known."""
        with self._lock:
            for topic in topics:
                self._topics.pop(topic, None)
                self._earlier.pop(topic, None)
                self._plain.discard(topic)

    def found_refused(self, topic: str, reason: str) -> None:
        """Note that Kafka let no transaction write to this topic. The next look may tell another reason."""
        self.doubt(topic)
        with self._lock:
            self._not_added[topic] = Refusal(
                Cause.NOT_AUTHORIZED, f"Kafka refuses transactions to topic {topic}: {reason}. Check its ACLs"
            )

    def unanswered(self, topic: str) -> None:
        """Note that Kafka did not take a record of this topic in time: perhaps a partition lacks brokers."""
        self.forget([topic])
        with self._lock:
            self._unanswered.add(topic)

    def found_untimely(self, topic: str) -> None:
        """Note that Kafka refused records of this topic because of their time."""
        self.doubt(topic)
        with self._lock:
            self._untimely.setdefault(topic, time.monotonic())

    def heartbeat_was_taken(self, sent_at: float | None) -> None:
        """Note when a heartbeat was sent that Kafka took, on the monotonic clock; None: refused because of its time.

        When Kafka took it tells nothing: the clock may have been set since it was sent.
        """
        with self._lock:
            self._timely_at = -math.inf if sent_at is None else sent_at
            if sent_at is None:
                self._untimely.clear()

    def found_too_large(
        self, topic: str, key: str | bytes | None, value: str | bytes | None, *, batch_size: int
    ) -> None:
        """Note that a broker found the batch with this record too large.

        A batch of several records has at most `batch_size` bytes, uncompressed. 0: the record was sent alone.
        """
        with self._lock:
            self._sizes.found_too_large(topic, key, value, batch_size=batch_size)

    @property
    def smallest_max_bytes(self) -> int | None:
        """The smallest limit of any topic, as far as they are known (None: of none)."""
        return self._sizes.smallest

    def examine(self, rows: Sequence[Row], *, again: bool) -> dict[int, Refusal]:
        """Return the refusals by row id. `again` looks all topics of the rows up once more.

        Raises KafkaError when a topic can't be looked up.
        """
        names = {row[TOPIC] for row in rows}
        with self._lock:
            self._forget_in_time()
            self._set_untimely_aside()
            for name in names if again else ():
                if self._set_aside_until.get(name, 0) < time.monotonic():
                    self._not_added.pop(name, None)
            topics = {} if again else {name: self._topics[name] for name in names if name in self._topics}
        if unknown := names - topics.keys():
            topics |= self.look_up(unknown)
        with self._lock:
            return {row[ID]: refusal for row in rows if (refusal := self._refusal(row, topics[row[TOPIC]])) is not None}

    @property
    def knows_some(self) -> bool:
        """Whether any topic is known, or was until lately."""
        return bool(self._topics or self._earlier)

    def unknown(self, names: Collection[str], *, believing: bool = False) -> set[str]:
        """Return which of these topics have to be looked up. `believing`: those that were known until lately are taken
        for what they were, until they are looked up.
        """
        with self._lock:
            self._forget_in_time()
            for name in names if believing else ():
                if name not in self._topics and name in self._earlier:
                    self._learn(name, self._earlier[name])
            return {name for name in names if name not in self._topics}

    def _forget_in_time(self) -> None:
        if time.monotonic() > self._known_until or len(self._topics) > _MOST_KNOWN:
            self._known_until = time.monotonic() + _KNOWN_FOR
            self._earlier = {**self._topics}
            for known in (self._topics, self._plain, self._not_added):
                known.clear()
            self._sizes.forget_refusals()

    def _set_untimely_aside(self) -> None:
        for name, since in list(self._untimely.items()):
            if since < self._timely_at:
                del self._untimely[name]
                self._topics.pop(name, None)
                self._earlier.pop(name, None)
                self._not_added[name] = Refusal(Cause.CLOCK, clocks_differ(name))
                self._set_aside_until[name] = time.monotonic() + _SET_ASIDE_FOR

    def passes(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether Kafka is known to take them all, without looking anything up. Never blocks."""
        if time.monotonic() > self._known_until:
            return False
        plain, fits = self._plain, self._fits_client
        names_before: Sequence[Any] = ()
        values_before: Sequence[Any] = ()
        for _, topic, _, _, names, values, partition, size, _ in rows:  # by name: twice as fast as by place
            if topic not in plain or partition is not None or size > fits:
                return False
            if names == names_before and values == values_before:  # as they mostly are
                continue
            if names is None or values is None or len(names) != len(values):
                return False
            if None in names or None in values or (names and _is_odd(names, values)):
                return False
            names_before, values_before = names, values
        return True

    def passes_too(self, topics: Set[str], *, largest: int) -> bool:
        """Whether Kafka is known to take rows of these topics that pass on another cluster. `largest`: the bytes of key
        and value that one of them has at most.
        """
        return time.monotonic() <= self._known_until and topics <= self._plain and largest <= self._fits_client

    def partitions(self, names: Collection[str]) -> Mapping[str, int] | None:
        """Return how many partitions each of these topics has; None unless that is known of all."""
        found = self.known_partitions(names)
        return found if len(found) == len(names) else None

    def known_partitions(self, names: Collection[str]) -> Mapping[str, int]:
        """Return how many partitions those of these topics have of which that is known."""
        with self._lock:
            found = {name: self._topics[name].partitions for name in names if name in self._topics}
        return {name: count for name, count in found.items() if count}

    def known_ids(self, names: Collection[str]) -> dict[str, str]:
        """Return the ids of those of these topics of which that is known. Asks nobody."""
        with self._lock:
            topics = {name: self._topics[name] for name in names if name in self._topics}
        return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}

    def topic_ids(self, names: Collection[str], *, again: Collection[str] = ()) -> dict[str, str]:
        """Return the ids of topics, as far as they are there. Asks Kafka for unknown ones, and for those of `again`;
        raises KafkaError.
        """
        with self._lock:
            topics = {name: self._topics[name] for name in names if name in self._topics and name not in again}
        if unknown := set(names) - topics.keys():
            topics |= self.look_up(unknown)
        return {name: topic.topic_id for name, topic in topics.items() if topic.topic_id is not None}

    def changed(self, topic_ids: Mapping[str, str | None]) -> set[str]:
        """Return which of these topics are not there any more, or have another id by now (None: its id is not known).
        They are forgotten. Raises KafkaError.
        """
        answers = self.cluster.topics(topic_ids)
        changed = {name for name, topic_id in topic_ids.items() if is_another(answers[name], topic_id)}
        self.forget(changed)
        return changed

    def look_for_changed(self, topic_ids: Mapping[str, str | None]) -> Future[set[str]]:
        """Ask the same in a thread of its own, so that a cluster that is away holds nobody up. If there is no answer,
        nothing has changed.
        """
        answer: Future[set[str]] = Future()

        def look() -> None:
            try:
                answer.set_result(self.changed(topic_ids))
            except KafkaError:
                answer.set_result(set())

        threading.Thread(target=look, name="outbox-look", daemon=True).start()
        return answer

    def _refusal(self, row: Row, topic: Topic) -> Refusal | None:
        _, name, _, _, header_names, header_values, partition = row[:7]
        if topic.refusal is not None:
            return topic.refusal
        if header_names is None or header_values is None:  # too large, as seen when it was read
            return Refusal(Cause.TOO_LARGE, f"larger than message.max.bytes of the producer, {self._client_limit}")
        if len(header_names) != len(header_values):
            return Refusal(Cause.HEADERS, f"{len(header_names)} header names for {len(header_values)} header values")
        if None in header_names or None in header_values:
            return Refusal(Cause.HEADERS, "a header's name or value is null")
        if header_names and _is_odd(header_names, header_values):
            return Refusal(Cause.HEADERS, "the headers have more than one dimension, or a name that is not UTF-8")
        if partition is not None and not 0 <= partition < topic.partitions:
            return Refusal(
                Cause.PARTITION, f"topic {name} has {topic.partitions} partitions, and no partition {partition}"
            )
        if size_for_client(row) > self._client_limit:
            return Refusal(Cause.TOO_LARGE, f"larger than message.max.bytes of the producer, {self._client_limit}")
        if topic.is_compacted and row[KEY] is None:
            return Refusal(Cause.REFUSED, f"topic {name} is compacted, and accepts no record without a key")
        if topic.max_bytes is not None and size_for_broker(row) > topic.max_bytes:
            return self._sizes.refusal(row, topic.max_bytes)
        return None

    def look_up(self, names: Set[str]) -> dict[str, Topic]:
        """Return topics as they are now, and know them from now on. Raises KafkaError when they can't be looked up."""
        impossible = {name: refusal for name in names if (refusal := self._refusal_of_name(name)) is not None}
        found = {name: Topic(refusal) for name, refusal in impossible.items()}
        unknown = sorted(names - impossible.keys())
        if len(unknown) > _LOOKED_UP_AT_ONCE:  # a list of all topics takes much less time than so many names
            listed = self.cluster.topic_names()
            found |= {name: Topic(not_there(name)) for name in unknown if name not in listed}
            unknown = [name for name in unknown if name in listed]
        for at in range(0, len(unknown), _LOOKED_UP_AT_ONCE):
            found |= self._ask(unknown[at : at + _LOOKED_UP_AT_ONCE])
        if missing := [name for name, topic in found.items() if topic.is_missing]:
            found |= self._create(missing)
        if away := [name for name, topic in found.items() if topic.is_away and name not in self._away]:
            found |= self._await_brokers(away)
        with self._lock:
            for name, topic in found.items():
                (self._away.add if topic.is_away else self._away.discard)(name)
                self._learn(name, topic)
        return found

    def _learn(self, name: str, topic: Topic) -> None:
        self._topics[name] = topic
        if topic.refusal is None and name not in self._doubted:
            self._plain.add(name)
        else:
            self._plain.discard(name)

    def _create(self, missing: Sequence[str]) -> dict[str, Topic]:
        """Let brokers create topics, if they do that. Return those that are there soon."""
        if len(missing) > _CREATED_AT_ONCE or time.monotonic() < self._may_wait_from:
            self._requests.later(missing)
            return {}
        self._requests.now(missing)
        time.sleep(_CREATION_TIME)
        self._may_wait_from = time.monotonic() + _CREATION_INTERVAL
        return self._ask(missing)

    def _await_brokers(self, names: Sequence[str]) -> dict[str, Topic]:
        """Return topics when they have brokers again, or after a while.

        Raises KafkaError when the outbox's own topics have none either: then Kafka is away, and not a topic.
        """
        deadline = time.monotonic() + _LEADER_TIME
        while True:
            found = self._ask([*names, *self._own])
            if not any(topic.is_away for topic in found.values()):
                break
            if time.monotonic() > deadline:
                for name in self._own:
                    if (refusal := found[name].refusal) is not None and found[name].is_away:
                        raise KafkaError(refusal.reason)
                break
            time.sleep(_LEADER_POLL)
        return {name: found[name] for name in names}

    def _refusal_of_name(self, name: str) -> Refusal | None:
        # In a database that checks no encoding a name may be bytes.
        if not isinstance(name, str) or not _LEGAL.fullmatch(name) or name in (".", ".."):
            shown = name if len(name) <= _NAME_SHOWN else name[:_NAME_SHOWN]
            return Refusal(Cause.TOPIC_NAME, f"{shown!r} is not a name that Kafka allows for a topic")
        if is_kafkas_own(name):
            return Refusal(Cause.TOPIC_NAME, f"Kafka keeps its own state in topic {name}. Choose another name")
        if name in self._own or is_an_outboxs_own(name):
            whose = "the" if name in self._own else "an"
            return Refusal(
                Cause.TOPIC_NAME,
                f"topic {name} is {whose} outbox's own, and takes no other records. Choose another name",
            )
        return None

    def _ask(self, names: Sequence[str]) -> dict[str, Topic]:
        settings = self._settings([name for name in names if name in self._doubted or name in self._unanswered])
        found = {
            name: topic_of(name, answer, settings.get(name)) for name, answer in self.cluster.topics(names).items()
        }
        refused = self._not_added.keys() & {name for name, topic in found.items() if topic.refusal is None}
        return found | {name: Topic(self._not_added[name]) for name in refused}

    def _settings(self, names: Sequence[str]) -> dict[str, TopicSettings]:
        """Return the settings of those topics that tell them."""
        found: dict[str, TopicSettings] = {}
        for name, settings in self.cluster.topic_settings(names).items():
            if not isinstance(settings, BrokerError):
                found[name] = TopicSettings(
                    max_bytes=int(settings["max.message.bytes"].value),
                    is_compacted="compact" in settings["cleanup.policy"].value.split(","),
                    min_in_sync=int(settings["min.insync.replicas"].value),
                )
        with self._lock:
            for name in found.keys() & self._doubted:
                self._sizes.learn(name, found[name].max_bytes)
        return found


def _is_odd(names: Sequence[Any], values: Sequence[Any]) -> bool:
    """Whether header arrays that are not empty have several dimensions, or a first name that is no text."""
    return names[0].__class__ is not str or values[0].__class__ is list
