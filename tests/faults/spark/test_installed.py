"""As it is installed, Spark finds the data source by itself, where no Airflow is."""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path

import psycopg
import pytest
from faults.spark.standalone import ROOT, environment, start_job
from hatchling.build import build_wheel
from support.harvesting import PATIENCE

from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.schema import init_outbox

NOT_NEEDED = ("pandas", "confluent_kafka", "pydantic", "click", "rich", "yaml", "psutil")
"""Packages that docs/how-to/spark.md does not ask for, or for the audit only."""


def test_a_job_that_registers_nothing(database: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        init_outbox(connection, OutboxName.parse("outbox"))
        monkeypatch.chdir(ROOT)
        installed = tmp_path / "installed"
        with zipfile.ZipFile(tmp_path / build_wheel(str(tmp_path))) as wheel:
            wheel.extractall(installed)
        blocked = environment(tmp_path)["PYTHONPATH"].split(os.pathsep)[0]
        for module in NOT_NEEDED:
            Path(blocked, f"{module}.py").write_text(f"raise ImportError('{module} is not installed')")
        report, log = tmp_path / "report", tmp_path / "driver.log"
        path = os.pathsep.join([blocked, str(installed)])
        driver = start_job(tmp_path, "installed_job.py", log=log, path=path, url=database, report=str(report))
        try:
            assert driver.wait(2 * PATIENCE) == 0, log.read_text()[-4000:]
        finally:
            driver.kill()
            driver.wait()
        assert json.loads(report.read_text()) == {"loaded": []}  # the driver's own Python has loaded none of it
        assert connection.execute("SELECT kafka_topic, kafka_key, kafka_value FROM outbox").fetchall() == [
            ("t", "k", "v")
        ]
