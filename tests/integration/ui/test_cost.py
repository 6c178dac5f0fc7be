"""What the page costs Airflow and Postgres: connections, files and threads."""

from __future__ import annotations

import asyncio
import os
import signal
import threading

import psutil
import pytest
from starlette.requests import Request
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.operate.overview import read_overview
from airflow_outbox.ui import pages
from airflow_outbox.ui.access import Asked, Visitor
from airflow_outbox.ui.outboxes import OutboxKey
from airflow_outbox.ui.pages import rows_of
from airflow_outbox.ui.query_pool import THREADS, Answer, PageQuery, QueryPool
from airflow_outbox.values.verdict import State

from .many_outboxes import make_outboxes, page_backends, page_pool, rendered  # noqa: F401

MANY = 200
REFRESHES = 300


async def test_two_hundred_outboxes_are_shown_over_a_few_connections(
    database: str, pool: QueryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pages, "_PATIENCE", PATIENCE)
    made = make_outboxes(database, MANY // 2)
    keys = [OutboxKey(conn_id, key.name) for conn_id in ("one", "two") for key in made]
    async with asyncio.timeout(PATIENCE):  # a busy machine answers for some of them later
        rows = await rows_of(keys)
        while not all(row.verdict.state is State.NO_LEADER for row in rows):
            await asyncio.sleep(pages._AGE)
            rows = await rows_of(keys)
    assert rendered(rows).count("<tr ") == MANY
    wait_until(
        lambda: len(page_backends(database)) == MANY // pages._OUTBOXES_A_CONNECTION
    )  # one that was cut off ends later


async def test_refreshes_leak_no_connections_files_or_threads(
    database: str, pool: QueryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age in ("_AGE", "_PAST_AGE"):
        monkeypatch.setattr(pages, age, 0.0)
    keys = make_outboxes(database, 2)
    asked = Asked(Visitor(None), keys[0], (), may_act=True, may_see_values=True)
    process = psutil.Process()

    async def refresh(times: int) -> tuple[int, int]:
        answered = 0
        async with asyncio.timeout(2 * PATIENCE):
            while answered < times:
                rendered(await rows_of(keys))
                shown = await pages.one_outbox(Request({"type": "http"}), asked)
                if b"NO LEADER" in shown.body:
                    answered += 1
                else:  # a busy machine, on which a database has a second to answer, too
                    assert b"UNKNOWN" in shown.body
                    await asyncio.sleep(0.1)
        return process.num_fds(), threading.active_count()

    files, threads = await refresh(REFRESHES // 3)
    files_after, threads_after = await refresh(REFRESHES)
    assert files_after <= files + THREADS, "a connection that is late is made once more"
    assert threads_after <= threads + THREADS  # they start one by one, up to so many
    assert len(pool._questions) == len(keys) + len(("details", "past"))


async def test_a_backend_that_stops_is_left_and_another_answers(database: str, pool: QueryPool) -> None:
    [key] = make_outboxes(database, 1)

    async def ask(*, patience: float = 0.3) -> Answer[object]:
        query = PageQuery("pg", "x", lambda session: read_overview(session.connection, session.shape(key.outbox)), 0.0)
        return await pool.ask(query, patience=patience)

    async def answers() -> None:
        async with asyncio.timeout(PATIENCE):
            while (await ask()).value is None:
                await asyncio.sleep(0.1)

    await answers()
    wait_until(lambda: len(page_backends(database)) == 1)  # one that was cut off ends later
    [pid] = page_backends(database)
    os.kill(pid, signal.SIGSTOP)
    try:
        assert "has not answered" in (await ask()).problem
        await answers()
    finally:
        os.kill(pid, signal.SIGCONT)
