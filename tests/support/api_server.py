"""A real API server of Airflow, without the rest of it, and people who look at it."""

from __future__ import annotations

import json
import shutil
import signal
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx
from psycopg.conninfo import conninfo_to_dict

from airflow_outbox.demo.embedded.airflow import AirflowStandalone, airflow_program
from airflow_outbox.demo.embedded.process import ServerProcess

ROLES = ("viewer", "user", "op", "admin")
START_SECONDS = 300.0
_ANSWER_SECONDS = 120.0
_PATIENT_PAGE = Path(__file__).with_name("patient_page.py")


class ApiServer:
    """An API server over a metadata database of its own, with the Dags of a folder. Each role is a user's name, too.

    `base` is the path of `[api] base_url`, `program` another installation's `airflow`.
    """

    def __init__(
        self,
        folder: Path,
        *,
        dags: Path,
        database: str,
        connections: Mapping[str, Mapping[str, object] | str],
        base: str = "",
        environment: Mapping[str, str] | None = None,
        program: Path | None = None,
    ) -> None:
        self._whole = AirflowStandalone(
            folder, dags=dags, database=database, connections=connections, environment=environment
        )
        self._program = str(program or airflow_program())
        self.base = base
        self.url = f"{self._whole.ui_url}{base}"
        self._log = folder / "api-server.log"
        self._process: ServerProcess | None = None
        passwords = folder / "passwords.json"
        passwords.write_text(json.dumps({role: role for role in ROLES}))
        plugins = folder / "plugins"
        plugins.mkdir()
        shutil.copy(_PATIENT_PAGE, plugins)
        self._environment = {
            **self._whole.environment(),
            "AIRFLOW__API__BASE_URL": self.url,
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_USERS": ",".join(f"{role}:{role}" for role in ROLES),
            "AIRFLOW__CORE__SIMPLE_AUTH_MANAGER_PASSWORDS_FILE": str(passwords),
            **(environment or {}),
        }

    def airflow(self, *arguments: str) -> None:
        """Run a command of Airflow to its end."""
        with self._log.open("ab") as log:
            command = [self._program, *arguments]
            subprocess.run(command, env=self._environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL, check=True)

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run a command of Airflow to its end, and return what it says."""
        command = [self._program, *arguments]
        return subprocess.run(command, env=self._environment, capture_output=True, text=True, check=False)

    @property
    def pid(self) -> int:
        assert self._process is not None
        return self._process.pid

    def __enter__(self) -> Self:
        self.airflow("db", "migrate")
        self.airflow("dags", "reserialize")
        self._process = ServerProcess(
            [self._program, "api-server", "--host", "127.0.0.1", "--port", str(self._whole.port)],
            name="Airflow's API server",
            log=self._log,
            abandon_signal=signal.SIGTERM,
            environment=self._environment,
        )
        self._process.wait_until(self._answers, timeout=START_SECONDS)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._process is not None:
            self._process.stop(signal.SIGTERM)

    def _answers(self) -> bool:
        try:
            return httpx.get(f"{self.url}/api/v2/version", trust_env=False).status_code == httpx.codes.OK
        except httpx.TransportError:
            return False

    def visitor(self, role: str | None) -> httpx.Client:
        """Somebody's browser, with his cookie (None: nobody is signed in). Its paths begin behind `/outbox/`."""
        cookies: dict[str, Any] = {}
        if role is not None:
            login = {"username": role, "password": role}
            address = f"{self.url}/auth/token"
            answer = httpx.post(address, json=login, timeout=_ANSWER_SECONDS, trust_env=False).raise_for_status()
            cookies["_token"] = answer.json()["access_token"]
        return httpx.Client(base_url=f"{self.url}/outbox/", cookies=cookies, timeout=_ANSWER_SECONDS, trust_env=False)


def as_connection(database: str) -> dict[str, object]:
    """A database as an Airflow connection."""
    server = conninfo_to_dict(database)
    login = {"login": server["user"], "password": server["password"]}
    where = {"host": server["host"], "port": int(server["port"]), "schema": server["dbname"]}
    return {"conn_type": "postgres", **where, **login}
