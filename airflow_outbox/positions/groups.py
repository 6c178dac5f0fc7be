"""Consumer groups on one cluster: which there are, what they have committed, and commits on their behalf.

Kafka takes one group a request, and a broker answers the requests of a connection one after another. So many requests
are under way at a time, and over several connections where there are many groups.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from concurrent.futures import Future
from fnmatch import fnmatchcase
from itertools import islice
from typing import Any

from confluent_kafka import ConsumerGroupState, ConsumerGroupTopicPartitions, IsolationLevel, TopicPartition
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import AdminClient, OffsetSpec  # type: ignore[attr-defined]

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import not_allowed, reason_of
from airflow_outbox.harvest.kafka.page_reader import PartitionOffsets
from airflow_outbox.positions.marks import Committed, Mark
from airflow_outbox.values.extents import TopicAndPartition

_AT_A_TIME = 200
_MOST_CONNECTIONS = 8  # to each broker
_GROUPS_A_CONNECTION = 10
_TIMEOUT = 10.0
_PAUSE = 0.1
_READS_ITS_GROUPS = (BrokerError.COORDINATOR_LOAD_IN_PROGRESS, BrokerError.COORDINATOR_NOT_AVAILABLE)
_WITHOUT_MEMBERS = (ConsumerGroupState.EMPTY, ConsumerGroupState.DEAD)
_HAS_MEMBERS = (
    BrokerError.UNKNOWN_MEMBER_ID,
    BrokerError.ILLEGAL_GENERATION,
    BrokerError.REBALANCE_IN_PROGRESS,
    BrokerError.NON_EMPTY_GROUP,
)


class GroupHasMembersError(KafkaError):
    """Members have joined the group, so only they may commit."""


class GroupHasChangedError(KafkaError):
    """Somebody else has committed since the group was looked at."""


def are_meant(groups: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Return the groups that match a pattern such as `orders-*`, and none of those that begin with `!`."""
    wanted = [pattern for pattern in patterns if not pattern.startswith("!")]
    unwanted = [pattern[1:] for pattern in patterns if pattern.startswith("!")]
    return [
        group
        for group in groups
        if any(fnmatchcase(group, pattern) for pattern in wanted)
        and not any(fnmatchcase(group, pattern) for pattern in unwanted)
    ]


class ConsumerGroups(Cluster):
    """The consumer groups of a cluster, classic ones and those of the newer protocol (KIP-848).

    An answer about one group is a value, even when it is an error. Methods raise KafkaError where nothing answers.
    """

    def __init__(self, kafka: Mapping[str, Any]) -> None:
        """Raises KafkaError for settings that Kafka's client refuses."""
        super().__init__(kafka)
        self._others: list[AdminClient] = []

    def members_by_group(self) -> dict[str, bool]:
        """Return all groups that this user may see, and whether they have members now. Raises KafkaError.

        A broker that is reading its groups, as after its start, is asked again until it knows them.
        """
        deadline = time.monotonic() + _TIMEOUT
        while True:
            found = self._answers({"": self._client.list_consumer_groups(request_timeout=_TIMEOUT)})[""]
            errors = [found] if isinstance(found, BrokerError) else found.errors
            for error in errors:
                if error.code() < 0:  # the client's own
                    raise self._unreached(reason_of(error))
                if error.code() not in _READS_ITS_GROUPS or time.monotonic() > deadline:
                    raise KafkaError(f"Kafka does not list all consumer groups: {reason_of(error)}")
            if not errors:
                return {str(each.group_id): each.state not in _WITHOUT_MEMBERS for each in found.valid}
            time.sleep(_PAUSE)

    def committed(self, groups: Collection[str]) -> dict[str, dict[TopicAndPartition, Committed] | KafkaError]:
        """Return what each group has committed, or why that is not known. Raises KafkaError.

        Ask only for groups that are listed. If a broker answers that it is not a group's coordinator, as while the
        coordinator is made or moves, the client crashes its process (librdkafka 2.16: an admin client has no group that
        it could tell). A group that is listed has a coordinator that is ready.
        """

        def ask(client: AdminClient, group: str) -> Future[Any]:
            request = [ConsumerGroupTopicPartitions(group)]
            future: Future[Any] = client.list_consumer_group_offsets(request, request_timeout=_TIMEOUT)[group]
            return future

        return {group: _offsets(group, answer) for group, answer in self._all(groups, ask)}

    def commit(self, marks: Mapping[str, Mapping[TopicAndPartition, Mark]]) -> dict[str, KafkaError | None]:
        """Commit positions, with our marks, for groups without members. Return by group why that failed, or None.

        Raises KafkaError.
        """

        def alter(client: AdminClient, group: str) -> Future[Any]:
            offsets = [TopicPartition(*place, mark.offset, mark.metadata) for place, mark in marks[group].items()]
            request = [ConsumerGroupTopicPartitions(group, offsets)]
            future: Future[Any] = client.alter_consumer_group_offsets(request, request_timeout=_TIMEOUT)[group]
            return future

        return {group: _refusal(group, answer) for group, answer in self._all(marks, alter)}

    def offsets_of(self, places: Collection[TopicAndPartition]) -> dict[TopicAndPartition, PartitionOffsets]:
        """Return how far these partitions' logs reach, without those that don't answer. Raises KafkaError."""
        end, stable, start = self.end_offsets(places), self.stable_offsets(places), self.start_offsets(places)
        return {
            place: PartitionOffsets(start[place], stable[place], end[place])
            for place in places
            if place in start and place in end and place in stable
        }

    def offset_at(self, place: TopicAndPartition, moment: int) -> int:
        """Return the first offset of a partition from a time on, in milliseconds since 1970; its end where none is as
        late. Raises KafkaError.
        """
        spec = OffsetSpec.for_timestamp(moment)
        found = self._offsets([place], spec, IsolationLevel.READ_UNCOMMITTED).get(place, -1)
        return found if found >= 0 else self.end_offset(*place)

    def topic_ids(self, topics: Collection[str]) -> dict[str, tuple[str, int]]:
        """Return the id and the number of partitions of each of these topics that is there. Raises KafkaError."""
        return {
            topic: (str(answer.topic_id), len(answer.partitions))
            for topic, answer in self.topics(topics).items()
            if not isinstance(answer, BrokerError)
        }

    def _all(
        self, groups: Collection[str], ask: Callable[[AdminClient, str], Future[Any]]
    ) -> Iterator[tuple[str, Any]]:
        clients = self._clients(len(groups))
        numbered = enumerate(groups)
        while some := [*islice(numbered, _AT_A_TIME)]:
            futures = {group: ask(clients[number % len(clients)], group) for number, group in some}
            yield from self._answers(futures, keeps_time_outs=True).items()
        for client in clients:
            client.poll(0)  # what it has to say of its connection

    def _clients(self, groups: int) -> list[AdminClient]:
        """Return a client for each connection that so many groups are worth."""
        wanted = min(_MOST_CONNECTIONS, 1 + groups // _GROUPS_A_CONNECTION)
        while len(self._others) < wanted - 1:
            self._others.append(self._new_client())
        return [self._client, *self._others[: wanted - 1]]


def _offsets(group: str, answer: Any) -> dict[TopicAndPartition, Committed] | KafkaError:
    if isinstance(answer, BrokerError):
        return KafkaError(_why(answer, group))
    found = {}
    for each in answer.topic_partitions:
        if each.error is not None:
            return KafkaError(_why(each.error, group, each.topic))
        if each.offset >= 0:
            mark = Mark.parse(each.metadata, each.offset)
            found[str(each.topic), int(each.partition)] = Committed(int(each.offset), mark)
    return found


def _refusal(group: str, answer: Any) -> KafkaError | None:
    errors = (
        [(answer, "")] if isinstance(answer, BrokerError) else [(e.error, e.topic) for e in answer.topic_partitions]
    )
    for error, topic in errors:
        if error is not None and error.code() != BrokerError.NO_ERROR:
            kind = GroupHasMembersError if error.code() in _HAS_MEMBERS else KafkaError
            return kind(_why(error, group, topic))
    return None


def _why(error: BrokerError, group: str, topic: str = "") -> str:
    if error.code() == BrokerError.GROUP_AUTHORIZATION_FAILED:
        return not_allowed("READ", "group", group)
    if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED and topic:
        return not_allowed("READ", "topic", topic)
    if error.code() == BrokerError._TIMED_OUT:
        return f"the broker that coordinates group {group} does not answer: {reason_of(error)}"
    return reason_of(error)
