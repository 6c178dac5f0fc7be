"""A connection to Postgres for the outbox's own statements, the statements' text, and errors that say what to do."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, cast

import psycopg
from psycopg import sql
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.pq import Format
from psycopg.rows import tuple_row
from psycopg.types.datetime import TimestamptzLoader

from airflow_outbox.errors import (
    DataSourceError,
    LoginRefusedError,
    OutboxError,
    OutboxMissingError,
    PostgresError,
    PostgresUnreachableError,
)
from airflow_outbox.postgres.names import OutboxName
from airflow_outbox.sql import statements

_CONNECT_DIRECTLY = "Give the outbox a direct connection"
_GONE = ("08", "57P")  # SQLSTATE classes: connection exceptions, and a server that is shutting down or starting
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
KEEP_ALIVE = {
    "connect_timeout": 5,
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


@dataclass(frozen=True, slots=True)
class Column:
    """A column of the outbox: its type as Postgres names it, and its limit in characters, if any."""

    type: str
    max_length: int | None

    @property
    def is_bytes(self) -> bool:
        return self.type.startswith("bytea")


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


def storable(connection: psycopg.Connection[Any], text: str) -> str:
    """Return our own text as the database can store it. If it can't hold all of Unicode, all non-ASCII is escaped."""
    text = text.replace("\0", "\\0")
    if connection.info.parameter_status("server_encoding") == "UTF8":
        return text.encode(errors="backslashreplace").decode()
    return text.encode("ascii", "backslashreplace").decode()


def render(statement: str, name: OutboxName, **parts: sql.Composable) -> sql.Composed:
    """Return a statement of the project with one outbox's table names, and `parts`, filled in."""
    beside = ("leader", "commits", "adopted", "parked", "published", "archive", "loaded", "asked")
    tables = {"outbox": name.beside("")} | {suffix: name.beside(suffix) for suffix in beside}
    texts = {f"{suffix or 'outbox'}_text": sql.Literal(name.text(suffix)) for suffix in ("", *beside)}
    return sql.SQL(cast("Any", statement)).format(**{**tables, **texts, **parts})


def column_types(columns: Mapping[str, Column]) -> dict[str, sql.SQL]:
    """Return the parts `key_type`, `value_type` and `header_type` of a statement, as the outbox's columns have them."""
    parts = {"key_type": "kafka_key", "value_type": "kafka_value", "header_type": "kafka_header_values"}
    return {part: sql.SQL(cast("Any", columns[column].type.removesuffix("[]"))) for part, column in parts.items()}


def connect(
    data_source: str, *, purpose: str, is_pooled: bool = False, waits_for_standbys: bool = True
) -> psycopg.Connection[Any]:
    """Open a connection for the outbox's own statements. Raises PostgresError.

    Each statement is its own transaction, whatever the role's settings say. It is acknowledged only when it is on disk,
    also on that of the synchronous standbys unless `waits_for_standbys` is off. `data_source` is a libpq connection
    string or URI. Its settings win over the keep-alive settings here.

    `is_pooled` is for a connection that a transaction pooler may stand behind. Nothing is set or prepared for longer
    than a transaction, so each one sets what it needs.
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
        if _pools_transactions(connection, settings):
            connection.close()
            raise PostgresError(
                "the data source leads to a pooler in transaction mode (PgBouncer?): session settings would be lost, "
                f"and would change what other clients do. {_CONNECT_DIRECTLY}"
            )
        load_all_values(connection)
        durable = sql.SQL("on" if waits_for_standbys else "local")
        # Postgres gives out no bad UTF-8.
        encoding = sql.Literal("SQL_ASCII" if _checks_no_encoding(connection) else "UTF8")
        statement = cast("Any", statements("queries.sql")["begin_session"])
        begin = sql.SQL(statement).format(durable=durable, encoding=encoding)
        [connection.schemas] = connection.execute(begin).fetchone() or ((),)
    except psycopg.Error as error:
        if _REFUSED.search(str(error)):
            raise LoginRefusedError(
                f"Postgres refuses the login: {_reason(error)}. Check the data source's user, password and database"
            ) from error
        raise PostgresUnreachableError(
            f"can't connect to Postgres: {_reason(error)}. Check the data source and that the server is up"
        ) from error
    return connection


def _pools_transactions(connection: psycopg.Connection[Any], settings: Mapping[str, Any]) -> bool:
    """Whether a pooler gives two clients that are connected at the same time the same session.

    Ask before anything is set. A pooler that other clients keep busy may not show it.
    """
    query = cast("Any", statements("queries.sql")["backend_pid"])
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


def _reason(error: psycopg.Error) -> str:
    return " ".join((error.diag.message_primary or str(error)).split())


def located(connection: psycopg.Connection[Any], name: OutboxName) -> OutboxName:
    """Return the name with its schema: the connection's first one that has such a table, or else its first one.

    A connection that is not the outbox's own leaves names to the search path. Raises PostgresError.
    """
    if not isinstance(connection, OutboxConnection) or name.schema or name.found_in or not connection.schemas:
        return name
    values = {"schemas": list(connection.schemas), "table": name.table}
    with translated(name), connection.cursor(row_factory=tuple_row) as cursor:
        row = cursor.execute(cast("Any", statements("queries.sql")["schema_of"]), values).fetchone()
    return name.located(row[0] if row else connection.schemas[0])


@contextmanager
def translated(name: OutboxName) -> Iterator[None]:
    """Raise this project's errors, which say what to do, in place of psycopg's."""
    try:
        yield
    except OutboxError:
        raise
    except psycopg.errors.UndefinedTable as error:
        if error.diag.context is None:
            raise OutboxMissingError(f"{name}: {_reason(error)}. Run `airflow-outbox init`") from error
        remedy = "A function that runs for the outbox must name schemas, because only pg_catalog is searched"
        raise PostgresError(f"{name}: {_reason(error)} ({error.diag.context.splitlines()[0]}). {remedy}") from error
    except psycopg.errors.UndefinedColumn as error:
        remedy = "The tables are older than this release, or goharvest made them. Run `airflow-outbox init`"
        raise PostgresError(f"{name}: {_reason(error)}. {remedy}") from error
    except psycopg.errors.InsufficientPrivilege as error:
        raise PostgresError(f"{name}: {_reason(error)}. `airflow-outbox grant` prints what the role needs") from error
    except (psycopg.errors.InvalidSqlStatementName, psycopg.errors.DuplicatePreparedStatement) as error:
        remedy = f"The data source leads to a pooler (PgBouncer?) in transaction mode. {_CONNECT_DIRECTLY}"
        raise PostgresError(f"{name}: {_reason(error)}. {remedy}") from error
    except psycopg.errors.DiskFull as error:
        raise PostgresError(f"{name}: {_reason(error)}. Free some of Postgres' disk") from error
    except psycopg.Error as error:
        raise (PostgresUnreachableError if is_gone(error) else PostgresError)(f"{name}: {_reason(error)}") from error


@contextmanager
def replicated(connection: psycopg.Connection[Any]) -> Iterator[None]:
    """Raise PostgresError when a commit's wait for the synchronous standbys is cancelled. The commit is then not
    durable, and Postgres only warns.
    """
    warnings: list[str] = []

    def hear(warning: psycopg.errors.Diagnostic) -> None:
        if warning.source_function == "SyncRepWaitForLSN":  # not translated, unlike the message
            warnings.append(" ".join((warning.message_primary or "").split()))

    connection.add_notice_handler(hear)
    try:
        yield
    finally:
        connection.remove_notice_handler(hear)
    if warnings:
        raise PostgresError(
            f"Postgres has committed without its synchronous standbys: {warnings[0]}. "
            "Find out what cancels this role's statements"
        )


def is_gone(error: psycopg.Error) -> bool:
    """Whether the server, or the way to it, is gone. Otherwise it refused a statement."""
    return isinstance(error, psycopg.InterfaceError) or (
        isinstance(error, psycopg.OperationalError) and (error.sqlstate or "08").startswith(_GONE)
    )


def read_columns(connection: psycopg.Connection[Any], name: OutboxName) -> Mapping[str, Column]:
    """Return the columns of an outbox by name; empty when there is no such table."""
    with translated(name), connection.cursor(row_factory=tuple_row) as cursor:
        cursor.execute(cast("Any", statements("queries.sql")["columns"]), {"table": name.text()})
        return {column: Column(kind, max_length) for column, kind, max_length in cursor}
