"""A member looks at the outbox as operators do, whoever leads: at verdict and metrics, over a connection of its own.

Every five seconds it reports the metrics, and the verdict when that is news. Whoever else asks shares the newest look,
which is at most a second old. As often, it tells operators that it is there.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from datetime import datetime

from airflow_outbox import __version__
from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.metric_values import of_member, of_outbox
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.harvest.threaded_connection import ReopenedConnection, within
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.postgres.verdict_facts import read_facts
from airflow_outbox.values.judging import judge, unknown
from airflow_outbox.values.metrics import PUBLISHED, Sample, nested
from airflow_outbox.values.verdict import Facts, Thresholds, Verdict

_INTERVAL = 5.0
_SHARE = 20
"""A look that takes long, for dead rows, is followed by a pause of this many times as long, up to a minute."""
_LONGEST_INTERVAL = 60.0
_FRESH = 1.0
_CLOSING_TIME = 1.0
NO_PARTS: Mapping[str, str] = {}
LONGEST_LOOK = 3.0
"""Seconds until Postgres counts as not reachable."""


@dataclass(frozen=True, slots=True)
class HealthReport:
    """The verdict at a time of the clock that measures, and the facts that it is made of (None: Postgres is away)."""

    at: float
    verdict: Verdict
    facts: Facts | None


class HealthMonitor:
    """Looks over the connection that `opened` makes. A look never fails: without an answer the verdict is UNKNOWN."""

    def __init__(
        self,
        *,
        opened: Callable[[str], OutboxTable],
        thresholds: Thresholds,
        measures: Measures,
        events: Events,
        on_layout: Callable[[int], object] = lambda _: None,
        on_unreached: Callable[[str], object] = lambda _: None,
        parts: Mapping[str, str] = NO_PARTS,
    ) -> None:
        """`on_layout` is told the number of the layout with every look, and `on_unreached` why a look has failed. Until
        the first look, the clusters have these `parts`.
        """
        self._thresholds = thresholds
        self._measures = measures
        self._events = events
        self._on_layout = on_layout
        self._on_unreached = on_unreached
        self._parts = dict(parts)
        self._connection = ReopenedConnection(opened, "observe")
        self._one_at_a_time = asyncio.Lock()
        self._newest: HealthReport | None = None
        self._told: tuple[object, ...] | None = None
        self._is_known = False

    async def run(self) -> None:
        """Look and report until cancelled. A new member needs some seconds to be elected: they are no news."""
        now, interval = self._measures.now, _INTERVAL
        while True:
            await asyncio.sleep(interval)
            began = now()
            look = await self.look()
            interval = min(max(_INTERVAL, _SHARE * (now() - began)), _LONGEST_INTERVAL) if look.facts else _INTERVAL
            self._tell(look)

    async def tell_presence(self) -> None:
        """Tell operators every five seconds that this member is there, until cancelled.

        It never fails. Without Postgres, or the right to tell them, they see only whether it leads.
        """
        now = self._measures.now
        began = now()
        while True:
            self._is_known = True  # it may be, even if there is no answer
            with contextlib.suppress(OutboxError):
                async with self._one_at_a_time, within(LONGEST_LOOK):
                    await self._connection.call(_is_there, now() - began)
            await asyncio.sleep(_INTERVAL)

    async def look(self, *, oldest: float | None = None) -> HealthReport:
        """Return how the outbox is doing, as of at most this many seconds ago (None: one); it takes at most three."""
        async with self._one_at_a_time:
            if self._newest is None or self._measures.now() - self._newest.at > (_FRESH if oldest is None else oldest):
                self._newest = await self._look()
            return self._newest

    def parts(self) -> Mapping[str, str]:
        """Return each cluster's part, as of the newest look."""
        return self._parts

    async def samples(self) -> list[Sample]:
        """Return all metrics' present values."""
        return self._samples(await self.look())

    async def close(self) -> None:
        """Tell operators that this member has ended, unless Postgres takes too long, and end the connection."""
        if self._is_known:
            with contextlib.suppress(OutboxError, TimeoutError):
                async with asyncio.timeout(_CLOSING_TIME):
                    await self._connection.call(_has_ended)
        self._connection.end()

    async def _look(self) -> HealthReport:
        try:
            async with within(LONGEST_LOOK):
                facts = await self._connection.call(_facts)
        except OutboxError as error:
            self._on_unreached(str(error))
            return HealthReport(self._measures.now(), unknown(str(error)), None)
        self._on_layout(facts.layout)
        self._parts.update({cluster.name: cluster.part for cluster in facts.clusters})
        return HealthReport(self._measures.now(), judge(facts, self._thresholds), facts)

    def _samples(self, look: HealthReport) -> list[Sample]:
        return [*of_outbox(look.facts, look.verdict, self._thresholds), *of_member(self._measures)]

    def _tell(self, look: HealthReport) -> None:
        """Report the metrics, and a new verdict. Counts and ages in its cause are no news."""
        samples = [sample for sample in self._samples(look) if sample.metric is not PUBLISHED]
        verdict = look.verdict
        shown = {**asdict(verdict), "state": verdict.state.value, "since": _text(verdict.since)}
        self._events("measured", metrics=nested(samples), verdict=shown)
        news = verdict.state, verdict.remedy
        if news != self._told:
            self._told = news
            self._events(
                "verdict",
                state=verdict.state.value,
                cause=verdict.cause,
                since=_text(verdict.since),
                remedy=verdict.remedy,
                notes=verdict.notes,
            )


def _facts(table: OutboxTable) -> Facts:
    return read_facts(table.connection, table.name)


def _is_there(table: OutboxTable, seconds: float) -> None:
    values = {"member": member_name(), "release": __version__, "age": seconds}
    Statements(table.connection, table.name).execute("member.tell", values)


def _has_ended(table: OutboxTable) -> None:
    Statements(table.connection, table.name).execute("member.over", {"member": member_name()})


def _text(time: datetime | None) -> str | None:
    return None if time is None else time.isoformat(timespec="seconds")
