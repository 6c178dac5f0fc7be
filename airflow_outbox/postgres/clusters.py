"""Several clusters: complete on one what is committed on another, and keep what those that do not count are owed.

`sql/clusters.sql` has the statements.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from psycopg import sql

from airflow_outbox.errors import OutboxMissingError
from airflow_outbox.postgres.connection import storable
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.membership import write_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.values.fence import LedgerPosition, LedgerRow, Skipped
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import Snapshot

if TYPE_CHECKING:
    from airflow_outbox.postgres.table import OutboxTable


class ClusterStatements:
    """The statements about several clusters over one connection. Methods raise PostgresError."""

    def __init__(self, table: OutboxTable) -> None:
        """The records of an outbox, over the same connection."""
        self._table = table

    def note_producers(self, view: UUID, cluster: str, transactional_ids: Sequence[str]) -> None:
        """Record producers' ids on a cluster, besides those that are recorded. Raises FencedError."""
        values = {"cluster": cluster, "transactional_ids": list(transactional_ids)}
        self._table.fenced_unless(self._table.row("clusters.note_producers", view=view, **values))

    def committed_rows(self, ids: Sequence[int], unparked: Sequence[int], snapshot: Snapshot) -> list[OutboxRow]:
        """Return the records with these ids that the snapshot sees, then the parked ones with these numbers, each in
        the given order.
        """
        rows = self._read("clusters.committed", ids=list(ids), snapshot=str(snapshot)) if ids else []
        return rows + (self._read("clusters.committed_parked", numbers=list(unparked)) if unparked else [])

    def keep_owed(
        self, view: UUID, batch: int, entry: str, *, ids: Sequence[int], unparked: Sequence[int], snapshot: Snapshot
    ) -> None:
        """Keep a batch for the clusters that are owed it: its entry, the records with these ids that the snapshot sees,
        and the parked ones with these numbers. Raises FencedError.
        """
        partition = sql.SQL("{}::integer").format(self._table.partition)
        values = {"batch": batch, "entry": entry, "ids": list(ids), "numbers": list(unparked)}
        row = self._table.row(
            "clusters.keep_owed", {"partition": partition}, view=view, snapshot=str(snapshot), **values
        )
        self._table.fenced_unless(row)

    def owed_entries(self, *, after: int, upto: int, most: int) -> list[list[dict[str, Any]]]:
        """Return the entries of the batches kept after the one up to the other, in order, each as its parts."""
        values = {"shard": self._table.shard, "after": after, "upto": upto, "most": most}
        return [entry for _, entry in self._table.statements.rows("clusters.owed_entries", values)]

    def owed_rows(self, batch: int) -> list[OutboxRow]:
        """Return the records kept of a batch, in published order."""
        values = {"shard": self._table.shard, "batch": batch}
        return cast("list[OutboxRow]", self._table.statements.rows("clusters.owed_rows", values))

    def drop_owed(self, view: UUID, *, seconds: float, most_bytes: int) -> int:
        """Forget what is kept for longer, or is more. Return how many batches that were. Raises FencedError."""
        row = self._table.row("clusters.drop_owed", view=view, seconds=seconds, bytes=most_bytes)
        return int(self._table.fenced_unless(row)[1])

    def last_owed(self) -> int:
        """Return the number of the last batch that is kept; 0: none is."""
        found = self._table.row("clusters.last_owed")
        return 0 if found is None or found[0] is None else int(found[0])

    def left_to_catch_up(self, cluster: str) -> int:
        """Return how many batches of all shards a cluster lacks, as far as Postgres knows."""
        return int(self._table.fenced_unless(self._table.row("clusters.left_to_catch_up", cluster=cluster))[0])

    def note_caught_up(self, view: UUID, cluster: str, witness: LedgerPosition) -> None:
        """An owed cluster has what it missed up to this batch. Raises FencedError."""
        values = {"topic_id": witness.topic_id, "batch": witness.batch, "offset": witness.offset}
        row = self._table.row("clusters.note_caught_up", view=view, cluster=cluster, **values)
        self._table.fenced_unless(row)

    def skip(self, view: UUID, cluster: str, skipped: Skipped) -> None:
        """An owed cluster does not get these records, since it has them alone. Raises FencedError."""
        value = json.dumps(asdict(skipped))
        self._table.fenced_unless(self._table.row("clusters.skip", view=view, cluster=cluster, skipped=value))

    def are_unpublished(self, ids: Sequence[int], numbers: Sequence[int]) -> bool:
        """Return whether a record with one of these ids waits in the outbox, or a parked one with one of these
        numbers.
        """
        found = self._table.row("clusters.unpublished", ids=list(ids), numbers=list(numbers))
        return found is not None and bool(found[0])

    def close_attach(self, view: UUID, cluster: str) -> bool:
        """Let nobody lead another shard until the cluster counts, or is refused. Return whether it is still asked for:
        otherwise nothing has changed. Raises FencedError.
        """
        _, is_asked_for = self._table.fenced_unless(
            self._table.row("clusters.close_attach", view=view, cluster=cluster)
        )
        return bool(is_asked_for)

    def attach(
        self,
        views: Mapping[int, UUID],
        successor: UUID,
        cluster: str,
        rows: Mapping[int, LedgerRow],
        *,
        lacks: bool = False,
    ) -> None:
        """An owed cluster counts as a backup from now on, with these rows by shard. The caller leads each shard under
        one of `views`. The fence names the `successor`. `lacks`: the cluster does not have what was published before.
        Raises FencedError.
        """
        table = self._table
        write_membership(
            table.connection,
            table.name,
            {cluster: "backup"},
            views={shard: (view, successor if shard == table.shard else None) for shard, view in views.items()},
            caught_up={cluster: rows},
            lacking=[cluster] if lacks else (),
        )

    def refuse_attach(self, view: UUID, cluster: str, reason: str) -> None:
        """Withdraw the request to attach a cluster, and say why it stays owed. Raises FencedError."""
        told = storable(self._table.connection, reason)
        self._table.fenced_unless(self._table.row("clusters.refuse", view=view, cluster=cluster, reason=told))

    def detach(self, view: UUID, successor: UUID, clusters: Collection[str], reason: str) -> None:
        """Backups count no longer, and are owed what they miss. The fence names the `successor`. Raises FencedError."""
        table = self._table
        told = storable(table.connection, reason)
        write_membership(
            table.connection,
            table.name,
            dict.fromkeys(clusters, "owed"),
            reasons=dict.fromkeys(clusters, told),
            views={table.shard: (view, successor)},
        )

    def _read(self, name: str, **values: Any) -> list[OutboxRow]:
        table = self._table
        query = table.statements.composed(
            name, partition=table.partition, key=table.key, measured=table.statements.composed("windows.measured")
        )
        with translated(table.name), table.connection.cursor(binary=True) as cursor:
            cursor.execute(query, {**values, "most_bytes": table.most_bytes})
            return cast("list[OutboxRow]", cursor.fetchall())


def ledger_rows(
    outbox: OutboxName, found: Mapping[str, Mapping[str, Any]], highest_id: int
) -> tuple[dict[str, LedgerRow], dict[str, LedgerRow]]:
    """Return the rows of backups, and those of owed clusters, as the fence row's statement shows them. Raises
    OutboxMissingError.
    """
    rows: dict[str, dict[str, LedgerRow]] = {"backup": {}, "owed": {}}
    for cluster, row in found.items():
        if "ledger_topic_id" not in row:
            raise OutboxMissingError(
                f"{outbox.text('ledger')} has no row for cluster {cluster}. Run `airflow-outbox init`"
            )
        witness = LedgerPosition(row["ledger_topic_id"], row["witnessed_batch"], row["ledger_offset"], highest_id)
        rows[row["part"]][cluster] = LedgerRow(witness, tuple(row["transactional_ids"]), _skipped(row["skipped"]))
    return rows["backup"], rows["owed"]


def _skipped(value: Mapping[str, Any] | None) -> Skipped | None:
    if value is None:
        return None
    ids, numbers = (tuple((int(first), int(last)) for first, last in value[name]) for name in ("ids", "numbers"))
    return Skipped(int(value["incarnation"]), ids, numbers)


def backups_value(rows: Mapping[str, LedgerRow]) -> str | None:
    """Return backups' rows as a value of a statement; None: there are none."""
    found = [
        {
            "cluster": cluster,
            "ledger_topic_id": row.witness.topic_id,
            "witnessed_batch": row.witness.batch,
            "ledger_offset": row.witness.offset,
            "transactional_ids": row.transactional_ids,
        }
        for cluster, row in rows.items()
    ]
    return json.dumps(found) if found else None
