"""The logs of a term: one on each cluster that counts, the primary's first (`protocol.commitment`).

All logs are asked at the same time, and the answer is there when all have answered. A step that is for the primary or
for a backup alone is asked of that log (`logs[number]`). A single log is called as if there were no other: no task is
made, and nothing is compared.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from dataclasses import replace
from operator import itemgetter
from typing import Any, TypeVar

from airflow_outbox.errors import ConfigurationError, naming_cluster
from airflow_outbox.harvest.ports import TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.protocol.clusters import require_same_places
from airflow_outbox.harvest.protocol.commitment import PRIMARY
from airflow_outbox.harvest.protocol.ledger import Extent
from airflow_outbox.values.fence import Fence
from airflow_outbox.values.pages import ID, SIZE, TOPIC, OutboxRow
from airflow_outbox.values.refusals import Cause, Refusal

_topic, _size = itemgetter(TOPIC), itemgetter(SIZE)
Result = TypeVar("Result")
LogCall = Callable[[str, TransactionalLog], Coroutine[Any, Any, Result]]
"""Something to ask of a log; told its cluster, too."""


async def at_once(calls: Sequence[Coroutine[Any, Any, Result]]) -> list[Result]:
    """Make calls at once, and return their results in order. When one fails, the others are given up."""
    if len(calls) == 1:
        return [await calls[0]]
    tasks = [asyncio.create_task(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()


class Logs:
    """The logs of one term, by cluster. Methods raise KafkaError; then only `close` may be called.

    `is_owed`: some cluster does not count now, and will get what it misses.
    """

    def __init__(self, logs: Mapping[str, TransactionalLog], *, is_owed: bool = False) -> None:
        self.clusters = tuple(logs)
        self._logs = tuple(logs.values())
        self._replayed = [0] * len(logs)
        self._places = len(logs) > 1 or is_owed

    def __len__(self) -> int:
        return len(self._logs)

    def __getitem__(self, number: int) -> TransactionalLog:
        return self._logs[number]

    def replayed(self, number: int) -> None:
        """Recovery has committed a batch on this log, and it can be read. It is none of the term's."""
        self._replayed[number] += 1

    def readable(self, number: int) -> int:
        """How many of the term's commits on a log, from the first one on, are known to be readable."""
        return self._logs[number].readable - self._replayed[number]

    @contextmanager
    def naming(self, cluster: str) -> Iterator[None]:
        """Name the cluster in errors, if there are several."""
        with naming_cluster(cluster, of=len(self._logs)):
            yield

    async def on(self, number: int, call: LogCall[Result]) -> Result:
        """Make a call on one log."""
        cluster = self.clusters[number]
        with self.naming(cluster):
            return await call(cluster, self._logs[number])

    async def on_all(self, call: LogCall[Result]) -> list[Result]:
        """Make a call on all logs at once, and return the results in their order. When one fails, the others are given
        up.
        """
        return await at_once([self.on(number, call) for number in range(len(self._logs))])

    @property
    def are_unfenced(self) -> bool:
        """Whether an earlier producer could not be fenced yet, on any log."""
        return any(log.unfenced for log in self._logs)

    async def fence_rest(self) -> None:
        """Try to fence these producers."""
        await self.on_all(lambda _, log: log.fence_rest())

    async def examine(self, rows: Sequence[OutboxRow], *, again: bool = False) -> Mapping[int, Refusal]:
        """Which of these rows any cluster would refuse, by id, as far as can be told without sending them."""
        if len(self._logs) == 1:
            return await self._logs[PRIMARY].examine(rows, again=again)
        # Not placed yet: a record that names a partition takes longer to examine. All have as many, or refuse it below.
        if not again and self._all_pass(rows):
            return self._divided_otherwise(rows)
        found = await self.on_all(lambda _, log: log.examine(rows, again=again))
        return self._divided_otherwise(rows) | {
            identity: replace(refusal, reason=f"cluster {cluster}: {refusal.reason}")
            for cluster, refusals in reversed([*zip(self.clusters, found, strict=True)])
            for identity, refusal in refusals.items()
        }

    def _all_pass(self, rows: Sequence[OutboxRow]) -> bool:
        """Whether all clusters are known to take these rows. They are gone through once, for the primary."""
        primary, *backups = self._logs
        if not primary.passes(rows):
            return False
        topics, largest = set(map(_topic, rows)), max(map(_size, rows), default=0)
        return all(log.passes_too(topics, largest=largest) for log in backups)

    def _divided_otherwise(self, rows: Sequence[OutboxRow]) -> dict[int, Refusal]:
        """Which of these rows go to topics that have another number of partitions on a backup than on the primary.

        With fewer there, some would not fit. With more, keys would change their partitions once it is promoted, and
        lose their order.
        """
        topics = set(map(_topic, rows))
        on_primary, *on_backups = (log.partitions(topics) for log in self._logs)
        refused: dict[str, Refusal] = {}
        for cluster, on_backup in zip(self.clusters[1:], on_backups, strict=True):
            for topic in on_primary.keys() & on_backup.keys():
                if on_primary[topic] != on_backup[topic]:
                    refused[topic] = Refusal(
                        Cause.PARTITION, divided_otherwise(topic, cluster, on_primary[topic], on_backup[topic])
                    )
        return {row[ID]: refused[row[TOPIC]] for row in rows if row[TOPIC] in refused} if refused else {}

    async def begin(self) -> bool:
        """Begin the next transaction on all logs. Return whether a producer has a new epoch since its last one."""
        # One after the other costs no task; what is waited for goes on by itself.
        return any([await self.on(number, lambda _, log: log.begin()) for number in range(len(self._logs))])

    async def publish(self, rows: Sequence[OutboxRow]) -> Sequence[Sequence[Extent]]:
        """Send rows, in order, in the transactions begun last, until all clusters have them. Return where they are, by
        log. Raises KafkaError also when they are in other partitions on one cluster than on another.
        """
        if len(self._logs) == 1 and not self._places:
            return [await self._logs[PRIMARY].publish(rows)]
        partitions = self._chosen(rows)
        found = await self.on_all(lambda _, log: log.publish(rows, partitions))
        for cluster, extents in zip(self.clusters[1:], found[1:], strict=True):
            require_same_places(found[0], extents, cluster=cluster)
        return found

    async def publish_on(self, number: int, rows: Sequence[OutboxRow]) -> Sequence[Extent]:
        """Send rows on one log alone, into the partitions where all others have them."""
        partitions = self._chosen(rows)
        return await self.on(number, lambda _, log: log.publish(rows, partitions))

    def _chosen(self, rows: Sequence[OutboxRow]) -> Sequence[int] | None:
        """Choose each record's partition once, for all clusters, those too that get it later."""
        return self._logs[PRIMARY].choose_partitions(rows) if self._places else None

    async def await_readable(self) -> None:
        """Ask all clusters until all commits are readable, except those of which the next transactions tell."""
        await self.on_all(lambda _, log: log.await_readable())


@asynccontextmanager
async def opened(factories: Mapping[str, TransactionalLogFactory], fence: Fence) -> AsyncIterator[Logs]:
    """Open a log on each cluster that counts, as the fence row says. Raises ConfigurationError, KafkaError."""
    if unknown := [cluster for cluster in fence.clusters if cluster not in factories]:
        raise ConfigurationError(
            f"the outbox is published to cluster {' and '.join(unknown)}, which this configuration does not name. Add "
            "it to `clusters`, or detach it"
        )
    async with AsyncExitStack() as stack:
        logs: dict[str, TransactionalLog] = {}
        for cluster in fence.clusters:
            with naming_cluster(cluster, of=len(fence.clusters)):
                logs[cluster] = await factories[cluster]()
            stack.push_async_callback(logs[cluster].close)
        yield Logs(logs, is_owed=bool(fence.owed))


def divided_otherwise(topic: str, cluster: str, on_primary: int, on_backup: int) -> str:
    """Return why a topic can't be published to both, and what to do."""
    return (
        f"cluster {cluster}: topic {topic} has {on_backup} partitions there and {on_primary} on the primary, so keys "
        "would not stay in their partitions. Give it as many on both"
    )
