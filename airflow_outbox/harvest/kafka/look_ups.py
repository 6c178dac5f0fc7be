"""Examining records without holding others up: a topic that takes long to be looked up waits alone.

    a topic is not known ──► wanted ──► a round looks up all that are wanted ──► known
                                └──► the round takes long: its records are set aside untried ──► retried when parked

There is one round at a time. Topics that are wanted while it lasts are for the next one, so that rounds keep pace with
new topics however slow Kafka is. Records wait `_PATIENCE` for a round; after one that took longer only
`_LITTLE_PATIENCE`, until a round is quick again. A topic that was known until lately counts as unchanged meanwhile. As
long as no topic is known, there is nobody to hold up, and the answer is waited for.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection, Mapping, Sequence

from airflow_outbox.harvest.kafka.record_size import Row
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.worker_thread import Worker
from airflow_outbox.values.pages import ID, TOPIC
from airflow_outbox.values.refusals import Cause, Refusal

_PATIENCE = 2.0  # seconds; Kafka answers within hundredths of one, on a busy machine within one
_LITTLE_PATIENCE = 0.05


class LookUps:
    """Examines the records of one term. Methods raise KafkaError."""

    def __init__(self, book: TopicCache) -> None:
        self._book = book
        self._wanted: set[str] = set()
        self._round: asyncio.Task[None] | None = None
        self._began_at = 0.0
        self._patience = _PATIENCE
        self._examining = Worker("outbox-examine")
        self._examining_again = Worker("outbox-ask-again")  # parked records hold nothing else up

    async def examine(self, rows: Sequence[Row], *, again: bool = False) -> Mapping[int, Refusal]:
        """Return the refusals by row id. `again` looks all topics of the rows up once more, however long that takes."""
        if again:
            return await self._examining_again.call(self._book.examine, rows, again=True)
        late = await self._late({row[TOPIC] for row in rows})
        if not late:
            return await self._examining.call(self._book.examine, rows, again=False)
        known = [row for row in rows if row[TOPIC] not in late]
        found = await self._examining.call(self._book.examine, known, again=False)
        return {**found, **{row[ID]: _untried(row[TOPIC]) for row in rows if row[TOPIC] in late}}

    def end(self) -> None:
        """Examine no more. Nobody waits for a question that is under way."""
        if self._round is not None:
            self._round.cancel()
        self._examining.end()
        self._examining_again.end()

    async def _late(self, topics: Collection[str]) -> set[str]:
        """Wait until these topics are known. Return those that take long."""
        loop = asyncio.get_running_loop()
        while unknown := self._book.unknown(topics):
            self._wanted |= unknown
            if self._round is None or self._round.done():
                self._round = asyncio.create_task(self._look_up())
                self._round.add_done_callback(lambda task: task.cancelled() or task.exception())  # for whoever waits
                self._began_at = loop.time()
            left = self._began_at + self._patience - loop.time() if self._book.knows_some else None
            await asyncio.wait([self._round], timeout=None if left is None else max(0.0, left))
            if not self._round.done():
                return self._book.unknown(unknown, believing=True)
            self._round.result()
        return set()

    async def _look_up(self) -> None:
        """Look up all topics that are wanted."""
        wanted, self._wanted = self._wanted, set()
        worker = Worker("outbox-look-up")
        try:
            await worker.call(self._book.look_up, wanted)
        finally:
            worker.end()
            took = asyncio.get_running_loop().time() - self._began_at
            self._patience = _PATIENCE if took < _PATIENCE else _LITTLE_PATIENCE


def _untried(topic: str) -> Refusal:
    return Refusal(
        Cause.UNTRIED,
        f"Kafka takes long to tell about topic {topic}, and others do not wait for that; it is tried a little later",
    )
