"""Whether a term still writes to the topics that it has begun to write to.

A topic may be deleted and made again under the same name. Neither Kafka's protocol for producers nor its client tells
that: a record goes to the partition that was chosen by the old number of partitions, and the new topic takes it. So
nothing that goes to a topic is committed unless the topic has the id that it had when the term first wrote to it. After
another id has been seen, a new term begins, whose producers know nothing of the old topic.

To ask for the ids costs a request, so it is asked only in doubt. The offsets of records show without a request that the
log is still the same, as long as nobody else writes to the partition: they go on where the last ones ended. Between
them are at most the markers of transactions that are not all written when the next one begins, one of each producer.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping

from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.values.extents import TopicAndPartition


class SameTopics:
    """The ids of one term's topics on one cluster, and where its records ended. It has so many `producers`."""

    def __init__(self, producers: int) -> None:
        self._producers = producers
        self._ids: dict[str, str] = {}
        self._ends: dict[TopicAndPartition, int] = {}

    def sending(self, ids: Mapping[str, str]) -> set[str]:
        """Records are about to be sent to topics that have these ids as far as is known. Return the topics that have
        had another one in this term.
        """
        return {topic for topic, topic_id in ids.items() if self._ids.setdefault(topic, topic_id) != topic_id}

    def ids(self, topics: Collection[str]) -> dict[str, str]:
        """Return the ids that these topics have in this term."""
        return {topic: self._ids[topic] for topic in topics if topic in self._ids}

    def doubtful(self, extents: Iterable[Extent]) -> dict[str, str]:
        """Kafka has taken these records. Return the topics for which the offsets don't show that they are still the
        same, with their ids.
        """
        topics = set()
        for extent in extents:
            place = extent.topic, extent.partition
            end = self._ends.get(place)
            between = -1 if end is None else extent.first - end - 1
            within = extent.last - extent.first + 1 - extent.count
            if not (0 <= between <= self._producers and 0 <= within <= self._producers):
                topics.add(extent.topic)
            self._ends[place] = extent.last
        return self.ids(topics)
