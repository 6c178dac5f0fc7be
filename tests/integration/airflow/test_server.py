"""AirflowStandalone where it does not go well."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from airflow_outbox.demo.embedded import airflow
from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.process import ServerError

pytestmark = pytest.mark.alone


def test_an_airflow_that_does_not_come_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(airflow, "START_SECONDS", 20.0)  # enough to start some parts
    monkeypatch.setattr(airflow.AirflowApi, "healthy", lambda _: False)
    server = AirflowStandalone(tmp_path / "home", dags=tmp_path)
    with pytest.raises(ServerError, match="Airflow was not ready within 20 s"):
        server.start()
    assert "Starting Airflow Standalone" in server.log.read_text()
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(server.folder):
                left.append(process.cmdline())
    assert left == []
