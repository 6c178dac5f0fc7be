"""A login to an outbox whose password changes, and whose sessions end then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg
from psycopg.conninfo import conninfo_to_dict, make_conninfo
from support.leading import NAME, logged_in

from airflow_outbox.postgres.schema import grant_statements

PLACES = ("configuration", "password file", "service file")
"""Where a password can stand."""


class RotatedLogin:
    """May harvest, and wait for tickets."""

    def __init__(self, owner: psycopg.Connection[Any], data_source: str) -> None:
        self.data_source = data_source
        self.role = conninfo_to_dict(data_source)["user"]
        self._owner = owner

    @property
    def password(self) -> str:
        return str(conninfo_to_dict(self.data_source)["password"])

    def rotate(self) -> None:
        """Change the password, and end the sessions that have begun by the old one."""
        self.data_source = make_conninfo(self.data_source, password=f"new {self.password}")
        self._owner.execute(f"ALTER ROLE {self.role} PASSWORD '{self.password}'".encode())
        self.end_sessions()

    def write(self, place: str, secrets: Path) -> str:
        """Write the password, unless it stands in the configuration, into this file, which `PGSERVICEFILE` names; the
        data source for the configuration.
        """
        known = conninfo_to_dict(self.data_source)
        secrets.touch(mode=0o600)
        if place == "password file":
            secrets.write_text(f"*:*:*:*:{known.pop('password')}\n")
            return make_conninfo(**known, passfile=str(secrets))
        if place == "service file":
            secrets.write_text("\n".join(["[outbox]", *(f"{name}={value}" for name, value in known.items())]))
            return "service=outbox"
        return self.data_source

    def end_sessions(self) -> None:
        self._owner.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [self.role])


@contextmanager
def rotated_login(database: str) -> Iterator[RotatedLogin]:
    """A login to the outbox of this database, which is there already."""
    with (
        psycopg.connect(database, autocommit=True) as owner,
        logged_in(database, owner, "harvest") as data_source,
    ):
        login = RotatedLogin(owner, data_source)
        for statement in grant_statements(owner, NAME, "job", str(login.role)):
            owner.execute(statement.encode())
        yield login
        login.end_sessions()
