"""Tickets, answered by a real Postgres: every fate of a transaction, and whom they are told to."""

from __future__ import annotations

import json
import re
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
import yaml
from support.harvesting import COMMAND, PATIENCE, Outbox, Process, wait_until
from support.leading import logged_in

from airflow_outbox import OutboxRecord, Ticket, published, stash
from airflow_outbox.errors import (
    InvalidTicketError,
    NoWatermarkError,
    OutboxMissingError,
    PostgresError,
    RolledBackError,
    TicketRefusedError,
)
from airflow_outbox.postgres.cluster_rows import add_clusters
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.membership import write_membership
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import ROLES, init_outbox
from airflow_outbox.postgres.table import OutboxTable
from airflow_outbox.tickets.published import TicketState, ticket_status
from airflow_outbox.values.fence import Flushed, LedgerPosition
from airflow_outbox.values.records import Snapshot

NAME = OutboxName.parse("outbox")
RECORDS = [OutboxRecord("t", "k", str(number)) for number in range(3)]


@pytest.fixture
def connection(database: str) -> Iterator[psycopg.Connection[Any]]:
    """A connection to a database with an outbox that a leader has taken over, and nothing is published yet."""
    with closing(psycopg.connect(database, autocommit=True)) as connection:
        init_outbox(connection, NAME)
        with leading(database) as table:
            table.begin(view_of(connection), delivery="exactly_once", witness=LedgerPosition())
        yield connection


def leading(database: str) -> closing[OutboxTable]:
    table = OutboxTable(connect(database, purpose="test"), NAME)
    table.take_over(uuid4(), [table.backend()], member="test")
    return closing(table)


def view_of(connection: psycopg.Connection[Any]) -> UUID:
    ((view,),) = connection.execute("SELECT view FROM outbox_shard").fetchall()
    return view


def snapshot(connection: psycopg.Connection[Any]) -> Snapshot:
    ((text,),) = connection.execute("SELECT pg_current_snapshot()::text").fetchall()
    return Snapshot.parse(text)


def publish(database: str, connection: psycopg.Connection[Any]) -> None:
    """Act as a leader that has published all that is visible."""
    with leading(database) as table:
        flushed = Flushed(snapshot(connection), 7, {"t": 3})
        table.heartbeat(view_of(connection), published=3, in_flight=0, rate=0, flushed=flushed)


def stashed(connection: psycopg.Connection[Any]) -> Ticket:
    with connection.transaction():
        return stash(connection, RECORDS)


def recipes() -> list[str]:
    """The SQL on the page about tickets."""
    page = (Path(__file__).resolve().parents[2] / "docs" / "concepts" / "published.md").read_text("utf-8")
    found: list[str] = re.findall(r"^```sql\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)
    return found


def test_published_means_committed_and_seen_by_the_watermark(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    with connection.transaction():
        ticket = stash(connection, RECORDS)
        with closing(psycopg.connect(database, autocommit=True)) as other:
            assert ticket_status(other, ticket).state is TicketState.OPEN
            publish(database, other)
            assert not published(other, ticket)
    status = ticket_status(connection, str(ticket))
    assert (status.state, status.left) == (TicketState.WAITING, 3)
    assert not published(connection, ticket)
    assert "3 records of it still wait" in str(status)
    publish(database, connection)
    assert published(connection, ticket)
    assert ticket_status(connection, ticket).left == 0


def test_a_later_transaction_is_not_published_with_an_earlier_one(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    first = stashed(connection)
    publish(database, connection)
    later = stashed(connection)
    assert (published(connection, first), published(connection, later)) == (True, False)


def test_a_ticket_without_records_is_published_when_the_watermark_sees_it(
    database: str, connection: psycopg.Connection[Any]
) -> None:
    with connection.transaction():
        ticket = stash(connection, [])
    assert ticket_status(connection, ticket).state is TicketState.WAITING
    publish(database, connection)
    assert published(connection, ticket)


def test_a_transaction_that_was_rolled_back_is_an_error(database: str, connection: psycopg.Connection[Any]) -> None:
    with connection.transaction():
        ticket = stash(connection, RECORDS)
        raise psycopg.Rollback
    for _ in range(2):  # whether or not the watermark sees it
        with pytest.raises(RolledBackError, match=f"transaction {ticket.transaction_id} was rolled back"):
            published(connection, ticket)
        publish(database, connection)


def test_a_prepared_transaction_is_named(database: str, connection: psycopg.Connection[Any]) -> None:
    connection.autocommit = False
    connection.tpc_begin("the orphan")
    ticket = stash(connection, RECORDS)
    connection.tpc_prepare()
    with closing(psycopg.connect(database, autocommit=True)) as other:
        publish(database, other)
        status = ticket_status(other, ticket)
        assert (status.state, status.prepared) == (TicketState.PREPARED, "the orphan")
        assert "prepared as 'the orphan'" in str(status)
        other.tpc_commit("the orphan")
        assert ticket_status(other, ticket).state is TicketState.WAITING
        publish(database, other)
        assert published(other, ticket)
    connection.close()


def test_another_incarnations_and_another_outboxes_tickets_are_refused(connection: psycopg.Connection[Any]) -> None:
    ticket = stashed(connection)
    with pytest.raises(TicketRefusedError, match="comes from outbox"):
        published(connection, Ticket(uuid4(), ticket.incarnation, ticket.transaction_id))
    with pytest.raises(TicketRefusedError, match="incarnation"):
        published(connection, Ticket(ticket.outbox_id, 2, ticket.transaction_id))
    with pytest.raises(InvalidTicketError):
        published(connection, "no ticket")
    with pytest.raises(OutboxMissingError):
        published(connection, ticket, outbox="elsewhere")


def test_what_postgres_has_forgotten_is_said_to_be_forgotten(connection: psycopg.Connection[Any]) -> None:
    ticket = stashed(connection)
    with pytest.raises(TicketRefusedError, match="no longer knows"):
        published(connection, Ticket(ticket.outbox_id, 1, 3))


def test_a_ticket_of_the_future_is_refused(connection: psycopg.Connection[Any]) -> None:
    ticket = stashed(connection)
    ahead = Ticket(ticket.outbox_id, 1, ticket.transaction_id + 10**6)
    for ask in (ticket_status, published):
        with pytest.raises(TicketRefusedError, match="has not begun"):
            ask(connection, ahead)


def test_a_ticket_says_on_which_clusters_all_of_it_is(database: str, connection: psycopg.Connection[Any]) -> None:
    early = stashed(connection)
    publish(database, connection)
    assert ticket_status(connection, early).clusters == ("primary",)
    add_clusters(connection, NAME, ["west"])
    write_membership(connection, NAME, {"west": "backup"}, lacking=["west"])
    late = stashed(connection)
    publish(database, connection)
    with logged_in(database, connection, "stash") as login, closing(psycopg.connect(login)) as asking:
        told = ticket_status(asking, late)
        assert told.clusters == ("primary", "west")
        assert str(told) == f"all of transaction {late.transaction_id} is published on clusters primary and west"
        assert ticket_status(asking, early).clusters == ("primary",), "west began to count after it"
        _, where = recipes()
        for ticket, clusters in ((late, {"primary", "west"}), (early, {"primary"})):
            found = asking.execute(where.replace("84217", str(ticket.transaction_id)).encode()).fetchall()
            assert {cluster for (cluster,) in found} == clusters
    write_membership(connection, NAME, {"west": "owed"})
    assert ticket_status(connection, late).clusters == ("primary",)


def test_harvested_at_least_once_nobody_knows(database: str, connection: psycopg.Connection[Any]) -> None:
    before = stashed(connection)
    publish(database, connection)
    with leading(database) as table:
        table.begin(view_of(connection), delivery="at_least_once", witness=LedgerPosition())
    assert published(connection, before)
    with pytest.raises(NoWatermarkError, match="exactly_once"):
        published(connection, stashed(connection))


@pytest.mark.parametrize("role", ROLES)
def test_whoever_may_do_anything_may_ask(database: str, connection: psycopg.Connection[Any], role: Any) -> None:
    ticket = stashed(connection)
    with logged_in(database, connection, role) as source, psycopg.connect(source) as asking:
        assert ticket_status(asking, ticket).left == 3
        publish(database, connection)
        assert published(asking, ticket)


def test_who_may_nothing_is_told_what_is_needed(database: str, connection: psycopg.Connection[Any]) -> None:
    ticket = stashed(connection)
    grant = pytest.raises(PostgresError, match="airflow-outbox grant")
    with logged_in(database, connection, None) as source, psycopg.connect(source) as asking, grant:
        published(asking, ticket)


class Hurried(psycopg.Cursor[Any]):
    """Gives up the count soon, and nothing else."""

    def execute(self, query: Any, params: Any = None, **options: Any) -> Any:
        if isinstance(query, psycopg.sql.Composed) and "AS counted" in query.as_string(self):
            super().execute("SET LOCAL statement_timeout = 300")
        return super().execute(query, params, **options)


def test_a_count_that_takes_too_long_is_done_without(database: str, connection: psycopg.Connection[Any]) -> None:
    ticket = stashed(connection)
    with closing(psycopg.connect(database, cursor_factory=Hurried)) as asking, connection.transaction():
        connection.execute("LOCK outbox")
        status = ticket_status(asking, ticket)
        assert (status.state, status.left) == (TicketState.WAITING, None)
        assert not published(asking, ticket), "the caller's transaction goes on"


def test_the_sql_on_the_page_tells(database: str, connection: psycopg.Connection[Any]) -> None:
    recipe, _ = recipes()

    def says(ticket: Ticket) -> bool:
        with logged_in(database, connection, "stash") as source, psycopg.connect(source) as asking:
            [[answer]] = asking.execute(recipe.replace("0b6d…/1/84217", str(ticket)).encode()).fetchall()
        return bool(answer)

    with connection.transaction():
        undone = stash(connection, RECORDS)
        raise psycopg.Rollback
    ticket, parked = stashed(connection), stashed(connection)
    assert not says(ticket), "nothing is published yet"
    publish(database, connection)
    assert says(ticket)
    assert connection.execute("SELECT batch, topics FROM outbox_published").fetchall() == [(7, {"t": 3})]
    never = {
        "rolled back": undone,
        "another outbox": replace(ticket, outbox_id=uuid4()),
        "another incarnation": replace(ticket, incarnation=2),
        "another incarnation, ahead": replace(ticket, incarnation=2, transaction_id=ticket.transaction_id + 10**6),
        "ahead": replace(ticket, transaction_id=ticket.transaction_id + 10**6),
        "forgotten": replace(ticket, transaction_id=3),
    }
    assert {why: says(each) for why, each in never.items()} == dict.fromkeys(never, False)
    connection.execute(
        "INSERT INTO outbox_parked (id, kafka_topic, kafka_key, transaction_id, create_time, incarnation,"
        " kafka_header_keys, kafka_header_values)"
        " VALUES (1, 't', 'k', %s::text::xid8, now(), 1, ARRAY[]::text[], ARRAY[]::text[])",
        [str(parked.transaction_id)],
    )
    assert (says(parked), says(ticket)) == (False, True)
    connection.execute("UPDATE outbox_parked SET incarnation = 2")
    assert says(parked), "that is another transaction's record"
    connection.execute(
        "INSERT INTO outbox_shard (shard, outbox_id, incarnation, secret)"
        " SELECT 1, outbox_id, incarnation, secret FROM outbox_state"
    )
    assert not says(ticket), "a shard without a watermark has published nothing"


# With a real harvester


def test_no_announcement_claims_what_a_consumer_can_not_read(outbox: Outbox, start: Callable[[], Process]) -> None:
    """Harvesters are killed while a writer goes on; and the counts of records a topic are exact in the end."""
    tickets: list[Ticket] = []
    claimed = 0
    with (
        closing(psycopg.connect(outbox.database, autocommit=True)) as connection,
        closing(psycopg.connect(outbox.database, autocommit=True)) as listening,
    ):
        identity = OutboxTable(connection, NAME).identity()
        listening.execute(f'LISTEN "outbox {identity.outbox_id}"'.encode())
        for _ in range(2):
            process = start(child=True)
            process.wait_for("view")
            turns, enough, deadline = 0, claimed + 6, time.monotonic() + PATIENCE
            while turns < 15 or claimed < enough:
                assert time.monotonic() < deadline, f"{claimed} of {len(tickets)} transactions are claimed"
                turns += 1
                with connection.transaction():
                    turn = len(tickets)
                    records = [OutboxRecord(outbox.topic, f"k{n}", str(5 * turn + n)) for n in range(5)]
                    tickets.append(stash(connection, records))
                notes = [note.payload.split(" ") for note in listening.notifies(timeout=0.05)]
                seen = [Snapshot.parse(snapshot) for shard, incarnation, snapshot, proof in notes]
                news = sum(any(each.sees(ticket.transaction_id) for each in seen) for ticket in tickets)
                if news > claimed:
                    claimed = news
                    assert len(outbox.published()) >= 5 * claimed
            process.end()
        start(child=True)
        wait_until(lambda: all(published(connection, ticket) for ticket in tickets))
        assert sorted(number for _, number in outbox.published()) == list(range(5 * len(tickets)))
        counts = [({outbox.topic: 5 * len(tickets)},)]
        wait_until(lambda: outbox.query("SELECT topics FROM outbox_published") == counts)


def test_the_command_tells(outbox: Outbox, start: Callable[[], Process], tmp_path: Path) -> None:
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))

    def ask(ticket: Ticket | str, *more: str) -> subprocess.CompletedProcess[str]:
        command = [*COMMAND, "status", "-f", str(file), "--ticket", str(ticket), *more]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    with closing(psycopg.connect(outbox.database, autocommit=True)) as connection:
        with connection.transaction():
            ticket = stash(connection, OutboxRecord(outbox.topic, "k", "1"))
        waiting = ask(ticket)
        assert (waiting.returncode, waiting.stdout.strip()) == (
            3,
            f"transaction {ticket.transaction_id} is committed; 1 records of it still wait to be published",
        )
        start(child=True).wait_for("view")
        wait_until(lambda: published(connection, ticket))
    told = ask(ticket, "--output", "json")
    assert told.returncode == 0
    assert json.loads(told.stdout) == {
        "ticket": str(ticket),
        "state": "published",
        "left": 0,
        "prepared": None,
        "prepared_for": None,
        "parked": 0,
        "discarded": 0,
        "reasons": [],
        "published_on": ["primary"],
        "clusters": {"primary": "primary"},
    }
    whole = f"all of transaction {ticket.transaction_id} is published"
    assert ask(ticket).stdout.strip() == whole
    with psycopg.connect(outbox.database) as connection:
        add_clusters(connection, OutboxName.parse("outbox"), ["west"])  # which lacks what was published before
    assert ask(ticket).stdout.startswith(f"{whole} on cluster primary. Cluster west does not count since ")
    refused = ask("nonsense")
    assert (refused.returncode, "not a ticket" in refused.stderr) == (1, True)


def test_a_parked_record_of_the_transaction_is_named(outbox: Outbox, start: Callable[[], Process]) -> None:
    with psycopg.connect(outbox.database) as connection:
        ticket = stash(connection, [OutboxRecord(outbox.topic, f"k{n}", str(n), {"n": "1"}) for n in range(3)])
        connection.execute("UPDATE outbox SET kafka_header_values = ARRAY[]::text[] WHERE kafka_value = '1'")
    start(child=True)
    with psycopg.connect(outbox.database, autocommit=True) as connection:
        wait_until(lambda: ticket_status(connection, ticket).state is TicketState.PARKED)
        status = ticket_status(connection, ticket)
        assert (status.parked, status.discarded) == (1, 0)
        assert status.reasons == ("1 header names for 0 header values",)
        assert not published(connection, ticket)
        connection.execute("UPDATE outbox_parked SET kafka_header_values = ARRAY['1'], requested = 'retry'")
        wait_until(lambda: published(connection, ticket))
