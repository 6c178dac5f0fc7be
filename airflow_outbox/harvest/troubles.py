"""A member tells operators through Postgres that it can't do something now.

A leader writes why its term has failed into the fence row. Everything else is told here, in the member's own row, which
needs no fence and holds nobody up:

- Kafka gives no answer, or refuses the login, or lacks the outbox's own topics;
- a take-over has failed, so that there is no view under which the fence row could be written;
- a Kafka quota throttles the producers.

The first is asked for all the time, whoever leads. The others are heard in the engine's events. A row is written when
something changes, and every few seconds while it lasts. It goes when the trouble is over, or when the member ends
gracefully.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
from collections.abc import Callable
from contextlib import closing

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.ports import Events
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.harvest.worker import Worker
from airflow_outbox.postgres.connection import connect, located, storable
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements
from airflow_outbox.values.verdict import TroubleKind

_INTERVAL = 1.0
_REPEAT_INTERVAL = 5.0
_QUOTA_LASTS = 12.0  # seconds; while it lasts, the event comes every ten
_CLOSING_TIME = 1.0

Worst = tuple[TroubleKind, str]


class StandingTroubles:
    """Passes the engine's events on, and knows from them what stands; times are the event loop's."""

    def __init__(self, events: Events, now: Callable[[], float]) -> None:
        self._events = events
        self._now = now
        self._standing: dict[TroubleKind, tuple[str, float]] = {}  # the text, and until when
        self._leads = False

    def __call__(self, event: str, /, **fields: object) -> None:
        self._events(event, **fields)
        if event == "throttled":
            client_id = fields["client_id"]
            text = f"a Kafka quota throttles client id {client_id}. Raise its producer_byte_rate, or send less"
            self.found(TroubleKind.QUOTA, text, lasts=_QUOTA_LASTS)
        elif event == "error" and fields.get("retry_in") is not None:
            if not self._leads:
                self.found(TroubleKind.TAKE_OVER, str(fields["error"]))
            self._leads = False
        elif event in ("view", "stood_by", "fenced", "resigned"):
            self._leads = event == "view"
            self.found(TroubleKind.TAKE_OVER, None)

    def found(self, kind: TroubleKind, text: str | None, *, lasts: float = math.inf) -> None:
        """There is a trouble of this kind, for so many seconds at most; None: there is none."""
        self._standing.pop(kind, None)
        if text is not None:
            self._standing[kind] = text, self._now() + lasts

    @property
    def worst(self) -> Worst | None:
        for kind in TroubleKind:
            text, until = self._standing.get(kind, ("", -math.inf))
            if self._now() < until:
                return kind, text
        return None


class TroubleTeller:
    """Asks Kafka once a second, and keeps the member's row."""

    def __init__(
        self, data_source: str, name: OutboxName, troubles: StandingTroubles, ask: Callable[[], str | None]
    ) -> None:
        """`ask` returns why Kafka can't be used, or None. It may block."""
        self._data_source = data_source
        self._name = name
        self._troubles = troubles
        self._ask = ask
        self._told: Worst | None = None
        self._may_have_a_row = False
        self._asking, self._telling = Worker("outbox-reach"), Worker("outbox-trouble")

    async def run(self) -> None:
        """Until cancelled."""
        loop, repeat_at = asyncio.get_running_loop(), 0.0
        while True:
            await asyncio.sleep(_INTERVAL)
            self._troubles.found(TroubleKind.KAFKA, await self._asking.call(self._ask))
            worst = self._troubles.worst
            if worst != self._told or (worst is not None and loop.time() >= repeat_at):
                repeat_at = loop.time() + _REPEAT_INTERVAL
                with contextlib.suppress(OutboxError):  # it is tried again
                    await self.tell(worst)

    async def tell(self, worst: Worst | None) -> None:
        """Write the row now, or remove it. Raises PostgresError."""
        self._may_have_a_row = True
        await self._telling.call(self._write, worst)
        self._told = worst

    async def close(self) -> None:
        """Remove the row, since this member ends gracefully, unless Postgres takes too long."""
        if self._may_have_a_row:
            with contextlib.suppress(OutboxError, TimeoutError):
                await asyncio.wait_for(self.tell(None), _CLOSING_TIME)

    def _write(self, worst: Worst | None) -> None:
        with closing(connect(self._data_source, purpose="trouble")) as connection:
            statements = Statements(connection, located(connection, self._name))
            if worst is None:
                statements.execute("trouble.over", {"member": member_name()})
                return
            kind, text = worst
            values = {"member": member_name(), "kind": kind.value, "error": storable(connection, text)}
            statements.execute("trouble.tell", values)
