"""A role of an outbox's database whose password changes, and whose sessions end then."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from uuid import uuid4

import psycopg
from psycopg.conninfo import make_conninfo
from support.leading import NAME

from airflow_outbox.postgres.schema import grant_statements


class RotatedLogin:
    """May harvest an outbox, and wait for tickets."""

    def __init__(self, database: str, role: str) -> None:
        self.role = role
        self.password = "before"
        self._database = database

    @property
    def data_source(self) -> str:
        return make_conninfo(self._database, user=self.role, password=self.password)

    def rotate(self) -> None:
        """Change the password, and end the sessions that have begun by the old one."""
        self.password = f"after {self.password}"
        with psycopg.connect(self._database, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {self.role} PASSWORD '{self.password}'".encode())
            connection.execute("SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [self.role])


@contextmanager
def rotated_login(database: str) -> Iterator[RotatedLogin]:
    """A login to the outbox of this database, which is there already."""
    login = RotatedLogin(database, f"rotated_{uuid4().hex[:8]}")
    with psycopg.connect(database, autocommit=True) as connection:
        connection.execute(f"CREATE ROLE {login.role} LOGIN PASSWORD '{login.password}'".encode())
        try:
            for statement in [
                *grant_statements(connection, NAME, "harvest", login.role),
                *grant_statements(connection, NAME, "job", login.role),
            ]:
                connection.execute(statement.encode())
            yield login
        finally:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE usename = %s", [login.role]
            )
            connection.execute(f"DROP OWNED BY {login.role}; DROP ROLE {login.role}".encode())
