"""Threads that show signs of life, and those that are held up."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable

import pytest
from support.harvesting import wait_until

from airflow_outbox.harvest.worker_thread import Watchdog, Worker

TIMEOUT = 2.0


def silence(watchdog: Watchdog, seconds: float) -> str | None:
    """Who is held up when so many seconds have passed, of which it is asked each half second."""
    found = [watchdog.held_up(passed=0.5, timeout=TIMEOUT) for _ in range(int(2 * seconds))]
    return found[-1]


class Held:
    """A call that begins, waits, and may show signs meanwhile."""

    def __init__(self, worker: Worker) -> None:
        self._worker = worker
        self._begun, self._goes_on = threading.Event(), threading.Event()

    def __call__(self, before: Callable[[], object] = lambda: None) -> None:
        before()
        self._begun.set()
        self._goes_on.wait()

    def begin(self, before: Callable[[], object] = lambda: None) -> None:
        self._worker.run(lambda: self(before))
        self._begun.wait()

    def end(self) -> None:
        self._goes_on.set()
        wait_until(lambda: not self._worker.signs.works)


@pytest.fixture
def watchdog() -> Watchdog:
    return Watchdog()


@pytest.fixture
def worker(watchdog: Watchdog) -> Worker:
    return Worker("publish", watchdog=watchdog)


@pytest.fixture
def held(worker: Worker) -> Held:
    return Held(worker)


def test_a_thread_that_has_nothing_to_do_is_not_held_up(watchdog: Watchdog, worker: Worker) -> None:
    assert asyncio.run(worker.call(lambda: 7)) == 7
    wait_until(lambda: not worker.signs.works)
    assert silence(watchdog, 60) is None


def test_a_call_without_a_sign_is_held_up_until_it_ends(watchdog: Watchdog, held: Held) -> None:
    held.begin()
    assert silence(watchdog, TIMEOUT) is None
    assert silence(watchdog, TIMEOUT) == "publish"
    held.end()
    assert silence(watchdog, 60) is None


def test_signs_meanwhile_count(watchdog: Watchdog, worker: Worker, held: Held) -> None:
    held.begin()
    for _ in range(10):
        worker.signs.show()
        assert silence(watchdog, TIMEOUT) is None
    held.end()


def test_a_call_that_waits_for_a_server_may_be_silent(watchdog: Watchdog, worker: Worker, held: Held) -> None:
    held.begin(lambda: worker.signs.show(may_be_silent=10))
    assert silence(watchdog, TIMEOUT + 10) is None
    assert silence(watchdog, 1) == "publish"
    held.end()


def test_what_one_call_may_the_next_one_may_not(watchdog: Watchdog, worker: Worker, held: Held) -> None:
    asyncio.run(worker.call(lambda: worker.signs.show(may_be_silent=60)))
    held.begin()
    assert silence(watchdog, 2 * TIMEOUT) == "publish"
    held.end()


def test_a_thread_that_was_given_up_is_not_watched(watchdog: Watchdog, worker: Worker, held: Held) -> None:
    held.begin()
    worker.end()
    assert silence(watchdog, 60) is None
    held.end()
