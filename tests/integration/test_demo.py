"""The demo itself, as a user runs it."""

from __future__ import annotations

import json
import re
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from psycopg.conninfo import conninfo_to_dict
from support.harvesting import wait_until

from airflow_outbox.demo.follow import DemoError
from airflow_outbox.demo.run import DemoOptions, run

ROOT = Path(__file__).resolve().parents[2]
ROWS = 2000


@pytest.fixture
def folder(server_folder: Path, topic_prefix: str) -> Path:
    return server_folder / f"{topic_prefix}demo"


def processes_of(folder: Path) -> Iterator[str]:
    """The processes with this folder in their arguments or their environment."""
    for process in Path("/proc").glob("[0-9]*"):
        try:
            told = [(process / name).read_bytes() for name in ("cmdline", "environ")]
        except OSError:
            continue
        if any(str(folder).encode() in text for text in told):
            yield told[0].replace(b"\0", b" ").decode(errors="replace")


def ports_of(folder: Path) -> set[int]:
    """The ports of Postgres and Kafka, which the demo's configuration names."""
    settings = yaml.safe_load((folder / "outbox.yaml").read_text())
    postgres = conninfo_to_dict(settings["data_source"])["port"]
    return {int(str(postgres)), int(settings["kafka"]["bootstrap.servers"].rpartition(":")[2])}


def listens(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.mark.timeout(2500)
def test_once(folder: Path) -> None:
    command = [sys.executable, "-m", "airflow_outbox.demo", "--once", "--rows", str(ROWS), "--folder", str(folder)]
    ended = subprocess.run(command, cwd="/", stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=2400)

    assert ended.returncode == 0, ended.stderr
    *_, last = ended.stdout.splitlines()
    result = json.loads(last)
    assert result.pop("seconds") > 0
    counts = {"stashed": ROWS, "delivered": ROWS, "missing": 0, "duplicates": 0, "out_of_order": 0, "checked": ROWS}
    assert result == counts

    ui = re.search(r"http://127\.0\.0\.1:(\d+), user admin, password admin", ended.stderr)
    assert ui is not None
    assert f"the outbox's page is at http://127.0.0.1:{ui[1]}/plugin/outbox" in ended.stderr
    assert not any(listens(port) for port in {int(ui[1]), *ports_of(folder)})
    wait_until(lambda: list(processes_of(folder)) == [], doing=lambda: str(list(processes_of(folder))))

    password = conninfo_to_dict(yaml.safe_load((folder / "outbox.yaml").read_text())["data_source"])["password"]
    logs = [path for path in folder.rglob("*.log") if path.is_file()]
    assert any("Spark-Submit cmd" in path.read_text(errors="replace") for path in logs)
    assert [path for path in logs if str(password) in path.read_text(errors="replace")] == []


@pytest.mark.long
def test_a_task_that_fails_is_shown_with_its_log_and_all_ends(folder: Path, tmp_path: Path) -> None:
    dags = tmp_path / "dags"
    shutil.copytree(ROOT / "dags", dags)
    (dags / "flights_job.py").write_text("raise SystemExit('the job has a fault')")
    options = DemoOptions(once=True, rows=ROWS, folder=folder, dags=dags, jars=ROOT / ".dev" / "jars")
    with pytest.raises(DemoError, match=r"(?s)task flights_published\.write_flights is .*the job has a fault"):
        run(options)
    assert not any(listens(port) for port in ports_of(folder))
    wait_until(lambda: list(processes_of(folder)) == [], doing=lambda: str(list(processes_of(folder))))
