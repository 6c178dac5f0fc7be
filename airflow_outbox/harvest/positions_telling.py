"""Telling operators through Postgres what the replicator of positions sees: a row for each process that has one."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from typing import Any

import psycopg

from airflow_outbox.errors import OutboxError
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.harvest.worker_thread import Worker
from airflow_outbox.postgres.connection import connect, located, storable
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import Statements

_CLOSING_TIME = 1.0


class PositionsTeller:
    """Keeps the row. It never fails, and nobody waits for Postgres: without it, what was seen is forgotten."""

    def __init__(
        self, data_source: str, name: OutboxName, *, beside_harvest: bool, complain: Callable[[str], object]
    ) -> None:
        self._data_source = data_source
        self._name = name
        self._beside_harvest = beside_harvest
        self._complain = complain
        self._report: Mapping[str, Any] = {}
        self._shown: Sequence[Any] | None = None
        self._news = asyncio.Event()
        self._worker: Worker | None = None

    def seen(self, report: Mapping[str, Any], shown: Sequence[Any] | None) -> None:
        """The replicator has looked and shows these groups; or it could not (None), and its report says why."""
        self._report, self._shown = report, self._shown if shown is None else shown
        self._news.set()

    def failed(self, problem: str) -> None:
        """There is no replicator now, for this reason."""
        self.seen({**self._report, "said": [problem]}, None)

    async def run(self) -> None:
        """Write what is new, until cancelled."""
        while True:
            await self._news.wait()
            self._news.clear()
            try:
                await self._call(self._write, {**self._report, "beside_harvest": self._beside_harvest}, self._shown)
            except OutboxError as error:
                self._complain(f"nobody is told how positions are: {error}")

    async def over(self) -> None:
        """Remove the row, if there may be one, since nothing is replicated here any more; unless it takes too long."""
        self._news.clear()
        if self._worker is not None:
            self._report, self._shown = {}, None
            with contextlib.suppress(OutboxError, TimeoutError):
                async with asyncio.timeout(_CLOSING_TIME):
                    await self._call(self._remove)

    async def _call(self, function: Callable[..., None], *values: object) -> None:
        if self._worker is None:
            self._worker = Worker("outbox-positions")
        await self._worker.call(function, *values)

    def _write(self, report: Mapping[str, Any], shown: Sequence[Any] | None) -> None:
        with closing(connect(self._data_source, purpose="positions")) as connection:
            groups = None if shown is None else _as_json(connection, shown)
            values = {"member": member_name(), "report": _as_json(connection, report), "groups": groups}
            Statements(connection, located(connection, self._name)).execute("positions.tell", values)

    def _remove(self) -> None:
        with closing(connect(self._data_source, purpose="positions")) as connection:
            statements = Statements(connection, located(connection, self._name))
            statements.execute("positions.over", {"member": member_name()})


def _as_json(connection: psycopg.Connection[Any], value: object) -> str:
    """Return a value as JSON that the database can store, whatever names Kafka allows."""

    def clean(value: Any) -> Any:
        if isinstance(value, str):
            return storable(connection, value)
        if isinstance(value, Mapping):
            return {clean(name): clean(each) for name, each in value.items()}
        return [clean(each) for each in value] if isinstance(value, (list, tuple)) else value

    return json.dumps(clean(value), ensure_ascii=False)
