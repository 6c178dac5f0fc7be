"""The pool, over databases that answer, are slow, or say nothing."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.ui import query_pool as module
from airflow_outbox.ui.query_pool import QueryPool, Session


def query(conn_id: str, subject: object, ask: Any, max_age: float = 1.0) -> module.PageQuery[Any]:
    return module.PageQuery(conn_id, subject, ask, max_age)


class FakeConnection:
    """A connection that is there; what is asked of it is up to the test."""

    closed = False

    def close(self) -> None:
        self.closed = True

    def fileno(self) -> int:
        raise OSError("it has no socket")


@pytest.fixture
def pool(monkeypatch: pytest.MonkeyPatch) -> Iterator[QueryPool]:
    monkeypatch.setattr(module, "connect", lambda source, **_: FakeConnection())
    monkeypatch.setattr(module, "begin_session", lambda connection, **_: None)
    made = QueryPool(lambda conn_id: "host=127.0.0.1")
    yield made
    made.close()


async def test_a_question_is_asked_once_for_all_who_look(pool: QueryPool) -> None:
    asked = []

    def ask(session: Session) -> int:
        time.sleep(0.05)
        asked.append(session)
        return len(asked)

    known = query("one", "subject", ask, max_age=10 * PATIENCE)
    answers = await asyncio.gather(*(pool.ask(known, patience=PATIENCE) for _ in range(20)))
    assert [answer.value for answer in answers] == [1] * 20
    assert (await pool.ask(known, patience=PATIENCE)).value == 1


async def test_an_answer_counts_for_a_while_only(pool: QueryPool) -> None:
    numbers = iter(range(10))
    known = query("one", "subject", lambda session: next(numbers), max_age=0.05)
    assert (await pool.ask(known, patience=PATIENCE)).value == 0
    await asyncio.sleep(0.1)
    assert (await pool.ask(known, patience=PATIENCE)).value == 1


async def test_a_slow_connection_delays_no_other(pool: QueryPool) -> None:
    go_on = threading.Event()
    slow = [query("slow", number, lambda session: go_on.wait(PATIENCE)) for number in range(50)]
    answers = await pool.ask_all(slow, patience=0.2)
    assert all("has not answered" in answer.problem for answer in answers)
    quick = query("quick", 0, lambda session: "there")
    async with asyncio.timeout(PATIENCE):
        while (await pool.ask_all([*slow, quick], patience=0.5))[-1].value != "there":
            pass
    assert (await pool.ask(query("quick", 1, lambda session: "still there"), patience=PATIENCE)).value == "still there"
    assert not go_on.is_set()
    go_on.set()


async def test_an_error_is_the_answer_and_the_next_question_is_asked(pool: QueryPool) -> None:
    def refuse(session: Session) -> None:
        raise PostgresError("no such right. Ask for it")

    refused = await pool.ask(query("one", 1, refuse), patience=PATIENCE)
    broken = await pool.ask(query("one", 2, lambda session: [][0]), patience=PATIENCE)
    assert refused.problem == "no such right. Ask for it"
    assert "list index out of range" in broken.problem
    assert (await pool.ask(query("one", 3, lambda session: 3), patience=PATIENCE)).value == 3


async def test_a_lost_connection_is_told_at_once_and_asked_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_RETRY", 0.0)
    go_on, tries = threading.Event(), []

    def unknown(conn_id: str) -> str:
        tries.append(conn_id)
        if len(tries) > 1:
            go_on.wait(PATIENCE)
        raise ConfigurationError("it can't be resolved")

    pool = QueryPool(unknown)
    try:
        known = query("lost", 1, lambda session: None, max_age=0.0)
        assert (await pool.ask(known, patience=PATIENCE)).problem == "connection lost: it can't be resolved"
        await asyncio.sleep(0.01)
        asked = 0
        async with asyncio.timeout(PATIENCE):  # nobody answers now
            while asked < 3 or len(tries) < 2:
                assert (await pool.ask(known, patience=PATIENCE)).problem == "connection lost: it can't be resolved"
                asked += 1
                await asyncio.sleep(0.1)
        assert len(tries) == 2
    finally:
        go_on.set()
        pool.close()


async def test_a_refused_connection_is_told_in_airflows_words() -> None:
    pool = QueryPool(lambda conn_id: "host=127.0.0.1 port=1 user=nobody sslmode=disable")
    try:
        problem = (await pool.ask(query("shop", 1, lambda session: None), patience=PATIENCE)).problem
    finally:
        pool.close()
    assert problem.startswith("connection shop: can't connect to Postgres: ")
    assert problem.endswith("Connection refused. Check that connection and that the server is up")


async def test_old_questions_are_forgotten(pool: QueryPool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_KEPT", 0.0)
    for number in range(100):
        await pool.ask(query("one", number, lambda session: None), patience=PATIENCE)
    assert len(pool._questions) < 5


async def test_a_server_that_accepts_and_says_nothing_is_cut_off(monkeypatch: pytest.MonkeyPatch) -> None:
    """A real socket: libpq waits for the first answer, for as long as it may."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
        pool = QueryPool(lambda conn_id: f"host=127.0.0.1 port={port} user=nobody sslmode=disable")
        try:
            known = query("silent", 1, lambda session: None)
            answer = await pool.ask(known, patience=0.3)
            assert "has not answered yet" in answer.problem or "can't connect" in answer.problem
            async with asyncio.timeout(PATIENCE):
                while "can't connect" not in (answer := await pool.ask(known, patience=0.3)).problem:
                    await asyncio.sleep(0.1)
        finally:
            pool.close()
