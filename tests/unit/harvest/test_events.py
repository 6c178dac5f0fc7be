"""PipedEvents, with a reader that is late, too late, or gone."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from airflow_outbox.harvest import events
from airflow_outbox.harvest.events import PipedEvents


@pytest.fixture
def pipe() -> Iterator[tuple[int, PipedEvents]]:
    reading, writing = os.pipe()
    yield reading, PipedEvents(writing)
    os.close(reading)
    os.close(writing)


def numbers(reading: int, piped: PipedEvents) -> list[int]:
    """The lines that a reader gets in the end, by turns with the writer."""
    content = b""
    while not piped._write():
        content += os.read(reading, 100_000)
    content += os.read(reading, 1_000_000)
    return [json.loads(line)["number"] for line in content.splitlines()]


def test_a_late_reader_gets_every_line_whole_and_in_order(pipe: tuple[int, PipedEvents]) -> None:
    reading, piped = pipe
    for number in range(100):
        piped("progress", number=number, filling="x" * 5000)
    assert numbers(reading, piped) == list(range(100))


def test_for_a_reader_that_is_too_late_the_newest_lines_are_kept(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[int, PipedEvents]
) -> None:
    monkeypatch.setattr(events, "_KEPT_LINES", 10)
    reading, piped = pipe[0], PipedEvents(pipe[1]._descriptor)
    for number in range(100):
        piped("progress", number=number, filling="x" * 5000)
    read = numbers(reading, piped)
    assert read[-10:] == list(range(90, 100))
    assert read == sorted(set(read))
    assert 10 < len(read) < 100


def test_the_end_waits_for_a_reader_no_longer_than_it_should(pipe: tuple[int, PipedEvents]) -> None:
    reading, piped = pipe
    piped("progress", number=0, filling="x" * 1_000_000)
    piped.close(0.1)
    assert not piped._write()
    assert numbers(reading, piped) == [0]


def test_a_reader_that_is_gone_is_nobodys_concern() -> None:
    reading, writing = os.pipe()
    piped = PipedEvents(writing)
    os.close(reading)
    piped("progress", number=0)
    piped.close(1)
    os.close(writing)
