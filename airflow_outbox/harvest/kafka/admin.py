"""Questions to a Kafka cluster, with an answer or an error that says what to do."""

from __future__ import annotations

import logging
import re
import time
from collections import defaultdict
from collections.abc import Collection, Mapping
from concurrent.futures import Future, wait
from typing import Any, TypeVar, cast
from weakref import WeakMethod

from confluent_kafka import IsolationLevel, KafkaException, TopicCollection, TopicPartition
from confluent_kafka import KafkaError as BrokerError
from confluent_kafka.admin import (  # type: ignore[attr-defined]
    AdminClient,
    ConfigResource,
    NewPartitions,
    NewTopic,
    OffsetSpec,
    ResourceType,
)

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.kafka.errors import (
    REFUSALS,
    explained,
    is_about_login,
    reason_of,
    refused_settings,
    unreached,
)
from airflow_outbox.harvest.kafka.settings import shared
from airflow_outbox.values.extents import TopicAndPartition

logger = logging.getLogger(__name__)

Key = TypeVar("Key")

_TIMEOUT = 10.0
LOOK_UP_TIME = _TIMEOUT + 1
"""After so many seconds a question has been answered, or has failed."""
_POLL = 0.05
_LOCAL = 0  # the client itself reports codes below this, brokers report the others


class _Versions(logging.Handler):
    """The versions of each request that each broker knows, as librdkafka logs them."""

    _LINE = re.compile(r"\[thrd:(.+?)\]: .*ApiKey (\w+) \(\d+\) Versions \d+\.\.(\d+)")

    def __init__(self) -> None:
        super().__init__()
        self.known: defaultdict[str, dict[str, int]] = defaultdict(dict)
        self.logger = logging.Logger(__name__, logging.DEBUG)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        if (found := self._LINE.search(record.getMessage())) is not None:
            broker, request, newest = found.groups()
            self.known[broker][request] = int(newest)


class Cluster:
    """A cluster, as a client with these settings sees it.

    A broker's answer about one thing is a value, even when it is an error. Methods raise KafkaError when there is no
    answer: the login is refused, TLS fails, or no broker can be reached within ten seconds.
    """

    def __init__(self, kafka: Mapping[str, Any], *, notes_versions: bool = False) -> None:
        """`notes_versions` enables `newest_version`. Raises KafkaError for settings that Kafka's client refuses."""
        self._kafka = kafka
        self._complaint: BrokerError | None = None
        self._versions = _Versions()
        self._client = self._new_client(notes_versions=notes_versions)

    def _new_client(self, *, notes_versions: bool = False) -> AdminClient:
        complain = WeakMethod(self._complain)  # else the client would live on until a garbage collection

        def tell(error: BrokerError) -> None:
            if (told := complain()) is not None:
                told(error)

        settings: dict[str, Any] = {**shared(self._kafka), "error_cb": tell}
        if notes_versions:
            settings |= {"debug": "feature", "log_level": 7}
        try:
            return AdminClient(settings, logger=self._versions.logger if notes_versions else logger)
        except REFUSALS as error:
            raise refused_settings(error, self._kafka, remedy="Correct kafka") from error

    def reach(self) -> None:
        """Raise KafkaError unless a broker answers."""
        self._answers({"": self._client.describe_cluster(request_timeout=_TIMEOUT)})

    def identity(self) -> str:
        """Return the id that the cluster has given itself. Raises KafkaError."""
        described = self._answers({"": self._client.describe_cluster(request_timeout=_TIMEOUT)})[""]
        if isinstance(described, BrokerError):
            raise KafkaError(f"the cluster does not tell its id: {described.str()}")
        return str(described.cluster_id)

    def broker_settings(self) -> dict[int, Any]:
        """Return each broker's settings, or its error, by broker id. Raises KafkaError."""
        described = self._answers({"": self._client.describe_cluster(request_timeout=_TIMEOUT)})[""]
        if isinstance(described, BrokerError):
            raise KafkaError(f"the cluster does not list its brokers: {described.str()}")
        futures: dict[int, Future[Any]] = {}
        for node in described.nodes:
            resource = ConfigResource(ResourceType.BROKER, str(node.id))
            futures[node.id] = self._client.describe_configs([resource], request_timeout=_TIMEOUT)[resource]
        return self._answers(futures)

    def newest_version(self, request: str) -> int | None:
        """Return the newest version of a request that every broker asked so far knows (None: not known)."""
        self._client.poll(0)
        return min(
            (versions[request] for versions in self._versions.known.values() if request in versions), default=None
        )

    def topics(self, names: Collection[str]) -> dict[str, Any]:
        """Return topics as confluent_kafka describes them, with the allowed operations, or the broker's error."""
        if not names:
            return {}
        wanted = TopicCollection(list(names))
        answers = self._client.describe_topics(wanted, include_authorized_operations=True, request_timeout=_TIMEOUT)
        return self._answers(answers)

    def topic_names(self) -> set[str]:
        """Return the names of all topics that this user may see. Raises KafkaError."""
        try:
            return {str(name) for name in self._client.list_topics(timeout=_TIMEOUT).topics}
        except KafkaException as error:
            raise self._unreached(error.args[0].str()) from error

    def group(self, name: str) -> Any:
        """Return a consumer group, with the allowed operations, or the broker's error."""
        answers = self._client.describe_consumer_groups(
            [name], include_authorized_operations=True, request_timeout=_TIMEOUT
        )
        return self._answers(answers)[name]

    def members(self, group: str, *, timeout: float = _TIMEOUT) -> list[str] | None:
        """Return the ids of a consumer group's members.

        None means that the brokers don't know the group, or not yet, or don't tell this user. Raises KafkaError, also
        when no broker answers within `timeout` seconds.
        """
        # The call that `group` makes may abort the process when it times out without a broker (librdkafka 2.16).
        try:
            found = self._client.list_groups(group, timeout=timeout)
        except KafkaException as error:
            raise self._unreached(error.args[0].str()) from error
        if not found or found[0].error is not None:
            return None
        return [str(member.id) for member in found[0].members]

    def end_offset(self, topic: str, partition: int, *, stable: bool = False) -> int:
        """Return the end of a partition now, with uncommitted records. If `stable`, return where its first open
        transaction begins. Raises KafkaError.
        """
        where = TopicPartition(topic, partition)
        answers = self._client.list_offsets(
            {where: OffsetSpec.latest()},  # type: ignore[no-untyped-call]
            isolation_level=IsolationLevel.READ_COMMITTED if stable else IsolationLevel.READ_UNCOMMITTED,
            request_timeout=_TIMEOUT,
        )
        answer = self._answers(answers)[where]
        if isinstance(answer, BrokerError):
            raise KafkaError(
                f"the end of topic {topic} can't be found: {answer.str()}. See that the topic and its brokers are there"
            )
        return int(answer.offset)

    def stable_offsets(self, places: Collection[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        """Return how far a read-committed consumer can get in these partitions now, without those that don't answer.
        Raises KafkaError.
        """
        return self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_COMMITTED)  # type: ignore[no-untyped-call]

    def end_offsets(self, places: Collection[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        """Return where these partitions end now, with uncommitted records, without those that don't answer. Raises
        KafkaError.
        """
        return self._offsets(places, OffsetSpec.latest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]

    def start_offsets(self, places: Collection[TopicAndPartition]) -> dict[TopicAndPartition, int]:
        """Return the first offsets that these partitions keep, without those that don't answer. Raises KafkaError."""
        return self._offsets(places, OffsetSpec.earliest(), IsolationLevel.READ_UNCOMMITTED)  # type: ignore[no-untyped-call]

    def _offsets(
        self, places: Collection[TopicAndPartition], which: OffsetSpec, isolation: IsolationLevel
    ) -> dict[TopicAndPartition, int]:
        if not places:
            return {}
        wanted = {TopicPartition(*place): which for place in places}
        answers = self._client.list_offsets(wanted, isolation_level=isolation, request_timeout=_TIMEOUT)
        return {
            (where.topic, where.partition): int(answer.offset)
            for where, answer in self._answers(answers).items()
            if not isinstance(answer, BrokerError)
        }

    def topic_settings(self, names: Collection[str]) -> dict[str, Any]:
        """Return settings, or the broker's error, by topic."""
        if not names:
            return {}
        resources = [ConfigResource(ResourceType.TOPIC, name) for name in names]
        answers = self._answers(self._client.describe_configs(resources, request_timeout=_TIMEOUT))
        return {resource.name: answer for resource, answer in answers.items()}

    def make_topic(self, topic: NewTopic) -> BrokerError | None:
        """Make a topic. Return the broker's error, if any."""
        answers = self._answers(self._client.create_topics([topic], operation_timeout=_TIMEOUT))
        return cast("BrokerError | None", answers[topic.topic])

    def add_partitions(self, topic: str, partitions: int) -> BrokerError | None:
        """Give a topic this many partitions in all. Return the broker's error, if any."""
        wanted = NewPartitions(topic, partitions)
        answers = self._answers(self._client.create_partitions([wanted], operation_timeout=_TIMEOUT))
        return cast("BrokerError | None", answers[topic])

    def _answers(self, futures: Mapping[Key, Future[Any]], *, keeps_time_outs: bool = False) -> dict[Key, Any]:
        """Return the answers, or errors of brokers. If it `keeps_time_outs`, a broker that does not answer in time is
        an error of that answer only, unless nobody answers.
        """
        deadline = time.monotonic() + LOOK_UP_TIME
        while wait(futures.values(), timeout=_POLL).not_done:  # the client's own thread sets them
            self._client.poll(0)
            if self._complaint is not None and is_about_login(self._complaint):
                raise KafkaError(explained(self._complaint, self._kafka))
            if time.monotonic() > deadline:
                raise self._unreached("no answer")
        if any(map(_is_of_a_broker, futures.values())):
            self._complaint = None  # it was about another connection, or is over
        keeps_time_outs = keeps_time_outs and not all(map(_is_timed_out, futures.values()))
        return {key: self._answer(future, keeps_time_outs=keeps_time_outs) for key, future in futures.items()}

    def _answer(self, future: Future[Any], *, keeps_time_outs: bool) -> Any:
        error = future.exception()
        if error is None:
            return future.result()
        if not isinstance(error, KafkaException):
            raise error
        reason: BrokerError = error.args[0]
        if reason.code() < _LOCAL and not (keeps_time_outs and _is_timed_out(future)):
            raise self._unreached(reason.str())
        return reason

    def _unreached(self, reason: str | None) -> KafkaError:
        return KafkaError(unreached(reason_of(self._complaint) if self._complaint else reason, self._kafka))

    def _complain(self, error: BrokerError) -> None:
        if self._complaint is None or is_about_login(error):
            self._complaint = error


def _is_of_a_broker(future: Future[Any]) -> bool:
    error = future.exception()
    return error is None or (isinstance(error, KafkaException) and bool(error.args[0].code() >= _LOCAL))


def _is_timed_out(future: Future[Any]) -> bool:
    error = future.exception()
    return isinstance(error, KafkaException) and error.args[0].code() == BrokerError._TIMED_OUT
