"""The harvester's statements about several clusters in the simulated Postgres."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from uuid import UUID

from simulation.database_state import OwedBatch
from simulation.locking import LockingServer

from airflow_outbox.errors import FencedError, PostgresUnreachableError
from airflow_outbox.harvest.protocol.ledger import Entry, expanded
from airflow_outbox.values.fence import LedgerPosition, LedgerRow, Skipped
from airflow_outbox.values.layout import Layout
from airflow_outbox.values.pages import OutboxRow
from airflow_outbox.values.records import Snapshot


class ClusterStatements(LockingServer):
    """Which clusters count, and what they are owed."""

    def note_producers(self, view: UUID | None, cluster: str, transactional_ids: Sequence[str]) -> None:
        self.require(view)
        row = self.row
        if cluster == row.primary:
            ids = tuple(dict.fromkeys([*row.transactional_ids, *transactional_ids]))
            return self.set_fence(replace(row, transactional_ids=ids))
        home = "backups" if cluster in row.backups else "owed"
        rows = getattr(row, home)
        ids = tuple(dict.fromkeys([*rows[cluster].transactional_ids, *transactional_ids]))
        self.set_fence(replace(row, **{home: {**rows, cluster: replace(rows[cluster], transactional_ids=ids)}}))

    def committed_rows(self, ids: Sequence[int], unparked: Sequence[int], snapshot: Snapshot) -> list[OutboxRow]:
        state = self.database.state
        rows = [(number, state.rows[number]) for number in ids if number in state.rows]
        found = [(number, row) for number, row in rows if snapshot.sees(row.transaction_id)]
        parked = [(number, state.parked[number]) for number in unparked if number in state.parked]
        return [(number, *row.record[1:], row.record.size, row.transaction_id) for number, row in (*found, *parked)]

    def keep_owed(self, entry: Entry) -> None:
        state = self.database.state
        rows = [state.rows.get(number) for number in entry.ids()]
        rows = [row for row in rows if row is not None and entry.snapshot.sees(row.transaction_id)]
        parked = [state.parked[number] for number in expanded(entry.unparked) if number in state.parked]
        self.database.statement("keep", OwedBatch(entry, [row.record for row in (*rows, *parked)], self.shard))

    def owed_entries(self, after: int, upto: int, most: int) -> list[Entry]:
        own = {batch: kept.entry for (shard, batch), kept in self.database.state.owed.items() if shard == self.shard}
        return [entry for batch, entry in sorted(own.items()) if after < batch <= upto][:most]

    def last_owed(self) -> int:
        return max((batch for shard, batch in self.database.state.owed if shard == self.shard), default=0)

    def owed_rows(self, batch: int) -> list[OutboxRow]:
        kept = self.database.state.owed.get((self.shard, batch))
        records = kept.records if kept is not None else ()
        return [(place, *record[1:], record.size, None) for place, record in enumerate(records, 1)]

    def left_to_catch_up(self, cluster: str) -> int:
        state = self.database.state
        known = {shard: row.owed[cluster].witness.batch for shard, row in state.fences.items() if cluster in row.owed}
        return sum(batch > known.get(shard, batch) for shard, batch in state.owed)

    def note_caught_up(self, view: UUID | None, cluster: str, witness: LedgerPosition) -> None:
        self.require(view)
        owed = self.row.owed
        self.set_fence(replace(self.row, owed={**owed, cluster: replace(owed[cluster], witness=witness)}))

    def skip(self, view: UUID | None, cluster: str, skipped: Skipped) -> None:
        self.require(view)
        self.database.were_accepted.add(cluster)
        self.set_fence(replace(self.row, skipped={**self.row.skipped, cluster: skipped}))

    def are_unpublished(self, ids: Sequence[int], numbers: Sequence[int]) -> bool:
        state = self.database.state
        parked = [state.parked[number] for number in numbers if number in state.parked]
        return any(number in state.rows for number in ids) or not all(row.discarded for row in parked)

    def close_attach(self, view: UUID, cluster: str) -> bool:
        self.require(view)
        whole = self.database.state.fence
        if whole.attach == cluster:
            self.set_fence(replace(whole, attaches=True), 0)
        return whole.attach == cluster

    def drop_owed(self, most_bytes: int) -> int:
        size, gone = 0, []
        own = [key for key in self.database.state.owed if key[0] == self.shard]
        for key in sorted(own, reverse=True):
            size += 100 + sum(record.size for record in self.database.state.owed[key].records)
            if size > most_bytes:
                gone.append(key)
        self.database.statement("drop", tuple(gone))
        return len(gone)

    def ask_layout(self, shards: int | None) -> None:
        """An operator asks for another number of shards (None: for none any more), unless a cluster is owed records."""
        state = self.database.state
        if shards is None or not state.fence.owed:
            self.database.statement("ask_layout", Layout(state.layout.number, state.layout.shards, shards))

    def attach(self, views: Mapping[int, UUID], successor: UUID, cluster: str, rows: Mapping[int, LedgerRow]) -> None:
        fences = self.database.state.fences
        if any(fences[shard].view != view for shard, view in views.items()):
            raise FencedError
        row = self.database.state.fence
        self.write_membership(row.primary, [*row.backups, cluster], successor=successor, caught_up={cluster: rows})

    def promote(self, views: Mapping[int, UUID], cluster: str, rows: Mapping[int, LedgerRow]) -> None:
        """An owed cluster is the primary, and counts alone."""
        if not self.database.up:
            raise PostgresUnreachableError("simulated: Postgres is down")
        if any(self.database.state.fences[shard].view != view for shard, view in views.items()):
            raise FencedError
        self.write_membership(cluster, [], caught_up={cluster: rows})

    def detach(self, view: UUID, successor: UUID, clusters: Collection[str]) -> None:
        self.require(view)
        row = self.row
        left = [cluster for cluster in row.backups if cluster not in clusters]
        self.write_membership(row.primary, left, successor=successor)

    def refuse_attach(self, view: UUID, cluster: str, reason: str) -> None:
        self.require(view)
        whole = self.database.state.fence
        if whole.attach == cluster:
            self.database.refusals.append(reason)
            self.set_fence(replace(whole, attach=None, attaches=False), 0)

    def write_membership(
        self,
        primary: str,
        backups: Collection[str],
        *,
        successor: UUID | None = None,
        caught_up: Mapping[str, Mapping[int, LedgerRow]] | None = None,
    ) -> None:
        """These clusters count from now on, and the others are owed what they miss. All views are void."""
        for shard, row in sorted(self.database.state.fences.items()):
            row = replace(row, attach=None, attaches=False, membership=row.membership + 1)
            known = {row.primary: LedgerRow(row.witness, row.transactional_ids), **row.backups, **row.owed}
            known |= {cluster: rows[shard] for cluster, rows in (caught_up or {}).items() if shard in rows}
            new = successor if shard == self.shard and successor else None
            self.set_fence(
                replace(
                    row,
                    view=new or UUID(int=self._random.getrandbits(128), version=4),
                    is_led=False,
                    primary=primary,
                    witness=replace(known[primary].witness, highest_id=row.witness.highest_id),
                    transactional_ids=known[primary].transactional_ids,
                    backups={cluster: known[cluster] for cluster in backups},
                    owed={cluster: known[cluster] for cluster in known if cluster not in (primary, *backups)},
                ),
                shard,
            )
        self.database.were_owed |= self.database.state.fence.owed.keys()
        if not self.database.state.fence.owed:
            self.database.statement("forget")
        else:
            self.withdraw_layout()

    def withdraw_layout(self) -> None:
        """While a cluster is owed records, nobody asks for another number of shards."""
        if self.database.state.layout.wanted is not None:
            self.ask_layout(None)
