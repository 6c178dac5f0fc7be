"""PgBouncer in front of a Postgres, pooling transactions: no two transactions of a client need be of one session."""

from __future__ import annotations

import os
import shutil
import signal
from pathlib import Path

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.harvesting import PATIENCE

from airflow_outbox.demo.embedded.ports import LOOPBACK, free_port
from airflow_outbox.demo.embedded.process import ServerProcess
from airflow_outbox.demo.embedded.unprivileged import reachable_programs, server_user

_UNPACKED = Path(__file__).resolve().parents[2] / ".dev" / "pgbouncer"  # by ./dev
_SETTINGS = """\
[databases]
* = host={host} port={port} user={user} password={password}
[pgbouncer]
listen_addr = {listen}
listen_port = {own_port}
unix_socket_dir =
auth_type = any
pool_mode = transaction
default_pool_size = 4
max_client_conn = 100
server_reset_query =
ignore_startup_parameters = extra_float_digits
"""


class Pooler:
    """A running PgBouncer whose log is in `folder`; it ends on exit, and with the process that started it."""

    def __init__(self, folder: Path, data_source: str) -> None:
        folder.mkdir()
        self.port = free_port()
        behind = conninfo_to_dict(data_source)
        settings = folder / "pgbouncer.ini"
        settings.write_text(
            _SETTINGS.format(
                host=behind["host"],
                port=behind["port"],
                user=behind["user"],
                password=behind["password"],
                listen=LOOPBACK,
                own_port=self.port,
            )
        )
        user = server_user()
        program, libraries = _program(user)
        self._server = ServerProcess(
            [program, "-q", settings],
            name="PgBouncer",
            log=folder / "pgbouncer.log",
            abandon_signal=signal.SIGKILL,
            user=user,
            environment={**os.environ, "LD_LIBRARY_PATH": libraries},
        )
        self._server.wait_until(self._answers, timeout=PATIENCE)

    def url(self, dbname: str) -> str:
        return make_conninfo("", host=LOOPBACK, port=self.port, dbname=dbname, user="postgres")

    def __enter__(self) -> Pooler:
        return self

    def __exit__(self, *_: object) -> None:
        self._server.stop(signal.SIGINT)

    def _answers(self) -> bool:
        try:
            psycopg.connect(self.url("postgres"), connect_timeout=10).close()
        except psycopg.OperationalError:
            return False
        return True


def _program(user: str | None) -> tuple[Path, str]:
    """PgBouncer, where that user can run it, and where its libraries are."""
    if not (_UNPACKED / "usr/sbin/pgbouncer").exists():
        installed = shutil.which("pgbouncer", path=f"{os.environ['PATH']}:/usr/sbin")
        assert installed, "PgBouncer is missing: run the tests by ./dev test, or install it"
        return Path(installed), ""
    here = reachable_programs(_UNPACKED, ["usr"], sample="usr/sbin/pgbouncer", name="pgbouncer", user=user)
    return here / "usr/sbin/pgbouncer", os.pathsep.join(str(path) for path in here.glob("usr/lib/*-linux-gnu*"))
