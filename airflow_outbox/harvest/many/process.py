"""One process that harvests many outboxes of one database, from a configuration, until told to end or done."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Awaitable, Callable, Coroutine
from datetime import UTC, datetime
from functools import partial
from typing import Any

from airflow_outbox.errors import ConfigurationError, OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.names import leader_partitions
from airflow_outbox.harvest.kafka.producer import producer_settings
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.many import watch
from airflow_outbox.harvest.many.connection_pool import ConnectionPool
from airflow_outbox.harvest.many.names import ROLES, names_of
from airflow_outbox.harvest.many.outboxes import Outboxes
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.process import (
    EndReason,
    Until,
    collect_garbage_seldom,
    complaints,
    log_to_stderr,
    tell_remarks,
    watch_tokens,
)
from airflow_outbox.harvest.protocol.election import Lead
from airflow_outbox.harvest.renewal import Unreached
from airflow_outbox.harvest.worker_thread import Watchdog
from airflow_outbox.postgres.connection import connect

SHARED_CONNECTIONS = 4
_FINDING_INTERVAL = 2.0
_KEEPING_INTERVAL = 2.0
_LOOKING_INTERVAL = 0.1
_SHARE = 20
"""A look that takes long is followed by a pause of this many times as long, up to two seconds."""
_REPORTING_INTERVAL = 1.0
_TENDING_INTERVAL = 10.0
_UNTIL_INTERVAL = 0.5
_RETURN_INTERVAL = 0.5
_PATIENCE = 10.0


async def harvest_many(
    config: HarvestConfig,
    *,
    until: Until,
    events: Events,
    stop: asyncio.Event,
    grace: float,
    metrics_at: tuple[str, int] | None = None,
) -> EndReason:
    """Harvest all outboxes of the list until `until` or `stop`. Then finish the records in flight, for at most `grace`
    seconds, and leave the group.

    Raises ConfigurationError, PostgresError, KafkaError when it can't start. Once it has started, errors don't end it.
    """
    if metrics_at is not None:
        raise ConfigurationError(
            "no metrics are served for many outboxes. Leave out the port; `status` shows each outbox"
        )
    log_to_stderr(config.log_level)
    tell_remarks(config)
    collect_garbage_seldom(config)
    loop = asyncio.get_running_loop()
    complain, unreached = complaints(events), Unreached(events)
    watch_tokens(config, complain)

    def kafka_failed(error: str) -> None:
        complain(error)
        unreached(error)

    names = await asyncio.to_thread(names_of, config)
    partitions = await asyncio.to_thread(leader_partitions, config, names)
    watching = ConnectionPool(lambda: watch.opened(config.data_source), size=1, patience=_PATIENCE, purpose="watch")
    shared = ConnectionPool(
        lambda: connect(config.data_source, purpose="shared", waits_for_standbys=config.wait_for_standbys),
        size=SHARED_CONNECTIONS,
        patience=config.limits.heartbeat_timeout,
    )
    topics = TopicCache(config.kafka, producer=producer_settings(config), own=[names.leader_topic])
    watchdog = Watchdog()
    election = await asyncio.to_thread(
        NeliElection,
        config.model_copy(update={"shards": ROLES}),
        topic=names.leader_topic,
        partitions=partitions,
        group_id=names.group_of(ROLES),
        on_error=kafka_failed,
        on_heartbeat=topics.heartbeat_was_taken,
        watchdog=watchdog,
    )
    outboxes = Outboxes(
        config, events=events, watching=watching, shared=shared, topics=topics, watchdog=watchdog, now=loop.time
    )
    process = _Process(outboxes, election, events, complain, unreached, patience=config.limits.heartbeat_timeout)
    events("started", names=config.outboxes, pid=os.getpid())
    running = [asyncio.create_task(each) for each in process.activities(archives=config.archives)]
    reaching, stopping = asyncio.create_task(_reach(until, outboxes)), asyncio.create_task(stop.wait())
    try:
        done, _ = await asyncio.wait({*running, reaching, stopping}, return_when=asyncio.FIRST_COMPLETED)
        for task in done:
            task.result()
        reason = reaching.result() if reaching in done else "stopped"
    finally:
        for task in (*running, reaching, stopping):
            task.cancel()
        await asyncio.gather(*running, reaching, stopping, return_exceptions=True)
        with contextlib.suppress(OutboxError, TimeoutError):
            async with asyncio.timeout(grace + config.limits.heartbeat_timeout):
                await outboxes.stand_by(range(ROLES))
        for role in range(ROLES):
            election.released(role)
        await election.close()
        outboxes.report()
        watching.close()
        shared.close()
    events("ended", reason=reason, published=outboxes.published)
    return reason


class _Process:
    """The activities that go on beside one another, until they are cancelled."""

    def __init__(
        self,
        outboxes: Outboxes,
        election: NeliElection,
        events: Events,
        complain: Callable[[str], None],
        unreached: Callable[[str], None],
        *,
        patience: float,
    ) -> None:
        self._outboxes = outboxes
        self._election = election
        self._events = events
        self._complain = complain
        self._unreached = unreached
        self._patience = patience
        self._changed = asyncio.Event()  # of the parts that this process leads
        self._reached_at = asyncio.get_running_loop().time()
        self._has_resigned = False

    def activities(self, *, archives: bool) -> list[Coroutine[Any, Any, None]]:
        tending = [self._every(_TENDING_INTERVAL, self._outboxes.tend_archives)] if archives else []
        return [self._follow(), self._keep(), self._look(), self._report(), *tending]

    async def _follow(self) -> None:
        leaving: dict[int, asyncio.Task[None]] = {}  # no part waits until another one is left
        async for role, change in self._election.changes():
            if isinstance(change, Lead):
                if role in leaving:
                    await leaving.pop(role)
                self._events("elected", role=role)
                self._outboxes.lead(role)
                self._changed.set()
            else:
                self._events("stood_by", role=role, reason=change.reason)
                leaving[role] = asyncio.create_task(self._stand_by(role))

    async def _stand_by(self, role: int) -> None:
        await self._tried(partial(self._outboxes.stand_by, (role,)))
        self._election.released(role)

    async def _keep(self) -> None:
        """Find outboxes, and keep those that rest; at once when this process leads more of them."""
        while True:
            if await self._tried(self._outboxes.find):
                await self._tried(self._outboxes.keep)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(_KEEPING_INTERVAL):
                    await self._changed.wait()
            self._changed.clear()

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            await self._tried(self._outboxes.look)
            self._outboxes.move()
            await asyncio.sleep(min(max(_LOOKING_INTERVAL, _SHARE * (loop.time() - began)), _FINDING_INTERVAL))

    async def _report(self) -> None:
        while True:
            await asyncio.sleep(_REPORTING_INTERVAL)
            self._outboxes.report()

    async def _every(self, interval: float, attempt: Callable[[], Awaitable[None]]) -> None:
        while True:
            await self._tried(attempt)
            await asyncio.sleep(interval)

    async def _tried(self, attempt: Callable[[], Awaitable[None]]) -> bool:
        """Make an attempt. While Postgres can't be reached, let others lead."""
        now = asyncio.get_running_loop().time
        try:
            await attempt()
        except PostgresUnreachableError as error:
            self._complain(str(error))
            self._unreached(str(error))
            if now() - self._reached_at > self._patience and not self._has_resigned:
                self._has_resigned = True
                self._events("resigned", reason=str(error))
                self._election.resign(str(error))
            await asyncio.sleep(_RETURN_INTERVAL)
            return False
        except OutboxError as error:
            self._complain(str(error))
            return False
        self._reached_at = now()
        if self._has_resigned:
            self._has_resigned = False
            self._events("rejoined")
            self._election.rejoin()
        return True


async def _reach(until: Until, outboxes: Outboxes) -> EndReason:
    """Return once the harvest has reached its end."""
    while True:
        if until.time is not None and datetime.now(UTC) >= until.time:
            return "time"
        if until.drained:
            with contextlib.suppress(OutboxError):
                if await outboxes.are_empty():
                    return "drained"
        await asyncio.sleep(_UNTIL_INTERVAL)
