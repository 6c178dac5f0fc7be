"""The statements about parked records in the simulated Postgres."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence

from simulation.database_state import Row
from simulation.locking import LockingServer

from airflow_outbox.harvest.protocol.ledger import Parked, expanded
from airflow_outbox.values.pages import Length, OutboxRow
from airflow_outbox.values.records import Key, Lane, short_key
from airflow_outbox.values.refusals import Cause, Refusal


class ParkedStatements(LockingServer):
    """Which records are parked, tried again, and discarded."""

    def parked_lanes(self, most: int) -> tuple[dict[str, Counter[Key]], set[str], dict[str, int]]:
        own = self.row.has
        waiting = [row for row in self.database.state.parked.values() if not row.discarded and own(row.record)]
        lanes: dict[str, Counter[Key]] = {}
        for row in waiting:
            lanes.setdefault(row.record.topic, Counter())[short_key(row.record.key)] += 1
        refused = {row.record.topic for row in waiting if row.refusal and row.refusal.cause.is_of_the_topic}
        counted: dict[str, int] = {}
        while sum(keys.total() for keys in lanes.values()) > most:
            topic = max(lanes, key=lambda topic: (lanes[topic].total(), topic))
            counted[topic] = lanes.pop(topic).total()
        return lanes, refused, counted

    def waiting_lanes(self, lanes: Sequence[Lane], leaving: Collection[int]) -> set[Lane]:
        parked = self.database.state.parked
        standing = (row.record for number, row in parked.items() if not row.discarded and number not in leaving)
        return set(lanes) & {(record.topic, record.key) for record in standing}

    def park(self, parked: Sequence[Parked], unless: Callable[[Row], bool]) -> None:
        number = self.database.state.next_number
        moves: list[tuple[int, int, Refusal | None]] = []
        for group in parked:
            refusal = None if group.cause is None else Refusal(Cause(group.cause), group.reason or "")
            moves += [
                (identity, 0, refusal) for identity in self._found(expanded(group.runs), lambda row: not unless(row))
            ]
        moves = [(identity, number + place, refusal) for place, (identity, _, refusal) in enumerate(sorted(moves))]
        if moves:
            self.database.statement("park", tuple(moves))

    def parked_due(self, *, max_records: int, of_all_lanes: bool) -> list[OutboxRow]:
        parked, own = self.database.state.parked, self.row.has
        rows = sorted((number, row) for number, row in parked.items() if not row.discarded and own(row.record))
        asked = [row for _, row in rows if row.due or row.requested == "retry"]
        lanes = {row.record[1:3] for row in asked}
        topics = {row.record.topic for row in asked if row.refusal and row.refusal.cause.is_of_the_topic}
        refused = {row.record[1:3]: number for number, row in reversed(rows) if row.has_a_cause_of_its_own}
        due = [
            (number, *row.record[1:], 0, row.transaction_id)
            for number, row in rows
            if (of_all_lanes and asked)
            or row.record[1:3] in lanes
            or (row.record.topic in topics and number < refused.get(row.record[1:3], number + 1))
        ]
        return due[:max_records]

    def parked_in_part(self) -> set[int]:
        state = self.database.state
        return {row.transaction_id for row in state.parked.values()} & {
            row.transaction_id for row in state.rows.values()
        }

    def parked_lengths(self, transaction_ids: Collection[int]) -> dict[int, Length]:
        found: dict[int, list[int]] = {}
        waiting = {number: row for number, row in self.database.state.parked.items() if not row.discarded}
        for number, row in waiting.items():
            if row.transaction_id in transaction_ids:
                found.setdefault(row.transaction_id, []).append(number)
        stays = {row.transaction_id for row in waiting.values() if row.waits_to_be_asked_for}
        if any(row.requested == "retry" for row in waiting.values()):
            stays.clear()
        left = Counter(row.transaction_id for row in self.database.state.rows.values())
        return {
            number: Length(len(numbers) + left[number], max(numbers))
            for number, numbers in found.items()
            if number not in stays
        }

    def unpark(self, numbers: Sequence[int]) -> None:
        parked = self.database.state.parked
        self.database.unpark(number for number in numbers if number in parked)

    def asked_for(self) -> set[int]:
        """The numbers of the records for which a retry is asked."""
        return {number for number, row in self.database.state.parked.items() if row.requested == "retry"}

    def note_refusals(
        self, refusals: Mapping[int, Refusal], others: Collection[int], *, asked_since: Collection[int]
    ) -> None:
        parked = self.database.state.parked
        there = {number: why for number, why in refusals.items() if number in parked}
        behind = {
            number
            for number, row in parked.items()
            for head, why in there.items()
            if number > head and not row.discarded and (row.due or row.requested == "retry")
            if row.record.topic == parked[head].record.topic
            if row.record.key == parked[head].record.key or (why.cause.is_of_the_topic and self.row.has(row.record))
        }
        answered = [number for number in {*others, *behind} - there.keys() - {*asked_since} if number in parked]
        self.database.statement("refuse", there, sorted(answered), sorted(there.keys() & {*asked_since}))

    def release(self, max_records: int) -> bool:
        held = self.database.state.released(max_records, self.shard)
        self.database.statement("release", held)
        return len(held) == max_records

    def discard_requested(self) -> list[Lane]:
        asked = [
            (number, row)
            for number, row in self.database.state.parked.items()
            if row.requested == "discard" and not row.discarded and self.row.has(row.record)
        ]
        if asked:
            self.database.statement("discard", tuple(number for number, _ in asked))
        return [(row.record.topic, row.record.key) for _, row in asked]

    def _found(self, ids: Sequence[int], condition: Callable[[Row], bool]) -> tuple[int, ...]:
        rows = self.database.state.rows
        return tuple(number for number in dict.fromkeys(ids) if number in rows and condition(rows[number]))
