"""A real Airflow, all its parts, on 127.0.0.1: `airflow standalone` in a folder of its own."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Self

from airflow_outbox.demo.embedded import descendants
from airflow_outbox.demo.embedded.airflow_api import AirflowApi
from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.process import ServerError, ServerProcess

START_SECONDS = 600.0  # on a machine that is busy with much else
STOP_GRACE_SECONDS = 3.0  # less than a child guard's, which would kill the one process that can find all the others
USER = PASSWORD = "admin"


def loopback_name() -> str:
    """The name under which Airflow's parts reach one another (`[core] hostname_callable`)."""
    return LOOPBACK


class AirflowStandalone:
    """Scheduler, Dag processor, API server and triggerer. All their data, also a SQLite database, is in `folder`.

    As a context manager it starts on entry and stops on exit. The processes that its tasks and triggers started end
    with it, and all of it ends with the process that started it. User and password are `admin`.

    `database` is the metadata database, empty at first, as a `postgresql://` URI. More than one triggerer needs it.

    `dags` is the folder of Dag files. `connections` are Airflow connections by id, as mappings (`conn_type`, `host`,
    `login`, …) or URIs. `environment` is added to the present one, without the variables of any other Airflow.
    `parallelism` is how many tasks run at once. `log` takes the output of all parts, by default `airflow.log` in the
    folder.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dags: Path,
        database: str | None = None,
        connections: Mapping[str, Mapping[str, object] | str] | None = None,
        environment: Mapping[str, str] | None = None,
        parallelism: int = 4,
        port: int | None = None,
        log: Path | None = None,
    ) -> None:
        self.folder = folder.resolve()
        self.log = log or self.folder / "airflow.log"
        self.port = port or free_port()
        self._dags = dags.resolve()
        self._database = database
        self._connections = dict(connections or {})
        self._extra = dict(environment or {})
        self._parallelism = parallelism
        self._process: ServerProcess | None = None
        self._triggerers: list[ServerProcess] = []
        self.api = AirflowApi(self.ui_url, user=USER, password=PASSWORD)

    @property
    def ui_url(self) -> str:
        """Where the UI and the REST API are."""
        return f"http://{LOOPBACK}:{self.port}"

    @property
    def pid(self) -> int:
        """The process that is the ancestor of all of Airflow's. Raises `ServerError` when it does not run."""
        if self._process is None or not self._process.running:
            raise ServerError("Airflow is not running. Start it first.")
        return self._process.pid

    def start(self) -> Self:
        """Start Airflow and wait until all its parts have reported (about 20 s).

        Raises `ServerError` with the end of its log when they do not within ten minutes.
        """
        if self._process is not None and self._process.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / "passwords.json").write_text(json.dumps({USER: PASSWORD}))
        command = [airflow_program(), "standalone"]
        self._process = ServerProcess(
            [sys.executable, "-I", "-S", descendants.__file__, str(STOP_GRACE_SECONDS), *command],
            name="Airflow",
            log=self.log,
            abandon_signal=signal.SIGTERM,
            environment=self.environment(),
        )
        self._process.wait_until(self.api.healthy, timeout=START_SECONDS)
        return self

    def start_triggerer(self) -> int:
        """Start one more triggerer; return its process id. It is at work some seconds later. Raises `ServerError`.

        It is no descendant of `pid`: its triggers must themselves see to it that their processes end with it.
        """
        if self._database is None:
            raise ServerError("Two triggerers lock each other out of SQLite. Use a metadata database on Postgres.")
        triggerer = ServerProcess(
            [airflow_program(), "triggerer", "--skip-serve-logs"],
            name="Airflow's triggerer",
            log=self.log.with_suffix(f".triggerer-{len(self._triggerers) + 2}.log"),
            abandon_signal=signal.SIGTERM,
            environment=self.environment(),
        )
        self._triggerers.append(triggerer)
        return triggerer.pid

    def stop(self) -> None:
        """End Airflow and all its descendants within a few seconds. Nothing happens when it does not run."""
        for triggerer in self._triggerers:
            triggerer.send(signal.SIGTERM)
        if self._process is not None:
            self._process.stop(signal.SIGTERM)
            self._process = None
        for triggerer in self._triggerers:
            triggerer.stop(signal.SIGTERM)  # the second one ends a triggerer that lingers
        self._triggerers.clear()
        self.api.close()

    def __enter__(self) -> Self:
        try:
            return self.start()
        except BaseException:
            self.stop()
            raise

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def environment(self) -> dict[str, str]:
        """The environment of every process of this Airflow."""
        inherited = {
            name: value
            for name, value in os.environ.items()
            if not name.startswith(("AIRFLOW_", "_AIRFLOW_", "OPENLINEAGE_"))
        }
        settings = {
            "CORE__DAGS_FOLDER": str(self._dags),
            "CORE__LOAD_EXAMPLES": "False",
            "CORE__PARALLELISM": str(self._parallelism),
            "CORE__EXECUTION_API_SERVER_URL": f"{self.ui_url}/execution/",
            "CORE__HOSTNAME_CALLABLE": f"{__name__}.{loopback_name.__name__}",
            "CORE__SIMPLE_AUTH_MANAGER_USERS": f"{USER}:admin",
            "CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(self.folder / "passwords.json"),
            "API__HOST": LOOPBACK,
            "API__PORT": str(self.port),
            "API__BASE_URL": self.ui_url,
            "API__WORKERS": "1",
            "DAG_PROCESSOR__REFRESH_INTERVAL": "10",
            # A busy machine's API server takes longer than the five seconds after which a task would give up.
            "WORKERS__EXECUTION_API_TIMEOUT": "60",
            "WORKERS__MAX_FAILED_HEARTBEATS": "20",
            "LOGGING__WORKER_LOG_SERVER_PORT": str(free_port()),
            "LOGGING__TRIGGER_LOG_SERVER_PORT": str(free_port()),
            **({"DATABASE__SQL_ALCHEMY_CONN": self._database} if self._database else {}),
        }
        return {
            **inherited,
            "PATH": os.pathsep.join([str(Path(sys.executable).parent), inherited.get("PATH", os.defpath)]),
            "PYTHONUNBUFFERED": "1",
            "AIRFLOW_HOME": str(self.folder),
            **{f"AIRFLOW__{name}": value for name, value in settings.items()},
            **{
                f"AIRFLOW_CONN_{conn_id.upper()}": value if isinstance(value, str) else json.dumps(value)
                for conn_id, value in self._connections.items()
            },
            **self._extra,
        }


def airflow_program() -> str:
    """The program that starts any part of Airflow."""
    return str(Path(sys.executable).parent / "airflow")
