"""Kafka's reports on a producer's records: where they are, and which records or topics it refuses.

The client reports records one by one as they are delivered. Some refusals show only in its log, or as an error of the
client as a whole.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import Message

from airflow_outbox.errors import KafkaError, PublishError, RecordsRefusedError
from airflow_outbox.harvest.kafka.error_kinds import ErrorKind, kind_of
from airflow_outbox.harvest.kafka.errors import clocks_differ, explained, not_allowed
from airflow_outbox.harvest.kafka.producer import UNKNOWN, shown
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_client import ClientLog, refusal
from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import SIZE, TOPIC, OutboxRow

DeliveryReport = Callable[[BrokerError | None, Message], None]

_TOPICS_NAMED = 3
_FEW_PARTITIONS = 16
_UNKNOWN = (BrokerError._UNKNOWN_TOPIC, BrokerError._UNKNOWN_PARTITION)
_topic, _size = itemgetter(TOPIC), itemgetter(SIZE)


class DeliveryReports:
    """The client's reports on one producer. `settings` are the producer's, `ledger` the place of its ledger.

    - `refused`: the error of a record that was not delivered; None: none is known
    - `offset`: that of the ledger's last record
    - `is_purged`: whether a failed transaction took an entry of the ledger with it
    - `are_purged`: whether one took records that were sent last with it
    - `complaint`: the last error of the client as a whole, in words
    """

    def __init__(self, settings: Mapping[str, Any], *, ledger: TopicAndPartition, book: TopicCache) -> None:
        self.refused: KafkaError | None = None
        self.offset = 0
        self.is_purged = False
        self.are_purged = False
        self.complaint: str | None = None
        self._settings = settings
        self._ledger = ledger
        self._book = book
        self._client_log = ClientLog()
        self._extents: dict[TopicAndPartition, list[int]] = {}
        self._extents_to_write: ExtentsToWrite | None = None
        self._extents_left = 0  # records of the extents topic that are not taken yet
        self._is_ledger_taken = False  # since the extents were sent
        self._is_alone = False  # the record being sent

    def new_client(self) -> logging.Logger:
        """The producer gets a new client. Return the log to give it."""
        self._client_log = ClientLog()
        self._extents_left = 0
        return self._client_log.logger

    def begin(self, rows: Sequence[OutboxRow]) -> None:
        """These rows are sent now."""
        self._extents.clear()
        self.are_purged = False
        self._is_alone = len(rows) == 1

    def extents(self, counts: Mapping[TopicAndPartition, int]) -> list[Extent]:
        """Where the rows are. `counts` says how many are in a partition, if not each of them was asked about."""
        return [
            Extent(topic, partition, first, last, counts.get((topic, partition), reported))
            for (topic, partition), (first, last, reported) in self._extents.items()
        ]

    @property
    def are_refusals(self) -> bool:
        """Whether a record, or a topic, is known to be refused: then the rest stays unsent."""
        return self.refused is not None or bool(self._client_log.refused)

    def error(self) -> KafkaError | None:
        """Return the error to raise for what is refused, if anything is. Tell the book the topics."""
        return self._refused_extents() or self._untimely_topics() or self._refused_topics() or self.refused

    def edges(
        self, rows: Sequence[OutboxRow], partitions: Sequence[int], topics: Collection[str]
    ) -> tuple[Mapping[TopicAndPartition, int], list[DeliveryReport | None]]:
        """Return how many records go to each partition, and each record's report, if Kafka is asked where it went.

        It is asked about the first and the last record of a partition, and about those that may be too large.
        """
        reports: list[DeliveryReport | None] = [None] * len(rows)
        for number in self._large(rows):
            reports[number] = self.delivered
        if len(topics) == 1 and len(found := set(partitions)) <= _FEW_PARTITIONS:  # a search for each is faster
            (topic,) = topics
            from_last = partitions[::-1]
            for partition in found:
                reports[partitions.index(partition)] = reports[-1 - from_last.index(partition)] = self.delivered
            return {(topic, partition): partitions.count(partition) for partition in found}, reports
        places = list(zip(map(_topic, rows), partitions, strict=True))
        numbers = range(len(places))
        last = dict(zip(places, numbers, strict=True))
        first = dict(zip(reversed(places), reversed(numbers), strict=True))
        for number in (*first.values(), *last.values()):
            reports[number] = self.delivered
        return Counter(places), reports

    def delivered(self, error: BrokerError | None, message: Message) -> None:
        """The client reports a record of the outbox."""
        topic = cast("str", message.topic())
        if error is not None:
            if error.code() == BrokerError.INVALID_TIMESTAMP:
                self._client_log.untimely.add(topic)
            if kind_of(error).narrows:
                self._doubt(error, message)
                if not isinstance(self.refused, RecordsRefusedError):
                    self.refused = self._refusal(error, topic)
            elif error.code() == BrokerError._PURGE_QUEUE:
                self.are_purged = True
            elif self.refused is None:
                self._book.unanswered(topic)
                name = f"a record (topic {topic}, key {shown(message.key())})"
                self.refused = PublishError(f"{name} was not published: {self.why(error, topic)}")
            return
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        extent = self._extents.get((topic, partition))
        if extent is None:
            self._extents[topic, partition] = [offset, offset, 1]
        else:
            extent[1] = offset
            extent[2] += 1

    def written(self, error: BrokerError | None, message: Message) -> None:
        """The client reports a record of the ledger."""
        if error is None:
            self.offset = cast("int", message.offset())
            self._is_ledger_taken = True
        elif error.code() == BrokerError._PURGE_QUEUE:
            self.is_purged = True
        elif error.code() == BrokerError.INVALID_TIMESTAMP:
            self._client_log.untimely.add(self._ledger[0])
            self.refused = KafkaError(clocks_differ(self._ledger[0]))
        elif self.refused is None:
            self.refused = KafkaError(self.not_written(error))

    def extents_report(self, extents: ExtentsToWrite) -> DeliveryReport:
        """Return what the client has to report the records of the extents topic to."""
        self._extents_to_write, self._extents_left, self._is_ledger_taken = extents, len(extents.records), False

        def written(error: BrokerError | None, message: Message) -> None:
            if error is None:
                self._extents_left -= 1
                extents.written(cast("int", message.offset()))
            elif error.code() == BrokerError._PURGE_QUEUE or self.refused is not None:
                return
            elif self._is_ledger_taken or _is_about_topic(error):
                extents.refused()
                self.refused = KafkaError(self.extents_not_written(error, extents.topic))
            else:  # nothing was taken, so it is not about this topic
                self.refused = KafkaError(f"the batch was not published: {self.why(error)}")

        return written

    def note_late_extents(self) -> None:
        """Nothing more was taken in time. If that is all but the extents, they are to blame."""
        extents = self._extents_to_write
        if extents is not None and self._extents_left and self._is_ledger_taken and self.refused is None:
            extents.refused()
            self.refused = KafkaError(
                f"the extents were not written in time. Check topic {extents.topic}, and its min.insync.replicas"
            )

    def extents_not_written(self, error: BrokerError, topic: str) -> str:
        """Return why the extents were not written."""
        return f"the extents were not written: {self.why(error, topic)}. Check topic {topic}"

    def not_written(self, error: BrokerError) -> str:
        """Return why the ledger was not written."""
        topic, _ = self._ledger
        return f"the ledger was not written: {self.why(error, topic)}. Check topic {topic}"

    def why(self, error: BrokerError, topic: str | None = None) -> str:
        """Return an error, perhaps about a topic, in words."""
        if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED and topic is not None:
            return not_allowed("WRITE", "topic", topic)
        if error.code() in (BrokerError._MSG_TIMED_OUT, BrokerError._TIMED_OUT) and self.complaint is not None:
            return self.complaint
        return refusal(error, str(self._settings["transactional.id"]))

    def failed(self, error: BrokerError, *, sent_to: Collection[str]) -> None:
        """The transaction, with records for these topics, has failed, and no report of a record says why."""
        topics, extents = self._client_log.not_added, self._extents_to_write
        if extents is not None and extents.topic in topics:
            extents.refused()
            self.refused = KafkaError(self.extents_not_written(error, extents.topic))
            return
        if not kind_of(error).narrows or error.fatal() or self._ledger[0] in topics:
            self.refused = PublishError(self.why(error))
        elif error.code() in UNKNOWN and not topics:
            self._book.forget(sent_to)  # the next look at the records tells which of the topics is deleted
            self.refused = RecordsRefusedError(self.why(error), explained=True)
        else:
            self.refused = self._refusal(error, *sorted(topics))

    def complain(self, error: BrokerError) -> None:
        """The client reports an error of its own."""
        self.complaint = explained(error, self._settings)

    def _large(self, rows: Sequence[OutboxRow]) -> list[int]:
        """Return the places of rows that a broker may find too large."""
        limit = self._book.smallest_max_bytes
        if limit is None or max(map(_size, rows), default=0) <= limit // 2:
            return []
        return [place for place, row in enumerate(rows) if row[SIZE] > limit // 2]

    def _refusal(self, error: BrokerError, *topics: str) -> RecordsRefusedError:
        is_unclear = kind_of(error) is ErrorKind.UNCLEAR
        reason = self.why(error, topics[0] if topics else None)
        return RecordsRefusedError(reason, topics=topics, explained=bool(topics) and not is_unclear, unclear=is_unclear)

    def _doubt(self, error: BrokerError, message: Message) -> None:
        topic = cast("str", message.topic())
        if error.code() in UNKNOWN:
            return self._book.forget([topic])
        if error.code() == BrokerError.MSG_SIZE_TOO_LARGE:
            batch_size = 0 if self._is_alone else int(self._settings["batch.size"])
            self._book.found_too_large(topic, message.key(), message.value(), batch_size=batch_size)
        self._book.doubt(topic)

    def _refused_extents(self) -> KafkaError | None:
        """Return the error to raise when Kafka kept the extents topic out of the transaction."""
        extents = self._extents_to_write
        if extents is None or extents.topic not in self._client_log.refused:
            return None
        extents.refused()
        return KafkaError(f"the extents were not written: {not_allowed('WRITE', 'topic', extents.topic)}")

    def _untimely_topics(self) -> KafkaError | None:
        """Return the error to raise when Kafka refused records because of their time. Tell the book the topics."""
        topics = sorted(self._client_log.untimely)
        if self._ledger[0] in topics:  # so nothing can be set aside
            return KafkaError(f"the ledger was not written: {clocks_differ(self._ledger[0])}")
        for topic in topics:
            self._book.found_untimely(topic)
        return KafkaError(clocks_differ(topics[0])) if topics else None

    def _refused_topics(self) -> RecordsRefusedError | None:
        """Return the error to raise when Kafka kept topics out of the transaction. Tell the book the topics."""
        topics = {topic: why for topic, why in self._client_log.refused.items() if topic != self._ledger[0]}
        for topic, why in topics.items():
            self._book.found_refused(topic, why)
        if not topics:
            return None
        named = ", ".join(sorted(topics)[:_TOPICS_NAMED])
        return RecordsRefusedError(f"Kafka refuses transactions to topic {named}", topics=[*topics], explained=True)


def _is_about_topic(error: BrokerError) -> bool:
    """Whether a record was not taken because of its topic: a broker says so, or that there is none."""
    return error.code() in _UNKNOWN or (error.code() > 0 and kind_of(error) is not ErrorKind.PRODUCER)
