"""Late words from an earlier layout, and members of an earlier release, have no effect in the present one."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import aclosing
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from support.harvesting import PATIENCE
from support.leading import NAME

from airflow_outbox import OutboxRecord, stash
from airflow_outbox.errors import FencedError, PostgresError
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.errors import translated
from airflow_outbox.postgres.layout import ask_layout, write_layout
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.postgres.slots import make_indexes
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.published import TicketState
from airflow_outbox.values.fence import LedgerPosition
from airflow_outbox.values.records import Snapshot

Tables = dict[int, tuple[OutboxTable, UUID]]
TAKE_OVER_OF_VERSION_11 = (
    "UPDATE outbox_shard SET view = gen_random_uuid(), backends = '[]', member = 'old', took_over_at = now()"
    " WHERE shard = 0 RETURNING view"
)
STATEMENTS_OF_VERSION_11 = {
    "keep alive": "UPDATE outbox_shard SET heartbeat_at = now(), beats = beats + 1 WHERE shard = 0 AND view = %s"
    " RETURNING shard",
    "begin": "UPDATE outbox_shard SET begun_view = view WHERE shard = 0 AND view = %s RETURNING shard",
    "purge": "WITH fence AS MATERIALIZED (SELECT FROM outbox_shard WHERE shard = 0 AND view = %s FOR SHARE)"
    " DELETE FROM outbox WHERE EXISTS (SELECT FROM fence) RETURNING id",
}
"""The parts that change something; the others read."""


@pytest.fixture
def leaders(database: str) -> Iterator[list[OutboxTable]]:
    opened: list[OutboxTable] = []
    yield opened
    for table in opened:
        table.close()


def led(database: str, shards: int, opened: list[OutboxTable]) -> Tables:
    """Have each shard led by hand."""
    found: Tables = {}
    for number in range(shards):
        table, view = OutboxTable(connect(database, purpose="test"), NAME, shard=number), uuid4()
        opened.append(table)
        table.take_over(view, [table.backend()], member="test")
        table.begin(view, delivery="exactly_once", witness=LedgerPosition())
        found[number] = table, view
    return found


def announce(leader: tuple[OutboxTable, UUID], watermark: Snapshot) -> None:
    table, view = leader
    table.windows.purge_published(view, [], watermark, watermark=watermark)


async def test_an_announcement_of_an_earlier_layout_has_no_effect(
    connection: psycopg.Connection[Any], database: str, leaders: list[OutboxTable]
) -> None:
    init_outbox(connection, NAME)
    make_indexes(connection, NAME)
    ask_layout(connection, NAME, shards=3)
    old = led(database, 3, leaders)
    with connection.transaction():
        ticket = stash(connection, [OutboxRecord("t", f"k{number}", "v") for number in range(20)])
    [(text, outbox_id)] = connection.execute(
        "SELECT pg_current_snapshot()::text, outbox_id FROM outbox_state"
    ).fetchall()
    watermark, channel = Snapshot.parse(text), f"outbox shards {outbox_id}"
    with psycopg.connect(database, autocommit=True) as hearing:
        hearing.execute(f'LISTEN "{channel}"'.encode())
        for leader in old.values():
            announce(leader, watermark)
        late = [notice.payload for notice in hearing.notifies(timeout=PATIENCE, stop_after=3)]
    write_layout(connection, NAME, views={number: view for number, (_, view) in old.items()}, shards=2)
    for leader in old.values():
        with pytest.raises(FencedError):
            announce(leader, watermark)

    async def published() -> TicketState:
        async with aclosing(listening.statuses(NAME, ticket)) as statuses:
            return [status.state async for status in statuses][-1]

    def known() -> list[bool]:
        attended = listening._attended.get(NAME)
        shown = attended.watermarks.shards if attended and attended.watermarks else ()
        return [each is not None and each.sees(ticket.transaction_id) for each in shown]

    listening, new = Listener(database), led(database, 2, leaders)
    waiting = asyncio.create_task(published())
    async with asyncio.timeout(PATIENCE):
        while channel not in listening._listening or known() != [False, False]:
            await asyncio.sleep(0.02)
        for payload in late:
            connection.execute("SELECT pg_notify(%s, %s)", [channel, payload])
        announce(new[0], watermark)
        while not any(known()):
            await asyncio.sleep(0.02)
        assert known() == [True, False], "only the leader of this layout was heard"
        assert not waiting.done()
        announce(new[1], watermark)
        assert await waiting is TicketState.PUBLISHED


def test_a_member_of_an_earlier_release_has_no_effect_and_is_told(
    connection: psycopg.Connection[Any], database: str, leaders: list[OutboxTable]
) -> None:
    init_outbox(connection, NAME)
    make_indexes(connection, NAME)
    [(old_view,)] = connection.execute(TAKE_OVER_OF_VERSION_11).fetchall()  # there is one shard
    with connection.transaction():
        stash(connection, [OutboxRecord("t", "k", "v")])
    ask_layout(connection, NAME, shards=2)
    [(_, view)] = led(database, 1, leaders).values()
    write_layout(connection, NAME, views={0: view}, shards=2)
    before = connection.execute("SELECT * FROM outbox_shard ORDER BY shard").fetchall()
    for statement in STATEMENTS_OF_VERSION_11.values():
        assert connection.execute(statement.encode(), [old_view]).fetchall() == []
    with pytest.raises(PostgresError, match="slots_are_known"), translated(NAME):
        connection.execute(TAKE_OVER_OF_VERSION_11)
    assert connection.execute("SELECT * FROM outbox_shard ORDER BY shard").fetchall() == before
    assert connection.execute("SELECT count(*) FROM outbox").fetchall() == [(1,)]
