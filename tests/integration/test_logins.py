"""A Postgres that refuses a login is told from one that can't be reached: only the latter is waited for. And sessions
that the server ends leave nothing behind.
"""

from __future__ import annotations

import contextlib
import gc
import itertools
import socket
from collections.abc import Iterator
from types import SimpleNamespace

import psycopg
import pytest
from psycopg.conninfo import conninfo_to_dict, make_conninfo

from airflow_outbox.errors import LoginRefusedError, PostgresUnreachableError
from airflow_outbox.postgres.connection import OutboxConnection, connect
from airflow_outbox.spark import retrying


@pytest.fixture
def role(database: str) -> Iterator[str]:
    with psycopg.connect(database, autocommit=True) as connection:
        name = f"{connection.info.dbname}_login"
        connection.execute(f"CREATE ROLE {name} LOGIN PASSWORD 'right'".encode())
        yield name
        connection.execute(f"DROP ROLE {name}".encode())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"password": "wrong"}, 'password authentication failed for user "'),
        ({}, "no password supplied"),
        ({"user": "nobody", "password": "right"}, 'password authentication failed for user "nobody"'),
        ({"dbname": "nothing", "password": "right"}, 'database "nothing" does not exist'),
    ],
    ids=["password", "no password", "user", "database"],
)
def test_a_refusal_is_final(
    database: str, role: str, given: dict[str, str], message: str, caplog: pytest.LogCaptureFixture
) -> None:
    server = {name: value for name, value in conninfo_to_dict(database).items() if name != "password"}
    data_source = make_conninfo(**{**server, "user": role, **given})
    with pytest.raises(LoginRefusedError) as failure:
        retrying.patiently(lambda: connect(data_source, purpose="test"))
    assert str(failure.value).startswith("Postgres refuses the login: ")
    assert message in str(failure.value)
    assert "right" not in str(failure.value)
    assert caplog.messages == []


@pytest.mark.parametrize("obstacle", ["nobody listens", "no connection is left"])
def test_what_may_pass_is_waited_for(
    database: str,
    role: str,
    obstacle: str,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = itertools.count(0.0, 20.0)  # a third of its patience passes with every look
    monkeypatch.setattr(retrying, "time", SimpleNamespace(monotonic=lambda: next(clock), sleep=lambda _: None))
    data_source = make_conninfo(database, user=role, password="right")
    if obstacle == "nobody listens":
        data_source = make_conninfo(data_source, port=1)
    else:
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"ALTER ROLE {role} CONNECTION LIMIT 0".encode())
    with pytest.raises(PostgresUnreachableError) as failure:
        retrying.patiently(lambda: connect(data_source, purpose="test"))
    assert not isinstance(failure.value, LoginRefusedError)
    assert [message.endswith("; trying again") for message in caplog.messages] == [True] * 3


def test_a_session_that_the_server_ends_leaves_no_socket_open(database: str) -> None:
    def ended() -> socket.socket:
        with connect(database, purpose="test") as connection:
            assert isinstance(connection, OutboxConnection)
            with contextlib.suppress(psycopg.OperationalError):
                connection.execute("SELECT pg_terminate_backend(pg_backend_pid())")
            return connection._line

    line = ended()
    gc.collect()
    assert line.fileno() == -1
