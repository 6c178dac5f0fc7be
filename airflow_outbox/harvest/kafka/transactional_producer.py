"""A transactional confluent-kafka producer under one transactional id: how it sends, and how it is renewed.

`protocol.producer_state` says what its states mean, and when it needs a new epoch.
"""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from operator import itemgetter
from typing import Any, cast

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, Message, Producer

from airflow_outbox.errors import KafkaError, PublishError, RecordsRefusedError, StuckTransactionsError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.errors import (
    CLIENT_ERRORS,
    REFUSALS,
    clocks_differ,
    explained,
    not_allowed,
    raised,
    refused_settings,
)
from airflow_outbox.harvest.kafka.partitioner import Partitioner
from airflow_outbox.harvest.kafka.producer import PARTITION_BY_KEY, REFUSED, producer_settings, shown
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.protocol.ledger import FIRST, Extent, LedgerRecord
from airflow_outbox.harvest.protocol.producer_state import Call, Complaint, Transaction, smallest_gap
from airflow_outbox.harvest.protocol.turns import Place
from airflow_outbox.harvest.worker import Worker
from airflow_outbox.values.pages import SIZE, OutboxRow

logger = logging.getLogger(__name__)

Report = Callable[[BrokerError | None, Message], None]

_BACKOFF = {"retry.backoff.ms": 500, "retry.backoff.max.ms": 1000}
_topic = itemgetter(1)
_NO_TOPIC = "?"
_ERRORS = 3  # syslog's number, as the client counts
_TOPICS_NAMED = 3
_FLUSH_TIME = 0.2  # once a record is refused, the rest stays unsent: it must not be waited for
_SERVING_INTERVAL = 1.0  # the client's callbacks can wait this long while nothing is sent
CALLS_UNTIL_STUCK = 2  # in a row that wait for an earlier transaction to end
CALL_TIME = 5.0  # a call to the client returns after this long, and is made again until its deadline


def transactional_settings(config: HarvestConfig, transactional_id: str) -> dict[str, Any]:
    """Return the producer's settings: those of any producer, and those that transactions need."""
    timeout = int(config.limits.transaction_timeout * 1000)
    settings = producer_settings(config)
    return {
        **settings,
        # A batch is flushed when its last record is sent: nothing waits that long.
        "linger.ms": config.kafka_producer.get("linger.ms", config.kafka.get("linger.ms", 5)),
        # Only the client's log names the topics that Kafka keeps out of a transaction.
        "log_level": max(_ERRORS, int(settings.get("log_level", _ERRORS + 3))),
        "transactional.id": transactional_id,
        "transaction.timeout.ms": timeout,
        "delivery.timeout.ms": min(timeout, int(settings["delivery.timeout.ms"])),
        "socket.timeout.ms": min(timeout - 1000, 60_000),
        # The client's retry delay bounds how long a call may last without a new epoch after it.
        **{name: settings.get(name, value) for name, value in _BACKOFF.items()},
    }


def fence_producer(config: HarvestConfig, transactional_id: str, *, calls: int = CALLS_UNTIL_STUCK) -> None:
    """End the transaction of every producer with that id, and keep them from new ones.

    Raises KafkaError; StuckTransactionsError when the end of a transaction is decided, and it has not ended after so
    many calls.
    """
    settings = transactional_settings(config, transactional_id)
    complaints: list[str] = []

    def complain(error: BrokerError) -> None:
        complaints.append(explained(error, settings))

    try:
        producer = Producer({**settings, "error_cb": complain}, logger=logger)
    except REFUSALS as error:
        raise refused_settings(error, settings, remedy="Correct kafka or kafka_producer") from error
    connect(producer)
    deadline = time.monotonic() + config.limits.transaction_timeout
    waiting = 0
    while True:
        try:
            return producer.init_transactions(CALL_TIME)
        except CLIENT_ERRORS as error:
            reason = raised(error)
            waiting = waiting + 1 if _waits_for_end(reason) else 0
            if waiting == calls:
                raise StuckTransactionsError([transactional_id]) from error
            if not reason.retriable() or time.monotonic() > deadline:
                raise KafkaError(complaints[-1] if complaints else _refusal(reason, transactional_id)) from error


def _waits_for_end(error: BrokerError) -> bool:
    """Whether the coordinator has decided how the last transaction ends, but not yet written all of its markers."""
    return error.code() == BrokerError.CONCURRENT_TRANSACTIONS


def connect(producer: Producer) -> None:
    """Let a new client connect before it initialises transactions: one that is not connected tries again half a second
    later. After two requests it is connected. They ask for an impossible topic, so that no broker makes one.
    """
    with contextlib.suppress(*CLIENT_ERRORS):
        for _ in range(2):
            producer.list_topics(_NO_TOPIC, CALL_TIME)


def _refusal(error: BrokerError, transactional_id: str) -> str:
    if error.code() == BrokerError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
        return not_allowed("WRITE", "transactional-id", transactional_id)
    return error.str() or error.name()


class _Additions(logging.Handler):
    """The topics that Kafka kept out of the transaction, and why, and those that found their records `untimely`.

    These are read from the client's log, since its error names none. Everything that it logs is passed on.
    """

    _UNTIMELY = re.compile(r"ProduceRequest for (\S+) \[\d+\] .*\(INVALID_TIMESTAMP\)")
    _LINE = re.compile(r'Failed to add partition "([^"]+)" \[\d+\] to transaction: (.*)')
    _REASONS = frozenset(BrokerError(code).str() for code in REFUSED)

    def __init__(self) -> None:
        super().__init__()
        self.refused: dict[str, str] = {}
        self.untimely: set[str] = set()
        self.logger = logging.Logger(logger.name, logging.WARNING)
        self.logger.addHandler(self)

    def emit(self, record: logging.LogRecord) -> None:
        found = self._LINE.search(record.getMessage())
        if found is not None and found[2] in self._REASONS:  # other reasons follow from these, or hit all topics
            self.refused[found[1]] = found[2]
        if (found := self._UNTIMELY.search(record.getMessage())) is not None:
            self.untimely.add(found[1])
        if logger.isEnabledFor(record.levelno):
            logger.handle(record)


class TransactionalProducer:
    """Publishes transactions one after the other, with records of the ledger in them. One thread makes all calls to the
    client, in turn.
    """

    def __init__(
        self,
        config: HarvestConfig,
        transactional_id: str,
        *,
        ledger: Place,
        book: TopicCache,
        on_throttled: Callable[[float], object] = lambda _: None,
    ) -> None:
        """With tokens this waits for one. `on_throttled` is told for how many seconds a quota holds the producer back.

        Raises KafkaError for settings that Kafka's client refuses.
        """
        self._on_throttled = on_throttled
        self._book = book
        self._ledger = ledger
        self._patience = config.limits.transaction_timeout
        self.transactional_id = transactional_id
        self._settings = transactional_settings(config, transactional_id)
        if book.smallest_max_bytes is not None:  # Kafka refuses a larger batch whole
            self._settings["batch.size"] = min(book.smallest_max_bytes, int(self._settings["batch.size"]))
        self._partitioner = Partitioner(self._settings["partitioner"])
        self._gap = smallest_gap(self._settings)
        self._complaint: str | None = None
        self._extents: dict[Place, list[int]] = {}
        self._asks_of_each = False
        self._is_alone = False  # the record being sent
        self._has_committed = False
        self._is_asked_to_commit = False
        self._refused: KafkaError | None = None
        self._offset = 0
        self._purged = False  # whether a failed transaction took an entry of the ledger with it
        self._make()
        self._worker = Worker("outbox-publish", when_idle=self._serve, interval=_SERVING_INTERVAL)
        self._worker.run(self._connect)

    @property
    def needs_epoch(self) -> bool:
        """Whether a request of the last transaction may have been sent twice: `renew` before the next one."""
        return self._transaction.needs_epoch

    @property
    def is_uncertain(self) -> bool:
        """Whether a commit was asked for and is not known to be acknowledged."""
        return self._is_asked_to_commit or self._transaction.is_uncertain

    async def fence(self) -> None:
        """End the transaction of every earlier producer with the id, and keep them from new ones. Raises KafkaError."""
        await self._worker.call(self._initialise)

    async def renew(self) -> None:
        """Replace a producer that has no transaction open by one with a new epoch. Raises KafkaError."""
        await self._worker.call(self._renew)

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        """Send rows in the open transaction, or in a new one, and wait until Kafka has them. Raises KafkaError."""
        return await self._worker.call(self._publish, rows)

    async def commit(self, records: Sequence[LedgerRecord]) -> int:
        """Write records into the ledger, and commit. Return the last one's offset there. Raises KafkaError."""
        self._is_asked_to_commit = True  # for good, when the caller stops waiting: the call goes on
        try:
            offset = await self._worker.call(self._commit, records)
        except KafkaError:
            self._is_asked_to_commit = False
            raise
        self._is_asked_to_commit = False
        return offset

    def close(self) -> None:
        """Give up the open transaction, and end. Waits for nothing."""
        self._worker.run(self._give_up)
        self._worker.end()

    def _make(self) -> None:
        self._transaction = Transaction(gap=self._gap)
        self._additions = _Additions()
        try:
            callbacks = {"error_cb": self._complain, "throttle_cb": self._throttled}
            self._producer = Producer({**self._settings, **callbacks}, logger=self._additions.logger)
        except REFUSALS as error:
            raise refused_settings(error, self._settings, remedy="Correct kafka or kafka_producer") from error

    def _connect(self) -> None:
        connect(self._producer)

    def _initialise(self) -> None:
        self._repeat(Call.FENCE, self._producer.init_transactions)

    def _renew(self) -> None:
        old = self._producer
        self._make()
        old.purge(in_queue=True, in_flight=True, blocking=False)
        del old  # here, because the client's end waits for its own threads
        self._connect()
        self._initialise()

    def _begin(self) -> None:
        """Begin a Kafka transaction, unless one is open."""
        if self._transaction.is_open:
            return
        self._transaction.begins(Call.BEGIN)
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            raise self._transaction.given_up(Call.BEGIN, self._why(error.args[0])) from error
        self._transaction.succeeded(Call.BEGIN, seconds=0)
        self._asks_of_each = self._book.is_in_doubt
        if self._has_committed:  # before that, a refused record must show by itself
            self._write((FIRST, None))

    def _publish(self, rows: Sequence[OutboxRow]) -> list[Extent]:
        started = time.monotonic()
        self._begin()
        self._transaction.begins(Call.PUBLISH)
        self._extents.clear()
        self._is_alone = len(rows) == 1
        produce = self._producer.produce
        topics = set(map(_topic, rows))
        known = None if self._asks_of_each else self._book.partitions(topics)
        partitions = None if known is None else self._partitioner.choose(rows, known)
        counts: Mapping[Place, int]
        reports: Sequence[Report | None]
        if partitions is None:
            partitions = [PARTITION_BY_KEY if row[6] is None else row[6] for row in rows]
            counts, reports = {}, [self._delivered] * len(rows)
        else:
            counts, reports = self._edges(rows, partitions, topics)
        for (number, topic, key, value, names, values, _, _, _), partition, report in zip(
            rows, partitions, reports, strict=True
        ):
            try:
                produce(
                    topic,
                    value,
                    key,
                    partition,
                    on_delivery=report,
                    # A record that was not read whole has no names and values: this raises TypeError.
                    headers=None if names == [] else list(zip(names, values)),  # type: ignore[arg-type]  # noqa: B905
                )
            except (KafkaException, BufferError, ValueError, TypeError) as error:
                raise self._not_produced(number, topic, error) from error
        self._flush()
        self._transaction.succeeded(Call.PUBLISH, seconds=time.monotonic() - started)
        return [
            Extent(topic, partition, first, last, counts.get((topic, partition), reported))
            for (topic, partition), (first, last, reported) in self._extents.items()
        ]

    def _edges(
        self, rows: Sequence[OutboxRow], partitions: Sequence[int], topics: Collection[str]
    ) -> tuple[Mapping[Place, int], list[Report | None]]:
        """Return how many records go to each partition, and each record's report, if Kafka is asked where it went.

        It is asked about the first and the last record of a partition, and about those that may be too large.
        """
        counts: Mapping[Place, int]
        places: Sequence[int | Place]
        if len(topics) == 1:  # counting numbers is faster than pairs
            (topic,) = topics
            counts = {(topic, partition): count for partition, count in Counter(partitions).items()}
            places = partitions
        else:
            places = found = list(zip(map(_topic, rows), partitions, strict=True))
            counts = Counter(found)
        numbers = range(len(places))
        last = dict(zip(places, numbers, strict=True))
        first = dict(zip(reversed(places), reversed(numbers), strict=True))
        reports: list[Report | None] = [None] * len(places)
        for number in (*first.values(), *last.values(), *self._large(rows)):
            reports[number] = self._delivered
        return counts, reports

    def _large(self, rows: Sequence[OutboxRow]) -> list[int]:
        """Return the places of rows that a broker may find too large."""
        limit = self._book.smallest_max_bytes
        return [] if limit is None else [place for place, row in enumerate(rows) if row[SIZE] > limit // 2]

    def _not_produced(self, number: int, topic: str, error: Exception) -> KafkaError:
        """Return the error to raise for a record that the client does not take."""
        reason = error.args[0] if isinstance(error, KafkaException) else error
        if isinstance(reason, BrokerError) and reason.code() not in REFUSED:
            # The transaction has failed meanwhile, because an earlier record was not delivered.
            with contextlib.suppress(*CLIENT_ERRORS):
                self._producer.flush(CALL_TIME)
            return self._given_up(self._why(reason, topic))
        if isinstance(error, BufferError):
            return self._given_up("the client's queue is full")
        text = self._why(reason, topic) if isinstance(reason, BrokerError) else str(error)
        self._book.doubt(topic)
        self._book.is_in_doubt = True
        self._transaction.given_up(Call.PUBLISH, text)
        return RecordsRefusedError(text, records=[number])

    def _given_up(self, reason: str) -> KafkaError:
        """Give up the producer. Return the error to raise: for a refused record, or else for this reason."""
        error = self._transaction.given_up(Call.PUBLISH, reason)
        self._book.is_in_doubt = True
        return self._untimely_topics() or self._refused_topics() or self._refused or error

    def _untimely_topics(self) -> KafkaError | None:
        """Return the error to raise when Kafka refused records because of their time. Tell the book the topics."""
        topics = sorted(self._additions.untimely)
        if self._ledger[0] in topics:  # so nothing can be set aside
            return KafkaError(f"the ledger was not written: {clocks_differ(self._ledger[0])}")
        for topic in topics:
            self._book.found_untimely(topic)
        return KafkaError(clocks_differ(topics[0])) if topics else None

    def _refused_topics(self) -> RecordsRefusedError | None:
        """Return the error to raise when Kafka kept topics out of the transaction. Tell the book the topics."""
        topics = {topic: why for topic, why in self._additions.refused.items() if topic != self._ledger[0]}
        for topic, why in topics.items():
            self._book.found_refused(topic, why)
        if not topics:
            return None
        named = ", ".join(sorted(topics)[:_TOPICS_NAMED])
        return RecordsRefusedError(f"Kafka refuses transactions to topic {named}", explained=True)

    def _commit(self, records: Sequence[LedgerRecord]) -> int:
        started = time.monotonic()
        self._begin()
        self._transaction.begins(Call.PUBLISH)
        for record in records:
            self._write(record)
        self._flush()
        if self._purged:
            raise self._given_up(self._not_written(self._failure() or BrokerError(BrokerError._PURGE_QUEUE)))
        self._repeat(Call.COMMIT, self._producer.commit_transaction, started=started)
        self._book.is_in_doubt = False
        self._has_committed = True
        return self._offset

    def _write(self, record: LedgerRecord) -> None:
        (topic, partition), (key, value) = self._ledger, record
        try:
            self._producer.produce(topic, key=key, value=value, partition=partition, on_delivery=self._written)
        except KafkaException as error:
            reason = raised(error)
            if reason.code() == BrokerError._STATE:  # the transaction failed before, because of a record
                raise self._given_up(self._why(self._failure() or reason)) from error
            raise self._given_up(self._not_written(reason)) from error
        except BufferError as error:
            raise self._given_up("the client's queue is full") from error

    def _serve(self) -> None:
        """Let the client call back. The next call to it repeats any error."""
        with contextlib.suppress(*CLIENT_ERRORS):
            self._producer.poll(0)

    def _flush(self) -> None:
        """Wait until Kafka has everything that was sent."""
        deadline = time.monotonic() + self._patience
        try:
            while self._producer.flush(_FLUSH_TIME) and self._refused is None and not self._additions.refused:
                if time.monotonic() > deadline:
                    raise self._given_up(self._complaint or "Kafka did not take the records in time")
        except CLIENT_ERRORS as error:
            raise self._given_up(self._why(raised(error))) from error
        if self._refused is not None or self._additions.refused:
            raise self._given_up(str(self._refused or not_allowed("WRITE", "topic", self._ledger[0])))

    def _repeat(self, call: Call, function: Callable[[float], None], *, started: float | None = None) -> None:
        """Make a call until it succeeds, for as long as it may be made again. Its work may have `started` before."""
        self._transaction.begins(call)
        started = time.monotonic() if started is None else started
        deadline = time.monotonic() + self._patience
        waiting = 0
        while True:
            try:
                function(CALL_TIME)
            except CLIENT_ERRORS as error:
                reason = raised(error)
                waiting = waiting + 1 if _waits_for_end(reason) else 0
                if call is Call.FENCE and waiting == CALLS_UNTIL_STUCK:
                    self._transaction.given_up(call, self._why(reason))
                    raise StuckTransactionsError([self.transactional_id]) from error
                complaint = Complaint(
                    self._why(reason), reason.retriable(), reason.txn_requires_abort(), reason.fatal()
                )
                self._transaction.failed(call, complaint, in_time=time.monotonic() < deadline)
            else:
                return self._transaction.succeeded(call, seconds=time.monotonic() - started)

    def _delivered(self, error: BrokerError | None, message: Message) -> None:
        topic = cast("str", message.topic())
        if error is not None:
            if error.code() == BrokerError.INVALID_TIMESTAMP:
                self._additions.untimely.add(topic)
            if error.code() in REFUSED:
                self._doubt(error, message)
                known = isinstance(self._refused, RecordsRefusedError)
                self._refused = self._refused if known else RecordsRefusedError(self._why(error, topic), explained=True)
            elif self._refused is None and error.code() != BrokerError._PURGE_QUEUE:
                self._book.unanswered(topic)
                name = f"a record (topic {topic}, key {shown(message.key())})"
                self._refused = PublishError(f"{name} was not published: {self._why(error, topic)}")
            return
        partition, offset = cast("int", message.partition()), cast("int", message.offset())
        extent = self._extents.get((topic, partition))
        if extent is None:
            self._extents[topic, partition] = [offset, offset, 1]
        else:
            extent[1] = offset
            extent[2] += 1

    def _doubt(self, error: BrokerError, message: Message) -> None:
        topic = cast("str", message.topic())
        if error.code() == BrokerError.MSG_SIZE_TOO_LARGE:
            batch_size = 0 if self._is_alone else int(self._settings["batch.size"])
            self._book.found_too_large(topic, message.key(), message.value(), batch_size=batch_size)
        self._book.doubt(topic)

    def _written(self, error: BrokerError | None, message: Message) -> None:
        if error is None:
            self._offset = cast("int", message.offset())
        elif error.code() == BrokerError._PURGE_QUEUE:
            self._purged = True
        elif error.code() == BrokerError.INVALID_TIMESTAMP:
            self._additions.untimely.add(self._ledger[0])
            self._refused = KafkaError(clocks_differ(self._ledger[0]))
        elif self._refused is None:
            self._refused = KafkaError(self._not_written(error))

    def _not_written(self, error: BrokerError) -> str:
        topic, _ = self._ledger
        return f"the ledger was not written: {self._why(error, topic)}. Check topic {topic}"

    def _failure(self) -> BrokerError | None:
        """Return why the open transaction has failed, if it has: the client tells that when another is begun."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            return raised(error)
        return None

    def _why(self, error: BrokerError, topic: str | None = None) -> str:
        if error.code() == BrokerError.TOPIC_AUTHORIZATION_FAILED and topic is not None:
            return not_allowed("WRITE", "topic", topic)
        if error.code() in (BrokerError._MSG_TIMED_OUT, BrokerError._TIMED_OUT) and self._complaint is not None:
            return self._complaint
        return _refusal(error, self.transactional_id)

    def _complain(self, error: BrokerError) -> None:
        self._complaint = explained(error, self._settings)

    def _throttled(self, event: Any) -> None:
        if event.throttle_time > 0:  # 0 tells that it is over
            self._on_throttled(event.throttle_time)

    def _give_up(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        del self._producer  # here, because the client's end waits for its own threads
