"""On a real cluster: attempts that race one another, and executors that are killed; Airflow is nowhere."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from faults.spark.standalone import Standalone, environment, start_job
from support.harvesting import PATIENCE

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

RECORDS = 20_000
PARTITIONS = 4
SEEN = """
    CREATE TABLE business AS SELECT number FROM staged;
    CREATE TABLE seen AS SELECT relname FROM pg_class WHERE relname LIKE '%\\_staging\\_%'
"""


@pytest.fixture(scope="module")
def cluster(server_folder: Path) -> Iterator[Standalone]:
    with Standalone(server_folder / "spark") as cluster:
        yield cluster


@pytest.mark.long
@pytest.mark.parametrize("fault", ["speculation", "executor"])
def test_each_record_once(cluster: Standalone, database: str, tmp_path: Path, fault: str) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        report = tmp_path / "report"
        log = tmp_path / "driver.log"
        driver = start_job(
            tmp_path,
            "speculating_job.py",
            log=log,
            master=cluster.master,
            url=database,
            fault=fault,
            records=RECORDS,
            commit_sql=SEEN,
            report=str(report),
            executor_path=environment(tmp_path)["PYTHONPATH"],
        )
        try:
            assert driver.wait(2 * PATIENCE) == 0, log.read_text()[-4000:]
        finally:
            driver.kill()
            driver.wait()

        def one(query: str) -> Any:
            row = connection.execute(query.encode()).fetchone()
            return row and row[0]

        assert json.loads(report.read_text()) == {"airflow": False}
        if fault == "speculation":
            assert one("SELECT count(*) FROM seen") == PARTITIONS + 1  # the loser of the race has left a table
        else:
            assert "Lost executor" in log.read_text()
        assert one("SELECT array_agg(kafka_value::int ORDER BY id) FROM outbox") == list(range(RECORDS))
        assert one("SELECT array_agg(number::int ORDER BY number) FROM business") == list(range(RECORDS))
        assert one("SELECT count(*) FROM pg_class WHERE relname LIKE '%\\_staging\\_%'") == 0
