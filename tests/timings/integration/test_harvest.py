"""How soon the harvesting process is gone, and how small it is."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

import psycopg
import pytest
from integration.test_harvest import full_pipe, harvest_that_ends
from support.harvesting import CHILD, Outbox, Process

from airflow_outbox.demo.embedded.kafka import EmbeddedKafka
from airflow_outbox.harvest.config import HarvestConfig
from airflow_outbox.harvest.kafka.names import KafkaNames, make_internal_topics
from airflow_outbox.harvest.supervised_child import ENVIRONMENT
from airflow_outbox.postgres.table import OutboxTable

pytestmark = pytest.mark.timed

Start = Callable[..., Process]
SOON = 1.5
"""Seconds: it has one, and some more until that is seen."""


def is_gone_soon(try_it: Callable[[], float]) -> bool:
    """Whether a child is gone within a second, the best of three tries: a busy machine delays some."""
    return any(try_it() < SOON for _ in range(3))


def test_the_child_is_gone_within_a_second_of_its_pipe_closing(outbox: Outbox, start: Start) -> None:
    outbox.stash(30_000)

    def closed() -> float:
        process = start(child=True)
        process.wait_for("view")
        assert process.popen.stdin is not None
        process.popen.stdin.close()
        return process.ends()

    assert is_gone_soon(closed)


def test_the_command_is_gone_within_a_second_though_nobody_reads_its_output(outbox: Outbox, tmp_path: Path) -> None:
    def terminated() -> float:
        with (
            full_pipe() as (_, output),
            harvest_that_ends(outbox, tmp_path / "f", stdout=output, stderr=output) as process,
        ):
            begun = time.monotonic()
            process.terminate()
            process.wait()
            return time.monotonic() - begun

    assert is_gone_soon(terminated)


def test_the_child_is_gone_within_a_second_even_when_kafka_is_silent(
    outbox: Outbox, server_folder: Path, kafka_classpath: str, start: Start
) -> None:
    with EmbeddedKafka(server_folder / "silent", classpath=kafka_classpath) as kafka:
        outbox.settings["kafka"] = {"bootstrap.servers": kafka.bootstrap}
        config = HarvestConfig.validated(outbox.settings, source="test")
        with psycopg.connect(outbox.database, autocommit=True) as connection:
            make_internal_topics(
                config, KafkaNames.of(config, OutboxTable(connection, config.name).identity().outbox_id)
            )

        def terminated() -> float:
            process = start(child=True)
            process.wait_for("view")
            kafka.pause()
            process.popen.terminate()
            try:
                return process.ends()
            finally:
                kafka.resume()

        assert is_gone_soon(terminated)


def test_the_child_is_small(outbox: Outbox) -> None:
    process = Process(CHILD, first_line={"config": outbox.settings}, environment=ENVIRONMENT)
    try:
        process.wait_for("measured")  # and so has all that a leader without records has
        status = Path(f"/proc/{process.popen.pid}/status").read_text()
    finally:
        process.end()
    resident = 1024 * int(next(line.split()[1] for line in status.splitlines() if line.startswith("VmRSS")))
    print(f"{resident} bytes")
    assert resident < 60 * 2**20  # 56.4 to 58.7 MiB: the page cache decides how much of a library is mapped
