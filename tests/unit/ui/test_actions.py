"""Requests have threads of their own: one at a time for each outbox, and none that is waited for for ever."""

from __future__ import annotations

import asyncio
import logging
import threading
from typing import Any

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.errors import ConfigurationError, PostgresError
from airflow_outbox.ui import actions
from airflow_outbox.ui.actions import UNDER_WAY, Requests
from airflow_outbox.ui.outboxes import OutboxKey

ONE, OTHER = OutboxKey("c", "one"), OutboxKey("c", "other")


class FakeConnection:
    closed = False

    def close(self) -> None:
        self.closed = True


@pytest.fixture
def requests(monkeypatch: pytest.MonkeyPatch) -> Requests:
    monkeypatch.setattr(actions, "connect", lambda source, **_: FakeConnection())
    monkeypatch.setattr(actions, "begin_session", lambda connection, **_: None)
    return Requests(lambda conn_id: "host=127.0.0.1")


async def test_a_request_returns_what_it_did_and_ends_its_connection(requests: Requests) -> None:
    used: list[Any] = []

    def work(connection: Any, name: object) -> int:
        used.append(connection)
        return 17

    assert await requests.make(ONE, work) == 17
    assert [connection.closed for connection in used] == [True]


async def test_a_second_one_for_the_same_outbox_is_refused_while_the_first_goes_on(requests: Requests) -> None:
    end = threading.Event()
    assert await requests.make(ONE, lambda *_: end.wait(PATIENCE), patience=0) is UNDER_WAY
    with pytest.raises(ConfigurationError, match="one is under way"):
        await requests.make(ONE, lambda *_: None)
    assert await requests.make(OTHER, lambda *_: "other") == "other"
    end.set()
    async with asyncio.timeout(PATIENCE):
        while True:
            try:
                assert await requests.make(ONE, lambda *_: "again") == "again"
                break
            except ConfigurationError:
                await asyncio.sleep(0.01)


async def test_there_are_four_at_most(requests: Requests) -> None:
    end = threading.Event()
    for number in range(4):
        await requests.make(OutboxKey("c", f"o{number}"), lambda *_: end.wait(PATIENCE), patience=0)
    with pytest.raises(ConfigurationError, match="4 other requests"):
        await requests.make(ONE, lambda *_: None)
    end.set()


async def test_an_error_is_raised_or_logged_when_nobody_waits_any_more(
    requests: Requests, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise PostgresError("the disk is full")

    with pytest.raises(PostgresError, match="disk"):
        await requests.make(ONE, fail)
    fails = threading.Event()

    def fail_later(*_: object) -> None:
        fails.wait(PATIENCE)
        fail()

    with caplog.at_level(logging.ERROR):
        await requests.make(ONE, fail_later, patience=0)
        fails.set()
        async with asyncio.timeout(PATIENCE):
            while "the disk is full" not in caplog.text:
                await asyncio.sleep(0.01)
