"""AirflowStandalone where it does not go well."""

from __future__ import annotations

import contextlib
from pathlib import Path

import psutil
import pytest
from support.harvesting import wait_until

from airflow_outbox.demo.embedded import airflow
from airflow_outbox.demo.embedded.airflow import AirflowStandalone
from airflow_outbox.demo.embedded.airflow_api import AirflowApi
from airflow_outbox.demo.embedded.process import ServerError


def test_an_airflow_that_does_not_come_up_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    server = AirflowStandalone(tmp_path / "home", dags=tmp_path)
    parts: set[int] = set()

    def has_parts() -> bool:
        parts.update(process.pid for process in psutil.Process(server.pid).children(recursive=True))
        return len(parts) > 1 and "Starting Airflow Standalone" in server.log.read_text()

    def never_healthy(_: AirflowApi) -> bool:
        wait_until(has_parts, doing=f"the start of its parts; there are {parts}")
        return False

    def left() -> list[list[str]]:
        found = []
        for process in psutil.process_iter():
            with contextlib.suppress(psutil.Error):
                if process.environ().get("AIRFLOW_HOME") == str(server.folder):
                    found.append(process.cmdline())
        return found

    monkeypatch.setattr(airflow, "START_SECONDS", 1.0)
    monkeypatch.setattr(AirflowApi, "healthy", never_healthy)
    with pytest.raises(ServerError, match="Airflow was not ready within 1 s"):
        server.start()
    wait_until(lambda: not left(), doing=lambda: str(left()))
