"""The published sensor and its trigger in this process, on a real Postgres; a leader's part is said by hand."""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Iterator
from contextlib import aclosing, closing
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowSkipException, TaskDeferred
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import PATIENCE
from support.leading import Leader

from airflow_outbox import Ticket
from airflow_outbox.demo.embedded.postgres import EmbeddedPostgres
from airflow_outbox.sensors.published import NotPublishedError, OutboxPublishedSensor
from airflow_outbox.tickets.listener import MOST_STATEMENTS
from airflow_outbox.triggers.published import OutboxPublishedTrigger
from airflow_outbox.triggers.watermark import OutboxWatermarkTrigger
from airflow_outbox.values.fence import LedgerPosition
from airflow_outbox.values.records import Snapshot

BLOCKED = "FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"


@pytest.fixture
def leader(database: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Leader]:
    """A leader of the outbox behind Airflow's default connection."""
    server = conninfo_to_dict(database)
    known = {"host": server["host"], "port": int(server["port"]), "schema": server["dbname"]}
    known |= {"login": server["user"], "password": server["password"]}
    monkeypatch.setenv("AIRFLOW_CONN_POSTGRES_DEFAULT", json.dumps({"conn_type": "postgres", **known}))
    monkeypatch.setattr("airflow_outbox.tickets.waiters._PARKED_INTERVAL", 0.5)
    with closing(Leader(database)) as leader:
        yield leader


async def event(ticket: Ticket, **options: Any) -> dict[str, Any]:
    (found,) = [event.payload async for event in OutboxPublishedTrigger(ticket=str(ticket), **options).run()]
    return dict(found)


class Said:
    """All that was logged since this began to listen."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self._text = ""

    def times(self, text: str) -> int:
        self._text += "".join(self._capfd.readouterr())
        return self._text.count(text)


async def until(happened: Callable[[], object]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not happened():
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("has_committed", [False, True])
async def test_a_parked_record_of_the_transaction_fails_it(leader: Leader, has_committed: bool) -> None:
    other, ticket = leader.stash(), leader.stash(3)
    waiting = [asyncio.create_task(event(each, has_committed=has_committed)) for each in (other, ticket)]
    leader.park(ticket, 2, "too large for the topic")
    leader.beat()
    async with asyncio.timeout(PATIENCE):
        fine, failed = await asyncio.gather(*waiting)
    assert fine == {"status": "published", "ticket": str(other)}
    assert failed["status"] == "failed"
    told = f"2 records of transaction {ticket.transaction_id} are parked: too large for the topic"
    assert told in failed["error"]


async def test_parked_records_can_be_waited_for(leader: Leader, capfd: pytest.CaptureFixture[str]) -> None:
    ticket = leader.stash(3)
    leader.park(ticket, 1)
    leader.beat()
    said = Said(capfd)
    waiting = asyncio.create_task(event(ticket, wait_for_parked=True))
    await until(lambda: said.times("1 records of transaction"))
    await asyncio.sleep(1)
    assert not waiting.done()
    leader.unpark()
    async with asyncio.timeout(PATIENCE):
        assert (await waiting)["status"] == "published"
    assert said.times("1 records of transaction") == 1


async def test_a_record_that_is_discarded_while_it_is_waited_for_fails_it(
    leader: Leader, capfd: pytest.CaptureFixture[str]
) -> None:
    ticket = leader.stash(2)
    leader.park(ticket, 1)
    leader.beat()
    said = Said(capfd)
    waiting = asyncio.create_task(event(ticket, wait_for_parked=True))
    await until(lambda: said.times("1 records of transaction"))
    leader.discard()
    async with asyncio.timeout(PATIENCE):
        failed = await waiting
    assert (failed["status"], "1 were discarded" in failed["error"]) == ("failed", True)


def test_the_sensor_fails_at_once_when_records_are_parked_already_or_is_skipped(leader: Leader) -> None:
    ticket = leader.stash(3)
    leader.park(ticket, 2)
    leader.beat()

    def execute(**options: Any) -> str:
        return str(OutboxPublishedSensor(task_id="wait", ticket=str(ticket), **options).execute({}))

    with pytest.raises(NotPublishedError, match="2 records of transaction"):
        execute()
    for option in ("soft_fail", "never_fail"):
        with pytest.raises(AirflowSkipException, match="2 records of transaction"):
            execute(**{option: True})
        with pytest.raises(TaskDeferred) as deferred:
            execute(wait_for_parked=True, **{option: True})
        assert deferred.value.trigger.serialize()[1]["wait_for_parked"] is True
    leader.unpark()
    assert execute(soft_fail=True) == str(ticket)


async def test_a_connection_that_is_lost_once_the_batch_is_out_is_made_anew(leader: Leader) -> None:
    ticket = leader.stash()
    with leader.own.transaction():
        leader.own.execute("LOCK public.outbox_parked")
        waiting = asyncio.create_task(event(ticket))
        leader.connection.execute("UPDATE outbox_shard SET watermark = pg_current_snapshot()")
        for _ in range(2):
            await until(lambda: leader.connection.execute(f"SELECT pid {BLOCKED}".encode()).fetchone())
            leader.connection.execute(f"SELECT pg_terminate_backend(pid) {BLOCKED}".encode())
        await asyncio.sleep(0.2)
        assert not waiting.done()
    async with asyncio.timeout(PATIENCE):
        assert await waiting == {"status": "published", "ticket": str(ticket)}


async def test_that_there_is_nothing_to_tell_an_asset_is_said_once(
    leader: Leader, capfd: pytest.CaptureFixture[str]
) -> None:
    leader.table.begin(leader.view, delivery="at_least_once", witness=LedgerPosition())
    async with aclosing(OutboxWatermarkTrigger(asset="kafka://k/t").run()) as events:
        waiting, said = asyncio.ensure_future(anext(events)), Said(capfd)
        reason = "asset kafka://k/t gets no events: outbox outbox is harvested at least once"
        await until(lambda: said.times(reason))
        await asyncio.sleep(1.5)
        assert said.times(reason) == 1
        assert not waiting.done()
        leader.table.begin(leader.view, delivery="exactly_once", witness=LedgerPosition())
        leader.beat(topics={"t": 1})
        async with asyncio.timeout(PATIENCE):
            assert (await waiting).payload["topics"] == {"t": 1}
    assert said.times("asset kafka://k/t gets events")


async def test_an_asset_gets_no_events_while_harvesting_is_halted(
    leader: Leader, capfd: pytest.CaptureFixture[str]
) -> None:
    leader.beat(topics={"t": 1})
    leader.connection.execute("UPDATE outbox_state SET halted = 'the ledger is empty'")
    async with aclosing(OutboxWatermarkTrigger(asset="kafka://k/t").run()) as events:
        waiting, said = asyncio.ensure_future(anext(events)), Said(capfd)
        reason = "asset kafka://k/t gets no events: nobody can tell what outbox outbox has published"
        await until(lambda: said.times(reason))
        await asyncio.sleep(2.5)
        assert said.times(reason) == 1
        assert not waiting.done()
        leader.connection.execute("UPDATE outbox_state SET halted = NULL")
        async with asyncio.timeout(PATIENCE):
            assert (await waiting).payload["topics"] == {"t": 1}


async def test_a_thousand_triggers_cost_less_than_twenty_statements_a_second(
    leader: Leader, postgres: EmbeddedPostgres
) -> None:
    """Counted by the server, in its log, of all connections, while transactions are published all the time and each is
    awaited."""
    leader.connection.execute(f"ALTER DATABASE {leader.connection.info.dbname} SET log_statement = 'all'".encode())
    tickets = [leader.stash() for _ in range(1000)]
    delays: list[float] = []
    published_at = float("inf")

    async def timed(ticket: Ticket) -> None:
        assert (await event(ticket))["status"] == "published"
        delays.append(time.monotonic() - published_at)

    waiting = [asyncio.create_task(timed(ticket)) for ticket in tickets]
    await until(leader.listening)
    await asyncio.sleep(1.5)
    begun, before = time.monotonic(), statements(leader, postgres.log)
    for place in range(100):  # ten at a time, ten times a second
        xmax = tickets[10 * place + 9].transaction_id + 1
        published_at = time.monotonic()
        leader.table.windows.purge_published(
            leader.view, [], Snapshot(xmax, xmax), watermark=Snapshot(xmax, xmax, frozenset())
        )
        await asyncio.sleep(0.1)
    sent = statements(leader, postgres.log) - before
    seconds = time.monotonic() - begun  # after the last statement that counts
    async with asyncio.timeout(PATIENCE):
        await asyncio.gather(*waiting)
    delays.sort()
    print(f"{sent / seconds:.1f} statements/s; p95 {1000 * delays[int(0.95 * len(delays))]:.1f} ms of {len(delays)}")
    assert 0 < sent < 20 * seconds
    assert MOST_STATEMENTS < 20


def statements(leader: Leader, log: Path) -> int:
    """How many statements others than the leader have had logged."""
    own = {leader.connection.info.backend_pid, leader.own.info.backend_pid}
    found = re.findall(r"\[(\d+)\] LOG:  (?:statement|execute [^:]*): ", log.read_text(errors="replace"))
    return sum(int(pid) not in own for pid in found)
