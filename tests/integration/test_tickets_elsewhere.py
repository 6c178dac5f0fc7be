"""Tickets where the database has another history: a dump in another cluster, an asynchronous fail-over, an adoption.

The leader row comes with every copy of a database, and its watermark with it. Transaction ids do not: another cluster,
or a standby that lacks transactions, gives out numbers that the watermark sees already.
"""

from __future__ import annotations

import asyncio
import subprocess
from collections.abc import Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import psycopg
import pytest
from support.harvesting import AS_OF_VERSION_4, PATIENCE
from support.leading import NAME, Leader

from airflow_outbox import OutboxRecord, Ticket, published, stash
from airflow_outbox.demo.embedded.ports import LOOPBACK
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.errors import TicketRefusedError
from airflow_outbox.operate.status import read_status
from airflow_outbox.postgres.commits import CommitId, enter_commit, find_commit
from airflow_outbox.postgres.schema import init_outbox
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.published import TicketState, TicketStatus, ticket_status
from airflow_outbox.tickets.watermarks import proof_of

ADOPTED = """
UPDATE outbox_shard SET incarnation = incarnation + 1, watermark = NULL;
UPDATE outbox_state
SET incarnation = incarnation + 1, halted = NULL, table_oid = 'outbox'::regclass::oid,
    database_oid = (SELECT oid FROM pg_database WHERE datname = current_database()),
    system_identifier = (SELECT system_identifier FROM pg_control_system()),
    timeline = ('x' || left(pg_walfile_name(pg_current_wal_insert_lsn()), 8))::bit(32)::integer
"""
"""The statements of `adopt` for the rows of the shard and of the outbox."""
RECIPE = """
SELECT coalesce(bool_and(pg_visible_in_snapshot(%s::text::xid8, watermark)), false) FROM outbox_published
"""


def burn(database: str, transactions: int) -> None:
    """Use up transaction ids."""
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        for _ in range(transactions):
            connection.execute("SELECT pg_current_xact_id()")


def stashed(connection: psycopg.Connection[Any]) -> Ticket:
    with connection.transaction():
        return stash(connection, OutboxRecord("t", "k", "v"))


def shown(connection: psycopg.Connection[Any]) -> list[tuple[Any, ...]]:
    return connection.execute("SELECT watermark::text FROM outbox_published").fetchall()


async def first_of(listening: Listener, ticket: Ticket) -> TicketStatus:
    async with asyncio.timeout(PATIENCE), aclosing(listening.statuses(NAME, ticket)) as statuses:
        return await anext(statuses)


async def told(found: list[TicketStatus], state: TicketState) -> None:
    """Wait until this is the last that was found."""
    async with asyncio.timeout(PATIENCE):
        while not found or found[-1].state is not state:
            await asyncio.sleep(0.05)


async def last_of(listening: Listener, ticket: Ticket, found: list[TicketStatus]) -> TicketStatus:
    async with aclosing(listening.statuses(NAME, ticket)) as statuses:
        async for status in statuses:
            found.append(status)
    return found[-1]


@pytest.fixture
def young(server_folder: Path, topic_prefix: str) -> Iterator[EmbeddedPostgres]:
    """Another cluster, which has given out few transaction ids."""
    with EmbeddedPostgres(server_folder / f"{topic_prefix}young", fsync=False) as server:
        yield server


async def test_a_dump_in_a_younger_cluster_calls_nothing_published(
    database: str, postgres: EmbeddedPostgres, young: EmbeddedPostgres
) -> None:
    with closing(Leader(database)) as leader:
        burn(database, 3000)
        leader.stash()
        leader.beat()
    programs = postgres.programs
    dump = subprocess.run([programs / "pg_dump", "-d", database], capture_output=True, check=True).stdout
    copied = young.create_database("copied")
    restoring = [programs / "psql", "-q", "-v", "ON_ERROR_STOP=1", "-d", copied]
    subprocess.run(restoring, input=dump, capture_output=True, check=True)
    with closing(psycopg.connect(copied, autocommit=True)) as connection:
        connection.execute("DELETE FROM outbox")
        ticket = stashed(connection)
        assert not published(connection, ticket), "it was stashed in another cluster than that of the watermark"
        status = ticket_status(connection, ticket)
        assert status.state is TicketState.HALTED
        assert "another database cluster" in str(status)
        assert shown(connection) == [(None,)]
        assert connection.execute(RECIPE, [str(ticket.transaction_id)]).fetchall() == [(False,)]
        found: list[TicketStatus] = []
        waiting = asyncio.create_task(last_of(Listener(copied), ticket, found))
        await told(found, TicketState.HALTED)
        await asyncio.sleep(2)
        assert {each.state for each in found} == {TicketState.HALTED}
        connection.execute(ADOPTED)
        with pytest.raises(TicketRefusedError, match="incarnation"):
            published(connection, ticket)
        with pytest.raises(TicketRefusedError, match="incarnation"):
            async with asyncio.timeout(PATIENCE):
                await waiting
        assert ticket_status(connection, stashed(connection)).state is TicketState.WAITING


@pytest.fixture
def primary(server_folder: Path, topic_prefix: str) -> Iterator[EmbeddedPostgres]:
    with EmbeddedPostgres(server_folder / f"{topic_prefix}primary", fsync=False) as server:
        yield server


@pytest.fixture
def standby(server_folder: Path, topic_prefix: str) -> Iterator[EmbeddedPostgres]:
    server = EmbeddedPostgres(server_folder / f"{topic_prefix}standby", fsync=False)
    yield server
    server.stop()


def copy(primary: EmbeddedPostgres, standby: EmbeddedPostgres) -> None:
    """Let the standby be as the primary is now. It gets no transaction that comes later."""
    primary.stop()
    standby.start()
    standby.stop()
    source, target = primary.socket_folder, standby.socket_folder
    for entry in target.iterdir():
        subprocess.run(["rm", "-rf", entry], check=True)
    subprocess.run(["cp", "-a", f"{source}/.", f"{target}/"], check=True)
    subprocess.run(["cp", "-a", target / "PG_VERSION", target / "standby.signal"], check=True)
    primary.start()
    standby.start()


def promote(standby: EmbeddedPostgres) -> None:
    with closing(psycopg.connect(standby.dsn(), autocommit=True)) as connection:
        assert connection.execute("SELECT pg_promote()").fetchone() == (True,)


async def test_a_standby_that_lacks_transactions_calls_none_of_its_own_published(
    primary: EmbeddedPostgres, standby: EmbeddedPostgres
) -> None:
    """A listener has heard of a watermark from the old primary. The new one gives the same numbers to others."""
    database = primary.create_database("shop")
    with closing(Leader(database)) as leader:
        leader.beat()
    copy(primary, standby)
    both = f"host={LOOPBACK},{LOOPBACK} port={primary.port},{standby.port} user=postgres dbname=shop"
    both += f" password={primary.superuser_password}"
    listening = Listener(both + " target_session_attrs=read-write")
    found: list[TicketStatus] = []
    heard: list[TicketStatus] = []
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        lost = stashed(connection)
        burn(database, 300)
        waiting = asyncio.create_task(last_of(listening, lost, found))
        early = asyncio.create_task(last_of(listening, Ticket(lost.outbox_id, 1, lost.transaction_id + 299), heard))
        await told(found, TicketState.WAITING)
        text = f"0 1 {lost.transaction_id}:{lost.transaction_id + 300}:{lost.transaction_id}"
        [(secret,)] = connection.execute("SELECT secret FROM outbox_state").fetchall()
        announcement = f"{text} {proof_of(text, secret)}"
        async with asyncio.timeout(PATIENCE):
            while not early.done():  # a listener whose connection was lost hears the next one
                connection.execute("SELECT pg_notify(%s, %s)", [f"outbox {lost.outbox_id}", announcement])
                await asyncio.sleep(0.5)
        await early
        assert heard[-1].state is TicketState.PUBLISHED, "the old primary's announcement was heard"
        assert {status.state for status in found} == {TicketState.WAITING}
    with closing(psycopg.connect(standby.dsn("shop"), autocommit=True)) as connection:
        status = ticket_status(connection, Ticket(lost.outbox_id, 1, 5), counted=False)
        assert status.state is TicketState.HALTED
        assert "standby" in str(status)
    primary.kill()
    await asyncio.to_thread(promote, standby)
    with closing(psycopg.connect(standby.dsn("shop"), autocommit=True)) as connection:
        ours = stashed(connection)
        while ours.transaction_id < lost.transaction_id:  # the old primary's autovacuum took some, too
            ours = stashed(connection)
        assert lost.transaction_id <= ours.transaction_id < lost.transaction_id + 300, "a number was given out twice"
        found.clear()
        status = await first_of(listening, ours)
        assert status.state is TicketState.HALTED, str(status)
        assert "timeline" in str(status)
        assert not published(connection, ours)
        assert {each.state for each in found} <= {TicketState.HALTED}
        connection.execute(ADOPTED)
        with pytest.raises(TicketRefusedError, match="incarnation"):
            async with asyncio.timeout(PATIENCE):
                await waiting
        adopted = stashed(connection)
        status = await first_of(listening, adopted)
        assert status.state is TicketState.WAITING, str(status)


async def test_a_ticket_of_the_second_of_an_adoption_is_not_refused(database: str, leader: Leader) -> None:
    """The listener has looked a moment ago, and hears from a leader: it would look again only in ten seconds."""
    listening = Listener(database)
    keeping = asyncio.create_task(last_of(listening, Ticket(leader.stash().outbox_id, 1, 2**40), []))
    await asyncio.sleep(1.5)
    leader.purge()
    await asyncio.sleep(0.5)
    leader.connection.execute(ADOPTED)
    ticket = leader.stash()
    assert ticket.incarnation == 2
    status = await first_of(listening, ticket)
    assert status.state is TicketState.WAITING
    leader.beat()
    found: list[TicketStatus] = []
    async with asyncio.timeout(PATIENCE):
        assert (await last_of(listening, ticket, found)).state is TicketState.PUBLISHED
    with pytest.raises(TicketRefusedError, match="incarnation"):
        async with asyncio.timeout(PATIENCE):
            await keeping


async def test_a_ticket_of_a_database_restored_to_before_an_adoption_is_not_refused(
    database: str, leader: Leader
) -> None:
    """A pooler keeps the listener's connection, and the listener has looked while the adoption was still there."""
    leader.connection.execute(ADOPTED)
    listening = Listener(database)
    waiting = asyncio.create_task(last_of(listening, leader.stash(), []))
    await first_of(listening, leader.stash())
    for table in ("outbox_shard", "outbox_state"):
        leader.connection.execute(f"UPDATE {table} SET incarnation = 1".encode())
    ticket = leader.stash()
    assert ticket.incarnation == 1
    assert (await first_of(listening, ticket)).state is TicketState.WAITING
    with pytest.raises(TicketRefusedError, match="from incarnation 2, but the outbox is in 1"):
        async with asyncio.timeout(PATIENCE):
            await waiting


async def test_a_ticket_of_an_adoption_that_is_not_here_is_refused(database: str, leader: Leader) -> None:
    ticket = leader.stash()
    with pytest.raises(TicketRefusedError, match="from incarnation 3, but the outbox is in 1"):
        await first_of(Listener(database), Ticket(ticket.outbox_id, 3, ticket.transaction_id))


async def test_nothing_is_published_while_harvesting_is_halted(database: str, leader: Leader) -> None:
    """Also for a listener that has heard of a watermark before, and would look again only in ten seconds."""
    listening = Listener(database)
    ticket = leader.stash()
    found: list[TicketStatus] = []
    waiting = asyncio.create_task(last_of(listening, ticket, found))
    await asyncio.sleep(1.5)
    leader.connection.execute("UPDATE outbox_state SET halted = 'the ledger is empty'")
    assert ticket_status(leader.connection, ticket).state is TicketState.HALTED
    leader.purge()  # the last announcement of a leader that does not know yet
    await told(found, TicketState.HALTED)
    await asyncio.sleep(1)
    assert not waiting.done()
    assert found[-1].state is TicketState.HALTED
    assert "the ledger is empty" in str(found[-1])
    assert shown(leader.connection) == [(None,)]
    assert read_status(leader.connection, NAME).doubt == "the ledger is empty"
    leader.connection.execute("UPDATE outbox_state SET halted = NULL")
    assert read_status(leader.connection, NAME).doubt is None
    leader.beat()
    async with asyncio.timeout(PATIENCE):
        assert (await waiting).state is TicketState.PUBLISHED


def test_a_table_that_was_created_again_calls_nothing_published(database: str, leader: Leader) -> None:
    ticket = leader.stash()
    leader.beat()
    assert published(leader.connection, ticket)
    leader.connection.execute("ALTER TABLE outbox RENAME TO outbox_of_yesterday")
    leader.connection.execute("CREATE TABLE outbox (LIKE outbox_of_yesterday INCLUDING ALL)")
    assert not published(leader.connection, ticket)
    assert "dropped and created again" in str(ticket_status(leader.connection, ticket))


def test_a_restart_changes_nothing(primary: EmbeddedPostgres) -> None:
    database = primary.create_database("shop")
    with closing(Leader(database)) as leader:
        ticket = leader.stash()
        leader.beat()
    primary.restart("immediate")
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        assert published(connection, ticket)


def committed(connection: psycopg.Connection[Any], version: int) -> Ticket:
    """Stash as a job does that commits once under an id."""
    with connection.transaction():
        ticket = stash(connection, OutboxRecord("t", "k", "v"))
        assert enter_commit(connection, NAME, CommitId("job", version), records=1)
    return ticket


def ticket_of(connection: psycopg.Connection[Any], version: int) -> Ticket:
    """The ticket of what was committed under that id."""
    commit = find_commit(connection, NAME, CommitId("job", version))
    assert commit is not None
    return commit.ticket


def test_a_jobs_ticket_is_of_the_incarnation_it_was_committed_in(leader: Leader) -> None:
    connection = leader.connection
    ticket = committed(connection, 1)
    connection.execute(ADOPTED)
    leader.beat()
    found = ticket_of(connection, 1)
    assert found == ticket
    with pytest.raises(TicketRefusedError, match="from incarnation 1, but the outbox is in 2"):
        published(connection, found)
    later = committed(connection, 2)
    assert later.incarnation == 2
    assert ticket_of(connection, 2) == later


def test_what_an_earlier_release_has_entered_keeps_its_incarnation(leader: Leader) -> None:
    """A migration knows from the list of adoptions; of what an old job enters after it, nobody knows."""
    connection = leader.connection
    for version in range(3):
        committed(connection, version)
        connection.execute("SELECT pg_sleep(0.01)")
        connection.execute(
            "INSERT INTO outbox_adopted (incarnation, adopted_at, differences, reason)"
            " VALUES (%s, clock_timestamp(), '', '')",
            [2 * version + 2],
        )
        connection.execute("SELECT pg_sleep(0.01)")
    connection.execute(AS_OF_VERSION_4.encode())
    role = f"test_{uuid4().hex[:8]}"
    connection.execute(f"CREATE ROLE {role}".encode())
    connection.execute(f"GRANT SELECT (outbox_id, watermark) ON outbox_published TO {role}".encode())
    init_outbox(connection, NAME)
    incarnations = connection.execute("SELECT incarnation FROM outbox_commits ORDER BY version").fetchall()
    assert incarnations == [(1,), (2,), (4,)]
    connection.execute(f"SET ROLE {role}".encode())
    assert connection.execute("SELECT watermark, doubt FROM outbox_published").fetchall() == [(None, None)]
    connection.execute("RESET ROLE")
    connection.execute(f"DROP OWNED BY {role}; DROP ROLE {role}".encode())
    connection.execute("INSERT INTO outbox_commits (app_id, version, records) VALUES ('job', 7, 1)")
    unknown = ticket_of(connection, 7)
    with pytest.raises(TicketRefusedError, match="an earlier release"):
        published(connection, unknown)
