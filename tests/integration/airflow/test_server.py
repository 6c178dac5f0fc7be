"""AirflowStandalone where it does not go well."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest

from airflow_outbox.demo.embedded import airflow
from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.airflow_api import AirflowApi
from airflow_outbox.demo.embedded.process import ServerError


def test_an_airflow_that_does_not_come_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = AirflowStandalone(tmp_path / "home", dags=tmp_path)
    parts: set[int] = set()

    def count_the_parts(_: AirflowApi) -> bool:
        """As if they never became healthy."""
        parts.update(process.pid for process in psutil.Process(server.pid).children(recursive=True))
        return False

    monkeypatch.setattr(airflow, "START_SECONDS", 15.0)
    monkeypatch.setattr(AirflowApi, "healthy", count_the_parts)
    with pytest.raises(ServerError, match="Airflow was not ready within 15 s"):
        server.start()
    assert len(parts) > 1, "no part of it was started"
    assert "Starting Airflow Standalone" in server.log.read_text()
    left = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if process.environ().get("AIRFLOW_HOME") == str(server.folder):
                left.append(process.cmdline())
    assert left == []
