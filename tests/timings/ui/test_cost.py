"""The page's cost for Airflow, and for Postgres: time and memory."""

from __future__ import annotations

import asyncio
import gc
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from statistics import median, quantiles

import httpx
import psutil
import pytest
from integration.ui.many_outboxes import make_outboxes, page_backends, page_pool, rendered  # noqa: F401
from starlette.requests import Request
from support.api_server import ApiServer
from support.harvesting import PATIENCE, wait_until

from airflow_outbox.ui import pages
from airflow_outbox.ui.access import Asked, Visitor
from airflow_outbox.ui.outboxes import OutboxKey
from airflow_outbox.ui.pages import rows_of
from airflow_outbox.ui.query_pool import QueryPool
from airflow_outbox.values.verdict import State

pytestmark = pytest.mark.timed

MANY = 200
VIEWERS = 20
TRIES = 5
"""A machine is busy at times. A Postgres that slows others does so each time."""
REFRESHES = 1_000
SPANS = 3


def processor_seconds(pids: list[int]) -> tuple[float, float]:
    """For how long the threads of these processes have had a processor, and for how long they have waited for one."""
    had = waited = 0
    for task in (task for pid in pids for task in Path(f"/proc/{pid}/task").glob("*/schedstat")):
        with suppress(OSError):
            numbers = task.read_text().split()
            had, waited = had + int(numbers[0]), waited + int(numbers[1])
    return had / 1e9, waited / 1e9


async def test_two_hundred_outboxes_are_shown_within_a_second(
    database: str, pool: QueryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the clock, or by the processor time of all who are at it, where they wait for processors most of the time."""
    monkeypatch.setattr(pages, "_PATIENCE", PATIENCE)
    made = make_outboxes(database, MANY // 2)
    keys = [OutboxKey(conn_id, key.name) for conn_id in ("one", "two") for key in made]
    rendered([])  # the templates are read once
    seconds: list[float] = []  # of each look that showed all of them
    until = time.monotonic() + PATIENCE
    # The first time connections open, and Postgres reads its catalogs; later others may run.
    while min(seconds, default=1.0) >= 1 and time.monotonic() < until:
        processes = [os.getpid(), *page_backends(database)]
        begun, (had, waited) = time.monotonic(), processor_seconds(processes)
        rows = await rows_of(keys)
        assert rendered(rows).count("<tr ") == MANY
        took, (had_then, waited_then) = time.monotonic() - begun, processor_seconds(processes)
        if all(row.verdict.state is State.NO_LEADER for row in rows):
            seconds.append(had_then - had if waited_then - waited > took / 2 else took)
        await asyncio.sleep(pages._AGE)
    assert min(seconds, default=1.0) < 1, seconds


async def test_a_thousand_refreshes_leak_no_memory(
    database: str, pool: QueryPool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for age in ("_AGE", "_PAST_AGE"):
        monkeypatch.setattr(pages, age, 0.0)
    keys = make_outboxes(database, 2)
    asked = Asked(Visitor(None), keys[0], (), may_act=True, may_see_values=True)
    process = psutil.Process()

    async def refresh(times: int) -> int:
        answered = 0
        async with asyncio.timeout(2 * PATIENCE):
            while answered < times // 2:
                rendered(await rows_of(keys))
                shown = await pages.one_outbox(Request({"type": "http"}), asked)
                if b"NO LEADER" in shown.body:
                    answered += 1
                else:  # a busy machine, on which a database has a second to answer, too
                    assert b"UNKNOWN" in shown.body
                    await asyncio.sleep(0.1)
        gc.collect()
        return process.memory_info().rss

    memory = await refresh(REFRESHES // 5)
    grown: list[int] = []  # what leaks grows in each span, a thread's or a connection's memory in one
    for _ in range(SPANS):
        after = await refresh(REFRESHES // SPANS)
        grown.append(after - memory)
        memory = after
    assert min(grown) < 4_000_000 / SPANS, grown


class Viewer(threading.Thread):
    """Somebody whose page refreshes again and again."""

    def __init__(self, client: httpx.Client, path: str, ended: threading.Event) -> None:
        super().__init__()
        self.client, self.path, self.ended = client, path, ended
        self.seconds: list[float] = []

    def run(self) -> None:
        while not self.ended.is_set():
            begun = time.monotonic()
            self.client.get(self.path).raise_for_status()
            self.seconds.append(time.monotonic() - begun)
            self.ended.wait(2)


@contextmanager
def viewers_of(outbox: str, clients: list[httpx.Client]) -> Iterator[None]:
    """Half of them look at the list, the others at this outbox; from when each has seen something."""
    ended = threading.Event()
    viewers = [
        Viewer(client, ["./", f"one?outbox={outbox}"][number % 2], ended) for number, client in enumerate(clients)
    ]
    for viewer in viewers:
        viewer.start()
    try:
        wait_until(lambda: all(viewer.seconds for viewer in viewers), within=3 * PATIENCE)
        yield
    finally:
        ended.set()
        for viewer in viewers:
            viewer.join()


def test_a_silent_postgres_slows_nothing_of_airflow(server: ApiServer, visitors: dict[str, httpx.Client]) -> None:
    """Airflow answers as soon as it does while as many look at an outbox whose Postgres answers, in turns."""
    clients = [server.visitor("viewer") for _ in range(VIEWERS)]

    def asked_under_viewers(outbox: str) -> list[float]:
        seconds = []
        with viewers_of(outbox, clients):
            for _ in range(60):
                begun = time.monotonic()
                visitors["admin"].get(f"{server.url}/api/v2/dags").raise_for_status()
                seconds.append(time.monotonic() - begun)
                time.sleep(0.1)  # so that a look at what does not answer, which comes every few seconds, is among them
        return seconds

    def is_as_quick(silent: list[float], answering: list[float]) -> bool:
        """A silent Postgres takes five seconds and more from all who would wait for it."""
        slow, usual = quantiles(silent, n=20)[-1], quantiles(answering, n=20)[-1]
        return median(silent) < 1.5 * median(answering) + 0.05 and slow < 2 * usual + 0.2

    healthy = "postgres_default:configured"
    tries: list[tuple[list[float], list[float]]] = []
    try:
        while not tries or (not is_as_quick(*tries[-1]) and len(tries) < TRIES):
            answering = asked_under_viewers(healthy)
            tries.append((asked_under_viewers("silent:harvested"), answering))
        assert "UNKNOWN" in visitors["viewer"].get("one?outbox=silent:harvested").text
    finally:
        for client in clients:
            client.close()
    assert is_as_quick(*tries[-1]), tries
    wait_until(lambda: "UNKNOWN" not in visitors["viewer"].get(f"one?outbox={healthy}").raise_for_status().text)
