"""Waiting for tickets over one connection: for many, cheaply, and through trouble; on a real Postgres."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import psycopg
import pytest
from support.harvesting import PATIENCE
from support.leading import NAME, Leader, logged_in
from support.pooler import Pooler

from airflow_outbox import OutboxRecord, Ticket, stash
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.errors import OutboxMissingError, PostgresError, RolledBackError, TicketRefusedError
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import Role
from airflow_outbox.tickets.listener import Listener, listener
from airflow_outbox.tickets.published import TicketState, TicketStatus
from airflow_outbox.tickets.session import PostgresSession

from .listening import attended, wait


async def test_an_announcement_is_heard(database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.tickets.listener.LOOK_INTERVAL", 10 * PATIENCE)  # or it would look by itself
    listening, ticket = Listener(database), leader.stash()
    found: list[TicketStatus] = []
    waiting = asyncio.create_task(wait(listening, ticket, found))
    await attended(listening)
    async with asyncio.timeout(PATIENCE):
        while not found:
            await asyncio.sleep(0.05)
    assert {status.state for status in found} == {TicketState.WAITING}
    leader.purge()
    async with asyncio.timeout(PATIENCE):
        assert await waiting == TicketStatus(ticket, TicketState.PUBLISHED, 0, clusters=("primary",))


async def test_an_announcement_that_comes_with_an_answer_is_heard(
    database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nothing is left to read on the connection then, so that nothing wakes the listener."""
    monkeypatch.setattr("airflow_outbox.tickets.listener._FIRST_REPORT", 0.2)
    ask = PostgresSession.ask

    async def purged_before(session: PostgresSession, statement: str, *rest: Any) -> Any:
        if statement == "left":
            leader.purge()
            monkeypatch.setattr("airflow_outbox.tickets.listener.LOOK_INTERVAL", 10 * PATIENCE)
        return await ask(session, statement, *rest)

    monkeypatch.setattr(PostgresSession, "ask", purged_before)
    async with asyncio.timeout(PATIENCE):
        status = await wait(Listener(database), leader.stash())
    assert status.state is TicketState.PUBLISHED


async def test_what_is_stored_is_found_without_an_announcement(database: str, leader: Leader) -> None:
    ticket = leader.stash()
    leader.beat()
    async with asyncio.timeout(PATIENCE):
        assert (await wait(Listener(database), ticket)).state is TicketState.PUBLISHED


async def test_behind_a_pooler_it_looks_once_a_second(
    database: str, leader: Leader, postgres: EmbeddedPostgres, server_folder: Path, topic_prefix: str
) -> None:
    """It gives each of the client's transactions to any session; what LISTEN has set up is on one of them."""
    name = leader.connection.info.dbname
    with Pooler(server_folder / f"{topic_prefix}pooler", postgres.dsn()) as pooler:
        others = [psycopg.connect(pooler.url(name), autocommit=True, prepare_threshold=None) for _ in range(3)]
        waiting = [asyncio.create_task(wait(Listener(pooler.url(name)), leader.stash())) for _ in range(3)]
        await asyncio.sleep(2)
        for each in others:
            each.execute("SELECT 1")
        leader.beat()
        async with asyncio.timeout(PATIENCE):
            assert {status.state for status in await asyncio.gather(*waiting)} == {TicketState.PUBLISHED}
        for each in others:
            each.close()


@pytest.mark.parametrize("role", ["stash", "job"])
async def test_it_says_how_many_records_are_left(
    database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch, role: Role
) -> None:
    """To those, too, who may do little else."""
    monkeypatch.setattr("airflow_outbox.tickets.listener._FIRST_REPORT", 0.5)
    ticket = leader.stash(7)
    found: list[TicketStatus] = []
    with logged_in(database, leader.connection, role) as source:
        waiting = asyncio.create_task(wait(Listener(source), ticket, found))
        async with asyncio.timeout(PATIENCE):
            while not any(status.left for status in found):
                await asyncio.sleep(0.05)
        assert found[-1].left == 7
        leader.beat()
        assert (await waiting).state is TicketState.PUBLISHED


async def test_errors_go_to_those_whom_they_concern(database: str, leader: Leader) -> None:
    listening = Listener(database)
    with leader.connection.transaction():
        undone = stash(leader.connection, OutboxRecord("t", "k", "v"))
        raise psycopg.Rollback
    waiting = leader.stash()
    with pytest.raises(RolledBackError):
        await wait(listening, undone)
    with pytest.raises(TicketRefusedError, match="incarnation"):
        await wait(listening, Ticket(waiting.outbox_id, 7, waiting.transaction_id))
    with pytest.raises(OutboxMissingError):
        async with aclosing(listening.statuses(OutboxName.parse("nowhere"), waiting)) as statuses:
            await anext(statuses)
    good = asyncio.create_task(wait(listening, waiting))
    await asyncio.sleep(0.3)
    leader.beat()
    assert (await good).state is TicketState.PUBLISHED


async def test_one_that_is_rolled_back_while_it_is_awaited_is_told_at_once(
    database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    for own_look in ("listener._FIRST_REPORT", "waiters._QUIET_LOOK_INTERVAL", "waiters._HEARD_FOR"):
        monkeypatch.setattr(f"airflow_outbox.tickets.{own_look}", 10 * PATIENCE)
    listening = Listener(database)
    with closing(psycopg.connect(database)) as writer:
        ticket = stash(writer, OutboxRecord("t", "k", "v"))
        found: list[TicketStatus] = []
        waiting = asyncio.create_task(wait(listening, ticket, found))
        await attended(listening)
        leader.purge()
        async with asyncio.timeout(PATIENCE):
            while listening._attended[NAME].heard_at < 0:  # never yet
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.2)
        assert {status.state for status in found} == {TicketState.OPEN}
        writer.rollback()
        leader.purge()
        async with asyncio.timeout(PATIENCE):  # it would look by itself only much later
            with pytest.raises(RolledBackError):
                await waiting


async def test_a_new_incarnation_refuses_who_waits(database: str, leader: Leader) -> None:
    listening = Listener(database)
    waiting = asyncio.create_task(wait(listening, leader.stash()))
    await attended(listening)
    leader.connection.execute("UPDATE outbox_shard SET incarnation = 2, watermark = NULL")
    leader.connection.execute("UPDATE outbox_state SET incarnation = 2")
    leader.beat()
    async with asyncio.timeout(PATIENCE):
        with pytest.raises(TicketRefusedError, match="incarnation"):
            await waiting


async def test_a_role_that_may_nothing_is_told(database: str, leader: Leader) -> None:
    with (
        logged_in(database, leader.connection, None) as source,
        pytest.raises(PostgresError, match="airflow-outbox grant"),
    ):
        await wait(Listener(source), leader.stash())


async def test_a_lost_connection_is_made_again(database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("airflow_outbox.tickets.listener.LOOK_INTERVAL", 10 * PATIENCE)  # or it would look by itself
    listening = Listener(database)
    ticket = leader.stash()
    waiting = asyncio.create_task(wait(listening, ticket))
    await attended(listening)
    for _ in range(2):
        [lost] = leader.listening()
        leader.connection.execute("SELECT pg_terminate_backend(%s)", [lost])
        async with asyncio.timeout(PATIENCE):
            while lost in (sessions := leader.listening()) or len(sessions) != 1:
                await asyncio.sleep(0.05)
        await asyncio.sleep(0.5)
        assert len(leader.listening()) == 1
        await attended(listening)
    leader.purge()
    async with asyncio.timeout(PATIENCE):
        await waiting


async def test_a_postgres_that_is_away_is_waited_for(server_folder: Path, topic_prefix: str) -> None:
    with EmbeddedPostgres(server_folder / f"{topic_prefix}away", fsync=False) as server:
        database = server.create_database("away")
        with closing(Leader(database)) as leader:
            ticket = leader.stash()
        waiting = asyncio.create_task(wait(Listener(database), ticket))
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.stop)
        await asyncio.sleep(0.5)
        await asyncio.to_thread(server.start)
        with closing(psycopg.connect(database, autocommit=True)) as connection:
            connection.execute("UPDATE outbox_shard SET watermark = pg_current_snapshot()")
        async with asyncio.timeout(PATIENCE):
            assert (await waiting).state is TicketState.PUBLISHED


async def test_it_has_one_connection_for_all_and_none_a_while_after(
    database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_outbox.tickets.waiters._LINGER", 10 * PATIENCE)
    one = await listener(lambda: database)
    assert await listener(lambda: database) is one
    waiting = [asyncio.create_task(wait(one, leader.stash())) for _ in range(20)]
    await attended(one)
    assert len(leader.listening()) == 1
    for task in waiting[:10]:
        task.cancel()
    leader.beat()
    assert len(await asyncio.gather(*waiting[10:])) == 10
    assert len(leader.listening()) == 1
    monkeypatch.setattr("airflow_outbox.tickets.waiters._LINGER", 0.0)
    async with asyncio.timeout(PATIENCE):
        while leader.listening():
            await asyncio.sleep(0.05)


async def test_a_forged_or_garbled_announcement_does_no_harm(database: str, leader: Leader) -> None:
    listening = Listener(database)
    waiting = asyncio.create_task(wait(listening, leader.stash()))
    await attended(listening)
    identity = leader.table.identity()
    forged = ("0 1 1:99999999:", "0 2 1:99999999:")
    for payload in (*forged, "", "x", "0", "0 1", "0 1 nonsense", "9 1 1:2:", "0 1 1:2: more"):
        leader.connection.execute("SELECT pg_notify(%s, %s)", [f"outbox {identity.outbox_id}", payload])
    await asyncio.sleep(0.5)
    assert not waiting.done()
    leader.beat()
    await waiting


@pytest.fixture
async def accounts(database: str, leader: Leader) -> AsyncIterator[Any]:
    async with aclosing(Listener(database).accounts(NAME)) as accounts:
        yield accounts


async def test_who_follows_is_given_the_account_about_once_a_second(leader: Leader, accounts: Any) -> None:
    assert (await anext(accounts)).topics == {}
    leader.beat(topics={"a": 1})
    begun = time.monotonic()
    found: list[dict[str, int]] = []
    async with asyncio.timeout(PATIENCE):
        while not found or found[-1] != {"a": 3}:
            found.append(dict((await anext(accounts)).topics))
            if len(found) == 2:
                leader.beat(topics={"a": 3})
    assert time.monotonic() - begun > 0.9 * (len(found) - 1)


async def reports(database: str, tickets: list[Ticket], monkeypatch: pytest.MonkeyPatch) -> list[TicketStatus]:
    """Each waiter's first report of how much is left."""
    monkeypatch.setattr("airflow_outbox.tickets.listener._FIRST_REPORT", 0.0)
    monkeypatch.setattr("airflow_outbox.tickets.listener._COUNTING", PATIENCE)
    listening, found = Listener(database), []
    async with asyncio.timeout(PATIENCE):
        streams = [listening.statuses(NAME, ticket, has_committed=True) for ticket in tickets]
        for first in [asyncio.ensure_future(anext(stream)) for stream in streams]:
            await first
        for stream in streams:
            found.append(await anext(stream))
            await stream.aclose()
    return found


async def test_only_so_many_records_are_counted(database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch) -> None:
    """And the earliest transactions', for they are the next to be published."""
    monkeypatch.setattr("airflow_outbox.tickets.published.MOST_COUNTED", 9)
    tickets = [leader.stash(records) for records in (0, 4, 3, 3, 1)]
    assert [status.left for status in await reports(database, tickets, monkeypatch)] == [0, 4, 3, None, None]
    assert [status.left for status in await reports(database, tickets[:3], monkeypatch)] == [0, 4, 3]
    (much,) = await reports(database, [leader.stash(20)], monkeypatch)
    assert str(much).endswith("is committed; more than 9 records of it still wait to be published")


@pytest.mark.parametrize("options", ["-c statement_timeout=5000", ""])
async def test_a_count_that_takes_too_long_is_done_without(
    database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch, options: str
) -> None:
    monkeypatch.setattr("airflow_outbox.tickets.listener._FIRST_REPORT", 1.0)
    monkeypatch.setattr("airflow_outbox.tickets.listener._COUNTING", PATIENCE if options else 0.3)
    listening = Listener(psycopg.conninfo.make_conninfo(database, options=options))
    ticket, found = leader.stash(7), []
    with leader.own.transaction():
        leader.own.execute("LOCK public.outbox")
        waiting = asyncio.create_task(wait(listening, ticket, found))
        await attended(listening)
        connection = leader.listening()
        async with asyncio.timeout(PATIENCE):
            while len(found) < 2:
                await asyncio.sleep(0.05)
        assert [status.left for status in found] == [None, None]
        assert "some records of it still wait" in str(found[-1])
        sent, begun = listening.statements, time.monotonic()
        await asyncio.sleep(1.5)
        looks = 1 + (time.monotonic() - begun)
        assert listening.statements - sent <= looks, "it does not count again at once"
    assert leader.listening() == connection
    leader.beat()
    assert (await waiting).state is TicketState.PUBLISHED


async def test_a_count_that_the_connection_is_lost_in_is_not_begun_again_at_once(
    database: str, leader: Leader, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("airflow_outbox.tickets.listener._FIRST_REPORT", 0.1)
    monkeypatch.setattr("airflow_outbox.tickets.listener._REPORT_INTERVAL", 10 * PATIENCE)
    listening, ticket = Listener(database), leader.stash(7)
    counting = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
    with leader.own.transaction():
        leader.own.execute("LOCK public.outbox")
        waiting = asyncio.create_task(wait(listening, ticket))
        lost: list[tuple[int, bool]] = []
        async with asyncio.timeout(PATIENCE):
            while not lost:
                await asyncio.sleep(0.05)
                lost = leader.connection.execute(
                    f"SELECT pid, pg_terminate_backend(pid) {counting}".encode()
                ).fetchall()
            while not {*leader.listening()} - {pid for pid, _ in lost} or not listening._listening:
                await asyncio.sleep(0.05)
        await asyncio.sleep(1)
        assert leader.connection.execute(f"SELECT pid {counting}".encode()).fetchall() == []
    leader.beat()
    assert (await waiting).state is TicketState.PUBLISHED


async def test_what_is_discarded_ends_the_wait(database: str, leader: Leader) -> None:
    ticket = leader.stash(3)
    leader.park(ticket, 2)
    leader.discard()
    leader.beat()
    async with asyncio.timeout(PATIENCE):
        status = await wait(Listener(database), ticket)
    assert (status.state, status.parked, status.discarded) == (TicketState.PARKED, 0, 2)
