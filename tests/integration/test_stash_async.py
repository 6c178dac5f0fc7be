"""Stashing over asynchronous connections, and the warning about those that commit each statement by themselves."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from typing import Any

import asyncpg
import psycopg
import pytest
import sqlalchemy
from psycopg.conninfo import conninfo_to_dict
from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine
from support.asyncpg_settings import asyncpg_settings

from airflow_outbox import OutboxRecord, astash, stash
from airflow_outbox.errors import (
    AutocommitError,
    AutocommitWarning,
    InvalidRecordError,
    OutboxMissingError,
    UnsupportedConnectionError,
)
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

RECORDS = [
    OutboxRecord("t", "17", 'käse "quoted" \\ $1 %s', [("same", "1"), ("same", "2")], partition=3),
    OutboxRecord("t", "tombstone", None),
]
Transaction = Callable[[], AbstractAsyncContextManager[Any]]


@pytest.fixture
def looking(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection that sees only what is committed."""
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        yield connection


@asynccontextmanager
async def over_psycopg(database: str) -> AsyncIterator[Any]:
    async with await psycopg.AsyncConnection.connect(database) as connection:
        yield connection


@asynccontextmanager
async def over_asyncpg(database: str) -> AsyncIterator[Any]:
    connection = await asyncpg.connect(**asyncpg_settings(database))
    try:
        # As many applications do; it must not get in the way.
        await connection.set_type_codec("json", encoder=str.upper, decoder=str, schema="pg_catalog")
        async with connection.transaction():
            yield connection
    finally:
        await connection.close()


@asynccontextmanager
async def over_a_pool(database: str) -> AsyncIterator[Any]:
    async with (
        asyncpg.create_pool(**asyncpg_settings(database), min_size=1, max_size=1) as pool,
        pool.acquire() as connection,
        connection.transaction(),
    ):
        yield connection


@asynccontextmanager
async def over_sqlalchemy(database: str) -> AsyncIterator[Any]:
    engine = create_async_engine("postgresql+asyncpg://", connect_args=asyncpg_settings(database))
    async with engine.begin() as connection:
        yield connection
    await engine.dispose()


@asynccontextmanager
async def over_a_session(database: str) -> AsyncIterator[Any]:
    engine = create_async_engine("postgresql+psycopg://", connect_args=conninfo_to_dict(database))
    async with AsyncSession(engine) as session, session.begin():
        yield session
    await engine.dispose()


@pytest.fixture(params=[over_psycopg, over_asyncpg, over_a_pool, over_sqlalchemy, over_a_session])
def transaction(request: pytest.FixtureRequest, database: str) -> Transaction:
    """How to open a transaction that commits on exit, and what to pass to astash()."""
    return lambda: request.param(database)


@pytest.mark.filterwarnings("error::airflow_outbox.errors.AutocommitWarning")
async def test_records_become_visible_with_the_callers_commit(
    transaction: Transaction, looking: psycopg.Connection[Any]
) -> None:
    def rows() -> list[Any]:
        columns = "kafka_key, kafka_value, kafka_header_keys, kafka_header_values, kafka_partition"
        return looking.execute(f"SELECT {columns} FROM outbox ORDER BY id").fetchall()  # type: ignore[call-overload]

    async with transaction() as connection:
        ticket = await astash(connection, RECORDS)
        assert await astash(connection, []) == ticket
        with pytest.raises(InvalidRecordError, match="record 0: topic"):
            await astash(connection, OutboxRecord("a b", "k", "v"))
        with pytest.raises(OutboxMissingError, match='no table "nowhere"'):
            await astash(connection, RECORDS, outbox="nowhere")
        assert rows() == []
    assert rows() == [
        ("17", 'käse "quoted" \\ $1 %s', ["same", "same"], ["1", "2"], 3),
        ("tombstone", None, [], [], None),
    ]
    ids = "SELECT outbox_id::text || '/' || incarnation || '/' || transaction_id FROM outbox_state, outbox"
    assert set(looking.execute(ids)) == {(str(ticket),)}


async def test_each_kind_of_connection_has_its_call(transaction: Transaction, looking: object, database: str) -> None:
    async with transaction() as connection:
        with pytest.raises(UnsupportedConnectionError, match="await astash"):
            stash(connection, RECORDS)
    with psycopg.connect(database) as blocking, pytest.raises(UnsupportedConnectionError, match=r"call stash\(\)"):
        await astash(blocking, RECORDS)  # type: ignore[arg-type]


async def test_a_connection_that_commits_by_itself_is_warned_about_or_refused(
    database: str, looking: psycopg.Connection[Any]
) -> None:
    async with (
        await psycopg.AsyncConnection.connect(database, autocommit=True) as over_psycopg,
        asyncpg.create_pool(**asyncpg_settings(database), min_size=1, max_size=1) as pool,
        pool.acquire() as over_asyncpg,
    ):
        for connection in (over_psycopg, over_asyncpg):
            with pytest.raises(AutocommitError, match="nothing was written"):
                await astash(connection, RECORDS, autocommit="refuse")
            with pytest.warns(AutocommitWarning, match="Open a transaction") as caught:
                await astash(connection, [])
            assert caught[0].filename == __file__
            await astash(connection, RECORDS, autocommit="allow")
            async with connection.transaction():
                await astash(connection, RECORDS, autocommit="refuse")
    assert looking.execute("SELECT count(*) FROM outbox").fetchone() == (8,)


@pytest.mark.parametrize("driver", ["psycopg", "psycopg2"])
def test_so_is_one_that_blocks(driver: str, database: str, looking: psycopg.Connection[Any]) -> None:
    with pytest.warns(AutocommitWarning) as caught:
        stash(looking, [])
    assert caught[0].filename == __file__
    with looking.transaction():
        stash(looking, [], autocommit="refuse")
    engine = sqlalchemy.create_engine(
        f"postgresql+{driver}://", connect_args=conninfo_to_dict(database), isolation_level="AUTOCOMMIT"
    )
    with engine.connect() as connection, pytest.raises(AutocommitError):
        stash(connection, [], autocommit="refuse")
    engine.dispose()
