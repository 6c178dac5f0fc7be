"""What replicators of positions tell, on its way through Postgres to status, verdict and page."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from typing import Any

import psycopg
import pytest
from support.harvesting import PATIENCE

from airflow_outbox.harvest.positions_telling import PositionsTeller
from airflow_outbox.harvest.postgres_table import member_name
from airflow_outbox.operate.details import Details, read_details
from airflow_outbox.operate.overview import begin_session, find_shape
from airflow_outbox.operate.status import OutboxStatus, read_status
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.values.positions import GroupState
from airflow_outbox.values.verdict import Thresholds

NAME = OutboxName.parse("outbox")
REPORT = {"groups": {"following": 1}, "behind": {"west": 3}, "commits": 4, "failures": 2, "seconds": 0.1, "said": []}
STRANGE = 'app "\0\u202e\ud800'


def group(name: str, state: GroupState = GroupState.FOLLOWING) -> dict[str, Any]:
    return {"group": name, "state": state, "home": "primary", "behind": {"west": 3}, "synced_at": None, "why": "so"}


@pytest.fixture(params=["UTF8", "LATIN1"])
def source(database: str, request: pytest.FixtureRequest) -> Iterator[str]:
    """A database with an outbox that somebody leads, in an encoding."""
    own = database
    if request.param != "UTF8":
        name = f"latin_{psycopg.conninfo.conninfo_to_dict(database)['dbname']}"
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(
                f"CREATE DATABASE {name} ENCODING '{request.param}' LOCALE 'C' TEMPLATE template0".encode()
            )
        own = psycopg.conninfo.make_conninfo(database, dbname=name)
    with connect(own, purpose="test") as connection:
        init_outbox(connection, NAME)
    with psycopg.connect(own, autocommit=True) as connection:
        connection.execute("UPDATE outbox_shard SET member = 'a:1', heartbeat_at = clock_timestamp(), silence = 600")
    yield own
    if own != database:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())


@asynccontextmanager
async def telling(source: str, *, beside_harvest: bool = False) -> AsyncIterator[PositionsTeller]:
    complaints: list[str] = []
    teller = PositionsTeller(source, NAME, beside_harvest=beside_harvest, complain=complaints.append)
    running = asyncio.create_task(teller.run())
    yield teller
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    assert complaints == []


def read(source: str) -> tuple[OutboxStatus, Details]:
    with closing(connect(source, purpose="test")) as connection:
        begin_session(connection, seconds=PATIENCE)
        status = read_status(connection, NAME, thresholds=Thresholds(silence=600))
        return status, read_details(connection, find_shape(connection, NAME))


async def until_told(source: str, failures: int) -> tuple[OutboxStatus, Details]:
    async with asyncio.timeout(PATIENCE):
        while (found := read(source))[0].positions is None or found[0].positions.failures != failures:
            await asyncio.sleep(0.02)
    return found


async def test_what_a_replicator_sees_is_in_status_and_page(source: str) -> None:
    async with telling(source) as teller:
        teller.seen(REPORT, [group(STRANGE)])
        status, details = await until_told(source, 2)
        assert status.positions is not None
        assert (status.positions.member, status.positions.beside_harvest) == (member_name(), False)
        assert status.positions.groups == {"following": 1}
        assert details.positions is not None
        assert details.positions.behind == {"west": 3}
        [seen] = details.groups
        assert (seen.state, seen.home, seen.behind) == (GroupState.FOLLOWING, "primary", {"west": 3})
        assert seen.group.startswith('app "\\0')
        assert status.verdict.notes == ()
        teller.seen({**REPORT, "failures": 3}, None)
        teller.failed("the process that replicates positions has ended")
        status, details = await until_told(source, 3)
        assert status.verdict.notes == details.overview.verdict.notes
        assert status.verdict.notes == ("the process that replicates positions has ended",)
        assert len(details.groups) == 1, "those of before"
        await teller.over()
    status, details = read(source)
    assert (status.positions, details.positions, details.groups) == (None, None, ())


async def test_without_positions_nobody_asks_postgres(database: str) -> None:
    teller = PositionsTeller("host=/nowhere", NAME, beside_harvest=True, complain=pytest.fail)
    await teller.over()


async def test_a_postgres_that_is_away_is_told_and_holds_nobody_up() -> None:
    complaints = asyncio.Queue[str]()
    teller = PositionsTeller("host=/nowhere", NAME, beside_harvest=True, complain=complaints.put_nowait)
    running = asyncio.create_task(teller.run())
    teller.seen(REPORT, [])
    async with asyncio.timeout(PATIENCE):
        assert "nobody is told how positions are: " in await complaints.get()
    await teller.over()
    assert not running.done()
    running.cancel()
