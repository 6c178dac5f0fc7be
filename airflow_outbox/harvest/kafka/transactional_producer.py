"""A transactional confluent-kafka producer under one transactional id: how it sends, and how it is renewed.

`protocol.producer_state` says what its states mean, and when it needs a new epoch.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from operator import itemgetter
from typing import Any

from confluent_kafka import KafkaError as BrokerError
from confluent_kafka import KafkaException, Producer

from airflow_outbox.errors import KafkaError, RecordsRefusedError, StuckTransactionsError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.admin import LOOK_UP_TIME
from airflow_outbox.harvest.kafka.delivery_reports import DeliveryReport, DeliveryReports
from airflow_outbox.harvest.kafka.error_kinds import ErrorKind, kind_of
from airflow_outbox.harvest.kafka.errors import CLIENT_ERRORS, REFUSALS, not_allowed, raised, refused_settings
from airflow_outbox.harvest.kafka.partitioner import Partitioner
from airflow_outbox.harvest.kafka.producer import PARTITION_BY_KEY, UNKNOWN
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_client import (
    CALL_TIME,
    CALLS_TO_CONNECT,
    CALLS_UNTIL_STUCK,
    connect,
    transactional_settings,
    waits_for_end,
)
from airflow_outbox.harvest.protocol.extents import ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import FIRST, Extent, LedgerRecord
from airflow_outbox.harvest.protocol.producer_state import Call, Complaint, Transaction, smallest_gap
from airflow_outbox.harvest.protocol.same_topics import SameTopics
from airflow_outbox.harvest.worker_thread import Watchdog, Worker
from airflow_outbox.values.extents import TopicAndPartition
from airflow_outbox.values.pages import PARTITION, OutboxRow

_topic = itemgetter(1)
_FLUSH_TIME = 0.2  # once a record is refused, the rest stays unsent: it must not be waited for
_LOOKING_INTERVAL = 0.5  # of records that Kafka does not take: the client waits long for a topic that is deleted
_TOPICS_NAMED = 3
_SERVING_INTERVAL = 1.0  # the client's callbacks can wait this long while nothing is sent


class TransactionalProducer:
    """Publishes transactions one after the other, with records of the ledger in them. One thread makes all calls to the
    client, in turn.

    The class is large because it makes all of these calls: only so can it tell which request may have been sent twice.
    The delivery reports and the state of the transaction are classes of their own.
    """

    def __init__(
        self,
        config: HarvestConfig,
        transactional_id: str,
        *,
        ledger: TopicAndPartition,
        book: TopicCache,
        same: SameTopics,
        on_throttled: Callable[[float], object] = lambda _: None,
        watchdog: Watchdog | None = None,
    ) -> None:
        """With tokens this waits for one. All producers of the term share `same`. `on_throttled` is told for how many
        seconds a quota holds the producer back. `watchdog` watches the thread.

        Raises KafkaError for settings that Kafka's client refuses.
        """
        self._on_throttled = on_throttled
        self._book = book
        self._same = same
        self._ledger = ledger
        self._patience = config.limits.transaction_timeout
        self.transactional_id = transactional_id
        self._settings = transactional_settings(config, transactional_id)
        if book.smallest_max_bytes is not None:  # Kafka refuses a larger batch whole
            self._settings["batch.size"] = min(book.smallest_max_bytes, int(self._settings["batch.size"]))
        self._partitioner = Partitioner(self._settings["partitioner"])
        self._gap = smallest_gap(self._settings)
        self._reports = DeliveryReports(self._settings, ledger=ledger, book=book)
        self._asks_of_each = False
        self._topics: set[str] = set()  # of the open transaction's records
        self._has_committed = False
        self._is_asked_to_commit = False
        self._make()
        self._worker = Worker("outbox-publish", watchdog=watchdog, when_idle=self._serve, interval=_SERVING_INTERVAL)
        self._signs = self._worker.signs
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

    async def publish(self, rows: Sequence[OutboxRow], partitions: Sequence[int] | None = None) -> Sequence[Extent]:
        """Send rows in the open transaction, or in a new one, and wait until Kafka has them. They go into `partitions`,
        one for each, if these are chosen already. Raises KafkaError.
        """
        return await self._worker.call(self._publish, rows, partitions)

    async def write(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> None:
        """Write records into the ledger, and `extents`, and wait until Kafka has them. Raises KafkaError."""
        await self._worker.call(self._write_ahead, records, extents)

    async def commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None = None) -> int:
        """Write records, if there are any, into the ledger, and `extents`; commit. Return the ledger's last offset.
        Raises KafkaError.
        """
        self._is_asked_to_commit = True  # for good, when the caller stops waiting: the call goes on
        try:
            offset = await self._worker.call(self._commit, records, extents)
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
        client_log = self._reports.new_client()
        try:
            callbacks = {"error_cb": self._reports.complain, "throttle_cb": self._throttled}
            self._producer = Producer({**self._settings, **callbacks}, logger=client_log)
        except REFUSALS as error:
            raise refused_settings(error, self._settings, remedy="Correct kafka or kafka_producer") from error

    def _connect(self) -> None:
        self._signs.show(may_be_silent=CALLS_TO_CONNECT * CALL_TIME)
        connect(self._producer)

    def _initialise(self) -> None:
        self._repeat(Call.FENCE, self._producer.init_transactions)

    def _renew(self) -> None:
        old = self._producer
        self._signs.show(may_be_silent=CALL_TIME)  # with tokens it waits for one
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
            raise self._transaction.given_up(Call.BEGIN, self._reports.why(error.args[0])) from error
        self._transaction.succeeded(Call.BEGIN, seconds=0)
        self._asks_of_each = self._book.is_in_doubt
        self._topics = set()
        if self._has_committed:  # before that, a refused record must show by itself
            self._write((FIRST, None))

    def _publish(self, rows: Sequence[OutboxRow], chosen: Sequence[int] | None = None) -> list[Extent]:
        started = time.monotonic()
        self._begin()
        self._transaction.begins(Call.PUBLISH)
        self._reports.begin(rows)
        produce = self._producer.produce
        topics = set(map(_topic, rows))
        self._topics |= topics
        self._require_same(topics)
        known = None if self._asks_of_each else self._book.partitions(topics)
        partitions = None if known is None else chosen or self._partitioner.choose(rows, known)
        counts: Mapping[TopicAndPartition, int]
        reports: Sequence[DeliveryReport | None]
        if partitions is None:
            partitions = chosen or [PARTITION_BY_KEY if row[PARTITION] is None else row[PARTITION] for row in rows]
            counts, reports = {}, [self._reports.delivered] * len(rows)
        else:
            counts, reports = self._reports.edges(rows, partitions, topics)
        headers: list[tuple[str, str | bytes | None]] | None = None
        names_before: list[str | None] | None = []
        values_before: list[str | bytes | None] | None = []
        for (number, topic, key, value, names, values, _, _, _), partition, report in zip(
            rows, partitions, reports, strict=True
        ):
            try:
                # Many records have the same headers as the one before. A record that was not read whole has no names
                # and values: this raises TypeError.
                if names != names_before or values != values_before:
                    headers = None if names == [] else list(zip(names, values))  # type: ignore[arg-type]  # noqa: B905
                    names_before, values_before = names, values
                # Named arguments would cost the client a quarter of the time of the call. 0: it is sent now.
                produce(topic, value, key, partition, report, None, 0, headers)
            except (KafkaException, BufferError, ValueError, TypeError) as error:
                raise self._not_produced(number, topic, error) from error
        self._flush(self._same.ids(topics))
        extents = self._reports.extents(counts)
        if doubtful := self._same.doubtful(extents):
            self._require_unchanged(doubtful)
        self._transaction.succeeded(Call.PUBLISH, seconds=time.monotonic() - started)
        return extents

    def _require_same(self, topics: set[str]) -> None:
        """Raise RecordsRefusedError unless these topics have the ids that they had before in this term."""
        ids = self._book.known_ids(topics)
        if unknown := topics - ids.keys():  # forgotten by another thread since they were looked up
            self._signs.show(may_be_silent=LOOK_UP_TIME)
            try:
                ids |= self._book.topic_ids(unknown)
            except KafkaError as error:
                raise self._given_up(str(error)) from error
        if changed := (topics - ids.keys()) | self._same.sending(ids):
            raise self._changed(changed)

    def _require_unchanged(self, topic_ids: Mapping[str, str]) -> None:
        """Raise RecordsRefusedError unless Kafka says that these topics still have these ids."""
        self._signs.show(may_be_silent=LOOK_UP_TIME)
        try:
            changed = self._book.changed(topic_ids)
        except KafkaError as error:
            raise self._given_up(str(error)) from error
        if changed:
            raise self._changed(changed)

    def _changed(self, topics: set[str]) -> RecordsRefusedError:
        """Give up the producer. Return the error to raise when topics are not those that its records are for."""
        named = ", ".join(sorted(topics)[:_TOPICS_NAMED])
        text = f"topic {named} was deleted, or made again, while records were sent to it. They are sent again"
        self._given_up(text)
        return RecordsRefusedError(text, topics=[*topics], explained=True)

    def _not_produced(self, number: int, topic: str, error: Exception) -> KafkaError:
        """Return the error to raise for a record that the client does not take."""
        reason = error.args[0] if isinstance(error, KafkaException) else error
        if isinstance(reason, BrokerError) and not kind_of(reason).narrows:
            # The transaction has failed meanwhile, because an earlier record was not delivered.
            self._signs.show(may_be_silent=CALL_TIME)
            with contextlib.suppress(*CLIENT_ERRORS):
                self._producer.flush(CALL_TIME)
            if not self._reports.are_refusals and (failure := self._failure()) is not None:
                return self._unreported(failure)
            return self._given_up(reason)
        if isinstance(error, BufferError):
            return self._given_up("the client's queue is full")
        text, is_unclear = str(error), False
        if isinstance(reason, BrokerError):
            text, is_unclear = self._reports.why(reason, topic), kind_of(reason) is ErrorKind.UNCLEAR
        self._book.doubt(topic)
        self._book.is_in_doubt = True
        self._transaction.given_up(Call.PUBLISH, text)
        return RecordsRefusedError(text, records=[number], topics=[topic], unclear=is_unclear)

    def _given_up(self, reason: str | BrokerError) -> KafkaError:
        """Give up the producer. Return the error to raise: for a refused record, or else for this reason."""
        text = reason if isinstance(reason, str) else self._reports.why(reason)
        error = self._transaction.given_up(Call.PUBLISH, text)
        self._book.is_in_doubt = True
        if (refused := self._reports.error()) is not None:
            return refused
        if isinstance(reason, BrokerError) and reason.code() in UNKNOWN:
            self._reports.failed(reason, sent_to=self._topics)
        return self._reports.error() or error

    def _unreported(self, failure: BrokerError) -> KafkaError:
        """Give up the producer: the transaction has failed, and no report of a record says why. Return the error to
        raise.
        """
        self._reports.failed(failure, sent_to=self._topics)
        return self._given_up(failure)

    def _write_ahead(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None) -> None:
        started = time.monotonic()
        self._send_ledger(records, extents)
        self._transaction.succeeded(Call.PUBLISH, seconds=time.monotonic() - started)

    def _commit(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None) -> int:
        started = time.monotonic()
        if records:
            self._send_ledger(records, extents)
        self._repeat(Call.COMMIT, self._producer.commit_transaction, started=started)
        self._book.is_in_doubt = False
        self._has_committed = True
        return self._reports.offset

    def _send_ledger(self, records: Sequence[LedgerRecord], extents: ExtentsToWrite | None) -> None:
        self._begin()
        self._transaction.begins(Call.PUBLISH)
        if extents is not None:  # first: their partition has to be added to the transaction
            self._write_extents(extents)
        for record in records:
            self._write(record)
        self._flush({} if extents is None else {extents.topic: None})
        if self._reports.is_purged:
            reason = self._failure() or BrokerError(BrokerError._PURGE_QUEUE)
            raise self._given_up(reason if reason.code() in UNKNOWN else self._reports.not_written(reason))

    def _write(self, record: LedgerRecord) -> None:
        (topic, partition), (key, value) = self._ledger, record
        try:
            self._producer.produce(topic, key=key, value=value, partition=partition, on_delivery=self._reports.written)
        except KafkaException as error:
            reason = raised(error)
            if reason.code() == BrokerError._STATE:  # the transaction failed before, because of a record
                raise self._given_up(self._failure() or reason) from error
            raise self._given_up(self._reports.not_written(reason)) from error
        except BufferError as error:
            raise self._given_up("the client's queue is full") from error

    def _write_extents(self, extents: ExtentsToWrite) -> None:
        report = self._reports.extents_report(extents)
        try:
            for key, value in extents.records:
                self._producer.produce(
                    extents.topic, key=key, value=value, partition=extents.partition, on_delivery=report
                )
        except KafkaException as error:
            reason = raised(error)
            if reason.code() == BrokerError._STATE:  # the transaction failed before, because of a record
                raise self._given_up(self._failure() or reason) from error
            extents.refused()
            raise self._given_up(self._reports.extents_not_written(reason, extents.topic)) from error
        except BufferError as error:
            raise self._given_up("the client's queue is full") from error

    def _serve(self) -> None:
        """Let the client call back. The next call to it repeats any error."""
        with contextlib.suppress(*CLIENT_ERRORS):
            self._producer.poll(0)

    def _flush(self, topic_ids: Mapping[str, str | None]) -> None:
        """Wait until Kafka has everything that was sent, as long as these topics are there, with these ids if they are
        known.
        """
        started = time.monotonic()
        look_at = started + _LOOKING_INTERVAL
        look: Future[set[str]] | None = None
        failure: BrokerError | None = None
        try:
            while self._producer.flush(_FLUSH_TIME) and not self._reports.are_refusals:
                self._signs.show()
                if failure is not None:  # no report of this round tells more
                    raise self._unreported(failure)
                failure, now = self._failure(), time.monotonic()
                if now > started + self._patience:
                    self._reports.note_late_extents()
                    raise self._given_up(self._reports.complaint or "Kafka did not take the records in time")
                if look is not None and look.done():
                    if changed := look.result():
                        raise self._changed(changed)
                    look, look_at = None, now + _LOOKING_INTERVAL
                elif look is None and topic_ids and now > look_at:
                    look = self._book.look_for_changed(topic_ids)
        except CLIENT_ERRORS as error:
            raise self._given_up(raised(error)) from error
        if self._reports.are_purged and not self._reports.are_refusals:
            raise self._unreported(self._failure() or BrokerError(BrokerError._PURGE_QUEUE))
        if self._reports.are_refusals:
            raise self._given_up(str(self._reports.refused or not_allowed("WRITE", "topic", self._ledger[0])))

    def _repeat(self, call: Call, function: Callable[[float], None], *, started: float | None = None) -> None:
        """Make a call until it succeeds, for as long as it may be made again. Its work may have `started` before."""
        self._transaction.begins(call)
        started = time.monotonic() if started is None else started
        deadline = time.monotonic() + self._patience
        waiting = 0
        while True:
            self._signs.show(may_be_silent=CALL_TIME)
            try:
                function(CALL_TIME)
            except CLIENT_ERRORS as error:
                reason = raised(error)
                waiting = waiting + 1 if waits_for_end(reason) else 0
                if call is Call.FENCE and waiting == CALLS_UNTIL_STUCK:
                    self._transaction.given_up(call, self._reports.why(reason))
                    raise StuckTransactionsError([self.transactional_id]) from error
                complaint = Complaint(
                    self._reports.why(reason), reason.retriable(), reason.txn_requires_abort(), reason.fatal()
                )
                self._transaction.failed(call, complaint, in_time=time.monotonic() < deadline)
            else:
                return self._transaction.succeeded(call, seconds=time.monotonic() - started)

    def _failure(self) -> BrokerError | None:
        """Return why the open transaction has failed, if it has: the client tells that when another is begun."""
        try:
            self._producer.begin_transaction()
        except KafkaException as error:
            reason = raised(error)
            return None if reason.code() == BrokerError._STATE else reason
        return None

    def _throttled(self, event: Any) -> None:
        if event.throttle_time > 0:  # 0 tells that it is over
            self._on_throttled(event.throttle_time)

    def _give_up(self) -> None:
        self._producer.purge(in_queue=True, in_flight=True, blocking=False)
        del self._producer  # here, because the client's end waits for its own threads
