"""Requests of operators about an outbox's clusters: detach one, attach it again, promote another one.

Detaching and promoting write the membership themselves: nobody may be leading. They need the rights of a role that
harvests. Attaching is asked of the leader, which publishes what the cluster lacks. Promoting does that itself when
nobody can lead (`operate.promotion`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing
from typing import Any
from uuid import UUID

import psycopg

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.assembly import on_primary
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.ledger_reader import LedgerReader
from airflow_outbox.harvest.kafka.names import KafkaNames, leader_partitions
from airflow_outbox.harvest.protocol.ledger import Ledger
from airflow_outbox.operate.promotion import promote_alone
from airflow_outbox.postgres.connection import connect, located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.membership import (
    ask_attach,
    lock_shards,
    read_ledgers,
    read_membership,
    write_membership,
)
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.trail import enter
from airflow_outbox.values.fence import AttachHow, LedgerPosition, LedgerRow
from airflow_outbox.values.membership import Membership, Part

_LOOK_INTERVAL = 0.1
_REACHED_WITHIN = 5.0  # seconds


def detach(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    cluster: str,
    *,
    reason: str | None = None,
    on_behalf_of: str | None = None,
) -> Membership:
    """Let a backup count no longer: what is published from now on is kept for it. Return the new membership.

    Raises ConfigurationError for the primary, and for a cluster that does not count; PostgresError.
    """
    return request_detach(connection, config.name, cluster, reason=reason, on_behalf_of=on_behalf_of)


def request_detach(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    cluster: str,
    *,
    reason: str | None = None,
    on_behalf_of: str | None = None,
) -> Membership:
    """Do the same where nobody knows how the clusters are reached."""
    with translated(name), connection.transaction():
        # Before anything else is read: a migration locks the shards first, too.
        lock_shards(Statements(connection, located(connection, name)))
        membership = read_membership(connection, name)
        if membership.parts.get(cluster) == "primary":
            raise ConfigurationError(
                f"cluster {cluster} is the primary, which always counts. Promote another one: `airflow-outbox clusters "
                "promote NAME`"
            )
        if membership.parts.get(cluster) == "owed":
            raise ConfigurationError(f"cluster {cluster} is detached already. Nothing was changed")
        write_membership(
            connection,
            name,
            {cluster: "owed"},
            expected=membership.number,
            reasons={cluster: reason or "an operator has detached it"},
        )
        enter(
            connection,
            located(connection, name),
            "detach",
            on_behalf_of=on_behalf_of,
            matched=cluster,
            reason=reason,
        )
        return read_membership(connection, name)


def request_attach(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    cluster: str,
    *,
    how: AttachHow | None = None,
    on_behalf_of: str | None = None,
) -> None:
    """Ask the leader for an owed cluster, and don't wait. Raises ConfigurationError for another one, PostgresError."""
    with translated(name), connection.transaction():
        ask_attach(connection, name, cluster=cluster, how=how)
        enter(
            connection,
            located(connection, name),
            "attach",
            on_behalf_of=on_behalf_of,
            matched=f"{cluster} {how or ''}".strip(),
        )


def attach(
    connection: psycopg.Connection[Any],
    config: HarvestConfig,
    cluster: str,
    *,
    how: AttachHow | None = None,
    patience: float,
    on_behalf_of: str | None = None,
    tell: Callable[[int, int], None] = lambda _done, _total: None,
) -> Membership:
    """Ask the leader for an owed cluster, and wait until it counts. Return the new membership. `tell` hears again and
    again how many batches the cluster has, and how many there are.

    Raises OutboxError with the reason if it can't be attached, or when it does not count after `patience` seconds: it
    is still asked for. Raises ConfigurationError for another cluster, PostgresError.
    """
    request_attach(connection, config.name, cluster, how=how, on_behalf_of=on_behalf_of)
    deadline = time.monotonic() + patience
    while True:
        membership = read_membership(connection, config.name)
        if membership.parts[cluster] != "owed":
            return membership
        if membership.attach != cluster:
            [reason] = [each.reason for each in membership.clusters if each.name == cluster]
            raise OutboxError(f"cluster {cluster} was not attached: {reason}")
        if time.monotonic() > deadline:
            raise OutboxError(
                f"cluster {cluster} does not count yet. The leader attaches it as soon as it can: see `airflow-outbox "
                "clusters status`"
            )
        ledgers = read_ledgers(connection, config.name)
        batches = {name: sum(each.batch for each in shards.values()) for name, shards in ledgers.items()}
        tell(batches.get(cluster, 0), max(batches.values(), default=0))
        time.sleep(_LOOK_INTERVAL)


def promote(
    config: HarvestConfig, cluster: str, *, accept_loss: bool = False, on_behalf_of: str | None = None
) -> Membership:
    """Make a cluster the primary, whether or not the primary can be reached. Return the new membership.

    Clusters that can't be reached now count no longer. The next leader completes batches that were committed on some
    clusters only. Members find out within seconds, and elect on the new primary. A cluster that lacks records, when no
    other can be reached, gets first what Postgres keeps. Where purged records would be missing there, `accept_loss`
    goes on without them: the trail, and the cluster's reason, say which batches those are.

    Raises ConfigurationError for a cluster that is not configured, or lacks records that another one has; OutboxError
    where it lacks what was purged; KafkaError where it can't be reached, PostgresError.
    """
    if cluster not in (named := config.by_cluster()):
        raise ConfigurationError(f"the configuration names no cluster {cluster}. It names {', '.join(named)}")
    own = on_primary(config, cluster)
    with closing(connect(config.data_source, purpose="command")) as connection:
        identity = OutboxTable(connection, config.name).identity()
        names = KafkaNames.of(config, identity.outbox_id)
        membership = read_membership(connection, config.name)
        part = membership.parts.get(cluster)
        if part in (None, "primary"):
            reason = (
                "is the primary already. Nothing was changed" if part else "is none of the outbox's. Correct its name"
            )
            raise ConfigurationError(f"cluster {cluster} {reason}")
        leader_partitions(own, names)  # it elects from now on
        known = read_ledgers(connection, config.name)
        counting = [name for name, other in membership.parts.items() if other != "owed"]
        reached, reasons = _look(config, names, counting, known)
        parts: dict[str, Part] = {name: "backup" if name in reached else "owed" for name in counting}
        parts[cluster] = "primary"

        def write(views: Mapping[int, UUID], rows: Mapping[int, LedgerRow], missing: Sequence[str]) -> None:
            told = {**reasons, cluster: f"promoted, but it lacks {', '.join(missing)}"} if missing else reasons
            with translated(config.name), connection.transaction():
                write_membership(
                    connection,
                    config.name,
                    parts,
                    expected=membership.number,
                    reasons=told,
                    views={shard: (view, None) for shard, view in views.items()},
                    caught_up={cluster: rows} if views else {},
                    lacking=[cluster] if missing else (),
                )
                name, why = located(connection, config.name), told.get(cluster) if missing else None
                enter(connection, name, "promote", on_behalf_of=on_behalf_of, matched=cluster, reason=why)

        if cluster in reached:
            write({}, {}, ())
        elif part == "owed" and reached:
            raise ConfigurationError(_lacks_records(cluster, sorted(reached), membership))
        elif reached or (part == "backup" and not accept_loss):
            remedy = _instead(reached, membership)
            raise OutboxError(f"cluster {cluster} can't be promoted: {reasons[cluster]}. {remedy}")
        else:
            reasons.pop(cluster, None)
            promote_alone(config, names, identity, cluster, accept_loss=accept_loss, write=write)
        return read_membership(connection, config.name)


def _instead(reached: Collection[str], membership: Membership) -> str:
    """Return the remedy where a cluster can't be promoted, and these can be reached."""
    if membership.primary in reached:
        return "The primary can be reached, so nothing has to be promoted: try again when that is mended"
    if reached:
        return f"Promote {' or '.join(sorted(reached))}, which can be reached"
    return "Bring it back. If it has lost records for good, promote it with --accept-loss"


def _lacks_records(cluster: str, reached: Sequence[str], membership: Membership) -> str:
    if membership.primary in reached:
        return (
            f"cluster {cluster} lacks records that others have, so it can't be the primary. Attach it first: the "
            "primary can be reached, so a leader can do that"
        )
    return (
        f"cluster {cluster} lacks records that cluster {' and '.join(reached)} has, which can be reached. Promote that "
        f"one, and attach {cluster} then"
    )


def _look(
    config: HarvestConfig, names: KafkaNames, clusters: Sequence[str], known: Mapping[str, Mapping[int, LedgerPosition]]
) -> tuple[set[str], dict[str, str]]:
    """Return the clusters that can be reached, and have all that was purged; and why others can't count."""
    configured = config.by_cluster()
    pool = ThreadPoolExecutor(len(clusters))
    looks: dict[str, Future[None]] = {
        cluster: pool.submit(_require_all_purged, configured[cluster], names, known[cluster])
        for cluster in clusters
        if cluster in configured
    }
    wait(looks.values(), timeout=_REACHED_WITHIN)
    pool.shutdown(wait=False)
    reached: set[str] = set()
    reasons: dict[str, str] = {}
    for cluster in clusters:
        if cluster not in looks:
            reasons[cluster] = "the configuration of the one who promoted did not name it"
        elif not looks[cluster].done():
            reasons[cluster] = f"it did not answer for {_REACHED_WITHIN:.0f} s"
        elif (error := looks[cluster].exception()) is None:
            reached.add(cluster)
        elif isinstance(error, OutboxError):
            reasons[cluster] = str(error)
        else:
            raise error
    return reached, reasons


def _require_all_purged(config: HarvestConfig, names: KafkaNames, known: Mapping[int, LedgerPosition]) -> None:
    """Raise OutboxError unless a cluster can be read, and its ledger has every batch that is known to be purged."""
    for shard, witness in known.items():
        ledger: Ledger = LedgerReader(config, names, shard).glimpse(witness.offset)
        batch = 0 if ledger.head is None else ledger.head.batch
        if witness.topic_id not in (None, ledger.topic_id) or batch < witness.batch:
            raise OutboxError(
                f"its ledger has batches up to {batch}, but {witness.batch} batches are purged in Postgres: it was "
                "emptied, or has lost records"
            )
