"""Which settings of a harvester go together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from airflow_outbox.harvest.kafka.partitioner import DEFAULT_PARTITIONER, KNOWN_PARTITIONERS
from airflow_outbox.values.fence import PRIMARY

if TYPE_CHECKING:
    from airflow_outbox.harvest.config import HarvestConfig

_CONNECTS = ("bootstrap.servers", "metadata.broker.list", "oauth_cb", "security.", "sasl.", "ssl.", "enable.ssl.")
"""Beginnings of the names of librdkafka's settings that say where and how to connect."""


def require_fitting(config: HarvestConfig) -> None:
    """Raise ValueError for settings that exclude each other, and for one that lacks another."""
    if config.atomic and config.delivery != "exactly_once":
        raise ValueError("atomic needs delivery: exactly_once")
    if config.atomic and config.shards > 1:
        raise ValueError("atomic needs shards: 1, because a source transaction may touch every shard")
    if config.delivery == "at_least_once" and config.shards > 1:
        raise ValueError("delivery: at_least_once needs shards: 1, because a leader marks any records")
    if config.positions.enabled and config.delivery != "exactly_once":
        raise ValueError("positions.enabled needs delivery: exactly_once, whose transactions hold the extents")
    if config.positions.groups and not (config.positions.enabled and config.clusters):
        raise ValueError("positions.groups needs positions.enabled: true, and several clusters")
    if config.clusters:
        _require_several_clusters_possible(config)
    if config.outboxes:
        _require_many_outboxes_possible(config)


def _require_many_outboxes_possible(config: HarvestConfig) -> None:
    """Raise ValueError for a setting that only a single outbox can have."""
    if "outbox_table" in config.model_fields_set:
        raise ValueError("outbox_table and outboxes exclude each other. Put all outboxes into outboxes")
    alone = {
        "clusters": bool(config.clusters),
        "shards": config.shards > 1,
        "positions.enabled": config.positions.enabled,
        "tracing.enabled": config.tracing.enabled,
        "ledger_topic": config.ledger_topic is not None,
        "transactional_id": config.transactional_id is not None,
    }
    for setting, is_set in alone.items():
        if is_set:
            raise ValueError(f"outboxes and {setting} exclude each other. Harvest such an outbox by itself")


def _require_several_clusters_possible(config: HarvestConfig) -> None:
    """Raise ValueError for what would let clusters differ, or give one the login of another."""
    if config.delivery != "exactly_once":
        raise ValueError("clusters needs delivery: exactly_once, because each cluster's ledger tells what it has")
    if config.transaction_headers.model_dump(exclude_none=True):
        raise ValueError("clusters and transaction_headers exclude each other. Leave one of them out")
    for group in ("kafka_producer", "kafka_consumer"):
        for name in getattr(config, group):
            if name.startswith(_CONNECTS):
                raise ValueError(f"{group}.{name} would be used for all clusters. Put it into each of clusters")
    partitioners = {
        cluster: {**own.kafka, **own.kafka_producer}.get("partitioner", DEFAULT_PARTITIONER)
        for cluster, own in config.by_cluster().items()
    }
    for cluster, partitioner in partitioners.items():
        if partitioner not in KNOWN_PARTITIONERS:
            raise ValueError(
                f"clusters needs a partitioner that puts a key into the same partition everywhere: "
                f"{' or '.join(sorted(KNOWN_PARTITIONERS))}, not {partitioner}"
            )
        if partitioner != partitioners[PRIMARY]:
            raise ValueError(f"clusters.{cluster}.partitioner is another than the primary's. Give all the same")
