"""Leaders keep the history of the last day: one statement every ten seconds, over a connection of its own, so that no
batch waits for it.

It notes the monitor's newest look, which costs nothing more. A failure is reported and ends nothing. While nobody
leads nothing is noted: readers see the gap.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from airflow_outbox.errors import OutboxError, PostgresUnreachableError
from airflow_outbox.harvest.health_monitor import HealthMonitor
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.harvest.threaded_connection import ReopenedConnection, within
from airflow_outbox.postgres.health_history import STEP, note_history
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.values.health_history import ShardNote
from airflow_outbox.values.judging import judge
from airflow_outbox.values.verdict import Facts, Thresholds

_LOOK_INTERVAL = 1.0
_OLDEST = 6.0  # seconds; the monitor looks every five
_PATIENCE = 12.0  # longer than Postgres waits for a lock, so that it can say so


class HistoryKeeper:
    """Notes what the monitor sees while this member `leads`. `opened` makes the connection."""

    def __init__(
        self,
        *,
        opened: Callable[[str], OutboxTable],
        leads: Callable[[], bool],
        monitor: HealthMonitor,
        measures: Measures,
        thresholds: Thresholds,
        complain: Callable[[str], None],
    ) -> None:
        """`leads` says whether it leads any shard."""
        self._leads = leads
        self._monitor = monitor
        self._measures = measures
        self._thresholds = thresholds
        self._complain = complain
        self._before: Facts | None = None
        self._connection = ReopenedConnection(opened, "history")

    async def run(self) -> None:
        """Until cancelled."""
        measures, wait = self._measures, _LOOK_INTERVAL
        since, before = measures.now(), measures.published
        while True:
            await asyncio.sleep(wait)
            now, published = measures.now(), measures.published
            if self._leads():
                wait = await self._note(rate=(published - before) / (now - since))
            else:
                self.close()
                wait = _LOOK_INTERVAL
            since, before = now, published  # what is published during a note counts for the next one

    def close(self) -> None:
        """End the connection, if there is one."""
        self._connection.end()

    async def _note(self, *, rate: float) -> float:
        """Note the newest look. Return after how many seconds to do so again."""
        look = await self._monitor.look(oldest=_OLDEST)
        notes = [] if look.facts is None else self._notes(look.facts, rate)
        if not notes:
            return STEP

        def note(table: OutboxTable) -> float:
            return note_history(table.connection, table.name, notes)

        try:
            async with within(_PATIENCE):
                return await self._connection.call(note)
        except PostgresUnreachableError:  # the harvest reports that itself
            return STEP
        except OutboxError as error:
            self._complain(f"the history of the last day: {error}")
            return STEP

    def _notes(self, facts: Facts, rate: float) -> list[ShardNote]:
        """The shards that this member leads. Those that nobody leads are noted by the first one's leader."""
        me, latency, now = member_name(), self._measures.latency, self._measures.now()
        rates = self._rates(facts) if facts.shards else {0: rate}
        p50, p99 = latency.quantiles(0.5, 0.99, at=now) or (None, None)
        notes = []
        for each in facts.each:
            is_led_here = each.member == me
            if is_led_here or (facts.each[0].member == me and not each.leads(self._thresholds)):
                notes.append(
                    ShardNote(
                        shard=each.shard or 0,
                        member=each.member,
                        state=judge(each, self._thresholds).state,
                        backlog=each.backlog,
                        rate=rates[each.shard or 0] if is_led_here else 0.0,
                        latency_p50=p50 if is_led_here else None,
                        latency_p99=p99 if is_led_here else None,
                    )
                )
        return notes

    def _rates(self, facts: Facts) -> dict[int, float]:
        """Records a second of each shard since the last look: this member's own count does not tell shards apart."""
        before, self._before = self._before, facts
        known = {} if before is None else {each.shard: each.published for each in before.shards}
        seconds = 0.0 if before is None else facts.seconds_since(before.now)
        return {
            each.shard or 0: max(0, each.published - known[each.shard]) / seconds
            if each.shard in known and seconds > 0
            else each.rate
            for each in facts.shards
        }
