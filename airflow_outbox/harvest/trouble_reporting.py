"""A member tells operators through Postgres that it can't do something now.

A leader writes why its term has failed into the fence row. Everything else is told here, in the member's own row, which
needs no fence and holds nobody up:

- Kafka gives no answer, or refuses the login, or lacks the outbox's own topics; of several clusters, any of them;
- a take-over has failed, so that there is no view under which the fence row could be written;
- a Kafka quota throttles the producers;
- batches go without their extents, so that positions are less exact.

The first is asked for all the time, whoever leads. The others are heard in the engine's events. A row is written when
something changes, and every few seconds while it lasts. It goes when the trouble is over, or when the member ends
gracefully.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.harvest.worker_thread import Worker
from airflow_outbox.postgres.connection import connect, located, storable
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.verdict import TroubleKind

_INTERVAL = 1.0
_REPEAT_INTERVAL = 5.0
_QUOTA_LASTS = 12.0  # seconds; while it lasts, the event comes every ten
_CLOSING_TIME = 1.0

Worst = tuple[TroubleKind, str, int | None]
"""A kind, a text, and the shard that it is about (None: all)."""


class StandingTroubles:
    """Passes the engine's events on, and knows from them what stands; times are the event loop's."""

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        self._events = events
        self._now = now
        self._standing: dict[tuple[TroubleKind, int | None], tuple[str, float]] = {}  # the text, and until when
        self._leads: set[int] = set()
        self._without_extents: dict[tuple[int, str], str] = {}  # by shard and cluster
        self.clusters: Mapping[str, str | None] = {}
        """Why each of several clusters can't be used; None where it can."""

    def __call__(self, event: str, /, **fields: object) -> None:
        if event == "progress" and self.clusters:
            self._events("progress", **fields, clusters=dict(self.clusters))
        else:
            self._events(event, **fields)
        if event == "throttled":
            client_id = fields["client_id"]
            text = f"a Kafka quota throttles client id {client_id}. Raise its producer_byte_rate, or send less"
            self.found(TroubleKind.QUOTA, text, lasts=_QUOTA_LASTS)
        elif event == "extents":
            self._heard_of_extents(_shard(fields), str(fields["cluster"]), fields["error"])
        elif event == "error" and fields.get("retry_in") is not None:
            if (shard := _shard(fields)) not in self._leads:
                self.found(TroubleKind.TAKE_OVER, str(fields["error"]), shard=shard)
            self._leads.discard(shard)
        elif event in ("view", "stood_by", "fenced"):
            shard = _shard(fields)
            (self._leads.add if event == "view" else self._leads.discard)(shard)
            self.found(TroubleKind.TAKE_OVER, None, shard=shard)
            self._forget_extents(shard)
        elif event == "resigned":  # from all shards
            self._leads.clear()
            for kind, number in [*self._standing]:
                if kind is TroubleKind.TAKE_OVER:
                    self.found(kind, None, shard=number)
                elif kind is TroubleKind.EXTENTS and number is not None:
                    self._forget_extents(number)

    def _heard_of_extents(self, shard: int, cluster: str, error: object) -> None:
        """Batches go without extents there; or, without an error, they have them again."""
        self._without_extents.pop((shard, cluster), None)
        if error is not None:
            text = f"batches on cluster {cluster} go without extents, which makes positions less exact: {error}"
            self._without_extents[shard, cluster] = text
        first = next((text for (number, _), text in self._without_extents.items() if number == shard), None)
        self.found(TroubleKind.EXTENTS, first, shard=shard)

    def _forget_extents(self, shard: int) -> None:
        """Whoever leads the shard from now on tells of them."""
        for key in [key for key in self._without_extents if key[0] == shard]:
            del self._without_extents[key]
        self.found(TroubleKind.EXTENTS, None, shard=shard)

    def found(self, kind: TroubleKind, text: str | None, *, shard: int | None = None, lasts: float = math.inf) -> None:
        """This kind of trouble is there, with this shard or all, for at most this many seconds; None: it is over."""
        self._standing.pop((kind, shard), None)
        if text is not None:
            self._standing[kind, shard] = text, self._now() + lasts

    @property
    def worst(self) -> Worst | None:
        now = self._now()
        return next(
            (
                (kind, text, shard)
                for wanted in TroubleKind
                for (kind, shard), (text, until) in self._standing.items()
                if kind is wanted and now < until
            ),
            None,
        )


def _shard(fields: Mapping[str, object]) -> int:
    """The shard that an event is about; events of a single one may leave it out."""
    shard = fields.get("shard")
    return shard if isinstance(shard, int) else 0


class TroubleTeller:
    """Asks Kafka once a second, and keeps the member's row."""

    def __init__(
        self,
        data_source: str,
        name: OutboxName,
        troubles: StandingTroubles,
        asks: Mapping[str, Callable[[], str | None]],
        parts: Callable[[], Mapping[str, str]],
        on_unreached: Callable[[str], object] = lambda _: None,
    ) -> None:
        """`asks` has a function for each cluster that returns why it can't be used, or None. They may block. `parts`
        returns those of several clusters, as far as they are known. `on_unreached` is told why one can't be used.
        """
        self._data_source = data_source
        self._name = name
        self._troubles = troubles
        self._asks = asks
        self._parts = parts
        self._on_unreached = on_unreached
        self._told: Worst | None = None
        self._may_have_a_row = False
        self._asking = {cluster: Worker("outbox-reach") for cluster in asks}
        self._telling = Worker("outbox-trouble")

    async def run(self) -> None:
        """Until cancelled."""
        loop, repeat_at = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(_INTERVAL)
            self._heard(await asyncio.gather(*(self._asking[cluster].call(ask) for cluster, ask in self._asks.items())))
            worst = self._troubles.worst
            if worst != self._told or (worst is not None and loop.time() >= repeat_at):
                repeat_at = loop.time() + _REPEAT_INTERVAL
                with contextlib.suppress(OutboxError):  # it is tried again
                    await self.tell(worst)

    def _heard(self, failures: Sequence[str | None]) -> None:
        """Note the answers about all clusters. Without the primary, nobody leads. Owed clusters don't count."""
        found = dict(zip(self._asks, failures, strict=True))
        for failure in filter(None, failures):
            self._on_unreached(failure)
        if len(found) == 1:
            self._troubles.found(TroubleKind.KAFKA, failures[0])
            return
        self._troubles.clusters = found
        parts = self._parts()
        for kind, part in ((TroubleKind.KAFKA, "primary"), (TroubleKind.CLUSTER, "backup")):
            failing = (f"cluster {name}: {why}" for name, why in found.items() if why and parts.get(name) == part)
            self._troubles.found(kind, next(failing, None))

    async def tell(self, worst: Worst | None) -> None:
        """Write the row now, or remove it. Raises PostgresError."""
        self._may_have_a_row = True
        await self._telling.call(self._write, worst)
        self._told = worst

    async def close(self) -> None:
        """Remove the row, since this member ends gracefully, unless Postgres takes too long. Then `end`."""
        if self._may_have_a_row:
            with contextlib.suppress(OutboxError, TimeoutError):
                async with asyncio.timeout(_CLOSING_TIME):
                    await self.tell(None)
        self.end()

    def end(self) -> None:
        """End the threads; the row stays as it is."""
        for worker in (*self._asking.values(), self._telling):
            worker.end()

    def _write(self, worst: Worst | None) -> None:
        with closing(connect(self._data_source, purpose="trouble")) as connection:
            statements = Statements(connection, located(connection, self._name))
            if worst is None:
                statements.execute("trouble.over", {"member": member_name()})
                return
            kind, text, shard = worst
            error = storable(connection, text)
            values = {"member": member_name(), "kind": kind.value, "error": error, "shard": shard}
            statements.execute("trouble.tell", values)
