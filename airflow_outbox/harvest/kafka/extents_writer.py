"""Writing a shard's extents on one cluster, for one term.

Extents go out in the transaction of their batch. If they can't be written, records must not wait: batches then go
without, and positions are less exact. So the topic is looked at before it is used, and again now and then while it
can't be used. A topic that passes this and refuses extents all the same makes a transaction fail, and the term with it.
After the second failure the shard's terms do without extents for a while, which doubles with each further failure.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from airflow_outbox.errors import KafkaError, OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.errors import CLIENT_ERRORS
from airflow_outbox.harvest.kafka.extents_reader import ExtentsReader
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.protocol.extents import ExtentsState, ExtentsToWrite
from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.values.pages import TOPIC, OutboxRow

_DONE_WITHOUT_FOR = 30.0
_LONGEST_WITHOUT = 3600.0
_MOST_FAILURES = 2
_PATIENCE = 2.0
_NOT_READ = "what earlier terms have written is not yet read"


@dataclass(slots=True)
class ExtentsFailures:
    """How often in a row a shard's extents were refused in a transaction, and until when (on the monotonic clock) its
    terms do without: each time twice as long, for each attempt holds records back. It lasts as long as the process.

    `tell` is told of each batch why it goes without extents, or None where it has them; `reason` is why the topic could
    not be used when somebody looked last.
    """

    tell: Callable[[str | None], object] = lambda _: None
    count: int = 0
    without_until: float = 0.0
    reason: str = _NOT_READ

    def refused(self) -> None:
        self.count += 1
        if self.count >= _MOST_FAILURES:
            pause = _DONE_WITHOUT_FOR * 2.0 ** min(self.count - _MOST_FAILURES, 10)
            self.without_until = time.monotonic() + min(pause, _LONGEST_WITHOUT)


class ExtentsWriter:
    """Makes the extents' records of one term."""

    def __init__(
        self, config: HarvestConfig, names: KafkaNames, shard: int, book: TopicCache, failures: ExtentsFailures
    ) -> None:
        self._config = config
        self._names = names
        self._topic = names.extents_topic
        self._shard = shard
        self._book = book
        self._failures = failures
        self._topic_ids: deque[dict[str, str]] = deque()  # of each transaction that is begun and not committed
        self._asked_for: set[str] = set()  # the topics whose ids this term knows: they may have been made again before
        self._state: ExtentsState | None = None
        self._opening: asyncio.Task[ExtentsState | None] | None = None
        self._opens_again_at = 0.0
        self._has_waited = False
        self._are_given = False  # in the first transaction that is not committed

    def open(self) -> None:
        """Begin to read what the term goes on from. Call it when the shard's earlier producers are fenced."""
        if self._opening is None and self._state is None:
            self._opening = asyncio.create_task(asyncio.to_thread(self._open))

    def begin(self) -> None:
        """A transaction is begun."""
        self._topic_ids.append({})

    def is_known(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether nothing has to be asked before these rows are sent in the transaction begun last."""
        return {row[TOPIC] for row in rows} <= self._topic_ids[-1].keys()

    def sending(self, rows: Sequence[OutboxRow]) -> None:
        """These rows will be sent in the transaction begun last. May ask Kafka for their topics' ids; raises
        KafkaError.
        """
        known, topics = self._topic_ids[-1], {row[TOPIC] for row in rows}
        found = self._book.topic_ids(topics, again=topics - self._asked_for)
        self._asked_for |= topics
        for topic, topic_id in found.items():
            # Made again within a transaction: some records may be in each of the two.
            known[topic] = topic_id if known.get(topic, topic_id) == topic_id else ""

    async def records(self, entry: Entry | None) -> ExtentsToWrite | None:
        """Return what to write with a batch in the first transaction that is not committed; None: nothing. It is asked
        once for each transaction, also for one without a batch.
        """
        topic_ids = self._topic_ids.popleft() if self._topic_ids else {}
        if entry is None:
            return None
        if (state := await self._opened()) is None:
            self._failures.tell(self._failures.reason)
            return None
        if not (records := state.records(entry, topic_ids)):
            self._failures.tell(f"the ids of its topics are not known, or topic {self._topic} is another outbox's")
            return None
        self._are_given = True
        return ExtentsToWrite(self._topic, self._shard, records, state.written, self._failures.refused)

    async def _opened(self) -> ExtentsState | None:
        """Return what the term goes on from, if it can be told by now. Only a term's first batch waits for it, and not
        for long.
        """
        if self._state is not None:
            return self._state
        if self._opening is None:
            if time.monotonic() > self._opens_again_at:
                self.open()  # for a later batch
            return None
        await asyncio.wait([self._opening], timeout=0 if self._has_waited else _PATIENCE)
        self._has_waited = True
        if self._opening.done():
            self._state, self._opening = self._opening.result(), None
        return self._state

    def committed(self) -> None:
        """The first transaction that was not committed is, and with it its extents, if it had any."""
        if self._are_given:
            self._are_given = False
            self._failures.count = 0
            self._failures.tell(None)

    def close(self) -> None:
        if self._opening is not None:
            self._opening.cancel()

    def _open(self) -> ExtentsState | None:
        """Return what the term goes on from; None: it can't be told, and batches go without extents."""
        self._opens_again_at = time.monotonic() + _DONE_WITHOUT_FOR
        if time.monotonic() < self._failures.without_until:
            count = self._failures.count
            self._failures.reason = f"topic {self._topic} has refused them {count} times in a row. Check its settings"
            return None
        self._failures.reason = _NOT_READ
        try:
            return self._found()
        except (OutboxError, *CLIENT_ERRORS) as error:
            self._failures.reason = str(error)
            return None

    def _found(self) -> ExtentsState:
        reader = ExtentsReader(self._config, self._names, cluster=self._book.cluster)
        try:
            if (partitions := reader.partitions(writes=True)) <= self._shard:
                raise KafkaError(
                    f"topic {self._topic} has {partitions} partitions, and none for shard {self._shard}. Run "
                    "`airflow-outbox init`"
                )
            reaches = reader.reaches([self._shard])[self._shard]
            if not reaches.is_settled:
                raise KafkaError(
                    f"an earlier transaction is open in topic {self._topic}. Try again after "
                    "limits.transaction_timeout, when Kafka has ended it"
                )
            return ExtentsState(reader.last(self._shard, reaches), start=reaches.start)
        finally:
            reader.close()
