"""The port `Election` over a Kafka consumer group: fast NELI's traffic.

protocol/election.py makes the decisions. A thread polls the consumer. At every poll it sends a heartbeat to each
partition that this member owns, and tells the event loop what the candidates decided. Kafka calls the rebalance
callbacks from that poll and waits for them. They are the barrier in which the outgoing leader finishes, for at most the
heartbeat timeout.

No heartbeat can be written to one of Kafka's own topics, on which goharvest's examples elect. There the group's answers
replace the heartbeats. Each shows that this member reaches the coordinator and is in its present generation. They also
do while a quota of the user holds the heartbeats back: then brokers take what is written, but they answer late.

Both prove that this thread and Kafka are well, not that anybody works. So at every poll the event loop is asked for a
sign of life, its own and those of the threads that publish and purge. If one of them gives none for the heartbeat
timeout, something holds it up. This member leaves the group, waits for nothing, and joins again after the next sign; a
thread that is held up is given up with its term.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Any
from uuid import uuid4

from confluent_kafka import OFFSET_END, Consumer, KafkaException, Message, TopicPartition
from confluent_kafka import KafkaError as BrokerError

from airflow_outbox.errors import KafkaError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import Cluster
from airflow_outbox.harvest.kafka.election_settings import consumer_settings, heartbeat_settings
from airflow_outbox.harvest.kafka.errors import (
    CLIENT_ERRORS,
    REFUSALS,
    explained,
    not_allowed,
    raised,
    refused_settings,
)
from airflow_outbox.harvest.kafka.heartbeats import Heartbeats, heartbeat_interval
from airflow_outbox.harvest.protocol.election import Candidate, Change, Lead, Standing
from airflow_outbox.harvest.worker_thread import Watchdog
from airflow_outbox.postgres.names import is_kafkas_own

logger = logging.getLogger(__name__)

_CLOSING_TIME = 5.0
_LEAVING_TIME = 1.0
_LEAVING_POLL = 0.01
_POLL_PAUSE = 0.05


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
    """One member of the group. It joins when `changes` is first iterated.

    The class is large because the thread that polls and Kafka's callbacks share what the group has told.
    """

    def __init__(
        self,
        config: HarvestConfig,
        *,
        topic: str,
        partitions: int,
        group_id: str,
        on_error: Callable[[str], None],
        on_heartbeat: Callable[[float | None], object] = lambda _: None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """`on_error` is called in the event loop of `changes` with Kafka's complaints. `on_heartbeat` is called in some
        thread with when a heartbeat was sent that Kafka took; None if Kafka refused it because of its time. `watchdog`
        watches the threads that a leader depends on.

        Raises KafkaError for settings it refuses. With tokens this waits for one: call it in a thread.
        """
        self._topic = topic
        self._heartbeats_are_possible = not is_kafkas_own(topic)
        self._partitions = partitions
        self._is_cooperative = config.shards > 1
        self._timeout = config.limits.heartbeat_timeout
        self._interval = heartbeat_interval(self._timeout)
        self._on_error = on_error
        self._throttled_until = -math.inf
        self._seats = {
            partition: _Seat(self._timeout, range(partition, config.shards, partitions))
            for partition in range(min(partitions, config.shards))
        }
        self._lock = threading.Lock()  # the polling thread asks candidates, the event loop tells them
        self._resigned: str | None = None
        self._watchdog = watchdog or Watchdog()
        self._polls_without_a_sign = 0  # of the event loop's; not seconds: a process that was stopped loses none
        self._thread_held_up: str | None = None
        self._lost_session = False
        self._client_has_failed = False
        self._place = new_place()
        self._closing = threading.Event()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._changes: asyncio.Queue[tuple[int, Change] | Exception | None] = asyncio.Queue()
        heartbeats = {**heartbeat_settings(config, partitions), "throttle_cb": self._throttled}
        self._config = config
        self._group_id = group_id
        try:
            self._heartbeats = Heartbeats(heartbeats, topic, on_error=self._tell_error, on_heartbeat=on_heartbeat)
            self._consumer = self._new_consumer()
        except REFUSALS as error:
            raise self._refused(error) from error
        if self._heartbeats_are_possible:  # unknown before the first one
            on_heartbeat(None)
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
        if not self._thread.is_alive():  # ending a client may take long, and nobody waits for it
            threading.Thread(target=self._end_clients, name="outbox-election-end", daemon=True).start()

    def _end_clients(self) -> None:
        """Let go of the clients, which hold this object by their callbacks: a garbage collection can't see that."""
        if (heartbeats := vars(self).pop("_heartbeats", None)) is not None:  # it may be closed twice
            heartbeats.end()
            del self._consumer

    def _seat(self, shard: int) -> _Seat:
        return self._seats[shard % self._partitions]

    def _run(self) -> None:
        try:
            while not self._closing.is_set():
                if self._heartbeats.untimely is not None:
                    self._ask_the_time()
                elif self._leaves is None:
                    self._be_a_member()
                else:
                    self._ask_the_loop()
                    self._closing.wait(self._interval)
        except Exception as bug:
            self._in_loop(self._changes.put_nowait, bug)
        except CLIENT_ERRORS as bug:  # those that the clause above does not catch
            self._in_loop(self._changes.put_nowait, KafkaError(raised(bug).str()))

    def _new_consumer(self) -> Consumer:
        settings = consumer_settings(self._config, self._group_id, place=self._place)
        callbacks = {"error_cb": self._complain, "on_commit": self._answered, "throttle_cb": self._throttled}
        return Consumer({**settings, **callbacks}, logger=logger)

    def _be_a_member(self) -> None:
        self._lost_session, failed_before, began = False, self._client_has_failed, time.monotonic()
        try:
            self._attend()
            self._client_has_failed = False
        except CLIENT_ERRORS as error:
            self._client_has_failed = True
            self._give_up_the_client(raised(error))
        # Its own late request may have fenced it. Soon after that, another process has the same name: a copy of this
        # machine.
        failed_soon = failed_before and time.monotonic() - began < self._config.limits.session_timeout
        may_keep_its_place = self._lost_session and not (failed_soon and self._client_has_failed)
        if not (may_keep_its_place and self._still_has_its_place()):
            self._place = new_place()
        while not self._closing.is_set():
            try:
                self._consumer = self._new_consumer()
                return
            except REFUSALS as error:  # for example without a token now
                self._tell_error(str(self._refused(error)))
                self._closing.wait(1)

    def _attend(self) -> None:
        """Poll until this member leaves, or has lost its place in the group."""
        self._consumer.subscribe([self._topic], on_assign=self._assigned, on_revoke=self._revoked, on_lost=self._lost)
        while not self._lost_session and not self._leaves and not self._closing.is_set():
            self._poll_once()
        if not self._lost_session:
            self._leave()
        self._consumer.close()

    def _give_up_the_client(self, failure: BrokerError) -> None:
        """The client has failed for good: only another one can join."""
        self._lost_session = True
        self._tell_error(f"the group's member has failed, and joins again: {explained(failure, self._config.kafka)}")
        owned = [seat for seat in self._seats.values() if seat.candidate.is_owner]
        self._let_go(owned, "Kafka's client of the election has failed")
        with contextlib.suppress(*CLIENT_ERRORS):
            self._consumer.close()
        self._closing.wait(self._interval)

    @property
    def _leaves(self) -> str | None:
        """Why this member lets others lead."""
        return self._resigned or self._heartbeats.untimely or self._held_up

    @property
    def _held_up(self) -> str | None:
        """Why this member can't be relied on."""
        is_loop = self._polls_without_a_sign * self._interval > self._timeout
        thread = "event loop" if is_loop else self._thread_held_up
        return thread and f"something has held up the harvester's {thread} for {self._timeout:g} s"

    def _ask_the_loop(self) -> None:
        self._polls_without_a_sign += 1
        if self._polls_without_a_sign == 1:  # or it has not answered the last question
            self._in_loop(self._note_signs, None)

    def _note_signs(self, _: None) -> None:
        self._polls_without_a_sign = 0
        name = self._watchdog.held_up(passed=self._interval, timeout=self._timeout)
        self._thread_held_up = name and f"thread {name}"

    def _ask_the_time(self) -> None:
        """Send heartbeats only to find out whether Kafka takes this member's time again."""
        self._heartbeats.send(min(self._seats))
        self._heartbeats.poll(self._interval)
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
        untold_since: float | None = None
        while not self._closing.is_set():
            try:
                # A client that could not reach a broker may not learn for minutes that it is back: each asks once.
                members = Cluster(self._config.kafka).members(self._group_id, timeout=self._timeout)
                if members is not None:
                    return any(member.startswith(self._place) for member in members)
                untold_since = untold_since or time.monotonic()
                if time.monotonic() - untold_since > self._config.limits.session_timeout:
                    return False
            except KafkaError as error:
                self._tell_error(str(error))
            self._closing.wait(self._interval)
        return False

    def _refused(self, error: Exception) -> KafkaError:
        return refused_settings(error, self._config.kafka, remedy="Correct kafka or kafka_consumer")

    def _poll_once(self) -> None:
        self._ask_the_loop()
        for partition, seat in self._seats.items():
            if seat.candidate.is_owner and self._heartbeats_are_possible:
                self._heartbeats.send(partition)
        self._heartbeats.poll(0)
        due = time.monotonic() + self._interval
        while (left := due - time.monotonic()) > 0 and not self._closing.is_set():
            # The client's own waits go by the clock: when that is set back by an hour, they last for an hour.
            message = self._consumer.poll(0)
            if message is not None:
                self._read(message)
            else:
                self._closing.wait(min(left, _POLL_PAUSE))
        if not self._lost_session:
            self._consumer.assignment()  # wakes the client's own thread, without which the group would miss this member
        now = time.monotonic()
        with self._lock:
            for partition, seat in self._seats.items():
                self._tell(seat, seat.candidate.passed(now))
                wanted = seat.candidate.wants_confirmation(now)
                if self._goes_by_the_group and seat.candidate.is_owner:
                    if not self._heartbeats_are_possible:
                        seat.position += 1
                    wanted = True
                if wanted and seat.may_ask(now, self._timeout):
                    self._ask_the_group(partition, seat, now)

    @property
    def _goes_by_the_group(self) -> bool:
        """Whether the group's answers replace the heartbeats."""
        return not self._heartbeats_are_possible or time.monotonic() < self._throttled_until

    def _throttled(self, event: Any) -> None:
        """Kafka holds this client's requests back for this many seconds; by then it has given up those that wait."""
        if event.throttle_time > 0:
            self._throttled_until = time.monotonic() + event.throttle_time + 2 * self._timeout

    def _read(self, message: Message) -> None:
        error = message.error()
        if error is not None:
            self._complain(error)
            return
        seat, sent_at = self._seats.get(message.partition() or 0), self._heartbeats.sent_at(message)
        if seat is not None and sent_at is not None:
            seat.position = (message.offset() or 0) + 1
            with self._lock:
                seat.candidate.heartbeat_read(sent_at)

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
                    if self._goes_by_the_group:
                        seat.candidate.heartbeat_read(asked_at)
                    self._tell(seat, seat.candidate.confirmed(asked_at, now))

    def _assigned(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        # From the end: older heartbeats prove nothing.
        owned = [TopicPartition(partition.topic, partition.partition, OFFSET_END) for partition in partitions]
        if self._is_cooperative:
            consumer.incremental_assign(owned)
        else:
            consumer.assign(owned)
        if not self._heartbeats_are_possible:
            consumer.pause(owned)  # there is nothing to read
        with self._lock:
            for seat in self._seats_of(partitions):
                self._tell(seat, seat.candidate.assigned(time.monotonic()))

    def _revoked(self, consumer: Consumer, partitions: list[TopicPartition], *reasons: str) -> None:
        self._let_go(self._seats_of(partitions), *(reasons if self._leaves is None else (self._leaves,)))
        if self._is_cooperative:
            consumer.incremental_unassign(partitions)
        else:
            consumer.unassign()

    def _let_go(self, seats: list[_Seat], *reason: str) -> None:
        """Tell leaders that they are none any more, and wait until they have finished, unless they can't hear it."""
        with self._lock:
            for seat in seats:
                seat.questions.clear()
                self._tell(seat, seat.candidate.revoked(*reason))
        # Nothing is polled meanwhile. Shards that this member keeps have to hear of themselves again in time.
        keeps_some = any(seat.candidate.is_owner for seat in self._seats.values())
        deadline = time.monotonic() + (self._timeout / 2 if keeps_some else self._timeout)
        for seat in seats if self._held_up is None else ():
            for released in seat.released.values():
                released.wait(max(0.0, deadline - time.monotonic()))

    def _lost(self, consumer: Consumer, partitions: list[TopicPartition]) -> None:
        """Kafka or this process was away for longer than the session timeout."""
        self._lost_session = True
        with contextlib.suppress(*CLIENT_ERRORS):  # a client that has failed refuses it
            consumer.unsubscribe()  # or it would join again by itself, under the same name, and take the role back
        silence = self._config.limits.session_timeout
        self._revoked(consumer, partitions, f"the group has not heard from this member for {silence:g} s")

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
        if error.fatal() or error.code() == BrokerError._FATAL:  # for example, another took this member's name
            raise KafkaException(error)
        if error.code() == BrokerError.UNKNOWN_TOPIC_OR_PART:
            self._tell_error(f"topic {self._topic} does not exist. Run `airflow-outbox init`")
        elif error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED:
            self._tell_error(not_allowed("READ", "topic", self._topic))
        elif error.code() == BrokerError.GROUP_AUTHORIZATION_FAILED:
            self._tell_error(not_allowed("READ", "group", self._group_id))
        else:
            self._tell_error(explained(error, self._config.kafka))

    def _tell_error(self, text: str) -> None:
        self._in_loop(self._on_error, text)

    def _in_loop(self, callback: Callable[[Any], None], argument: object) -> None:
        if self._loop is not None and not self._loop.is_closed():
            self._loop.call_soon_threadsafe(callback, argument)
