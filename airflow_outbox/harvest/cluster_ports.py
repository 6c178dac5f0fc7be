"""The part of the port `Table` that is about several clusters: what is completed on one of them, what one is owed, and
which of them count.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Protocol
from uuid import UUID

from airflow_outbox.harvest.protocol.ledger import Entry
from airflow_outbox.values.fence import LedgerPosition, LedgerRow, Skipped
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import Snapshot


class ClusterTable(Protocol):
    """Any method may raise PostgresError; its effect may then have happened or not."""

    async def note_producers(self, view: UUID, cluster: str, transactional_ids: Sequence[str]) -> None:
        """Record the ids of producers that complete a batch on a cluster before `begin`, besides those recorded before.

        Durable when it returns. Raises FencedError.
        """

    async def committed_rows(
        self, ids: Sequence[int], unparked: Sequence[int], snapshot: Snapshot
    ) -> Sequence[OutboxRow]:
        """The records with these ids whose transactions the snapshot sees, and then the parked ones with these numbers,
        each in the given order. Those that are not there are left out.
        """

    async def keep_owed(self, view: UUID, entry: Entry) -> None:
        """Keep a committed batch for the clusters that are owed it, before any of it is purged, unless it is kept
        already. Raises FencedError.
        """

    async def owed_entries(self, *, after: int, upto: int, most: int) -> Sequence[Entry]:
        """The entries of the first kept batches after one batch and up to another, at most this many, in order."""

    async def owed_rows(self, batch: int) -> Sequence[OutboxRow]:
        """The records kept of a batch, as they were published. Each has its place in the batch in place of an id."""

    async def drop_owed(self, view: UUID, *, seconds: float, most_bytes: int) -> int:
        """Forget the oldest kept batches: those kept for longer than this many seconds, and those beyond the newest
        bytes. Return how many. Raises FencedError.
        """

    async def last_owed(self) -> int:
        """The number of the last batch that is kept; 0: none is."""

    async def left_to_catch_up(self, cluster: str) -> int:
        """How many batches of all shards are kept that a cluster is not noted to have."""

    async def note_caught_up(self, view: UUID, cluster: str, witness: LedgerPosition) -> None:
        """An owed cluster has what it missed, up to this batch. Durable when it returns. Raises FencedError."""

    async def skip(self, view: UUID, cluster: str, skipped: Skipped) -> None:
        """An owed cluster does not get these records, since it has them alone: they replace those named before.

        Durable when it returns. Raises FencedError.
        """

    async def are_unpublished(self, ids: Sequence[int], numbers: Sequence[int]) -> bool:
        """Whether a record with one of these ids waits in the outbox, or a parked one with one of these numbers."""

    async def close_attach(self, view: UUID, cluster: str) -> bool:
        """Let nobody lead any shard but the first until the cluster is attached or refused. Return whether it is still
        asked for: otherwise nothing has changed. Raises FencedError.
        """

    async def attach(
        self,
        views: Mapping[int, UUID],
        successor: UUID,
        cluster: str,
        rows: Mapping[int, LedgerRow],
        *,
        lacks: bool = False,
    ) -> None:
        """An owed cluster counts as a backup from now on, with these rows by shard. The caller leads each shard under
        one of `views`; then the fence names the `successor`. `lacks`: the cluster does not have what was published
        before. Raises FencedError.
        """

    async def refuse_attach(self, view: UUID, cluster: str, reason: str) -> None:
        """Withdraw the request to attach a cluster, if it is the one that is asked for. Raises FencedError."""

    async def detach(self, view: UUID, successor: UUID, clusters: Collection[str], reason: str) -> None:
        """Backups count no longer, and are owed what they miss. The fence names the `successor`. Raises FencedError."""
