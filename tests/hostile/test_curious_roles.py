"""A curious role does all that Postgres lets it: the outbox's owner, harvester, operators and writers do not notice."""

from __future__ import annotations

import asyncio
import json
from contextlib import aclosing, closing

import psycopg
import pytest
from hostile.town import Town
from hostile.traps import TRAP, lay_traps
from support.harvesting import PATIENCE

from airflow_outbox import OutboxRecord, published, stash
from airflow_outbox.operate.details import read_details, read_past
from airflow_outbox.operate.overview import find_shape
from airflow_outbox.postgres.commits import CommitId, enter_commit, find_commit
from airflow_outbox.postgres.connection import connect
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.tickets.listener import Listener
from airflow_outbox.tickets.published import TicketState


def test_functions_and_operators_of_others_are_not_called(town: Town) -> None:
    with town.connect("curious") as curious:
        lay_traps(curious)
        with pytest.raises(psycopg.errors.RaiseException, match=TRAP):
            curious.execute("SELECT array_agg('a'::text)")
    town.make_outbox()
    with town.connect("stash") as app, app.transaction():
        ticket = stash(app, [OutboxRecord(town.topic, f"k{n}", str(n), {"n": str(n)}) for n in range(10)])
    town.command("harvest", "harvest", "--until", "drained")
    with town.connect("stash") as app:
        assert published(app, ticket)
    [shard] = json.loads(town.command("look", "status", "--output", "json"))["shards"]
    assert (shard["published"], shard["last_error"]) == (10, None)
    told = town.command("stash", "status", "--ticket", str(ticket), "--output", "json")
    assert json.loads(told)["state"] == "published"
    town.command("operate", "parked list")
    town.command("operate", "pause")
    town.command("operate", "resume")
    assert TRAP not in town.command("harvest", "check")


def test_no_command_and_no_page_calls_functions_and_operators_of_others(town: Town) -> None:
    archive = {"purge": "archive"}
    with town.connect("curious") as curious:
        lay_traps(curious)
    town.make_outbox(**archive)
    town.command("owner", "init", "--function", **archive)
    with town.connect("stash") as app, app.transaction():
        stash(app, [OutboxRecord(town.topic, f"k{n}", str(n)) for n in range(10)])
        stash(app, OutboxRecord(town.topic + "-nowhere", "k", "v"))
    town.command("stash", "pump", "--topic", town.topic, "--records", "20")
    harvest = ("harvest", "harvest", "--until", "drained")
    town.command(*harvest, **archive)
    choice = ("--topic", town.topic + "-nowhere")
    town.command("operate", "parked show", *choice)
    town.command("operate", "parked retry", *choice)
    town.command("operate", "parked discard", *choice, "--reason", "a test")
    town.command("operate", "replay", "--all", "--yes", **archive)
    town.command(*harvest, **archive)
    town.command("owner", "parked discard", *choice, "--purge")
    town.command("look", "audit", "--table", "outbox_archive")
    town.command("look", "status", "--history", "1h")
    town.command("look", "trail")
    town.command("look", "clusters status")
    town.command("owner", "reshard", "2", "--wait", "0", status=1)
    town.command("owner", "reshard", "--withdraw")
    with town.connect("owner") as owner:
        owner.execute("SELECT pg_catalog.setval('outbox_id_seq'::regclass, 1::bigint)")
    town.command("owner", "adopt", "--reason", "a test", "--yes", **archive)
    town.command(*harvest, **archive)
    with closing(connect(town.dsn("look"), purpose="test")) as page:
        shape = find_shape(page, OutboxName.parse("outbox"))
        assert read_details(page, shape).overview.verdict.state != "unknown"
        read_past(page, shape)


def test_a_commit_counts_for_the_role_that_entered_it(town: Town) -> None:
    """Another task's id is predictable: an entry of somebody else must not keep the task from writing."""
    town.make_outbox()
    for line in town.command("owner", "grant", "--job", town.role("curious")).splitlines():
        with town.connect("owner") as owner:
            owner.execute(line.encode())
    name = OutboxName.parse("outbox")
    forged = CommitId("airflow/shop/run/stash/-1", 0)
    with town.connect("curious") as curious:
        assert enter_commit(curious, name, forged, records=0)
        for column, value in {"owner": f"'{town.role('job')}'", "transaction_id": "'7'::xid8"}.items():
            columns = f"(app_id, version, records, {column})"
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                curious.execute(f"INSERT INTO outbox_commits {columns} VALUES ('a', 1, 1, {value})".encode())
    with town.connect("job") as job:
        assert find_commit(job, name, forged) is None
        assert enter_commit(job, name, forged, records=3)
        assert find_commit(job, name, forged) is not None


def test_a_request_bears_the_name_of_who_asks(town: Town) -> None:
    town.make_outbox()
    with town.connect("owner") as owner, town.connect("operate") as operator:
        owner.execute(
            "INSERT INTO outbox_parked (id, create_time, kafka_topic, kafka_key, kafka_header_keys,"
            " kafka_header_values, transaction_id, incarnation) VALUES (1, now(), 't', 'k', '{}', '{}', '7', 1)"
        )
        for column in ("requested_by = 'somebody else'", "requested_at = now()"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege):
                operator.execute(f"UPDATE outbox_parked SET requested = 'discard', {column}".encode())
        [(before,)] = owner.execute("SELECT clock_timestamp()").fetchall()
        operator.execute("UPDATE outbox_parked SET requested = 'discard', request_reason = 'why not'")
        asked = owner.execute("SELECT requested_by, requested_at >= %s FROM outbox_parked", [before])
        assert asked.fetchall() == [(town.role("operate"), True)]


async def test_an_announcement_of_somebody_else_is_not_believed(town: Town) -> None:
    town.make_outbox()
    with town.connect("stash") as app, app.transaction():
        ticket = stash(app, OutboxRecord(town.topic, "k", "v"))
    town.command("harvest", "harvest", "--until", "drained")
    with town.connect("stash") as app, app.transaction():
        later = stash(app, OutboxRecord(town.topic, "k", "v"))
    told: list[TicketState] = []

    async def listen() -> None:
        async with aclosing(Listener(town.dsn("stash")).statuses(OutboxName.parse("outbox"), later)) as statuses:
            async for status in statuses:
                told.append(status.state)

    listening = asyncio.create_task(listen())
    async with asyncio.timeout(PATIENCE):
        while not told:
            await asyncio.sleep(0.02)
    with town.connect("curious") as curious:
        for _ in range(30):
            for text in ("0 1 1:99999999:", f"0 1 1:99999999: {'0' * 64}"):
                curious.execute("SELECT pg_notify(%s, %s)", [f"outbox {ticket.outbox_id}", text])
            await asyncio.sleep(0.1)
    listening.cancel()
    assert set(told) == {TicketState.WAITING}
