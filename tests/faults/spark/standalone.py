"""A real Spark cluster on loopback, a master and two workers, and jobs that run on it in processes of their own."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyspark
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.java import find_java, java_home
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.process import ServerProcess

ROOT = Path(__file__).resolve().parents[3]
_JARS = Path(pyspark.__file__).parent / "jars"
_NO_AIRFLOW = 'raise ImportError("no Airflow here")\n'


class Standalone:
    """The cluster; its logs are in `folder`. As a context manager it starts on entry and ends on exit."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self._servers: list[ServerProcess] = []

    @property
    def master(self) -> str:
        return f"spark://{LOOPBACK}:{self.port}"

    def __enter__(self) -> Standalone:
        self.folder.mkdir()
        self._start("master.Master", LOOPBACK, "--port", str(self.port), name="master")
        for number, host in enumerate((LOOPBACK, "127.0.0.2")):
            place = str(self.folder / f"worker-{number}")
            self._start(
                *("worker.Worker", host, "--cores", "2", "--memory", "1g", "--work-dir", place, self.master),
                name=f"worker-{number}",
            )
        return self

    def __exit__(self, *_: object) -> None:
        for server in reversed(self._servers):
            server.stop(signal.SIGTERM)

    def _start(self, program: str, host: str, *arguments: str, name: str) -> None:
        ui = free_port()
        server = ServerProcess(
            [
                *(java_home(find_java()) / "bin" / "java", "-Xmx256m", "-cp", f"{_JARS}/*"),
                *(f"org.apache.spark.deploy.{program}", "--host", host, "--webui-port", str(ui), *arguments),
            ],
            name=f"Spark's {name}",
            log=self.folder / f"{name}.log",
            abandon_signal=signal.SIGKILL,
            environment={**environment(self.folder), "SPARK_LOCAL_IP": host},
        )
        self._servers.append(server)
        if name == "master":
            server.wait_until(lambda: _listens(host, ui), timeout=PATIENCE)


def environment(folder: Path) -> dict[str, str]:
    """The environment of drivers and executors: the package, and an Airflow that can't be imported."""
    blocked = folder / "no-airflow" / "airflow"
    blocked.mkdir(parents=True, exist_ok=True)
    (blocked / "__init__.py").write_text(_NO_AIRFLOW)
    return {
        **{name: value for name, value in os.environ.items() if not name.startswith(("AIRFLOW", "SPARK", "PYSPARK"))},
        "JAVA_HOME": str(java_home(find_java())),
        "PYTHONPATH": os.pathsep.join([str(blocked.parent), str(ROOT)]),
        "SPARK_LOCAL_IP": LOOPBACK,
        "PYSPARK_PYTHON": sys.executable,
        "SPARK_HOME": str(_JARS.parent),
        "SPARK_SCALA_VERSION": "2.13",
    }


def start_job(
    folder: Path, program: str, *, log: Path, path: str | None = None, **arguments: Any
) -> subprocess.Popen[bytes]:
    """A driver: one of the programs beside this file, in a session of its own. `path` is where it finds modules."""
    given = environment(folder)
    given["PYTHONPATH"] = path or os.pathsep.join([given["PYTHONPATH"], str(ROOT / "tests")])
    with log.open("ab") as output:
        return subprocess.Popen(
            [sys.executable, str(Path(__file__).with_name(program)), json.dumps(arguments)],
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            env=given,
            cwd=folder,
            start_new_session=True,
        )


def _listens(host: str, port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex((host, port)) == 0
