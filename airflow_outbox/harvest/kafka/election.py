"""The port `Election` over a Kafka consumer group: fast NELI's traffic.

protocol/election.py makes the decisions. A thread polls the consumer. At every poll it sends a heartbeat to each
partition that this member owns, and tells the event loop what the candidates decided. Kafka calls the rebalance
callbacks from that poll and waits for them. They are the barrier in which the outgoing leader finishes, for at most the
heartbeat timeout.

No heartbeat can be written to one of Kafka's own topics, on which goharvest's examples elect. There the group's answers
replace the heartbeats. Each shows that this member reaches the coordinator and is in its present generation.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, Producer, TopicPartition
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.errors import REFUSALS, clocks_differ, explained, not_allowed, refused_settings
from airflow_outbox.harvest.kafka.settings import CLIENT_SETTINGS
from airflow_outbox.harvest.protocol.election import Candidate, Change, Lead, Standing
from airflow_outbox.postgres.names import is_kafkas_own

logger = logging.getLogger(__name__)

_SHORTEST_INTERVAL, _LONGEST_INTERVAL = 0.1, 0.25  # seconds between two heartbeats
_HEARTBEATS_IN_TIMEOUT = 8
# Heartbeats are well formed, so an invalid one has a refused time. (The error names it only for a batch of one.)
_UNTIMELY = (BrokerError.INVALID_TIMESTAMP, BrokerError.INVALID_RECORD, BrokerError._INVALID_DIFFERENT_RECORD)
_CLOSING_TIME = 5.0
_LEAVING_TIME = 1.0
_LEAVING_POLL = 0.01


def consumer_settings(config: HarvestConfig, group_id: str, *, place: str) -> dict[str, Any]:
    """Return a member's settings: defaults, overridden by the user's, then by those that the protocol needs.

    The group knows the member by `place`.
    """
    session_timeout_ms = int(config.limits.session_timeout * 1000)
    given = {**CLIENT_SETTINGS, **config.kafka, "client.id": elections_client_id(config), **config.kafka_consumer}
    return {
        **given,
        "group.id": group_id,
        # A broker that was away for longer than the session timeout still counts its earlier members. A member
        # without its own name would have to join as another, and wait until the group has missed the first.
        "group.instance.id": place,
        "group.protocol": "classic",
        "partition.assignment.strategy": "range,roundrobin",
        "session.timeout.ms": session_timeout_ms,
        # The answer tells a member to rebalance, and so that a leader has left.
        "heartbeat.interval.ms": max(100, session_timeout_ms // 20),
        # A leader that stops polling must lose the role as soon as one whose process has stopped.
        "max.poll.interval.ms": session_timeout_ms,
        "auto.offset.reset": "latest",
        "enable.auto.commit": False,
        "enable.auto.offset.store": False,
        "allow.auto.create.topics": False,
    }


def elections_client_id(config: HarvestConfig) -> str:
    """Return the client id of the election's clients. The record producers have another, so that a quota on those holds
    no heartbeat back.
    """
    return f"{config.kafka.get('client.id', CLIENT_SETTINGS['client.id'])}.election"


def new_place() -> str:
    """Return the name of a new member. The group's assignor sorts by it, and the oldest member comes first: a member
    that joins takes nothing from a leader.
    """
    return f"{time.time_ns():020d}-{uuid4().hex[:12]}"


class _Seat:
    """A partition that this member may own, with the shards that belong to it."""

    def __init__(self, heartbeat_timeout: float, shards: Iterable[int]) -> None:
        self.candidate = Candidate(heartbeat_timeout)
        self.released = {shard: threading.Event() for shard in shards}
        for event in self.released.values():
            event.set()
        self.position = 0  # behind the last heartbeat read
        self.questions: dict[int, float] = {}  # the offsets that the group was asked to commit, and when

    def may_ask(self, now: float, patience: float) -> bool:
        """Whether the group owes no answer, or has owed it for so long that it will not come."""
        return all(now - asked_at > patience for asked_at in self.questions.values())


class NeliElection:
    """One member of the group. It joins when `changes` is first iterated."""

    def __init__(
        self,
        config: HarvestConfig,
        *,
        topic: str,
        partitions: int,
        group_id: str,
        on_error: Callable[[str], None],
        on_heartbeat: Callable[[bool], object] = lambda _: None,
    ) -> None:
        """`on_error` is called in the event loop of `changes` with Kafka's complaints. `on_heartbeat` is called in some
        thread with whether Kafka took a heartbeat, or refused it because of its time.

        Raises KafkaError for settings it refuses. With tokens this waits for one: call it in a thread.
        """
        self._topic = topic
        self._heartbeats_are_possible = not is_kafkas_own(topic)
        self._partitions = partitions
        self._timeout = config.limits.heartbeat_timeout
        self._interval = min(_LONGEST_INTERVAL, max(_SHORTEST_INTERVAL, self._timeout / _HEARTBEATS_IN_TIMEOUT))
        self._on_error = on_error
        self._on_heartbeat = on_heartbeat
        self._untimely: str | None = None  # the error while Kafka refuses this member's time
        self._member = uuid4().bytes
        self._seats = {
            partition: _Seat(self._timeout, range(partition, config.shards, partitions))
            for partition in range(min(partitions, config.shards))
        }
        self._lock = threading.Lock()  # the polling thread asks candidates, the event loop tells them
        self._resigned: str | None = None
        self._lost_session = False
        self._place = new_place()
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes: asyncio.Queue[tuple[int, Change] | Exception | None] = asyncio.Queue()
        heartbeats = {
            **CLIENT_SETTINGS,
            **config.kafka,
            "client.id": elections_client_id(config),
            "acks": 1,
            "linger.ms": 0,
            "message.timeout.ms": int(self._timeout * 1000),
            "queue.buffering.max.messages": 100 + 10 * partitions,
        }
        self._config = config
        self._group_id = group_id
        try:
            self._producer = Producer(heartbeats, logger=logger)
            self._consumer = self._new_consumer()
        except REFUSALS as error:
            raise self._refused(error) from error
        if self._heartbeats_are_possible:  # unknown before the first one
            on_heartbeat(False)
        self._thread = threading.Thread(target=self._run, name="outbox-election", daemon=True)

    def standing(self, shard: int) -> Standing:
        return self._seat(shard).candidate.standing

    async def changes(self) -> AsyncIterator[tuple[int, Change]]:
        self._loop = asyncio.get_running_loop()
        self._thread.start()
        while (change := await self._changes.get()) is not None:
            if isinstance(change, Exception):
                raise change
            yield change

    def released(self, shard: int) -> None:
        self._seat(shard).released[shard].set()

    def fenced(self, shard: int) -> None:
        with self._lock:
            self._seat(shard).candidate.fenced(time.monotonic())

    def resign(self, reason: str) -> None:
        self._resigned = reason

    def rejoin(self) -> None:
        self._resigned = None

    async def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            await asyncio.to_thread(self._thread.join, _CLOSING_TIME)
        self._changes.put_nowait(None)

    def _seat(self, shard: int) -> _Seat:
        return self._seats[shard % self._partitions]

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                if self._untimely is not None:
                    self._ask_the_time()
                elif self._resigned is None:
                    self._be_a_member()
                else:
                    self._closing.wait(self._interval)
        except Exception as bug:
            self._in_loop(self._changes.put_nowait, bug)

    def _new_consumer(self) -> Consumer:
        settings = consumer_settings(self._config, self._group_id, place=self._place)
        return Consumer({**settings, "error_cb": self._complain, "on_commit": self._answered}, logger=logger)

    def _be_a_member(self) -> None:
        self._lost_session = False
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        while not self._lost_session and not self._leaves and not self._closing.is_set():
            self._poll_once()
        if not self._lost_session:
            self._leave()
        self._consumer.close()
        if not (self._lost_session and self._still_has_its_place()):
            self._place = new_place()
        while not self._closing.is_set():
            try:
                self._consumer = self._new_consumer()
                return
            except REFUSALS as error:  # for example without a token now
                self._in_loop(self._on_error, str(self._refused(error)))
                self._closing.wait(1)

    @property
    def _leaves(self) -> str | None:
        """Why this member lets others lead."""
        return self._resigned or self._untimely

    def _ask_the_time(self) -> None:
        """Send heartbeats only to find out whether Kafka takes this member's time again."""
        self._send_heartbeat(min(self._seats))
        self._producer.poll(self._interval)
        self._closing.wait(self._interval)

    def _leave(self) -> None:
        """Tell the group: it would wait for a member that has its own name and only closes."""
        self._consumer.unsubscribe()
        due = time.monotonic() + self._timeout + _LEAVING_TIME
        while self._consumer.memberid() and time.monotonic() < due:
            self._consumer.poll(_LEAVING_POLL)

    def _still_has_its_place(self) -> bool:
        """Whether the group still counts this member: Kafka was away, and the group did not go on with others.

        This asks until the coordinator answers. A group that stays silent for a session timeout has no members left.
        """
        cluster: Cluster | None = None
        untold_since: float | None = None
        while not self._closing.is_set():
            try:
                cluster = cluster or Cluster(self._config.kafka)
                members = cluster.members(self._group_id, timeout=self._timeout)
                if members is not None:
                    return any(member.startswith(self._place) for member in members)
                untold_since = untold_since or time.monotonic()
                if time.monotonic() - untold_since > self._config.limits.session_timeout:
                    return False
            except KafkaError as error:
                self._in_loop(self._on_error, str(error))
            self._closing.wait(self._interval)
        return False

    def _refused(self, error: Exception) -> KafkaError:
        return refused_settings(error, self._config.kafka, remedy="Correct kafka or kafka_consumer")

    def _poll_once(self) -> None:
        for partition, seat in self._seats.items():
            if seat.candidate.is_owner and self._heartbeats_are_possible:
                self._send_heartbeat(partition)
        self._producer.poll(0)
        due = time.monotonic() + self._interval
        while (left := due - time.monotonic()) > 0 and not self._closing.is_set():
            message = self._consumer.poll(left)
            if message is not None:
                self._read(message)
        now = time.monotonic()
        with self._lock:
            for partition, seat in self._seats.items():
                self._tell(seat, seat.candidate.passed(now))
                wanted = seat.candidate.wants_confirmation(now)
                if not self._heartbeats_are_possible and seat.candidate.is_owner:
                    seat.position += 1
                    wanted = True
                if wanted and seat.may_ask(now, self._timeout):
                    self._ask_the_group(partition, seat, now)

    def _send_heartbeat(self, partition: int) -> None:
        try:
            self._producer.produce(
                self._topic,
                partition=partition,
                key=self._member,
                value=repr(time.monotonic()),
                on_delivery=self._heartbeat_sent,
            )
        except (BufferError, KafkaException) as error:
            logger.debug("heartbeat not sent: %s", error)  # it is missed when it is not read back

    def _heartbeat_sent(self, error: BrokerError | None, _: Message) -> None:
        is_untimely = error is not None and error.code() in _UNTIMELY
        if is_untimely or error is None:
            self._on_heartbeat(not is_untimely)
            self._untimely = clocks_differ(self._topic) if is_untimely else None
        if self._untimely is not None:
            self._in_loop(self._on_error, self._untimely)
        if error is not None and error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            self._in_loop(self._on_error, not_allowed("WRITE", "topic", self._topic))

    def _read(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._complain(error)
        elif message.key() == self._member and (seat := self._seats.get(message.partition() or 0)) is not None:
            seat.position = (message.offset() or 0) + 1
            with self._lock:
                seat.candidate.heartbeat_read(float(message.value() or b"nan"))

    def _ask_the_group(self, partition: int, seat: _Seat, now: float) -> None:
        """Commit an offset: the coordinator takes it only from members of the present generation."""
        seat.questions[seat.position] = now
        try:
            question = TopicPartition(self._topic, partition, seat.position)
            self._consumer.commit(offsets=[question], asynchronous=True)
        except KafkaException as error:
            logger.debug("the group was not asked: %s", error)
            seat.questions.clear()

    def _answered(self, error: BrokerError | None, partitions: list[TopicPartition]) -> None:
        now = time.monotonic()
        with self._lock:
            for partition in partitions:
                seat = self._seats.get(partition.partition)
                asked_at = seat.questions.pop(partition.offset, None) if seat is not None else None
                if seat is not None and asked_at is not None and error is None and partition.error is None:
                    if not self._heartbeats_are_possible:
                        seat.candidate.heartbeat_read(asked_at)
                    self._tell(seat, seat.candidate.confirmed(asked_at, now))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # From the end: older heartbeats prove nothing.
        owned = [TopicPartition(partition.topic, partition.partition, OFFSET_END) for partition in partitions]
        consumer.assign(owned)
        if not self._heartbeats_are_possible:
            consumer.pause(owned)  # there is nothing to read
        with self._lock:
            for seat in self._seats_of(partitions):
                self._tell(seat, seat.candidate.assigned(time.monotonic()))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        seats = self._seats_of(partitions)
        with self._lock:
            for seat in seats:
                seat.questions.clear()
                reason = (self._leaves,) if self._leaves is not None else ()
                self._tell(seat, seat.candidate.revoked(*reason))
        deadline = time.monotonic() + self._timeout
        for seat in seats:
            for released in seat.released.values():
                released.wait(max(0.0, deadline - time.monotonic()))
        consumer.unassign()

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Kafka or this process was away for longer than the session timeout."""
        self._lost_session = True
        consumer.unsubscribe()  # or it would join again by itself, under the same name, and take the role back
        self._revoked(consumer, partitions)

    def _seats_of(self, partitions: list[TopicPartition]) -> list[_Seat]:
        return [self._seats[partition.partition] for partition in partitions if partition.partition in self._seats]

    def _tell(self, seat: _Seat, change: Change | None) -> None:
        if change is None or self._closing.is_set():
            return
        for shard, released in seat.released.items():
            if isinstance(change, Lead):
                released.clear()
            self._in_loop(self._changes.put_nowait, (shard, change))

    def _complain(self, error: BrokerError) -> None:
        if error.fatal():  # for example, another took this member's name: only a new consumer can join
            self._lost_session = True
        if error.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
            self._in_loop(self._on_error, f"topic {self._topic} does not exist. Run `airflow-outbox init`")
        elif error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            self._in_loop(self._on_error, not_allowed("READ", "topic", self._topic))
        elif error.code() == BrokerError.GROUP_AUTHORIZATION_FAILED:
            self._in_loop(self._on_error, not_allowed("READ", "group", self._group_id))
        else:
            self._in_loop(self._on_error, explained(error, self._config.kafka))

    def _in_loop(self, callback: Callable[[Any], None], argument: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, argument)
