"""Memberships in Postgres: which clusters an outbox is published to. `sql/clusters.sql` has the statements.

Every change gives all shards fresh views, so that no decision of a leader of an earlier membership has any effect.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any
from uuid import UUID, uuid4

import psycopg

from airflow_outbox.errors import ConfigurationError, FencedError, OutboxMissingError, PostgresError
from airflow_outbox.postgres.connection import located
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.layout import read_layout
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.fence import AttachHow, LedgerPosition, LedgerRow
from airflow_outbox.values.membership import MemberCluster, Membership, Part

NO_VIEWS: Mapping[int, tuple[UUID, UUID | None]] = {}
NO_ROWS: Mapping[str, Mapping[int, LedgerRow]] = {}


def read_membership(connection: psycopg.Connection[Any], name: OutboxName) -> Membership:
    """Return the present membership, the primary first. Raises OutboxMissingError, PostgresError."""
    name = located(connection, name)
    rows = Statements(connection, name).named_rows("clusters.membership")
    if not rows:
        raise OutboxMissingError(
            f"{name.text('state')} or {name.text('cluster')} is empty. Restore its rows from a backup"
        )
    clusters = [MemberCluster(row.name, row.part, row.since, row.reason) for row in rows]
    return Membership(rows[0].membership, rows[0].promotions, clusters, rows[0].attach_wanted)


def read_ledgers(connection: psycopg.Connection[Any], name: OutboxName) -> dict[str, dict[int, LedgerPosition]]:
    """Return how far each cluster's ledgers are known to be purged, by cluster and shard. Raises PostgresError."""
    found: dict[str, dict[int, LedgerPosition]] = {}
    for row in Statements(connection, located(connection, name)).named_rows("clusters.ledgers"):
        position = LedgerPosition(row.ledger_topic_id, row.witnessed_batch, row.ledger_offset)
        found.setdefault(row.cluster, {})[row.shard] = position
    return found


def ask_attach(
    connection: psycopg.Connection[Any], name: OutboxName, *, cluster: str | None, how: AttachHow | None = None
) -> None:
    """Ask the leader for an owed cluster; None withdraws that. Raises ConfigurationError, PostgresError."""
    name = located(connection, name)
    statements = Statements(connection, name)
    with translated(name), connection.transaction():
        # First: it waits for a membership that is being written, and the next one to be written withdraws it.
        statements.execute("clusters.ask", {"cluster": cluster, "how": how if cluster else None})
        if cluster is not None:
            parts = read_membership(connection, name).parts
            if (part := parts.get(cluster)) != "owed":
                has = f"the outbox has no such cluster. It has {', '.join(parts)}"
                reason = "it counts already" if part else has
                raise ConfigurationError(f"cluster {cluster} can't be attached to {name}: {reason}")


def write_membership(
    connection: psycopg.Connection[Any],
    name: OutboxName,
    parts: Mapping[str, Part],
    *,
    expected: int | None = None,
    reasons: Mapping[str, str] | None = None,
    views: Mapping[int, tuple[UUID, UUID | None]] = NO_VIEWS,
    caught_up: Mapping[str, Mapping[int, LedgerRow]] = NO_ROWS,
    lacking: Collection[str] = (),
) -> None:
    """Give clusters these parts; others keep theirs. Another primary is a promotion.

    `expected` is the number of the membership on which the decision is based (None: any). `views`: the one under which
    the caller leads a shard, and that of its successor there (None: nobody leads after this). `caught_up`: what is
    known, by shard, of the ledgers of owed clusters that have got what they missed. `lacking`: those that count, but
    lack records that were published before.

    While a cluster does not count, nobody can change the number of shards: a request for that is withdrawn, and the
    cluster's reason says so.

    Raises FencedError when a fence does not name that view, and PostgresError. Raises ConfigurationError

    - for another membership than `expected`
    - for a cluster that the outbox does not have
    - unless exactly one is the primary
    - where the primary is owed and not caught up: it may lack what the others have
    """
    name = located(connection, name)
    statements = Statements(connection, name)
    with translated(name), connection.transaction():
        shards = lock_shards(statements)
        present = {row.shard: row.view for row in shards}
        for shard, (view, _) in views.items():
            if present.get(shard) != view:
                raise FencedError(f"{name}: another view has taken over shard {shard}")
        before = read_membership(connection, name)
        if expected not in (None, before.number):
            raise ConfigurationError(
                f"{name}'s clusters were changed meanwhile. Look at `clusters status`, and ask again"
            )
        if unknown := parts.keys() - before.parts.keys():
            raise ConfigurationError(f"{name} has no cluster {' or '.join(sorted(unknown))}. Run `airflow-outbox init`")
        after = {**before.parts, **parts}
        primaries = [cluster for cluster, part in after.items() if part == "primary"]
        if len(primaries) != 1:
            raise ConfigurationError(f"{name} needs one primary cluster. To choose another one, promote it")
        [primary] = primaries
        if before.parts[primary] == "owed" and primary not in caught_up:
            raise ConfigurationError(
                f"cluster {primary} lacks records that others have, so it can't be the primary. Attach it first"
            )
        for cluster, rows in caught_up.items():
            for shard, found in rows.items():
                statements.execute("clusters.caught_up", {"cluster": cluster, "shard": shard, **_row_values(found)})
        wanted = read_layout(connection, name).wanted if "owed" in after.values() else None
        # The old primary first: there is never more than one.
        for cluster in sorted(after, key=lambda cluster: cluster == primary):
            reason = (reasons or {}).get(cluster)
            if wanted is not None and after[cluster] == "owed" != before.parts[cluster]:
                reason = f"{reason}. {_withdrawn(wanted)}" if reason else _withdrawn(wanted)
            told = {"part": after[cluster], "reason": reason, "lacks": cluster in lacking}
            statements.execute("clusters.write_part", {"name": cluster, **told})
        promoted = int(primary != before.primary)
        for row in shards:
            _, successor = views.get(row.shard, (None, None))
            values = {"shard": row.shard, "view": successor or uuid4(), "primary": primary, "promoted": promoted}
            statements.execute("clusters.write_shard", values)
        statements.execute("clusters.write_membership", {"promoted": promoted, "owes": "owed" in after.values()})
        if "owed" not in after.values():
            statements.execute("clusters.forget_batches")
            statements.execute("clusters.forget_rows")


def _withdrawn(shards: int) -> str:
    return f"The request for {shards} shards was withdrawn: ask for them again when all clusters count"


def _row_values(row: LedgerRow) -> dict[str, object]:
    witness = row.witness
    known = {"topic_id": witness.topic_id, "batch": witness.batch, "offset": witness.offset}
    return {**known, "transactional_ids": list(row.transactional_ids)}


def lock_shards(statements: Statements) -> list[Any]:
    """Lock all shards, which comes first in the order of all locks, and return their rows. If an old leader's statement
    holds one, end its backends. Raises PostgresError.
    """
    try:
        return _locked(statements)
    except PostgresError as error:
        if not isinstance(error.__cause__, psycopg.errors.LockNotAvailable):
            raise
    for (shard,) in statements.rows("clusters.shards"):
        statements.row("fence.end_old_backends", {"shard": shard})
    return _locked(statements)


def _locked(statements: Statements) -> list[Any]:
    with translated(statements.outbox), statements.connection.transaction():
        statements.execute("connection.wait_briefly")
        return statements.named_rows("clusters.lock")
