"""A statement that takes too long is given up: it ends in Postgres, too, and holds up no other statement.

Against a real Postgres. The statement sleeps; in production it walks through millions of dead rows.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from uuid import uuid4

import psycopg
import pytest
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.errors import PostgresError, PostgresUnreachableError
from airflow_outbox.harvest.config import Limits
from airflow_outbox.harvest.postgres_table import PostgresTable
from airflow_outbox.harvest.threaded_connection import within
from airflow_outbox.harvest.worker_thread import SignsOfLife, Watchdog
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.table import OutboxTable

NAME = OutboxName.parse("outbox")
SLEEPS = f"SELECT pg_sleep({10 * PATIENCE:g})"  # for longer than the test waits for its end
IN_A_ROW = 50


class WatchdogOfAll(Watchdog):
    """Remembers whom it watches."""

    def __init__(self) -> None:
        super().__init__()
        self.watched: dict[str, SignsOfLife] = {}

    def watch(self, signs: SignsOfLife) -> None:
        super().watch(signs)
        self.watched[signs.name] = signs


def sleeping(table: OutboxTable) -> bool:
    try:
        table.connection.execute(SLEEPS)
    except psycopg.Error as error:
        raise PostgresError(str(error)) from error
    return True


@pytest.fixture
async def table(database: str) -> AsyncIterator[PostgresTable]:
    with psycopg.connect(database) as connection:
        init_outbox(connection, NAME)
    table = PostgresTable(database, NAME, Limits(heartbeat_timeout=0.5))
    yield table
    await table.close()


def asleep(database: str) -> int:
    """How many statements sleep in Postgres."""
    with psycopg.connect(database) as connection:
        query = "SELECT count(*) FROM pg_stat_activity WHERE query = %s AND datname = current_database()"
        row = connection.execute(query, [SLEEPS]).fetchone()
        assert row is not None
        return int(row[0])


async def test_a_statement_that_is_given_up_ends_in_postgres(table: PostgresTable, database: str) -> None:
    await table.take_over(uuid4())
    for connection in (table.looking, table.marking):
        asked = asyncio.create_task(connection.call(sleeping))
        await asyncio.to_thread(wait_until, lambda: asleep(database) == 1, doing="the statement in Postgres")
        with pytest.raises(PostgresUnreachableError):
            async with within(0.1):
                await asked
        # Postgres looks once a second for clients that have gone.
        await asyncio.to_thread(wait_until, lambda: asleep(database) == 0, doing="its end in Postgres")


@pytest.mark.parametrize("purpose", ["mark", "purge"])
async def test_a_thread_that_waits_for_postgres_shows_signs_of_life(
    table: PostgresTable, database: str, purpose: str
) -> None:
    watchdog = WatchdogOfAll()
    watched = PostgresTable(database, NAME, Limits(), watchdog=watchdog)
    await watched.take_over(uuid4())
    connection = {"mark": watched.marking, "purge": watched.purging}[purpose]
    signs = watchdog.watched[f"outbox-{purpose}"]
    asked = asyncio.create_task(connection.call(sleeping))
    await asyncio.to_thread(wait_until, lambda: asleep(database) == 1, doing="the statement in Postgres")
    shown = signs.shown
    await asyncio.to_thread(wait_until, lambda: signs.shown > shown + 5, doing="signs of life")
    asked.cancel()
    with suppress(asyncio.CancelledError):
        await asked
    await watched.close()


async def test_a_look_for_the_end_holds_up_no_look_at_the_fence(
    table: PostgresTable, database: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `--until drained`, which asks again and again whether the outbox is empty."""
    view = uuid4()
    await table.take_over(view)
    monkeypatch.setattr(OutboxTable, "is_empty", sleeping)

    async def asks() -> None:
        while True:
            with suppress(PostgresUnreachableError):
                await table.is_empty()
            await asyncio.sleep(0.01)

    asking = asyncio.create_task(asks())
    try:
        await asyncio.to_thread(wait_until, lambda: asleep(database), doing="the statement in Postgres")
        in_a_row = 0
        async with asyncio.timeout(PATIENCE):  # a busy machine delays one now and then, but not one after the other
            while in_a_row < IN_A_ROW:
                try:
                    await table.require_fence(view)
                    in_a_row += 1
                except PostgresUnreachableError:
                    in_a_row = 0
                await asyncio.sleep(0.1)
        # Statements that are given up do not pile up.
        await asyncio.to_thread(wait_until, lambda: asleep(database) <= 6)
    finally:
        asking.cancel()
        with suppress(asyncio.CancelledError):
            await asking
