"""Events and a log that nobody reads, or reads late, or that a full disk does not take: nobody waits for that."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TextIO

import pytest
from support.harvesting import PATIENCE

from airflow_outbox.harvest import output
from airflow_outbox.harvest.output import NdjsonEvents, Output

FILLING = "x" * 5000
ON_A_DISK_THAT_IS_FULL_FOR_A_WHILE = """
import os, sys, time
from resource import RLIMIT_FSIZE, getrlimit, setrlimit
from airflow_outbox.harvest import output

_, unlimited = getrlimit(RLIMIT_FSIZE)
setrlimit(RLIMIT_FSIZE, (1000, unlimited))
events = output.NdjsonEvents(sys.stdout)
for number in range(100):
    events("progress", number=number)
while os.fstat(1).st_size < 1000:
    time.sleep(0.01)
setrlimit(RLIMIT_FSIZE, (unlimited, unlimited))
output.drain(100)
"""


@pytest.fixture
def pipe() -> Iterator[tuple[TextIO, TextIO]]:
    reading, writing = os.pipe()
    with open(reading) as reader, open(writing, "w") as writer:
        yield reader, writer


def test_a_late_reader_gets_every_line_whole_and_in_order(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    events = NdjsonEvents(writer)
    for number in range(100):
        events("progress", number=number, filling=FILLING)
    assert [json.loads(reader.readline())["number"] for _ in range(100)] == list(range(100))


def test_a_reader_that_is_too_late_is_told_how_many_lines_were_dropped(
    monkeypatch: pytest.MonkeyPatch, pipe: tuple[TextIO, TextIO]
) -> None:
    monkeypatch.setattr(output, "_KEPT_LINES", 10)
    reader, writer = pipe
    events = NdjsonEvents(writer)
    for number in range(100):
        events("progress", number=number, filling=FILLING)
    due, dropped = 0, []
    while due < 100:
        event = json.loads(reader.readline())
        if event["event"] == "dropped":
            dropped.append(event["lines"])
            due += event["lines"]
        else:
            assert event["number"] == due
            due += 1
    assert 50 < sum(dropped) <= 90


def test_a_log_says_so_in_words(monkeypatch: pytest.MonkeyPatch, pipe: tuple[TextIO, TextIO]) -> None:
    monkeypatch.setattr(output, "_KEPT_LINES", 1)
    reader, writer = pipe
    log = Output(writer)
    for number in range(100):
        log.write(f"{number} {FILLING}\n")
    while FILLING in (line := reader.readline()):
        pass
    count, words = line.split(" ", 1)
    assert (int(count) > 0, words) == (True, "lines were dropped: they could not be written\n")


def test_the_end_does_not_wait_for_a_reader(pipe: tuple[TextIO, TextIO]) -> None:
    reader, writer = pipe
    log = Output(writer)
    log.write("x" * 1_000_000 + "\n")
    log.drain(0.1)
    assert len(reader.readline()) == 1_000_001


def test_a_reader_that_is_gone_is_nobodys_concern() -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with open(writing, "w") as writer:
        log = Output(writer)
        for _ in range(3):
            log.write("x\n")
            log.drain(PATIENCE)
        assert not log._lines


def test_a_stream_that_is_closed_takes_nothing() -> None:
    NdjsonEvents(None)("progress")


def test_letters_that_the_encoding_lacks_come_as_escapes() -> None:
    reading, writing = os.pipe()
    with open(reading, encoding="latin-1") as reader, open(writing, "w", encoding="latin-1") as writer:
        Output(writer).write("Zürich, 東京\n")
        assert reader.readline() == "Zürich, \\u6771\\u4eac\n"


def test_a_disk_that_was_full_has_every_line_whole_and_in_order_later(tmp_path: Path) -> None:
    file = tmp_path / "events"
    with file.open("w") as stream:
        subprocess.run([sys.executable, "-c", ON_A_DISK_THAT_IS_FULL_FOR_A_WHILE], stdout=stream, check=True)
    assert [json.loads(line)["number"] for line in file.read_text().splitlines()] == list(range(100))
