"""The engine of one member, assembled over the real ports: Postgres, Kafka, and the group that elects."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING
from uuid import UUID

from airflow_outbox.errors import ConfigurationError, naming_cluster
from airflow_outbox.harvest.attaching import Attaching
from airflow_outbox.harvest.config import HarvestConfig, Limits
from airflow_outbox.harvest.harvester import Harvester, Shard, of_shard
from airflow_outbox.harvest.kafka.distinct_clusters import DistinctClusters
from airflow_outbox.harvest.kafka.election import NeliElection
from airflow_outbox.harvest.kafka.extents_writer import ExtentsFailures
from airflow_outbox.harvest.kafka.fencing import StuckIds
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.producer import KafkaLog, producer_settings
from airflow_outbox.harvest.kafka.record_size import client_limit
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.leadership import SHARD
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.missing_extents import MissingExtents
from airflow_outbox.harvest.modes import Modes
from airflow_outbox.harvest.ports import Election, Events, Log, Table, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.protocol.election import Standing
from airflow_outbox.harvest.protocol.transaction_headers import StampNames
from airflow_outbox.harvest.resharding import Resharding
from airflow_outbox.harvest.threaded_connection import Looking, SharedConnection
from airflow_outbox.harvest.worker_thread import Watchdog
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.fence import PRIMARY
from airflow_outbox.values.layout import Layout

if TYPE_CHECKING:
    from airflow_outbox.harvest.tracing import Tracing


@dataclass(frozen=True, slots=True)
class Shared:
    """Things that the outboxes of a list share, and the lead that one of them is given in place of its own election."""

    election: Election
    looking: Looking
    topics: TopicCache
    watchdog: Watchdog


@dataclass(frozen=True, slots=True)
class Assembly:
    """A harvester for the layout `number`, the table of its first shard, and its place in the group."""

    harvester: Harvester
    table: Table
    number: int
    election: Election
    looking: Looking | None

    def leads(self) -> bool:
        """Whether this member leads the first shard now, and so cares for what all shards have in common."""
        return self.election.standing(SHARD) is Standing.LEADER

    async def close(self) -> None:
        """End what the harvester leaves when its layout is over."""
        await self.election.close()
        if self.looking is not None:
            self.looking.end()


def one_shard_only(config: HarvestConfig) -> str | None:
    """Return why the outbox can't have more than one shard; None if it can."""
    if config.delivery != "exactly_once":
        return "it is harvested at least once, where a leader marks whatever records come next"
    if config.atomic:
        return "it is atomic, and a source transaction may touch every shard"
    return None


def impossible(config: HarvestConfig, layout: Layout) -> str | None:
    """Return why this configuration allows no harvest in this layout, and what to do; None if it does."""
    if layout.shards == 1 or (reason := one_shard_only(config)) is None:
        return None
    return (
        f"{config.name} has {layout.shards} shards, but by its configuration {reason}. Change that, or run "
        "`airflow-outbox reshard 1` with the configuration that it had before"
    )


def on_primary(config: HarvestConfig, primary: str) -> HarvestConfig:
    """Return the configuration by which the primary is reached. Raises ConfigurationError."""
    configured = config.by_cluster()
    if primary not in configured:
        raise ConfigurationError(
            f"{config.name} has cluster {primary} as its primary, which this configuration does not name. Add it to "
            "`clusters`"
        )
    return configured[primary]


def require_possible(config: HarvestConfig, layout: Layout) -> None:
    """Raise ConfigurationError for what is not possible with several shards."""
    if (reason := impossible(config, layout)) is not None:
        raise ConfigurationError(reason)


def limits_of(config: HarvestConfig, layout: Layout) -> Limits:
    """Return a shard's limits. A member may lead all of them: together they keep what is configured for a process."""
    limits, shards = config.limits, layout.shards
    if shards == 1:
        return limits
    changed: dict[str, int] = {
        "max_in_flight_records": max(1, limits.max_in_flight_records // shards),
        "max_in_flight_bytes": max(1, limits.max_in_flight_bytes // shards),
    }
    if "transactional_ids" not in limits.model_fields_set:
        changed["transactional_ids"] = 1
    return limits.model_copy(update=changed)


async def assembled(
    config: HarvestConfig,
    name: OutboxName,
    names: KafkaNames,
    *,
    outbox_id: UUID,
    layout: Layout,
    partitions: int,
    events: Events,
    measures: Measures,
    complain: Callable[[str], None],
    tracing: Tracing | None,
    primary: str = PRIMARY,
    promotions: int = 0,
    shared: Shared | None = None,
) -> Assembly:
    """Assemble a member of the outbox `outbox_id`, called `name`; the leaders' topic has `partitions` partitions.

    The election is on the cluster `primary`, after `promotions` promotions. The fence row says which of the configured
    clusters count. `shared` is what the outbox shares with others of a list (None: it is alone). Raises
    ConfigurationError, KafkaError when Kafka's client refuses the settings.
    """
    require_possible(config, layout)
    loop = asyncio.get_running_loop()
    limits = limits_of(config, layout)
    config = config.model_copy(update={"limits": limits, "shards": layout.shards})
    configured = config.by_cluster()
    config = on_primary(config, primary)
    settings = producer_settings(config)
    watchdog = Watchdog() if shared is None else shared.watchdog
    looking: Looking | None = None if layout.shards == 1 else SharedConnection(patience=limits.heartbeat_timeout)
    if shared is not None:
        looking = shared.looking

    def table_of(shard: int, *, reshards: bool = False) -> Table:
        table: Table = PostgresTable(
            config.data_source,
            name,
            limits,
            archives=config.archives,
            waits_for_standbys=config.wait_for_standbys,
            outbox_id=outbox_id,
            most_bytes=client_limit(settings),
            shard=shard,
            layout=layout.number,
            looking=looking,
            reshards=reshards,
            thresholds=config.thresholds,
            watchdog=watchdog,
        )
        return table if tracing is None else tracing.table(table)

    own = (names.leader_topic, names.ledger_topic, *([names.extents_topic] if config.positions.enabled else []))
    book = TopicCache(config.kafka, producer=settings, own=own) if shared is None else shared.topics

    def throttled(seconds: float) -> None:
        if not loop.is_closed():
            loop.call_soon_threadsafe(lambda: harvester.throttled(seconds, client_id=str(settings["client.id"])))

    async def new_log(*, individually: bool = False) -> Log:
        log = await KafkaLog.open(
            producer_settings(config),
            book=book,
            individually=individually,
            on_throttled=throttled,
            watchdog=watchdog,
        )
        return log if tracing is None else tracing.log(log)

    missing = MissingExtents(events, measures)
    if config.positions.enabled:
        measures.without_extents = dict.fromkeys(configured, 0) | measures.without_extents

    def cluster_of(cluster: str, config: HarvestConfig, book: TopicCache) -> Callable[[int], TransactionalLogFactory]:
        stuck = StuckIds()
        failures: dict[int, ExtentsFailures] = {}

        def transactional_log_of(shard: int) -> TransactionalLogFactory:
            async def new_transactional_log() -> TransactionalLog:
                log = await KafkaTransactionalLog.open(
                    config,
                    names,
                    shard=shard,
                    book=book,
                    on_throttled=throttled,
                    stuck=stuck,
                    failures=failures.setdefault(shard, ExtentsFailures(partial(missing.tell, cluster, shard))),
                    watchdog=watchdog,
                )
                return log if tracing is None else tracing.transactional_log(log)

            return new_transactional_log

        return transactional_log_of

    known_clusters = DistinctClusters()
    books, clusters = {primary: book}, {primary: cluster_of(primary, config, book)}
    for cluster, other in configured.items():
        if cluster != primary:
            books[cluster] = TopicCache(other.kafka, producer=producer_settings(other), own=own)
            clusters[cluster] = cluster_of(cluster, other, books[cluster])

    def distinct(cluster: str, new_log: TransactionalLogFactory) -> TransactionalLogFactory:
        async def new_log_of_its_own() -> TransactionalLog:
            await asyncio.to_thread(lambda: known_clusters.require(cluster, books[cluster].cluster))
            return await new_log()

        return new_log_of_its_own

    def transactional_logs_of(shard: int) -> Mapping[str, TransactionalLogFactory]:
        logs = {cluster: log_of(shard) for cluster, log_of in clusters.items()}
        return logs if len(logs) == 1 else {cluster: distinct(cluster, new_log) for cluster, new_log in logs.items()}

    async def joined() -> Election:
        # Find settings that the client refuses now, not when this member begins to lead.
        if config.delivery == "exactly_once":
            for cluster, log_of in clusters.items():
                with naming_cluster(cluster, of=len(clusters)):
                    await (await log_of(SHARD)()).close()
        else:
            await (await new_log()).close()
        return await asyncio.to_thread(
            NeliElection,
            config,
            topic=names.leader_topic,
            partitions=partitions,
            group_id=names.group_of(layout.shards, promotions),
            on_error=complain,
            on_heartbeat=book.heartbeat_was_taken,
            watchdog=watchdog,
        )

    election = await joined() if shared is None else shared.election
    reshard = Resharding(
        shards=layout.shards,
        new_table=lambda shard: table_of(shard, reshards=True),
        new_logs=transactional_logs_of,
        limits=limits,
        measures=measures,
        events=events,
    )
    may_reshard = config.delivery == "exactly_once" and not config.atomic
    tables = [table_of(shard) for shard in range(layout.shards)]
    attach = Attaching(
        shards=layout.shards,
        new_table=lambda shard: table_of(shard, reshards=True),
        new_logs=transactional_logs_of,
        limits=limits,
        measures=measures,
    )
    harvester = Harvester(
        shards=[
            Shard(
                number=shard,
                table=table,
                modes=Modes(
                    delivery=config.delivery,
                    table=table,
                    new_log=new_log,
                    new_transactional_logs=transactional_logs_of(shard),
                    limits=limits,
                    report=events if layout.shards == 1 else of_shard(events, shard),
                    atomic=config.atomic,
                    stamp_names=StampNames(**config.transaction_headers.model_dump()),
                ),
                reshard=reshard if shard == SHARD and may_reshard else None,
                attach=attach if shard == SHARD and config.delivery == "exactly_once" else None,
                detach_after=config.detach_after if config.require == "primary" else None,
            )
            for shard, table in enumerate(tables)
        ],
        election=election,
        limits=limits,
        events=events if tracing is None else tracing.events(events),
        measures=measures,
    )
    return Assembly(harvester, tables[SHARD], layout.number, election, looking)
