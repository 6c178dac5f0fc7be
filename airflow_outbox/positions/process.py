"""Replicate positions until told to stop: by `airflow-outbox positions run`, and beside a harvest."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from contextlib import closing
from uuid import UUID

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.ports import Events
from airflow_outbox.positions.groups import ConsumerGroups
from airflow_outbox.positions.index import TopicIndex
from airflow_outbox.positions.operating import why_it_may_not_move
from airflow_outbox.positions.replicator import Replicator, SyncResult
from airflow_outbox.positions.reporting import Reporter
from airflow_outbox.positions.watching import WatchedCluster
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.table import OutboxTable

_RETRY_INTERVAL = 2.0
_WATCH_INTERVAL = 1.0
_SHARE = 0.04  # of a core
_LONGEST_PAUSE = 1.0
_REST = 0.9  # seconds: a rewind away from a group's home is seen after a second


def require_positions(config: HarvestConfig) -> None:
    """Raise ConfigurationError unless the outbox has several clusters, and extents of them."""
    if not config.clusters or len(config.by_cluster()) < 2:
        raise ConfigurationError(
            "positions follow between clusters, but the configuration has one. Name others under `clusters`"
        )
    if not config.positions.enabled:
        raise ConfigurationError(
            "positions.enabled is not set, so nothing tells where records are on each cluster. Set it to true, run "
            "`airflow-outbox init`, and start the harvesters again"
        )


def require_groups(config: HarvestConfig) -> None:
    """Raise ConfigurationError unless there are groups whose positions follow between clusters."""
    require_positions(config)
    if not config.positions.groups:
        raise ConfigurationError("positions.groups names no groups. Give patterns, such as orders-*")


def replicator_of(config: HarvestConfig, *, groups: list[str] | None = None, rest: float = 0.0) -> Replicator:
    """Return a replicator for the configured groups, or for these, that lets them `rest` so long. Close it in the end.

    Raises ConfigurationError, PostgresError, KafkaError.
    """
    require_positions(config)
    with closing(connect(config.data_source, purpose="positions")) as connection:
        outbox_id: UUID = OutboxTable(connection, config.name).identity().outbox_id
    names = KafkaNames.of(config, outbox_id)
    clusters = {
        cluster: WatchedCluster(
            ConsumerGroups(own.kafka), TopicIndex(own, names, outbox_id), copies=names.positions_groups
        )
        for cluster, own in config.by_cluster().items()
    }
    return Replicator(clusters, config.positions.groups if groups is None else groups, rest=rest)


def pause_after(look: SyncResult, interval: float, *, used: float) -> float:
    """Return how many seconds to wait after a look that has `used` so much processor time: until the interval is over,
    at least as long as the look took, and longer where it would use more than its share of a core, but for no more than
    a second.
    """
    return max(interval - look.seconds, look.seconds, min(used / _SHARE - look.seconds, _LONGEST_PAUSE))


async def watch(config: HarvestConfig, group: str, target: str, *, events: Events, stop: asyncio.Event) -> None:
    """Tell whenever the reason changes why a group may not move, until `stop`. Raises ConfigurationError."""
    if target not in config.by_cluster():
        raise ConfigurationError(f"the outbox has no cluster {target}. It has {', '.join(config.by_cluster())}")
    require_positions(config)
    replicator: Replicator | None = None
    said: str | None = ""
    while not stop.is_set():
        try:
            if replicator is None:
                replicator = await asyncio.to_thread(replicator_of, config, groups=[group])
            look = await asyncio.to_thread(replicator.look, commits=False)
            reason = why_it_may_not_move(group, look, target)
        except OutboxError as error:
            reason = str(error)
        if reason != said:
            events("may_move", group=group, reason=reason)
            said = reason
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(_WATCH_INTERVAL):
                await stop.wait()
    if replicator is not None:
        replicator.close()


async def replicate(config: HarvestConfig, *, events: Events, stop: asyncio.Event) -> None:
    """Replicate until `stop`. Raises ConfigurationError; other errors are reported, and tried again."""
    require_groups(config)
    reporter = Reporter(events)
    replicator: Replicator | None = None
    try:
        while not stop.is_set():
            wait = _RETRY_INTERVAL
            try:
                if replicator is None:
                    replicator = await asyncio.to_thread(replicator_of, config, rest=_REST)
                    events("positions_started", pid=os.getpid())
                used = time.process_time()
                look = await asyncio.to_thread(replicator.look)
                reporter.take(look)
                wait = pause_after(look, config.positions.interval, used=time.process_time() - used)
            except OutboxError as error:
                reporter.complain(str(error))
            except Exception as error:  # whatever it is, the next look may do without it
                reporter.complain(f"a bug in airflow-outbox: {error!r}")
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(wait):
                    await stop.wait()
    finally:
        if replicator is not None:
            replicator.close()
