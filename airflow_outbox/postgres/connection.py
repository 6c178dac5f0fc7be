"""A connection to Postgres for the outbox's own statements."""

from __future__ import annotations

import contextlib
import os
import re
import socket
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast

import psycopg
from psycopg import sql
from psycopg.abc import Buffer, PQGen
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzLoader

from airflow_outbox.errors import (
    ConfigurationError,
    DataSourceError,
    LoginRefusedError,
    PostgresError,
    PostgresUnreachableError,
)
from airflow_outbox.postgres.errors import CONNECT_DIRECTLY, reason_of, translated
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.postgres.statements import composed

# libpq does not tell the SQLSTATE of a failed connection. A server that does not speak English seems unreachable.
_REFUSED = re.compile(
    r"authentication failed|no password supplied|no pg_hba\.conf entry|pg_hba\.conf rejects|not permitted to log in"
    r'|(role|database) ".*" does not exist'
)
# libpq would take a part of a password that is not percent-encoded for the host, and name that.
_URI = re.compile(
    r"postgres(?:ql)?://(?:[^@/?#\s]*@)?(?:[\w.\-%]+|\[[\w:.%]+\])?(?::\d*)?(?:,(?:[\w.\-%]+|\[[\w:.%]+\])?(?::\d*)?)*"
    r"(?:/[^@/?#]*)?(?:\?[^#]*)?"
)
Result = TypeVar("Result")

CONNECT_TIMEOUT = 5  # seconds
KEEP_ALIVE = {
    "connect_timeout": CONNECT_TIMEOUT,
    "keepalives_idle": 2,
    "keepalives_interval": 1,
    "keepalives_count": 3,
    "tcp_user_timeout": 5000,
}


class OutboxConnection(psycopg.Connection[Any]):
    """A connection for the outbox's own statements.

    It looks for functions, operators and types in `pg_catalog` alone, so that nobody else's can replace them. In
    `schemas` it looks for an outbox whose schema is not named.
    """

    schemas: tuple[str, ...] = ()
    on_waiting: Callable[[], object] | None = None
    """Called each time that a statement's thread wakes up while it waits for the server, several times a second."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        # A duplicate: libpq may close its own at any time, and another file may get that number.
        self._line = socket.socket(fileno=os.dup(self.fileno()))
        # Nobody closes a connection that the server has ended: a `with` block takes that for closed.
        weakref.finalize(self, self._line.close)

    def wait(self, gen: PQGen[Result], *args: Any, **kwargs: Any) -> Result:
        told = gen if self.on_waiting is None else _telling(gen, self.on_waiting)
        return super().wait(told, *args, **kwargs)

    def hang_up(self) -> None:
        """Cut the line under a statement that another thread waits for. That statement fails.

        Postgres ends it within a second or two, from release 14 on. Before, it goes on until it has a result.
        """
        with contextlib.suppress(OSError):  # closed, or the server was first
            self._line.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        super().close()
        self._line.close()


def _telling(gen: PQGen[Result], on_waiting: Callable[[], object]) -> PQGen[Result]:
    """Return a generator that does as this one, and tells each time that it goes on."""
    try:
        wanted = next(gen)
        while True:
            ready = yield wanted
            on_waiting()
            wanted = gen.send(ready)
    except StopIteration as end:
        return cast("Result", end.value)


class _Moment(TimestamptzLoader):
    """A time. Infinity, and a year that Python does not know, stay as Postgres writes them."""

    def load(self, data: Buffer) -> Any:
        try:
            return super().load(data)
        except psycopg.DataError:
            return bytes(data).decode()


class _UncheckedText(Loader):
    """A text of a database that checks no encoding. Invalid UTF-8 stays bytes."""

    def load(self, data: Buffer) -> str | bytes:
        try:
            return bytes(data).decode()
        except UnicodeDecodeError:
            return bytes(data)


class _UncheckedBinaryText(_UncheckedText):
    format = Format.BINARY


def _checks_no_encoding(connection: psycopg.Connection[Any]) -> bool:
    return connection.info.parameter_status("server_encoding") == "SQL_ASCII"


def load_all_values(connection: psycopg.Connection[Any]) -> None:
    """Let this connection read every value that a row can hold."""
    connection.adapters.register_loader("timestamptz", _Moment)
    if _checks_no_encoding(connection):
        for kind in ("text", "varchar", "bpchar", "name"):
            connection.adapters.register_loader(kind, _UncheckedText)
            connection.adapters.register_loader(kind, _UncheckedBinaryText)


def connect(
    data_source: str,
    *,
    purpose: str,
    is_pooled: bool = False,
    waits_for_standbys: bool = True,
    opened: Callable[[psycopg.Connection[Any]], None] | None = None,
) -> psycopg.Connection[Any]:
    """Open a connection for the outbox's own statements. Raises PostgresError.

    Each statement is its own transaction, whatever the role's settings say. It is acknowledged only when it is on disk,
    also on that of the synchronous standbys unless `waits_for_standbys` is off. `data_source` is a libpq connection
    string or URI. Its settings win over the keep-alive settings here.

    `is_pooled` is for a connection that a transaction pooler may stand behind. Nothing is set or prepared for longer
    than a transaction, so each one sets what it needs. `opened` is called with the connection before its first
    statement, for a caller that must be able to cut it off.
    """
    given = parsed(data_source)
    try:
        settings = {**KEEP_ALIVE, "application_name": f"airflow-outbox {purpose}", **given}
        if is_pooled:
            settings |= {"client_encoding": "UTF8", "prepare_threshold": None}
        if is_pooled:
            pooled = psycopg.connect(**cast("Any", settings), autocommit=True, row_factory=tuple_row)
            load_all_values(pooled)
            return pooled
        connection = OutboxConnection.connect(**cast("Any", settings), autocommit=True, row_factory=tuple_row)
        if opened is not None:
            opened(connection)
        if _pools_transactions(connection, settings):
            connection.close()
            raise PostgresError(
                "the data source leads to a pooler in transaction mode (PgBouncer?): session settings would be lost, "
                f"and would change what other clients do. {CONNECT_DIRECTLY}"
            )
        load_all_values(connection)
        if connection.info.server_version >= 140000:
            connection.execute(composed("connection.notice_hang_ups"))
        durable = sql.SQL("on" if waits_for_standbys else "local")
        # Postgres gives out no bad UTF-8.
        encoding = sql.Literal("SQL_ASCII" if _checks_no_encoding(connection) else "UTF8")
        begin = composed("connection.begin_session", durable=durable, encoding=encoding)
        [connection.schemas] = connection.execute(begin).fetchone() or ((),)
    except psycopg.Error as error:
        if _REFUSED.search(str(error)):
            raise LoginRefusedError(
                f"Postgres refuses the login: {reason_of(error)}. Check the data source's user, password and database"
            ) from error
        raise PostgresUnreachableError(
            f"can't connect to Postgres: {reason_of(error)}. Check the data source and that the server is up"
        ) from error
    return connection


def _pools_transactions(connection: psycopg.Connection[Any], settings: Mapping[str, Any]) -> bool:
    """Whether a pooler gives two clients that are connected at the same time the same session.

    Ask before anything is set. A pooler that other clients keep busy may not show it.
    """
    query = composed("connection.backend_pid")
    row = connection.execute(query).fetchone()
    if row is None or row[0] == connection.info.backend_pid:
        return False
    with psycopg.connect(**cast("Any", settings), autocommit=True, row_factory=tuple_row) as other:
        return any(other.execute(query).fetchone() == connection.execute(query).fetchone() for _ in range(3))


def parsed(data_source: str) -> dict[str, Any]:
    """Return the parameters of a libpq connection string or URI. Raises DataSourceError, which quotes nothing of it."""
    is_uri = data_source.startswith(("postgresql://", "postgres://"))
    try:
        if is_uri and not _URI.fullmatch(data_source):
            raise DataSourceError(is_uri=is_uri)
        return psycopg.conninfo.conninfo_to_dict(data_source)
    except psycopg.ProgrammingError:
        raise DataSourceError(is_uri=is_uri) from None  # the cause quotes what it could not read, perhaps a password


def storable(connection: psycopg.Connection[Any], text: str) -> str:
    """Return our own text as the database can store it. If it can't hold all of Unicode, all non-ASCII is escaped."""
    text = text.replace("\0", "\\0")
    if connection.info.parameter_status("server_encoding") == "UTF8":
        return text.encode(errors="backslashreplace").decode()
    return text.encode("ascii", "backslashreplace").decode()


def located(connection: psycopg.Connection[Any], name: OutboxName) -> OutboxName:
    """Return the name with its schema: the connection's first one that has such a table, or else its first one.

    A connection that is not the outbox's own leaves names to the search path. Raises ConfigurationError if the name has
    no schema and the role's search path has none, either; PostgresError.
    """
    if not isinstance(connection, OutboxConnection) or name.schema or name.found_in:
        return name
    if not connection.schemas:
        raise ConfigurationError(
            f"the search_path of role {connection.info.user} leads to no schema in which {name} could be. Give the "
            f"schema in outbox_table, such as public.{name.table}"
        )
    values = {"schemas": list(connection.schemas), "table": name.table}
    with translated(name), connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(composed("connection.schema_of"), values).fetchone()
    return name.located(row[0] if row else connection.schemas[0])
