"""An outbox of a list that is awake: a member of its own, over what it shares with the others."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

import psycopg

from airflow_outbox.errors import ConfigurationError, OutboxError
from airflow_outbox.harvest.assembly import Assembly, Shared, assembled
from airflow_outbox.harvest.config import HarvestConfig, Limits
from airflow_outbox.harvest.kafka.names import KafkaNames
from airflow_outbox.harvest.kafka.topic_cache import TopicCache
from airflow_outbox.harvest.many.connection_pool import ConnectionPool, PooledLooks
from airflow_outbox.harvest.many.given_lead import GivenLead
from airflow_outbox.harvest.measures import Measures
from airflow_outbox.harvest.member import Member
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.protocol.places import Awake
from airflow_outbox.harvest.worker_thread import Watchdog
from airflow_outbox.postgres.archive import Archive
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.table import Identity, OutboxTable
from airflow_outbox.values.layout import Layout

_POLL_INTERVAL = 0.003
"""Seconds between the looks of an outbox whose records come: each is a statement, and there are several outboxes."""


@dataclass(slots=True)
class Progress:
    """How far an awake outbox is, as it has told last, and what it has published since somebody asked."""

    in_flight: int = 0
    published: int = 0
    topics: Counter[str] = field(default_factory=Counter)


def limits_of_one(limits: Limits) -> Limits:
    """Return the limits of each awake outbox. Together they keep those that are configured for the process."""
    changed: dict[str, Any] = {
        "max_in_flight_records": max(1, limits.max_in_flight_records // limits.awake_outboxes),
        "max_in_flight_bytes": max(1, limits.max_in_flight_bytes // limits.awake_outboxes),
    }
    if "poll_interval" not in limits.model_fields_set:
        changed["poll_interval"] = _POLL_INTERVAL
    return limits.model_copy(update=changed)


class AwakeOutbox:
    """Harvests one outbox, until it is laid to rest."""

    def __init__(self, name: OutboxName, config: HarvestConfig, *, events: Events, now: Callable[[], float]) -> None:
        """`config` is the outbox's own. `events` are those of the whole list; each one names the outbox."""
        self.name = name
        self._config = config.model_copy(update={"limits": limits_of_one(config.limits)})
        self._events = events
        self._now = now
        self._lead = GivenLead()
        self._member: Member | None = None
        self._running: asyncio.Task[None] | None = None
        self._since = now()
        self._busy_at: float | None = None  # nobody knows before it harvests
        self._leaves = False
        self.progress = Progress()

    @property
    def place(self) -> Awake:
        """Since when it is awake, and when it had something to do: never again, once it is being laid to rest."""
        if self._leaves:
            return Awake(self._since, float("-inf"))
        return Awake(self._since, self._now() if self._busy_at is None else self._busy_at)

    @property
    def trouble(self) -> str | None:
        """Why it can't go on by itself; None while it can."""
        if self._running is not None and self._running.done() and not self._running.cancelled():
            error = self._running.exception()
            if isinstance(error, OutboxError):
                return str(error)
            if error is not None:
                return f"a bug in airflow-outbox: {error!r}"
        return self._lead.over

    @property
    def was_fenced(self) -> bool:
        """Whether another member leads now."""
        return self._lead.was_fenced

    async def start(
        self, pool: ConnectionPool, topics: TopicCache, watchdog: Watchdog, complain: Callable[[str], None]
    ) -> None:
        """Begin to harvest. Raises ConfigurationError, PostgresError, KafkaError."""

        def table_of(connection: psycopg.Connection[Any]) -> OutboxTable:
            return OutboxTable(connection, self.name, archives=self._config.archives)

        shared = Shared(self._lead, PooledLooks(pool, table_of), topics, watchdog)

        async def assemble() -> Assembly:
            identity = await pool.call(lambda connection: self._identify(table_of(connection)))
            names = KafkaNames.of(self._config, identity.outbox_id)
            return await assembled(
                self._config,
                self.name,
                names,
                outbox_id=identity.outbox_id,
                layout=Layout(identity.layout, identity.shards),
                partitions=1,
                events=self._tell,
                measures=Measures(self._now),
                complain=complain,
                tracing=None,
                primary=identity.primary,
                promotions=identity.promotions,
                shared=shared,
            )

        self._member = Member(await assemble(), assemble=assemble, events=self._tell)
        self._running = asyncio.create_task(self._member.run())

    async def stop(self, grace: float) -> None:
        """Finish what is in flight, for at most `grace` seconds, and let the outbox go."""
        self._leaves = True
        if self._member is not None and self._running is not None:
            if not self._running.done():
                await self._member.stop(grace)
            with contextlib.suppress(Exception):  # it was told as `trouble`
                await self._running

    def _identify(self, table: OutboxTable) -> Identity:
        _ = table.columns
        table.require_sound()
        if self._config.archives:
            Archive(table.connection, table.name).require()
        identity = table.identity()
        if identity.shards > 1:
            raise ConfigurationError(
                f"{self.name} has {identity.shards} shards, but an outbox of a list has one. Run "
                "`airflow-outbox reshard 1`, or leave it out of the list and harvest it by itself"
            )
        return identity

    def _tell(self, event: str, /, **fields: object) -> None:
        """Pass an event on, with the outbox; `progress` is only noted, because the list tells its own."""
        if event != "progress":
            if event == "took_over":
                self._busy_at = self._now()
            self._events(event, **{"outbox": str(self.name), **fields})
            return
        topics = cast("Mapping[str, int]", fields["topics"])
        self.progress.in_flight = cast("int", fields["in_flight"])
        self.progress.published = cast("int", fields["published"])
        self.progress.topics.update(topics)
        if self._busy_at is not None and (topics or self.progress.in_flight):
            self._busy_at = self._now()
