"""`airflow-outbox harvest` with `processes: 2`: the command starts both, and they end together."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.harvesting import CALM, COMMAND, Outbox, Process, make_outbox, wait_until
from support.sharding import divided

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka


@pytest.fixture
def outbox(database: str, kafka: EmbeddedKafka, topic_prefix: str) -> Outbox:
    made = make_outbox(database, bootstrap=kafka.bootstrap, topic=topic_prefix + "data", processes=2, limits=CALM)
    divided(made, 2)
    return made


@pytest.fixture
def command(outbox: Outbox, tmp_path: Path) -> Iterator[Process]:
    file = tmp_path / "outbox.yaml"
    file.write_text(yaml.safe_dump(outbox.settings))
    process = Process([*COMMAND, "harvest", "-f", str(file), "--metrics-port", "0"], log=tmp_path / "stderr")
    yield process
    process.end()


def pids(command: Process) -> list[int]:
    return [command.wait_for("started", process=number)["pid"] for number in (1, 2)]


def test_shards_are_spread_over_both_and_a_signal_ends_both(outbox: Outbox, command: Process) -> None:
    members = pids(command)
    led = "SELECT member FROM outbox_shard WHERE member IS NOT NULL"
    wait_until(lambda: len({member for (member,) in outbox.query(led)}) == 2, doing=lambda: str(command.events))
    outbox.stash(400)
    wait_until(lambda: not outbox.left())
    ports = {command.wait_for("serving", process=number)["port"] for number in (1, 2)}
    assert len(ports) == 2

    def published() -> int:
        told = {event["process"]: event["published"] for event in command.events if event["event"] == "progress"}
        return sum(told.values())

    wait_until(lambda: published() == 400, doing=lambda: str(command.events[-20:]))
    os.kill(command.popen.pid, signal.SIGTERM)
    command.ends()
    assert command.popen.returncode == 0
    # On a busy machine one may be ended before it has said so: it has a second.
    assert {event["reason"] for event in command.events if event["event"] == "ended"} <= {"stopped"}
    assert outbox.by_key() == {f"k{key}": list(range(key, 400, 10)) for key in range(10)}
    assert not any(is_running(pid) for pid in members)


def test_all_end_when_one_is_killed_and_the_command_says_which(command: Process) -> None:
    members = pids(command)
    os.kill(members[1], signal.SIGKILL)
    command.ends()
    assert command.popen.returncode == 1
    assert command.log is not None
    last = command.log.read_text().splitlines()[-1]  # a busy machine may have made Kafka's client warn before
    assert last == "Error: process 2 of 2 was killed by signal 9, so all were stopped. Start the harvest again"
    assert not any(is_running(pid) for pid in members)


def is_running(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True
