"""Promote a cluster that lacks records, when no other can be reached. It is done from here, since nobody can lead
(`harvest.promoting`).
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from uuid import UUID

from airflow_outbox.errors import FencedError, OutboxError
from airflow_outbox.harvest.assembly import on_primary
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.producer import producer_settings
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.kafka.transactional_log import KafkaTransactionalLog
from airflow_outbox.harvest.ports import Table, TransactionalLog, TransactionalLogFactory
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.promoting import Promoting
from airflow_outbox.postgres.table import Identity
from airflow_outbox.values.fence import LedgerRow

WritePromotion = Callable[[Mapping[int, UUID], Mapping[int, LedgerRow], Sequence[str]], None]
"""Writes the membership: given the view of each shard, the cluster's rows, and in words what is missing there."""


def promote_alone(
    config: HarvestConfig,
    names: KafkaNames,
    identity: Identity,
    cluster: str,
    *,
    accept_loss: bool,
    write: WritePromotion,
) -> None:
    """Give a cluster what Postgres keeps for it, and `write` the membership.

    Raises OutboxError where it lacks what is purged, unless that is accepted, and when a leader takes over meanwhile.
    Raises HistoryError, KafkaError, PostgresError.
    """
    own = on_primary(config, cluster)
    book = TopicCache(own.kafka, producer=producer_settings(own), own=(names.leader_topic, names.ledger_topic))

    def new_table(shard: int) -> Table:
        return PostgresTable(
            config.data_source,
            config.name,
            config.limits,
            archives=config.archives,
            waits_for_standbys=config.wait_for_standbys,
            outbox_id=identity.outbox_id,
            shard=shard,
            reshards=True,
            thresholds=config.thresholds,
        )

    def new_logs(shard: int) -> Mapping[str, TransactionalLogFactory]:
        async def new_log() -> TransactionalLog:
            return await KafkaTransactionalLog.open(own, names, shard=shard, book=book)

        return {cluster: new_log}

    async def written(views: Mapping[int, UUID], rows: Mapping[int, LedgerRow], missing: Sequence[str]) -> None:
        await asyncio.to_thread(write, views, rows, missing)

    promoting = Promoting(shards=identity.shards, new_table=new_table, new_logs=new_logs, write=written)
    try:
        asyncio.run(promoting(cluster, accept_loss=accept_loss))
    except FencedError as error:
        raise OutboxError(
            f"cluster {cluster} was not promoted: a leader has taken over meanwhile, so the primary is there. Look at "
            "`airflow-outbox clusters status`"
        ) from error
