"""A stream whose driver is killed again and again: each number arrives once, and in order."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from itertools import pairwise
from pathlib import Path
from typing import Any

import psutil
import psycopg
from faults.spark.standalone import start_job
from support.harvesting import PATIENCE

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

KILLS = {"short": 2, "long": 20}
START = 2 * PATIENCE
"""Seconds that a busy machine may take for a start of Spark and a commit."""
BATCHES_A_KILL = 5  # more than are committed before a kill, also on a fast machine
RECORDS_A_BATCH = 300
COMMIT_SQL = "INSERT INTO business SELECT number FROM staged"


def kill(driver: subprocess.Popen[bytes], chance: random.Random) -> None:
    """All of it at once, or only its JVM, so that a Python process goes on with a commit that nobody waits for."""
    if chance.random() < 0.5:
        os.killpg(driver.pid, signal.SIGKILL)
    else:
        for process in psutil.Process(driver.pid).children(recursive=True):
            with suppress(psutil.NoSuchProcess):  # Spark's workers in Python come and go
                if process.name() == "java":
                    process.kill()
                    break
        try:
            driver.wait(10)  # Python sees that its JVM is gone
        except subprocess.TimeoutExpired:
            os.killpg(driver.pid, signal.SIGKILL)
    driver.wait()


@contextmanager
def running(driver: subprocess.Popen[bytes]) -> Iterator[subprocess.Popen[bytes]]:
    """The driver, of which nothing is left when the block ends."""
    try:
        yield driver
    finally:
        with suppress(ProcessLookupError):
            os.killpg(driver.pid, signal.SIGKILL)
        driver.wait()


def files_a_batch(checkpoint: Path) -> list[int]:
    """How many files each of the stream's batches is made of, by Spark's own log.

    Usually one. A driver that is killed when it has noted the next file, and not yet the batch that is to have it,
    leaves a batch of two to the one that follows.
    """
    logged = {int(file.name): file for file in (checkpoint / "offsets").iterdir() if file.name.isdigit()}
    offsets = [json.loads(logged[batch].read_text().splitlines()[-1])["logOffset"] for batch in range(len(logged))]
    return [offset - before for before, offset in pairwise([-1, *offsets])]


def test_each_record_once(database: str, tmp_path: Path, is_long: bool, seed: int) -> None:
    kills = KILLS["long" if is_long else "short"]
    chance = random.Random(seed)
    source = tmp_path / "source"
    source.mkdir()
    batches = (kills + 1) * BATCHES_A_KILL
    for batch in range(batches):
        numbers = range(batch * RECORDS_A_BATCH, (batch + 1) * RECORDS_A_BATCH)
        file = source / f"{batch:05}.txt"
        file.write_text("".join(f"{number}\n" for number in numbers))
        os.utime(file, (time.time() - batches + batch,) * 2)  # the source reads the oldest first
    log, checkpoint = tmp_path / "driver.log", tmp_path / "checkpoint"

    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        connection.execute("CREATE TABLE business (number bigint PRIMARY KEY)")

        def one(query: str) -> Any:
            row = connection.execute(query.encode()).fetchone()
            return row and row[0]

        def start() -> subprocess.Popen[bytes]:
            inline = {"inlineBytes": "0"} if chance.random() < 0.5 else {}
            return start_job(
                tmp_path,
                "streaming_job.py",
                log=log,
                url=database,
                source=str(source),
                checkpoint=str(checkpoint),
                options={"commitSql": COMMIT_SQL, **inline},
            )

        def committed() -> int:
            return int(one("SELECT count(*) FROM outbox_commits"))

        struck = 0
        for _ in range(kills):
            before, deadline = committed(), time.monotonic() + START
            with running(start()) as driver:
                # The kill before may have come when all was committed.
                while committed() == before and not (struck and driver.poll() == 0):
                    assert driver.poll() is None, log.read_text()[-4000:]
                    assert time.monotonic() < deadline, log.read_text()[-4000:]
                    time.sleep(0.01)
                time.sleep(chance.uniform(0, 1))
                if driver.poll() == 0:  # a busy machine has held this process up until the stream had ended
                    break
                kill(driver, chance)
                struck += 1
        with running(start()) as last:
            assert last.wait(3 * PATIENCE) == 0, log.read_text()[-4000:]
        assert struck

        expected = list(range(batches * RECORDS_A_BATCH))
        assert one("SELECT array_agg(kafka_value::int ORDER BY id) FROM outbox") == expected
        assert one("SELECT array_agg(number::int ORDER BY number) FROM business") == expected
        commits = connection.execute("SELECT version, records FROM outbox_commits ORDER BY version").fetchall()
        of_spark = [(batch, files * RECORDS_A_BATCH) for batch, files in enumerate(files_a_batch(checkpoint))]
        assert commits == of_spark
        assert one("SELECT count(*) FROM pg_class WHERE relname LIKE '%\\_staging\\_%'") == 0
